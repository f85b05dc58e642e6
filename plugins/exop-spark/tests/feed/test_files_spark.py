"""Adjacent queries: the second one's tasks read the files of the first one's; other slets get the rows."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from exop_spark import EventTime, Input, query

from exop import Application, Memento, Platform, Punctuation, hookimpl, slet
from exop.hooks import Plugins
from tests.rig import eventually

ROWS = pa.schema([("time", pa.int64()), ("key", pa.int64())])
OUT = pa.schema([("until", pa.int64()), ("key", pa.int64()), ("n", pa.int64())])
Rows = Annotated[pa.RecordBatch, ROWS]
COUNTS = """
    SELECT unix_seconds(window.end) AS until, key, count(*) AS n FROM rows GROUP BY window(event, '10 seconds'), key
"""
fast = query("fast", "SELECT * FROM rows WHERE key <> 3", inputs={"rows": ROWS}, out=ROWS, warm_up=0)
counts = query("counts", COUNTS, inputs={"rows": Input(ROWS, EventTime("time"))}, out=OUT, warm_up=0)


class World:
    """The number of windows that the source sends, until it is over."""

    limit = 0
    over = False


class Position(Memento):
    """The windows that the source has sent."""

    windows: int = 0


class Noted(Memento):
    """The rows that have come."""

    found: list[tuple[int, ...]] = field(default_factory=list)


@slet
def readings(position: Position) -> Iterator[Rows | Punctuation | None]:
    """Windows of 70 rows, each followed by a punctuation."""
    while not (World.over and position.windows == World.limit):
        if position.windows < World.limit:
            begin = 10 * position.windows
            position.windows += 1
            times, keys = [begin + n // 7 for n in range(70)], [n % 7 for n in range(70)]
            yield pa.RecordBatch.from_pydict({"time": times, "key": keys}, schema=ROWS)
            yield Punctuation(begin + 9)
        else:
            threading.Event().wait(0.002)
            yield None


@slet(effects=False)
def note(item: dict[str, int], noted: Noted) -> None:
    """Note a row."""
    noted.found.append(tuple(item.values()))


@contextmanager
def platform_at(state: Path) -> Iterator[Platform]:
    """A platform that knows the slets."""

    class Offered:
        @hookimpl
        def register_slets(self) -> list[Any]:
            return [readings, fast, counts, note]

    plugins = Plugins()
    plugins.register("files", Offered())
    with Platform(state=state, control=False, plugins=plugins) as platform:
        yield platform


def at_rest(slet: Any, stage: Path) -> bool:
    """Whether Spark has committed all that has been sent to a staged query."""
    begun, over = (
        {one.name for one in (slet.engine.directory / name).glob("[0-9]*")} for name in ("offsets", "commits")
    )
    arrived = slet.feeds["rows"].rows == 70 * World.limit and not slet.feeds["rows"].lag
    return arrived and begun <= over and not [*stage.rglob("*.pending")]


@pytest.mark.edges
def test_rows_between_two_queries_stay_in_files_and_each_counts_once_after_a_kill(spark, tmp_path):
    """The second query has sent a batch that Spark has not committed; it is replaced after the restart."""
    World.limit, World.over = 2, False
    stage, state, kept = tmp_path / "stage", tmp_path / "state", tmp_path / "kept"
    app = Application("files")
    app.durable(every=3600)
    rows = app.add("fast", fast, rows=app.add("readings", readings), stage=f"file://{stage}")
    app.add("note", note, item=app.add("counts", counts, rows=rows, max_rows=40))
    app.add("look", note, item=rows)
    with platform_at(state) as platform:
        platform.apply(app.build())
        parts = platform.deployment("files").components
        eventually(lambda: len(parts["note"].state.found) == 12, seconds=240)
        platform.checkpoint("files")
        figures = parts["counts"].instance.metrics()  # the files, and marks of the watermark: one, or one each
        assert sum(count for name, count in figures.items() if name.startswith("rows read by")) - 120 in (1, 2)
        first, tie, copied = parts["fast"].instance, parts["counts"].instance.tie, threading.Event()
        put_out = tie.put_out

        def killed(*given: Any) -> bool:
            sent = put_out(*given)
            if not copied.is_set():
                eventually(lambda: at_rest(first, stage), seconds=240)
                for folder in (state, stage):
                    shutil.copytree(folder, kept / folder.name, ignore=shutil.ignore_patterns("lock"))
                copied.set()
            return sent

        tie.put_out = killed
        World.limit = 4
        eventually(copied.is_set, seconds=240)
    shutil.rmtree(stage)
    shutil.move(kept / "stage", stage)
    with platform_at(kept / "state") as platform:
        assert not platform.failed_to_restart
        platform.apply(platform.mesh("files").configure("counts", trigger=0.01), timeout=240)
        World.limit = 5
        parts = platform.deployment("files").components
        eventually(lambda: len(parts["note"].state.found) == 30, seconds=240)
        World.over = True
        assert platform.wait("files", 240)
        counted, looked = (sorted(parts[name].state.found) for name in ("note", "look"))
    keys = (0, 1, 2, 4, 5, 6)
    assert counted == [(until, key, 10) for until in range(10, 51, 10) for key in keys]
    assert looked == [(time, key) for time in range(50) for key in keys]
