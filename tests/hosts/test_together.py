"""Changes of several applications: all of them, or none."""

from __future__ import annotations

import _thread
import dataclasses
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from exop import Application, Memento, Platform, hookimpl, slet
from exop.errors import MementoError, PlanError, StaleMesh
from exop.hooks import Plugins
from exop.hosts.protocol import together
from exop.hosts.protocol.together import change_together
from exop.runtime.drivers.base import current_driver
from exop.runtime.durable.store import Store
from exop.wiring.changes.change import Change, Phase
from tests.change.tools import endless
from tests.rig import PATIENCE, eventually


class Last(Memento):
    """The last number."""

    number: int = 0
    wrong: int = 0


class Other(Memento):
    """Refuses the state of one application."""

    number: int = 0
    wrong: int = 0

    @classmethod
    def upgrade(cls, old: Last) -> Other:
        """Take over."""
        if old.number < 0:
            raise ValueError("no")
        return cls(number=old.number, wrong=old.wrong)


@slet
def check(item: int, last: Last) -> None:
    """Count what does not follow."""
    last.wrong += item != last.number + 1 and last.number >= 0
    last.number = item if last.number >= 0 else -1


@slet
def check_too(item: int, last: Last) -> None:
    """Count what does not follow, by other code."""
    last.wrong += item != last.number + 1
    last.number = item


@slet
def other(item: int, last: Other) -> None:
    """Count what does not follow."""
    last.wrong += item != last.number + 1
    last.number = item


