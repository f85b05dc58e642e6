"""A durable application of stock slets alone; `python -m tests.recovery.stock_app FOLDER` may be killed."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from exop import Application, Platform
from exop.runtime.log.disk import DiskLog

NAME = "stock"
SIZE = 4000


def application(folder: Path) -> Application:
    """Numbers from a CSV file into every sink, and through a log."""
    app = Application(NAME)
    app.durable(every=0.02)
    kept = app.channel("kept", kind="log", path=folder / "log", segment=2**16)
    app.add("read", "stock:read_csv", path=folder / "in.csv", out=kept)
    app.add("sqlite", "stock:write_sqlite", item=kept, path=folder / "out.sqlite")
    app.add("parquet", "stock:write_parquet", item=kept, path=folder / "parquet")
    app.add("lines", "stock:write_lines", item=kept, path=folder / "lines")
    for kind in ("latch", "table"):
        through = app.channel(kind, kind=kind, key="name")
        app.add(f"to-{kind}", "stock:pass_on", item=kept, out=through)
        app.add(f"from-{kind}", "stock:write_lines", item=through, path=folder / kind)
    for name, source in (("text", "stock:read_lines"), ("follow", "stock:read_log")):
        read = app.add(name, source, path=folder / ("in.csv" if name == "text" else "in-log"))
        app.add(f"write-{name}", "stock:write_lines", item=read, path=folder / name)
    files = app.add("files", "stock:read_parquet", path=folder / "in-files", columns="n bigint")
    app.add("write-files", "stock:write_lines", item=files, path=folder / "files")
    both = app.channel("both", kind="log", path=folder / "both-log", segment=2**16)
    app.add("numbers", "stock:count_up", to=SIZE, out=both)
    app.add("again", "stock:read_csv", path=folder / "in.csv", out=both)
    app.add("merged", "stock:write_lines", item=both, path=folder / "both")
    split = {"item": app.add("more", "stock:count_up", to=SIZE), "conditions": {"even": "item % 2 == 0"}}
    app.add("split", "stock:split", **split, even=app.channel("every"), rest="every")
    numbers = {"more": "every", "most": app.add("most", "stock:count_up", to=SIZE)}
    sides = {name: app.add(f"{name}-timed", "stock:watermark", item=to, time="real") for name, to in numbers.items()}
    joined = app.add("join", "stock:join", sides=sides, by="real", time="real", within=0)
    app.add("pairs", "stock:write_lines", item=joined, path=folder / "joined")
    return app


def found(folder: Path) -> dict[str, list[Any]]:
    """What each place holds, in order."""
    import pyarrow.parquet as pq

    with sqlite3.connect(folder / "out.sqlite") as database:
        rows = [number for (number,) in database.execute("SELECT n FROM items ORDER BY rowid")]
    files = sorted((folder / "parquet").glob("*.parquet"))
    both = rows_of(folder / "both-log")
    assert [str(row) for row in both] == (folder / "both").read_text().splitlines(), "the log is not what its sink got"
    return {
        "sqlite": rows,
        "parquet": [number for file in files for number in pq.read_table(file)["n"].to_pylist()],
        "lines": [line.split("'")[3] for line in (folder / "lines").read_text().splitlines()],
        "latch": [line.split("'")[3] for line in (folder / "latch").read_text().splitlines()],
        "table": [line.split("'")[3] for line in (folder / "table").read_text().splitlines()],
        "text": [line.split(",")[0] for line in (folder / "text").read_text().splitlines()[1:]],
        "joined": [line.split("'most': ")[1][:-1] for line in (folder / "joined").read_text().splitlines()],
        "follow": (folder / "follow").read_text().splitlines(),
        "files": [line.split(": ")[1][:-1] for line in (folder / "files").read_text().splitlines()],
        "log": [row["n"] for row in rows_of(folder / "log")],
        "one of both": [str(row) for row in both if isinstance(row, int)],
        "other of both": [row["n"] for row in both if isinstance(row, dict)],
    }


def rows_of(folder: Path) -> list[Any]:
    """What a log holds."""
    log = DiskLog(folder)
    try:
        return [row for batch in log.events(0, log.end) for row in batch]
    finally:
        log.close()


def main() -> int:
    """Let it live until it has finished."""
    folder = Path(sys.argv[1])
    with Platform(state=folder / "state", control=False) as platform:
        assert not platform.failed_to_restart, platform.failed_to_restart
        store = platform._applications.store
        assert store is not None
        if NAME not in {one.name for one in store.applications()}:  # killed when it had finished, it is not run again
            platform.apply(application(folder).build())
        print("started 0", flush=True)  # noqa: T201 (the test reads it)
        if NAME in platform.applications():
            platform.wait(NAME)
    return 0


def differing(folder: Path) -> dict[str, Any]:
    """Where something is missing, doubled or out of order; nothing if all is well."""
    wanted = [str(number) for number in range(SIZE)]
    return {
        name: [value for value, times in Counter(there).items() if times > 1][:5] or (len(there), there[-1:])
        for name, there in found(folder).items()
        if there != wanted
    }


if __name__ == "__main__":
    sys.exit(main())
