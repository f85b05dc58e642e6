"""A successor whose `upgrade` takes longer than the pause allowed catches up beside the old one."""

import _thread
import threading
from collections.abc import Callable
from functools import reduce

import pytest

from exop import Memento, Platform, Shadow, slet
from exop.errors import ComponentFailed, PlanError, StaleMesh
from exop.hosts.protocol.together import change_together
from exop.remoting.api.wire_types import Planned
from exop.wiring.changes.plan import Plan
from tests.change.tools import chain, end, grows, in_thread, steady, whole, writing
from tests.rig import PATIENCE, eventually

#: So long a change waits for an upgrade that hangs, in seconds.
SHORT = 3.0


class Upgrading:
    """The call of `upgrade` beside the stream: it waits for the gate, and may fail then."""

    def __init__(self) -> None:
        self.beside: Callable[[], bool] = lambda: False
        self.gate = threading.Event()
        self.waits = threading.Event()
        self.fails = False
        self.calls = 0

    def met(self) -> None:
        """It is called."""
        self.calls += 1
        if self.beside():
            self.waits.set()
            self.gate.wait(PATIENCE)
            if self.fails:
                raise ValueError("no such state")


UPGRADE = Upgrading()


def digest(before: int, x: int) -> int:
    """A figure that depends on every item, and on their order."""
    return (before * 31 + x) % 1_000_003


class Old(Memento):
    """The state of before."""

    digest: int = 0


class New(Memento):
    """The state that it becomes."""

    digest: int = 0

    @classmethod
    def upgrade(cls, old: Old) -> "New":
        """Take it over."""
        UPGRADE.met()
        assert type(old) is Old
        return cls(digest=old.digest)


@slet
def old(x: int, kept: Old) -> int:
    """Pass on, and note."""
    kept.digest = digest(kept.digest, x)
    return x


@slet
def new(x: int, kept: New) -> int:
    """The same with another state."""
    kept.digest = digest(kept.digest, x)
    return x


@pytest.fixture
def seen():
    """The items that have arrived."""
    return []


@pytest.fixture
def platform(seen):
    """A platform on which the application runs; the upgrade waits as soon as the successor is tied to the old one."""
    UPGRADE.__init__()
    with Platform() as platform:
        platform.apply(chain("app", steady, old, writing(seen)).build())
        component = platform.deployment("app").components["b"]
        UPGRADE.beside = lambda: component.taps != ()
        grows(seen, 10)
        yield platform
        UPGRADE.gate.set()


def replaced(platform: Platform, timeout: float = PATIENCE) -> None:
    """Replace the slet; no upgrade is quick enough for the cut."""
    platform.apply(platform.mesh("app").replace("b", new), pause=0.0, timeout=timeout)


def runs_on(platform: Platform, seen: list[int]) -> None:
    """The old slet runs, and nothing listens to it any more; the change can be made later."""
    grows(seen)
    component = platform.deployment("app").components["b"]
    assert component.node.slet.name == "old"
    assert component.taps == ()
    UPGRADE.beside = lambda: False
    replaced(platform)
    completed(platform, seen)


def completed(platform: Platform, seen: list[int]) -> None:
    """The successor takes its place without a gap, and with the state that a replay of the stream makes."""
    successor = platform.deployment("app").components["b"]
    assert successor.node.slet.name == "new"
    grows(seen)
    end(platform, "app")
    whole(seen)
    assert successor.state == New(digest=reduce(digest, seen, 0))


def test_the_stream_goes_on_while_the_state_is_made(platform, seen):
    """The successor processes the items that come meanwhile; no call of `upgrade` is in the cut, nothing is lost."""
    with in_thread(lambda: replaced(platform)):
        assert UPGRADE.waits.wait(PATIENCE)
        grows(seen, 1000)
        calls = UPGRADE.calls
        UPGRADE.gate.set()
    assert UPGRADE.calls == calls
    completed(platform, seen)


def test_an_upgrade_that_fails_beside_the_stream_leaves_the_old_slet(platform, seen, monkeypatch):
    """The change is refused with its error, and nothing is left of it."""
    monkeypatch.setattr("exop.wiring.shadow.follower.Follower.patience", PATIENCE)
    UPGRADE.fails = True
    UPGRADE.gate.set()
    with pytest.raises(Exception, match="no such state"):
        replaced(platform)
    runs_on(platform, seen)


