"""The driver around a slet that the platform iterates: an α-slet, or one that pulls its inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from exop.model.items import CONTROL, EndOfStream
from exop.runtime.drivers.base import Halted
from exop.runtime.drivers.thread import ThreadDriver
from exop.runtime.entry import NOWHERE, Entry, Unwind, Way, Work, items_of
from exop.runtime.metrics import Flow

Yields = Literal["items", "mixed", "batches"]
#: Called with the error when the iterator raised; returns whether to iterate again.
Broken = Callable[[BaseException], bool]


class SourceDriver(ThreadDriver):
    """Iterates a slet and pushes what it yields; between two items is the safe point.

    While a source is inside its own `next()` nothing of the driver is in flight downstream, so an idle source never
    prevents a change of what is behind it. A slet that *pulls* has items in flight there: its safe points are its
    pulls and its yields.

    Args:
        name: Names the thread.
        iterate: Makes the iterator; called again when a broken source is resumed (its memento holds the position).
        broken: Decides what happens when the iterator raises.
        finish: Sends the end of the stream.
        flush: Sends what the slet pushed to further output ports between two items; `None` if it has none.
        form: What is yielded: single items, items mixed with control items, or batches (lists or record batches).
        pulls: The slet takes its items from queues.

    Attributes:
        hand: What was yielded and not yet pushed, while the driver is parked with it: its memento is one ahead of it.
        over: The slet had ended when the checkpoint was taken that this driver goes on from.
    """

    def __init__(
        self,
        name: str,
        iterate: Callable[[], Iterator[Any]],
        broken: Broken,
        finish: Callable[[], None],
        *,
        flush: Callable[[], None] | None = None,
        form: Yields = "items",
        pulls: bool = False,
    ) -> None:
        super().__init__(name)
        self.entry: Entry = NOWHERE
        self.hand: tuple[Any] | None = None
        self.over = False
        self._iterate = iterate
        self._broken = broken
        self._finish = finish
        self._flush = flush
        self._batches = form == "batches"
        self._plain = form == "items" and flush is None
        self._pulls = pulls
        self.flow = Flow(partial(getattr, self, "count"))

    def run(self) -> None:
        """Iterate until the source ends, or is asked to end; then send the end of the stream."""
        self.busy = True
        self.take_up()
        if self.over:
            return
        if self.hand is not None:
            self._drain_any(iter(self.hand))
        self.busy = False
        while not (self.retired or self.ending) and self._shall_go_on():
            continue
        self.busy = True
        if self.attention and not self.retired:
            self.attend()
        if self.retired:  # a successor says when the end comes
            return
        try:
            self._finish()
        except BaseException as error:  # noqa: BLE001 (a defect strands the driver; the rest passes)
            self.unwound(error, Work(self.entry, "control", EndOfStream()))

    def iterate_anew(self) -> None:
        """Iterate the slet anew, from its memento, behind what it has yielded; the driver is parked outside of it."""
        with self._flags:
            self.anew = self.attention = True
        self._signal.set()

    def surrender(self) -> list[Work]:
        """Give away what was yielded and is not pushed yet."""
        (item,), self.hand = self.hand or (None,), None
        if item is None:
            return []
        way = self._way(item)
        self._count(way, item)
        return [Work(self.entry, way, item)]

    def _shall_go_on(self) -> bool:
        """Iterate the slet; returns whether to do so once more."""
        with self._flags:
            self.anew = False
            self._settle()
        try:
            self._iterate_once()
        except Halted:  # how a slet that pulls is made to leave its pull
            if self.halting or self.retired:
                raise
        except BaseException as error:  # noqa: BLE001 (a source that calls sys.exit is one that raises)
            self.rest()
            again = self._broken(error)
            self.rest()
            return again
        return self.anew and not self.ending

    def _iterate_once(self) -> None:
        iterator = iter(self._iterate())
        try:
            if self._plain:
                self._drain(iterator)
            else:
                self._drain_any(iterator)
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def _drain(self, iterator: Iterator[Any]) -> None:
        """Push single items."""
        push, count, between = self.entry.uncounted, self.count, self._pulls
        for item in iterator:
            self.busy = True
            try:
                if self.attention:
                    self.hand = (item,)
                    probe = self.attend()
                    if self.retired:
                        return
                    self.hand = None
                    push = self.entry.uncounted
                    if item is not None:
                        self.count = count = count + 1
                        if probe:
                            self.origin = time.perf_counter()
                            self.entry.probe.uncounted(item)
                        else:
                            push(item)
                elif item is not None:
                    self.count = count = count + 1
                    push(item)
            except BaseException as error:  # noqa: BLE001 (a defect strands the driver; the rest passes)
                self._unwound_with(item, error)
                push = self.entry.uncounted
            self.busy = between
            if self.attention and self._shall_leave():
                return

    def _drain_any(self, iterator: Iterator[Any]) -> None:
        """Push control items, batches, and what was pushed to further ports, beside items."""
        for item in iterator:
            self.busy = True
            try:
                probe = False
                if self.attention:
                    self.hand = (item,)
                    probe = self.attend()
                    if self.retired:
                        return
                    self.hand = None
                self._send(item, probe=probe)
            except BaseException as error:  # noqa: BLE001 (a defect strands the driver; the rest passes)
                self._unwound_with(item, error)
            self.busy = self._pulls
            if self.attention and self._shall_leave():
                return

    def _unwound_with(self, item: Any, error: BaseException) -> None:
        """Handle the error of a push: the item that the slet has yielded is still in flight."""
        in_hand = Work(self.entry, self._way(item), item) if item is not None else None
        unwound = self.unwinding(error, in_hand)
        self.hand = None
        self.unwound(unwound)

    def _shall_leave(self) -> bool:
        if not self._pulls:
            self.rest()
        return self.ending or self.retired or self.anew

    @property
    def outside(self) -> bool:
        """Closed, it waits outside of the slet that it iterates, has left, or has not begun: what it has is sent."""
        return (
            self.parked or self.held_by is not None or self.left or self._thread is None or not self._thread.is_alive()
        )

    def _send(self, item: Any, *, probe: bool) -> None:
        """Send what the source yielded, behind what it pushed to further ports before."""
        entry = self.entry.probe if probe else self.entry
        self.origin = time.perf_counter() if probe else self.origin
        way = self._way(item)
        if self._flush:
            try:
                self._flush()
            except Unwind as unwound:
                if item is not None:
                    self._count(way, item)
                    unwound.then(entry, way, [item])
                raise
        if item is not None:
            self._count(way, item)
            getattr(entry, way)(item)

    def _way(self, item: Any) -> Way:
        return "control" if isinstance(item, CONTROL) else "push_batch" if self._batches else "push"

    def _count(self, way: Way, item: Any) -> None:
        """Count items that the next place counts, too; control items are none."""
        self.rows += items_of(way, item)
