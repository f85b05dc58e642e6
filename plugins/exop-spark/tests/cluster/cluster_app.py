"""An application that computes windows on the master given as its setting."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from exop_spark import EventTime, Input, query

from exop import Application, Punctuation, Slet, input_port, slet

ROWS = pa.schema([pa.field("time", pa.int32()), pa.field("key", pa.int32()), pa.field("value", pa.int32())])
SUMS = pa.schema([pa.field("until", pa.int32()), pa.field("key", pa.int32()), pa.field("value", pa.int32())])
SECONDS, KEYS, WINDOW = 100, 8, 10

sums = query(
    "sums",
    """
    SELECT CAST(unix_seconds(window.end) AS INT) AS until, key, CAST(sum(value) AS INT) AS value
    FROM rows GROUP BY window(event, '10 seconds'), key
    """,
    inputs={"rows": Input(ROWS, EventTime("time"))},
    out=SUMS,
    boundary=50.0,
    warm_up=0,
)


copies = query("copies", "SELECT * FROM rows", inputs={"rows": ROWS}, out=ROWS, enough=400, trigger=5.0, warm_up=0)


@slet
def readings() -> Iterator[pa.RecordBatch | Punctuation]:
    """A second at a time, one row for each key."""
    for second in range(SECONDS):
        yield pa.RecordBatch.from_pydict(
            {"time": [second] * KEYS, "key": list(range(KEYS)), "value": [second * key for key in range(KEYS)]},
            schema=ROWS,
        )
        yield Punctuation(second)


class Written(Slet):
    """Writes what arrives as lines."""

    output: Path

    def __enter__(self):
        """Begin a new file."""
        self._file = self.output.open("w")
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self._file.close()

    @input_port
    def lines(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        for row in batch.to_pylist():
            self._file.write(f"{row['until']},{row['key']},{row['value']}\n")


def application(*, master: str, output: Path, stage: str = "") -> Application:
    """Windows of ten seconds over all keys.

    Args:
        master: Where Spark computes them.
        output: Where they are written.
        stage: Where files of rows are, which the tasks of one query write and those of the other one read.
    """
    app = Application("windows")
    rows = app.add("readings", readings)
    if stage:
        rows = app.add("copies", copies, rows=rows, master=master, stage=stage)
    windows = app.add("sums", sums, rows=rows, master=master)
    app.add("written", Written, lines=windows, output=output)
    return app


def expected() -> list[str]:
    """The lines that are right, in order."""
    windows = {}
    for second in range(SECONDS):
        for key in range(KEYS):
            until = second // WINDOW * WINDOW + WINDOW
            windows[until, key] = windows.get((until, key), 0) + second * key
    return sorted(f"{until},{key},{value}" for (until, key), value in windows.items())
