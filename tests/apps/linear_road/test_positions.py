"""Car positions: a filter."""

from apps.linear_road.positions import positions
from apps.linear_road.schema import REPORTS
from tests.apps.linear_road.batches import rows, tuples


def test_only_position_reports_pass():
    """Questions of all types are left out, and the fields that only they use."""
    found = positions(tuples({"vid": 1}, {"type": 2, "vid": 2}, {"type": 3, "vid": 3}, {"type": 4}, {"vid": 5}))
    assert found is not None
    assert found.schema == REPORTS
    assert [row[1] for row in rows(found)] == [1, 5]


def test_questions_alone_send_nothing():
    """A batch without a report sends no empty batch."""
    assert positions(tuples({"type": 2})) is None