class Offered:
    """The slets, as a plugin offers them."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [check, check_too, other, endless]


def stored(state: Path) -> Platform:
    """A platform with a state directory."""
    plugins = Plugins()
    plugins.register("test", Offered())
    return Platform(state=state, control=False, plugins=plugins)


def run(platform: Platform, *names: str) -> list[Any]:
    """Start applications that count for ever."""
    for name in names:
        app = Application(name)
        app.add("check", check, item=app.add("numbers", endless))
        platform.apply(app.build())
    return [platform.deployment(name) for name in names]


def plans(platform: Platform, *names: str) -> list[Any]:
    """Replace the check in each of them."""
    found = [platform.plan(platform.mesh(name).replace("check", other)) for name in names]
    return [plan.bounded(pause=PATIENCE) for plan in found]  # how long an upgrade takes does not matter here


def test_all_of_them():
    """Each has its new slet, with its state, and a revision more."""
    with Platform() as platform:
        deployments = run(platform, "a", "b", "c")
        for mesh in change_together(platform._applications, plans(platform, "a", "b", "c")):
            assert mesh.revision == 2
        for one in deployments:
            eventually(lambda one=one: one.components["check"].state.number > 1000)
            assert one.components["check"].spec.name == "other"
            assert one.components["check"].state.wrong == 0


def test_or_none():
    """The last one refuses its state when all others have everything in its place: all go back."""
    with Platform() as platform:
        deployments = run(platform, "a", "b", "c")
        deployments[2].components["check"].state.number = -1
        with pytest.raises(MementoError, match="ValueError: no"):
            change_together(platform._applications, plans(platform, "a", "b", "c"))
        for one in deployments[:2]:
            seen = one.components["check"].state.number
            eventually(lambda one=one, seen=seen: one.components["check"].state.number > seen + 1000)
            assert one.components["check"].state.wrong == 0
        for one in deployments:
            assert one.mesh.revision == 1
            assert one.components["check"].spec.name == "check"
            entry = platform.history(one.name)[-1]
            assert (entry["what"], entry["steps"]) == ("change", ["replace check"])
            assert "ValueError: no" in entry["outcome"]
        assert len(platform.registry.find("Slet", "(node=check)")) == 3


def test_a_stale_plan_or_a_removed_application_stops_all():
    """The slets opened for the others are closed again."""
    with Platform() as platform:
        run(platform, "a", "b")
        made = plans(platform, "a", "b")
        platform.apply(platform.mesh("b").suspend("check"))
        with pytest.raises(StaleMesh):
            change_together(platform._applications, made)
        made = plans(platform, "a", "b")
        platform.remove("b")
        with pytest.raises(PlanError, match="b was removed: there is nothing"):
            change_together(platform._applications, made)
        assert platform.mesh("a").revision == 1
        assert len(platform.registry.find("Slet", "(node=check)")) == 1


def live(state: str) -> None:
    """One life of a platform, in which two applications are changed at once."""
    with stored(Path(state)) as platform:
        run(platform, "a", "b")
        change_together(platform._applications, plans(platform, "a", "b"))


@pytest.mark.parametrize(("moment", "made"), [("rebind-after:2", False), ("change-made", True)])
def test_a_crash_leaves_all_or_none(moment, made, tmp_path: Path):
    """Before the transaction that stores both, a crash leads back; after it, both start as they have become."""
    program = f"from tests.hosts.test_together import live; live({str(tmp_path)!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EXOP_FAILPOINT": moment}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=PATIENCE)
    assert ran.returncode == -9
    with stored(tmp_path) as platform:
        running = {platform.mesh(name).node("check").slet.name for name in "ab"}
    assert running == {"other" if made else "check"}


def test_two_plans_of_one_application_are_refused():
    """The second one would be stale; nothing is made."""
    with Platform() as platform:
        run(platform, "a")
        with pytest.raises(PlanError, match="a has two plans in one change"):
            change_together(platform._applications, plans(platform, "a", "a"))
        assert platform.mesh("a").revision == 1


def goes_on(deployment: Any) -> None:
    """Items flow, and none was lost or doubled."""
    seen = deployment.components["check"].state.number
    eventually(lambda: deployment.components["check"].state.number > seen + 1000)
    assert deployment.components["check"].state.wrong == 0


def interfere(monkeypatch: pytest.MonkeyPatch, step: str, action: Any) -> dict[str, Change]:
    """Let *action* be done in a step of the application b, before it; returns the changes, as they come, by name."""
    take, changes = Change._take, dict[str, Change]()

    def taking(self: Change, start: Phase, do: Any, end: Phase) -> None:
        changes[self.name] = self

        def both() -> None:
            if self.name == "b" and do.func.__name__ == step:
                action()
            do()

        take(self, start, both, end)

    monkeypatch.setattr(Change, "_take", taking)
    return changes


def fail(*_: Any) -> None:
    """Fail."""
    raise PlanError("not now")


@pytest.mark.parametrize("step", ["prepare", "stage", "cut", "the store"])
def test_one_that_fails_at_any_step_keeps_all_as_they_were(step, monkeypatch, tmp_path: Path):
    """The error is the one of that step; the streams, the registry and the state directory are as before."""
    with stored(tmp_path) as platform:
        deployments = run(platform, "a", "b", "c")
        made = plans(platform, "a", "b", "c")
        with monkeypatch.context() as patch:
            if step == "the store":
                patch.setattr(Store, "update", fail)
            else:
                interfere(patch, step, fail)
            with pytest.raises(PlanError, match="not now"):
                change_together(platform._applications, made)
        for one in deployments:
            assert one.components["check"].spec.name == "check"
            assert one.mesh.revision == 1
            goes_on(one)
        assert len(platform.registry.find("Slet", "(node=check)")) == 3
        store = platform._applications.store
        assert store is not None
        assert {one.revision for one in store.applications()} == {1}
        assert {mesh.revision for mesh in change_together(platform._applications, made)} == {2}
        assert {one.revision for one in store.applications()} == {2}


def test_one_that_hangs_holds_the_others_until_the_deadline_only(monkeypatch):
    """At the time-out they run on as they were, while it still hangs; the error names it."""
    hanging, go_on = threading.Event(), threading.Event()
    begin, prepare = time.monotonic(), Change.prepare

    def clock() -> float:
        """No time passes before it hangs; the deadline has passed then."""
        return time.monotonic() + 1000.0 if hanging.is_set() else begin

    def prepare_patiently(self: Change) -> None:
        """Only the deadline of all of them ends it."""
        self.pause.timeout = PATIENCE
        prepare(self)

    monkeypatch.setattr(together, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(together, "ANSWERING", 0.0)
    monkeypatch.setattr(Change, "prepare", prepare_patiently)
    with Platform() as platform, ThreadPoolExecutor(1) as pool:
        a, b = run(platform, "a", "b")
        made = [platform.plan(platform.mesh(name).replace("check", other)) for name in "ab"]

        def hang() -> None:
            hanging.set()
            assert go_on.wait(PATIENCE)

        interfere(monkeypatch, "cut", hang)
        made = [dataclasses.replace(plan, timeout=0.3) for plan in made]
        applied = pool.submit(change_together, platform._applications, made)
        try:
            assert hanging.wait(PATIENCE)
            goes_on(a)
            with pytest.raises(PlanError, match=r"no answer to cut from (a, )?b within 0\.3 s"):
                applied.result(PATIENCE)
        finally:
            go_on.set()
        goes_on(b)
        assert [platform.mesh(name).revision for name in "ab"] == [1, 1]


@pytest.mark.parametrize("names", ["abc", "b"])
def test_an_error_after_the_decision_is_raised_when_all_are_made(names, monkeypatch, tmp_path: Path):
    """The old slets of one application cannot leave: the changes stand and are stored, and the caller learns of it."""
    finish = Change.finish

    def finished(self: Change) -> None:
        finish(self)
        if self.name == "b":
            fail()

    with stored(tmp_path) as platform:
        deployments = run(platform, *names)
        with monkeypatch.context() as patch:
            patch.setattr(Change, "finish", finished)
            with pytest.raises(PlanError, match="not now"):
                change_together(platform._applications, plans(platform, *names))
        for one in deployments:
            assert (one.mesh.revision, one.components["check"].spec.name) == (2, "other")
            goes_on(one)
        store = platform._applications.store
        assert store is not None
        assert {one.revision for one in store.applications()} == {2}


def test_nothing_begins_without_a_thread_for_each(monkeypatch):
    """The threads that were started before the one that cannot be end, and the applications run on."""
    start = threading.Thread.start

    def started(self: threading.Thread) -> None:
        if self.name == "exop b change":
            raise RuntimeError("can't start new thread")
        start(self)

    with Platform() as platform:
        deployments = run(platform, "a", "b", "c")
        made = plans(platform, "a", "b", "c")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", started)
            with pytest.raises(RuntimeError, match="can't start"):
                change_together(platform._applications, made)
        eventually(lambda: not [one for one in threading.enumerate() if one.name.endswith(" change")])
        change_together(platform._applications, made)
        for one in deployments:
            assert one.mesh.revision == 2
            goes_on(one)


def test_an_interrupt_undoes_all(monkeypatch):
    """Ctrl-C while one of them is in a step: the others go on as they were at once, and so does that one."""
    hanging, go_on = threading.Event(), threading.Event()
    with Platform() as platform, ThreadPoolExecutor(1) as pool:
        a, b = run(platform, "a", "b")

        def hang() -> None:
            hanging.set()
            assert go_on.wait(PATIENCE)

        def interrupt() -> None:
            assert hanging.wait(PATIENCE)
            eventually(lambda: changes["a"].phase is Phase.HELD)
            _thread.interrupt_main()
            eventually(lambda: changes["a"].phase is Phase.ABORTED)
            goes_on(a)
            go_on.set()

        changes = interfere(monkeypatch, "cut", hang)
        interrupted = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            change_together(platform._applications, plans(platform, "a", "b"))
        interrupted.result(PATIENCE)
        goes_on(b)
        assert [platform.mesh(name).revision for name in "ab"] == [1, 1]


@pytest.mark.parametrize("caller", ["a memento", "the store"])
def test_a_change_from_within_a_change_is_refused(caller, monkeypatch, tmp_path: Path):
    """`apply` within code that a change calls is refused at once; no driver runs that code."""
    refused: list[str] = []
    upgrade, update = Other.upgrade, Store.update

    def apply() -> None:
        assert current_driver() is None
        with pytest.raises(PlanError) as error:
            platform.apply(platform.mesh("a").suspend("check"))
        refused.append(str(error.value))

    with stored(tmp_path) as platform:
        run(platform, "a", "b")
        if caller == "the store":
            monkeypatch.setattr(Store, "update", lambda self, *meshes: (apply(), update(self, *meshes)))
        else:
            monkeypatch.setattr(Other, "upgrade", lambda old: (apply(), upgrade(old))[1])
        change_together(platform._applications, plans(platform, "a", "b"))
        assert refused
        assert {text.partition(" from within")[0] for text in refused} == {"a cannot be changed"}


class Kept(Memento):
    """The state of a slet that is to be replaced."""


class Upgraded(Memento):
    """The state that would follow."""

    upgrades: ClassVar[list[Memento]] = []

    @classmethod
    def upgrade(cls, old: Kept) -> Upgraded:
        """Note that it was tried."""
        cls.upgrades.append(old)
        return cls()


@slet
def upgraded(item: int, kept: Upgraded) -> None:
    """Take the place of another one."""


def test_a_slet_that_changes_its_own_application_is_refused():
    """It would wait for its own end; it is refused before it waits for the turn, and before a hand-over is tried."""
    refused: list[str] = []
    running = threading.Event()

    @slet
    def meddle(item: int, kept: Kept) -> None:
        """Change the mesh that this slet is in."""
        if running.is_set() and not refused:
            mesh = platform.mesh("app")
            for edited in (mesh.suspend("meddle"), mesh.replace("meddle", upgraded)):
                with pytest.raises(PlanError) as error:
                    platform.apply(edited)
                refused.append(str(error.value))

    with Platform() as platform:
        app = Application("app")
        app.add("meddle", meddle, item=app.add("numbers", endless))
        platform.apply(app.build())
        running.set()
        eventually(lambda: len(refused) == 2)
    assert {*refused} == {"a slet of 'app' cannot change its own application; do it from another thread"}
    assert not Upgraded.upgrades


def test_a_listener_that_applies_waits_or_is_refused():
    """A listener hears of the new slets while the change is made; what it applies never waits for itself."""
    outcomes: list[str] = []

    def apply(_: object) -> None:
        if platform.mesh("a").node("check").slet.name == "check" and not outcomes:
            try:
                outcomes.append(f"revision {platform.apply(platform.mesh('a').suspend('check')).revision}")
            except PlanError as error:
                outcomes.append(str(error))

    with Platform() as platform:
        _, b = run(platform, "a", "b")
        with platform.registry.listen("(node=check)", apply):
            made = plans(platform, "a", "b")
            with suppress(StaleMesh):
                change_together(platform._applications, made)
            eventually(lambda: outcomes)
        goes_on(b)


def test_a_hundred_appliers_of_any_applications():
    """Each plan is made whole or refused as stale; no two appliers wait for each other."""
    names = ("a", "b", "c", "d")
    chance = random.Random(7)
    choices = [chance.sample(names, chance.randint(1, 3)) for _ in range(100)]
    with Platform() as platform, ThreadPoolExecutor(100) as pool:
        deployments = run(platform, *names)

        def apply(chosen: list[str]) -> list[str]:
            meshes = [platform.mesh(name) for name in chosen]
            others = [check_too if mesh.node("check").slet.name == "check" else check for mesh in meshes]
            edits = [mesh.replace("check", slet) for mesh, slet in zip(meshes, others, strict=True)]
            try:
                change_together(platform._applications, [platform.plan(mesh) for mesh in edits])
            except StaleMesh:
                return []
            return chosen

        made = Counter(name for chosen in pool.map(apply, choices, timeout=PATIENCE) for name in chosen)
        assert made
        for one in deployments:
            assert one.mesh.revision == 1 + made[one.name]
            goes_on(one)
