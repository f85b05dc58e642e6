"""The driver of a slet that pushes from threads of its own (an engine's callback, a socket's reader)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from exop.errors import ChannelClosed
from exop.runtime.dataflow.entry import InFlight
from exop.runtime.drivers.base import Driver, Halted, acting_as

#: Sends a payload; called with whether to use the instrumented path.
Send = Callable[[bool], None]
#: Makes the work for another driver out of a push; called with whether the push was begun.
Pending = Callable[[bool], InFlight]


class EngineDriver(Driver):
    """Lets one thread of the slet push at a time; every push is a safe point.

    It begins closed: a push of an engine that is still opening waits until everything is open.

    Args:
        finish: Ends the stream of every output that the slet has not ended itself.

    Attributes:
        heir: Takes what the slet still pushes after it was replaced; without one that is dropped.
    """

    def __init__(self, name: str, finish: Callable[[], None]) -> None:
        super().__init__(name)
        self.heir: Callable[[InFlight], None] | None = None
        self._turn = threading.RLock()
        self._hand: Pending | None = None
        self._finish = finish
        self._started = self._over = self._prompted = False
        self.close()

    def start(self) -> None:
        """Let the slet push; called once everything is open."""
        if not self._started:
            self._started = True
            self.open()

    def drive(self, send: Send, work: Pending | None = None) -> None:
        """Carry out one push of the slet, behind a safe point; *work* serves a successor that takes it over there.

        Raises:
            ChannelClosed: the stream was ended from outside: nothing more can be pushed.
        """
        with self._turn, acting_as(self):
            if self._over:
                raise ChannelClosed(channel=f"behind {self.name}")
            self.busy = True
            try:
                probe = self._attended(work) if self.attention else False
                if self.retired:
                    return
                self.count += 1
                if probe:
                    self.origin = time.perf_counter()
                send(probe)
            except BaseException as error:  # noqa: BLE001 (a defect strands the driver; the rest passes)
                self.unwound(error, work(True) if work is not None else None)
            finally:
                self.rest()

    def _attended(self, work: Pending | None) -> bool:
        """Pass the safe point with a push in flight."""
        self._hand = work
        try:
            probe = self.attend()
            if self.retired and self._hand is not None and self.heir is not None:
                self.heir(self._hand(False))
        finally:
            self._hand = None
        return probe

    def take_in_flight(self) -> list[InFlight]:
        """Give away the push that waits at the safe point."""
        hand, self._hand = self._hand, None
        return [hand(False)] if hand is not None else []

    def prompt(self) -> None:
        """Look into the inlets in another thread; the slet's own threads may not push for a long time."""
        super().prompt()
        with self._flags:
            if not self._prompted:
                threading.Thread(target=self._catch_up_apart, name=f"exop {self.name} (given)", daemon=True).start()
                self._prompted = True

    def end(self) -> None:
        """End the stream behind the push under way; later pushes are refused."""
        super().end()
        self.prompt()  # another thread: the turn may be taken by a push that waits

    def _catch_up_apart(self) -> None:
        with suppress(Halted), self._turn, acting_as(self):
            with self._flags:
                self._prompted = False  # before it looks: work that comes later has a thread of its own
            self.busy = True
            try:
                self.stand_by()
            finally:
                self.rest()
            if self.ending and not (self._over or self.retired):
                self._finish()
                self._over = True
