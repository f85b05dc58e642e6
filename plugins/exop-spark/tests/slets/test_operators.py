"""Single operators as slets: adjacent ones are one query, until another slet takes the place of one of them."""

import threading
from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import pytest
from exop_spark import Filter, GroupBy, Pipeline, Project

from exop import Application, Memento, Platform, Punctuation, Slet, input_port, slet
from exop.errors import MeshError, UnknownName
from tests.rig import eventually

ROWS = pa.schema([("time", pa.int32()), ("value", pa.int32())])
Rows = Annotated[pa.RecordBatch, ROWS]
VALID = Filter("valid", "value >= 0")
TWICE = Project("twice", "time, value * 2 AS value", "time int, value int")
SUMS = GroupBy(
    "sums",
    "CAST(unix_seconds(window.end) AS INT) AS time, CAST(sum(value) AS INT) AS value",
    "window(event, '10 seconds')",
    "time int, value int",
)
LARGE = Filter("large", "value > 100")
PIPELINE = Pipeline([VALID, TWICE, SUMS, LARGE], "time int, value int", "time s", {"warm_up": 0})
SEEN: list[tuple[int, int]] = []
LIMIT = [0]
OVER = threading.Event()


class Position(Memento):
    """How far the source has come."""

    time: int = 0


@slet
def seconds(position: Position) -> Iterator[Rows | Punctuation | None]:
    """Two rows a second, one of which is not valid, and after them that the second is complete."""
    while not (OVER.is_set() and position.time >= LIMIT[0]):
        if position.time < LIMIT[0]:
            position.time += 1
            arrays = [pa.array(one, pa.int32()) for one in ([position.time] * 2, [position.time, -1])]
            yield pa.RecordBatch.from_arrays(arrays, schema=ROWS)
            yield Punctuation(position.time)
        else:
            OVER.wait(0.002)
            yield None


@slet
def twice_here(rows: Rows) -> Rows:
    """Double, without Spark."""
    doubled = pa.array([2 * value for value in rows.column("value").to_pylist()], pa.int32())
    return pa.RecordBatch.from_arrays([rows.column("time"), doubled], schema=ROWS)


@slet
def see(row: dict[str, int]) -> None:
    """Note what comes."""
    SEEN.append((row["time"], row["value"]))


class Join(Slet, name="join"):
    """Have two inputs."""

    @input_port
    def left(self, left: Rows) -> Rows:
        """One."""
        return left

    @input_port
    def right(self, right: Rows) -> Rows:
        """The other."""
        return right


def app(pipeline: Pipeline) -> Application:
    """A source, the pipeline, a sink."""
    made = Application("a")
    made.add("see", see, row=pipeline.add(made, made.add("seconds", seconds)))
    return made


def queries(pipeline: Pipeline) -> dict[str, str]:
    """The query of each node on Spark."""
    nodes = app(pipeline).build().nodes
    return {name: node.settings["query"] for name, node in nodes.items() if "query" in node.settings}


def test_adjacent_operators_are_one_query():
    """Its name is that of the operator that keeps state; the event time goes along up to there."""
    assert queries(PIPELINE) == {
        "sums": (
            f"SELECT `time`, `value` FROM (SELECT {SUMS.expressions} FROM (SELECT time, value * 2 AS value, event FROM "
            f"(SELECT `time`, `value`, event FROM to_valid WHERE value >= 0)) GROUP BY {SUMS.by}) WHERE value > 100"
        )
    }


def test_another_slet_splits_them():
    """The operators upstream are a query without event time; those downstream begin with a port of their own."""
    split = PIPELINE.replaced("twice", twice_here)
    assert split.nodes() == ["valid", "twice", "sums"]
    found = queries(split)
    assert found["valid"] == "SELECT `time`, `value` FROM to_valid WHERE value >= 0"
    assert "FROM to_sums GROUP BY" in found["sums"]
    assert app(split).build().node("valid").settings["event_time"] == ""
    assert split.replaced("twice", TWICE) == PIPELINE


def test_two_aggregates_are_two_queries():
    """Each keeps its state under its own name."""
    again = GroupBy("hours", "max(time) AS time", "window(event, '1 hour')", "time int")
    assert Pipeline([SUMS, VALID, again], "time int, value int", "time s").nodes() == ["sums", "hours"]


def test_what_cannot_be_replaced_is_told():
    """A name that is not there, and a slet with two inputs."""
    with pytest.raises(UnknownName, match=r"'half'.*valid"):
        PIPELINE.replaced("half", twice_here)
    with pytest.raises(MeshError, match=r"twice: join has the inputs \['left', 'right'\]"):
        app(PIPELINE.replaced("twice", Join))


@pytest.mark.edges
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_an_operator_is_replaced_while_the_windows_are_open():
    """The query is split; the state of the aggregate goes along, and every row counts once."""
    SEEN.clear()
    OVER.clear()
    with Platform() as platform:
        for pipeline, limit in ((PIPELINE, 25), (PIPELINE.replaced("twice", twice_here), 47)):
            mesh = app(pipeline).build()
            running = platform.applications()
            platform.apply(mesh.at(platform.mesh("a").revision) if running else mesh, timeout=240)
            assert [name for name in pipeline.nodes() if name not in platform.deployment("a").components] == []
            LIMIT[0] = limit
            eventually(lambda: len(SEEN) == LIMIT[0] // 10 - 1, seconds=240)  # that of the first seconds is too small
        OVER.set()
        assert platform.wait("a", 240)
    wanted: dict[int, int] = {}
    for time in range(1, LIMIT[0] + 1):
        wanted[time // 10 * 10 + 10] = wanted.get(time // 10 * 10 + 10, 0) + 2 * time
    assert sorted(SEEN) == [(time, value) for time, value in sorted(wanted.items()) if value > 100]
