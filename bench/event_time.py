"""Event time: windows of streams that are out of order, changed and broken off, beside DuckDB's over the sorted whole.

A case is a random mesh: sources of different pace, a watermark behind each (or none, if its times rise), slets and
queues, and windows where they meet. While it runs it is changed, and the platform crashes and goes on from a
checkpoint. At the end each window holds what the same query finds in the table of all items, and the late items are
those that the rule names: older than the latest item before them, of the same source, by more than the delay.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from bench.cases import carry_out
from bench.harness import Result
from exop import Application, Batch, Memento, Platform, hookimpl, slet, stock
from exop.app import ChannelRef
from exop.hooks import Plugins
from exop.model.mesh import ChannelSpec, Mesh, Node
from exop.model.slet import spec_of
from exop.stock.watermark import Watermark

NAME = "timed"
PATIENCE = 60.0
#: How many items each source may have emitted by now.
ALLOWED: dict[str, int] = {}
#: Among these, it lets the sources end.
END = "end"


@dataclass(frozen=True)
class Reading:
    """An item: the source, its number there, and its time."""

    source: str
    number: int
    t: float


class Position(Memento):
    """The progress of a source."""

    number: int = 0


class Noted(Memento):
    """The items that a sink has received, piece by piece."""

    pieces: list[list[Reading]] = field(default_factory=list)


@slet
def readings(position: Position, *, name: str, times: list[float]) -> Iterator[Reading | None]:
    """Emit an item of each time, as many as are allowed by now."""
    while position.number < len(times) or END not in ALLOWED:
        if position.number < min(ALLOWED.get(name, 0), len(times)):
            position.number += 1
            yield Reading(name, position.number, times[position.number - 1])
        else:
            threading.Event().wait(0.0005)
            yield None


@slet
def batches(position: Position, *, name: str, times: list[float]) -> Iterator[Batch[Reading] | None]:
    """The same in batches."""
    while position.number < len(times) or END not in ALLOWED:
        first, end = position.number, min(ALLOWED.get(name, 0), position.number + 7, len(times))
        if first < end:
            position.number = end
            yield Batch(Reading(name, number + 1, times[number]) for number in range(first, end))
        else:
            threading.Event().wait(0.0005)
            yield None


@slet
def passing(item: Any) -> Any:
    """Pass on."""
    return item


@slet
def passing_too(item: Any) -> Any:
    """Pass on, by other code."""
    return item


class WatermarkToo(Watermark[Any], name="watermark_too"):
    """The same by other code."""


@slet
def note(item: list[Reading], noted: Noted) -> None:
    """Note a window."""
    noted.pieces.append([*item])


@slet
def note_too(item: list[Reading], noted: Noted) -> None:
    """Note a window, by other code."""
    noted.pieces.append([*item])


@slet
def note_late(item: Reading, noted: Noted) -> None:
    """Note a late item."""
    noted.pieces.append([item])


#: What each slet may be replaced by.
TWINS: dict[str, Any] = {"passing": passing_too, "passing_too": passing, "note": note_too, "note_too": note}
TWINS |= {"watermark": WatermarkToo, "watermark_too": Watermark}


class Offered:
    """The slets as a plugin, so that a platform finds them when it goes on."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [readings, batches, passing, passing_too, WatermarkToo, note, note_too, note_late]


