"""What the demo changes while Linear Road runs."""

import os
from pathlib import Path

from apps import linear_road as package
from apps.linear_road import pace
from apps.linear_road.builder import linear_road
from apps.linear_road.faulty import faulty_positions
from apps.linear_road.generate import generate
from apps.linear_road.live_changes import LiveChange, Operator, replacements
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
                0.1, "refused", ("replace", NODE, "linear_road:faulty_positions", "--shadow", "20s"), made=False
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
    assert "positions was not replaced" in changes[0].said
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
    assert (operator.right, operator.late) == (True, 2)
    assert "had ended before" in operator.report()
    assert [one.made for one in operator.changes] == [True, False, True]
