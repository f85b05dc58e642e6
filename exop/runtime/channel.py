"""`Channel`: the base of everything that forwards, buffers or stores items between slets."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from exop.model.items import EndOfStream, Punctuation
from exop.model.ports import PortType
from exop.runtime.entry import Entry

#: What a pull does: take the next items, or read what is stored.
PullMode = Literal["take", "read"]


@dataclass(frozen=True)
class Outlet:
    """One consumer connected to a channel: the name of its port, and the way in."""

    port: str
    entry: Entry


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
        live: What consumers receive stays the channel's own (a window from which its slet evicts), so that no queue
            can stand between it and them.
    """

    kind: ClassVar[str]
    buffered: ClassVar[bool] = False
    serial: ClassVar[bool] = True
    pull_mode: ClassVar[PullMode] = "take"
    live: bool = False

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Compile the way in, given the ways into those who are connected now."""

    def read(self, port: str) -> list[Any]:
        """What a pulling port sees (`pull_mode = "read"`); channels that pass items on have nothing to read."""
        return []

    @classmethod
    def carries(cls, pushed: PortType) -> PortType:
        """What consumers receive when *pushed* enters: the same, unless the kind makes something else of it."""
        return pushed

    def open(self) -> None:
        """Called before the first item."""

    def close(self) -> None:
        """Called after the last item, when the channel is removed."""

    def metrics(self) -> dict[str, int | float | str]:
        """Figures of the channel's own."""
        return {}

    def capture(self) -> Mapping[str, Any]:
        """What the channel holds, as plain data; `restore` takes it back."""
        return {}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Take back what `capture` returned."""


class ControlMerge:
    """Control items of several producers: the minimum of their punctuations, and the end when all have ended.

    One lives in each place where connections meet; it keeps its state when the wiring is compiled anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[str, float] = {}
        self._ended: set[str] = set()
        self._sent = float("-inf")
        self._done = False

    def expect(self, producers: Sequence[str]) -> None:
        """Name those who are connected now; who left counts no more."""
        with self._lock:
            lowest = float("-inf")
            self._times = {name: self._times.get(name, lowest) for name in producers}
            self._ended &= set(producers)

    def on(self, producer: str, mark: Punctuation | EndOfStream) -> list[Punctuation | EndOfStream]:
        """What goes on after *producer* has sent *mark*."""
        with self._lock:
            if isinstance(mark, EndOfStream):
                self._ended.add(producer)
                return self._after_end()
            self._times[producer] = max(self._times.get(producer, mark.time), mark.time)
            return self._punctuations()

    @property
    def ended(self) -> bool:
        """The end has gone on."""
        return self._done

    def waiting(self) -> list[str]:
        """Who has not ended yet."""
        return [name for name in self._times if name not in self._ended]

    def _punctuations(self) -> list[Punctuation | EndOfStream]:
        open_ones = [time for name, time in self._times.items() if name not in self._ended]
        lowest = min(open_ones, default=float("-inf"))
        if lowest <= self._sent:
            return []
        self._sent = lowest
        return [Punctuation(lowest)]

    def _after_end(self) -> list[Punctuation | EndOfStream]:
        if len(self._ended) < len(self._times):
            return self._punctuations()
        if self._done:
            return []
        self._done = True
        return [EndOfStream()]
