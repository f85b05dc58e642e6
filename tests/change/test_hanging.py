"""Code of a slet that hangs or raises stops neither the stream nor the operator, wherever the platform calls it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

from bench.durable_app.engine import Doubled
from exop import Application, Memento, OutputPort, Platform, Slet, hookimpl, input_port, slet
from exop.errors import CheckpointError, ComponentFailed, PlanError
from exop.hooks import Plugins
from exop.wiring.controller import WiringController
from tests.change.tools import chain, changed, grows, in_thread, plain, plain_too, steady, whole, writing
from tests.rig import PATIENCE, eventually

#: So long a change, or a removal, waits for a slet that hangs, in seconds.
SHORT = 1.0


@contextmanager
def hanging() -> Iterator[threading.Event]:
    """An event on which slets hang; it is set when the block ends."""
    gate = threading.Event()
    try:
        yield gate
    finally:
        gate.set()


def slow(gate: threading.Event, at: str) -> Any:
    """A slet that hangs in the method *at*."""

    def hang(self: Any, *given: object) -> Any:
        gate.wait(PATIENCE)
        closed.append(at)
        return self

    @input_port
    def x(self: Any, x: int) -> int:
        return x

    closed: list[str] = []
    return type(f"Slow{at.strip('_').title()}", (Slet,), {at: hang, "x": x, "closed": closed, "__module__": __name__})


@pytest.mark.parametrize(("at", "phase"), [("__enter__", "opening"), ("__post_init__", "being made")])
def test_a_slet_that_hangs_while_it_opens_or_is_made_fails_its_change_and_no_other(at, phase):
    """It is given up when its time is over; meanwhile others are made, and should it open later, it is closed."""
    seen: list[int] = []
    with hanging() as gate, Platform() as platform:
        platform.apply(chain("app", steady, plain, plain, writing(seen)).build())
        late = slow(gate, at)
        plan = platform.plan(platform.mesh("app").replace("b", late))

        def apply() -> str:
            with pytest.raises(ComponentFailed) as failed:
                plan.apply(timeout=SHORT)
            return str(failed.value)

        with in_thread(apply) as failed:
            eventually(lambda: "calls" in platform.status("app"), "the call that hangs")
            changed(platform, "app", lambda mesh: mesh.replace("c", plain_too))
        assert f"b failed while {phase}: it has not returned" in failed.result()
        grows(seen, 10)
        (call,) = platform.status("app")["calls"]
        assert (call["node"], call["phase"], call["given_up"]) == ("b", phase, True)
        gate.set()
        eventually(lambda: "calls" not in platform.status("app"), "the end of the call")
        assert platform.remove("app")
    whole(seen)


@pytest.mark.parametrize(("at", "phase"), [("__enter__", "opening"), ("__post_init__", "being made")])
def test_an_application_with_a_slet_that_hangs_does_not_start(at, phase):
    """It is given up when its time is over, and nothing of it is left; others are started meanwhile."""
    with hanging() as gate, Platform() as platform:
        app = chain("app", steady, slow(gate, at)).build()

        def apply() -> str:
            with pytest.raises(ComponentFailed) as failed:
                platform.apply(app, timeout=SHORT)
            return str(failed.value)

        with in_thread(apply) as failed:
            platform.apply(chain("other", steady, plain).build())
        assert f"b failed while {phase}: it has not returned" in failed.result()
        assert platform.applications() == ["other"]
        assert not platform.registry.find("Slet", "(application=app)")


@pytest.mark.parametrize("end", ["replace", "remove", "close"])
def test_a_slet_that_hangs_while_it_closes_is_closed_all_the_same(end, monkeypatch):
    """The change stands, the application is gone, the platform is closed: within the time-out."""
    seen: list[int] = []
    with hanging() as gate, Platform() as platform:
        platform.apply(chain("app", steady, slow(gate, "__exit__"), plain, writing(seen)).build())
        grows(seen, 10)
        if end == "replace":
            with in_thread(
                lambda: platform.plan(platform.mesh("app").replace("b", plain)).apply(timeout=SHORT)
            ) as made:
                eventually(lambda: platform.mesh("app").node("b").slet.name == "plain")
                changed(platform, "app", lambda mesh: mesh.replace("c", plain_too))
            assert made.result().node("b").slet.name == "plain"
            grows(seen, 10)
        elif end == "remove":
            assert platform.remove("app", timeout=SHORT) is False
            assert platform.applications() == []
        else:
            monkeypatch.setattr("exop.wiring.applications.LEAVING", SHORT)
            platform.close()
        (call,) = platform.components.user.plain()
        assert (call["node"], call["phase"], call["given_up"]) == ("b", "closing", True)
    whole(seen)


class Engine(Slet, own_driver=True):
    """Notes what it is told."""

    out: OutputPort[int]

    def __enter__(self) -> "Engine":
        self.told: list[str] = []
        return self

    def quiesce(self) -> None:
        """Hang, and stop only then."""
        GATE.wait(PATIENCE)
        self.told.append("quiesce")

    def proceed(self) -> None:
        """Go on."""
        self.told.append("proceed")


def test_an_engine_that_stops_late_goes_on():
    """The change that has asked it to stop was refused meanwhile: its call of `quiesce` has the last word no more."""
    GATE.clear()
    with Platform() as platform:
        platform.apply(chain("app", Engine, writing([])).build())
        component = platform.deployment("app").components["a"]
        try:
            with pytest.raises(PlanError, match="has not quiesced"):
                platform.plan(platform.mesh("app").replace("a", steady, lose_state=True)).apply(timeout=SHORT)
            assert component.instance.told == ["proceed"]
        finally:
            GATE.set()
        eventually(lambda: component.instance.told == ["proceed", "quiesce", "proceed"])


class Doubles(Memento):
    """What the engine writes when it has stopped."""

    last: int = 0


class Late(Doubled, own_driver=True, name="late"):
    """Does not stop in time."""

    doubles: Doubles

    def quiesce(self) -> None:
        """Hang, and write the memento only then."""
        GATE.wait(PATIENCE)


@slet
def doubled_too(number: int, doubles: Doubles) -> int:
    """The same, without an engine."""
    return 2 * number


def test_an_engine_is_not_replaced_with_the_memento_of_before():
    """The change is refused for the reason that it has not stopped, unless the memento is to be lost."""
    GATE.clear()
    seen: list[int] = []
    app = Application("app")
    app.add("sink", writing(seen), x=app.add("double", Late, number=app.add("source", steady)))
    with Platform() as platform:
        mesh = platform.apply(app.build())
        try:
            with pytest.raises(PlanError, match="double has not quiesced"):
                platform.plan(mesh.replace("double", doubled_too)).apply(timeout=SHORT)
            grows(seen, 10)
            platform.plan(mesh.replace("double", doubled_too, lose_state=True)).apply(timeout=SHORT)
            grows(seen, 10)
        finally:
            GATE.set()
    assert seen == [*range(2, 2 * len(seen) + 1, 2)]


def test_an_engine_that_was_told_to_go_on_is_not_stopped_by_an_earlier_call():
    """The thread of the call may begin so late that the change is undone before; the next change stops the engine."""
    with Platform() as platform:
        platform.apply(chain("app", Engine, writing([])).build())
        component = platform.deployment("app").components["a"]
        stop = component.stopping()
        component.proceed()
        stop()
        assert component.instance.told == ["proceed"]
        again = component.stopping()
        stop()
        again()
        assert component.instance.told == ["proceed", "quiesce"]


class Seen(Memento):
    """What a sink was given."""

    items: list[int] = field(default_factory=list)


class Patient(Slet):
    """A sink that puts out with checkpoints."""

    seen: Seen

    @input_port
    def x(self, x: int) -> None:
        """Take an item."""
        self.seen.items.append(x)


GATE = threading.Event()


class HangsInCommit(Patient):
    """One that hangs there, while the gate is closed."""

    def commit_checkpoint(self, number: int) -> None:
        """Hang."""
        GATE.wait(PATIENCE)


class HangsInPrepare(Patient):
    """One that hangs there, while the gate is closed."""

    def prepare_checkpoint(self, number: int) -> None:
        """Hang."""
        GATE.wait(PATIENCE)


class Offered:
    """A plugin: a durable application finds its slets by their names again."""

    @staticmethod
    @hookimpl
    def register_slets() -> list[Any]:
        """The slets of the durable applications of this page."""
        return [steady, plain, plain_too, Patient, HangsInCommit, HangsInPrepare]


def durable(folder: Path) -> Platform:
    """A platform with a state directory."""
    plugins = Plugins()
    plugins.register("hanging", Offered())
    return Platform(state=folder, control=False, plugins=plugins)


@pytest.mark.parametrize("sink", [HangsInCommit, HangsInPrepare])
def test_a_sink_that_hangs_in_a_checkpoint_is_suspended_until_it_is_replaced(sink, tmp_path, monkeypatch):
    """Checkpoints say what holds them up; other changes are made, and the successor goes on with every item.

    It is suspended in the turn of changes: what is to be bound for that is not what another change has just replaced.
    """
    region, alone = WiringController.region, list[bool]()

    def found(self: WiringController, deployment: Any, *given: Any, **named: Any) -> Any:
        alone.append(deployment.changing._is_owned())
        return region(self, deployment, *given, **named)

    monkeypatch.setattr("exop.runtime.durable.checkpointer.COMMITTING", SHORT)
    monkeypatch.setattr("exop.runtime.durable.checkpointer.PATIENCE", SHORT)
    GATE.set()
    app = chain("app", steady, plain, sink)
    app.durable(every=3600)
    with durable(tmp_path / "state") as platform:
        try:
            platform.apply(app.build())
            platform.checkpoint("app")
            monkeypatch.setattr(WiringController, "region", found)
            GATE.clear()
            component = platform.deployment("app").components["c"]
            with pytest.raises((CheckpointError, ComponentFailed), match="has not returned within"):
                platform.checkpoint("app")
            assert component.status == "failed"
            drivers = platform.deployment("app").drivers()
            eventually(lambda: any(driver.held_by for driver in drivers), "the driver that waits for the sink")
            with pytest.raises(CheckpointError, match="c holds it up: .* was given up"):
                platform.checkpoint("app")
            changed(platform, "app", lambda mesh: mesh.replace("b", plain_too))
            assert "c holds it up" in platform.status("app")["checkpoints"]["trouble"]
            changed(platform, "app", lambda mesh: mesh.replace("c", Patient))
            successor = platform.deployment("app").components["c"]
            grows(successor.instance.seen.items, 10)
            platform.checkpoint("app")
            assert platform.status("app")["checkpoints"]["trouble"] is None
            assert alone
            assert all(alone)
        finally:
            GATE.set()
        platform.remove("app")
        whole(successor.instance.seen.items)


class Old(Memento):
    """The state of before."""

    total: int = 0


class New(Memento):
    """The state that it becomes."""

    total: int = 0

    @classmethod
    def upgrade(cls, old: Old) -> "New":
        """Hang while the gate is closed, unless it is not the first one."""
        UPGRADES.append(threading.current_thread().name)
        if len(UPGRADES) in HANGING:
            GATE.wait(PATIENCE)
        return cls(total=old.total)


UPGRADES: list[str] = []
#: Which calls of `upgrade` hang.
HANGING: set[int] = set()


@slet
def adding(x: int, kept: Old) -> int:
    """Pass on, and add up."""
    kept.total += x
    return x


@slet
def adding_too(x: int, kept: New) -> int:
    """The same with another state."""
    kept.total += x
    return x


def upgraded(platform: Platform, **bounds: Any) -> None:
    """Replace the slet by the one that upgrades the state."""
    platform.plan(platform.mesh("app").replace("b", adding_too)).apply(**{"pause": PATIENCE, **bounds})


@pytest.fixture
def upgrading():
    """No upgrade hangs, and the gate is closed; it is opened afterwards."""
    UPGRADES.clear()
    HANGING.clear()
    GATE.clear()
    yield
    GATE.set()


@pytest.mark.parametrize("call", [1, 2], ids=["tried on a copy", "in the cut"])
def test_an_upgrade_that_hangs_fails_its_change_and_the_old_slet_runs_on(call, upgrading):
    """It is given up after the time-out, and the old state is as it was; what it makes later is dropped."""
    HANGING.add(call)
    seen: list[int] = []
    with Platform() as platform:
        platform.apply(chain("app", steady, adding, writing(seen)).build())
        grows(seen, 10)
        with pytest.raises(ComponentFailed, match="b failed while taking over the state: it has not returned"):
            upgraded(platform, timeout=3 * SHORT)
        grows(seen, 10)
        assert platform.mesh("app").node("b").slet.name == "adding"
        (call,) = platform.status("app")["calls"]
        assert (call["node"], call["phase"]) == ("b", "taking over the state")
        upgraded(platform)
        grows(seen, 10)
        assert platform.deployment("app").components["b"].state.total >= sum(seen) - seen[-1]
    whole(seen)
