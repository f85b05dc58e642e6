"""The phases of a change: each step, each end, and nothing lost whatever becomes of it."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from exop import Application, Memento, Platform, Slet, hookimpl, input_port, slet
from exop.errors import PlanError
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh, Node
from exop.model.slets.slet import spec_of
from exop.runtime.deployment import Deployment
from exop.wiring.changes.change import Change, Phase
from exop.wiring.changes.drain import Drain
from exop.wiring.changes.successors import Successors
from exop.wiring.controller import WiringController
from tests.change.tools import (
    Tap,
    chain,
    changed,
    count_to,
    end,
    endless,
    grows,
    in_thread,
    summing,
    summing_too,
    whole,
    writing,
)
from tests.rig import PATIENCE, Gate, Two, eventually, threads_leave

#: The steps before the decision, in their order.
STEPS = ("prepare", "stage", "cut")


@pytest.fixture(scope="module")
def platform():
    """One platform for all of them; all threads have left at its end."""
    with threads_leave(), Platform() as made:
        yield made


class Running:
    """A stream of numbers, of which the slet in the middle is replaced."""

    def __init__(self, platform: Platform) -> None:
        self.platform, self.seen = platform, []
        platform.apply(chain("app", endless, summing, writing(self.seen)).build())
        grows(self.seen)

    @property
    def deployment(self) -> Deployment:
        """What runs."""
        return self.platform.deployment("app")

    def change(self, successor: Any = summing_too) -> Change:
        """The replacement of the slet, new."""
        mesh: Mesh = self.platform.mesh("app").replace("b", successor)
        return Change(self.deployment, self.platform.wiring, self.platform.plan(mesh))

    def check(self, *, made: bool) -> None:
        """The stream goes on in the mesh that is expected, with no item lost, doubled or reordered."""
        grows(self.seen)
        component = self.deployment.components["b"]
        assert component.spec.name == ("summing_too" if made else "summing")
        assert self.deployment.mesh.revision == (2 if made else 1)
        assert len(self.platform.registry.find("Slet", "(node=b)")) == 1, "one of the two is not closed"
        assert not any(driver.closed for driver in self.deployment.drivers())
        end(self.platform, "app")
        whole(self.seen)
        assert component.state.count == len(self.seen)


@pytest.fixture
def running(platform):
    """A stream that runs."""
    yield Running(platform)
    assert platform.remove("app")


def brought(change: Change, steps: int) -> Change:
    """Take the first steps."""
    for name in STEPS[:steps]:
        getattr(change, name)()
    return change


@pytest.mark.parametrize("steps", range(len(STEPS) + 1))
def test_abort_undoes_the_change_in_every_state(running, steps):
    """The old mesh runs on; a second abort does nothing, and every other step is refused with the reason."""
    change = brought(running.change(), steps)
    change.abort(PlanError("the other one is not ready"))
    change.abort()
    for name in (*STEPS, "commit"):
        with pytest.raises(PlanError, match="was aborted: the other one is not ready"):
            getattr(change, name)()
    change.finish()
    assert change.phase is Phase.ABORTED
    running.check(made=False)


def test_commit_makes_the_change_once(running):
    """A step that is done already does nothing, and what is made is not aborted."""
    change = brought(running.change(), 3)
    for name in STEPS:
        getattr(change, name)()
    assert all(driver.closed for driver in running.deployment.drivers()), "everything stands still until the decision"
    change.commit()
    change.commit()
    with pytest.raises(PlanError, match="is committed; to go back, make another change"):
        change.abort()
    change.finish()
    change.finish()
    assert change.made
    assert change.pause.seconds > 0
    running.check(made=True)


def test_the_driver_that_parks_last_commits(running):
    """One participant alone has the shortest pause: cut and commit in one."""
    change = brought(running.change(), 2)
    change.make()
    change.finish()
    running.check(made=True)


@pytest.mark.parametrize("steps", range(3))
def test_a_step_before_its_time_is_refused(running, steps):
    """The participant says where it is; it is not lost by that."""
    change = brought(running.change(), steps)
    with pytest.raises(PlanError, match=f"is {change.phase}; this step requires"):
        change.commit()
    change.abort()
    running.check(made=False)


class Refusing(Memento):
    """Takes no state over."""

    count: int = 0

    @classmethod
    def upgrade(cls, old: Any) -> Refusing:
        """Refuse."""
        raise ValueError("no")


@slet
def refusing(x: int, state: Refusing) -> int:
    """Pass on."""
    return x


@pytest.mark.parametrize("step", ["cut", "make"])
def test_a_state_that_cannot_be_handed_over_undoes_the_change(running, step):
    """The error comes from the step, and the participant is aborted by it."""
    change = brought(running.change(refusing), 2)
    with pytest.raises(PlanError, match="ValueError: no"):
        getattr(change, step)()
    assert change.phase is Phase.ABORTED
    running.check(made=False)


@pytest.mark.parametrize(
    ("step", "owner", "method"),
    [
        ("prepare", Successors, "open"),
        ("stage", Drain, "stage"),
        ("cut", WiringController, "bind"),
    ],
)
def test_a_step_that_fails_at_its_end_undoes_all_before_it(running, monkeypatch, step, owner, method):
    """Also what the step itself has done by then."""
    done = getattr(owner, method)

    def failing(*given: Any, **named: Any) -> None:
        done(*given, **named)
        monkeypatch.undo()
        raise OSError("no room")

    change = brought(running.change(), STEPS.index(step))
    monkeypatch.setattr(owner, method, failing)
    with pytest.raises(OSError, match="no room"):
        getattr(change, step)()
    assert change.phase is Phase.ABORTED
    assert isinstance(change.error, OSError)
    running.check(made=False)


def test_an_undoing_that_fails_keeps_no_other_from_being_done(running):
    """It is noted on the error."""
    change = brought(running.change(), 3)

    def fail() -> None:
        raise OSError("no room")

    change._undo_cut.append(fail)
    error = PlanError("given up")
    change.abort(error)
    assert error.__notes__ == ["and while it was undone: OSError: no room"]
    running.check(made=False)


class Collected(Memento):
    """Notes whether the garbage collector is on while the state is handed over."""

    count: int = 0
    total: int = 0
    on: bool = False

    @classmethod
    def upgrade(cls, old: Any) -> Collected:
        """Take over."""
        return cls(count=old.count, total=old.total, on=gc.isenabled())


@slet(name="summing_too")
def collected(x: int, state: Collected) -> int:
    """Pass on."""
    state.count += 1
    return x


def test_the_garbage_collector_of_the_process_stays_on(running):
    """Other applications, and other threads, do without it in no change."""
    change = brought(running.change(collected), 2)
    change.make()
    change.finish()
    assert running.deployment.components["b"].state.on
    running.check(made=True)


class Sealing(Slet):
    """A sink that takes its time in a checkpoint."""

    gate = Gate()

    def sync(self) -> None:
        """Wait."""
        self.gate.pass_through()

    def commit_checkpoint(self, number: int) -> None:
        """Put out nothing."""

    @input_port
    def x(self, x: int) -> None:
        """Take it."""


class Offered:
    """The plugin that offers the slets of a durable application."""

    @staticmethod
    @hookimpl
    def register_slets() -> list[Any]:
        """All of them."""
        return [endless, summing, summing_too, Sealing]


def test_a_change_waits_for_the_checkpoint_that_is_being_taken(tmp_path):
    """A checkpoint is of one mesh: it is written before the mesh changes."""
    plugins = Plugins()
    plugins.register("test", Offered())
    with threads_leave(), Platform(state=tmp_path, control=False, plugins=plugins) as platform:
        Sealing.gate = Gate(closed=False)
        app = chain("app", endless, summing, Sealing)
        app.durable(every=1000)
        platform.apply(app.build())
        gate = Sealing.gate = Gate()
        with in_thread(lambda: platform.checkpoint("app")):
            gate.somebody_waits()
            with in_thread(lambda: changed(platform, "app", lambda mesh: mesh.replace("b", summing_too))) as change:
                eventually(lambda: len(platform.registry.find("Slet", "(node=b)")) == 2, "the successor")
                assert platform.mesh("app").revision == 1
                assert not change.done()
                gate.open()
        assert platform.mesh("app").revision == 2


def test_a_defect_behind_the_commit_does_not_store_the_old_mesh(running, monkeypatch):
    """The new mesh runs from the commit on, whatever fails while the old slets are let go."""

    def failing(_: Change) -> None:
        raise MemoryError("a defect")

    monkeypatch.setattr(Change, "_forward_unsent", failing)
    change = brought(running.change(), 2)
    with pytest.raises(MemoryError, match="a defect"):
        change.make()
    assert change.made
    assert running.deployment.mesh == change.target


@pytest.mark.parametrize("waits", [False, True])
def test_no_producer_is_added_to_a_port_whose_stream_has_ended(platform, waits):
    """Its items would come behind the end, also if the end was sent and still waits in front of the port."""
    left, right, seen = Tap(), Tap(), list[Any]()
    app = Application("app")
    app.add("l", left.source(), out=app.channel("q", kind="queue"))
    app.add("two", Two, left="q", right=app.add("r", right.source()))
    app.add("sink", writing(seen), x=app.output("two", "out"))
    platform.apply(app.build())
    if waits:
        changed(platform, "app", lambda mesh: mesh.suspend("two"))
    left.let(2)
    left.shut()
    components = platform.deployment("app").components
    eventually(lambda: components["l"].status == "ended" and (waits or "left" in components["two"].ended))
    late = Node("late", spec_of(count_to), {}, {"out": "q"})
    with pytest.raises(PlanError, match=r"the stream has ended at two\.left: late\.out cannot be connected"):
        changed(platform, "app", lambda mesh: mesh.add(late))
    if waits:
        changed(platform, "app", lambda mesh: mesh.resume("two"))
    right.shut()
    assert platform.wait("app", PATIENCE)
    assert seen == [1, 2]
    assert platform.remove("app")