def test_an_upgrade_that_hangs_beside_the_stream_is_given_up(platform, seen):
    """The change is refused after its time-out, and nothing is left of it."""
    with pytest.raises(ComponentFailed, match="b failed while taking over the state: it has not returned"):
        replaced(platform, SHORT)
    UPGRADE.gate.set()
    eventually(lambda: "calls" not in platform.status("app"), "the end of the call")
    runs_on(platform, seen)


@slet
def hanging(x: int, kept: New) -> int:
    """Hang in the first item."""
    HELD.set()
    RELEASED.wait(PATIENCE)
    kept.digest = digest(kept.digest, x)
    return x


HELD, RELEASED = threading.Event(), threading.Event()


def test_a_successor_that_hangs_while_it_catches_up_does_not_slow_the_stream(platform, seen, monkeypatch):
    """The old slet waits for room for a moment only: once no item is done, the stream runs at its own pace."""
    monkeypatch.setattr("exop.wiring.shadow.follower.LEAVING", 0.05)
    HELD.clear()
    RELEASED.clear()

    def refused() -> None:
        with pytest.raises(PlanError, match="given up"):
            platform.apply(platform.mesh("app").replace("b", hanging), pause=0.0, timeout=PATIENCE)

    with in_thread(refused):
        try:
            assert UPGRADE.waits.wait(PATIENCE)
            grows(seen, 1000)
            UPGRADE.gate.set()
            assert HELD.wait(PATIENCE)
            grows(seen, 20_000)
            platform.abandon_proof("app")
        finally:
            RELEASED.set()
    runs_on(platform, seen)


def test_an_interrupt_does_not_wait_for_an_upgrade_beside_the_stream(platform, seen):
    """The change is given up, and nothing is left of it."""

    def interrupt() -> None:
        assert UPGRADE.waits.wait(PATIENCE)
        _thread.interrupt_main()

    with in_thread(interrupt), pytest.raises(KeyboardInterrupt):
        replaced(platform, SHORT)
    UPGRADE.gate.set()
    eventually(lambda: "calls" not in platform.status("app"), "the end of the call")
    runs_on(platform, seen)


def test_an_application_can_be_removed_while_a_state_is_made(platform, seen):
    """The change ends with an error, without waiting for the upgrade."""

    def refused() -> None:
        with pytest.raises((ComponentFailed, PlanError)):
            replaced(platform)

    with in_thread(refused):
        assert UPGRADE.waits.wait(PATIENCE)
        platform.remove("app")
    assert platform.applications() == []
    whole(seen)


def test_a_plan_that_was_applied_is_not_tried_again(platform):
    """Its notes are those of the mesh before it, of which there is no state any more."""
    plan = platform.plan(platform.mesh("app").replace("b", new))
    UPGRADE.gate.set()
    plan.apply(pause=PATIENCE)
    assert plan.notes == ()


@slet
def noting(x: int, kept: Old, *, place: str = "here") -> None:
    """A sink: it acts on something outside of the mesh."""
    kept.digest = digest(kept.digest, x)


@slet
def noting_too(x: int, kept: New, *, place: str = "here") -> None:
    """The same with another state."""
    kept.digest = digest(kept.digest, x)


def slow(platform: Platform, successor: object = new, application: str = "app") -> Plan:
    """The plan of a replacement for which no upgrade is quick enough."""
    return platform.plan(platform.mesh(application).replace("b", successor)).bounded(pause=0.0)


def test_the_plan_states_that_the_successor_catches_up(platform):
    """It tells how long the upgrade takes on a copy, in words and as data."""
    plan = slow(platform)
    assert "New.upgrade of b takes about" in str(plan)
    assert "the successor catches up beside the old slet" in str(plan)
    (step,) = Planned.of("1", plan).steps
    assert step.hand_over_s == plan.took["b"]


