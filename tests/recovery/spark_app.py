"""A durable application with windows on Spark; `python -m tests.recovery.spark_app FOLDER` may be killed."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from exop_spark import EventTime, Input, query

from exop import Application, Memento, Platform, Punctuation, hookimpl, slet
from exop.hooks import Plugins

NAME = "killed"
ROWS = pa.schema([("time", pa.int64()), ("key", pa.int64())])
OUT = pa.schema([("until", pa.int64()), ("key", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])
KEYS, WINDOW = 20, 10
Rows = Annotated[pa.RecordBatch, ROWS]

counts = query(
    "counts",
    """
    SELECT unix_seconds(window.end) AS until, key, count(*) AS n, sum(time) AS total
    FROM rows GROUP BY window(event, '10 seconds'), key
    """,
    inputs={"rows": Input(ROWS, EventTime("time"))},
    out=OUT,
    warm_up=0,
)


class Stream:
    """The second at which the stream ends in this process; it never does in a process that is killed."""

    end: int | None = None


class Position(Memento):
    """The seconds that the source has sent."""

    seconds: int = 0


@slet
def readings(position: Position) -> Iterator[Rows | Punctuation]:
    """Send a row for each key, and a punctuation, for each second of the stream; about a hundred in a second."""
    while position.seconds != Stream.end:
        second = position.seconds
        position.seconds += 1
        yield pa.RecordBatch.from_pydict({"time": [second] * KEYS, "key": [*range(KEYS)]}, schema=ROWS)
        yield Punctuation(second)
        threading.Event().wait(0.01)


@slet
def line(row: dict[str, int]) -> str:
    """Make a line of a row."""
    return " ".join(map(str, row.values()))


@contextmanager
def running(folder: Path) -> Iterator[Platform]:
    """Start the application in this folder, or let it continue."""

    class Offered:
        @hookimpl
        def register_slets(self) -> list[Any]:
            return [readings, counts, line]

    plugins = Plugins()
    plugins.discover()
    plugins.register(NAME, Offered())
    with Platform(state=folder / "state", control=False, plugins=plugins) as platform:
        assert not platform.failed_to_restart, platform.failed_to_restart
        if NAME not in platform.applications():
            app = Application(NAME, plugins=plugins)
            app.durable(every=0.2)
            rows = app.add("counts", counts, rows=app.add("readings", readings))
            app.add("lines", "stock:write_lines", item=app.add("line", line, row=rows), path=folder / "lines")
            platform.apply(app.build(), timeout=120)
        yield platform


def lines(folder: Path) -> list[str]:
    """The lines that are written so far."""
    file = folder / "lines"
    return file.read_text().splitlines() if file.exists() else []


def expected(seconds: int) -> list[str]:
    """The lines of a stream of so many seconds, in order."""
    begins = range(0, seconds, WINDOW)
    return sorted(
        f"{begin + WINDOW} {key} {WINDOW} {sum(range(begin, begin + WINDOW))}"
        for begin in begins
        for key in range(KEYS)
    )


if __name__ == "__main__":
    with running(Path(sys.argv[1])) as platform:
        sys.stdout.write("started\n")
        sys.stdout.flush()
        platform.wait(NAME)
