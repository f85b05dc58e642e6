"""Sinks that put out with checkpoints: each row exactly once, wherever the process dies."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from exop import Application, EndOfStream, Platform
from exop.errors import ComponentFailed
from exop.stock.sinks import Held, WriteParquet, WriteSqlite
from exop.testing import feed
from exop.testing import open as opened
from tests.change.tools import Tap
from tests.rig import PATIENCE, eventually


@dataclass
class Sold:
    """An item with fields."""

    number: int
    price: float


class Rig:
    """One of the sinks, what it has put out, and how it dies and comes again."""

    def __init__(self, cls, path):
        self.cls, self.path = cls, path / "out"
        self.taken = None

    def open(self, held=None, **settings):
        """The sink, with a memento."""
        return opened(self.cls, path=self.path, held=held or Held(), **settings)

    def out(self):
        """The numbers that are out, in their order."""
        if not self.path.exists():
            return []
        if self.cls is WriteParquet:
            files = sorted(self.path.glob("*.parquet"))
            return [number for file in files for number in pq.read_table(file)["value"].to_pylist()]
        with sqlite3.connect(self.path) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchone():
                return []
            return [number for (number,) in database.execute("SELECT value FROM items ORDER BY rowid")]


@pytest.fixture(params=[WriteSqlite, WriteParquet])
def rig(request, tmp_path):
    """Each of them."""
    return Rig(request.param, tmp_path)


def checkpoint(sink, number, *, dies=None):
    """What the platform does; returns the memento that the checkpoint holds."""
    sink.prepare_checkpoint(number)
    memento = sink.held.copied()
    if dies != "before":
        sink.commit_checkpoint(number)
    return memento


def test_without_checkpoints_rows_are_out_after_each_lot_and_at_the_end(rig):
    """In an application that is not durable."""
    with rig.open(lot=2) as sink:
        for number in range(5):
            sink.item(number)
        assert rig.out() == [0, 1, 2, 3]
        sink.item(EndOfStream())
        assert rig.out() == [0, 1, 2, 3, 4]
        sink.item(5)
    assert rig.out() == [0, 1, 2, 3, 4, 5]


def test_a_predecessor_that_is_closed_leaves_the_rows_of_its_successor_alone(rig):
    """They share the memento; what was the predecessor's went out before it was handed over."""
    with rig.open(lot=100) as sink:
        sink.item(0)
        sink.flush()
        with rig.open(sink.held, lot=100) as successor:
            successor.item(1)
            sink.__exit__()
            assert rig.out() == [0]
    assert rig.out() == [0, 1]


def test_with_checkpoints_rows_are_out_with_them(rig):
    """Nothing that a crash would repeat is seen by anybody."""
    with rig.open(lot=1) as sink:
        sink.checkpointed = True
        sink.item(0)
        assert rig.out() == []
        checkpoint(sink, 1)
        assert rig.out() == [0]
        sink.item(1)
        sink.item(EndOfStream())
        checkpoint(sink, 2)
        checkpoint(sink, 3)
    assert rig.out() == [0, 1]


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_crash_around_the_commit(rig, dies):
    """The checkpoint is there; whether its rows are out already is seen by their number: neither lost nor doubled."""
    with rig.open() as sink:
        sink.checkpointed = True
        sink.item(0)
        checkpoint(sink, 1)
        sink.item(1)
        kept = checkpoint(sink, 2, dies=dies)
        sink.item("comes again")
    with rig.open(kept) as sink:
        sink.checkpointed = True
        sink.item(2)
        checkpoint(sink, 3)
    assert rig.out() == [0, 1, 2]


@pytest.mark.parametrize("later", [1, 2])
def test_a_checkpoint_that_is_older_than_what_is_out_is_refused(rig, later):
    """Also the first one, of before the first row: what came behind it would come a second time."""
    with rig.open() as sink:
        sink.checkpointed = True
        kept = checkpoint(sink, 1)
        for number in range(later):
            sink.item(number)
            newest = checkpoint(sink, 2 + number)
    with pytest.raises(Exception, match=rf"the lot {later} is there already.*{rig.path} from copies of the same time"):
        rig.open(kept).__enter__()
    with rig.open(newest) as sink:
        sink.checkpointed = True
        checkpoint(sink, 9)
    assert rig.out() == list(range(later))


