"""The expected rows, in plain Python without any engine, and their comparison with a database.

    python -m apps.sensors.checker FOLDER DATABASE [--after N]

Every expected row has to be in the database once, with exactly these values, and no other row.
"""

from __future__ import annotations

import argparse
import csv
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .readings import DELAY, PARTITIONS, partition_file

#: The tables of the database, with the columns that are compared.
TABLES: Final = {
    "minutes": ("time", "sensor", "place", "n", "mean", "low", "high", "lowest", "highest"),
    "alarms": ("time", "sensor", "place", "event", "mean"),
    "late": ("time", "sensor", "value"),
}
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Compared:
    """The comparison of a table: the numbers of rows."""

    table: str
    expected: int
    missing: int
    unexpected: int

    def __str__(self) -> str:
        counts = f"{self.expected:>9,} rows expected, {self.missing:,} missing, {self.unexpected:,} wrong or doubled"
        return f"   {self.table:<8}{counts}"

    @property
    def right(self) -> bool:
        """Whether the table has the expected rows and no others."""
        return not self.missing and not self.unexpected


def expected(folder: Path, after: int = 3) -> dict[str, list[Row]]:
    """Return the rows of all tables."""
    late, windows = list[Row](), defaultdict[tuple[int, int], list[float]](list)
    for number in range(PARTITIONS):
        latest = 0
        for row in _rows(partition_file(folder, number)):
            time, sensor, value = int(row["time"]), int(row["sensor"]), float(row["value"])
            if time < latest - DELAY:
                late.append((time, sensor, value))
            else:
                windows[time // 60 * 60 + 60, sensor].append(value)
            latest = max(latest, time)
    limits = defaultdict[int, list[Row]](list)
    for row in _rows(folder / "sensors.csv"):
        valid = int(row["since"]), row["place"], float(row["lowest"]), float(row["highest"])
        limits[int(row["sensor"])].append(valid)
    minutes = list[Row]()
    for (time, sensor), values in sorted(windows.items()):
        _, place, lowest, highest = max(one for one in limits[sensor] if one[0] <= time)
        mean = sum(values) / len(values)
        minutes.append((time, sensor, place, len(values), mean, min(values), max(values), lowest, highest))
    return {"minutes": minutes, "alarms": list(_alarms(minutes, after)), "late": late}


def _alarms(minutes: list[Row], after: int) -> Iterator[Row]:
    """Yield the alarms of each sensor: they begin and end after *after* minutes in sequence."""
    of_sensor = defaultdict[int, list[Row]](list)
    for minute in minutes:
        of_sensor[minute[1]].append(minute)
    for sensor, history in of_sensor.items():
        beyond = [mean < lowest or mean > highest for *_, mean, _, _, lowest, highest in history]
        on, begin = False, 0
        for index, (time, _, place, _, mean, *_) in enumerate(history):
            stretch = beyond[begin : index + 1][-after:]
            if stretch == [not on] * after:
                on, begin = not on, index + 1
                yield time, sensor, place, "begins" if on else "ends", mean


def compare(database: Path, wanted: Mapping[str, list[Row]]) -> list[Compared]:
    """Compare the tables of a database with the expected rows; a table that does not exist is empty."""
    found = list[Compared]()
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as base:
        there = {name for (name,) in base.execute("SELECT name FROM sqlite_master")}
        for table, columns in TABLES.items():
            rows = base.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall() if table in there else []
            want, have = Counter(wanted[table]), Counter(rows)
            found.append(Compared(table, want.total(), (want - have).total(), (have - want).total()))
    return found


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as lines:
        yield from csv.DictReader(lines)


def main(arguments: Sequence[str]) -> int:
    """Compare as asked for on the command line; return 0 if all rows are as expected."""
    parser = argparse.ArgumentParser(prog="python -m apps.sensors.checker", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="the readings")
    parser.add_argument("database", type=Path, help="the output of the application")
    parser.add_argument("--after", type=int, default=3, help="minutes after which an alarm begins (3)")
    options = parser.parse_args(arguments)
    found = compare(options.database, expected(options.folder, options.after))
    print("\n".join(map(str, found)))
    return 0 if all(one.right for one in found) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
