"""How the demo of the engines says its outcome."""

import pytest

from apps.linear_road.pace import Pace
from apps.sensors.demo import History, outcome


def history(*, failed: bool = False, late: bool = False) -> History:
    """A run with changes that failed, or came late."""
    return History(0.0, [], failed=["replace sensors.per-minute"] * failed, late=["duckdb"] * late)


@pytest.mark.parametrize(
    ("right", "failed", "load", "code", "said"),
    [
        (True, False, 9.0, 0, "PASSED"),
        (
            True,
            True,
            9.0,
            0,
            "PASSED: every row is right; this machine was too busy or is too slow for a change: replace",
        ),
        (True, True, 0.5, 1, "FAILED: replace sensors.per-minute"),
        (False, False, 9.0, 1, "FAILED"),
        (False, True, 9.0, 1, "FAILED: replace sensors.per-minute"),
    ],
)
def test_a_change_that_fails_on_a_busy_machine_is_told(monkeypatch, right, failed, load, code, said):
    """The change is refused as it should be, and the stream goes on. Wrong rows always fail."""
    monkeypatch.setattr("os.getloadavg", lambda: (load,) * 3)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    pace = Pace(30.0)
    pace.look(1.0, 0.0)
    assert outcome(history(failed=failed), pace, right=right)[0] == code
    assert outcome(history(failed=failed), pace, right=right)[1].startswith(said)


def test_an_engine_that_takes_over_late_is_told():
    """Its share of the readings is too small to be seen."""
    assert outcome(history(late=True), Pace(30.0), right=True) == (
        0,
        "PASSED, but duckdb took over after the last reading (try a longer --minutes),",
    )
