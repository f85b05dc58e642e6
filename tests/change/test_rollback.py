"""A predecessor that is kept runs on behind its successor, and takes over again with its own, current state."""

import threading

import pytest

from exop import Application, Shadow, slet
from exop.errors import PlanError, ShadowFailed, UnknownName
from exop.model.meshes.mesh import ChannelSpec
from exop.wiring.changes import change as changing
from tests.change.tools import (
    Sum,
    chain,
    endless,
    grows,
    in_thread,
    plain,
    stream,
    summing,
    summing_too,
    suspended,
    tapped,
    whole,
    writing,
)
from tests.rig import Gate, eventually


def kept(platform, node="b"):
    """Return the status of the kept predecessor, if there is one."""
    return platform.status("app").get("kept", {}).get(node)


def keep(platform, successor, seconds=60.0, node="b", **how):
    """Replace a node, and keep its predecessor."""
    platform.plan(platform.mesh("app").replace(node, successor, **how)).apply(keep=seconds)


@pytest.mark.parametrize("channel", ["direct", "queue"])
def test_back_with_its_current_state(platform, channel):
    """To and fro under load: nothing is lost, doubled or reordered, and the state has seen every item once."""
    with stream(platform, summing, kind=channel) as seen:
        for _ in range(3):
            keep(platform, summing_too)
            grows(seen)
            mesh = platform.rollback("app", "b")
            assert mesh.node("b").slet.name == "summing"
            assert mesh.revision == platform.mesh("app").revision
            grows(seen)
    state = platform.deployment("app").components["b"].state
    assert (state.count, state.total) == (len(seen), sum(seen))


def test_back_from_what_keeps_less(platform):
    """A state that the successor has lost is still there: the predecessor has its own."""
    with stream(platform, summing) as seen:
        platform.plan(platform.mesh("app").replace("b", plain, lose_state=True)).apply(keep=60)
        grows(seen)
        platform.rollback("app", "b")
    assert platform.deployment("app").components["b"].state.total == sum(seen)


def test_back_with_its_settings(platform):
    """The settings are those that it had."""

    @slet
    def scaled(x: int, *, by: int = 1) -> int:
        return x * by

    @slet
    def scaled_too(x: int, *, by: int = 1) -> int:
        return -x * by

    seen: list[int] = []
    app = Application("app")
    app.add("b", scaled, x=app.add("a", endless), by=2)
    app.add("c", writing(seen), x=app.output("b", "out"))
    platform.apply(app.build())
    keep(platform, scaled_too, by=3)
    assert platform.rollback("app", "b").node("b").settings["by"] == 2


def test_back_from_one_that_is_suspended_on_an_item(platform):
    """The item that the successor could not take is tried by the predecessor, which has not had it yet."""

    @slet
    def failing(x: int, total: Sum) -> int:
        if x % 500 == 0:
            raise ValueError(f"not {x}")
        total.count += 1
        total.total += x
        return x

    with stream(platform, summing) as seen:
        keep(platform, failing)
        suspended(platform, "app", "b")
        shown = platform.status("app")["nodes"]["b"]["kept"]["traceback"].splitlines()
        assert shown[1].endswith("in failing"), "it begins in the code of the user"
        platform.rollback("app", "b")
        grows(seen, 1000)
    assert platform.deployment("app").components["b"].state.total == sum(seen)


def test_proven_and_kept(platform):
    """A proven successor has a state of its own; the predecessor runs on all the same."""
    with stream(platform, summing) as seen:
        plan = platform.plan(platform.mesh("app").replace("b", summing_too))
        plan.apply(shadow=Shadow(items=50), keep=60)
        grows(seen)
        assert kept(platform)["slet"].endswith("summing")
        platform.rollback("app", "b")
        assert kept(platform) is None
    assert platform.deployment("app").components["b"].state.total == sum(seen)


