"""Compiled entries, by which items enter ports and channels; in-flight items, and how a driver unwinds.

An entry is three bound callables, compiled once and called without any look-up. A slet that raises, or is suspended,
must not block its driver inside the calls that led to the slet: `Unwind` is raised through the compiled frames, each of
which adds the items that it has not passed on. At its safe point, the driver stores these items in inlets. When the
slet is resumed, the driver passes them to the entries that are then compiled at the same endpoints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.slets.ports import PortSpec
from exop.model.slets.spec import Result
from exop.runtime.dataflow.batches import shared, weight
from exop.runtime.dataflow.metrics import ComponentMetrics, Tally

#: The method of an entry that takes a payload: an item, a batch, or a control item.
Method = Literal["push", "push_batch", "control", "show", "pass_on"]
Push = Callable[[Any], None]
Control = Callable[[Punctuation | EndOfStream], None]
#: Functions that compile the methods of an entry, by name; that of `probe` returns an `Entry`, that of `link` a `Link`.
Late = Mapping[str, Callable[[], Any]]
#: An entry, one of its methods, and the payload for that.
Step: TypeAlias = "tuple[Entry, Method, Any]"
#: The result of a slet for one item; `some` is any number of results, of which `None` is no item.
Shape = Result | Literal["some"]
#: Represents "no item".
NOTHING: Final = object()


@dataclass(eq=False, repr=False, slots=True)
class Entry:
    """The compiled entry into a port or a channel: methods for one item, a batch, and control items.

    Attributes:
        show, pass_on: The two parts of `control` where a slet gets control items.
        endpoint: The name of the endpoint to which the entry leads (`node.port`, or a channel).
        probe: An entry on the same path that also measures; a driver uses it for a few items.
        link: The slet, if it can be fused with the upstream one; else `None`.
        tally: The count of the items, for a caller that counts them itself and calls `uncounted` instead of `push`.
        store: Stores an in-flight item in a queue without waiting for room; `None` if the entry leads to no queue.
        targets: The entries of a fan-out, to each of which an in-flight item is passed.
        behind: The entries downstream, to which in-flight items are passed if the endpoint was removed.
        gathers: The maximum number of waiting items that a queue passes as one batch; 0: it passes them one by one.
        max_wait: The maximum number of seconds for which a queue waits for so many items, before it passes fewer.
    """

    push: Push
    push_batch: Push
    control: Control
    _: KW_ONLY
    endpoint: str = ""
    store: Callable[[Method, Any], None] | None = None
    behind: Sequence[Entry] = ()
    show: Control = field(init=False)
    pass_on: Control = field(init=False)
    probe: Entry = field(init=False)
    uncounted: Push = field(init=False)
    link: Link | None = field(default=None, init=False)
    tally: Tally | None = field(default=None, init=False)
    targets: Sequence[Entry] = field(default=(), init=False)
    gathers: int = field(default=0, init=False)
    max_wait: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.show = self.pass_on = self.control
        self.probe, self.uncounted = self, self.push

    def name_endpoint(self, endpoint: str) -> None:
        """Set the endpoint to which the entry and its probe lead."""
        self.endpoint = self.probe.endpoint = endpoint


@dataclass(frozen=True, eq=False)
class Link:
    """One slet in a chain: its call, the shape of its results, their target, and the handlers of a failed item.

    `aside` accepts a failed item if the policy is to set it aside or skip it; `resend` sends the results of a retry;
    `placeholder` represents the entry into the slet.
    """

    call: Callable[[Any], Any]
    result: Shape
    to: Entry
    stuck: Callable[[Any, BaseException, Push], None]
    aside: Callable[[Any, BaseException], bool]
    resend: Push
    metrics: ComponentMetrics
    tally: Tally
    placeholder: Entry
    item: Any


class LateEntry(Entry):
    """An entry whose methods are compiled when they are first read, and not while a change pauses the stream.

    *late* has the factories of `push`, `uncounted`, `push_batch`, `link` and `probe`. Without a link, the entry is not
    fused with the upstream one; without a probe, the entry is its own probe.
    """

    __slots__ = ("_late",)

    def __init__(self, control: Control, late: Late, tally: Tally | None = None) -> None:
        super().__init__(_discard, _discard, control)
        self.tally, self._late = tally, late
        for name in {*late, "uncounted"}:
            delattr(self, name)

    def __getattr__(self, name: str) -> Any:
        """Compile a method; no other attribute is missing."""
        if (make := self._late.get(name)) is None and name != "uncounted":
            raise AttributeError(name=name, obj=self)
        if isinstance(made := make() if make is not None else self.push, Entry):
            made.endpoint, made.behind = made.endpoint or self.endpoint, made.behind or self.behind
            made.probe = made
        setattr(self, name, made)
        return made

    def name_endpoint(self, endpoint: str) -> None:
        """Set the endpoint; a probe that is compiled later gets the same one."""
        self.endpoint = endpoint


def _discard(_: Any) -> None:
    """Drop the items of an output that is not connected."""


NOWHERE: Final = Entry(_discard, _discard, _discard, store=lambda method, payload: None)


def placeholder(endpoint: str) -> Entry:
    """Return an entry that represents the one that is compiled at *endpoint* when an item enters."""
    return Entry(_discard, _discard, _discard, endpoint=endpoint)


def in_front(entry: Entry, around: Callable[[Entry, Method], Push], control: Control | None = None) -> LateEntry:
    """Return an entry whose methods for items *around* makes of those of *entry*, and so of those of its probe."""
    methods: dict[str, Callable[[], Any]] = {
        "push": lambda: around(entry, "push"),
        "push_batch": lambda: around(entry, "push_batch"),
        "probe": lambda: in_front(entry.probe, around, control),
    }
    return LateEntry(control or entry.control, methods)


def fan_out(targets: Sequence[Entry], *, probing: bool = True) -> Entry:
    """Return one entry into several targets; each gets every item, in the order of the targets."""
    if len(targets) < 2:
        return targets[0] if targets else NOWHERE

    def push_batch() -> Push:
        to_all = _to_all(targets, "push_batch")

        def push_shared(batch: Any) -> None:
            with shared(batch):
                to_all(batch)

        return push_shared

    late: dict[str, Callable[[], Any]] = {"push": lambda: _to_all(targets, "push"), "push_batch": push_batch}
    if probing:
        late["probe"] = lambda: fan_out([target.probe for target in targets], probing=False)
    entry = LateEntry(_to_all(targets, "control"), late)
    entry.targets = targets
    entry.gathers, entry.max_wait = max(one.gathers for one in targets), min(one.max_wait for one in targets)
    return entry


def _to_all(targets: Sequence[Entry], method: Method) -> Callable[[Any], None]:
    """Compile the call that passes a payload to every target by the given method."""
    calls = tuple(getattr(target, method) for target in targets)

    def to_all(payload: Any) -> None:
        done = 0
        try:
            for call in calls:
                done += 1
                call(payload)
        except Unwind as unwound:
            for target in targets[done:]:
                unwound.then(target, method, [payload])
            raise

    if len(calls) != 2:
        return to_all
    first, second = calls

    def to_both(payload: Any) -> None:
        try:
            first(payload)
        except Unwind as unwound:
            unwound.then(targets[1], method, [payload])
            raise
        second(payload)

    return to_both


def in_turn(entry: Entry, payloads: Iterable[Any]) -> None:
    """Push several payloads one after the other."""
    rest, push = iter(payloads), entry.push
    try:
        for payload in rest:
            push(payload)
    except Unwind as unwound:
        unwound.then(entry, "push", rest)
        raise


def in_order(steps: Iterable[Step]) -> None:
    """Pass payloads to entries, one after the other."""
    rest = iter(steps)
    try:
        for entry, method, payload in rest:
            getattr(entry, method)(payload)
    except Unwind as unwound:
        unwound.in_flight += [InFlight(*step) for step in rest]
        raise


@dataclass(frozen=True, slots=True)
class Wait:
    """The condition for which an in-flight item waits: in words, as a test, and with a limit in seconds."""

    where: str
    ready: Callable[[], bool]
    patience: float | None = None


@dataclass(frozen=True, slots=True)
class InFlight:
    """An in-flight item, batch or control item, which *method* of *entry* takes.

    If another entry was compiled at the endpoint since, the method of that entry is called. `wait` is the condition
    that has to hold first; `stamp` is the position among the in-flight items of the driver.
    """

    entry: Entry
    method: Method
    payload: Any
    wait: Wait | None = None
    stamp: int = 0

    def do(self, current: Mapping[str, Entry]) -> None:
        """Pass the payload to its entry; *current* has the entry that is compiled at each endpoint."""
        getattr(current.get(self.entry.endpoint, self.entry), self.method)(self.payload)

    def give_back(self, current: Mapping[str, Entry]) -> None:
        """Correct the count for an item that has entered and will enter a second time."""
        if (tally := current.get(self.entry.endpoint, self.entry).tally) is not None:
            tally.give_back(count_items(self.method, self.payload))


def method_for(payload: Any, *, whole: bool) -> Method:
    """Return the method that takes a payload: a control item, or else a single item or, if *whole*, a batch."""
    return "control" if isinstance(payload, CONTROL) else "push_batch" if whole else "push"


def count_items(method: Method, payload: Any) -> int:
    """Return the number of items in a payload; a control item does not count."""
    return 1 if method == "push" else weight(payload) if method == "push_batch" else 0


@dataclass(eq=False, slots=True)
class Packet:
    """One entry of a buffer that is not a plain item: a batch, a control item, or a measured item.

    `origin` is the time at which a measured item left its source, `stored` the time at which it entered the buffer.
    """

    method: Method
    payload: Any
    origin: float = 0.0
    stored: float = 0.0


def unpacked(entry: Any) -> tuple[Method, Any]:
    """Return the method and the payload of an entry of a buffer."""
    return (entry.method, entry.payload) if type(entry) is Packet else ("push", entry)


@dataclass(frozen=True, slots=True)
class Call(InFlight):
    """A call without an item, made by the driver that runs the endpoint of *entry*, in the order of the inlet."""

    call: Callable[[], object] = bool

    def do(self, current: Mapping[str, Entry]) -> None:
        """Make the call."""
        self.call()


class Unwind(BaseException):
    """Returns a driver to its safe point. Not an `Exception`; raised through compiled frames, but never through a slet.

    The driver waits until *ready()* is true, or for *patience* seconds. Then it sends *first*, and all items that the
    frames have added to `in_flight`. *where* is the reason, in words.
    """

    def __init__(
        self, where: str, ready: Callable[[], bool], first: InFlight, *, patience: float | None = None
    ) -> None:
        super().__init__(where)
        self.in_flight = [replace(first, wait=Wait(where, ready, patience))]

    def then(self, entry: Entry, method: Method, payloads: Iterable[Any]) -> None:
        """Add the items that the calling frame has not passed on."""
        self.in_flight.extend(InFlight(entry, method, payload) for payload in payloads)


class Tap(ABC):
    """Listens to the entries and outputs of one component; called when each of them is compiled."""

    @abstractmethod
    def around(self, port: PortSpec, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """Listen to the calls of the slet at *port*; if *lazy*, the results of a call are collected in a list."""

    def control(self, port: PortSpec, control: Control) -> Control:
        """Listen to the control items that arrive at *port*."""
        return control

    def forwarded(self, mark: Punctuation | EndOfStream) -> None:
        """Record a control item that is sent by every output port."""

    def outlets(self, to: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Listen to the output ports of a slet that pushes items itself."""
        return to
