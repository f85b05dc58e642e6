"""Successors that take long to open, for the bench `replace`: they sleep, wait for a socket, or compute."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final, Literal, Self

from bench.replaced import MODULUS, Hash, Hashed
from exop import Slet, input_port

Way = Literal["sleep", "io", "compute"]


def sleep(seconds: float) -> None:
    """Wait for nothing."""
    time.sleep(seconds)


def wait_for_socket(seconds: float) -> None:
    """Wait for a peer that never answers."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(max(seconds, 0.001))
        try:
            ours.recv(1)
        except TimeoutError:
            return


def compute(seconds: float) -> None:
    """Compute in Python until this thread has used so much time."""
    end, number = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        number = (number * 31 + 1) % MODULUS


WAYS: Final[dict[Way, Callable[[float], None]]] = {"sleep": sleep, "io": wait_for_socket, "compute": compute}


class Opened(Slet):
    """Hashes the numbers like the others, and takes long to open."""

    hash: Hash
    way: Way = "sleep"
    seconds: float = 0.0

    def __enter__(self) -> Self:
        WAYS[self.way](self.seconds)
        return self

    @input_port
    def number(self, number: int) -> Hashed:
        """Add a number to the running hash."""
        self.hash.running = running = (self.hash.running * 31 + number) % MODULUS
        return number, running
