"""Replacing Spark slets while the stream runs: what was put out is not repeated, what was not is taken over."""

import threading
from collections.abc import Iterator
from dataclasses import field
from importlib.util import find_spec
from typing import Annotated, Any

import pyarrow as pa
import pytest
from exop_spark import EventTime, Input, aggregate, query
from exop_spark.slets.slet import SparkSlet

from exop import Application, Memento, Platform, Punctuation, slet
from exop.engine.following import Following
from exop.errors import ComponentFailed, MementoError
from exop.runtime.lifecycle import State
from exop.stock.slets import Aggregate

pytestmark = [pytest.mark.edges, pytest.mark.spark, pytest.mark.usefixtures("spark")]

ROWS = pa.schema([pa.field("time", pa.int32(), nullable=False), pa.field("value", pa.int32())])
WINDOWS = """
SELECT CAST(unix_seconds(window.end) AS INT) AS time, CAST(sum(value) AS INT) AS value
FROM rows GROUP BY window(event, '10 seconds')
"""
COUNTS = "SELECT value % 2 AS time, CAST(count(*) AS INT) AS value FROM rows GROUP BY value % 2"
Rows = Annotated[pa.RecordBatch, ROWS]


class World:
    """State shared by the test and its slets."""

    def __init__(self) -> None:
        self.limit = 0
        self.over = False
        self.seen: list[Any] = []
        self.news = threading.Condition()

    def wait_for(self, condition, timeout=240.0):
        """Wait until something has come."""
        with self.news:
            assert self.news.wait_for(condition, timeout), self.seen[-5:]


WORLD = World()


@pytest.fixture(autouse=True)
def world():
    """One for each test."""
    vars(WORLD).update(vars(World()))
    return WORLD


class Position(Memento):
    """How far the source has come."""

    time: int = 0


@slet
def seconds(position: Position) -> Iterator[Rows | Punctuation | None]:
    """Two rows a second, and after each second that it is complete."""
    while not (WORLD.over and position.time >= WORLD.limit):
        if position.time < WORLD.limit:
            position.time += 1
            times = pa.array([position.time] * 2, pa.int32())
            yield pa.RecordBatch.from_arrays([times, pa.array([position.time, 1], pa.int32())], schema=ROWS)
            yield Punctuation(position.time)
            threading.Event().wait(0.001)
        else:
            threading.Event().wait(0.002)
            yield None


class Noted(Memento):
    """Nothing; the world notes."""

    none: list[int] = field(default_factory=list)


@slet
def see(row: dict[str, int]) -> None:
    """Note what comes."""
    with WORLD.news:
        WORLD.seen.append((row["time"], row["value"]))
        WORLD.news.notify_all()


@slet
def native(rows: Rows) -> Rows:
    """Double, without Spark."""
    doubled = [2 * value for value in rows.column("value").to_pylist()]
    return pa.RecordBatch.from_arrays([rows.column("time"), pa.array(doubled, pa.int32())], schema=ROWS)


double = query("double", "SELECT time, value * 2 AS value FROM rows", inputs={"rows": ROWS}, out=ROWS, warm_up=0)
sums = query("sums", WINDOWS, inputs={"rows": Input(ROWS, EventTime("time"))}, out=ROWS, warm_up=0)


def app(kind: Any) -> Application:
    """A source, a query, a sink."""
    made = Application("a")
    made.add("see", see, row=made.add("query", kind, rows=made.add("seconds", seconds)))
    return made


def doubled(through: int) -> list[tuple[int, int]]:
    """Return the pairs that the query emits for the seconds 1 to *through*."""
    return [pair for time in range(1, through + 1) for pair in ((time, 2 * time), (time, 2))]


def summed(through: int) -> list[tuple[int, int]]:
    """The windows of so many seconds, all closed."""
    found: dict[int, int] = {}
    for time in range(1, through + 1):
        end = time // 10 * 10 + 10
        found[end] = found.get(end, 0) + time + 1
    return sorted(found.items())


