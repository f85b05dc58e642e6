"""`Channel`: the base of everything that forwards, buffers or stores items between slets."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from weakref import WeakKeyDictionary

from exop.model.items import EndOfStream, Punctuation
from exop.model.mesh import ChannelSpec
from exop.model.ports import PortType
from exop.model.settings import Setting, configured
from exop.model.signature import read_settings
from exop.runtime.entry import Entry

#: A time before every punctuation.
LOWEST = float("-inf")
#: The mode of a pull: take the next items, or read what is stored.
PullMode = Literal["take", "read"]


@dataclass(frozen=True)
class Outlet:
    """One consumer connected to a channel: the name of its port, and the way in."""

    port: str
    entry: Entry


def _nothing() -> None:
    """Restore nothing: most channels keep their contents whatever is connected to them."""


class Channel(ABC):
    """The base of channel kinds. A channel belongs to no slet, so it survives the replacement of its neighbours.

    A kind is a subclass with keyword-only settings in `__init__` (after `name`), registered through the hook
    `register_channels`. The wiring calls `entry(outlets)` whenever connections change, while nothing is in flight, and
    binds the producers straight to what it returns. Every public method of a kind beyond those here is its extended
    interface, which slets reach through an `InputPort`.

    Attributes:
        kind: The name under which applications ask for it.
        buffered: Items change threads here: the channel is drained by a worker. What `entry` returns must then not
            depend on the outlets: in a cycle it is needed before they are known.
        serial: The channel keeps something, so that one driver at a time may push into it.
        pull_mode: Whether a pulling port takes items out, or reads what the channel keeps.
        reconfigurable: Its settings can be changed while it runs (`reconfigure`).
        live: What consumers receive stays the channel's own (a window from which its slet evicts), so that no queue
            can stand between it and them.
        refuses_whole: A batch of which it cannot take an item is not taken at all.
        ways: The entries behind `entry` that lead to one port each, where a kind has them (a window per port); each
            stands at a place with a name, so that unfinished work finds it again after a change.
        home: A folder of its own in the state directory, which need not be there yet; `None` without one.
        trouble: The problem of the channel, as text: shown in the status, and raised by `wait`.
    """

    kind: ClassVar[str]
    buffered: ClassVar[bool] = False
    serial: ClassVar[bool] = True
    pull_mode: ClassVar[PullMode] = "take"
    reconfigurable: ClassVar[bool] = False
    live: bool = False
    ways: Sequence[Entry] = ()
    refuses_whole: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.home: Path | None = None
        self.trouble: str | None = None

    @abstractmethod
    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Compile the way in, given the ways into those who are connected now."""

    def bound_back(self) -> Callable[[], None]:
        """Return what restores the contents that `entry` drops, should a change of the connections be undone."""
        return _nothing

    def read(self, port: str) -> list[Any]:
        """Return the items that a pulling port sees (`pull_mode = "read"`); pass-through channels have none."""
        return []

    def readers(self, ports: Sequence[str]) -> None:
        """Told, before `entry` is called, which pulling ports read what the channel keeps."""

    def kept_for(self, port: str) -> list[Any]:
        """Return the items for a port that is connected to a running application: it receives them first."""
        return []

    @classmethod
    def carries(cls, pushed: PortType) -> PortType:
        """Return the type that consumers receive when *pushed* enters: the same, unless the kind converts items."""
        return pushed

    def reconfigure(self, settings: Mapping[str, Any], *, close: bool) -> Callable[[], None]:
        """Take other settings, complete, between two items; returns what takes that back. For `reconfigurable` kinds.

        With *close*, what the channel holds open under the old ones comes to its end now, and leaves with what comes.
        """
        raise NotImplementedError(f"{type(self).__name__} is reconfigurable, and has no reconfigure()")

    def send_closed(self) -> None:
        """Let what came to its end with `reconfigure` leave now; called by the driver that pushes into the channel."""

    def open(self) -> None:
        """Called before the first item."""

    def close(self) -> None:
        """Called after the last item, when the channel is removed."""

    def metrics(self) -> dict[str, int | float | str]:
        """Figures of the channel's own."""
        return {}

    def capture(self) -> Mapping[str, Any]:
        """Return the content of the channel as plain data; `restore` takes it back."""
        return {}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Take back what `capture` returned."""

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Put what *replace* gives in the place of every item that is kept; nothing is in flight."""

    def take_part(self, *, on: bool) -> None:
        """Told whether checkpoints are taken of the application: when the channel is open, and when that changes."""

    def begin_anew(self) -> None:
        """Told when a change adds the channel to a durable application: no checkpoint knows of it yet."""

    def sync(self) -> None:
        """Bring to the disk what `capture` has counted as kept there: called while the stream runs, before a commit."""

    def committed(self) -> None:
        """Told when the checkpoint for which `capture` was called last is committed."""