def test_another_stream_into_the_same_place_adds_to_it(rig):
    """Numbers of lots are those of one stream."""
    for first in (0, 10):
        with rig.open() as sink:
            sink.checkpointed = True
            for number in range(3):
                sink.item(first + number)
                checkpoint(sink, number)
    assert sorted(rig.out()) == [0, 1, 2, 10, 11, 12]


def test_items_with_fields_are_rows(rig):
    """Fields are columns."""
    feed(rig.cls, [Sold(1, 2.5), {"number": 2, "price": None}], path=rig.path)
    if rig.cls is WriteParquet:
        (file,) = rig.path.glob("*.parquet")
        assert pq.read_table(file).to_pylist() == [{"number": 1, "price": 2.5}, {"number": 2, "price": None}]
    else:
        with sqlite3.connect(rig.path) as database:
            assert database.execute("SELECT number, price FROM items").fetchall() == [(1, 2.5), (2, None)]


def test_a_changed_destination_takes_the_rows_from_then_on(tmp_path):
    """Another file, database or table is opened in place of the old one; a file of before is continued."""
    app, first, second = Application("rows"), tmp_path / "first", tmp_path / "second"
    tap = Tap()
    rows = app.add("tap", tap.source())
    app.add("lines", "stock:write_lines", item=rows, path=first / "lines")
    app.add("table", "stock:write_sqlite", item=rows, path=first / "base", lot=1)

    def cells(folder, table):
        with closing(sqlite3.connect(folder / "base")) as base:
            there = base.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            return [row[0] for row in base.execute(f"SELECT value FROM {table}")] if there else []

    for folder in (first, second):
        folder.mkdir()
    with Platform(control=False) as platform:
        mesh = platform.apply(app.build())
        for number, (folder, table) in enumerate([(first, "items"), (second, "other"), (first, "items")]):
            if number:
                mesh = mesh.configure("lines", path=folder / "lines")
                mesh = platform.apply(mesh.configure("table", path=folder / "base", table=table))
            tap.let(1)
            eventually(lambda there=(folder, table), last=number + 1: last in cells(*there))
        tap.shut()
        assert platform.wait("rows", PATIENCE)
    assert (cells(first, "items"), cells(second, "other")) == ([1, 3], [2])
    assert [(folder / "lines").read_text() for folder in (first, second)] == ["1\n3\n", "2\n"]


def test_what_a_table_cannot_hold_is_refused_with_the_item_at_hand(tmp_path):
    """Values without a form in SQLite, and fields without a column."""
    with opened(WriteSqlite, path=tmp_path / "out", held=Held()) as sink:
        sink.item({"a": date(2026, 1, 2), "b": Decimal("1.50")})
        with pytest.raises(TypeError, match="the column a cannot hold a list"):
            sink.item({"a": []})
        with pytest.raises(ValueError, match="has no column c; it has a, b"):
            sink.item({"c": 1})
        sink.flush()
    with sqlite3.connect(tmp_path / "out") as database:
        assert database.execute("SELECT * FROM items").fetchall() == [("2026-01-02", "1.50")]


