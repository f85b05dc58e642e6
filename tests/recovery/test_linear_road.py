"""Linear Road is durable with its native pipeline: after a crash every answer is there once."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps import linear_road as package
from apps.linear_road.builder import linear_road
from exop import Platform
from exop.hooks import Plugins
from tests.rig import eventually

SECONDS = 900


@pytest.fixture
def files(tmp_path):
    """A quarter of an hour of a crowded segment, with questions and an accident."""
    rows = []
    for vehicle in range(60):
        for second in range(vehicle % 30, SECONDS, 30):
            stands = vehicle < 2 and second > 300
            position, speed = (14 * 5280 + 600, 0) if stands else (52_800 + 30 * second, 30)
            rows.append((second, f"0,{second},{vehicle},{speed},0,1,0,{position // 5280},{position},-1,-1,-1,-1,-1,-1"))
    rows += [(s, f"2,{s},3,-1,-1,-1,-1,-1,-1,{s},-1,-1,-1,-1,-1") for s in range(20, SECONDS, 50)]
    rows += [(s, f"3,{s},3,-1,0,-1,-1,-1,-1,{s},-1,-1,-1,-1,4") for s in range(30, SECONDS, 50)]
    rows.append((SECONDS // 4, "0,malformed"))
    (tmp_path / "in.csv").write_text("".join(f"{text}\n" for _, text in sorted(rows)))
    (tmp_path / "history.csv").write_text("3,4,0,42\n")
    return {"input": tmp_path / "in.csv", "history": tmp_path / "history.csv"}


def platform(state: Path) -> Platform:
    """A platform that finds Linear Road's slets."""
    plugins = Plugins()
    plugins.register("linear_road", package)
    return Platform(state=state, control=False, plugins=plugins)


def answers(path: Path) -> list[list[str]]:
    """The answers without the moment at which each was given, sorted."""
    lines = [line.split(",") for line in path.read_text().splitlines()]
    place = {"0": 3, "1": 2, "2": 2, "3": 2}
    return sorted([field for number, field in enumerate(line) if number != place[line[0]]] for line in lines)


def test_every_answer_is_there_once(tmp_path, files):
    """Left twice in the middle, as a killed process leaves it, and finished in a third life; rejects at least once."""
    linear_road(**files, output=tmp_path / "wanted", pipeline="native", speed=1e6).run()
    app = linear_road(**files, output=tmp_path / "found", pipeline="native", speed=1000)
    app.durable(every=0.05)
    for share in (0.2, 0.5):
        with platform(tmp_path / "state") as running:
            if app.name not in running.applications():
                running.apply(app.build())
            source = running.deployment(app.name).components["traffic"].state
            eventually(lambda: source.second > SECONDS * share)  # noqa: B023 (called at once)
            running._applications.checkpoints.stop(app.name)  # no last one
    with platform(tmp_path / "state") as running:
        assert running.wait(app.name, 60)
    wanted = answers(tmp_path / "wanted")
    assert {line[0] for line in wanted} == {"0", "1", "2", "3"}
    assert answers(tmp_path / "found") == wanted
    rejects = (tmp_path / "found.rejects").read_text().splitlines()
    assert {line.rpartition("\t")[2] for line in rejects} == {"0,malformed"}  # at least once
