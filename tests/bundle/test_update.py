"""One version takes the place of another in all applications while they run, or nothing has changed."""

from __future__ import annotations

import inspect
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from exop import Application, Memento, Platform, slet
from exop.errors import BundleBroken, BundleError, ComponentFailed, MementoError, MeshError, PlanError
from exop.stock.slets import count_up
from tests.bundle.folders import SLETS, adding_up, manifest, speeds, started, states, write
from tests.rig import eventually

T = TypeVar("T")

#: A slet that finds out whether an item was lost, doubled or reordered, and by which versions the items went.
CHECKING = """
from dataclasses import dataclass, field
from enum import Enum
from exop import Memento, slet
from speeds.helpers import SCALE

class Mood(Enum):
    CALM = 1

@dataclass
class Last:
    number: int = 0
    mood: Mood = Mood.CALM

class Seen(Memento):
    last: Last = field(default_factory=Last)
    by_mood: dict[Mood, int] = field(default_factory=dict)

@slet
def add_up(number: int, seen: Seen) -> tuple[int, int]:
    assert type(seen.last) is Last and seen.last.mood is Mood.CALM
    assert number == seen.last.number + 1, (number, seen.last.number)
    seen.last.number = number
    seen.by_mood[Mood.CALM] = number
    return number, SCALE
"""


class Arrived(Memento):
    """What has come to the end of a stream."""

    last: int = 0
    wrong: int = 0
    scale: int = 0


@slet
def check(pair: tuple[int, int], arrived: Arrived) -> None:
    """Count the numbers that do not follow the one before them."""
    arrived.wrong += pair[0] != arrived.last + 1
    arrived.last, arrived.scale = pair


def road(platform: Platform, name: str, slet: str = "speeds@1.0.0:add_up") -> Any:
    """Run an application in full stride: numbers → a slet of the bundle → a queue → a check. Returns its deployment."""
    app = Application(name, plugins=platform.plugins)
    queue = app.channel("queue", kind="queue", capacity=1000)
    app.add("sum", slet, number=app.add("numbers", count_up, start=1), out=queue)
    app.add("check", check, pair=queue)
    platform.apply(app.build())
    return platform.deployment(name)


def test_nothing_is_lost_under_full_load(platform: Platform, tmp_path: Path):
    """Ten updates of two running applications: no number lost, doubled or reordered, every state carried over."""
    started(platform, speeds(tmp_path, slets=CHECKING, scale=0))
    running = [road(platform, "one"), road(platform, "two")]
    for number in range(1, 11):
        version = f"1.{number}.0"
        facts = platform.bundles.update(speeds(tmp_path, version, number, slets=CHECKING))
        assert facts["replaced"] == ["one.sum", "two.sum"]
        assert facts["stopped"] == ["speeds@1.0.0" if number == 1 else f"speeds@1.{number - 1}.0"]
        for one in running:
            eventually(lambda one=one, number=number: one.components["check"].state.scale == number)
    for one in running:
        assert one.components["check"].state.wrong == 0
        assert one.components["sum"].error is None
        assert one.components["sum"].spec.identity == "speeds@1.10.0:add_up"
    assert [key for key, state in states(platform).items() if state == "started"] == ["speeds@1.10.0"]


def test_defaults_come_with_the_new_version(platform: Platform, tmp_path: Path):
    """A setting that somebody set stays, also at the old default; the facts tell those that change."""
    started(platform, speeds(tmp_path, slets=CHECKING.replace("seen: Seen)", "seen: Seen, *, a: int = 1, b: int = 1)")))
    road(platform, "one")
    platform.apply(platform.mesh("one").configure("sum", b=1))
    newer = CHECKING.replace("seen: Seen)", "seen: Seen, *, a: int = 2, b: int = 2)")
    facts = platform.bundles.update(speeds(tmp_path, "1.1.0", slets=newer))
    assert facts["settings"] == {"one.sum": ["a: 1 → 2 (the default of add_up)"]}
    assert platform.mesh("one").node("sum").settings == {"a": 2, "b": 1}


def runs_on(deployment: Any, revision: int = 1) -> None:
    """The stream moves, and its mesh is still the one of before."""
    seen = deployment.components["check"].state.last
    eventually(lambda: deployment.components["check"].state.last > seen + 1000)
    assert deployment.mesh.revision == revision
    assert deployment.components["check"].state.wrong == 0


UPGRADING = """
    @classmethod
    def upgrade(cls, old):
        if hasattr(old, 'mark'):
            raise ValueError('no')
        return cls(last=old.last, by_mood=old.by_mood)

@slet
"""


