"""Moves of a slet of a durable application, each with a kill of one of the three platforms, at a failpoint.

The source and the sink are on `a`, the home; the slet moves between `b` and `c`. Each platform is a process with a
state directory. It is killed where it records its part of the change, or carries it out, and started again.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.harness import Result
from bench.migrate_peer import counted, numbers, platform
from exop import Application
from exop.errors import ExopError
from exop.runtime.durable import failpoints

HOME, HOSTS = "a", "abc"
#: Seconds in which a platform that was killed, and the stream, have to go on.
PATIENCE = 120.0
#: Items per second, and seconds between two checkpoints.
RATE, EVERY = 2000, 0.5
MEMBER = [f"plan-{record}-{side}" for record in ("prepared", "settled") for side in ("before", "after")]
#: Where the home, and where the source or the target of a move, are killed in turn.
AT_HOME = ["plan-committed-before", "plan-committed-after", *MEMBER]
ELSEWHERE = [*MEMBER, "plan-carried-out"]


def serve(orders: Connection, name: str, folder: Path) -> None:
    """The main function of a process: a platform, which is given failpoints, applications and moves."""
    peers = {other: f"unix:{folder / other}.socket" for other in HOSTS if other < name}
    options = {"listen": f"unix:{folder / name}.socket", "peers": peers, "state": folder / name}
    with platform(name, **options) as one:
        orders.send(name)
        while (order := orders.recv()) is not None:
            what, given = order
            answer: Any = None
            try:
                if what == "arm":
                    failpoints._NAME, failpoints._left[0] = given, 1
                elif what == "begin":
                    app = Application("kills")
                    app.durable(EVERY)
                    source = app.add("source", numbers, rate=RATE)
                    moved = app.on("b").add("counted", counted, x=source)
                    app.add("sink", "stock:write_lines", item=moved, path=given)
                    one.apply(app.build())
                elif what == "move":
                    one.apply(one.mesh("kills").move("counted", to=given), timeout=5.0)
                elif what == "place":
                    answer = one.mesh("kills").node("counted").host
                elif what == "settled":
                    found: dict[str, Any] = (
                        one.status("kills") if "kills" in one.applications() else {"state": "running"}
                    )
                    states = [host["state"] for host in found.get("hosts", {}).values()] or [found["state"]]
                    answer = {*states} == {"running"} or None
            except ExopError:  # a move in the middle of which a platform dies
                answer = None
            orders.send(answer)


class Hosts:
    """The three platforms, which are started again when they were killed."""

    def __init__(self, running: ExitStack) -> None:
        self.folder = Path(running.enter_context(TemporaryDirectory(prefix="exop")))
        self.lines = self.folder / "lines.txt"
        self.processes: dict[str, Any] = {}
        self.orders: dict[str, Connection] = {}
        os.environ["EXOP_FAILPOINT"] = "later"  # the processes read it when they start; `arm` replaces it
        running.callback(os.environ.pop, "EXOP_FAILPOINT")
        running.callback(self.close)
        for name in HOSTS:
            self.start(name)
        self.ask(HOME, "begin", str(self.lines))
        self.flow()

    def start(self, name: str) -> None:
        """Start a platform."""
        self.orders[name], theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.processes[name] = context.Process(target=serve, args=(theirs, name, self.folder))
        self.processes[name].start()
        theirs.close()
        self.orders[name].recv()

    def close(self) -> None:
        """End all platforms."""
        for process in self.processes.values():
            process.kill()
            process.join()

    def ask(self, name: str, what: str, given: Any = None) -> Any:
        """Give an order; return the answer, or `None` if the platform dies."""
        try:
            self.orders[name].send((what, given))
            if not self.orders[name].poll(PATIENCE):
                raise RuntimeError(f"{name} does not answer {what!r} within {PATIENCE:g} s")
            return self.orders[name].recv()
        except (EOFError, ConnectionError):
            return None

    def move(self, victim: str, failpoint: str) -> bool:
        """Move the slet while a platform is killed, and start that one again; return whether it was killed."""
        source = self.flow()
        target = "c" if source == "b" else "b"
        name = {"home": HOME, "source": source, "target": target}[victim]
        self.ask(name, "arm", failpoint)
        self.ask(HOME, "move", target)
        process = self.processes[name]
        process.join(5.0)
        if died := not process.is_alive():
            self.start(name)
        else:
            self.ask(name, "arm", "later")
        return died

    def flow(self) -> str:
        """Wait until all hosts run, and lines come; return the host of the slet."""
        for name in HOSTS:
            until(partial(self.ask, name, "settled"), f"{name} does not run")
        seen = self.size()
        until(lambda: self.size() > seen, f"no more lines than {seen} bytes")
        return str(self.ask(HOME, "place"))

    def size(self) -> int:
        """The bytes in the file of the sink."""
        return self.lines.stat().st_size if self.lines.exists() else 0


def until(found: Callable[[], bool], problem: str) -> None:
    """Wait until something is found."""
    end = time.monotonic() + PATIENCE
    while not found():
        if time.monotonic() > end:
            raise RuntimeError(f"{problem} within {PATIENCE:g} s")
        time.sleep(0.05)


def faults(lines: Path) -> dict[str, int]:
    """Count the faults in a file: numbers that are missing, doubled or reordered, and states that do not fit."""
    found, last = dict.fromkeys(("lost", "doubled", "reordered", "wrong"), 0), 0
    text = lines.read_text()
    for line in text[: text.rfind("\n")].split("\n"):
        number, count = map(int, line.split())
        if number != last + 1:
            found["lost"] += max(0, number - last - 1)
            found["doubled"] += number == last
            found["reordered"] += number < last
        found["wrong"] += number != count
        last = max(last, number)
    return found


def killed(moves: int) -> Iterator[Result]:
    """Move the slet so many times, each with a kill; a platform that refuses the move first is not killed."""
    places = {"home": cycle(AT_HOME), "source": cycle(ELSEWHERE), "target": cycle(ELSEWHERE)}
    died = 0
    with ExitStack() as running:
        there = Hosts(running)
        for victim, _ in zip(cycle(places), range(moves), strict=False):
            died += there.move(victim, next(places[victim]))
        there.flow()
        yield Result("migrate/kills/killed", died, "platforms")
        for fault, number in faults(there.lines).items():
            yield Result(f"migrate/kills/{fault}", number, "items")
