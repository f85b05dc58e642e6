"""The connections of a server: what each does, never more than the bound, and room for newcomers while any rests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from enum import Enum

from exop.remoting.transport.limits import Limits


class Phase(Enum):
    """The activity of a connection."""

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
        """The activity of the connection."""
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


class Seats:
    """The connections of a server and their threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._taken: set[Seat] = set()
        self._closing = threading.Event()

    def __len__(self) -> int:
        return len(self._taken)

    def fill(self, sock: socket.socket, serve: Callable[[socket.socket, Seat], None]) -> None:
        """Give *sock* a seat and a thread that runs *serve*."""
        seat = Seat(sock)

        def run() -> None:
            try:
                serve(sock, seat)
            finally:
                sock.close()
                seat.leave()
                with self._lock:
                    self._taken.discard(seat)

        seat.thread = threading.Thread(target=run, name="exop-control-peer", daemon=True)
        with self._lock:
            self._taken.add(seat)
        seat.thread.start()

    def make_room(self) -> bool:
        """Whether one more fits. For it a connection that does nothing is closed, the silent ones first.

        While all have done something a moment ago, it waits a moment: the newcomer waits in the queue of the socket.
        """
        patience = self._limits.patience
        deadline = time.monotonic() + 2 * patience
        while len(seats := self._all()) >= self._limits.connections:
            idle = [seat for seat in seats if seat.may_go(patience)]
            if idle:
                longest = min(idle, key=lambda seat: (seat.phase is not Phase.GREETING, seat.since))
                longest.hang_up()
                # Its thread is waited for: connections and threads never exceed their bound, not even in a flood.
                self._await([longest], deadline)
            if time.monotonic() >= deadline or (not idle and self._closing.wait(patience / 10)):
                return len(self._all()) < self._limits.connections
        return True

    def begin_closing(self) -> None:
        """Wake the thread that waits for room: no connection is taken any more."""
        self._closing.set()

    def close(self) -> list[str]:
        """End all connections but the one of the calling thread; returns the operations that did not end in time.

        What runs may answer first; what cannot be written is given up after a moment.
        """
        seats = self._all()
        for seat in seats:
            seat.hang_up(socket.SHUT_RD)
        started = time.monotonic()
        self._await(seats, started + min(self._limits.patience, self._limits.stop_time))
        for seat in self._others():
            seat.hang_up()
        self._await(seats, started + self._limits.stop_time)
        return [seat.operation for seat in self._others()]

    def _all(self) -> list[Seat]:
        with self._lock:
            return list(self._taken)

    def _others(self) -> list[Seat]:
        return [seat for seat in self._all() if seat.thread is not threading.current_thread()]

    def _await(self, seats: list[Seat], deadline: float) -> None:
        for seat in seats:
            if seat.thread is not None and seat.thread is not threading.current_thread():
                seat.thread.join(max(0.0, deadline - time.monotonic()))
