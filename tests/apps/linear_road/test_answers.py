"""ω: the answers as lines with emit times."""

import errno

import numpy as np
import pytest

from apps.linear_road.answers import Answers, Written
from apps.linear_road.clock import Clock
from apps.linear_road.columns import record_batch
from apps.linear_road.schema import ALERTS, BALANCES, EXPENDITURES, NOTICES


def sink(path, written=None, now=100.0):
    """An opened sink whose wall clock stands at *now*."""
    answers = Answers(output=path, written=written or Written())
    answers.now = lambda: now
    return answers


class Filling:
    """A file on a disk with room for some more bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        """Take what there is room for, as an unbuffered file does."""
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self.file.write(data[: self.room])
        self.room -= taken
        return taken


def of(schema, *rows):
    """A batch of answers."""
    return record_batch(schema, *(np.array(part) for part in zip(*rows, strict=True)))


def test_the_four_kinds_of_lines(tmp_path):
    """The lines are those of the benchmark: 0,VID,Time,Emit,LAV,Toll and so on."""
    with sink(tmp_path / "out.csv") as answers:
        answers.clock(Clock(start=99.0, first=10, speed=1.0))
        answers.tolls(of(NOTICES, (10, 7, 33, 200), (11, 8, 0, 0)))
        answers.alerts(of(ALERTS, (10, 1, 42, 0, 7)))
        answers.balances(of(BALANCES, (10, 10, 5, 1 << 40)))
        answers.expenditures(of(EXPENDITURES, (10, 6, 99)))
    assert (tmp_path / "out.csv").read_text().splitlines() == [
        "0,7,10,11.000,33,200",
        "0,8,11,11.000,0,0",
        "1,10,11.000,1,42,0,7",
        "2,10,11.000,10,5,1099511627776",
        "3,10,11.000,6,99",
    ]


@pytest.mark.parametrize("speed", [1.0, 60.0])
def test_emit_is_time_plus_wall_seconds_since_the_question_was_due(tmp_path, speed):
    """Due = start + (time - first) / speed: the response time is wall-clock time at any speed."""
    clock = Clock(start=1000.0, first=0, speed=speed)
    with sink(tmp_path / "out.csv", now=clock.due(120) + 1.25) as answers:
        answers.clock(clock)
        answers.tolls(of(NOTICES, (120, 7, 0, 0)))
        assert answers.metrics()["type0/max"] == pytest.approx(1.25)
    assert (tmp_path / "out.csv").read_text() == "0,7,120,121.250,0,0\n"


def test_a_question_was_due_by_the_clock_of_its_own_time(tmp_path):
    """After a change of speed, the response times of what was asked before are counted by the clock of before."""
    first = Clock(start=1000.0, first=0, speed=10.0)
    slower = first.at(5.0, wall=1009.95)
    slowest = slower.at(1.0, wall=1020.0)
    assert (slower, slowest) == (Clock(1010.0, 100, 5.0), Clock(1020.2, 151, 1.0))
    with sink(tmp_path / "out.csv", now=1021.2) as answers:
        for clock in (first, slower, slowest, slowest):  # a source that goes on elsewhere tells its clock again
            answers.clock(clock)
        answers.tolls(of(NOTICES, (90, 1, 0, 0), (100, 2, 0, 0), (150, 3, 0, 0), (152, 4, 0, 0)))
        assert answers.metrics()["slowest"] == pytest.approx(12.2)
        answers.tolls(of(NOTICES, (200, 5, 0, 0)))
        assert answers.metrics()["slowest"] == 0.0
    told = [float(line.split(",")[3]) - float(line.split(",")[2]) for line in (tmp_path / "out.csv").open()]
    assert told == pytest.approx([12.2, 11.2, 1.2, 0.0, 0.0])


def test_an_answer_is_in_the_file_when_the_call_returns(tmp_path):
    """Emit means out: nothing waits in a buffer."""
    with sink(tmp_path / "out.csv") as answers:
        answers.clock(Clock(100.0, 0, 1.0))
        answers.tolls(of(NOTICES, (0, 7, 0, 0)))
        assert (tmp_path / "out.csv").read_text() == "0,7,0,0.000,0,0\n"


def test_a_new_run_replaces_the_old_output(tmp_path):
    """Opening alone leaves the file as it is; the clock of a new run empties it."""
    (tmp_path / "out.csv").write_text("an old answer\n")
    with sink(tmp_path / "out.csv") as answers:
        assert (tmp_path / "out.csv").read_text() == "an old answer\n"
        answers.clock(Clock(100.0, 0, 1.0))
        assert (tmp_path / "out.csv").read_text() == ""


def test_a_successor_goes_on_where_the_memento_ends(tmp_path):
    """It opens while the old one writes, and cuts off only what the memento does not know of."""
    path = tmp_path / "out.csv"
    with sink(path) as old, sink(path) as new:
        old.clock(Clock(100.0, 0, 1.0))
        old.tolls(of(NOTICES, (0, 1, 0, 0)))
        new.written = old.written.copied()
        old.tolls(of(NOTICES, (0, 99, 0, 0)))
        new.tolls(of(NOTICES, (0, 2, 0, 0)))
        assert new.metrics()["type0/answers"] == 2
    assert path.read_text() == "0,1,0,0.000,0,0\n0,2,0,0.000,0,0\n"


def test_the_figures_per_type(tmp_path):
    """Answers, late ones, median, 99th percentile and the slowest, per type; expenditures have ten seconds."""
    with sink(tmp_path / "out.csv", now=107.0) as answers:
        answers.clock(Clock(100.0, 0, 1.0))
        answers.tolls(of(NOTICES, (0, 1, 0, 0), (6, 2, 0, 0)))
        answers.expenditures(of(EXPENDITURES, (0, 6, 99)))
        figures = answers.metrics()
    assert (figures["type0/answers"], figures["type0/late"], figures["type0/max"]) == (2, 1, 7.0)
    assert (figures["type3/answers"], figures["type3/late"]) == (1, 0)
    assert "type2/median" not in figures


def test_without_a_clock_an_answer_is_emitted_at_its_second(tmp_path):
    """Slets that are run without the source of this application still have a readable output."""
    with sink(tmp_path / "out.csv") as answers:
        answers.alerts(of(ALERTS, (10, 1, 42, 0, 7)))
    assert (tmp_path / "out.csv").read_text() == "1,10,10.000,1,42,0,7\n"


def test_what_a_full_disk_took_of_a_batch_is_written_anew(tmp_path):
    """A write that stops in the middle of a line leaves neither half a line nor a gap when it is tried again."""
    path = tmp_path / "out.csv"
    with sink(path) as answers:
        answers.clock(Clock(100.0, 0, 1.0))
        answers.tolls(of(NOTICES, (0, 1, 0, 0)))
        real, full = answers._file, Filling(answers._file, room=10)
        answers._file = full
        with pytest.raises(OSError, match="No space left"):
            answers.tolls(of(NOTICES, (0, 2, 0, 0)))
        assert path.read_text() == "0,1,0,0.000,0,0\n0,2,0,0.00"
        answers._file = real
        answers.tolls(of(NOTICES, (0, 2, 0, 0)))
        assert answers.metrics()["type0/answers"] == 2
    assert path.read_text() == "0,1,0,0.000,0,0\n0,2,0,0.000,0,0\n"


def test_the_output_may_be_a_device():
    """What cannot be cut off is written to as it is: /dev/null takes everything."""
    with sink("/dev/null") as answers:
        answers.clock(Clock(100.0, 0, 1.0))
        answers.tolls(of(NOTICES, (0, 7, 0, 0)))
        assert answers.metrics()["type0/answers"] == 1
