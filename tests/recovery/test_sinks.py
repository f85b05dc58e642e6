"""Sinks that put out with checkpoints do so exactly once: checkpoints fail, commits fail, processes die."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.cases import failures
from bench.kills import Run
from exop.stock.sinks import WriteParquet, WriteSqlite
from exop.testing import open as opened
from tests.recovery.page_app import SIZE, WriteLots


def in_lots(folder: Path) -> list[int]:
    """What the sink of the page has put out."""
    return [int(line) for path in sorted(folder.glob("0*")) for line in path.read_text().splitlines()]


def in_parquet(folder: Path) -> list[int]:
    """What `write_parquet` has put out."""
    return [one for path in sorted(folder.glob("*.parquet")) for one in pq.read_table(path)["value"].to_pylist()]


def in_sqlite(folder: Path) -> list[int]:
    """What `write_sqlite` has put out."""
    with sqlite3.connect(folder / "out.sqlite") as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchone():
            return []
        return [number for (number,) in database.execute("SELECT value FROM items ORDER BY rowid")]


SINKS: dict[str, tuple[Any, Callable[[Path], dict[str, Any]], str, Callable[[Path], list[int]]]] = {
    "page": (WriteLots, lambda folder: {"folder": folder}, "lot", in_lots),
    "parquet": (WriteParquet, lambda folder: {"path": folder}, "held", in_parquet),
    "sqlite": (WriteSqlite, lambda folder: {"path": folder / "out.sqlite"}, "held", in_sqlite),
}


def test_the_sink_of_the_page_is_killed(tmp_path: Path) -> None:
    """Killed after checkpoints that came to nothing, it has put out nothing of them: each line is there once."""
    run = Run(tmp_path, module="tests.recovery.page_app")
    assert run.live(failpoint="checkpoint-captured:3")
    assert in_lots(tmp_path / "lots") == []
    for name in ("checkpoint-committed:2", "checkpoint-put-out:2"):
        run.live(failpoint=name)
    run.live()
    assert in_lots(tmp_path / "lots") == list(range(SIZE))


@pytest.mark.parametrize("name", SINKS)
def test_failed_checkpoints_failed_commits_and_crashes(name: str) -> None:
    """Random lives, by the contract of the platform: a number is used again until its checkpoint is committed."""
    assert failures(partial(lives, name), 150 if name == "page" else 15) == []


class Dies(BaseException):
    """The process is killed."""


class Simulated:
    """A platform with one source and one sink, as far as checkpoints are concerned.

    Attributes:
        number: The number of the last checkpoint that was committed.
        kept: The memento of the sink and the position of the source that it holds.
    """

    def __init__(self, folder: Path, name: str, chance: random.Random) -> None:
        kind, settings, self.field, self._read = SINKS[name]
        self.folder, self.chance = folder, chance
        self.given = settings(folder)
        self.number, self.kept, self.left = 0, (None, 0), 20
        simulated = self

        class Failing(kind, name=f"failing_{name}"):  # type: ignore[misc, valid-type]
            def write_lot(self, *given: Any) -> None:
                simulated.happens()
                super().write_lot(*given)
                simulated.happens()

        self.kind = Failing

    def happens(self) -> None:
        """Let the disk fail, or the process die, now and then."""
        self.left -= 1
        if self.left > 0 and (drawn := self.chance.random()) < 0.3:
            raise OSError("the disk is full") if drawn < 0.15 else Dies

    def live(self, to: int) -> bool:
        """Take items and checkpoints until all are out, or it dies; tells whether it has finished."""
        memento, position = self.kept
        given = {self.field: memento.copied()} if memento is not None else {}
        with opened(self.kind, **self.given, **given) as sink:
            sink.checkpointed = True
            try:
                while True:
                    for _ in range(self.chance.choice((0, 1, 2, 10))):
                        if position < to:
                            sink.item(position)
                            position += 1
                    if self.checkpoint(sink, position) and position == to:
                        return True
            except Dies:
                return False

    def checkpoint(self, sink: Any, position: int) -> bool:
        """Take a checkpoint; tells whether the sinks have put out what belongs to it."""
        try:
            sink.prepare_checkpoint(self.number + 1)
            taken = getattr(sink, self.field).copied(), position
            self.happens()  # it is written: that fails, or nothing was written when the process dies
            self.number, self.kept = self.number + 1, taken
            self.happens()
            sink.commit_checkpoint(self.number)
        except OSError:
            return False
        return True


def lives(name: str, chance: random.Random) -> str:
    """As many lives as it takes; every item is out once, in order."""
    with tempfile.TemporaryDirectory() as folder:
        simulated, count = Simulated(Path(folder), name, chance), 1
        while not simulated.live(to=12):
            count += 1
        assert simulated._read(Path(folder)) == list(range(12))
        return "one life" if count == 1 else "several lives"
