"""The driver of a slet that pushes from threads of its own (an engine's callback, a socket's reader)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from exop.errors import ChannelClosed
from exop.runtime.drivers.base import Driver, Halted, acting_as
from exop.runtime.unwind import Unwind

#: What sends a payload: called with it, and whether to take the instrumented way.
Send = Callable[[Any, bool], None]


class EngineDriver(Driver):
    """Lets one thread of the slet push at a time; every push is a safe point.

    It begins closed: what an engine pushes while it opens waits until everything is open.

    Args:
        name: Names it in messages.
        finish: Ends the stream of every output that the slet has not ended itself.
    """

    def __init__(self, name: str, finish: Callable[[], None]) -> None:
        super().__init__(name)
        self._turn = threading.RLock()
        self._finish = finish
        self._started = False
        self._over = False
        self.close()

    def begin(self) -> None:
        """Let the slet push; called once everything is open."""
        if not self._started:
            self._started = True
            self.open()

    def drive(self, send: Send, payload: Any, *, single: bool = False) -> None:
        """Carry out one push of the slet's, parking before it when asked to; *single* for one plain item.

        Raises:
            ChannelClosed: the stream was ended from outside: nothing more can be pushed.
        """
        with self._turn, acting_as(self):
            if self._over:
                raise ChannelClosed(channel=f"behind {self.name}")
            self.busy = True
            try:
                probe = self.attend() if self.attention else False
                self.count += single
                if probe:
                    self.probes += single
                    self.origin = time.perf_counter()
                send(payload, probe)
            except Unwind as unwound:
                self.unwound(unwound)
            finally:
                self.rest()

    def end(self) -> None:
        """End the stream behind what is being pushed now; later pushes are refused."""
        super().end()
        # The turn may be taken by a push that waits: whoever asks for the end does not wait with it.
        threading.Thread(target=self._end, name=f"exop {self.name} ends", daemon=True).start()

    def _end(self) -> None:
        try:
            with self._turn:
                if not self._over:
                    self._finish()
                    self._over = True
        except Halted:
            return
