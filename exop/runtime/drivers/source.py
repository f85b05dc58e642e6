"""The driver around a slet that the platform iterates: an α-slet, or one that pulls its inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from exop.model.items import CONTROL
from exop.runtime.convert import weight
from exop.runtime.drivers.base import ThreadDriver
from exop.runtime.entry import NOWHERE, Entry
from exop.runtime.unwind import Unwind, Way

Yields = Literal["items", "mixed", "batches"]
#: Called with the error when the iterator raised; returns whether to iterate again.
Broken = Callable[[Exception], bool]


class SourceDriver(ThreadDriver):
    """Iterates a slet and pushes what it yields; between two items is the safe point.

    While the slet is inside its own `next()` nothing of the driver is in flight downstream, so an idle source never
    keeps anybody from changing what is behind it.

    Args:
        name: Names the thread.
        iterate: Makes the iterator; called again when a broken source is resumed (its memento holds the position).
        broken: Decides what happens when the iterator raises.
        finish: Sends the end of the stream.
        flush: Sends what the slet pushed to further output ports between two items; `None` if it has none.
        form: What is yielded: single items, items mixed with control items, or batches (lists or record batches).
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
    ) -> None:
        super().__init__(name)
        self.entry: Entry = NOWHERE
        self._iterate = iterate
        self._broken = broken
        self._finish = finish
        self._flush = flush
        self._batches = form == "batches"
        self._plain = form == "items" and flush is None

    def run(self) -> None:
        """Iterate until the source ends, or is told to end; then the end of the stream goes out."""
        while True:
            iterator = iter(self._iterate())
            try:
                self._drain(iterator)
            except Exception as error:  # noqa: BLE001 (what the slet raised; the policy decides)
                self.rest()
                if self._broken(error):
                    continue
            finally:
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
            break
        if self.retired:
            return
        self.busy = True
        if self.attention:
            self.attend()
        try:
            self._finish()
        except Unwind as unwound:
            self.unwound(unwound)

    def _drain(self, iterator: Iterator[Any]) -> None:
        push = self.entry.push if self._plain else self._send
        count = self.count
        for item in iterator:
            self.busy = True
            try:
                if self.attention:
                    probe = self.attend()
                    push = self.entry.push if self._plain else self._send
                    if item is not None:
                        self.count = count = count + 1
                        if probe:
                            self.probe(item)
                        else:
                            push(item)
                elif item is not None:
                    self.count = count = count + 1
                    push(item)
            except Unwind as unwound:
                self.unwound(unwound)
                push = self.entry.push if self._plain else self._send
            self.busy = False
            if self.attention:
                self.rest()
                if self.ending or self.retired:
                    return

    def wait_yielded(self, timeout: float | None = None) -> bool:
        """Wait until the slet has yielded and the closed driver is parked there: its memento is what it has sent."""
        return self._watched(lambda: self.parked or not self.alive, timeout) and not self.work

    def follow(self, places: Mapping[str, Entry]) -> None:
        """Push what is in hand by the way there is now."""
        self.entry = places.get(self.entry.place, self.entry)

    def probe(self, item: Any) -> None:
        """Push one item along the instrumented way."""
        self.probes += 1
        self.origin = time.perf_counter()
        self._send(item, self.entry.probe)

    def _send(self, item: Any, entry: Entry | None = None) -> None:
        """Send what the source yielded, behind what it pushed to further ports before."""
        entry = entry or self.entry
        way: Way = "control" if isinstance(item, CONTROL) else "push_batch" if self._batches else "push"
        if way == "push_batch":
            self.rows += weight(item)
        if self._flush:
            try:
                self._flush()
            except Unwind as unwound:
                unwound.then(entry, way, [item])
                raise
        getattr(entry, way)(item)
