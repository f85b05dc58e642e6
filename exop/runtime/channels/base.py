"""`Channel`: the base class of channel kinds, which forward, buffer or store items between slets."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn
from weakref import WeakKeyDictionary

from exop.errors import StateError
from exop.logs import logger
from exop.model.items import EndOfStream, Punctuation
from exop.model.meshes.mesh import ChannelSpec
from exop.model.meshes.partitions import PARTITIONS
from exop.model.slets.ports import PortType
from exop.model.slets.signature import read_settings
from exop.model.slets.spec import Setting, configured
from exop.runtime.channels.partitioned import Partitioning
from exop.runtime.channels.wire import Wires
from exop.runtime.dataflow.entry import Control, Entry, InFlight, Method, Push, Unwind, fan_out, in_front
from exop.runtime.drivers.base import current_driver

if TYPE_CHECKING:
    from exop.runtime.log.disk import DiskLog

#: The clock for the allowances of punctuations.
clock: Callable[[], float] = time.monotonic
#: A time before every punctuation.
LOWEST = float("-inf")
#: Says that the punctuations of an outbox up to it did not hold for the stream of a producer that has come to it.
RETRACTED: Final = Punctuation(LOWEST)
#: Seconds between two attempts to write to a full disk.
AGAIN = 1.0
#: A pull removes the next items, or reads the content.
PullMode = Literal["take", "read"]
#: The settings of the channel kinds.
_SETTINGS: Final[WeakKeyDictionary[type[Channel], dict[str, Setting]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Outlet:
    """One consumer of a channel: the name of its port, and its entry."""

    port: str
    entry: Entry


class Channel(ABC):
    """The base of channel kinds. A channel belongs to no slet, so a channel remains when slets are replaced.

    A kind is a subclass with keyword-only settings in `__init__`, registered through the hook `register_channels`. The
    wiring calls `entry(outlets)` whenever connections change, while nothing is in flight, and binds the producers to
    the result. Slets reach every further public method of a kind through an `InputPort`.

    Attributes:
        kind: The name of the kind in applications.
        buffered: Whether a worker drains the channel in another thread. If true, the result of `entry` must not depend
            on the outlets, because in a cycle the result is needed before the outlets are known.
        serial: Whether only one driver at a time may push into the channel, because the channel has content or
            partitions.
        pull_mode: Whether a pulling port removes items, or reads the content.
        entered: Whether items also come from outside of the mesh, so that a channel may have no producer.
        replaying: Whether `kept_for` returns what is stored if the setting `replay` is not given.
        reconfigurable: Whether the settings can be changed while the channel runs (`reconfigure`).
        filled: Whether the content is complete enough to be read; until then, slets that read the channel wait.
        away: The reason why the content, which is on another host, cannot be read now, if a slet has tried; `None` for
            kinds whose content is here.
        awaited: For each port that waits for the content, or may have to, its slet.
        live: Whether consumers receive objects of the channel itself (such as a window from which the slet evicts
            items), so that no queue can be inserted in front of them.
        refuses_whole: Whether a batch is refused as a whole if the channel refuses one of its items.
        port_entries: The entries behind `entry` that lead to one port each (for example, one window per port). Each has
            an endpoint, by which in-flight items are rebound after a change.
        passes_references: Whether references to rows pass as they are; other kinds get the rows.
        partitioning: The partitions that the members of a group share; `None` without any.
        asked: The current specification, with settings and pending updates.
        home: The folder of the channel in the state directory, which may not exist yet; `None` without a state
            directory.
        logs: The logs on disk that have the content, each by its folder in that of the channel.
        wires: The connections to other platforms, for the halves of a remote connector.
        call_peer: Calls an operation of a peer, given its name, that of the operation, and named arguments.
        application, kinds: The name of the application, and the channel kinds of the platform.
        reading: The methods beyond those of every channel that only read; others need the right to write.
        unacknowledged: The number of events that a peer has not acknowledged; without peers always 0.
        trouble: The problem of the channel, as a string, which the status shows and `wait` raises.
    """

    kind: ClassVar[str]
    buffered: ClassVar[bool] = False
    serial: ClassVar[bool] = True
    pull_mode: ClassVar[PullMode] = "take"
    reconfigurable: ClassVar[bool] = False
    entered: ClassVar[bool] = False
    replaying: ClassVar[bool] = False
    filled: bool = True
    away: str | None = None
    live: bool = False
    port_entries: Sequence[Entry] = ()
    refuses_whole: ClassVar[bool] = False
    passes_references: ClassVar[bool] = False
    unacknowledged: int = 0
    reading: ClassVar[frozenset[str]] = frozenset()
    partitioning: Partitioning | None = None
    asked: ChannelSpec
    call_peer: Callable[..., Any]
    logs: Mapping[str, DiskLog] = {}

    def __init__(self, name: str) -> None:
        self.name = name
        self.home: Path | None = None
        self.wires: Wires = {}
        self.application = ""
        self.kinds: Mapping[str, type[Channel]] = {}
        self.trouble: str | None = None
        self.awaited: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return True  # also that of a kind with a length that has no content

    @abstractmethod
    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Compile the entry, given the entries of the connected consumers."""

    def bound_back(self) -> Callable[[], None]:
        """Return a function that restores the content that `entry` drops, in case the change is undone."""
        return lambda: None

    def read(self, port: str) -> list[Any]:
        """Return the content for a pulling port (`pull_mode = "read"`)."""
        return []

    def typed(self, types: Sequence[PortType]) -> None:
        """Set the types of the ports at the channel; called before `entry`."""

    def readers(self, ports: Sequence[str]) -> None:
        """Set the pulling ports that read the content; called before `entry`."""

    def kept_for(self, port: str) -> list[Any]:
        """Return the items that a port receives first when the port is connected while the application runs."""
        return []

    @classmethod
    def carries(cls, pushed: PortType) -> PortType:
        """Return the type that consumers receive if *pushed* is pushed; equal unless the kind converts items."""
        return pushed if cls.passes_references or pushed.reference is None else replace(pushed, reference=None)

    @classmethod
    def fields(cls, settings: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """Return the fields of items that the settings name, each with its setting, so that they are checked."""
        return [("by", settings["by"])] if settings.get("by") else []

    @classmethod
    def partitions_of(cls, spec: ChannelSpec) -> tuple[str, int] | None:
        """Return the key field and the number of the partitions of a channel, as in its `partitioning`."""
        if spec.settings.get("by") is None:
            return None
        return (found["by"], found["partitions"]) if "partitions" in (found := channel_settings(cls, spec)) else None

    def native(self, engine: str) -> Mapping[str, Any] | None:
        """Return a reference by which *engine* itself reads the items, without the platform; `None` if it cannot."""
        return None

    def reconfigure(self, settings: Mapping[str, Any], *, close: bool) -> Callable[[], None]:
        """Replace all settings between two items; return a function that restores the old ones.

        Only for `reconfigurable` kinds. If *close* is true, close the windows that were opened under the old settings;
        they are emitted with the next item.
        """
        raise NotImplementedError(f"{type(self).__name__} is reconfigurable, and has no reconfigure()")

    def send_closed(self) -> None:
        """Emit the windows that `reconfigure` has closed. The driver that pushes into the channel calls this method."""

    def open(self) -> None:
        """Prepare for the first item."""

    def attach(self) -> None:
        """Begin to exchange items with another platform. Called when the content is restored, and the wiring bound."""

    def close(self) -> None:
        """Release the resources of a channel that is removed."""

    def metrics(self) -> dict[str, int | float | str]:
        """Return the metrics that are specific to the kind."""
        return {}

    def capture(self) -> Mapping[str, Any]:
        """Return the content as plain data, which `restore` accepts."""
        return {}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Restore the result of `capture`."""

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every item of the content, while no item is in flight."""

    def take_part(self, *, on: bool) -> None:
        """Record whether the application is durable. Called after `open`, and when this changes."""

    def await_checkpoint(self) -> None:
        """Let only what is in a checkpoint leave the platform, until one is written that is captured from now on."""

    def begin_anew(self) -> None:
        """Start without a checkpoint. Called when a change adds the channel to a durable application."""

    def sync(self) -> None:
        """Force the rows that `capture` counts to disk. Called while the stream runs, before a commit."""

    def committed(self) -> None:
        """Record that the checkpoint of the last `capture` is committed."""


class DirectChannel(Channel):
    """Passes items to all consumers, or to the owners of the partitions, in the pushing thread, by direct calls."""

    kind: ClassVar[str] = "direct"
    serial: ClassVar[bool] = False
    passes_references: ClassVar[bool] = True

    def __init__(self, name: str, *, by: str | None = None, partitions: int = PARTITIONS) -> None:
        super().__init__(name)
        self.partitioning = None if by is None else Partitioning(name, by, partitions)

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Return the entry of the consumers."""
        return fan_out([outlet.entry for outlet in outlets])


class KeepingChannel(Channel):
    """The base of kinds that store items and pass them on; where there is no room, the driver waits and retries."""

    refuses_whole: ClassVar[bool] = True
    #: Whether control items are stored, too.
    _stores_control: ClassVar[bool] = False

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Return an entry that stores each item and then passes it on."""
        deliver, keep = fan_out([outlet.entry for outlet in outlets]), self._keep

        def keeping(inner: Entry, method: Method) -> Push:
            def take(payload: Any) -> None:
                try:
                    keep([payload] if method == "push" else payload)
                except StateError as problem:
                    wait_for_disk(self, problem, InFlight(entry, method, payload))
                getattr(inner, method)(payload)  # read here: it is not compiled while a change pauses the stream

            return take

        entry = in_front(deliver, keeping, keeping(deliver, "control") if self._stores_control else None)
        return entry

    @abstractmethod
    def _keep(self, payload: Any) -> None:
        """Store a batch or control item; if this raises, store no part of it (`StateError`: there is no room)."""


def wait_for_disk(channel: Channel, problem: StateError, work: InFlight) -> NoReturn:
    """Make the driver that pushes into *channel* wait at its safe point, and retry; without one, raise *problem*."""
    if (driver := current_driver()) is None:
        raise problem
    if channel.trouble is None:
        facts = {"channel": channel.name, "problem": str(problem)}
        logger("exop.log").error("a log cannot be written, and its producers wait", **facts)
    channel.trouble = str(problem)
    driver.on_caught_up()
    raise Unwind(channel.trouble, lambda: False, work, patience=AGAIN)


@dataclass(eq=False, repr=False, slots=True)
class ControlMerge:
    """Merges the control items of several producers: the minimum of their punctuations, and the end of all.

    Each point at which connections meet has a merge, which retains its state when the wiring is compiled again.

    A punctuation may have an allowance, `idle`: a producer whose last punctuation is older than the allowance does not
    delay the punctuations of the others until it sends a later one. A producer without any punctuation delays them for
    at most the longest allowance of the others.

    `done`: the end of all was sent. `unheard`: the producers whose punctuations are disregarded, as by `retract`.
    """

    done: bool = False
    unheard: set[str] = field(default_factory=set)
    #: For each producer, the moment at which its time increased, and its allowance; empty without allowances.
    _quiet: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _expected: set[str] = field(default_factory=set)
    _times: dict[str, float] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)
    _sent: float = LOWEST
    _relaying: bool = False
    _outbox: list[Punctuation | EndOfStream] = field(default_factory=list)  # a deque is ten times as large

    def expect(self, producers: Iterable[str]) -> None:
        """Set the connected producers; the state of others remains until `forget`, in case the change is undone."""
        with self._lock:
            self._expected = set(producers)

    def due_with(self, producers: Iterable[str], ended: Iterable[str] = ()) -> bool:
        """Whether a control item would be due with these producers, *ended* of which have ended."""
        with self._lock:
            return bool(self._next(set(producers), self._ended.union(ended)))

    def note_ended(self, producers: Iterable[str]) -> None:
        """Record producers whose streams had ended before they were connected."""
        with self._lock:
            self._ended.update(producers)

    def take_due(self) -> list[Punctuation | EndOfStream]:
        """Return the control items that are due, for example because a producer was removed."""
        with self._lock:
            found = self._next(self._expected, self._ended)
            for mark in found:
                if isinstance(mark, EndOfStream):
                    self.done = True
                else:
                    self._sent = mark.time
            return found

    def forget(self) -> None:
        """Delete the state of removed producers, so that a new one of the same name starts without state."""
        with self._lock:
            for producer in {*self._times, *self._ended, *self._quiet, *self.unheard} - self._expected:
                self.open_anew(producer)

    def open_anew(self, producer: str) -> None:
        """Begin another stream of *producer*."""
        with self._lock:
            self._ended.discard(producer)
            self._times.pop(producer, None)
            self._quiet.pop(producer, None)
            self.unheard.discard(producer)

    def retract(self, producers: Iterable[str] = ()) -> None:
        """Disregard the punctuations of *producers* until they send `RETRACTED`; without any, permit earlier ones.

        Where another stream joins that of a producer, its punctuations did not hold for the items of the other one.
        """
        with self._lock:
            for producer in (many := {*producers}) - self._ended:
                self.open_anew(producer)
                self.unheard.add(producer)
            self._sent = self._sent if many else LOWEST

    def take_back_end(self, producer: str) -> None:
        """Expect the end of *producer* again, which the replaced slet has received but not passed on."""
        with self._lock:
            self._ended.discard(producer)
            self.done = False

    def on(self, producer: str, mark: Punctuation | EndOfStream) -> list[Punctuation | EndOfStream]:
        """Return the control items that are due after *producer* has sent *mark*."""
        with self._lock:
            if isinstance(mark, EndOfStream):
                self._ended.add(producer)
            elif producer in self.unheard:
                self.unheard -= {producer} if mark == RETRACTED else set()
            else:
                if mark.idle is not None or self._quiet:
                    self._note(producer, mark)
                self._times[producer] = max(self._times.get(producer, mark.time), mark.time)
            return self.take_due()

    def silent(self, producers: Iterable[str]) -> list[str]:
        """Return those of these producers that have neither ended nor sent a punctuation."""
        with self._lock:
            return [name for name in producers if name not in self._ended and name not in self._times]

    def relay(self, producer: str, mark: Punctuation | EndOfStream, send: Control) -> None:
        """Send the control items that are due, in order, even if producers are in different threads.

        One thread sends the control items of all others, so that no thread waits.
        """
        with self._lock:
            self._outbox.extend(self.on(producer, mark))
            if self._relaying:
                return
            self._relaying = True
        try:
            while True:
                with self._lock:
                    if not self._outbox:
                        self._relaying = False
                        return
                    one = self._outbox.pop(0)
                send(one)
        except BaseException:
            self._relaying = False
            raise

    def left_over(self) -> list[Punctuation | EndOfStream]:
        """Remove and return the control items that an interrupted `relay` has not sent."""
        with self._lock:
            left, self._outbox = self._outbox, []
            return left

    def capture(self) -> dict[str, Any]:
        """Return the state as plain data, for `restore`."""
        with self._lock:
            idle = {name: allowed for name, (_, allowed) in self._quiet.items()} or None
            held = {"times": dict(self._times), "ended": sorted(self._ended), "sent": self._sent, "done": self.done}
            return {**held, "outbox": list(self._outbox), "idle": idle, "unheard": sorted(self.unheard)}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Restore the state that `capture` returned. The set of expected producers is not changed."""
        with self._lock:
            self._times, self._ended = dict(held["times"]), set(held["ended"])
            self._sent, self.done = held["sent"], held["done"]
            self._outbox = list(held["outbox"])
            self.unheard = set(held.get("unheard", ()))
            self._quiet = {name: (clock(), allowed) for name, allowed in (held["idle"] or {}).items()}

    def _note(self, producer: str, mark: Punctuation) -> None:
        """Record the allowance of a producer, and whether its time has increased."""
        now, quiet = clock(), self._quiet
        for name in self._expected:
            quiet.setdefault(name, (now, math.inf if name in self._times else None))
        rose = now if mark.time > self._times.get(producer, LOWEST) else quiet[producer][0]
        quiet[producer] = (rose, math.inf if mark.idle is None else mark.idle)

    def _awaited(self, names: set[str]) -> set[str]:
        """Return the producers that delay the punctuations of the others."""
        if not self._quiet:
            return names
        given = [allowed for _, allowed in self._quiet.values() if allowed is not None and allowed < math.inf]
        now, longest = clock(), max(given, default=math.inf)
        found = {name: self._quiet.get(name, (now, math.inf)) for name in names}
        return {
            name for name, (rose, allowed) in found.items() if now - rose <= (longest if allowed is None else allowed)
        } or names

    def _next(self, expected: set[str], ended: set[str]) -> list[Punctuation | EndOfStream]:
        if self.done or not expected:
            return []
        if not (still := expected - ended):
            return [EndOfStream()]
        if (lowest := min(self._times.get(name, LOWEST) for name in self._awaited(still))) <= self._sent:
            return []
        idle = max(self._quiet.get(name, (0.0, math.inf))[1] or 0.0 for name in still & self._times.keys())
        return [Punctuation(lowest, idle if idle < math.inf else None)]


def channel_settings(kind: type[Channel], spec: ChannelSpec) -> dict[str, Any]:
    """Return the settings of a channel, complete and converted; the kind may still refuse their combination."""
    if (known := _SETTINGS.get(kind)) is None:
        known = _SETTINGS[kind] = read_settings(kind)
    return configured(f"the channel {spec.name!r} ({spec.kind})", known, spec.settings)