def test_the_plan_states_the_stall_that_needs_consent(platform):
    """Where a successor cannot catch up, the plan tells how long the stream would stop, why, and how to allow it."""
    platform.apply(chain("sink", steady, noting).build())
    text = str(slow(platform, noting_too, "sink"))
    assert "warning: the change stops the stream for about" in text
    assert "noting_too acts on something outside of the mesh" in text
    assert "--allow-stall" in text


def test_the_plan_tells_that_an_upgrade_fails(platform):
    """It is shown all the same."""
    UPGRADE.beside, UPGRADE.fails = (lambda: True), True
    UPGRADE.gate.set()
    assert "warning: the change will be refused: " in str(slow(platform))


def test_a_successor_on_trial_makes_its_state_while_the_stream_runs(platform, seen):
    """The trial begins with the items that have come meanwhile."""
    with in_thread(lambda: slow(platform).apply(shadow=Shadow(items=1000))):
        assert UPGRADE.waits.wait(PATIENCE)
        grows(seen, 10_000)
        calls = UPGRADE.calls
        UPGRADE.gate.set()
    assert UPGRADE.calls == calls
    completed(platform, seen)


def test_a_trial_with_diverted_settings_needs_consent_for_what_takes_over(platform):
    """The one that takes over is another one than the one on trial, and gets its state in the cut."""
    platform.apply(chain("sink", steady, noting).build())
    plan, shadow = slow(platform, noting_too, "sink"), Shadow(items=10, divert={"place": "there"})
    assert "the one on trial does not take over" in str(plan.proven(shadow))
    with pytest.raises(PlanError, match=r"stops the stream for about .*diverted.*--allow-stall"):
        plan.apply(shadow=shadow)
    assert platform.mesh("sink").revision == 1
    plan.apply(shadow=shadow, stall=True)
    assert platform.mesh("sink").node("b").slet.name == "noting_too"


def test_successors_of_several_applications_catch_up_before_one_cut(platform, seen):
    """No call of `upgrade` is in the cut of any of them."""
    others: list[int] = []
    platform.apply(chain("other", steady, old, writing(others)).build())
    plans = [slow(platform), slow(platform, application="other")]
    with in_thread(lambda: change_together(platform._applications, plans)):
        assert UPGRADE.waits.wait(PATIENCE)
        grows(seen, 100)
        grows(others, 100)
        with pytest.raises(PlanError, match="other is being changed: a successor catches up beside b"):
            platform.apply(platform.mesh("other").suspend("b"))
        UPGRADE.gate.set()
    completed(platform, seen)
    end(platform, "other")
    whole(others)
    assert platform.deployment("other").components["b"].state == New(digest=reduce(digest, others, 0))


def test_a_stall_in_one_of_several_applications_needs_consent(platform, seen):
    """None of them is changed without it."""
    platform.apply(chain("sink", steady, noting).build())
    plans = [slow(platform), slow(platform, noting_too, "sink")]
    with pytest.raises(PlanError, match=r"stops the stream for about .*--allow-stall"):
        change_together(platform._applications, plans)
    assert [platform.mesh(name).revision for name in ("app", "sink")] == [1, 1]
    UPGRADE.gate.set()
    change_together(platform._applications, [plan.bounded(stall=True) for plan in plans])
    assert platform.mesh("sink").node("b").slet.name == "noting_too"
    completed(platform, seen)


@pytest.mark.parametrize("edit", ["replace", "remove"])
def test_what_was_replaced_while_the_hand_over_was_tried_is_stale(platform, seen, edit):
    """The other change was first; the error does not speak of the slet that has left, and has no state any more."""
    UPGRADE.beside = lambda: UPGRADE.calls == 1
    mesh = platform.mesh("app")
    other = mesh.replace("b", noting_on) if edit == "replace" else mesh.remove("b").rewire("c", x="a")

    def refused() -> None:
        with pytest.raises(StaleMesh):
            replaced(platform)

    with in_thread(refused):
        assert UPGRADE.waits.wait(PATIENCE)
        platform.apply(other)
        UPGRADE.gate.set()
    grows(seen)
    end(platform, "app")
    whole(seen)


@slet
def noting_on(x: int, kept: Old) -> int:
    """The same as `old`, by other code."""
    kept.digest = digest(kept.digest, x)
    return x
