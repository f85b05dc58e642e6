"""How the demo of the engines says its outcome."""

import pytest

from apps.linear_road.pace import Pace
from apps.sensors.demo import History, outcome

CHANGE = "replace sensors.per-minute"


def history(*, failed: bool = False, slow: bool = False, late: bool = False) -> History:
    """A run with changes that failed, ran out of time, or came late."""
    return History(0.0, [], failed=[CHANGE] * failed, slow=[CHANGE] * slow, late=["duckdb"] * late)


@pytest.mark.parametrize(
    ("right", "ended", "load", "code", "said"),
    [
        (True, {}, 9.0, 0, "PASSED"),
        (
            True,
            {"slow": True},
            9.0,
            0,
            f"PASSED: every row is right; this machine was too busy or is too slow for a change: {CHANGE},",
        ),
        (True, {"slow": True}, 0.5, 1, f"FAILED: {CHANGE}"),
        (True, {"failed": True}, 9.0, 1, f"FAILED: {CHANGE}"),
        (False, {}, 9.0, 1, "FAILED"),
        (False, {"slow": True}, 9.0, 1, f"FAILED: {CHANGE}"),
    ],
)
def test_a_change_that_runs_out_of_time_on_a_busy_machine_is_told(monkeypatch, right, ended, load, code, said):
    """The stream goes on without it. Changes that fail for another reason fail the demo, and so do wrong rows."""
    monkeypatch.setattr("os.getloadavg", lambda: (load,) * 3)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    pace = Pace(30.0)
    pace.look(1.0, 0.0)
    assert outcome(history(**ended), pace, right=right) == (code, said)


def test_an_engine_that_takes_over_late_is_told():
    """Its share of the readings is too small to be seen."""
    assert outcome(history(late=True), Pace(30.0), right=True) == (
        0,
        "PASSED, but duckdb took over after the last reading (try a longer --minutes),",
    )
