"""The figures of one component: counts are exact, times are measured by samples.

A chain of fused slets counts an item once, where it enters. The figures of each slet in the chain follow by
conservation: it has received what the slet before it has passed on, and passes on what it has received, except for the
deviations (no result, several, an error), which its `Tally` counts.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from exop.model.slets.ports import OUT
from exop.model.slets.slet import Slet
from exop.model.values.depth import deep_place
from exop.safe_repr import described, message, shown

if TYPE_CHECKING:
    from exop.runtime.component import Component
    from exop.runtime.supervision.budget import UserCall

Direction: TypeAlias = Literal["in", "out"]
#: Items by direction and port.
Counts: TypeAlias = dict[tuple[Direction, str], int]
#: Held while flows are connected anew, and while they are read.
READING: Final = threading.RLock()
#: Of `ComponentMetrics`: what is counted beside the items of each port.
_COUNTED: Final = ("batches", "errors", "skipped")
#: The number of samples that a look without quantiles takes into account.
_FEW: Final = 5
#: Seconds to wait for the answer of one slet's `metrics()`.
PATIENCE: Final = 0.1
#: Bounds of what one slet adds to the status of its platform: figures, characters of each, levels of nesting.
_FIGURES: Final = 200
_LENGTH: Final = 500
_LEVELS: Final = 8


class Flow:
    """The count of the items that one place passes on (*passed* reads it), from which another derives its own."""

    __slots__ = ("_connected_at", "_read", "_target")

    def __init__(self, passed: Callable[[], int]) -> None:
        self._read = passed
        self._target: Tally | None = None
        self._connected_at = 0

    @property
    def passed(self) -> int:
        """The number of items that it has passed on."""
        return self._read()

    @property
    def since(self) -> int:
        """The number of these since it was connected to its present target."""
        return self.passed - self._connected_at

    def lead_into(self, target: Tally | None) -> None:
        """Connect it to *target*, which derives its own count from this one; the driver is parked."""
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
        received: Items that were counted on their way in.
        sources: Flows into the port, counted where they begin.
        earlier: Items of flows that lead elsewhere now. Apart from `received`, since any thread may end a flow.
        stopped: Items without exactly one result: none, several, an error.
        returned: Items that were given back, to be pushed once more.
        sent: Results that did not leave through the chain.
        chained: A single result leaves through the chain.
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
        return self.entered - self.stopped

    @property
    def entered(self) -> int:
        """The number of items that have entered, those included that were given back."""
        found = self.received + self.earlier
        for source in self.sources:  # not a generator: its frames would halve the length of chains
            found += source.since
        return found

    @property
    def items_in(self) -> int:
        """The number of items that the slet has received."""
        return self.entered - self.returned

    @property
    def items_out(self) -> int:
        """The number of results that have left."""
        return self.sent + (self.passed if self.chained else 0)

    def give_back(self, items: int) -> None:
        """Count items that have entered, come to nothing, and enter once more."""
        self.returned += items
        self.stopped += items


class ComponentMetrics:
    """The metrics of one slet.

    Attributes:
        before: Items counted by predecessors, or before a recovery, minus those processed as a follower or in a replay.
        recovered: Of those, the items in and out that a checkpoint has brought.
        batches, errors, skipped: Calls with a batch, exceptions, items left out because of one.
        busy: The seconds in calls with batches or columns, all of which are measured.
        times, singles, latencies: The last measured seconds: of such a call, of one with an item, and since the source.
            An idle slet has none.
    """

    times = cached_property(lambda _: deque[float](maxlen=512))
    singles = cached_property(lambda _: deque[float](maxlen=512))
    latencies = cached_property(lambda _: deque[float](maxlen=512))

    def __init__(self) -> None:
        self.own = OwnFigures()
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self.before: Counts = {}
        self.recovered = (0, 0)
        self.batches = self.errors = self.skipped = 0
        self.last_error = ""
        self.busy = self._estimated = 0.0
        self._seen = 0
        self._inherited: Counts = {}

    def succeed(self, component: Component, predecessor: Component) -> None:
        """Go on from the counts of a predecessor; discard those of the component itself so far."""
        self.before, self._inherited = {key: -items for key, items in counted_by(component).items()}, {}
        self.inherit(predecessor)

    def inherit(self, predecessor: Component) -> None:
        """Take over the counts of a predecessor; again when it has given away its in-flight items."""
        counts = counts_of(predecessor)
        for key, items in counts.items():
            self.before[key] = self.before.get(key, 0) + items - self._inherited.get(key, 0)
        self._inherited = counts

    def failed(self, error: BaseException) -> None:
        """Count an exception of the slet."""
        self.errors += 1
        self.last_error = described(error)

    def timed(self, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """Return the measured twin of a slet's call, in which the iterator of a *lazy* one is run to its end."""
        clock = time.perf_counter

        def call_timed(item: Any) -> Any:
            begin = clock()
            result = [*call(item)] if lazy else call(item)
            self.singles.append(clock() - begin)
            return result

        return call_timed

    def busy_seconds(self, singles: int, most: int) -> float:
        """The seconds in calls: exact for batches, estimated for *singles*, the calls with single items so far.

        The calls since the last look count with the median of the last samples, of *most* of them; it is called under
        `READING`.
        """
        if (fresh := singles - self._seen) and "singles" in vars(self) and (last := self.singles):
            self._seen, some = singles, sorted([last[-1 - n] for n in range(min(most, len(last)))])
            self._estimated += fresh * some[len(some) // 2]
        return max(0.0, self.busy + self._estimated)

    def restore(self, held: Mapping[str, Any]) -> None:
        """Go on from the `figures_of` a checkpoint; one of an earlier release has none."""
        self.before = {(direction, port): count for direction, port, count in held.get("items", ())}
        self.batches, self.errors, self.skipped = (held.get(name, 0) for name in _COUNTED)
        self.recovered = total(self.before, "in"), total(self.before, "out")


def counts_of(component: Component) -> Counts:
    """Return the items of every port: exact while nothing is in flight, at other times up to the item under way."""
    with READING:
        before = component.metrics.before
        return before | {key: before.get(key, 0) + items for key, items in counted_by(component).items()}


def totals_of(components: Mapping[str, Component]) -> Iterator[tuple[str, Component, dict[str, int], int, int, float]]:
    """Yield every component with the items of each port, those in and out of all ports, and its busy seconds.

    The flows of a chain are derived from each other: in this one pass each is read once.
    """
    entered: dict[Flow, int] = {}
    with READING:
        for name, component in list(components.items()):
            metrics, spec, driver, items = component.metrics, component.spec, component.driver, {}
            sent = singles = 0
            for port, tally in list(metrics.tallies.items()):
                found = entered.get(tally)
                if found is None:
                    found = _entered(tally, entered)
                items[port] = found - tally.returned
                sent += tally.sent + (found - tally.stopped if tally.chained else 0)
                if spec.ports[port].type.form == "item":
                    singles += items[port]
            for port, pulled in component.pulled.items():
                items[port] = pulled.rows
            came = sum(items.values())
            for port, output in component.outputs.items():
                items[port] = output.rows
            if driver is not None and spec.iterated:
                items[OUT] = driver.count + driver.rows
            elif OUT in spec.ports and OUT not in component.outputs:
                items[OUT] = sent
            for (direction, port), before in metrics.before.items():
                items[port] = items.get(port, 0) + before
                came += before if direction == "in" else 0
                singles += before if direction == "in" and spec.ports[port].type.form == "item" else 0
            yield name, component, items, came, sum(items.values()) - came, metrics.busy_seconds(singles, _FEW)


def _entered(tally: Tally, known: dict[Flow, int]) -> int:
    """The items that have entered, as `Tally.entered`; of the flows in between each is read once."""
    found = tally.received + tally.earlier
    for source in tally.sources:
        if isinstance(source, Tally):
            before = known.get(source)
            found += (_entered(source, known) if before is None else before) - source.stopped
        else:
            found += source.passed
        found -= source._connected_at
    known[tally] = found
    return found


def figures_of(components: Mapping[str, Component]) -> dict[str, dict[str, Any]]:
    """Return the counts of components as plain data, for a checkpoint; `ComponentMetrics.restore` takes one back."""
    return {
        name: {
            "items": [[*key, count] for key, count in counts_of(component).items()],
            **{figure: getattr(component.metrics, figure) for figure in _COUNTED},
        }
        for name, component in components.items()
    }


def counted_by(component: Component) -> Counts:
    """Return the items that a component has counted itself, without those that it has inherited."""
    tallies, driver = dict(component.metrics.tallies), component.driver
    found: Counts = {("in", name): port.rows for name, port in component.pulled.items()}
    found |= {("in", name): tally.items_in for name, tally in tallies.items()}
    found |= {("out", name): output.rows for name, output in component.outputs.items()}
    if driver is not None and component.spec.iterated:
        found["out", OUT] = driver.count + driver.rows
    elif OUT in component.spec.ports and OUT not in component.outputs:
        found["out", OUT] = sum(tally.items_out for tally in tallies.values())
    return found


def disconnect(component: Component) -> None:
    """Disconnect the counts of the places behind a component, which has left."""
    for flow in (*component.metrics.tallies.values(), getattr(component.driver, "flow", None)):
        if flow is not None:
            flow.lead_into(None)


def total(counts: Counts, direction: Direction) -> int:
    """Return the items of all ports of one direction."""
    return sum(items for (found, _), items in counts.items() if found == direction)


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """Return the median, the 95 % and the 99 % quantile in milliseconds; nothing without values."""
    ordered = sorted(values)
    parts = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)) if ordered else ()
    return {name: round(ordered[round((len(ordered) - 1) * part)] * 1000, 4) for name, part in parts}


