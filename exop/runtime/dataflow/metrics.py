"""The counts and times of one component; counts are exact, times are sampled.

A chain of fused slets counts an item once, at its entry. The counts of each slet in the chain are derived by
conservation: a slet receives the items that the slet before it passes on, and passes on each of them, except for the
deviations (no result, several, an error), which its `Tally` counts.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from exop.model.slets.ports import OUT
from exop.model.slets.spec import SletSpec
from exop.safe_repr import error_text

if TYPE_CHECKING:
    from exop.runtime.drivers.source import SourceDriver
    from exop.runtime.ports import BufferedOutput, DrivenOutput, PulledInput

Direction: TypeAlias = Literal["in", "out"]
#: Items by direction and port.
Counts: TypeAlias = dict[tuple[Direction, str], int]
#: A lock that is held while flows are connected again, and while they are read.
READING: Final = threading.RLock()
#: The figures of a component that come from samples.
SAMPLED: Final = ["busy_s", "service_ms", "latency_ms"]
#: Quantiles that were not requested.
_NOTHING: Final[dict[str, float]] = {}
#: The counts of `ComponentMetrics` other than the items of each port.
_COUNTED: Final = ("batches", "errors", "skipped", "expected")


class Flow:
    """The count of the items that one place passes on, from which the next place derives its own count."""

    __slots__ = ("_connected_at", "_read", "_target")

    def __init__(self, passed: Callable[[], int]) -> None:
        self._read = passed
        self._target: Tally | None = None
        self._connected_at = 0

    @property
    def passed(self) -> int:
        """The number of items that were passed on."""
        return self._read()

    @property
    def since(self) -> int:
        """The number of items that were passed on since the flow was connected to its present target."""
        return self.passed - self._connected_at

    def lead_into(self, target: Tally | None) -> None:
        """Connect the flow to *target*, which derives its own count from this one. The driver is parked."""
        if target is self._target:
            return
        with READING:
            if self._target is not None:
                self._target.earlier += self.since
                self._target.sources = tuple(one for one in self._target.sources if one is not self)
            self._target, self._connected_at = target, self.passed
            if target is not None:
                target.sources += (self,)


class Tally(Flow):
    """The exact counts of one input port, and of the results of its slet; one driver at a time writes them.

    Attributes:
        received: Items that were counted when they entered.
        sources: Flows into the port, counted where they begin.
        earlier: Items of flows that now have another target; not part of `received`, since any thread may end a flow.
        stopped: Items without exactly one result: with no result, several results, or an error.
        returned: Items that were given back, to be pushed a second time.
        sent: Results that were not sent through the chain.
        chained: Whether a single result is sent through the chain.
    """

    __slots__ = ("chained", "earlier", "received", "returned", "sent", "sources", "stopped")

    def __init__(self) -> None:
        super().__init__(int)
        self.received = self.earlier = self.returned = self.sent = self.stopped = 0
        self.chained = False
        self.sources: tuple[Flow, ...] = ()

    @property
    def passed(self) -> int:
        """The number of items that have passed on through the chain, each as one result."""
        return self.read_entered({}) - self.stopped

    def read_entered(self, known: dict[Tally, int]) -> int:
        """Return the items that have entered, also those given back; *known* has the counts read in the same pass."""
        found = self.received + self.earlier
        for source in self.sources:  # not a generator: its frames would halve the length of chains
            if isinstance(source, Tally):
                entered = known[source] if source in known else source.read_entered(known)
                found += entered - source.stopped - source._connected_at
            else:
                found += source.since
        known[self] = found
        return found

    def give_back(self, items: int) -> None:
        """Count items that have entered without any result, and will enter a second time."""
        self.returned += items
        self.stopped += items


class ComponentMetrics:
    """The metrics of one component; its *pulled* ports, *outputs* and *source* count by themselves.

    Attributes:
        before: Items counted by replaced slets, or before a recovery, without those of a follower or a replay.
        recovered: The part of `before` that comes from a checkpoint, in and out.
        put_out: The items of the last checkpoint that a sink has committed; after a recovery, what was *expected*.
        batches, errors, skipped: The numbers of calls with a batch, of exceptions, and of items skipped because of one.
        busy: The seconds in calls with batches or columns, all of which are measured.
        times, singles, latencies: The last measured seconds: of such a call, one with an item, since the source.
    """

    times = cached_property(lambda _: deque[float](maxlen=512))
    singles = cached_property(lambda _: deque[float](maxlen=512))
    latencies = cached_property(lambda _: deque[float](maxlen=512))
    recovered: Mapping[str, int] = {"items_in": 0, "items_out": 0}

    def __init__(
        self,
        spec: SletSpec,
        pulled: Mapping[str, PulledInput],
        outputs: Mapping[str, BufferedOutput | DrivenOutput],
        source: SourceDriver | None,
    ) -> None:
        self._spec, self._pulled, self._outputs, self._source = spec, pulled, outputs, source
        self._single_inputs = {port.name for port in spec.inputs if port.type.form == "item" and not port.pulled}
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self.before: Counts = {}
        self.batches = self.errors = self.skipped = self.put_out = self.expected = 0
        self.last_error = ""
        self.busy = self._estimated = 0.0
        self._seen = 0
        self._inherited: Counts = {}

    def succeed(self, predecessor: ComponentMetrics) -> None:
        """Continue from the counts of the replaced component; discard previous counts of this component."""
        self.before, self._inherited = {key: -items for key, items in self._counted({}).items()}, {}
        self.inherit(predecessor)

    def inherit(self, predecessor: ComponentMetrics) -> None:
        """Take over the counts of the replaced component; repeated when it has passed on its in-flight items."""
        counts = predecessor.counts()
        for key, items in counts.items():
            self.before[key] = self.before.get(key, 0) + items - self._inherited.get(key, 0)
        self._inherited, self.put_out, self.expected = counts, predecessor.put_out, predecessor.expected

    def counts(self, known: dict[Tally, int] | None = None) -> Counts:
        """Return the items of every port; the counts are exact, except for items that are in flight.

        *known* has the tallies that were read in the same pass over several components.
        """
        with READING:
            found = self._counted({} if known is None else known)
            for key, items in self.before.items():
                found[key] = found.get(key, 0) + items
            return found

    def items_in(self) -> int:
        """Return the number of items that have come in."""
        return total(self.counts(), "in")

    def _counted(self, known: dict[Tally, int]) -> Counts:
        """Return the items that the component has counted itself, without those that it has inherited."""
        found: Counts = {("in", name): port.rows for name, port in self._pulled.items()}
        sent = 0
        for name, tally in list(self.tallies.items()):
            entered = known[tally] if tally in known else tally.read_entered(known)
            found["in", name] = entered - tally.returned
            sent += tally.sent + (entered - tally.stopped if tally.chained else 0)
        found |= {("out", name): output.rows for name, output in self._outputs.items()}
        if self._source is not None:
            found["out", OUT] = self._source.count + self._source.rows
        elif OUT in self._spec.ports and OUT not in self._outputs:
            found["out", OUT] = sent
        return found

    def figures(self, counts: Counts, most: int, *, times: bool = True) -> dict[str, Any]:
        """Return the metrics for these `counts`; those of *times* only on request.

        *most* samples are taken into account for the busy seconds. It is called for each of a thousand nodes whenever
        metrics are polled: hence one pass over the ports, and as few new objects as possible.
        """
        items: dict[str, int] = {}
        came = gone = singles = 0
        for (direction, port), count in counts.items():
            items[port] = count
            if direction == "out":
                gone += count
            else:
                came += count
                singles += count if port in self._single_inputs else 0
        return {
            "items_in": came,
            "items_out": gone,
            "items": items,
            "recovered": self.recovered,
            "batches": self.batches,
            "errors": self.errors,
            "skipped": self.skipped,
            "busy_s": self._busy_seconds(singles, most),
            "service_ms": quantiles(self.times or self.singles) if times else _NOTHING,
            "latency_ms": quantiles(self.latencies) if times else _NOTHING,
            "sampled": SAMPLED,
        }

    def disconnect(self) -> None:
        """Disconnect the counts of the places downstream, since the component was replaced or removed."""
        for flow in (*self.tallies.values(), *([self._source.flow] if self._source is not None else ())):
            flow.lead_into(None)

    def failed(self, error: BaseException) -> None:
        """Count an exception of the slet."""
        self.errors += 1
        self.last_error = error_text(error)

    def timed(self, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """Return a call that also measures the slet's call; if *lazy*, it exhausts the returned iterator."""
        clock = time.perf_counter

        def call_timed(item: Any) -> Any:
            begin = clock()
            result = [*call(item)] if lazy else call(item)
            self.singles.append(clock() - begin)
            if isinstance(result, GeneratorType):  # told here, since the first items are measured: no other call pays
                cure = "write `-> Iterator[T]`, and each of its results is one"
                raise TypeError(f"it returns a generator, which is not an item: {cure}")
            return result

        return call_timed

    def _busy_seconds(self, singles: int, most: int) -> float:
        """Return the seconds in calls: exact for batches, estimated for *singles*, the calls with single items so far.

        Calls since the last request are estimated by the median of the last samples, at most *most* of them.
        """
        with READING:
            if (fresh := singles - self._seen) and "singles" in vars(self) and (last := self.singles):
                self._seen, some = singles, sorted([last[-1 - n] for n in range(min(most, len(last)))])
                self._estimated += fresh * some[len(some) // 2]
            return max(0.0, self.busy + self._estimated)

    def capture(self, known: dict[Tally, int]) -> dict[str, Any]:
        """Return the counts as plain data, for a checkpoint; *known* as for `counts`."""
        items = [[*key, number] for key, number in self.counts(known).items()]
        return {"items": items, **{name: getattr(self, name) for name in _COUNTED}}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Continue from the counts that `capture` returned."""
        self.before = {(direction, port): count for direction, port, count in held["items"]}
        self.recovered = {"items_in": total(self.before, "in"), "items_out": total(self.before, "out")}
        known = {"expected": self.recovered["items_in"], **held}  # a checkpoint of an older release lacks it
        self.batches, self.errors, self.skipped, self.put_out = (known.get(name, 0) for name in _COUNTED)

    def resume(self, restored: ComponentMetrics) -> None:
        """Continue from the counts that *restored* has got by `restore`, without those that it has counted itself."""
        self.before, self.recovered, self.put_out = dict(restored.before), restored.recovered, restored.put_out
        self.batches, self.errors, self.skipped, self.expected = (getattr(restored, name) for name in _COUNTED)


def total(counts: Counts, direction: Direction) -> int:
    """Return the items of all ports of one direction."""
    return sum(items for (found, _), items in counts.items() if found == direction)


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """Return the median, the 95 % and the 99 % quantile in milliseconds; nothing without values."""
    ordered = sorted(values)
    parts = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)) if ordered else ()
    return {name: round(ordered[round((len(ordered) - 1) * part)] * 1000, 4) for name, part in parts}
