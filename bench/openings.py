"""Successors that take long to open, for the bench `replace`: they sleep, wait for a socket, compute, or import."""

from __future__ import annotations

import importlib
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, Self

from bench.replaced import MODULUS, Hash, Hashed
from exop import Slet, input_port

Way = Literal["sleep", "io", "compute", "import"]
#: So many functions stand in a module that is made for being imported.
FUNCTIONS: Final = 300


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


def import_modules(seconds: float) -> None:
    """Import modules that were never compiled, one after the other, until this thread has used so much time."""
    body = "    return [x + y for _ in range(y)]\n"
    source = "".join(f"def f{number}(x, y={number}):\n{body}" for number in range(FUNCTIONS))
    end, number = time.thread_time() + seconds, 0
    with TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        try:
            while time.thread_time() < end:
                name, number = f"made_for_being_imported_{number}", number + 1
                Path(folder, f"{name}.py").write_text(source)
                importlib.invalidate_caches()
                importlib.import_module(name)
                del sys.modules[name]
        finally:
            sys.path.remove(folder)


WAYS: Final[dict[Way, Callable[[float], None]]] = {
    "sleep": sleep,
    "io": wait_for_socket,
    "compute": compute,
    "import": import_modules,
}


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