def test_by_a_native_twin_and_back_while_the_stream_runs():
    """Every row once and in order: Spark, native, Spark again with another text, and with another setting."""
    WORLD.limit = 10**9
    other = "SELECT time, value + value AS value FROM rows"
    with Platform() as platform:
        mesh = platform.apply(app(double).build())
        changes = [
            lambda mesh: mesh.replace("query", native),
            lambda mesh: mesh.replace("query", double),
            lambda mesh: mesh.configure("query", query=other),
            lambda mesh: mesh.configure("query", trigger=0.05),
        ]
        for change in changes:
            before = len(WORLD.seen)
            WORLD.wait_for(lambda before=before: len(WORLD.seen) > before + 20)
            mesh = platform.apply(change(mesh))
        before = len(WORLD.seen)
        WORLD.wait_for(lambda: len(WORLD.seen) > before + 20)
        WORLD.limit = platform.deployment("a").components["seconds"].state.time
        WORLD.over = True
        assert platform.wait("a", 240)
    assert WORLD.seen == doubled(len(WORLD.seen) // 2)


@pytest.mark.usefixtures("unhurried")
def test_windows_go_on_in_a_query_with_another_setting_and_another_text(monkeypatch):
    """The successor has caught up beside the query, idle and under load, with a copy of its checkpoint; it is warm."""
    followed, warmed, take_over = [], [], Following.take_over
    monkeypatch.setattr(SparkSlet, "_warm_up", warmed.append)
    monkeypatch.setattr(Following, "take_over", lambda self: followed.append(take_over(self)) or followed[-1])
    WORLD.limit = 15
    later = WINDOWS.replace("SELECT", "SELECT /* the same */")
    with Platform() as platform:
        mesh = platform.apply(app(sums).build().configure("query", capacity=100))
        WORLD.wait_for(lambda: len(WORLD.seen) == 1)
        plan = platform.plan(mesh.configure("query", trigger=0.01))
        assert "sums is taken over by sums (tried on a copy as of micro-batch" in str(plan)
        mesh = plan.apply(timeout=240)
        WORLD.limit = 10**9
        WORLD.wait_for(lambda: len(WORLD.seen) > 3)
        mesh = platform.apply(mesh.configure("query", query=later, warm_up=1), timeout=240)
        WORLD.limit, WORLD.over = 0, True
        assert platform.wait("a", 240)
        through = platform.deployment("a").components["seconds"].state.time
    assert followed == [True, True]
    assert not warmed
    assert sorted(WORLD.seen) == summed(through)


def test_a_state_of_another_schema_is_refused_in_the_plan():
    """Spark compares the schemas on a copy of the live checkpoint; nothing stops, and nothing is left behind."""
    WORLD.limit = 15
    other = WINDOWS.replace("sum(value)", "avg(value)")
    with Platform() as platform:
        mesh = platform.apply(app(sums).build())
        WORLD.wait_for(lambda: len(WORLD.seen) == 1)
        slet = platform.deployment("a").components["query"].instance
        before = list(slet.engine.directory.parent.iterdir())
        with pytest.raises(MementoError, match="its engine keeps it"):
            platform.plan(mesh.replace("query", native))
        with pytest.raises(MementoError, match=r"STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"):
            platform.plan(mesh.configure("query", query=other))
        with pytest.raises(ComponentFailed, match=r"cannot go on with the state inside sums"):
            platform.apply(mesh.configure("query", query=other, dry_run=False))
        assert list(slet.engine.directory.parent.iterdir()) == before
        assert slet is platform.deployment("a").components["query"].instance
        WORLD.limit = 33
        WORLD.over = True
        assert platform.wait("a", 240)
    assert sorted(WORLD.seen) == summed(33)


def test_groups_without_event_time_are_not_lost():
    """Only the query that runs knows that it keeps state: a slet that cannot take it over is refused in the plan."""
    WORLD.limit = 10
    build = lambda rows: rows.sparkSession.sql(COUNTS)  # noqa: E731
    counts = query("counts", build, inputs={"rows": ROWS}, out=ROWS, mode="update", warm_up=0)
    with Platform() as platform:
        mesh = platform.apply(app(counts).build())
        WORLD.wait_for(lambda: sum(dict(WORLD.seen).values()) == 20)
        with pytest.raises(MementoError, match="its engine keeps it, and the platform cannot read it there"):
            platform.plan(mesh.replace("query", native))
        platform.plan(mesh.replace("query", native, lose_state=True))
        platform.apply(mesh.configure("query", trigger=0.01), timeout=240)
        WORLD.limit, WORLD.over = 25, True
        assert platform.wait("a", 240)
    assert dict(WORLD.seen) == {0: 12, 1: 38}


def test_windows_are_computed_again_from_the_log_where_the_state_does_not_cross():
    """To a query on Spark, from there to another engine, and to an aggregate with one value more; each window once."""
    columns = {"columns": "time int, value int"}
    settings = {**columns, "values": {"value": "sum(value)"}, "time": "time", "window": 10}
    other: tuple[Any, dict[str, Any]] = Aggregate, settings
    if find_spec("exop_duckdb") and find_spec("sqlglot"):
        from exop_duckdb import DuckDbSql

        query = {"query": WINDOWS, "dialect": "spark", "event_time": "time s"}
        other = DuckDbSql, {**columns, **query, "out_columns": "time int, value int"}
    made = Application("a")
    rows = made.add("seconds", seconds, out=made.channel("kept", kind="log", keep="all"))
    made.add("see", see, row=made.add("query", Aggregate, rows=rows, **settings))
    WORLD.limit = 15
    with Platform() as platform:
        mesh = platform.apply(made.build())
        more = {**settings, "values": {"value": "sum(value)", "most": "max(value)"}, "warm_up": 0}
        for (kind, own), limit in (((sums, {}), 33), (other, 47), ((aggregate, more), 56)):
            WORLD.wait_for(lambda: len(WORLD.seen) == WORLD.limit // 10)
            mesh = platform.apply(mesh.replace("query", kind, rebuild="log", **own), timeout=240)
            WORLD.limit = limit
        WORLD.over = True
        assert platform.wait("a", 240)
    assert sorted(WORLD.seen) == summed(56)


def test_what_a_failed_query_has_not_put_out_goes_to_its_successor():
    """It divides by zero at the fifth second; the twin takes the rows from there on."""
    WORLD.limit, WORLD.over = 8, True
    text = "SELECT time, value * (2 + 0 * (10 DIV (5 - time))) AS value FROM rows"
    with Platform() as platform:
        failing = query("failing", text, inputs={"rows": ROWS}, out=ROWS, warm_up=0, max_rows=2)
        mesh = platform.apply(app(failing).build())
        component = platform.deployment("a").components["query"]
        with platform.deployment("a").progress:
            assert platform.deployment("a").progress.wait_for(lambda: component.status is State.FAILED, 240)
        platform.apply(mesh.replace("query", native))
        assert platform.wait("a", 240)
    assert WORLD.seen == doubled(8)
