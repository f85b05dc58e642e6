"""What does a log cost: an append, a read, a replay through a mesh, beside a bare file, SQLite and a file source?"""

from __future__ import annotations

import csv
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

from bench.harness import Result, Side, compare, timed
from exop import Application, Memento, Platform, slet
from exop.model.values.encoding import decode, encode
from exop.runtime.log.disk import DiskLog

#: The rows that a read returns at a time, and those of a batch.
LOT, BATCH = 1000, 100


class Count(Memento):
    """The number of items that a sink has received."""

    items: int = 0


@slet
def counted(item: Any, count: Count) -> None:
    """Count an item."""
    count.items += 1


def measure(
    *,
    items: Annotated[int, "how many items are replayed"] = 1_000_000,
    rounds: Annotated[int, "how many pairs of runs"] = 7,
) -> Iterator[Result]:
    """Measure appends and reads of single rows, and the replay of lines and records, per item."""
    with tempfile.TemporaryDirectory(prefix="exop-log-") as folder:
        yield from appended(Path(folder), rounds)
        yield from read(Path(folder), rounds)
        yield from replayed(Path(folder), items, rounds)


def row(number: int) -> dict[str, str]:
    """One record."""
    return {"number": str(number), "sensor": str(number % 17), "value": str(number * 0.5)}


def appended(folder: Path, rounds: int) -> Iterator[Result]:
    """Append rows one by one: to the log and the file each by a write of its own, to SQLite in one transaction."""
    with (
        closing(DiskLog(folder / "log")) as log,
        closing(sqlite3.connect(folder / "log.sqlite", isolation_level=None)) as database,
        (folder / "file").open("ab", buffering=0) as file,
    ):
        database.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, body BLOB)")
        database.execute("BEGIN")
        candidate = timed(doing(lambda number: log.append([row(number)])))
        insert = "INSERT INTO log (body) VALUES (?)"
        for peer, append in (
            ("file", lambda number: file.write(encode([row(number)]))),
            ("SQLite", lambda number: database.execute(insert, (encode([row(number)]),))),
        ):
            name = f"log/append/{peer.lower()}"
            yield compare(name, "us", floor=timed(doing(append)), candidate=candidate, against=peer, rounds=rounds)


def read(folder: Path, rounds: int, rows: int = 20_000) -> Iterator[Result]:
    """Read rows that were appended one by one, a thousand at a time; decoded on all sides."""
    file, sizes = folder / "rows", list[int]()
    with closing(DiskLog(folder / "read")) as log, closing(sqlite3.connect(folder / "read.sqlite")) as database:
        database.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, body BLOB)")
        with file.open("wb") as written:
            for number in range(rows):
                log.append([row(number)])
                sizes.append(written.write(encode([row(number)])))
                database.execute("INSERT INTO log VALUES (?, ?)", (number, encode([row(number)])))

        def from_log() -> int:
            return sum(len(log.events(start, start + LOT)) for start in range(0, rows, LOT))

        def from_file() -> int:
            with file.open("rb") as found:
                return sum(len(decode(found.read(size))) for size in sizes)

        def from_sqlite() -> int:
            query, starts = "SELECT body FROM log WHERE number >= ? LIMIT ?", range(0, rows, LOT)
            bodies = (body for start in starts for (body,) in database.execute(query, (start, LOT)).fetchall())
            return sum(len(decode(body)) for body in bodies)

        for peer, reading in (("file", from_file), ("SQLite", from_sqlite)):
            name, sides = f"log/read/{peer.lower()}", [per_item(one, rows) for one in (reading, from_log)]
            yield compare(name, "us", floor=sides[0], candidate=sides[1], against=peer, rounds=rounds)


def replayed(folder: Path, items: int, rounds: int) -> Iterator[Result]:
    """Replay a log to a slet that counts, beside a file source: from a log of batches, and of single items."""
    lines, records = [f"reading {number} of sensor {number % 17}" for number in range(items)], map(row, range(items))
    (folder / "lines").write_text("\n".join(lines) + "\n")
    with (folder / "records").open("w") as file:
        rows = csv.DictWriter(file, [*row(0)])
        rows.writeheader()
        rows.writerows(records)
    for name, source, kept in (
        ("lines", "stock:read_lines", lambda: lines),
        ("records", "stock:read_csv", lambda: [row(number) for number in range(items)]),
    ):
        floor = per_item(partial(through_a_mesh, source, folder / name), items)
        for size in (BATCH, 1):
            place = folder / f"{name}-{size}"
            fill(place, kept(), size)
            candidate = per_item(partial(through_a_mesh, "stock:read_log", place), items)
            kind = "batches" if size > 1 else "items"
            title, peer = f"log/replay/{name}/{kind}", source.partition(":")[2]
            yield compare(title, "us", floor=floor, candidate=candidate, against=peer, rounds=rounds)


def fill(place: Path, items: Sequence[Any], size: int) -> None:
    """Write a log of so many items at a time."""
    with closing(DiskLog(place)) as log:
        for first in range(0, len(items), size):
            log.append(items[first : first + size])


def through_a_mesh(source: str, path: Path) -> int:
    """Run an application from a source to the end; return how many items came through."""
    app = Application("replay")
    app.add("count", counted, item=app.add("source", source, path=path))
    with Platform() as platform:
        platform.apply(app.build())
        platform.wait("replay")
        state = platform.deployment("replay").components["count"].state
        return state.items if isinstance(state, Count) else 0


def doing(action: Callable[[int], Any]) -> Callable[[int], None]:
    """Do something so many times, with rising numbers."""
    numbers = count()

    def repeat(times: int) -> None:
        for number in islice(numbers, times):
            action(number)

    return repeat


def per_item(work: Callable[[], int], items: int) -> Side:
    """Measure the CPU time of some work on so many items, in microseconds per item."""

    def side() -> float:
        before = time.process_time()
        done = work()
        if done != items:
            raise RuntimeError(f"{done} items came, and not {items}")
        return (time.process_time() - before) / items * 1e6

    return side
