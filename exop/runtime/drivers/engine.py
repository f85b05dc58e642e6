"""The driver of a slet that pushes from threads of its own (an engine's callback, a socket's reader)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from exop.runtime.drivers.base import Driver, acting_as
from exop.runtime.unwind import Unwind


class EngineDriver(Driver):
    """Lets one thread of the slet push at a time; every push is a safe point."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._turn = threading.RLock()

    def drive(self, push: Callable[[Any], None], payload: Any) -> None:
        """Carry out one push of the slet's, parking before it when asked to."""
        with self._turn, acting_as(self):
            self.busy = True
            try:
                if self.attention:
                    self.attend()
                push(payload)
            except Unwind as unwound:
                self.unwound(unwound)
            finally:
                self.rest()
