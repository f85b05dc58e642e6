"""What the demo changes while Linear Road runs."""

import os
import subprocess
from pathlib import Path

import pytest

from apps import linear_road as package
from apps.linear_road import pace
from apps.linear_road.builder import linear_road
from apps.linear_road.faulty import faulty_positions
from apps.linear_road.generate import generate
from apps.linear_road.live_changes import DIFFERS, LiveChange, Operator, replacements, shown
from apps.linear_road.positions import positions
from apps.linear_road.terminal import Progress
from apps.linear_road.traffic_model.settings import Settings
from exop import Platform
from tests.apps.linear_road.batches import tuples

NODE = "linear-road.positions"


def test_the_faulty_version_differs_from_the_right_one():
    """Where a question comes, it takes it for a report; so the proof finds it at the first one."""
    asked = tuples({"type": 0}, {"type": 2})
    assert faulty_positions(asked).num_rows == positions(asked).num_rows + 1


def test_the_operator_replaces_and_slows_down_while_the_traffic_flows(tmp_path, monkeypatch):
    """The commands are given when their time has come, and what has come of each is told; so is another speed."""
    monkeypatch.setattr(pace, "COMFORTABLE", 1e-9)
    traffic, history = tmp_path / "traffic.csv", tmp_path / "history.csv"
    generate(Settings(xways=1, minutes=4, seed=3), traffic, history, Progress())
    with Platform(control=True) as platform:
        platform.load(Path(package.__file__).parent)
        app = linear_road(input=traffic, history=history, output=tmp_path / "out.csv", pipeline="native", speed=10)
        platform.apply(app.build())
        changes = [
            LiveChange(
                0.1, "refused", ("replace", NODE, "linear_road:faulty_positions", "--shadow", "20s"), refusal=DIFFERS
            ),
            LiveChange(0.2, "made", ("replace", NODE, "linear_road:faulty_positions")),
        ]
        operator = Operator(os.getpid(), 240, pace.Pace(10.0), changes)
        operator.start()
        assert operator.done.wait(60)
        assert platform.mesh("linear-road").node("traffic").settings["speed"] == operator.pace.speed < 10
        assert platform.mesh("linear-road").node("positions").slet.name == "faulty_positions"
        platform.remove("linear-road")
        operator.leave()
    assert operator.right, operator.report()
    assert operator.missed == ""
    assert "linear-road: revision" in operator.report()


def test_what_ends_otherwise_is_told():
    """A change that failed makes the demo fail; one for which the traffic ended too early is told apart."""
    operator = Operator(1, 60, pace.Pace(12.0), replacements())
    operator.changes[0].code, operator.changes[0].said = 1, "exop: something"
    assert not operator.right
    assert "this was to succeed" in operator.report()
    assert "had ended before" not in operator.report()
    operator.changes[0].code = 0
    operator.start()  # no platform is in that process
    operator.leave()
    assert (operator.right, operator.missed) == (True, ", 2 of the changes came after the end of the traffic")
    assert "had ended before" in operator.report()
    assert [bool(one.refusal) for one in operator.changes] == [False, True, False]
    assert all("--timeout" in one.arguments for one in operator.changes)


LATE = "positions has not quiesced: not within 600 s"
UNPROVEN = "positions was not replaced: within 20 s came not one item; give it more time, or ask for fewer items"
DIFFERENT = "positions was not replaced: 2 differences; the old one runs on (after 30 items in 1.5 s)"


@pytest.mark.parametrize(
    ("refusal", "code", "error", "right", "slow"),
    [
        ("", 0, "", True, False),
        ("", 1, LATE, False, True),
        ("", 1, "positions failed while opening: it has not returned within 600 s and is given up", False, True),
        ("", 1, "positions failed while opening: ValueError", False, False),
        ("", 1, DIFFERENT, False, False),
        (DIFFERS, 1, DIFFERENT, True, False),
        (DIFFERS, 1, LATE, False, True),
        (DIFFERS, 1, UNPROVEN, False, True),
        (DIFFERS, 1, "positions was not replaced: too slow: 9 ms an item; the old one", False, True),
        (DIFFERS, 1, "positions was not replaced: the stream has ended; the old one", False, False),
        (DIFFERS, 0, "", False, False),
    ],
)
def test_a_change_that_ran_out_of_time_is_told_apart(monkeypatch, refusal, code, error, right, slow):
    """Its error says so, not its plan; nor does a proof that ran out of time count as one that found a difference."""
    ended = subprocess.CompletedProcess([], code, "proof: 20000 items, within 30 s\n", f"exop: {error}\n")
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: ended)
    change = LiveChange(0.0, "why", ("replace",), refusal)
    change.carry_out(1)
    assert (change.right, change.slow) == (right, slow)
    operator = Operator(1, 60, pace.Pace(12.0), [change])
    assert operator.right == (right or slow)
    assert operator.missed == (", 1 of the changes ran out of time" if slow else "")
    assert ("(it ran out of time)" in operator.report()) == slow


def test_a_command_that_does_not_end_ran_out_of_time(monkeypatch):
    """It is given up by the demo."""

    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    change = LiveChange(0.0, "why", ("replace",), DIFFERS)
    change.carry_out(1)
    assert (change.right, change.slow) == (False, True)


@pytest.mark.parametrize("count", [1, 30, 40, 41, 500])
def test_the_end_of_what_a_command_printed_is_shown(count):
    """The last line says how the change ended; of very long output, the middle is left out."""
    lines = shown("\n".join(map(str, range(count))))
    assert (lines[0], lines[-1], len(lines)) == ("0", str(count - 1), min(count, 41))
    assert ("… (460 more lines)" in lines) == (count == 500)
