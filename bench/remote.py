"""What does a remote connector cost, beside a raw socket that carries the same bytes between the same processes?

The floor of the throughput packs each message as the connector does (lists by msgspec, record batches by Arrow IPC),
sends it after its length, and unpacks it at the other side. The floor of the round trip hands each number over between
a receiver, a worker and a sender thread on either side; a connector over TCP needs no sender thread for a separate
item, and has one hand-over less. `cpu` is the CPU of both processes.
"""

from __future__ import annotations

import itertools
import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from bench.harness import Result, median, ratio_of
from bench.remote_peer import (
    BYTES,
    ITEMS,
    LATENCIES,
    METER,
    ROWS,
    due,
    echo,
    filled,
    lap,
    late,
    lists,
    lists_taken,
    one,
    platform,
    serve,
    step,
    tables,
    tables_taken,
    take_lists,
    take_tables,
    threaded,
)
from exop import Application
from exop.remoting.authority import create_authority, issue
from exop.remoting.identity import Identity

T = TypeVar("T")
#: The items that a connector stores: 16 lists, 16 record batches.
CAPACITY = {"64x1KB": 16 * ITEMS, "1MB": 16 * ROWS}
#: Seconds for one run.
PATIENCE = 120.0
_names = (f"run{number}" for number in itertools.count())


