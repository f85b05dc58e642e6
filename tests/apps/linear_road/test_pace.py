"""How fast the demo lets the traffic go, and how its outcome is said."""

import pytest

from apps.linear_road.demo import outcome
from apps.linear_road.pace import Pace
from apps.linear_road.validation.verdict import Verdict


def verdict_with(**found):
    """A verdict that found so many of each kind among the toll notices."""
    verdict = Verdict(show=1)
    for kind, count in found.items():
        verdict.types[0].counts[kind] = count
    verdict.types[0].delays.extend([1.0] * 100)
    return verdict


def pace_at_load(monkeypatch, load):
    """A pace that looked once, on a machine of two cores with this load."""
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    pace = Pace(12.0)
    pace.look(60, 1.0)
    return pace


@pytest.mark.parametrize(("share", "speed"), [(1.0, 12.0), (0.91, 12.0), (0.8, 9.6), (0.3, 8.0)])
def test_a_busy_machine_begins_slower(share, speed):
    """The share of a core that a busy process got is that of the speed, but two thirds of it at the least."""
    pace = Pace(12.0)
    pace.calibrate(share)
    assert pace.speed == pytest.approx(speed)
    assert ("slower than asked: " in pace.text()) == (speed < 12)


def test_slow_answers_lower_the_speed_step_by_step():
    """A minute with an answer above 3 s lowers it; the next step waits for its effect; two thirds are the least."""
    pace = Pace(12.0)
    assert pace.look(60, 2.9) is None
    assert pace.look(120, 3.6) == pytest.approx(10.0)
    pace.slow_down(120, 10.0, 3.6)
    assert pace.look(239, 9.0) is None
    assert pace.look(240, 9.0) == pytest.approx(8.0)
    pace.slow_down(240, 8.0, 9.0)
    assert pace.look(600, 9.0) is None
    assert pace.look(660, 0.5) is None
    assert "slowed down to 10.0 at second 120: an answer had taken 3.6 s" in pace.text()


def test_the_speed_that_was_reached_is_measured(monkeypatch):
    """It is that of the traffic on the wall clock, not the one that was set."""
    pace = Pace(12.0)
    for wall, second in ((100.0, 0), (110.0, 60), (120.0, 90)):
        monkeypatch.setattr("time.monotonic", lambda wall=wall: wall)
        pace.look(second, 0.1)
    assert pace.reached() == pytest.approx(4.5)
    assert "the traffic flowed at 4.5 times real time" in pace.text()
    assert "12" not in pace.text().splitlines()[0]


def test_right_late_and_wrong_are_told_apart(monkeypatch):
    """Wrong answers fail; late ones pass on a machine without a core to spare, and say so; else they fail, too."""
    busy, idle = pace_at_load(monkeypatch, 4.0), pace_at_load(monkeypatch, 1.0)
    whole, late, wrong = verdict_with(), verdict_with(late=7), verdict_with(late=7, missing=1)
    assert outcome(whole, busy, True) == (0, "PASSED")
    assert outcome(whole, busy, False)[0] == 1
    assert outcome(wrong, busy, True) == (1, "FAILED")
    code, said = outcome(late, busy, True)
    assert (code, said.startswith("PASSED: every answer is right, 7 are late")) == (0, True)
    code, said = outcome(whole, busy, True, ", 1 of the changes ran out of time")
    assert (code, "0 are late, 1 of the changes ran out of time: this machine was too busy" in said) == (0, True)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert outcome(whole, idle, True, ", 1 of the changes ran out of time")[0] == 1
    code, said = outcome(late, idle, True)
    assert (code, said.startswith("FAILED: every answer is right, 7 are late")) == (1, True)


def test_the_validator_fails_late_answers_and_says_that_they_are_right():
    """The verdict of the benchmark stays strict: its exit code is 1 for a late answer, its line tells what it was."""
    late, wrong = verdict_with(late=7), verdict_with(late=7, wrong=1)
    assert (late.exit_code, late.passed, late.right) == (1, False, True)
    assert late.text().splitlines()[-1] == ("VERDICT: every answer is there, once and right; 7 of 100 are late")
    assert (wrong.exit_code, wrong.right) == (1, False)
    assert wrong.text().splitlines()[-1] == "VERDICT: differences"
