"""The stock slets do what they say, one by one and joined."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import Application, EndOfStream, Platform, Punctuation, slet
from exop.hooks import Plugins
from exop.model.slet import spec_of
from exop.stock import register_channels, register_slets
from exop.stock.slets import STOCK, Followed, Watermark, WriteLines, Written, count_up, pass_on, read_lines, show
from exop.testing import check_source, feed
from exop.testing import open as opened
from tests.change.tools import Tap
from tests.rig import PATIENCE, collector, eventually, source_of


def test_counting():
    """So many numbers from a start by a step; without `to` it never ends."""
    assert feed(count_up, to=3) == [0, 1, 2]
    assert feed(count_up, to=3, start=10, step=-2) == [10, 8, 6]
    assert feed(count_up, to=0) == []
    assert check_source(count_up, items=5) == [0, 1, 2, 3, 4]


def test_passing_on_and_showing(capsys):
    """One passes everything on as it is, the other prints it."""
    items = [1, "a", [2]]
    assert feed(pass_on, items) == items
    assert feed(show, items) == []
    assert capsys.readouterr().out == "1\na\n[2]\n"
    buffered = TextIOWrapper(BytesIO())
    with redirect_stdout(buffered):
        feed(show, items)
        assert buffered.buffer.getvalue() == b"1\na\n[2]\n"  # at once, also where nobody sits before it


def test_writing_lines(tmp_path):
    """Every item is a line of the file, which is complete once the slet is closed."""
    path = tmp_path / "out.txt"
    feed(WriteLines, ["a", 1, "ß"], path=path)
    assert path.read_text(encoding="utf-8") == "a\n1\nß\n"


@pytest.mark.parametrize("kind", ["direct", "queue"])
def test_lines_can_be_read_while_the_stream_rests(tmp_path, kind):
    """The source waits for its next item, and the file has all lines of before; at the end it is complete."""
    tap, path = Tap(), tmp_path / "out.txt"
    app = Application("resting")
    between = app.channel("between", kind=kind)
    app.add("source", tap.source(), out=between)
    app.add("write", WriteLines, item=between, path=path)
    with Platform() as platform:
        platform.apply(app.build())
        for count in (3, 4):
            tap.let(count)
            wanted = [str(number + 1) for number in range(3 if count == 3 else 7)]
            eventually(lambda wanted=wanted: path.exists() and path.read_text().splitlines() == wanted)
        tap.let(1)
        tap.shut()
        assert platform.wait("resting", PATIENCE)
        assert len(path.read_text().splitlines()) == 8


def test_they_come_by_the_public_door():
    """The stock plugin is found by its entry point and answers the hooks as anyone's does."""
    plugins = Plugins()
    plugins.discover()
    assert "stock" in plugins.names()
    assert register_slets() == list(STOCK)
    assert [kind.kind for kind in register_channels()] == ["direct", "queue", "window", "latch", "table", "log"]


def test_every_one_has_a_help_text():
    """The docstring is what the command line shows."""
    assert all(spec_of(one).doc for one in STOCK)


def test_joined_they_copy_a_file(tmp_path):
    """read_lines -> pass_on -> write_lines, on a platform."""
    (tmp_path / "in.txt").write_text("a\nb\n")
    app = Application("copy")
    lines = app.add("read", "stock:read_lines", path=tmp_path / "in.txt")
    app.add("write", "stock:write_lines", item=app.add("pass", pass_on, item=lines), path=str(tmp_path / "out.txt"))
    report = app.run()
    assert (tmp_path / "out.txt").read_text() == "a\nb\n"
    assert report["items"] == 2


def test_lines_go_on_where_the_memento_ends(tmp_path):
    """What stands behind that place is cut off, at the first line or at the end; a file that is too short is told."""
    path = tmp_path / "out.txt"
    path.write_text("a\nb\nleft over\n")
    for item, expected in (("c", "a\nb\nc\n"), (EndOfStream(), "a\nb\n")):
        with WriteLines(path=path, written=Written(size=4)) as writer:
            writer.item(item)
            writer.flush()
            assert path.read_text() == expected
            writer.sync()
    with (
        WriteLines(path=path, written=Written(size=400)) as writer,
        pytest.raises(OSError, match="put it back"),
    ):
        writer.item("c")


