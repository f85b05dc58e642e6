"""Functions that hang in Spark are ended by the time limit of a micro-batch, by Ctrl-C, or by the death of Java."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa
import pytest
from exop_spark import EventTime, Input, query
from pyspark import SparkContext

from exop import Application, Memento, Platform, Punctuation, slet
from exop.errors import QueryInterrupted
from tests.rig import eventually

ROWS = pa.schema([pa.field("time", pa.int32(), nullable=False), pa.field("value", pa.int32())])
Rows = Annotated[pa.RecordBatch, ROWS]
WINDOWS = """
SELECT CAST(unix_seconds(window.end) AS INT) AS time, CAST(sum(value) AS INT) AS value
FROM rows GROUP BY window(event, '10 seconds')
"""
#: Seconds within which Spark starts and computes, also on a busy machine.
PATIENCE = 240.0
#: The folder in which a function of a query notes its process, and finds whether it is to return.
FOLDER = "EXOP_TEST_HANGING"


class Position(Memento):
    """The last second."""

    time: int = 0


class World:
    """The state that the test shares with its slets."""

    limit = 0
    seen: ClassVar[list[tuple[int, int]]] = []


@slet
def seconds(position: Position) -> Iterator[Rows | Punctuation | None]:
    """Emit a row a second, up to the limit; end when it is negative."""
    while position.time < abs(limit := World.limit) or limit >= 0:
        if position.time < abs(limit):
            position.time += 1
            yield pa.RecordBatch.from_pydict({"time": [position.time], "value": [position.time]}, ROWS)
            yield Punctuation(position.time)
        else:
            threading.Event().wait(0.002)
            yield None


@slet
def see(row: dict[str, int]) -> None:
    """Note what comes."""
    World.seen.append((row["time"], row["value"]))


def grinding(folder: str) -> Any:
    """Return a query whose Python function does not return at the value 3, until a file is there."""

    def grind(rows: Any) -> Any:
        from pyspark.sql.functions import udf

        @udf("int")
        def wait(value: int) -> int:
            import os
            import time

            if value == 3:
                with open(f"{folder}/pid", "w") as file:
                    file.write(str(os.getpid()))
                while not os.path.exists(f"{folder}/goes on"):
                    time.sleep(0.05)
            return value

        return rows.select("time", wait("value").alias("value"))

    return query("grind", grind, inputs={"rows": ROWS}, out=ROWS, warm_up=0)


def app(kind: Any, **settings: Any) -> Application:
    """A source, a query, a sink."""
    World.limit, World.seen = 0, []
    made = Application("mill")
    made.add("see", see, row=made.add("query", kind, rows=made.add("seconds", seconds), **settings))
    return made


@pytest.mark.spark
@pytest.mark.edges
@pytest.mark.usefixtures("spark")
def test_a_micro_batch_that_hangs_fails_and_its_process_is_killed_and_the_cure_helps(tmp_path):
    """With a higher limit, and a function that returns, the same rows are computed: none is lost or doubled."""
    with Platform() as platform:
        mesh = platform.apply(app(grinding(str(tmp_path)), time_limit=1e6).build())
        World.limit = 3
        eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the call", PATIENCE)
        hanging = int((tmp_path / "pid").read_text())
        component = platform.deployment("mill").components["query"]
        component.instance._trigger.began -= 1e6
        eventually(lambda: component.error is not None, "the failure", PATIENCE)
        assert isinstance(component.error, QueryInterrupted)
        assert "in which a function may hang, was interrupted after 1e+06 s" in str(component.error)
        eventually(lambda: not os.path.exists(f"/proc/{hanging}"), "the end of the Python process", PATIENCE)
        (tmp_path / "goes on").touch()
        World.limit = -6
        platform.apply(mesh.configure("query", time_limit=2e6), timeout=PATIENCE)
        assert platform.wait("mill", PATIENCE)
    assert World.seen == [(time, time) for time in range(1, 7)]


@pytest.mark.spark
@pytest.mark.edges
@pytest.mark.parametrize("state", [False, True])
def test_a_query_is_replaced_right_after_the_death_of_java(state):
    """The change notices it and starts another Java; nothing is lost or doubled. It ends the Spark of other tests."""
    text = WINDOWS if state else "SELECT time, value FROM rows"
    inputs = {"rows": Input(ROWS, EventTime("time"))} if state else {"rows": ROWS}
    kinds = [query(f"one{number}", f"{text} -- {number}", inputs=inputs, out=ROWS) for number in range(2)]
    with Platform() as platform:
        mesh = platform.apply(app(kinds[0]).build())
        World.limit = 35
        eventually(lambda: len(World.seen) >= (2 if state else 35), "results", PATIENCE)
        instance = platform.deployment("mill").components["query"].instance
        eventually(lambda: not instance.resting(), "rest", PATIENCE)
        instance.engine.settle()  # the batch is committed, too
        SparkContext._gateway.proc.kill()
        platform.apply(mesh.replace("query", kinds[1]), timeout=PATIENCE)
        World.limit = -60
        assert platform.wait("mill", PATIENCE)
    sums = [(end, sum(time for time in range(1, 61) if time // 10 * 10 + 10 == end)) for end in range(10, 80, 10)]
    assert sorted(World.seen) == (sums if state else [(time, time) for time in range(1, 61)])


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run an application with a query that hangs, as a user would, in a session of its own."""
    (folder / "mill.py").write_text(
        f"from test_hanging import World, app, grinding\n\nmill = app(grinding({str(folder)!r}))\nWorld.limit = -3\n"
    )
    command = [sys.executable, "-m", "exop", "run", "mill.py", "--quiet"]
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    process = subprocess.Popen(
        command, cwd=folder, env=os.environ | paths, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        for pid in left(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def left(session: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found += [int(one.name)] if os.getsid(int(one.name)) == session else []
    return found


def told(process: subprocess.Popen[str], words: str) -> None:
    """Wait until a process says this."""
    said = []
    for line in process.stderr or ():
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said))


@pytest.mark.spark
@pytest.mark.edges
def test_ctrl_c_while_spark_opens_ends_it(tmp_path):
    """At once, with Java, whose start takes much longer."""
    with running(tmp_path) as process:
        told(process, "Spark is starting on Java")
        eventually(lambda: len(left(process.pid)) > 1, "the process of Java", PATIENCE)
        process.send_signal(signal.SIGINT)
        told(process, "what is being opened is given up")
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        eventually(lambda: not left(process.pid), "the end of Java", PATIENCE)


@pytest.mark.spark
@pytest.mark.edges
def test_ctrl_c_while_a_micro_batch_hangs_names_the_query_and_a_second_one_ends_it(tmp_path):
    """With Java, and with the Python process that hangs."""
    with running(tmp_path) as process:
        eventually((tmp_path / "pid").exists, "the call", PATIENCE)
        process.send_signal(signal.SIGINT)
        told(process, "waiting for mill.query: nothing has left for 3 s; Ctrl-C again stops at once")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        eventually(lambda: not left(process.pid), "the end of Java", PATIENCE)
