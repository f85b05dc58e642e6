"""Which input lines are taken for real."""

import numpy as np
import pytest

from apps.linear_road.checks import Order, checked
from apps.linear_road.lines import Rows
from tests.apps.linear_road.batches import tuples


def judged(*rows, order=None):
    """The seconds that pass, and (line, reason) of what is refused."""
    piece = Rows(tuples(*rows), np.arange(1, len(rows) + 1), (), len(rows))
    found = checked(piece, order or Order())
    return found.batch.column("time").to_pylist(), [(reject.line, reject.reason) for reject in found.rejects]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"type": 1}, "type is unknown"),
        ({"time": -1}, "time is negative"),
        ({"vid": -1}, "vid is negative"),
        ({"xway": -1}, "xway is out of range"),
        ({"xway": 10_000}, "xway is out of range"),
        ({"lane": 5}, "lane is out of range"),
        ({"dir": 2}, "dir is out of range"),
        ({"seg": 100}, "seg is out of range"),
    ],
)
def test_what_cannot_be_is_refused(row, reason):
    """An unknown type, and numbers that name no vehicle, moment or segment."""
    assert judged(row) == ([], [(1, reason)])


def test_what_only_looks_odd_passes():
    """Speeds and positions are taken as they are, and a question needs no place."""
    assert (
        judged(
            {"spd": -3, "pos": -7},
            {"type": 2, "time": 0, "vid": 1, "qid": 0},
            {"type": 4, "time": 0, "vid": 0, "qid": 1},
        )[1]
        == []
    )


def test_time_does_not_go_backwards():
    """A row older than the one before is refused, and does not move the clock."""
    found = judged({"time": 10}, {"time": 9}, {"time": 10}, {"time": 11})
    assert found == ([10, 10, 11], [(2, "time goes backwards, from 10")])


def test_a_broken_second_does_not_stop_the_run():
    """A leap ahead of more than an hour is refused, instead of all that follows."""
    assert judged({"time": 10}, {"time": 900_000}, {"time": 11})[0] == [10, 11]


def test_a_gap_is_no_leap():
    """Silence of some minutes is accepted, and so is any first second."""
    assert judged({"time": 9_000}, {"time": 9_900}, {"time": 12_000})[1] == []


def test_order_holds_from_one_piece_to_the_next():
    """The latest second is carried over."""
    order = Order(latest=50)
    assert judged({"time": 49}, {"time": 50}, order=order) == ([50], [(1, "time goes backwards, from 50")])


def test_a_refused_row_does_not_move_the_clock():
    """A row that cannot be has no say about the time."""
    assert judged({"time": 10}, {"time": 40, "lane": 9}, {"time": 12})[0] == [10, 12]
