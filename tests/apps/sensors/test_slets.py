"""The slets of the application."""

import pytest
from exop_kafka import Record

from apps.sensors import slets
from apps.sensors.slets import Alarms, Position, Replay, decode, stamp
from exop import Batch
from exop.testing import check_source, feed
from exop.testing import open as opened


class Clock:
    """A clock that moves only when someone sleeps."""

    def __init__(self):
        self.time = 1000.0

    def sleep(self, seconds):
        """Let time pass."""
        self.time += seconds


@pytest.fixture
def clock(monkeypatch):
    """The clock of the replay."""
    made = Clock()
    monkeypatch.setattr(Replay, "now", staticmethod(lambda: made.time))
    monkeypatch.setattr(Replay, "sleep", staticmethod(made.sleep))
    return made


@pytest.fixture
def path(tmp_path):
    """Four readings; the third is behind the second."""
    (tmp_path / "readings.csv").write_text("time,sensor,value\n1,7,20.5\n4,8,21.0\n2,7,20.0\n6,7,19.5\n")
    return tmp_path / "readings.csv"


def test_a_file_is_replayed_from_every_position(path, monkeypatch):
    """The position is moved before the rows leave."""
    monkeypatch.setattr(slets, "_LOT", 2)
    batches = check_source(Replay, path=path)
    assert [batch.column("time").to_pylist() for batch in batches] == [[1, 4], [2, 6]]


def test_each_row_leaves_when_it_is_due(path, clock):
    """At twice the speed; a row that is behind leaves with its neighbour."""
    with opened(Replay, path=path, speed=2.0) as replay:
        left = [(clock.time, one.column("time").to_pylist()) for one in replay if one is not None]
    assert [times for _, times in left] == [[1], [4, 2], [6]]
    assert [round(at - 1000, 1) for at, _ in left] == [0.5, 2.0, 3.0]


def test_a_successor_keeps_the_clock(path, clock):
    """The rest of the file is due at the times of the predecessor."""
    with opened(Replay, path=path, speed=1.0, position=Position(rows=3, began=997.0)) as replay:
        left = [clock.time for one in replay if one is not None]
    assert [round(at) for at in left] == [1003]


def test_a_start_in_the_future_is_waited_for(path, clock):
    """Second 0 is at the given time."""
    with opened(Replay, path=path, speed=1.0, start=1010.0) as replay:
        first = next(one for one in replay if one is not None)
    assert (first.num_rows, round(clock.time)) == (1, 1011)


def test_records_are_decoded():
    """The value of a record is a reading as JSON; fields may be in any order."""
    values = b'{"time":3,"sensor":7,"value":20.5}', b'{"value":21,"sensor":8,"time":4}'
    rows = [{"time": 3, "sensor": 7, "value": 20.5}, {"time": 4, "sensor": 8, "value": 21.0}]
    assert decode(Batch(Record(value=value) for value in values)).to_pylist() == rows
    with pytest.raises(ValueError, match="Extra data"):  # each record is one reading, whatever is beside it
        decode([Record(value=b",".join(values))])


def test_a_minute_is_stamped_with_the_clock():
    """The other fields do not change."""
    stamped = feed(stamp, [{"sensor": 7}])[0]
    assert stamped.keys() == {"sensor", "ready"}
    assert stamped["ready"] > 1.7e9


def minute(time, mean, sensor=7, lowest=10.0, highest=30.0):
    """A minute of a sensor."""
    return {"time": time, "sensor": sensor, "place": "roof", "mean": mean, "lowest": lowest, "highest": highest}


def test_an_alarm_begins_and_ends_after_several_minutes():
    """A minute that is otherwise starts the count anew."""
    means = [31, 32, 25, 33, 34, 35, 36, 25, 31, 25, 26, 27, 28]
    found = feed(Alarms, [minute(60 * number, mean) for number, mean in enumerate(means)], after=3)
    begin = {"time": 300, "sensor": 7, "place": "roof", "event": "begins", "mean": 35}
    assert found == [begin, begin | {"time": 660, "event": "ends", "mean": 27}]


def test_each_sensor_has_its_own_alarm():
    """Too cold counts as well as too hot, and a mean that equals the limit is within."""
    minutes = [minute(60, 9.5, sensor=1), minute(60, 30.5, sensor=2), minute(60, 30.0, sensor=3)]
    assert [alarm["sensor"] for alarm in feed(Alarms, minutes, after=1)] == [1, 2]