class ControlMerge:
    """Control items of several producers: the minimum of their punctuations, and the end when all have ended.

    One lives in each place where connections meet; it keeps its state when the wiring is compiled anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: set[str] = set()
        self._times: dict[str, float] = {}
        self._ended: set[str] = set()
        self._sent = LOWEST
        self._done = False
        self._outbox: list[Punctuation | EndOfStream] = []  # most are empty: a deque is ten times as large
        self._relaying = False

    def expect(self, producers: Iterable[str]) -> None:
        """Name those who are connected now; who left counts no more.

        What is known of those who left is kept until `forget`: the change may be taken back.
        """
        with self._lock:
            self._expected = set(producers)

    def due_with(self, producers: Iterable[str], ended: Iterable[str] = ()) -> bool:
        """Something would go on if these were all producers, and *ended* of them had ended."""
        with self._lock:
            return bool(self._next(set(producers), self._ended.union(ended)))

    def note_ended(self, producers: Iterable[str]) -> None:
        """Note producers whose stream had ended, elsewhere, before they came here."""
        with self._lock:
            self._ended.update(producers)

    def take_due(self) -> list[Punctuation | EndOfStream]:
        """Return the control items that are due because a producer for which they waited has left."""
        with self._lock:
            return self._due()

    def forget(self) -> None:
        """Forget those who have left: one who comes back under the same name begins anew."""
        with self._lock:
            self._times = {name: time for name, time in self._times.items() if name in self._expected}
            self._ended &= self._expected

    def open_anew(self, producer: str) -> None:
        """Another stream comes under this name now."""
        with self._lock:
            self._ended.discard(producer)
            self._times.pop(producer, None)

    def take_back_end(self, producer: str) -> None:
        """Expect the end of *producer* again: its predecessor received the end, and has not passed it on."""
        with self._lock:
            self._ended.discard(producer)
            self._done = False

    def on(self, producer: str, mark: Punctuation | EndOfStream) -> list[Punctuation | EndOfStream]:
        """Return the control items that are due after *producer* has sent *mark*."""
        with self._lock:
            return self._on(producer, mark)

    def relay(
        self, producer: str, mark: Punctuation | EndOfStream, send: Callable[[Punctuation | EndOfStream], None]
    ) -> None:
        """Send on what goes on, in order, although the producers are in different threads.

        A thread that is already sending sends for the others too, so that no thread waits here.
        """
        with self._lock:
            self._outbox.extend(self._on(producer, mark))
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
        """Return the control items that were still to be sent when sending was interrupted."""
        with self._lock:
            left = list(self._outbox)
            self._outbox.clear()
            return left

    def capture(self) -> dict[str, Any]:
        """How far each producer has come, as plain data; `restore` takes it back."""
        with self._lock:
            return {
                "times": dict(self._times),
                "ended": sorted(self._ended),
                "sent": self._sent,
                "done": self._done,
                "outbox": list(self._outbox),
            }

    @staticmethod
    def captured(merges: Mapping[str, ControlMerge]) -> dict[str, dict[str, Any]]:
        """The same of several."""
        return {name: merge.capture() for name, merge in merges.items()}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Take back what `capture` returned; the expected producers stay as they are."""
        with self._lock:
            self._times, self._ended = dict(held["times"]), set(held["ended"])
            self._sent, self._done = held["sent"], held["done"]
            self._outbox = list(held["outbox"])

    @property
    def ended(self) -> bool:
        """The end has gone on."""
        return self._done

    def waiting(self) -> list[str]:
        """List the producers that have not ended yet."""
        return sorted(self._expected - self._ended)

    def _on(self, producer: str, mark: Punctuation | EndOfStream) -> list[Punctuation | EndOfStream]:
        if isinstance(mark, EndOfStream):
            self._ended.add(producer)
        else:
            self._times[producer] = max(self._times.get(producer, mark.time), mark.time)
        return self._due()

    def _due(self) -> list[Punctuation | EndOfStream]:
        """Take the control items that are due now."""
        found = self._next(self._expected, self._ended)
        for mark in found:
            if isinstance(mark, EndOfStream):
                self._done = True
            else:
                self._sent = mark.time
        return found

    def _next(self, expected: set[str], ended: set[str]) -> list[Punctuation | EndOfStream]:
        if self._done or not expected:
            return []
        still = expected - ended
        if not still:
            return [EndOfStream()]
        lowest = min(self._times.get(name, LOWEST) for name in still)
        return [Punctuation(lowest)] if lowest > self._sent else []


#: The settings of the channel kinds.
_SETTINGS: Final[WeakKeyDictionary[type[Channel], dict[str, Setting]]] = WeakKeyDictionary()


def channel_settings(kind: type[Channel], spec: ChannelSpec) -> dict[str, Any]:
    """The settings of a channel, complete and converted; the kind itself may still refuse their combination.

    Raises:
        UnknownName: no such setting.
        SettingError: a setting does not fit its type, or is needed and was not given.
    """
    known = _SETTINGS.get(kind)
    if known is None:
        known = _SETTINGS[kind] = read_settings(kind)
    return configured(f"the channel {spec.name!r} ({spec.kind})", known, spec.settings)