def test_its_time_comes_to_an_end(platform):
    """After the declared time it is closed, and going back says what can be done instead."""
    with stream(platform, summing):
        keep(platform, summing_too, seconds=0.05)
        eventually(lambda: kept(platform) is None, "the end of its time")
        eventually(lambda: platform.deployment("app").components["b"].taps == (), "the end of the tap")
        with pytest.raises(PlanError, match="no predecessor that runs on as a standby.*replace it back"):
            platform.rollback("app", "b")
        with pytest.raises(UnknownName, match="'d'"):
            platform.rollback("app", "d")


def test_another_change_of_the_node_ends_it(platform):
    """There is one predecessor at a time: that of the last change. Changes elsewhere leave it."""
    with stream(platform, summing, plain):
        keep(platform, summing_too)
        platform.apply(platform.mesh("app").replace("c", summing))
        assert kept(platform) is not None
        platform.apply(platform.mesh("app").replace("b", summing))
        assert kept(platform) is None


def test_back_to_where_the_node_is_now(platform):
    """Connections and a suspension made meanwhile stay."""
    with stream(platform, summing):
        keep(platform, summing_too)
        mesh = platform.mesh("app").rewire("b", out=ChannelSpec("other", "queue")).rewire("c", x="other")
        platform.apply(mesh.suspend("b"))
        mesh = platform.rollback("app", "b")
        assert mesh.node("b").suspended
        assert mesh.node("b").ports["out"] == "other"
        component = platform.deployment("app").components["b"]
        assert (component.status, component.node.ports["out"]) == ("suspended", "other")
        platform.resume("app", "b")


def test_a_trial_leaves_it(platform):
    """While a predecessor is kept, the next successor can be tried: refused, it leaves the predecessor where it is."""

    @slet
    def wrong(x: int, total: Sum) -> int:
        total.count += 1
        total.total += x
        return -x

    with stream(platform, summing) as seen:
        keep(platform, summing_too)
        with pytest.raises(ShadowFailed):
            platform.plan(platform.mesh("app").replace("b", wrong)).apply(shadow=Shadow(items=20))
        grows(seen)
        assert kept(platform) is not None
        platform.rollback("app", "b")
    assert platform.deployment("app").components["b"].state.total == sum(seen)


def test_a_change_that_is_undone_leaves_it(platform, monkeypatch):
    """A replacement that would keep the successor fails: the predecessor gets every item all the same."""

    def fail(name: str) -> None:
        if name == "rebind-after":
            raise RuntimeError("refused behind the bind")

    with stream(platform, summing) as seen:
        keep(platform, summing_too)
        with monkeypatch.context() as patch:
            patch.setattr(changing, "failpoint", fail)
            with pytest.raises(RuntimeError, match="behind the bind"):
                keep(platform, summing)
        grows(seen)
        platform.rollback("app", "b")
    assert platform.deployment("app").components["b"].state.total == sum(seen)


def test_one_that_raises_where_its_successor_does_not(platform):
    """It has lost an item, so it cannot take over again: it is closed, and the stream has not noticed."""

    @slet
    def fussy(x: int) -> int:
        if x > 300:
            raise ValueError(f"not {x}")
        return x

    with tapped(platform, fussy) as (tap, seen):
        tap.let(100)
        grows(seen, 100 - len(seen))
        keep(platform, plain)
        tap.let(300)
        eventually(lambda: kept(platform) is None, "the end of the predecessor")
    whole(seen, 400)


def test_one_that_cannot_keep_up(platform, monkeypatch):
    """The stream waits a moment for a predecessor at most; then that is closed."""
    monkeypatch.setattr("exop.wiring.shadow.follower.PATIENCE", 0.05)
    monkeypatch.setattr("exop.wiring.shadow.follower.CAPACITY", 8)
    going = threading.Event()

    @slet
    def slow(x: int) -> int:
        if going.is_set() and threading.current_thread().name.endswith("(follower)"):
            threading.Event().wait(0.5)
        return x

    with stream(platform, slow):
        keep(platform, plain)
        going.set()
        eventually(lambda: kept(platform) is None, "the end of the predecessor")


