"""The platforms of `bench.migrate`, each in a process of its own, and the slets that they have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import field
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
import pyarrow as pa

from exop import Memento, Platform, slet
from exop.hooks import Plugins, hookimpl
from exop.runtime.drivers.base import Driver

#: Bytes of a value of the keyed state, and of a chunk of the columns.
VALUE, CHUNK = 1024, 1 << 20
#: The seconds by which the items of the third platform are late.
LATENCIES: Final[list[float]] = []


class Position(Memento):
    """How far the source has come."""

    number: int = 0


class Values(Memento):
    """State of many small values."""

    by_key: dict[int, bytes] = field(default_factory=dict)


class Count(Memento):
    """The number of items."""

    count: int = 0


class Columns(Memento):
    """State of large columns."""

    count: int = 0
    rows: list[pa.RecordBatch] = field(default_factory=list)


class Seen:
    """What the sink has seen: faults of the order, and the longest interval between two items."""

    def __init__(self) -> None:
        self.last = self.lost = self.doubled = self.reordered = 0
        self.at = time.perf_counter()
        self.longest = 0.0

    def take(self, number: int) -> None:
        """Note an item."""
        now = time.perf_counter()
        self.longest, self.at = max(self.longest, now - self.at), now
        if number != self.last + 1:
            self.lost += max(0, number - self.last - 1)
            self.doubled += number == self.last
            self.reordered += number < self.last
        self.last = max(self.last, number)

    def restart(self) -> None:
        """Begin another window."""
        self.longest = 0.0


SEEN: Final = Seen()


@slet
def numbers(position: Position, *, rate: int = 50_000) -> Iterator[int]:
    """Emit 1, 2, 3, … at a steady rate, every millisecond those that are due."""
    begun, first = time.perf_counter(), position.number
    while True:
        due = first + int((time.perf_counter() - begun) * rate)
        while position.number < due:
            position.number += 1
            yield position.number
        time.sleep(0.001)


@slet
def values(x: int, state: Values, *, megabytes: float = 1.0) -> int:
    """Keep so many megabytes of values, one of which changes with each item."""
    most = int(megabytes * 1_000_000 / VALUE)
    if not state.by_key:
        state.by_key.update((key, bytes(VALUE)) for key in range(most))
    state.by_key[x % most] = x.to_bytes(8, "big") * (VALUE // 8)
    return x


@slet
def columns(x: int, state: Columns, *, megabytes: int = 100) -> int:
    """Keep so many megabytes of columns; the oldest chunk goes when another one comes."""
    state.count += 1
    while len(state.rows) < megabytes:
        state.rows.append(chunk(len(state.rows)))
    if not state.count % 50_000:
        state.rows = [*state.rows[1:], chunk(x)]
    return x


def chunk(seed: int) -> pa.RecordBatch:
    """A record batch of a megabyte."""
    return pa.record_batch([np.arange(seed, seed + CHUNK // 8)], names=["n"])


@slet
def counted(x: int, state: Count) -> str:
    """Return the item beside the number of items so far."""
    state.count += 1
    return f"{x} {state.count}"


@slet
def sink(x: int) -> None:
    """Note what comes."""
    SEEN.take(x)


@slet
def dropped(x: int) -> None:
    """Take what comes."""


@slet
def ticks(*, rate: int = 500) -> Iterator[float]:
    """Emit at a steady rate the times at which the items are due."""
    at = time.perf_counter()
    while True:
        at += 1 / rate
        while (early := at - time.perf_counter()) > 0:
            time.sleep(early)
        yield at


@slet
def late(x: float) -> None:
    """Note how late an item is."""
    LATENCIES.append(time.perf_counter() - x)


class Slets:
    """The plugin with the slets of the bench."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [numbers, values, columns, counted, sink, dropped, ticks, late]


def platform(name: str, **options: Any) -> Platform:
    """A platform that has the slets."""
    plugins = Plugins()
    plugins.register("migrate", Slets())
    return Platform(name=name, control=False, plugins=plugins, **options)


def serve(orders: Connection, name: str, options: dict[str, Any]) -> None:
    """The main function of another process: a platform; each order is answered by its latencies and parked drivers."""
    parked, close = [0], Driver.close

    def counting(driver: Driver, *given: Any) -> None:
        parked[0] += 1
        close(driver, *given)

    Driver.close = counting  # type: ignore[assignment]
    with platform(name, **options):
        orders.send(name)
        while orders.recv() is not None:
            orders.send((LATENCIES.copy(), parked[0]))
            LATENCIES.clear()
            parked[0] = 0
