"""A running stream of the bench `replace`, and what its sink shows while something is done to it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any

from bench.harness import Result
from bench.replaced import Gaps, Position, Seen, first, numbers, watching
from exop import Application, Platform

#: How long the sink is watched for one figure, in seconds; what comes late after a change is in it.
WINDOW = 0.02
#: Progress is reported after this many replacements.
TOLD = 100


@dataclass(frozen=True)
class Watched:
    """The observations at a sink during a period.

    Attributes:
        gaps: The longest gap in each slice of it, in ms.
        took: How long what was done took, in ms.
        seconds: How long it was watched.
        items: How many came.
        cpu: The seconds that the process has computed meanwhile, the sound measure on a machine that others use, too.
    """

    gaps: list[float]
    took: float
    seconds: float
    items: int
    cpu: float = 0.0

    @property
    def gap(self) -> float:
        """The longest gap of all, in ms."""
        return max(self.gaps)

    @property
    def rate(self) -> float:
        """Items per second."""
        return self.items / self.seconds


@dataclass
class Checks:
    """The findings of the sinks of all streams."""

    replacements: int = 0
    seen: list[Seen] = field(default_factory=list)

    def results(self) -> Iterator[Result]:
        """All streams together."""
        yield Result("replace/replacements", self.replacements, "replacements")
        for name in ("lost", "doubled", "reordered", "differing"):
            yield Result(f"replace/{name}", sum(getattr(seen, name) for seen in self.seen), "items")

    def __str__(self) -> str:
        return ", ".join(f"{one.value:g} {one.name.removeprefix('replace/')}" for one in self.results())


class Stream:
    """Numbers through one stateful slet, the middle, into a sink that checks them, as fast as they go."""

    def __init__(self, platform: Platform, checks: Checks, middle: Any = first) -> None:
        self.platform, self.checks, self.gaps = platform, checks, Gaps()
        app = Application("replaced")
        number = app.add("numbers", numbers)
        app.add("sink", watching(self.gaps), item=app.add("middle", middle, number=number))
        platform.apply(app.build())
        self.seen: Seen = self._state("sink")
        checks.seen.append(self.seen)
        rest(0.3)

    def replace(self, slet: Any, **settings: Any) -> None:
        """Put another slet in the middle."""
        self.platform.apply(self.platform.mesh("replaced").replace("middle", slet, **settings))
        self.checks.replacements += 1

    def during(self, action: Callable[[], object], at_least: float = WINDOW, *, width: float | None = None) -> Watched:
        """Watch the sink while something is done, and at least for so many seconds; as a whole, or in slices."""
        items, begin, cpu = self.seen.next, time.perf_counter_ns(), time.process_time()
        action()
        took = time.perf_counter_ns() - begin
        rest(at_least - took / 1e9)
        end = time.perf_counter_ns()
        items, cpu = self.seen.next - items, time.process_time() - cpu
        gaps = self.gaps.slices(begin, end, end - begin if width is None else round(width * 1e9))
        return Watched(gaps, took / 1e6, (end - begin) / 1e9, items, cpu)

    def stop(self) -> None:
        """End the stream; everything that was sent has come to the sink then, or is lost."""
        position: Position = self._state("numbers")
        self.platform.end("replaced")
        self.platform.wait("replaced")
        self.seen.ended(position.number)
        self.platform.remove("replaced")

    def _state(self, node: str) -> Any:
        return self.platform.deployment("replaced").components[node].state


@dataclass
class Pairs:
    """Replacements, each beside as long a while without one."""

    replaced: list[Watched] = field(default_factory=list)
    alone: list[Watched] = field(default_factory=list)

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """The longest gap with a replacement, and without."""
        return [(one.gap, other.gap) for one, other in zip(self.replaced, self.alone, strict=True)]

    def beyond(self, share: float) -> float:
        """Return how much longer such a gap is with a replacement than without: *share* of them are shorter."""
        with_one, without = zip(*self.gaps, strict=True)
        return quantile(with_one, share) - quantile(without, share)

    def noise(self, share: float) -> float:
        """The same between two halves of what was measured without a replacement."""
        without = [one.gap for one in self.alone]
        return abs(quantile(without[::2], share) - quantile(without[1::2], share))

    def rate(self) -> float:
        """Items per CPU second, all in all: under full load whatever else the machine does."""
        both = [*self.replaced, *self.alone]
        return sum(one.items for one in both) / sum(one.cpu for one in both)


def replaced_in_turns(stream: Stream, slets: Sequence[Any], number: int, what: str = "") -> Pairs:
    """Replace the middle of a stream again and again; look as long at what is without a replacement in between."""
    pairs = Pairs()
    for count, slet in enumerate(islice(cycle(slets), number), 1):
        pairs.replaced.append(stream.during(partial(stream.replace, slet)))
        pairs.alone.append(stream.during(nothing, at_least=pairs.replaced[-1].seconds))
        if count % TOLD == 0 or count == number:
            print(f"{count} of {number} replacements {what}: {stream.checks}", file=sys.stderr, flush=True)
    return pairs


def nothing() -> None:
    """Change nothing: leave the stream alone."""


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which *share* of all lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def rest(seconds: float) -> None:
    """Let the streams run."""
    if seconds > 0:
        threading.Event().wait(seconds)
