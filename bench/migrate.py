"""How long does a slet that moves to another platform stop the stream, and does anything get lost?

Platform `a` has the source and the sink, and the slet moves between `a` and `b`, which is another process on loopback.
The gap of a move is the longest interval between two outputs around the move, less the longest one in an equally long
window without a move. Platform `c`, in a third process, has a part of the application that the moves do not touch. Its
latencies are compared with those while another application moves, of which it has no part: the load is the same.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

from bench.harness import Result
from bench.migrate_kills import killed
from bench.migrate_peer import SEEN, columns, dropped, late, numbers, platform, serve, sink, ticks, values
from exop import Application
from exop.model.meshes.mesh import Mesh

#: Seconds in which everything has to happen.
PATIENCE = 120.0
#: Seconds around a move, and of a window of latencies.
AROUND, WINDOW = 0.25, 3.0


class Hosts:
    """The platform `a` of this process, and `b` and `c` in processes of their own."""

    def __init__(self, running: ExitStack) -> None:
        self.a = running.enter_context(platform("a", listen="tcp://127.0.0.1:0"))
        self.orders: dict[str, Any] = {}
        for name in ("b", "c"):
            ours, theirs = multiprocessing.Pipe()
            options = {"peers": {"a": self.a.address}}
            process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, name, options))
            process.start()
            running.callback(process.join, PATIENCE)
            running.callback(ours.send, None)
            self.orders[name] = ours
            ours.recv()
            if not self.a.remoting.wires[name].wait_until(connected=True, timeout=PATIENCE):
                raise RuntimeError(f"{name} is not linked")

    def ask(self, name: str) -> tuple[list[float], int]:
        """Return the latencies at a platform since the last question, and how often its drivers were parked."""
        self.orders[name].send("measured")
        found: tuple[list[float], int] = self.orders[name].recv()
        return found

    def begin(self, rate: int, keeper: Any, megabytes: int, *, alike: bool = False) -> None:
        """Run the application, and wait until the state has its size; also one *alike*, without a part on `c`."""
        app = Application("migrate")
        app.on("c").add("late", late, x=app.on("c").add("ticks", ticks))
        SEEN.__init__()  # type: ignore[misc]
        for one, end in [(app, sink), (Application("alike"), dropped)][: 1 + alike]:
            kept = one.add("keeper", keeper, megabytes=megabytes, x=one.add("source", numbers, rate=rate))
            one.add("sink", end, x=kept)
            self.a.apply(one.build())
        until = time.monotonic() + PATIENCE
        while SEEN.last < rate:
            if time.monotonic() > until:
                raise RuntimeError(f"{SEEN.last} items in {PATIENCE:g} s")
            time.sleep(0.01)

    def move(self, application: str = "migrate") -> tuple[float, float]:
        """Move the slet to the other platform; return the gap and the seconds that the change took."""
        mesh: Mesh = self.a.mesh(application)
        there = "b" if mesh.node("keeper").host in (None, "a") else "a"
        time.sleep(AROUND)
        SEEN.restart()
        begun = time.perf_counter()
        self.a.apply(mesh.move("keeper", to=there))
        took = time.perf_counter() - begun
        time.sleep(AROUND)
        with_move = SEEN.longest
        SEEN.restart()
        time.sleep(took + AROUND)
        return max(0.0, with_move - SEEN.longest), took


def measure(
    *,
    moves: Annotated[int, "how often the slet with 1 MB of state moves"] = 40,
    large: Annotated[int, "how often the slet with 100 MB of columns moves, and that with 100 MB of keys"] = 6,
    kills: Annotated[int, "how often the slet of a durable application moves while a platform is killed"] = 50,
    rate: Annotated[int, "items per second"] = 50_000,
) -> Iterator[Result]:
    """Measure over TCP on loopback, and over Unix sockets with kills."""
    with hosts() as there:
        there.begin(rate // 2, values, 1, alike=True)
        yield from untouched(there)
        there.a.remove("alike")
        there.a.remove("migrate")
        there.begin(rate, values, 1)
        yield from gaps(there, "gap", moves)
        there.a.remove("migrate")
        for name, keeper in (("precopy100MB", columns), ("precopy100MB_keyed", values)):
            there.begin(rate // 5, keeper, 100)
            yield from gaps(there, name, large)
            there.a.remove("migrate")
    yield from killed(kills)


def gaps(there: Hosts, name: str, moves: int) -> Iterator[Result]:
    """Move there and back; the numbers of the items show whether anything is lost."""
    found = [there.move() for _ in range(moves)]
    samples = [gap * 1e3 for gap, _ in found]
    yield Result(f"migrate/{name}/median", statistics.median(samples), "ms", samples=samples)
    yield Result(f"migrate/{name}/most", max(samples), "ms", samples=samples)
    yield Result(f"migrate/{name}/change", statistics.median(took * 1e3 for _, took in found), "ms")
    for fault in ("lost", "doubled", "reordered"):
        yield Result(f"migrate/{name}/{fault}", getattr(SEEN, fault), "items")


def untouched(there: Hosts) -> Iterator[Result]:
    """Measure the third platform while applications move: one of which it has no part, its own, the other one again."""
    latest: list[float] = []
    there.ask("c")
    for application in ("alike", "migrate", "alike"):
        until = time.monotonic() + WINDOW
        while time.monotonic() < until:
            there.move(application)
        latencies, parked = there.ask("c")
        latest.append(statistics.quantiles(latencies, n=100)[98] * 1e3)
        if application == "migrate":
            yield Result("migrate/third/parked", parked, "drivers")
    beyond = latest[1] - statistics.fmean((latest[0], latest[2]))
    yield Result("migrate/third/p99", max(0.0, beyond), "ms", samples=latest)


@contextmanager
def hosts() -> Iterator[Hosts]:
    """The platforms, which are closed after the block."""
    with ExitStack() as running:
        yield Hosts(running)