def test_an_empty_stream_leaves_an_empty_file(tmp_path):
    """What an earlier run has written is not taken for the output of this one."""
    (tmp_path / "in.txt").write_text("")
    (tmp_path / "out.txt").write_text("old\n")
    app = Application("copy")
    lines = app.add("read", read_lines, path=tmp_path / "in.txt")
    app.add("write", WriteLines, item=lines, path=tmp_path / "out.txt")
    app.run()
    assert (tmp_path / "out.txt").read_text() == ""


def timed(*times):
    """Items of these times."""
    return [{"t": time} for time in times]


def test_a_watermark_says_after_each_item_how_old_the_next_ones_may_be():
    """Of an item at t nothing older than t - delay follows; it is said when it rises, and other punctuations go."""
    left = feed(Watermark, [*timed(5, 7, 6), Punctuation(100), *timed(9)], time="t", delay=1)
    marks = [Punctuation.before(time, None) for time in (4, 6, 8)]
    assert left == [{"t": 5}, marks[0], {"t": 7}, marks[1], {"t": 6}, {"t": 9}, marks[2]]
    assert feed(Watermark, timed(5), time="t", idle=3)[1].idle == 3


def test_what_is_older_than_a_watermark_has_said_leaves_by_late():
    """The boundary itself is in time. Late items leave by a port of their own, and are counted."""
    seen, late = [], []
    app = Application("late")
    items = app.add("items", source_of(timed(10, 7, 8, 7.5, 12, 9, 10)))
    app.add("watermark", "stock:watermark", item=items, time="t", delay=2)
    app.add("sink", collector(seen), item=app.output("watermark"))
    app.add("second", collector(late), item=app.output("watermark", "late"))
    with Platform() as platform:
        platform.apply(app.build())
        assert platform.wait("late", PATIENCE)
        assert platform.metrics("late")["nodes"]["watermark"]["items"] == {"item": 7, "out": 4, "late": 3}
    assert seen == timed(10, 8, 12, 10)
    assert late == timed(7, 7.5, 9)


def test_a_watermark_goes_on_where_its_predecessor_was():
    """Which items are late does not depend on a replacement, also with another delay."""
    followed = Followed(floor=8.0)
    assert feed(Watermark, timed(7, 8), followed=followed, time="t", delay=5) == timed(8)
    assert followed == Followed(floor=8.0)


def one_by_one(pieces):
    """The rows of record batches, or items as they are."""
    return [row for one in pieces for row in (one.to_pylist() if isinstance(one, pa.RecordBatch) else [one])]


@settings(deadline=None)
@given(times=st.lists(st.integers(0, 30), max_size=40), delay=st.integers(0, 9), data=st.data())
def test_in_columns_the_same_rows_are_late(times, delay, data):
    """Whatever the batches are: out and late have the rows that they would have one by one, and time ends equal."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(times)), max_size=4)))
    batches = [
        pa.record_batch({"t": pa.array(times[a:b], pa.int64())}) for a, b in itertools.pairwise([0, *cuts, len(times)])
    ]
    columns = next(one for one in STOCK if spec_of(one).name == "watermark_columns")
    found = []
    for kind, items in ((Watermark, timed(*times)), (columns, batches)):
        followed = Followed()
        with opened(kind, followed=followed, time="t", delay=delay) as made:
            left = [one for item in items for one in made.item(item)]
            late = made.late.items
        marks = [one for one in left if isinstance(one, Punctuation)]
        rows = [one for one in left if not isinstance(one, Punctuation)]
        found.append((one_by_one(rows), one_by_one(late), followed, marks[-1:]))
    assert found[0] == found[1]


def test_in_columns_batches_stay_batches():
    """Between sources and sinks of columns no row is taken apart."""
    seen, app = [], Application("columns")

    @slet
    def rows() -> Iterator[pa.RecordBatch]:
        yield from (pa.record_batch({"t": times}) for times in ([1, 5, 2], [9]))

    @slet
    def keep(item: pa.RecordBatch | Punctuation) -> None:
        seen.append(item if isinstance(item, Punctuation) else item.to_pydict())

    app.add("watermark", "stock:watermark_columns", item=app.add("rows", rows), time="t", delay=1)
    app.add("keep", keep, item=app.output("watermark"))
    app.run()
    assert seen == [{"t": [1, 5]}, Punctuation.before(4), {"t": [9]}, Punctuation.before(8)]


@pytest.mark.parametrize("time", [float("nan"), float("inf"), "today", None])
def test_a_watermark_refuses_an_item_without_a_time(time):
    """An endless time would make all that follows late."""
    with pytest.raises((ValueError, TypeError)):
        feed(Watermark, timed(time), time="t")
