"""The slets of `bench.moves`, each of which checks its input, and the platforms that have them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import field
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Self

import pyarrow as pa

from exop import Batch, EndOfStream, InputPort, Memento, OutputPort, Platform, Slet, input_port, slet
from exop.hooks import Plugins, hookimpl

#: The keys of the keyed slet and of the table, the items of a lot of the buffer, and the rows of a record batch.
KEYS, LOT, ROWS = 7, 10, 8
#: No slet notes more faults than this.
NOTED = 5


class Position(Memento):
    """How far the source has come."""

    number: int = 0


class Seen(Memento):
    """The last number, and what did not follow."""

    last: int = 0
    faults: list[str] = field(default_factory=list)

    def take(self, number: int) -> None:
        """Note a number, and whether it follows."""
        if number != self.last + 1 and len(self.faults) < NOTED:
            self.faults.append(f"{number} after {self.last}")
        self.last = number


class Keyed(Seen):
    """Also the last number of each key."""

    by_key: dict[int, int] = field(default_factory=dict)


class Lot(Seen):
    """Also the rows of the next record batch."""

    rows: list[int] = field(default_factory=list)


@slet
def numbers(position: Position, *, rate: int = 0) -> Iterator[int]:
    """Emit 1, 2, 3, …: so many per second, or as many as possible."""
    begun, first = time.perf_counter(), position.number
    while True:
        due = first + int((time.perf_counter() - begun) * rate) if rate else position.number + 1000
        while position.number < due:
            position.number += 1
            yield position.number
        if rate:
            time.sleep(0.001)


@slet
def keyed(x: int, state: Keyed, *, tag: int = 0) -> int:
    """Check the items of each key."""
    state.take(x)
    before = state.by_key.get(x % KEYS, x - KEYS)
    if before != x - KEYS and len(state.faults) < NOTED:
        state.faults.append(f"key {x % KEYS}: {x} after {before}")
    state.by_key[x % KEYS] = x
    return x


class Buffer(Slet, name="buffer"):
    """Emits items in lots, and what it holds when it is told to."""

    state: Seen
    out: OutputPort[int]
    tag: int = 0

    def __enter__(self) -> Self:
        self._held: list[int] = []
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is open."""

    @input_port
    def x(self, x: int | EndOfStream) -> None:
        """Keep an item."""
        if isinstance(x, EndOfStream):
            self.flush()
            return
        self.state.take(x)
        self._held.append(x)
        if len(self._held) == LOT:
            self.flush()

    def flush(self) -> None:
        """Emit what is held."""
        held, self._held = self._held, []
        for one in held:
            self.out.push(one)


@slet
def pulls(x: InputPort[int], state: Seen, *, tag: int = 0) -> Iterator[int]:
    """Take the items of a port by iteration."""
    for one in x:
        state.take(one)
        yield one


@slet
def first(position: Position, *, to: int = 100) -> Iterator[int]:
    """Emit 1, 2, 3, … up to *to*: a stream that ends, and whose end waits with the last items."""
    while position.number < to:
        position.number += 1
        yield position.number


class Ended(Seen):
    """Also whether the end has come."""

    over: bool = False


class Tells(Slet, name="tells"):
    """Checks what comes, and that the end comes once, behind it."""

    state: Ended

    @input_port
    def x(self, x: int | EndOfStream) -> None:
        """Check an item, or the end."""
        if self.state.over and len(self.state.faults) < NOTED:
            self.state.faults.append(f"{x} behind the end")
        if isinstance(x, EndOfStream):
            self.state.over = True
        else:
            self.state.take(x)


@slet
def copies(x: int) -> int:
    """Pass on."""
    return x


@slet
def copies_too(x: int) -> int:
    """Pass on, by other code."""
    return x


@slet
def spread(x: list[int], state: Seen, *, tag: int = 0) -> Iterator[int]:
    """Emit the items of windows."""
    for one in x:
        state.take(one)
        yield one


@slet
def columns(x: int, state: Lot, *, tag: int = 0) -> pa.RecordBatch | None:
    """Emit record batches."""
    state.take(x)
    state.rows.append(x)
    if len(state.rows) < ROWS:
        return None
    rows, state.rows = state.rows, []
    return pa.record_batch([pa.array(rows)], names=["x"])


@slet
def fill(x: int, state: Seen, *, tag: int = 0) -> dict[str, int]:
    """Make the rows of a table."""
    state.take(x)
    return {"key": x % KEYS, "x": x}


@slet
def sink(x: int, state: Seen) -> None:
    """Check what comes."""
    state.take(x)


@slet
def sink_too(x: int, state: Seen) -> None:
    """Check what comes, by other code."""
    state.take(x)


@slet
def sink_columns(x: pa.RecordBatch, state: Seen) -> None:
    """Check the rows of record batches."""
    for one in x.column("x").to_pylist():
        state.take(one)


class Gathers(Slet, name="gathers"):
    """Takes together what waits."""

    state: Seen
    tag: int = 0
    gathers: ClassVar[int] = 64

    @input_port
    def x(self, x: Batch[int]) -> Batch[int]:
        """Check a batch."""
        for one in x:
            self.state.take(one)
        return x


class Reads(Slet, name="reads"):
    """Looks the key of each item up in a table."""

    state: Seen
    table: InputPort[dict[str, int]]
    tag: int = 0

    @input_port
    def x(self, x: int) -> int:
        """Check an item, and the row of its key."""
        self.state.take(x)
        row = self.table.get(x % KEYS)
        if row is not None and row["x"] % KEYS != x % KEYS and len(self.state.faults) < NOTED:
            self.state.faults.append(f"{x} finds {row}")
        return x


class Slets:
    """The plugin with the slets of the bench."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [
            *(numbers, keyed, Buffer, pulls, copies, copies_too, spread, columns, fill, sink, sink_too, sink_columns),
            *(Gathers, Reads, first, Tells),
        ]


def platform(name: str, **options: Any) -> Platform:
    """A platform that has the slets."""
    plugins = Plugins()
    plugins.register("moves", Slets())
    return Platform(name=name, control=False, plugins=plugins, **options)


def serve(orders: Connection, name: str, options: dict[str, Any]) -> None:
    """The main function of another process: a platform, until it is told to end."""
    with platform(name, **options) as one:
        orders.send(one.address)
        orders.recv()
