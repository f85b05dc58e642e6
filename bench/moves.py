"""Random moves of an application over four hosts: does anything get lost, doubled or reordered?

One case is an application with one queue of numbers and consumers of all kinds, which is changed again and again while
it runs: one to three nodes or channels move at once, also together with a replacement and new settings. Each slet
checks its input: the numbers follow each other. A second source ends early: what it has emitted waits, with its end, in
a full queue and its connectors as long as the slet behind the queue is suspended, and moves with it. At the end the
source ends, and all numbers have come everywhere. The platforms are in this process, or in one process each.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

from bench.cases import carry_out
from bench.harness import Result
from bench.moves_peer import (
    LOT,
    ROWS,
    Buffer,
    Ended,
    Gathers,
    Reads,
    Tells,
    columns,
    copies,
    copies_too,
    fill,
    first,
    keyed,
    numbers,
    platform,
    pulls,
    serve,
    sink,
    sink_columns,
    sink_too,
    spread,
)
from exop import Application, Platform
from exop.errors import ExopError, PeerUnreachable, PlanError
from exop.model.meshes.mesh import Mesh
from exop.runtime.channels.reader import Reader

HOSTS: Final = ("a", "b", "c", "d")
#: Seconds in which everything has to happen.
PATIENCE: Final = 90.0
#: The nodes that take new settings, and those that are replaced, each by slets that do the same.
TAGGED: Final = ("keyed", "buffer", "pulls", "spread", "columns", "fill", "gathers", "reads")
ALIKE: Final = {"copies": (copies, copies_too), **dict.fromkeys(("keyed_sink", "log_sink"), (sink, sink_too))}
#: The kinds of refusals, by words of their messages: hosts that would wait for each other, or part what waits from the
#: suspended slet behind it; a stream that has ended, and would begin again elsewhere; a busy machine; and a slet that
#: reads from a host that is away.
REFUSALS: Final = {
    **dict.fromkeys(("make two changes", "would both hand over"), "circular"),
    "would be lost": "suspended",
    **dict.fromkeys(("the stream has ended at", "would come behind the end"), "ended"),
    "no answer to": "late",
    **dict.fromkeys(("it is inside an item", "and cannot go on"), "away"),
}
#: A channel that is not parted from the slet behind it.
WINDOW: Final = ("windows", "spread")
#: The queue whose source ends early and its consumer, which is suspended at first, and what checks its output; and how
#: many numbers there are.
HELD: Final = ("held", "holds")
TELLS: Final = "tells"
FIRST: Final = 200
#: The nodes that check their input, and how many of the last numbers they may not have at the end.
CHECKS: Final = {
    **dict.fromkeys(("keyed", "keyed_sink", "buffer", "buffer_sink", "pulls", "pulls_sink"), 0),
    **dict.fromkeys(("log_sink", "columns", "fill", "gathers", "gathers_sink", "reads", "reads_sink"), 0),
    "columns_sink": ROWS - 1,
    "spread": LOT - 1,
    "windows_sink": LOT - 1,
}
SINKS: Final = [node for node in CHECKS if node.endswith("_sink")]


def measure(
    *,
    runs: Annotated[int, "how many applications"] = 100,
    changes: Annotated[int, "how many changes of each"] = 30,
    processes: Annotated[bool, "each platform in a process of its own"] = False,
    seed: Annotated[int, "of the random choices"] = 0,
    record: Annotated[Path | None, "a file of the cases that were run: a second call goes on behind them"] = None,
    only: Annotated[int | None, "run this one case"] = None,
) -> Iterator[Result]:
    """Count the moves, and the cases by how they ended; a failure prints the changes before it."""
    with ExitStack() as running:
        moves = Moves(started(running, processes=processes), changes)
        name = "moves/processes" if processes else "moves"
        yield from carry_out(name, moves.case, runs=runs, seed=seed, record=record, only=only)
        yield Result(f"{name}/changes", moves.made, "changes")
        yield Result(f"{name}/moved", moves.moved, "nodes and channels")
        for kind in dict.fromkeys(REFUSALS.values()):
            yield Result(f"{name}/refused/{kind}", moves.refused[kind], "changes")


def started(running: ExitStack, *, processes: bool) -> Platform:
    """Start the platforms, all of which are linked and have logs on disk; return the home of the applications."""
    state = Path(running.enter_context(TemporaryDirectory()))
    if not processes:
        listens = {name: {"listen": f"inproc:moves-{name}", "state": state / name} for name in HOSTS}
        here = [running.enter_context(platform(name, **options)) for name, options in listens.items()]
        for one, other in combinations(here, 2):
            one.remoting.connect(f"inproc:moves-{other.name}")
        return here[0]
    home = running.enter_context(platform(HOSTS[0], listen="tcp://127.0.0.1:0", state=state / HOSTS[0]))
    addresses = {home.name: home.address}
    for name in HOSTS[1:]:
        ours, theirs = multiprocessing.Pipe()
        options = {"peers": {**addresses}, "listen": "tcp://127.0.0.1:0", "state": state / name}
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, name, options))
        process.start()
        running.callback(process.join, PATIENCE)
        running.callback(ours.send, None)
        addresses[name] = ours.recv()
        if not home.remoting.wires[name].wait_until(connected=True, timeout=PATIENCE):
            raise RuntimeError(f"{name} is not linked")
    return home


@dataclass
class Moves:
    """Changes applications of which a platform is the home.

    Attributes:
        made, moved: The changes so far, and the nodes and channels that moved with them.
        refused: How many changes were refused, and left everything as it was, by kind.
    """

    home: Platform
    changes: int
    made: int = 0
    moved: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    _history: list[str] = field(default_factory=list)

    def case(self, chance: random.Random) -> str:
        """Change one application, and check it; an `AssertionError` says what is wrong, and what came before."""
        self._history.clear()
        self.home.apply(mesh := consumers(chance))
        try:
            self._flow(mesh.name, 10)
            for _ in range(self.changes):
                self._change(mesh.name, chance)
                self._flow(mesh.name, chance.choice((0, 1, 100)))
            self._end(mesh.name)
        except (AssertionError, ExopError) as problem:
            raise AssertionError("\n".join([str(problem), *self._history])) from problem
        finally:
            self.home.remove(mesh.name, timeout=PATIENCE)
        return "exact"

    def _change(self, name: str, chance: random.Random) -> None:
        """Make a random change, unless it is refused."""
        before = self.home.mesh(name)
        after, what, moves = changed(before, chance)
        self._history.append(f"{', '.join(what)}    from {placed(before)}")
        try:
            with away(self.home.deployment(name)) if chance.random() < 0.1 else nullcontext():
                self.home.apply(after)
        except PlanError as refused:
            kind = next((kind for words, kind in REFUSALS.items() if words in str(refused)), None)
            if kind is None:
                raise
            self._history[-1] = f"{kind}: {self._history[-1]}"
            self.refused[kind] += 1
            return
        self.made += 1
        self.moved += moves

    def _flow(self, name: str, more: int) -> None:
        """Wait until all ends of the streams have so many more numbers; all that have come so far follow each other."""
        wanted = {node: self._look(name, node) + more for node in SINKS} if more else {}
        for node, least in wanted.items():
            until(
                lambda: self._look(name, node) >= least,  # noqa: B023
                lambda: f"{node} stands still before {least}: {self._told(name)}",  # noqa: B023
            )

    def _look(self, name: str, node: str) -> int:
        """Return the last number of a node that checks."""
        seen: Any = self.home.memento(name, node)
        assert not seen.faults, f"{node}: {seen.faults}; {self._told(name)}"
        return int(seen.last)

    def _told(self, name: str) -> str:
        seen: dict[str, Any] = {node: self.home.memento(name, node) for node in CHECKS}
        faults = {node: one.faults for node, one in seen.items() if one.faults}
        last = {node: one.last for node, one in seen.items()}
        return f"the faults are {faults}, the last numbers {last}, on {placed(self.home.mesh(name))}"

    def _end(self, name: str) -> None:
        """End the application; all numbers have come."""
        if (mesh := self.home.mesh(name)).node(HELD[1]).suspended:
            self.home.apply(mesh.resume(HELD[1]))
        self.home.end(name)
        if not self.home.wait(name, PATIENCE):
            states = {
                host: {node: one["state"] for node, one in status["nodes"].items()}
                for host, status in self.home.status(name).get("hosts", {}).items()
            }
            raise AssertionError(f"it does not end: {states}; {self._told(name)}")
        position: Any = self.home.memento(name, "numbers")
        last = {node: self._look(name, node) for node in CHECKS}
        missing = {node: position.number - at for node, at in last.items() if position.number - at > CHECKS[node]}
        assert not missing, f"of {position.number} numbers, these lack the last ones: {missing}"
        given, told = self.home.memento(name, "first"), self.home.memento(name, TELLS)
        assert told == Ended(last=given.number, over=True), f"{TELLS} of {given}: {told}; {self._told(name)}"  # type: ignore[attr-defined]


def consumers(chance: random.Random) -> Mesh:
    """One source, whose queue has consumers of all kinds, with everything at home."""
    app = Application("moves")
    settings = {"mode": chance.choice(("async", "async", "sync")), "capacity": chance.choice((16, 256, 1024))}
    queue = app.channel("items", "queue", capacity=chance.choice((16, 256, 1024)), connector=settings)
    app.add("numbers", numbers, rate=chance.choice((0, 5000, 20_000)), out=queue)
    app.add("keyed_sink", sink, x=app.add("keyed", keyed, x=queue))
    app.add("buffer_sink", sink, x=app.add("buffer", Buffer, x=queue))
    app.add("pulls_sink", sink, x=app.add("pulls", pulls, x=queue))
    app.add("gathers_sink", sink, x=app.add("gathers", Gathers, x=queue))
    app.add("copies", copies, x=queue, out=(log := app.channel("log", "log", keep=100)))
    app.add("log_sink", sink, x=log)
    app.add("copies_too", copies_too, x=queue, out=(windows := app.channel("windows", "window", count=LOT)))
    app.add("windows_sink", sink, x=app.add("spread", spread, x=windows))
    app.add("columns_sink", sink_columns, x=app.add("columns", columns, x=queue))
    app.add("fill", fill, x=queue, out=(table := app.channel("table", "table", key="key")))
    app.add("reads_sink", sink, x=app.add("reads", Reads, x=queue, table=table))
    held = app.channel(HELD[0], "queue", capacity=chance.choice((4, 20, 300)), connector=settings)
    app.add("first", first, to=FIRST, out=held)
    app.add(TELLS, Tells, x=app.add(HELD[1], copies, x=held))
    return app.build().suspend(HELD[1])


def changed(mesh: Mesh, chance: random.Random) -> tuple[Mesh, list[str], int]:
    """Change a mesh at random; returns what was changed, and how many nodes and channels move."""
    what, moves = list[str](), 0
    places = [*mesh.nodes, *(name for name, channel in mesh.channels.items() if channel.kind != "direct")]
    for name in chance.sample(places, chance.randint(1, 3)):
        there = (mesh.nodes.get(name) or mesh.channels[name]).host or HOSTS[0]
        to = chance.choice([host for host in HOSTS if host != there])
        for one in WINDOW if name in WINDOW else (name,):
            if ((mesh.nodes.get(one) or mesh.channels[one]).host or HOSTS[0]) != to:
                mesh = mesh.move(one, to=to)
                what.append(f"{one}>{to}")
                moves += 1
    if chance.random() < 0.3:
        to = chance.choice(HOSTS)
        for one in HELD:
            if ((mesh.nodes.get(one) or mesh.channels[one]).host or HOSTS[0]) != to:
                mesh = mesh.move(one, to=to)
                what.append(f"{one}>{to}")
                moves += 1
    if chance.random() < 0.1:
        mesh = mesh.resume(HELD[1]) if mesh.node(HELD[1]).suspended else mesh.suspend(HELD[1])
        what.append(f"{'suspend' if mesh.node(HELD[1]).suspended else 'resume'} {HELD[1]}")
    if chance.random() < 0.3:
        name = chance.choice(TAGGED)
        mesh = mesh.configure(name, tag=chance.randrange(1 << 30))
        what.append(f"configure {name}")
    if chance.random() < 0.2:
        name = chance.choice([*ALIKE])
        mesh = mesh.replace(name, next(one for one in ALIKE[name] if mesh.node(name).slet.name != one.__name__))
        what.append(f"replace {name}")
    return mesh, what, moves


@contextmanager
def away(home: Any) -> Iterator[None]:
    """Within the block, what the slets of an application at its home read on other hosts cannot be reached."""

    def lost(peer: str, operation: str, **given: Any) -> Any:
        raise PeerUnreachable(address=peer, problem="it is away")

    readers = [one for one in home.channels.values() if isinstance(one, Reader)]
    calls = [one.call_peer for one in readers]
    for one in readers:
        one.call_peer = lost
    try:
        time.sleep(0.02)
        yield
    finally:
        for one, call in zip(readers, calls, strict=True):
            one.call_peer = call


def placed(mesh: Mesh) -> str:
    """Say what is on which host."""
    there: dict[str, Any] = {**mesh.channels, **mesh.nodes}
    hosts = {host: [name for name, one in there.items() if (one.host or HOSTS[0]) == host] for host in HOSTS}
    return "; ".join(f"{host}: {' '.join(names)}" for host, names in hosts.items())


def until(found: Callable[[], bool], problem: Callable[[], str]) -> None:
    """Wait until something is found."""
    end = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < end, problem()
        time.sleep(0.01)
