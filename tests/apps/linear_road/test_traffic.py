"""α: the input released on its own clock."""

import copy
from itertools import pairwise

import pytest

from apps.linear_road import lines
from apps.linear_road.clock import Clock
from apps.linear_road.lines import UnreadableInput
from apps.linear_road.traffic import Position, Traffic
from exop import Punctuation
from tests.apps.linear_road.batches import Collected


class Wall:
    """A wall clock that moves only when somebody sleeps, or works."""

    def __init__(self, start=1000.0):
        self.time = start

    def now(self):
        """The time."""
        return self.time

    def sleep(self, seconds):
        """Let time pass."""
        self.time += seconds


def source(path, wall, position=None, **settings):
    """An opened source on this wall clock."""
    traffic = Traffic(input=path, position=position or Position(), clock=Collected(), **settings)
    traffic.now, traffic.sleep = wall.now, wall.sleep
    return traffic.__enter__()


def line(second, vid=1, kind=0):
    """One input line."""
    return f"{kind},{second},{vid},50,0,1,0,10,52800,7,-1,-1,-1,-1,-1"


def write(path, *texts):
    """Write the input file and return its path."""
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def shown(item):
    """An item as text: the punctuation, or the vehicles of a batch."""
    return f"<{item.time}" if isinstance(item, Punctuation) else " ".join(map(str, item.column("vid").to_pylist()))


def released(traffic):
    """Everything but the safe points, as text."""
    return [shown(item) for item in traffic if item is not None]


def test_each_second_leaves_as_a_batch_and_is_then_complete(tmp_path):
    """One batch per second, its punctuation behind it; a gap is closed before the next batch."""
    path = write(tmp_path / "in.csv", line(0, 1), line(0, 2), line(1, 3), line(4, 4))
    assert released(source(path, Wall())) == ["1 2", "<0", "3", "<1", "<3", "4", "<4"]


@pytest.mark.parametrize("speed", [1.0, 60.0])
def test_a_tuple_is_released_at_its_own_second(tmp_path, speed):
    """The clock starts with the first tuple, whatever its second; speed=N is N times faster."""
    wall = Wall()
    traffic = source(write(tmp_path / "in.csv", line(100), line(101), line(130)), wall, speed=speed)
    times = [wall.time for item in traffic if item is not None and not isinstance(item, Punctuation)]
    assert times == pytest.approx([1000, 1000 + 1 / speed, 1000 + 30 / speed])
    assert traffic.clock.items == [Clock(1000.0, 100, speed)]


def test_the_clock_is_told_before_the_first_tuple(tmp_path):
    """Who judges response times knows the clock when the first answer may come."""
    traffic = source(write(tmp_path / "in.csv", line(5)), Wall())
    first = next(item for item in traffic if item is not None)
    assert (shown(first), traffic.clock.items) == ("1", [Clock(1000.0, 5, 1.0)])


def test_waiting_passes_safe_points(tmp_path):
    """While it waits, the source comes by at least every 100 ms of wall time."""
    wall = Wall()
    path = write(tmp_path / "in.csv", line(0), line(2))
    moments = [wall.time for _ in source(path, wall)]
    assert max(after - before for before, after in pairwise(moments)) <= 0.1


def test_overdue_seconds_leave_together(tmp_path):
    """After a delay all that is due leaves at once, in batches of whole seconds of at most *batch* rows."""
    wall = Wall()
    path = write(tmp_path / "in.csv", *(line(second, 10 * second + car) for second in range(6) for car in range(2)))
    traffic = source(path, wall, batch=5)
    found = []
    for item in traffic:
        if item is not None:
            found.append(shown(item))
        if found == ["0 1"]:
            wall.time += 4
    assert found == ["0 1", "<0", "10 11 20 21", "<2", "30 31 40 41", "<4", "50 51", "<5"]


def test_until_is_the_last_second(tmp_path):
    """What comes after is not released, and the stream is complete through what was."""
    path = write(tmp_path / "in.csv", line(0, 1), line(3, 2), line(4, 3))
    assert released(source(path, Wall(), until=3)) == ["1", "<0", "<2", "2", "<3"]


