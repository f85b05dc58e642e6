"""All connections of a server: never more than its bound, and room for newcomers as long as anyone rests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from exop.remoting.limits import Limits
from exop.remoting.seat import Phase, Seat


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
        """Wake whoever waits for room: nobody is seated any more."""
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
