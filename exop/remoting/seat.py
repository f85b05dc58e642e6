"""The place of one connection in a server: its thread, what it does now, and how it is ended from outside."""

from __future__ import annotations

import socket
import threading
import time
from enum import Enum


class Phase(Enum):
    """What a connection does now."""

    GREETING = "greeting"
    IDLE = "idle"
    RUNNING = "running"
    REPLYING = "replying"


class Seat:
    """One connection as the server sees it; the connection's own thread tells it what it does."""

    def __init__(self, sock: socket.socket) -> None:
        # A second descriptor of the connection: ending it from outside can then never hit another socket that got the
        # number of a closed one.
        self._handle = sock.dup()
        self._lock = threading.Lock()
        self._phase = (Phase.GREETING, time.monotonic(), "")
        self.thread: threading.Thread | None = None

    @property
    def phase(self) -> Phase:
        """What it does now."""
        return self._phase[0]

    @property
    def operation(self) -> str:
        """The operation that runs, or ran last."""
        return self._phase[2]

    @property
    def since(self) -> float:
        """Since when, by `time.monotonic`."""
        return self._phase[1]

    def enter(self, phase: Phase, operation: str = "") -> None:
        """Note what the connection does from now on."""
        self._phase = (phase, time.monotonic(), operation)

    def may_go(self, patience: float) -> bool:
        """Whether it can be closed to make room: it says nothing, or does nothing for longer than *patience*."""
        phase, since, _ = self._phase
        if phase is Phase.GREETING:
            return True
        return phase is not Phase.RUNNING and time.monotonic() - since > patience

    def hang_up(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection from another thread; its own thread wakes and leaves.

        With `SHUT_RD` a reply under way still goes out.
        """
        with self._lock:
            try:
                self._handle.shutdown(how)
            except OSError:
                # It has ended by itself meanwhile.
                return

    def leave(self) -> None:
        """Give the descriptor back, as the last thing that the connection's thread does."""
        with self._lock:
            self._handle.close()
