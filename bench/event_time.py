"""Event time: windows of streams that are out of order, changed and broken off, beside DuckDB's over the sorted whole.

A case is a random mesh: sources of different pace, of items, lists or record batches, a watermark behind each (or none,
if its times rise), slets and queues, and windows where they meet. While it runs it is changed (the delays of
watermarks, too, at an item), and the platform crashes and goes on from a checkpoint. At the end each window holds what
the same query finds in the table of all items, and the late items are those that the rule names: older than the latest
item before them, of the same source, by more than the delay.

In some cases streams are passed over while they are idle. What is late at the windows depends on the pace there, so
each window then holds a part of what the query finds, and all that is missing is counted.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import pyarrow as pa

from bench.cases import carry_out, state_at_rest
from bench.harness import Result
from exop import Application, Batch, Memento, Platform, hookimpl, slet, stock
from exop.app import ChannelRef
from exop.errors import PlanError
from exop.hooks import Plugins
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
from exop.model.slets.slet import spec_of
from exop.runtime.channels import base as channel
from exop.stock.event_time import Watermark

NAME = "timed"
PATIENCE = 60.0
#: How many items each source may have emitted by now.
ALLOWED: dict[str, int] = {}
#: The allowance of streams that may be idle, by the clock of the case.
IDLE = 10.0
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
def record_batches(position: Position, *, name: str, times: list[float]) -> Iterator[pa.RecordBatch | None]:
    """The same in record batches."""
    while position.number < len(times) or END not in ALLOWED:
        first, end = position.number, min(ALLOWED.get(name, 0), position.number + 7, len(times))
        if first < end:
            position.number = end
            numbers = [*range(first + 1, end + 1)]
            yield pa.record_batch({"source": [name] * len(numbers), "number": numbers, "t": times[first:end]})
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


def _read(items: list[Any]) -> list[Reading]:
    """Return the readings; the rows of record batches are dictionaries."""
    return [one if isinstance(one, Reading) else Reading(**one) for one in items]


@slet
def note(item: list[Any], noted: Noted) -> None:
    """Note a window."""
    noted.pieces.append(_read(item))


@slet
def note_too(item: list[Any], noted: Noted) -> None:
    """Note a window, by other code."""
    noted.pieces.append(_read(item))


@slet
def note_late(item: Any, noted: Noted) -> None:
    """Note a late item."""
    noted.pieces.append(_read([item]))


#: What each slet may be replaced by.
TWINS: dict[str, Any] = {"passing": passing_too, "passing_too": passing, "note": note_too, "note_too": note}
TWINS |= {"watermark": WatermarkToo, "watermark_too": Watermark}


class Offered:
    """The slets as a plugin, so that a platform finds them when it goes on."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [readings, batches, record_batches, passing, passing_too, WatermarkToo, note, note_too, note_late]


