"""A query moves to another platform: its memento is Spark's checkpoint with the offsets, and travels."""

import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pytest
from exop_spark import aggregate
from exop_spark.errors import SparkError
from exop_spark.storage.carried import packed, unpack

from exop import Application, Memento, Platform, Punctuation, slet
from tests.rig import eventually

PEER = Path(__file__).with_name("moving_peer.py")
MOVING = runpy.run_path(str(PEER))
ROWS, sums = MOVING["ROWS"], MOVING["sums"]
#: The same windows by the query and by the aggregate.
KINDS = {
    "query": (sums, {}),
    "aggregate": (
        aggregate,
        {"columns": "time int, value int", "values": {"value": "sum(value)"}, "time": "time", "window": 10},
    ),
}
#: A real second process has a Java process of its own: ten seconds to start, and minutes on a busy machine.
ANOTHER = pytest.param("another process", marks=pytest.mark.timeout(0))
PLACES = ["the same process", *([ANOTHER] if os.environ.get("EXOP_CLUSTER") else [])]
#: Seconds that a step of it may take.
PATIENCE = 600
SEEN: list[tuple[int, int]] = []
LIMIT = [0]
OVER = threading.Event()


class Position(Memento):
    """How far the source has come."""

    time: int = 0


@slet
def seconds(position: Position) -> Iterator[Annotated[pa.RecordBatch, ROWS] | Punctuation | None]:
    """A row a second, and after it that the second is complete."""
    while not (OVER.is_set() and position.time >= LIMIT[0]):
        if position.time < LIMIT[0]:
            position.time += 1
            arrays = [pa.array([position.time], pa.int32())] * 2
            yield pa.RecordBatch.from_arrays(arrays, schema=ROWS)
            yield Punctuation(position.time)
        else:
            OVER.wait(0.002)
            yield None


@slet
def see(row: dict[str, int]) -> None:
    """Note what comes."""
    SEEN.append((row["time"], row["value"]))


@contextmanager
def platforms(where: str, state: Path) -> Iterator[Platform]:
    """The platform `a`, which is linked with `b`; both are durable in one process."""
    with ExitStack() as running:
        if where == "another process":
            a = running.enter_context(MOVING["platform"]("a", seconds, see, listen="tcp://127.0.0.1:0"))
            peer = subprocess.Popen([sys.executable, PEER, a.address], stdin=subprocess.PIPE)
            running.callback(peer.wait, PATIENCE)
            running.callback(peer.stdin.close)
            assert a.remoting.wires["b"].wait_until(connected=True, timeout=PATIENCE)
        else:
            running.enter_context(MOVING["platform"]("b", listen="inproc:b", state=state / "b"))
            a = running.enter_context(MOVING["platform"]("a", seconds, see, listen="inproc:a", state=state / "a"))
            a.remoting.connect("inproc:b")
        yield a


@pytest.mark.edges
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", PLACES)
def test_open_windows_go_with_a_query_to_another_platform(where: str, kind: str, tmp_path: Path):
    """Every row counts once, in the window that it is of, wherever the query was meanwhile."""
    SEEN.clear()
    OVER.clear()
    app = Application("a")
    if where != "another process":
        app.durable(every=0.2)
    slet, settings = KINDS[kind]
    warm_up = int(where == "another process")
    app.add("see", see, row=app.add("query", slet, rows=app.add("seconds", seconds), warm_up=warm_up, **settings))
    with platforms(where, tmp_path) as a:
        LIMIT[0] = 15
        mesh = a.apply(app.build())
        for host, limit in (("b", 34), (None, 56))[: 1 + (where == "another process")]:
            eventually(lambda: len(SEEN) == LIMIT[0] // 10, seconds=PATIENCE)
            mesh = a.apply(mesh.move("query", to=host), timeout=PATIENCE)
            LIMIT[0] = limit
        OVER.set()
        assert a.wait("a", PATIENCE)
    wanted: dict[int, int] = {}
    for time in range(1, LIMIT[0] + 1):
        wanted[time // 10 * 10 + 10] = wanted.get(time // 10 * 10 + 10, 0) + time
    assert sorted(SEEN) == sorted(wanted.items())


def test_an_archive_holds_the_checkpoint(tmp_path: Path):
    """A batch that has begun after the last commit is left out, and the query gets another identity."""
    source, place = tmp_path / "source", tmp_path / "place"
    for name in ("metadata", "offsets/0", "offsets/1", "offsets/2", "commits/0", "commits/1", "state/0/0/2.delta"):
        file = source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    unpack(packed(source, 1), place)
    found = {one.relative_to(place).as_posix() for one in place.rglob("*") if one.is_file()}
    assert found == {"metadata", "offsets/0", "offsets/1", "commits/0", "commits/1", "state/0/0/2.delta"}
    assert (place / "metadata").read_text() != "metadata"
    # What a query that has failed in its first micro-batch has left would keep its successor from starting.
    unpack(packed(source, -1), tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_bytes_that_are_no_archive_are_refused(tmp_path: Path):
    """They come from another platform."""
    with pytest.raises(SparkError, match="no checkpoint of a query"):
        unpack(b"something else", tmp_path)
