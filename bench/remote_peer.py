"""The other process of `bench.remote`: a platform with the slets of the bench, and the senders of the floors."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from exop import Batch, Platform, slet
from exop.hooks import Plugins, hookimpl
from exop.remoting.identity import Identity

#: The lists of the bench have 64 items of 1 KB, its record batches 1 MiB in 8 columns.
ITEMS, SIZE, ROWS = 64, 1024, 16384
LISTS: Final = [Batch([os.urandom(SIZE) for _ in range(ITEMS)]) for _ in range(16)]
SCHEMA: Final = pa.schema([(f"c{number}", pa.int64()) for number in range(8)])
TABLES: Final = [
    pa.record_batch([np.random.default_rng(at).integers(0, 1 << 40, ROWS) for _ in SCHEMA], schema=SCHEMA)
    for at in range(4)
]
BYTES: Final = {"64x1KB": ITEMS * SIZE, "1MB": 8 * 8 * ROWS}
pack: Final = msgspec.msgpack.Encoder().encode
unpack: Final = msgspec.msgpack.Decoder(list[bytes]).decode
_LENGTH: Final = struct.Struct("!L")


class Meter:
    """Wall time and CPU of two processes from the first message to the last."""

    def __init__(self) -> None:
        self.other = 0
        self.ended = threading.Event()

    def expect(self, messages: int) -> None:
        """Begin anew."""
        self.messages, self.seen = messages, 0
        self.ended.clear()

    def count(self) -> None:
        """Note a message."""
        self.seen += 1
        if self.seen == 1:
            self.begun = self._now()
        if self.seen == self.messages:
            self.wall, self.cpu = (now - then for now, then in zip(self._now(), self.begun, strict=True))
            self.ended.set()

    def _now(self) -> tuple[float, float]:
        clock_of_other = ~self.other << 3 | 2  # CPUCLOCK_SCHED of a process
        return time.perf_counter(), time.process_time() + time.clock_gettime(clock_of_other)


METER: Final = Meter()
LATENCIES: Final[list[int]] = []


@slet
def lists(*, number: int = 1) -> Iterator[Batch[bytes]]:
    """Emit lists of 64 items of 1 KB."""
    for at in range(number):
        yield LISTS[at % len(LISTS)]


@slet
def tables(*, number: int = 1) -> Iterator[pa.RecordBatch]:
    """Emit record batches of 1 MiB."""
    for at in range(number):
        yield TABLES[at % len(TABLES)]


@slet
def lists_taken(x: Batch[bytes]) -> None:
    """Count lists."""
    METER.count()


@slet
def tables_taken(x: pa.RecordBatch) -> None:
    """Count record batches."""
    METER.count()


@slet
def one() -> Iterator[int]:
    """Emit one item."""
    yield 0


@slet
def echo(x: int) -> int:
    """Send an item back."""
    return x + 1


@slet
def lap(x: int, *, laps: int = 1) -> int | None:
    """Send an item out again, until it has been back a number of times."""
    METER.count()
    return x + 1 if x < 2 * laps - 1 else None


@slet
def due(*, rate: int = 50_000, seconds: float = 1.0) -> Iterator[int]:
    """Emit at a steady rate the times (ns) at which the items are due."""
    begun, step = time.perf_counter_ns(), 1_000_000_000 // rate
    for number in range(int(rate * seconds)):
        at = begun + number * step
        while (early := at - time.perf_counter_ns()) > 0:
            time.sleep(early / 1e9)
        yield at


@slet
def step(x: int) -> int:
    """Do one step of two."""
    return x


@slet
def late(x: int) -> None:
    """Note how late an item is."""
    LATENCIES.append(time.perf_counter_ns() - x)


class Slets:
    """The plugin with the slets of the bench."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """Return them."""
        return [lists, tables, lists_taken, tables_taken, one, echo, lap, due, step, late]


def platform(name: str, **options: Any) -> Platform:
    """Make a platform with the slets of the bench."""
    plugins = Plugins()
    plugins.register("bench", Slets())
    return Platform(name=name, control=False, plugins=plugins, **options)


def serve(orders: Connection, options: dict[str, Any]) -> None:
    """The main function of the other process: a platform, and orders to send over raw sockets."""
    with platform("b", **options):
        orders.send(os.getpid())
        while (order := orders.recv()) is not None:
            kind, port, number, folder = order
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if folder:
                sock = Identity(folder).files().client.wrap_socket(sock)
            with sock:
                if kind == "bare":
                    for _ in range(number):
                        sock.sendall(filled(sock, _LENGTH.size))
                elif kind == "rtt":
                    threaded(sock, number, lambda x: x + 1)
                else:
                    send_raw(sock, kind, number)


def send_raw(sock: socket.socket, kind: str, number: int) -> None:
    """The sending side of the floor: pack each message as the connector does, and send it after its length."""
    for at in range(number):
        body: Any = pack(LISTS[at % 16]) if kind == "64x1KB" else memoryview(TABLES[at % 4].serialize())
        length = _LENGTH.pack(len(body))
        if isinstance(sock, ssl.SSLSocket):
            sock.sendall(length + body if len(body) < 1 << 17 else length)
            if len(body) >= 1 << 17:
                sock.sendall(body)
        elif (sent := sock.sendmsg([length, body])) < len(body) + _LENGTH.size:
            sock.sendall(memoryview(body)[sent - _LENGTH.size :])


def take_lists(sock: socket.socket, number: int) -> None:
    """The receiving side of the floor: lists, in one reused buffer."""
    view, start, end = memoryview(bytearray(1 << 19)), 0, 0
    while number:
        while number and end - start >= _LENGTH.size:
            stop = start + _LENGTH.size + _LENGTH.unpack_from(view, start)[0]
            if stop > end:
                break
            unpack(view[start + _LENGTH.size : stop])
            METER.count()
            number, start = number - 1, stop
        view[: end - start] = view[start:end]
        start, end = 0, end - start
        end += sock.recv_into(view[end:]) if number else 0


def take_tables(sock: socket.socket, number: int) -> None:
    """The receiving side of the floor: record batches, each in memory of its own."""
    for _ in range(number):
        body = filled(sock, _LENGTH.unpack(filled(sock, _LENGTH.size))[0])
        pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA)
        METER.count()


def filled(sock: socket.socket, size: int) -> bytearray:
    """Receive exactly *size* bytes."""
    body = bytearray(size)
    rest = memoryview(body)
    while rest:
        rest = rest[sock.recv_into(rest) :]
    return body


def threaded(sock: socket.socket, number: int, work: Callable[[int], int | None]) -> None:
    """Receive numbers in a thread, work on them in a second one, and send the results in a third."""
    taken: SimpleQueue[int | None] = SimpleQueue()
    made: SimpleQueue[int | None] = SimpleQueue()

    def receive() -> None:
        for _ in range(number):
            taken.put(_LENGTH.unpack(filled(sock, _LENGTH.size))[0])
        taken.put(None)

    def send() -> None:
        while (x := made.get()) is not None:
            sock.sendall(_LENGTH.pack(x))

    threads = [threading.Thread(target=one) for one in (receive, send)]
    for thread in threads:
        thread.start()
    while (x := taken.get()) is not None:
        made.put(work(x))
    made.put(None)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    sys.exit("this is the other process of `python -m bench remote`")
