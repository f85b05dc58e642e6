"""Watermarks: what they say of the stream, and which items are late."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import Application, Platform, Punctuation, slet
from exop.errors import SettingError
from exop.stock.event_time import Followed, Watermark
from exop.testing import feed
from exop.testing import open as opened
from tests.rig import PATIENCE, collector, source_of


def timed(*times):
    """Items of these times."""
    return [{"t": time} for time in times]


def test_a_watermark_says_after_each_item_how_old_the_next_ones_may_be():
    """Of an item at t nothing older than t - delay follows; it is said when it rises, and other punctuations go."""
    left = feed(Watermark, [*timed(5, 7, 6), Punctuation(100), *timed(9)], time="t", delay=1)
    marks = [Punctuation.before(time, None) for time in (4, 6, 8)]
    assert left == [{"t": 5}, marks[0], {"t": 7}, marks[1], {"t": 6}, {"t": 9}, marks[2]]
    assert feed(Watermark, timed(5), time="t", idle=3)[1].idle == 3


@pytest.mark.parametrize("start", [0, 1_700_006_400 * 10**9])
def test_with_a_step_a_punctuation_leaves_when_a_multiple_is_passed(start):
    """The first one leaves at once, further ones complete a multiple of the step; what is late does not change."""
    times = [start + time for time in (13, 19, 21, 20, 16, 29, 55)]
    marks = {start + time: Punctuation.before(start + time - 1) for time in (13, 21, 55)}
    left = feed(Watermark, timed(*times), time="t", delay=1, step=10)
    kept = [time for time in times if time != start + 16]
    assert left == [one for time in kept for one in ({"t": time}, marks.get(time)) if one is not None]
    batches = [pa.record_batch({"t": [time]}) for time in times]
    assert one_by_one(feed(Watermark, batches, time="t", delay=1, step=10)) == left


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
@given(
    times=st.lists(st.integers(0, 30), max_size=40),
    start=st.sampled_from((0, 1_700_006_400 * 10**9 - 7)),
    delay=st.integers(0, 9),
    data=st.data(),
)
def test_in_columns_the_same_rows_are_late(times, start, delay, data):
    """Whatever the batches are: out and late have the rows that they would have one by one, and time ends equal.

    Times in nanoseconds, which a float cannot tell apart, follow the rule exactly.
    """
    times = [start + time for time in times]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(times)), max_size=4)))
    batches = [
        pa.record_batch({"t": pa.array(times[a:b], pa.int64())}) for a, b in itertools.pairwise([0, *cuts, len(times)])
    ]
    found = []
    for items in (timed(*times), batches):
        followed = Followed()
        with opened(Watermark, followed=followed, time="t", delay=delay) as made:
            left = [one for item in items for one in made.item(item)]
            late = made.late.items
        marks = [one for one in left if isinstance(one, Punctuation)]
        rows = [one for one in left if not isinstance(one, Punctuation)]
        found.append((one_by_one(rows), one_by_one(late), followed, marks[-1:]))
    assert found[0] == found[1]
    assert one_by_one(late) == [{"t": t} for n, t in enumerate(times) if t < max(times[:n], default=0) - delay]


def test_in_columns_batches_stay_batches():
    """Between sources and sinks of columns no row is taken apart, and the schema is known behind the watermark."""
    seen, app = [], Application("columns")

    @slet
    def rows() -> Iterator[pa.RecordBatch]:
        yield from (pa.record_batch({"t": times}) for times in ([1, 5, 2], [9]))

    @slet
    def keep(item: pa.RecordBatch | Punctuation) -> None:
        seen.append(item if isinstance(item, Punctuation) else item.to_pydict())

    app.add("watermark", "stock:watermark", item=app.add("rows", rows), time="t", delay=1)
    app.add("keep", keep, item=app.output("watermark"))
    app.run()
    assert seen == [{"t": [1, 5]}, Punctuation.before(4), {"t": [9]}, Punctuation.before(8)]


def test_another_field_may_hold_the_time_from_now_on():
    """A change of the setting takes effect with the next item."""
    with opened(Watermark, time="t") as made:
        made.item({"t": 1, "u": 5})
        made.time = "u"
        assert list(made.item({"t": 1, "u": 5}))[1] == Punctuation.before(5)


@pytest.mark.parametrize("time", [float("nan"), float("inf"), "today", None, datetime(2026, 1, 1), 10**400])
def test_a_watermark_refuses_an_item_without_a_time(time):
    """An endless time would make all that follows late. The error names the field and what is needed."""
    with pytest.raises(ValueError, match="its field 't', is .*a finite number is needed"):
        feed(Watermark, timed(time), time="t")
    with pytest.raises(LookupError, match="has no field 't'; it has time, place"):
        feed(Watermark, [{"time": 1, "place": 2}], time="t")


@pytest.mark.parametrize("times", [[1, None], [1.0, float("nan")], [datetime(2026, 1, 1)]])
def test_a_watermark_refuses_a_batch_without_times(times):
    """A timestamp has a unit, which the setting `delay` does not."""
    told = "the column 't' has a time that is missing or no finite number"
    with opened(Watermark, time="t") as made, pytest.raises(ValueError, match=told):
        made.item(pa.record_batch({"t": times}))


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"delay": -1}, "delay"), ({"delay": float("nan")}, "delay"), ({"idle": 0}, "idle"), ({"step": -1}, "step")],
)
def test_a_delay_that_cannot_be_is_refused_where_it_is_written(settings, named):
    """Below 0 every item would make the next one late. It is the same when the slet is configured."""
    app = Application("late")
    with pytest.raises(SettingError, match=f"watermark: the setting '{named}' does not fit: it is .*, and must be"):
        app.add("watermark", "stock:watermark", item=app.add("numbers", "stock:count_up"), time="real", **settings)
    app = Application("late")
    app.add("watermark", "stock:watermark", item=app.add("numbers", "stock:count_up"), time="real")
    with pytest.raises(SettingError, match=named):
        app.build().configure("watermark", **settings)


def test_a_row_that_counts_rows_is_no_batch():
    """A field of a row may be called as an attribute of a record batch is."""

    @dataclass(frozen=True)
    class Written:
        t: int
        num_rows: int

    rows = [Written(1, 100), Written(5, 3)]
    assert [one for one in feed(Watermark, rows, time="t") if not isinstance(one, Punctuation)] == rows


def test_a_batch_without_the_column_is_told_by_the_columns_that_it_has():
    """The error names the alternatives, as that of an item does."""
    with pytest.raises(LookupError, match="the batch has no column 't'; it has time, place"):
        feed(Watermark, [pa.record_batch({"time": [1], "place": [2]})], time="t")