class Case:
    """One random mesh, and what happens to it."""

    def __init__(self, chance: random.Random, root: Path) -> None:
        self.chance, self.root, self.lives = chance, root, 0
        self.sources: dict[str, list[float]] = {}
        self.delays: dict[str, float | None] = {}
        self.sizes: dict[str, tuple[int, int]] = {}
        self.resized = False
        self.trace: list[str] = []
        ALLOWED.clear()
        self.mesh = self._made()
        self.platform = self._opened()

    def _made(self) -> Mesh:
        chance, app = self.chance, Application(NAME)
        app.durable(every=1e6)
        size = chance.choice((4, 8, 10, 16))
        slide = chance.choice((size, size, size // 2, 3, size * 2))
        self.sizes = {"first": (size, slide)}
        if chance.random() < 0.4:
            self.sizes["second"] = (6, chance.choice((2, 6)))
        ports = {f"{name}.item": {"seconds": size, "slide": slide} for name, (size, slide) in self.sizes.items()}
        ports.pop("first.item")
        window = app.channel("w", kind="window", seconds=size, slide=slide, time="t", ports=ports)
        through = chance.random() < 0.4
        meet = app.channel("meet", kind=chance.choice(("direct", "queue", "log"))) if through else window
        for number in range(chance.randint(1, 3)):
            # Where streams have met without a watermark, no one can tell which is behind.
            self._add_source(app, f"s{number}", meet, chance.choice((0, 2, 5, 5, 12, 5 if through else None)))
        if through:
            app.add("met", passing, item=meet, out=window)
        for name in self.sizes:
            app.add(name, note, item=window)
        return app.build()

    def _add_source(self, app: Application, name: str, out: ChannelRef, delay: int | None) -> None:
        chance = self.chance
        times, now = [], chance.choice((0, 0, 30, -20))
        for _ in range(chance.choice((0, 20, 60, 120))):
            now += chance.choice((0, 0, 1, 1, 2, 5))
            back = 0 if delay is None else chance.randint(0, delay) if chance.random() < 0.9 else chance.randint(0, 30)
            times.append(float(now - back) + (0.5 if delay is not None and chance.random() < 0.1 else 0))
        self.sources[name], self.delays[name] = times, delay
        last: ChannelRef = app.add(name, chance.choice((readings, batches)), name=name, times=times)
        last = self._passed(app, f"{name}-before", last)
        if delay is None:
            app.add(f"{name}-into", passing, item=last, out=out)
            return
        timed = f"{name}-timed"
        onward = chance.random() < 0.5
        given: dict[str, Any] = {} if onward else {"out": out}
        last = app.add(timed, "stock:watermark", item=last, time="t", delay=delay, **given)
        if onward:
            app.add(f"{name}-into", passing, item=self._passed(app, f"{name}-behind", last), out=out)
        if chance.random() < 0.8:
            app.add(f"{name}-late", note_late, item=app.output(timed, "late"))

    def _passed(self, app: Application, name: str, item: ChannelRef) -> ChannelRef:
        if self.chance.random() < 0.5:
            return item
        queued = self.chance.random() < 0.5
        into: dict[str, Any] = {"out": app.channel(f"{name}-queue", kind="queue", capacity=3)} if queued else {}
        return app.add(name, passing, item=item, **into)

    def _opened(self) -> Platform:
        plugins = Plugins()
        plugins.register("stock", stock)
        plugins.register("timed", Offered())
        return Platform(state=self.root / f"life{self.lives}", plugins=plugins, control=False).start()

    def run(self) -> str:
        """Run it to its end; return what has happened to it."""
        try:
            self.platform.apply(self.mesh)
            for step in self.chance.choices(("go", "change", "checkpoint", "crash"), (3, 2, 1, 1), k=14):
                getattr(self, f"_{step}")()
            mesh = self.platform.mesh(NAME)
            for node in [name for name, one in mesh.nodes.items() if one.suspended]:
                mesh = mesh.resume(node)
            self.platform.apply(mesh)
            self._end()
            assert self.platform.wait(NAME, PATIENCE), f"not finished: {self.trace}"
            found = self._wrong()
            assert not found, "\n".join([*found, *self.trace])
        finally:
            self._end()
            self.platform.close()
        return "crashed" if self.lives else "changed" if len(self.trace) else "ran"

    def _go(self) -> None:
        """Let some of the sources go on, at different paces."""
        for name in self.sources:
            ALLOWED[name] = ALLOWED.get(name, 0) + self.chance.choice((0, 0, 3, 10, 40))

    def _end(self) -> None:
        """Let all sources go on to their ends."""
        ALLOWED.update({name: len(times) for name, times in self.sources.items()} | {END: 1})

    def _checkpoint(self) -> None:
        self.trace.append("checkpoint")
        self.platform.checkpoint(NAME)

    def _crash(self) -> None:
        """Go on from what is on the disk now, and nothing else."""
        self.trace.append("crash")
        with self.platform.deployment(NAME).changing:
            before, self.lives = self.root / f"life{self.lives}", self.lives + 1
            shutil.copytree(before, self.root / f"life{self.lives}")
        self.platform.close()
        self.platform = self._opened()
        assert not self.platform.failed_to_restart, self.platform.failed_to_restart

    def _change(self) -> None:
        mesh, kind = self.platform.mesh(NAME), self.chance.choice(("replace", "suspend", "resume", "insert", "resize"))
        node = self.chance.choice(sorted(mesh.nodes))
        self.trace.append(f"{kind} {node}")
        if kind == "replace" and mesh.nodes[node].slet.name in TWINS:
            mesh = mesh.replace(node, spec_of(TWINS[mesh.nodes[node].slet.name]))
        elif kind == "suspend":
            mesh = mesh.suspend(node)
        elif kind == "resume":
            for name in [name for name, one in mesh.nodes.items() if one.suspended]:
                mesh = mesh.resume(name)
        elif kind == "insert" and "item" in mesh.nodes[node].ports and mesh.nodes[node].ports["item"] != "w":
            name = f"more{len(mesh.nodes)}"
            queue = ChannelSpec(name, "queue", {"capacity": 2}) if self.chance.random() < 0.5 else ChannelSpec(name)
            inserted = Node(name, spec_of(passing), {}, {"item": mesh.nodes[node].ports["item"], "out": name})
            mesh = mesh.add(inserted, queue).rewire(node, item=name)
        elif kind == "resize" and all(size == slide for size, slide in self.sizes.values()):
            self.resized = True
            mesh = mesh.configure("w", seconds=(size := self.chance.choice((3, 5, 8, 20))), slide=size)
        self.platform.apply(mesh)

    def _wrong(self) -> list[str]:
        """Compare the windows and the late items with those that DuckDB finds in the table of all items."""
        components = self.platform.deployment(NAME).components
        windows, late = _expected(self.sources, self.delays, self.sizes)
        found = []
        for sink, expected in windows.items():
            state: Any = components[sink].state
            pieces = [[(one.source, one.number) for one in piece] for piece in state.pieces]
            if not self.resized and [sorted(piece) for piece in pieces] != expected:
                found.append(f"{sink} has {pieces}\ninstead of {expected}")
            if self.resized and sorted(chain(*pieces)) != sorted(chain(*expected)):
                found.append(f"{sink}, resized, has {pieces}\ninstead of, together, {expected}")
            for piece in pieces:
                for source in self.sources:
                    numbers = [number for name, number in piece if name == source]
                    if numbers != sorted(numbers):
                        found.append(f"{sink} has items of {source} out of order: {numbers}")
        for source in self.sources:
            if f"{source}-late" in components:
                state = components[f"{source}-late"].state
                numbers = [one.number for (one,) in state.pieces]
                if numbers != late.get(source, []):
                    found.append(f"of {source} were late {numbers}\ninstead of {late.get(source, [])}")
        if (dropped := self.platform.deployment(NAME).channels["w"].metrics()["late"]) != 0:
            found.append(f"{dropped} items were late at the window, which none is that a watermark lets pass")
        return found


def _expected(
    sources: dict[str, list[float]], delays: dict[str, float | None], sizes: dict[str, tuple[int, int]]
) -> tuple[dict[str, list[list[tuple[str, int]]]], dict[str, list[int]]]:
    """Return the content of the windows of each sink, in order, and the numbers of the late items of each source."""
    # Imported lazily: only this question needs it.
    import duckdb

    with duckdb.connect() as database:
        database.execute("CREATE TABLE items (source TEXT, number INT, t DOUBLE, delay DOUBLE)")
        rows = [(name, at + 1, t, delays[name] or 0.0) for name, times in sources.items() for at, t in enumerate(times)]
        if rows:
            database.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
        database.execute("""
            CREATE TABLE judged AS SELECT *, coalesce(t < max(t) OVER (
                PARTITION BY source ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) - delay, false) AS late FROM items""")
        late: dict[str, list[int]] = {}
        for name, number in database.execute("SELECT source, number FROM judged WHERE late ORDER BY ALL").fetchall():
            late.setdefault(name, []).append(number)
        windows = {}
        for sink, (size, slide) in sizes.items():
            query = """
                SELECT list((source, number) ORDER BY source, number) FROM judged, range(-200, 2000) AS span(k)
                WHERE NOT late AND t >= k * $slide AND t < k * $slide + $size GROUP BY k ORDER BY k"""
            found = database.execute(query, {"slide": slide, "size": size}).fetchall()
            windows[sink] = [[tuple(one) for one in piece] for (piece,) in found]
    return windows, late


def timed_case(chance: random.Random) -> str:
    """Run one case."""
    with ExitStack() as ends:
        root = Path(tempfile.mkdtemp(prefix="exop-event-time-"))
        ends.callback(shutil.rmtree, root, ignore_errors=True)
        return Case(chance, root).run()


def measure(
    *,
    runs: Annotated[int, "how many cases"] = 300,
    seed: Annotated[int, "of the random cases"] = 0,
    record: Annotated[Path | None, "a file of what has run: another call goes on there"] = None,
    only: Annotated[int | None, "run this case alone"] = None,
) -> Iterator[Result]:
    """Windows and late items of random meshes that are changed and broken off, beside those that DuckDB finds."""
    yield from carry_out("event-time", timed_case, runs=runs, seed=seed, record=record, only=only)