class OwnFigures:
    """The last answer of a slet's own `metrics()`."""

    def __init__(self) -> None:
        self._last: Mapping[str, Any] = {}
        self._asking: UserCall[None] | None = None
        self._turn = threading.Lock()

    def offered(self, component: Component) -> bool:
        """Whether the slet defines `metrics()`, and can be asked."""
        instance = component.instance
        return instance is not None and getattr(type(instance), "metrics", None) is not Slet.metrics

    def ask(self, component: Component) -> dict[str, Any]:
        """Return the latest answer; it says so if the call raises, or does not return."""
        instance = component.instance
        if not self.offered(component):
            return {}
        with self._turn:
            if self._asking is None or self._asking.over:
                self._asking = component.user.begin(component, "reporting figures", partial(self._ask, instance))
            asking = self._asking
        if not asking.wait(PATIENCE):
            return {**self._last, "metrics()": f"has not answered for {asking.seconds:.1f} s"}
        return dict(self._last)

    def _ask(self, instance: Any) -> None:
        try:
            found = list(instance.metrics().items())
            self._last = {_text(name): _bounded(value) for name, value in found[:_FIGURES]}
            if len(found) > _FIGURES:
                self._last["metrics()"] = f"has {len(found)} figures; {_FIGURES} are shown"
        except BaseException as problem:  # noqa: BLE001 (whatever a slet raises: it runs for others here)
            self._last = {"metrics()": f"raised {shown(problem)}"}


def _bounded(value: Any) -> Any:
    """Return the value, or an abbreviated text if it is too long or nested too deeply for the status."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and value.bit_length() <= _LENGTH):
        return value
    if isinstance(value, Sized) and len(value) > _FIGURES:
        return f"a {type(value).__name__} of {len(value)} values"
    text = shown(value, _LENGTH)
    return value if len(text) < _LENGTH and deep_place(value, _LEVELS) is None else text


def _text(value: Any) -> str:
    text = message(value)
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}…"
