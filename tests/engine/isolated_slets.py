"""Slets whose engines run in worker processes, which import this module."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exop import Batch, EndOfStream, Punctuation, input_port
from exop.engine import Engine, EngineSlet
from exop.errors import QueryError


class Counting(Engine):
    """Numbers what arrives; some words make it fail."""

    name = "counting"

    def __init__(self) -> None:
        self.count, self.stopped, self.fragile = 0, False, False
        self.once: Path | None = None

    def compile(self, query: str) -> None:
        """Accept `all` and `hang`."""
        self.query = query
        if query not in ("all", "hang"):
            raise QueryError(problem="unknown", position=0)

    def push(self, port: str, batch: list[Any]) -> list[Any]:
        """Return the number of each item with the process."""
        self.stopped = False
        while self.query == "hang" and not self.stopped:
            time.sleep(0.001)
        if self.query == "hang" or batch == ["fail"]:
            raise RuntimeError("interrupted" if self.stopped else "failed")
        if batch == ["hang in C"]:
            ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock
        if batch == ["take memory"]:
            taken = bytearray(256 * 2**20)
            while taken:
                time.sleep(0.01)
        if batch == ["exit"]:
            os._exit(3)
        self.fragile = batch == ["exit at the snapshot"]
        self.once = Path(batch[1]) if batch[0] == "exit once at the snapshot" else None
        first, self.count = self.count + 1, self.count + len(batch)
        if batch == ["a lock"]:
            return [[threading.Lock()]]
        return [[(number, os.getpid()) for number in range(first, self.count + 1)]]

    def advance(self, time: float) -> list[Any]:
        """Nothing waits."""
        return []

    def snapshot(self) -> bytes:
        """The count."""
        if self.fragile:
            os._exit(3)
        if self.once and not self.once.exists():
            self.once.touch()
            os._exit(3)
        return json.dumps(self.count).encode()

    def restore(self, state: bytes, version: int) -> None:
        """Take it over."""
        self.count = json.loads(state)

    def interrupt(self) -> None:
        """Stop a loop of Python."""
        self.stopped = True

    def close(self) -> None:
        """Nothing is open."""

    def metrics(self) -> dict[str, int | float | str]:
        """The count."""
        return {"count": self.count}


class Numbered(EngineSlet, name="numbered"):
    """Numbers what arrives, in a worker process."""

    isolation: str = "process"

    def make_engine(self) -> Engine:
        """Return one."""
        return Counting()

    @input_port
    def rows(self, rows: Batch[Any] | Punctuation | EndOfStream) -> Iterator[Batch[tuple[int, int]] | Punctuation]:
        """Take all."""
        return self.take("rows", rows)
