"""How do replacements affect items, is any lost, doubled or reordered, and what does a restart cost instead?"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Annotated

from bench.harness import Result, ratio_of
from bench.openings import WAYS, Opened
from bench.replaced import Gaps, Hash, Hashed, Position, Seen, first, numbers, second, watching
from bench.restarted import restarts
from bench.states import Book, booked, booked_again, entered, fill
from bench.streams import WINDOW, Checks, Pairs, Stream, Watched, nothing, quantile, replaced_in_turns, rest
from exop import Application, Platform, slet

#: The baseline for the gaps around replacements.
ALONE = "the same stream for as long without a replacement"
LOOP = "the same slets in a plain loop"


def measure(
    *,
    replacements: Annotated[int, "replacements of a stateful slet under full load"] = 1000,
    others: Annotated[int, "replacements beside a busy mesh, with a large state, and on an idle stream, each"] = 200,
    megabytes: Annotated[float, "the large state"] = 1.0,
    opening: Annotated[float, "seconds that successors take to open"] = 5.0,
    restarted: Annotated[int, "restarts of a process, for comparison"] = 10,
    quick: Annotated[bool, "a tenth of everything"] = False,
) -> Iterator[Result]:
    """Replace, again and again; what is lost, doubled or reordered by any of it is counted at the end."""
    if quick:
        replacements, others, restarted = max(1, replacements // 10), max(1, others // 10), max(1, restarted // 5)
        opening /= 10
    checks = Checks()
    yield from _alone(replacements, checks)
    yield from _beside_another(others, checks)
    yield from _with_state(others, megabytes, checks)
    yield from _openings(opening, checks)
    yield from _idle(others)
    yield restarts(restarted)
    yield from checks.results()


def _alone(number: int, checks: Checks) -> Iterator[Result]:
    """One driver, and nothing else in the platform."""
    with Platform() as platform:
        stream = Stream(platform, checks)
        pairs = replaced_in_turns(stream, [second, first], number, "under full load")
        stream.stop()
    pair = pairs.rate(), plain_rate()
    yield Result("replace/rate", pair[0], "items per CPU second", LOOP, ratio_of(*pair), [pair])
    yield from _pauses("replace/pause", pairs)
    took = [one.took for one in pairs.replaced]
    yield Result("replace/apply/median", statistics.median(took), "ms", samples=took)


def plain_rate(items: int = 300_000) -> float:
    """Items per CPU second of the same source, slet and sink, called one after the other."""
    state, seen, sink = Hash(), Seen(), watching(Gaps())
    begin = time.process_time()
    for number in islice(numbers(Position()), items):
        sink(first(number, state), seen)
    return items / (time.process_time() - begin)


def _pauses(name: str, pairs: Pairs) -> Iterator[Result]:
    """The longest gap at the sink around a replacement, beyond A/A."""
    for text, share in (("median", 0.5), ("p99", 0.99)):
        yield Result(f"{name}/{text}", pairs.beyond(share), "ms", ALONE, samples=pairs.gaps)
        yield Result(f"{name}/{text}/noise", pairs.noise(share), "ms", "A/A")


def _beside_another(number: int, checks: Checks) -> Iterator[Result]:
    """A second mesh keeps the interpreter busy, too."""
    with Platform() as platform:
        busy = Application("busy")
        busy.add("drop", drop, item=busy.add("hash", first, number=busy.add("numbers", numbers)))
        platform.apply(busy.build())
        stream = Stream(platform, checks)
        pairs = replaced_in_turns(stream, [second, first], number, "beside a busy mesh")
        stream.stop()
    yield from _pauses("replace/pause/busy", pairs)


@slet
def drop(item: Hashed) -> None:
    """Drop what comes."""


def _with_state(number: int, megabytes: float, checks: Checks) -> Iterator[Result]:
    """A large state is handed over, in two ways."""
    with Platform() as platform:
        for way, slets in (("reference", [booked_again, booked]), ("upgrade", [entered, booked])):
            stream = Stream(platform, checks, booked)
            book = platform.deployment("replaced").components["middle"].state
            if isinstance(book, Book):
                fill(book.values, megabytes)
            pairs = replaced_in_turns(stream, slets, number // 2 * 2, f"with a state of {megabytes:g} MB by {way}")
            stream.stop()
            yield from _pauses(f"replace/state/{way}", pairs)


def _openings(seconds: float, checks: Checks) -> Iterator[Result]:
    """Measure how the stream fares while a successor takes long to open, compared with before and afterwards."""
    with Platform() as platform:
        for way in WAYS:
            print(f"a successor opens for {seconds:g} s: {way}", file=sys.stderr, flush=True)
            stream = Stream(platform, checks)
            before = stream.during(nothing, at_least=seconds / 2, width=WINDOW)
            opened = stream.during(partial(stream.replace, Opened, way=way, seconds=seconds), width=WINDOW)
            after = stream.during(nothing, at_least=seconds / 2, width=WINDOW)
            stream.stop()
            yield from _beside(f"replace/opening/{way}", opened, before, after)


def _beside(name: str, opened: Watched, before: Watched, after: Watched) -> Iterator[Result]:
    """The rate and pace of the stream, and the longest gaps in short windows, beyond those without anything to open."""
    alone = (before.items + after.items) / (before.seconds + after.seconds)
    yield Result(f"{name}/rate", opened.rate, "items/s", ALONE, ratio_of(opened.rate, alone), [(opened.rate, alone)])
    pair = opened.items / opened.cpu, (before.items + after.items) / (before.cpu + after.cpu)
    yield Result(f"{name}/pace", pair[0], "items per CPU second", ALONE, ratio_of(*pair), [pair])
    gaps = [*before.gaps, *after.gaps]
    for text, share in (("median", 0.5), ("p99", 0.99)):
        pair = quantile(opened.gaps, share), quantile(gaps, share)
        yield Result(f"{name}/gap/{text}", pair[0] - pair[1], "ms", ALONE, samples=[pair])


def _idle(number: int) -> Iterator[Result]:
    """Nothing comes for a long time: how soon a change is made all the same."""
    never: SimpleQueue[int] = SimpleQueue()

    @slet
    def silent() -> Iterator[int]:
        yield never.get()

    app, took = Application("idle"), list[float]()
    app.add("drop", drop, item=app.add("middle", first, number=app.add("silent", silent)))
    with Platform() as platform:
        platform.apply(app.build())
        rest(0.1)
        for count in range(number):
            mesh = platform.mesh("idle").replace("middle", (second, first)[count % 2])
            begin = time.perf_counter()
            platform.apply(mesh)
            took.append((time.perf_counter() - begin) * 1e3)
        never.put(1)
    yield Result("replace/idle/median", statistics.median(took), "ms", samples=took)
    yield Result("replace/idle/p99", quantile(took, 0.99), "ms")