def test_a_bad_line_is_counted_kept_and_does_not_stop_the_run(tmp_path, caplog):
    """The reject file has the line's number, the reason and its text; the log has the number."""
    rejects = tmp_path / "out.rejects"
    rejects.write_text("of an earlier run")
    path = write(tmp_path / "in.csv", line(0, 1), "0,1,2", line(1, 2), "hello", line(0, 3))
    traffic = source(path, Wall(), rejects=rejects)
    assert released(traffic) == ["1", "<0", "2", "<1"]
    assert traffic.metrics() == {"second": 1, "rows": 2, "rejects": 3, "late": 0.0}
    assert rejects.read_text().splitlines() == [
        "2\t15 fields expected, 3 found\t0,1,2",
        "4\t15 fields expected, 1 found\thello",
        f"5\ttime goes backwards, from 1\t{line(0, 3)}",
    ]
    assert "line 2: 15 fields expected, 3 found" in caplog.text


def test_without_bad_lines_there_is_no_reject_file(tmp_path):
    """A reject file of an earlier run is not left behind."""
    rejects = tmp_path / "out.rejects"
    rejects.write_text("of an earlier run")
    released(source(write(tmp_path / "in.csv", line(0)), Wall(), rejects=rejects))
    assert not rejects.exists()


@pytest.mark.parametrize("speed", [1.0, 1e6])
def test_a_successor_goes_on_at_every_cut(tmp_path, monkeypatch, speed):
    """Wherever the source is replaced, nothing is lost, doubled or released on another clock; rejects neither."""
    monkeypatch.setattr(lines, "BLOCK", 100)
    texts = [line(second, 10 * second + car) for second in (0, 1, 4, 5) for car in range(3)]
    path = write(tmp_path / "in.csv", *texts[:4], "bad", *texts[4:8], "worse", "worst", *texts[8:])
    rejects = tmp_path / "rejects"

    def run(cut):
        wall, position, found = Wall(), Position(), []
        first = source(path, wall, position, speed=speed, rejects=rejects)
        for item in first:
            found += [] if item is None else [shown(item)]
            if len(found) == cut:
                position = copy.deepcopy(position)
                break
        else:
            return found, position
        second = source(path, wall, position, speed=speed, rejects=rejects)
        return found + released(second), position

    whole, end = run(10_000)
    kept = rejects.read_text()
    assert kept.count("\n") == 3
    for cut in range(1, len(whole)):
        again, position = run(cut)
        assert " ".join(one for one in again if one[0] != "<") == " ".join(one for one in whole if one[0] != "<")
        assert [one for one in again if one[0] == "<"][-1] == whole[-1]
        assert (position.rows, position.rejects, position.clock) == (end.rows, end.rejects, end.clock)
        assert rejects.read_text() == kept


def test_a_new_speed_holds_from_the_first_second_that_is_not_due_yet(tmp_path):
    """Another speed changes when the coming seconds are due, and the clock is told before the first of them."""
    wall, position = Wall(), Position()
    path = write(tmp_path / "in.csv", line(0), line(1), line(2))
    for item in source(path, wall, position):
        if isinstance(item, Punctuation) and item.time == 0:
            break
    traffic = source(path, wall, position, speed=2.0)
    assert released(traffic) == ["1", "<1", "1", "<2"]
    assert traffic.clock.items == [Clock(1001.0, 1, 2.0)]
    assert wall.time == pytest.approx(1001.5)


def test_a_slower_speed_forgives_no_delay(tmp_path):
    """Seconds that are overdue when the speed changes leave at once, and were due when the old clock says."""
    wall, position = Wall(), Position()
    path = write(tmp_path / "in.csv", *(line(second, second) for second in range(6)))
    items = source(path, wall, position, speed=2.0)
    next(item for item in items if item is not None)
    wall.time += 1.75  # through second 3 all is due
    traffic = source(path, wall, position, speed=0.5)
    assert released(traffic) == ["<0", "1 2 3", "<3", "4", "<4", "5", "<5"]
    assert traffic.clock.items == [Clock(1002.0, 4, 0.5)]
    assert wall.time == pytest.approx(1004.0)


def test_a_missing_input_is_told_when_the_source_opens(tmp_path):
    """Nothing starts without the input; the error names the path."""
    with pytest.raises(UnreadableInput, match=r"nowhere\.csv cannot be read"):
        source(tmp_path / "nowhere.csv", Wall())
