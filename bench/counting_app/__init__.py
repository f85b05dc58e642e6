"""Keyed counts of rows that Spark reads itself: the application of the bench `spark_cluster`, as a plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from exop_spark import Receipt, query

from exop import Application, hookimpl, slet
from exop.runtime.log.reader import LogReader

NAME = "counting"
ROWS = pa.schema([("key", pa.int64()), ("text", pa.string())])
COUNTS = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("size", pa.int64())])
LATEST = pa.schema([("key", pa.int64()), ("size", pa.int64())])
Rows = Annotated[pa.RecordBatch, ROWS]
_COUNT = "SELECT key, count(*) AS n, sum(length(text)) AS size FROM rows GROUP BY key"
_KEEP = "SELECT key, length(max(text)) AS size FROM rows GROUP BY key"
_HOW: dict[str, Any] = {"inputs": {"rows": ROWS}, "mode": "update", "warm_up": 0}
#: Results leave as files of the tasks; with the planted fault `collect`, by the driver. `keeping` has a large state.
counting = query("counting", _COUNT, out=COUNTS, stage="file:///tmp", **_HOW)
collecting = query("collecting", _COUNT, out=COUNTS, **_HOW)
keeping = query("keeping", _KEEP, out=LATEST, stage="file:///tmp", **_HOW)


@slet
def inline(*, path: str) -> Iterator[Rows]:
    """Read the logs here, and push their rows through the platform: the planted fault `inline`."""
    for folder in sorted(Path(path).glob("partition-*")):
        with LogReader(folder) as log:
            at = log.start
            while found := log.read(at, 10_000):
                at += len(found)
                yield pa.RecordBatch.from_pylist(found, schema=ROWS)


@slet
def note(item: Receipt, *, path: str) -> None:
    """Append a line for each receipt."""
    with Path(path).open("a") as file:
        file.write(f"{item.batch} {item.rows}\n")


@slet
def note_rows(item: dict[str, Any], *, path: str) -> None:
    """Append a line for each row."""
    with Path(path).open("a") as file:
        file.write("-1 1\n")


def build(given: dict[str, Any]) -> Application:
    """The application for these options."""
    folder, fault = Path(given["folder"]), given["fault"]
    app = Application(NAME)
    kind = {"collect": collecting}.get(fault, keeping if given["state"] else counting)
    settings = {name: given[name] for name in ("master", "max_rows", "key_groups", "trigger")}
    settings["checkpoints"] = str(folder / "checkpoints")
    if fault != "collect":
        settings["stage"] = f"file://{folder}/staged"
    if fault == "inline":
        rows: Any = app.add("inline", inline, path=str(folder / "log"))
    elif given["brokers"]:
        rows = app.channel("rows", "kafka", topic="rows", brokers=given["brokers"], start="oldest")
    else:
        partitions = given["partitions"]
        path = str(folder / "log")
        rows = app.channel(
            "rows", "partitioned_log", by="key", partitions=partitions, keep="all", path=path, replay=True
        )
    found = app.add("counts", kind, rows=rows, **settings)
    app.add("note", note_rows if fault == "collect" else note, item=found, path=str(folder / "receipts"))
    app.durable(1.0)
    return app


@hookimpl
def register_slets() -> list[Any]:
    """Offer the slets to a platform with a state directory."""
    return [counting, collecting, keeping, inline, note, note_rows]
