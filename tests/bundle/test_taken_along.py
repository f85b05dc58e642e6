"""Bundles that import from one that is updated are taken along: all code has the new classes at once, or none has."""

from __future__ import annotations

from pathlib import Path

import pytest

from exop import Application, Platform
from exop.errors import BundleError
from exop.stock.slets import count_up
from tests.bundle.folders import manifest, started, states, write
from tests.bundle.test_update import ITEMS, itemized
from tests.rig import eventually

#: A bundle that imports the class of the items, and one that imports from this one.
JAMS = """
from dataclasses import dataclass
from exop import Memento, slet
from speeds.slets import Report

@dataclass
class Jam:
    report: Report

class Seen(Memento):
    last: Report | None = None

@slet
def find(report: Report, seen: Seen) -> Jam:
    if type(report) is not Report or type(seen.last or report) is not Report:
        raise TypeError(report)
    seen.last = report
    return Jam(report)
"""
TOLLS = """
from exop import Memento, slet
from jams.slets import Jam, Report

class Paid(Memento):
    last: Jam | None = None
    number: int = 0

@slet
def pay(jam: Jam, paid: Paid) -> None:
    for one in (jam, paid.last or jam):
        if type(one) is not Jam or type(one.report) is not Report:
            raise TypeError(jam)
    if jam.report.number != paid.number + 1:
        raise ValueError(jam)
    paid.last, paid.number = jam, jam.report.number
"""


def tolled(platform: Platform, folder: Path) -> None:
    """Run a durable application of three bundles, of which each imports from the one before it."""
    started(platform, itemized(folder, "1.0.0", ITEMS))
    for name, offer, slets, requires in (("jams", "find", JAMS, "speeds>=1"), ("tolls", "pay", TOLLS, "jams")):
        text = manifest("1.0", name, f'[requires]\nbundles = ["{requires}"]', f'["slets:{offer}"]')
        started(platform, write(folder / name, {"bundle.toml": text, "slets.py": slets}))
    app = Application("road", plugins=platform.plugins)
    app.durable(every=0.2)
    reports = app.channel("reports", kind="queue", capacity=500)
    jams = app.channel("jams", kind="queue", capacity=500)
    app.add("pay", "tolls@1.0:pay", jam=jams)
    app.add("find", "jams@1.0:find", report=app.add("pass", "stock:pass_on", item=reports), out=jams)
    app.add("make", "speeds@1.0.0:make", number=app.add("numbers", count_up, start=1), out=reports)
    platform.apply(app.build())
    tolls_go_on(platform)


def tolls_go_on(platform: Platform) -> None:
    """Wait until many further items have come to the end; no slet has raised."""
    components = platform.deployment("road").components
    before = components["pay"].state.number
    eventually(lambda: components["pay"].state.number > before + 1000)
    assert {name: one.error for name, one in components.items() if one.error} == {}


def test_what_imports_from_a_bundle_is_taken_along(tmp_path: Path):
    """All code has the new class at once, and after a restart; a later update begins with the same code."""
    with Platform(state=tmp_path / "state", control=False) as platform:
        tolled(platform, tmp_path)
        for version in (2, 3):
            newer = ITEMS.replace("mood: Mood = Mood.CALM", f"mood: Mood = Mood.CALM\n    road: int = {version}")
            facts = platform.bundles.update(itemized(tmp_path, f"{version}.0.0", newer))
            along = [f"jams@1.0+speeds.{version}.0.0", f"tolls@1.0+jams.1.0.speeds.{version}.0.0"]
            assert (facts["replaced"], facts["along"]) == (["road.find", "road.make", "road.pay"], along)
            names = [key.partition("@")[0] for key in facts["stopped"]]
            assert names == ["tolls", "jams", "speeds"]
            tolls_go_on(platform)
            paid = platform.deployment("road").components["pay"]
            eventually(lambda paid=paid, version=version: paid.state.last.report.road == version)
    with Platform(state=tmp_path / "state", control=False) as platform:
        assert [key for key, state in states(platform).items() if state == "started"] == [
            "jams@1.0+speeds.3.0.0",
            "speeds@3.0.0",
            along[1],
        ]
        tolls_go_on(platform)


def test_what_excludes_the_new_version_stays_with_the_old(platform: Platform, tmp_path: Path):
    """Unless it runs beside what is replaced: then the update is refused; the cure of the error is followed."""
    started(platform, itemized(tmp_path, "1.0.0", ITEMS))
    text = manifest("1.0", "jams", '[requires]\nbundles = ["speeds<2"]', '["slets:find"]')
    started(platform, write(tmp_path / "jams", {"bundle.toml": text, "slets.py": JAMS}))
    app = Application("road", plugins=platform.plugins)
    made = app.add("make", "speeds@1.0.0:make", number=app.add("numbers", count_up, start=1))
    app.add("find", "jams@1.0:find", report=made)
    platform.apply(app.build())
    newer = itemized(tmp_path, "2.0.0", ITEMS)
    with pytest.raises(
        BundleError, match=r"jams@1.0 requires speeds<2, and road.find, .* first update jams to a version"
    ):
        platform.bundles.update(newer)
    assert states(platform) == {"jams@1.0": "started", "speeds@1.0.0": "started"}
    (tmp_path / "jams" / "bundle.toml").write_text(text.replace("1.0", "1.1").replace("<2", ""))
    platform.bundles.update(tmp_path / "jams")
    without = itemized(tmp_path, "1.9.0", ITEMS.replace("Report", "Note"))
    with pytest.raises(
        BundleError, match=r"speeds@1.9.0 cannot be imported by jams@1.1: ImportError: cannot import name"
    ):
        platform.bundles.update(without)
    assert states(platform) == {"jams@1.0": "resolved", "jams@1.1": "started", "speeds@1.0.0": "started"}
    assert platform.bundles.update(newer)["along"] == ["jams@1.1+speeds.2.0.0"]
    platform.bundles.start("jams@1.0")
    facts = platform.bundles.update(itemized(tmp_path, "2.1.0", ITEMS))
    assert facts["along"] == ["jams@1.1+speeds.2.1.0"]
    assert facts["warnings"] == ["warning: jams@1.0 goes on with the old version: it requires speeds<2"]