def test_without_pyarrow_the_cure_is_named(tmp_path, monkeypatch):
    """The library is an extra of the distribution."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    app = Application("rows")
    app.add("write", WriteParquet, item=app.add("count", "stock:count_up", to=1), path=tmp_path)
    with Platform() as platform, pytest.raises(ComponentFailed, match=r"pip install 'exop\[columns\]'"):
        platform.apply(app.build())


def test_a_durable_application_puts_everything_out_by_its_end(rig, tmp_path):
    """With the last checkpoint, whoever waits; and what was held back when it is removed."""
    with Platform(state=tmp_path / "state", control=False) as platform:
        name = {WriteSqlite: "stock:write_sqlite", WriteParquet: "stock:write_parquet"}[rig.cls]
        app = Application("rows")
        app.durable(every=60)
        app.add("write", name, item=app.add("count", "stock:count_up", to=100), path=rig.path)
        platform.apply(app.build())
        assert platform.wait("rows", PATIENCE)
        assert rig.out() == list(range(100))


def moved(rig, sink, to, **settings):
    """Another sink takes over the memento with another destination."""
    rig.path = to
    return rig.open(sink.held, **settings)


@pytest.mark.parametrize("dies", [None, "before", "after"])
def test_the_rows_of_a_checkpoint_are_out_once_if_the_destination_changes(rig, tmp_path, dies):
    """Those that are written stay there, those that are held go to the new destination: without a further row."""
    first, second = rig.path, tmp_path / "second"
    with rig.open() as sink:
        sink.checkpointed = True
        sink.item(0)
        kept = checkpoint(sink, 1, dies=dies)
        sink.item(1)
    if dies is None:
        kept = sink.held
    with rig.open(kept) as again:
        again.checkpointed = True
    with moved(rig, again, second) as sink:
        sink.checkpointed = True
        sink.commit_checkpoint(1)  # of the old slet: it is not known whether it is written
        checkpoint(sink, 2)
        out = rig.out()
    rig.path = first
    assert rig.out() + out == ([0, 1] if dies is None else [0])
    assert out == {None: [1], "before": [0], "after": []}[dies]


def test_rows_of_a_checkpoint_return_to_the_first_destination_once(rig, tmp_path):
    """A lot is asked for where it was written, whichever destination that was."""
    first, second = rig.path, tmp_path / "second"
    with rig.open() as sink:
        sink.checkpointed = True
        checkpoint(sink, 1)
        sink.item(0)
    with moved(rig, sink, second) as sink:
        sink.checkpointed = True
        sink.held = checkpoint(sink, 2)
    with moved(rig, sink, first) as sink:
        sink.checkpointed = True
        sink.item(1)
        checkpoint(sink, 3)
        assert rig.out() == [1]
    rig.path = second
    assert rig.out() == [0]


def test_a_table_that_cannot_hold_the_held_rows_is_refused(tmp_path):
    """When it is opened, and not with every checkpoint from then on."""
    with sqlite3.connect(tmp_path / "out") as database:
        database.execute("CREATE TABLE other (something)")
    for held in (Held(rows=[{"value": 1}]), Held(run="r", number=1, sealed=[{"value": 1}])):
        with pytest.raises(ValueError, match="the table other of .* has no column value; it has something"):
            opened(WriteSqlite, path=tmp_path / "out", table="other", held=held).__enter__()


def test_the_first_row_of_a_file_does_not_decide_about_the_columns(tmp_path):
    """A field of a later row is written, too; it is empty in the others."""
    with opened(WriteParquet, path=tmp_path, held=Held(), lot=2) as sink:
        sink.item({"x": 1})
        sink.item({"x": 2, "y": "a"})
    (path,) = tmp_path.glob("*.parquet")
    assert pq.read_table(path).to_pylist() == [{"x": 1, "y": None}, {"x": 2, "y": "a"}]


def test_a_column_that_is_added_as_the_error_says_is_seen(tmp_path):
    """The item that was refused is accepted, without another instance."""
    with opened(WriteSqlite, path=tmp_path / "out", table="t", held=Held()) as sink:
        sink.item({"a": 1})
        with pytest.raises(ValueError, match='add what it lacks: `ALTER TABLE "t" ADD COLUMN "b"`') as refused:
            sink.item({"a": 2, "b": 3})
        with closing(sqlite3.connect(tmp_path / "out")) as database:
            database.execute(str(refused.value).split("`")[1])
        sink.item({"a": 2, "b": 3})
        sink.flush()
    with closing(sqlite3.connect(tmp_path / "out")) as database:
        assert database.execute("SELECT * FROM t").fetchall() == [(1, None), (2, 3)]