class Hosts:
    """The platform `a` of this process, linked with the platform `b` of another one; and raw sockets between them."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._orders, theirs = multiprocessing.Pipe()
        options = self._options("a")
        scheme = "tcp" if folder is None else "tls"
        self.a = platform("a", listen=f"{scheme}://127.0.0.1:0", **options)
        self._running = ExitStack()
        self._running.enter_context(self.a)
        spawn = multiprocessing.get_context("spawn")
        options = {**self._options("b"), "peers": {"a": self.a.address}}
        self._process = spawn.Process(target=serve, args=(theirs, options), daemon=True)
        self._process.start()
        METER.other = self._orders.recv()
        self.link = self.a.remoting.wires["b"]
        if not self.link.wait_until(connected=True, timeout=PATIENCE):
            raise RuntimeError(f"the platforms are not linked: {self.link.reason}")
        self._listener = socket.create_server(("127.0.0.1", 0))

    def _options(self, name: str) -> dict[str, Any]:
        if self.folder is None:
            return {}
        other = "b" if name == "a" else "a"
        policy = self.folder / f"{name}.toml"
        policy.write_text(f'[peers.{other}]\nrole = "admin"\nread = ["*/*"]\nwrite = ["*/*"]\n')
        policy.chmod(0o600)
        return {"identity": self.folder / name, "policy": policy}

    @contextmanager
    def raw(self, kind: str, number: int) -> Iterator[socket.socket]:
        """A raw socket, at whose other end the other process does its part for *number* messages."""
        folder = None if self.folder is None else self.folder / "b"
        self._orders.send((kind, self._listener.getsockname()[1], number, folder))
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.folder is not None:
            sock = Identity(self.folder / "a").files().server.wrap_socket(sock, server_side=True)
        with sock:
            yield sock

    def run(self, build: Callable[[Application], object], messages: int) -> None:
        """Run an application until it has received *messages*."""
        name = next(_names)
        app = Application(name)
        build(app)
        METER.expect(messages)
        self.a.apply(app.build())
        if not METER.ended.wait(PATIENCE):
            raise RuntimeError(f"{METER.seen} of {messages} messages in {PATIENCE:g} s")
        self.a.remove(name)

    def close(self) -> None:
        """End the other process and the platform."""
        self._orders.send(None)
        self._process.join(PATIENCE)
        self._listener.close()
        self._running.close()


def measure(
    *,
    megabytes: Annotated[int, "how much one run of the throughput transfers"] = 400,
    laps: Annotated[int, "round trips of one run"] = 2000,
    seconds: Annotated[float, "how long items are sent to measure the latency of two steps"] = 3.0,
    rounds: Annotated[int, "how many pairs of runs"] = 7,
    tls: Annotated[bool, "also with TLS"] = True,
) -> Iterator[Result]:
    """Measure over TCP on loopback, and over TLS."""
    with hosts(None) as pair:
        yield from throughput(pair, "remote", megabytes, rounds)
        yield from round_trip(pair, "remote", laps, rounds)
        yield control_beside_bulk(pair, "remote", megabytes, rounds)
        yield from two_step(pair, "remote", seconds, rounds)
    if tls:
        with tempfile.TemporaryDirectory(prefix="exop-remote-") as place:
            folder = Path(place)
            create_authority(folder / "authority")
            for name in ("a", "b"):
                issue(folder / "authority", name)
            with hosts(folder / "authority") as pair:
                yield from throughput(pair, "remote/tls", megabytes // 2, rounds)
                yield from round_trip(pair, "remote/tls", laps, rounds)
                yield control_beside_bulk(pair, "remote/tls", megabytes // 2, rounds)
                yield from two_step(pair, "remote/tls", seconds, rounds)


@contextmanager
def hosts(folder: Path | None) -> Iterator[Hosts]:
    """The two platforms."""
    pair = Hosts(folder)
    try:
        yield pair
    finally:
        pair.close()


def throughput(pair: Hosts, path: str, megabytes: int, rounds: int) -> Iterator[Result]:
    """The rate in MB/s and the CPU in ms per MB, beside the floor."""
    for kind in BYTES:
        number = megabytes * 1_000_000 // BYTES[kind]
        runs = in_turns(partial(raw_stream, pair, kind, number), partial(stream, pair, kind, number), rounds)
        size = (number - 1) * BYTES[kind] / 1e6
        rates = [(size / ours[0], size / base[0]) for ours, base in runs]
        costs = [(1e3 * ours[1] / size, 1e3 * base[1] / size) for ours, base in runs]
        yield result(f"{path}/throughput/{kind}", "MB/s", "a raw socket", rates)
        yield result(f"{path}/cpu/{kind}", "ms/MB", "a raw socket", costs)


def stream(pair: Hosts, kind: str, number: int) -> tuple[float, float]:
    """Send *number* messages from `b` to `a` through a connector; return the seconds and the CPU."""
    source, sink = (lists, lists_taken) if kind == "64x1KB" else (tables, tables_taken)

    def build(app: Application) -> None:
        channel = app.channel("stream", connector={"capacity": CAPACITY[kind]})
        app.on("b").add("source", source, number=number, out=channel)
        app.add("sink", sink, x=channel)

    pair.run(build, number)
    return METER.wall, METER.cpu


def raw_stream(pair: Hosts, kind: str, number: int) -> tuple[float, float]:
    """Send the same over a raw socket."""
    METER.expect(number)
    with pair.raw(kind, number) as sock:
        (take_lists if kind == "64x1KB" else take_tables)(sock, number)
    return METER.wall, METER.cpu


def round_trip(pair: Hosts, path: str, laps: int, rounds: int) -> Iterator[Result]:
    """The time of a round trip of one item, beside raw sockets with the same threads, and with none."""

    def build(app: Application) -> None:
        ring = app.channel("ring", kind="queue")
        app.add("first", one, out=ring)
        app.on("b").add("echo", echo, x=app.add("lap", lap, laps=laps, x=ring), out=ring)

    def candidate() -> float:
        pair.run(build, laps)
        return 1e6 * METER.wall / (laps - 1)

    def floor(kind: str) -> Callable[[], float]:
        def run() -> float:
            METER.expect(laps)
            with pair.raw(kind, laps) as sock:
                sock.sendall(bytes(4))
                if kind == "bare":
                    for _ in range(laps - 1):
                        sock.sendall(filled(sock, 4))
                        METER.count()
                    filled(sock, 4)
                    METER.count()
                else:
                    threaded(sock, laps, lambda x: lap(x, laps=laps))
            return 1e6 * METER.wall / (laps - 1)

        return run

    yield result(f"{path}/rtt/1", "us", "raw, same threads", in_turns(floor("rtt"), candidate, rounds))
    yield result(f"{path}/rtt/bare", "us", "raw, no threads", in_turns(floor("bare"), candidate, rounds))


def control_beside_bulk(pair: Hosts, path: str, megabytes: int, rounds: int) -> Result:
    """The additional time of a call while record batches are transferred: its median in ms."""
    number = megabytes * 1_000_000 // BYTES["1MB"]

    def call() -> float:
        begun = time.perf_counter()
        pair.link.call("ping")
        return 1e3 * (time.perf_counter() - begun)

    def beside() -> float:
        found: list[float] = []
        METER.expect(number)

        thread = threading.Thread(target=stream, args=(pair, "1MB", number))
        thread.start()
        while METER.seen < 2 and thread.is_alive():
            time.sleep(0.001)
        while not METER.ended.is_set():
            found.append(call())
        thread.join()
        return statistics.median(found)

    runs = in_turns(lambda: statistics.median(call() for _ in range(200)), beside, rounds)
    more = [ours - idle for ours, idle in runs]
    return Result(f"{path}/control_beside_bulk/median", median(more), "ms", "an idle connection", None, runs)


def two_step(pair: Hosts, path: str, seconds: float, rounds: int) -> Iterator[Result]:
    """The latency of two steps on two platforms at 50 000 items per second, from the time when an item is due."""
    medians, tails = [], []
    for _ in range(rounds):
        LATENCIES.clear()
        name = next(_names)
        app = Application(name)
        there = app.add("first", step, x=app.on("b").add("source", due, seconds=seconds))
        app.add("sink", late, x=app.add("second", step, x=there))
        pair.a.apply(app.build())
        pair.a.wait(name, timeout=PATIENCE)
        pair.a.remove(name)
        found = sorted(1e-6 * one for one in LATENCIES[len(LATENCIES) // 4 :])
        medians.append(found[len(found) // 2])
        tails.append(found[len(found) * 95 // 100])
    yield Result(f"{path}/two_step/median", median(medians), "ms", samples=medians)
    yield Result(f"{path}/two_step/p95", median(tails), "ms", samples=tails)


def in_turns(floor: Callable[[], T], candidate: Callable[[], T], rounds: int) -> list[tuple[T, T]]:
    """Run both in turns, first unmeasured; return the pairs (candidate, floor)."""
    floor(), candidate()
    pairs = []
    for _ in range(rounds):
        base = floor()
        pairs.append((candidate(), base))
    return pairs


def result(name: str, unit: str, against: str, pairs: list[tuple[float, float]]) -> Result:
    """The medians of the values and of the paired ratios."""
    ratio = median(ratio_of(*pair) for pair in pairs)
    return Result(name, median(ours for ours, _ in pairs), unit, against, ratio, pairs)