def test_an_application_that_is_removed(platform):
    """Removing it closes what runs behind it, too (the fixture counts services and threads)."""
    seen: list[int] = []
    platform.apply(chain("app", endless, summing, writing(seen)).build())
    keep(platform, summing_too)
    grows(seen)
    platform.remove("app")
    whole(seen)


def test_what_cannot_be_kept_says_so(platform):
    """A sink, and no replacement at all: each says why, and what to do instead."""
    platform.apply(chain("app", endless, plain, writing([])).build())
    mesh = platform.mesh("app")
    seconds = r"cannot be kept for.*give a number of seconds above 0"
    for edit, keep, why in (
        (mesh.replace("c", writing([])), 60, "go on doing so as a standby.*replace it back"),
        (mesh.suspend("b"), 60, "no predecessor to keep"),
        *((mesh.replace("b", summing), wrong, seconds) for wrong in (0, 1e300, "x", True, float("nan"))),
    ):
        with pytest.raises(PlanError, match=why):
            platform.plan(edit).apply(keep=keep)


@slet
def scaling(x: int, *, by: int = 1) -> int:
    """Times a number."""
    return x * by


@slet
def scaling_too(x: int, *, by: int = 1) -> int:
    """The same, by other code."""
    return x * by


def test_back_behind_an_update_that_took_effect_in_both(platform):
    """A rollback is planned before the standby comes to that item: the mesh has the settings that it gets there."""
    going = Gate()

    @slet
    def lagging(x: int, *, by: int = 1) -> int:
        if x == 40 and threading.current_thread().name.endswith("(follower)"):
            going.pass_through()
        return x * by

    with tapped(platform, lagging, edit=lambda mesh: mesh.configure("b", by=-1, when="x >= 50")) as (tap, seen):
        keep(platform, scaling)
        tap.let(100)
        eventually(lambda: len(seen) == 100, "the items")
        assert kept(platform)["behind"] > 50
        with in_thread(lambda: platform.rollback("app", "b")):
            going.open()
        node, component = platform.mesh("app").node("b"), platform.deployment("app").components["b"]
        assert (node.slet.name, node.settings["by"], node.pending) == ("lagging", -1, ())
        assert (component.node.settings["by"], component.node.pending) == (-1, ())
        tap.let(10)
    assert seen == [*range(1, 50), *(-n for n in range(50, 111))]


def test_back_with_the_item_at_which_an_update_took_effect(platform):
    """The successor is suspended on that item; the predecessor takes it with the new settings, too."""

    @slet
    def failing(x: int, *, by: int = 1) -> int:
        if x == 50:
            raise ValueError(f"not {x}")
        return x * by

    with tapped(platform, scaling, edit=lambda mesh: mesh.configure("b", by=-1, when="x == 50")) as (tap, seen):
        keep(platform, failing)
        tap.let(100)
        suspended(platform, "app", "b")
        node = platform.rollback("app", "b").node("b")
        assert (node.slet.name, node.settings["by"], node.pending) == ("scaling", -1, ())
    assert seen == [*range(1, 50), *(-n for n in range(50, 101))]


@pytest.mark.parametrize("when", [None, "x >= 1000000000"])
def test_new_settings_end_it(platform, when):
    """At once or at a point in the stream: the predecessor is closed, and the plan says so."""
    seen: list[int] = []
    platform.apply(chain("app", endless, scaling, writing(seen)).build())
    keep(platform, scaling_too)
    plan = platform.plan(platform.mesh("app").configure("b", by=2, when=when))
    assert "b: the predecessor that is kept as a standby is closed" in str(plan)
    plan.apply()
    assert kept(platform) is None
    with pytest.raises(PlanError, match="replace it back"):
        platform.rollback("app", "b")
    assert len(platform.mesh("app").node("b").pending) == (when is not None)