class Case:
    """One random mesh, and what happens to it."""

    def __init__(self, chance: random.Random, root: Path) -> None:
        self.chance, self.root, self.lives = chance, root, 0
        self.sources: dict[str, list[float]] = {}
        self.delays: dict[str, float | None] = {}
        self.sizes: dict[str, tuple[int, int]] = {}
        self.lines: dict[str, list[tuple[int, int]]] = {}
        self.resized, self.now, self.idle = False, 0.0, None if chance.random() < 0.7 else IDLE
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
        if size != slide:
            self.idle = None
        elif chance.random() < 0.4 and self.idle is None:
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
        kind = chance.choice((readings, batches, record_batches))
        last: ChannelRef = app.add(name, kind, name=name, times=times)
        last = last if kind is record_batches else self._passed(app, f"{name}-before", last)
        if delay is None:
            app.add(f"{name}-into", passing, item=last, out=out)
            return
        timed = f"{name}-timed"
        onward = chance.random() < 0.5
        given: dict[str, Any] = {} if onward else {"out": out}
        last = app.add(timed, "stock:watermark", item=last, time="t", delay=delay, idle=self.idle, **given)
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
            for step in self.chance.choices(("go", "change", "checkpoint", "crash", "wait"), (3, 2, 1, 1, 1), k=14):
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

    def _wait(self) -> None:
        """Let so much time pass that streams which are silent now are passed over."""
        if self.idle is not None:
            self.trace.append("wait")
            self.now += 2 * self.idle

    def _end(self) -> None:
        """Let all sources go on to their ends."""
        ALLOWED.update({name: len(times) for name, times in self.sources.items()} | {END: 1})

    def _checkpoint(self) -> None:
        self.trace.append("checkpoint")
        self.platform.checkpoint(NAME)

    def _crash(self) -> None:
        """Go on from what is on the disk now, and nothing else."""
        self.trace.append("crash")
        with state_at_rest(self.platform):
            before, self.lives = self.root / f"life{self.lives}", self.lives + 1
            shutil.copytree(before, self.root / f"life{self.lives}")
        self.platform.close()
        self.platform = self._opened()
        assert not self.platform.failed_to_restart, self.platform.failed_to_restart

    def _change(self) -> None:
        mesh, kind = (
            self.platform.mesh(NAME),
            self.chance.choice(("replace", "suspend", "resume", "insert", "resize", "delay")),
        )
        node, lines, resized = self.chance.choice(sorted(mesh.nodes)), dict(self.lines), self.resized
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
        elif kind == "delay" and node.endswith("-timed"):
            mesh = self._delayed(mesh, node)
        elif kind == "resize" and all(size == slide for size, slide in self.sizes.values()):
            self.resized = True
            mesh = mesh.configure("w", seconds=(size := self.chance.choice((3, 5, 8, 20))), slide=size)
        try:
            self.platform.apply(mesh)
        except PlanError as refused:
            if "repair or resume that first" not in str(refused):
                raise
            self.lines, self.resized = lines, resized
            self.trace.append("refused")

    def _delayed(self, mesh: Mesh, node: str) -> Mesh:
        """Give a watermark another delay from an item on that has not come yet."""
        source = node.removesuffix("-timed")
        lines = self.lines.get(source, [])
        start = max([ALLOWED.get(source, 0), *(number for number, _ in lines)]) + self.chance.randint(1, 9)
        self.lines[source] = [*lines, (start, delay := self.chance.choice((0, 1, 3, 9)))]
        return mesh.configure(node, when=f"item.number >= {start}", delay=delay)

    def _delay(self, source: str, number: int) -> float:
        """Return the delay of a watermark when an item comes."""
        given = [delay for start, delay in self.lines.get(source, ()) if start <= number]
        return given[-1] if given else self.delays[source] or 0.0

    def _wrong(self) -> list[str]:
        """Compare the windows and the late items with those that DuckDB finds in the table of all items."""
        components = self.platform.deployment(NAME).components
        windows, late = _expected(self.sources, self._delay, self.sizes)
        dropped, found = self.platform.deployment(NAME).channels["w"].metrics()["late"], list[str]()
        for sink, expected in windows.items():
            state: Any = components[sink].state
            pieces = [[(one.source, one.number) for one in piece] for piece in state.pieces]
            if self.now:
                found += _not_parts(sink, pieces, expected, dropped, whole=self.resized)
            elif not self.resized and [sorted(piece) for piece in pieces] != expected:
                found.append(f"{sink} has {pieces}\ninstead of {expected}")
            elif self.resized and sorted(chain(*pieces)) != sorted(chain(*expected)):
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
        if dropped and not self.now:
            found.append(f"{dropped} items were late at the window, which none is that a watermark lets pass")
        return found


def _not_parts(sink: str, pieces: list[Any], expected: list[Any], dropped: Any, *, whole: bool) -> list[str]:
    """Return what is wrong if each piece should be a part of a window of its own, or of all, and the rest was late."""
    found, there = [], [one for piece in pieces for one in piece]
    windows = {one: 0 if whole else number for number, window in enumerate(expected) for one in window}
    parts = [{windows.get(one, -1) for one in piece} for piece in pieces]
    if len(set(there)) != len(there) or any(len(part) != 1 or -1 in part for part in parts):
        found.append(f"{sink} has {pieces}\ninstead of parts of {expected}")
    if not whole and len({number for part in parts for number in part}) != len(pieces):
        found.append(f"{sink} has a window twice: {pieces}")
    if len(there) + dropped != len(windows):
        found.append(f"{sink} has {len(there)} items, and {dropped} were late, of {len(windows)}")
    return found


def _expected(
    sources: dict[str, list[float]], delay: Callable[[str, int], float], sizes: dict[str, tuple[int, int]]
) -> tuple[dict[str, list[list[tuple[str, int]]]], dict[str, list[int]]]:
    """Return the content of the windows of each sink, in order, and the numbers of the late items of each source."""
    # Imported lazily: only this question needs it.
    import duckdb

    with duckdb.connect() as database:
        database.execute("CREATE TABLE items (source TEXT, number INT, t DOUBLE, delay DOUBLE)")
        rows = [(name, at, t, delay(name, at)) for name, times in sources.items() for at, t in enumerate(times, 1)]
        if rows:
            database.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
        database.execute("""
            CREATE TABLE judged AS SELECT *, coalesce(t < max(t - delay) OVER (
                PARTITION BY source ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), false) AS late FROM items""")
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
        case = Case(chance, root)
        ends.enter_context(mock.patch.object(channel, "clock", partial(getattr, case, "now")))
        return case.run()


def measure(
    *,
    runs: Annotated[int, "how many cases"] = 300,
    seed: Annotated[int, "of the random cases"] = 0,
    record: Annotated[Path | None, "a file of what has run: another call goes on there"] = None,
    only: Annotated[int | None, "run this case alone"] = None,
) -> Iterator[Result]:
    """Windows and late items of random meshes that are changed and broken off, beside those that DuckDB finds."""
    yield from carry_out("event-time", timed_case, runs=runs, seed=seed, record=record, only=only)