def test_all_applications_or_none(platform: Platform, tmp_path: Path):
    """The second application refuses at the last moment: the first, which had everything in its place, is put back."""
    started(platform, speeds(tmp_path, slets=CHECKING))
    running = [road(platform, "one"), road(platform, "two")]
    marked = running[1].components["sum"].state
    failing = CHECKING.replace("class Seen(Memento):", "class Seen(Memento, version=2):\n    marked: bool = False")
    failing = failing.replace("@slet", UPGRADING)
    object.__setattr__(marked, "mark", True)
    with pytest.raises(MementoError, match="upgrade raised ValueError: no"):
        platform.bundles.update(speeds(tmp_path, "2.0.0", slets=failing))
    assert states(platform) == {"speeds@1.0.0": "started"}
    for one in running:
        runs_on(one)
    object.__delattr__(marked, "mark")
    platform.bundles.update(speeds(tmp_path, "2.0.0", 2, slets=failing))
    for one in running:
        eventually(lambda one=one: one.components["check"].state.scale == 2)
        runs_on(one, 2)


OPENING = (
    CHECKING.partition("@slet")[0]
    + """
from exop import Slet, input_port

class AddUp(Slet, name="add_up"):
    seen: Seen

    def __enter__(self):
        raise OSError("no such road")

    @input_port
    def number(self, number: int) -> tuple[int, int]:
        return number, 0
"""
)
BROKEN = {
    "a port": (CHECKING.replace("(number: int,", "(item: int,").replace("number ", "item "), MeshError, "no port"),
    "a slet": (CHECKING.replace("def add_up", "def more"), BundleError, "offers no slet 'add_up', which one.sum runs"),
    "an import": (CHECKING + "\nimport nowhere\n", BundleBroken, "No module named 'nowhere'"),
    "a state": (OPENING.replace("    seen: Seen\n", ""), MementoError, "it keeps no state"),
    "opening": (OPENING, ComponentFailed, "no such road"),
    "a field": (
        CHECKING.replace("    mood: Mood = Mood.CALM\n", "").replace(" and seen.last.mood is Mood.CALM", ""),
        MementoError,
        r"the field 'last.mood' \(Mood\) is gone",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_update_that_fails_changes_nothing(platform: Platform, tmp_path: Path, what: str):
    """Whatever is wrong with the new version: it is told, the new version is gone, and the old one runs on."""
    slets, error, told = BROKEN[what]
    started(platform, speeds(tmp_path, slets=CHECKING))
    one = road(platform, "one")
    folder = speeds(tmp_path, "2.0.0", slets=slets)
    offered = next(name for name in ("AddUp", "more", "add_up") if f" {name}(" in slets)
    (folder / "bundle.toml").write_text(manifest("2.0.0", offers=f'["slets:{offered}"]'))
    with pytest.raises(error, match=told):
        platform.bundles.update(folder)
    assert states(platform) == {"speeds@1.0.0": "started"}
    runs_on(one)


#: The same slet, which owns a file while it is open.
OWNING = (
    CHECKING[: CHECKING.index("@slet")].replace("Memento, slet", "Memento, Slet, input_port")
    + """
import os
from pathlib import Path

class AddUp(Slet, name="add_up"EXCLUSIVE):
    seen: Seen

    def __enter__(self):
        os.close(os.open(PATH, os.O_CREAT | os.O_EXCL))
        return self

    def __exit__(self, *exc):
        os.remove(PATH)

    @input_port
    def number(self, number: int) -> tuple[int, int]:
        assert number == self.seen.last.number + 1, (number, self.seen.last.number)
        self.seen.last.number = number
        return number, SCALE
"""
)


def test_slets_that_own_a_file_are_updated_if_they_say_so(platform: Platform, tmp_path: Path):
    """Without the keyword, the error names it; with the keyword, the update is made, or undone by opening it again."""

    def owning(version: str, exclusive: str, more: str = "") -> Path:
        slets = OWNING.replace("PATH", repr(str(tmp_path / "owned"))).replace("EXCLUSIVE", exclusive) + more
        folder = speeds(tmp_path, version, int(version[0]), slets=slets)
        (folder / "bundle.toml").write_text(manifest(version, offers='["slets:AddUp"]'))
        return folder

    started(platform, owning("1.0.0", ""))
    one = road(platform, "one")
    with pytest.raises(ComponentFailed, match="File exists") as refused:
        platform.bundles.update(owning("2.0.0", ""))
    assert any("write `class AddUp(…, exclusive=True)`" in note for note in refused.value.__notes__)
    platform.bundles.update(owning("3.0.0", ", exclusive=True"))
    eventually(lambda: one.components["check"].state.scale == 3)
    failing = owning("4.0.0", ", exclusive=True", "    def ready(self):\n        raise OSError('no such road')\n")
    with pytest.raises(ComponentFailed, match="no such road") as refused:
        platform.bundles.update(failing)
    assert "one.sum was closed for its successor, and is open again, with its state" in refused.value.__notes__
    runs_on(one, revision=2)
    assert one.components["sum"].spec.identity == "speeds@3.0.0:add_up"


def test_what_an_update_had_started_is_stopped_again(platform: Platform, tmp_path: Path):
    """Bundles that the new version requires were started for it alone."""
    started(platform, speeds(tmp_path))
    constants = {"bundle.toml": manifest("1.0", "constants", offers="[]"), "constant.py": "X = 1\n"}
    platform.bundles.install(write(tmp_path / "constants", constants))
    slets = "from constants.constant import X\nimport nowhere\n"
    with pytest.raises(BundleBroken):
        platform.bundles.update(speeds(tmp_path, "2.0.0", more='[requires]\nbundles = ["constants"]', slets=slets))
    assert states(platform) == {"constants@1.0": "resolved", "speeds@1.0.0": "started"}


def test_an_unchanged_memento_is_not_upgraded(platform: Platform, tmp_path: Path):
    """Its `upgrade` is for an older one: it would be given what it does not know."""
    upgrading = SLETS.replace(
        "@slet",
        "    @classmethod\n    def upgrade(cls, old):\n        return cls(sum=old.amount)\n\n\n@slet",
    )
    started(platform, speeds(tmp_path, slets=upgrading))
    adding_up(platform, "sums")
    platform.bundles.update(speeds(tmp_path, "1.1.0", slets=upgrading))
    before = platform.deployment("sums").components["sum"].state.sum
    eventually(lambda: platform.deployment("sums").components["sum"].state.sum > before > 0)
    plan = str(platform.plan(platform.mesh("sums").replace("sum", platform.slets()["speeds@1.1.0:add_up"])))
    assert "nothing to do" in plan


ITEMS = """
from enum import Enum
from dataclasses import dataclass
from exop import Memento, slet

class Mood(Enum):
    CALM = 1

@dataclass(frozen=True)
class Report:
    number: int
    mood: Mood = Mood.CALM

class Last(Memento):
    number: int = 0
    seen: int = 0

@slet
def make(number: int) -> Report:
    return Report(number)

@slet
def take(report: Report, last: Last) -> None:
    if type(report) is not Report or report.mood is not Mood.CALM:
        raise TypeError(report)
    if report.number != last.number + 1:
        raise ValueError((report.number, last.number))
    last.number = report.number

@slet
def look(reports: list[Report], last: Last) -> None:
    if not all(type(one) is Report for one in reports):
        raise TypeError(reports)
    last.seen += 1
"""


def reporting(platform: Platform) -> Any:
    """Items of the bundle's own classes wait in a queue, in a window and in a latch."""
    app = Application("reports", plugins=platform.plugins)
    reports = app.channel("reports", kind="queue", capacity=500)
    app.add("make", "speeds@1.0.0:make", number=app.add("numbers", count_up, start=1), out=reports)
    app.add("take", "speeds@1.0.0:take", report=reports)
    window = app.channel("window", kind="window", count=10)
    app.add("pass", "stock:pass_on", item=reports, out=window)
    app.add("look", "speeds@1.0.0:look", reports=window)
    platform.apply(app.build())
    return platform.deployment("reports")


def itemized(folder: Path, version: str, slets: str) -> Path:
    """A version of the bundle with these slets."""
    made = speeds(folder, version, slets=slets)
    offers = '["slets:make", "slets:take", "slets:look"]'
    (made / "bundle.toml").write_text(manifest(version, offers=offers))
    return made


def test_items_under_way_are_of_the_new_classes(platform: Platform, tmp_path: Path):
    """What waits in channels was made by the old version: the new slets get it as values of their own classes."""
    started(platform, itemized(tmp_path, "1.0.0", ITEMS))
    components = reporting(platform).components
    for number in range(1, 6):
        before = components["take"].state.number
        eventually(lambda before=before: platform.deployment("reports").components["take"].state.number > before + 500)
        platform.bundles.update(itemized(tmp_path, f"1.{number}.0", ITEMS))
        components = platform.deployment("reports").components
    before, seen = components["take"].state.number, components["look"].state.seen
    eventually(lambda: components["take"].state.number > before + 5000 and components["look"].state.seen > seen)
    assert {name: one.error for name, one in components.items() if one.error} == {}


class Held(Memento):
    """Items that a slet of another package holds back."""

    items: list[Any] = field(default_factory=list)


@slet
def hold_back(item: T, held: Held) -> T | None:
    """Pass on each item behind three later ones."""
    held.items.append(item)
    return held.items.pop(0) if len(held.items) > 3 else None


def test_a_new_field_comes_through_slets_of_other_packages(platform: Platform, tmp_path: Path):
    """What waits in front of a slet that takes items of any type, and in its state, is of the new class, too."""
    started(platform, itemized(tmp_path, "1.0.0", ITEMS))
    app = Application("reports", plugins=platform.plugins)
    waiting = app.channel("waiting", kind="queue", capacity=500)
    app.add("make", "speeds@1.0.0:make", number=app.add("numbers", count_up, start=1), out=waiting)
    app.add("take", "speeds@1.0.0:take", report=app.add("hold", hold_back, item=waiting))
    platform.apply(app.build())
    new = ITEMS.replace("mood: Mood = Mood.CALM", "mood: Mood = Mood.CALM\n    road: int = 5")
    for version in ("2.0.0", "2.1.0"):
        components = platform.deployment("reports").components
        before = components["take"].state.number
        eventually(lambda seen=before, now=components: now["take"].state.number > seen + 1000)
        platform.bundles.update(itemized(tmp_path, version, new))
    components = platform.deployment("reports").components
    before = components["take"].state.number
    eventually(lambda: components["take"].state.number > before + 1000)
    assert {name: one.error for name, one in components.items() if one.error} == {}
    assert {one.road for one in components["hold"].state.items} == {5}


def test_items_that_the_new_version_does_not_know_keep_the_old(platform: Platform, tmp_path: Path):
    """What waits cannot become what it must be: the update is refused, and what waited is as it was."""
    started(platform, itemized(tmp_path, "1.0.0", ITEMS))
    components = reporting(platform).components
    eventually(lambda: components["take"].state.number > 500)
    without = ITEMS.replace("number: int\n    mood: Mood = Mood.CALM", "number: int")
    without = without.replace(" or report.mood is not Mood.CALM", "")
    with pytest.raises(PlanError, match="an item that waits in reports cannot be handed over: .*Report has no"):
        platform.bundles.update(itemized(tmp_path, "2.0.0", without))
    before = components["take"].state.number
    eventually(lambda: components["take"].state.number > before + 5000)
    assert {name: one.error for name, one in components.items() if one.error} == {}


def test_there_must_be_something_to_update(platform: Platform, tmp_path: Path):
    """A bundle that is not started here is told to be started; it is not installed by the way."""
    with pytest.raises(BundleError, match="is not started here in another version; start the first version"):
        platform.bundles.update(speeds(tmp_path))
    assert platform.bundles.list() == []


def test_a_durable_application_goes_on_with_the_new_version(tmp_path: Path):
    """After an update the checkpoint names the new classes; what was stored under the old ones is found again."""
    state = tmp_path / "state"
    with Platform(state=state, control=False) as platform:
        started(platform, speeds(tmp_path, slets=CHECKING))
        app = Application("road", plugins=platform.plugins)
        app.add(
            "show", "stock:pass_on", item=app.add("sum", "speeds@1.0.0:add_up", number=app.add("n", count_up, start=1))
        )
        app.durable(every=60)
        platform.apply(app.build())
        components = platform.deployment("road").components
        eventually(lambda: components["sum"].state.last.number > 100)
        platform.bundles.update(speeds(tmp_path, "2.0.0", slets=CHECKING))
        platform.bundles.uninstall("speeds@1.0.0")
    with Platform(state=state, control=False) as platform:
        assert platform.failed_to_restart == {}
        component = platform.deployment("road").components["sum"]
        assert component.spec.identity == "speeds@2.0.0:add_up"
        assert component.state.last.number > 100
        assert inspect.getmodule(type(component.state.last)).__name__ == "exop_bundles.speeds_v2_0_0.slets"
        eventually(lambda: component.state.last.number > 1000)
        assert component.error is None


#: A sink whose state becomes another one with the new version.
NOTING = """
from exop import Memento, slet

class Seen(Memento):
    number: int = 0

@slet
def add_up(number: int, seen: Seen) -> None:
    seen.number = number
"""
UPGRADED = """
from exop import Memento, slet

class SeenToo(Memento):
    number: int = 0

    @classmethod
    def upgrade(cls, old):
        return cls(number=old.number)

@slet
def add_up(number: int, seen: SeenToo) -> None:
    seen.number = number
"""


def test_a_hand_over_that_takes_longer_than_the_pause_needs_consent(platform: Platform, tmp_path: Path):
    """It is tried on a copy first: refused, the new version is taken away again; allowed, all applications have it."""
    started(platform, speeds(tmp_path, slets=NOTING))
    for name in ("one", "two"):
        adding_up(platform, name)
    newer = speeds(tmp_path, "1.1.0", slets=UPGRADED)
    with pytest.raises(
        PlanError, match=r"SeenToo.upgrade of sum, as tried on a copy .*outside of the mesh.*--allow-stall"
    ):
        platform.bundles.update(newer, pause=0.0)
    assert states(platform) == {"speeds@1.0.0": "started"}
    assert [platform.mesh(name).revision for name in ("one", "two")] == [1, 1]
    assert platform.bundles.update(newer, pause=0.0, stall=True)["replaced"] == ["one.sum", "two.sum"]
