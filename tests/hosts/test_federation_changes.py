"""Changes of applications that span hosts: all hosts change, or none does."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast
from unittest.mock import Mock

import pytest

from exop import Application
from exop.errors import LifecycleError, PlanError, StaleMesh, StateError
from exop.hosts.fragment_change import FragmentChange
from exop.hosts.protocol.messages import Decision, Proceed
from exop.remoting.peers.link import PeerLink
from exop.runtime.pause import Pause
from exop.wiring.applications import Applications
from exop.wiring.changes import successors
from tests.hosts.hosts_rig import (
    HANG,
    SEEN,
    Network,
    PlanTime,
    at_rest,
    await_no_host,
    check,
    check_too,
    collect,
    counting,
    goes_on,
    hangs,
    hosts,
    numbers,
    refuses,
    total,
)
from tests.rig import PATIENCE, eventually


def test_only_hosts_whose_fragment_differs_take_part(monkeypatch: pytest.MonkeyPatch):
    """A platform that a change does not touch parks no driver."""
    paused: list[Any] = []
    begin = Pause.begin
    monkeypatch.setattr(Pause, "begin", lambda self: (paused.append(self.deployment), begin(self))[1])
    with hosts("a", "b", "c") as (a, b, c):
        a.apply(counting("b", also=["c"]))
        goes_on(c, "check-c")
        paused.clear()
        made = a.apply(a.mesh("app").replace("check", check_too))
        assert made.revision == a.mesh("app").revision == 2
        assert paused == [b.deployment("app")]
        assert b.deployment("app").components["check"].spec.name == "check_too"
        goes_on(b)
        goes_on(c, "check-c")


def test_several_hosts_change_together():
    """Each host has its new slet with the state of the old one; the messages may come twice."""
    with hosts("a", "b", "c") as (a, b, c):
        Network(a, b, c).twice = True
        a.apply(counting("b", also=["c"]))
        goes_on(b)
        a.apply(a.mesh("app").replace("check", check_too).replace("check-c", check_too))
        for one, node in ((b, "check"), (c, "check-c")):
            assert one.deployment("app").components[node].spec.name == "check_too"
            goes_on(one, node)
        at_rest(a, b, c)
        facts = [(one["what"], one["from"], one["to"], one["hosts"]) for one in a.history("app")]
        assert facts == [("deploy", 0, 1, ["a", "b", "c"]), ("change", 1, 2, ["b", "c"])]
        assert [(one["steps"], one["who"]) for one in b.history("app")][1:] == [(["replace check"], "platform a")]


def test_a_refusal_in_prepare_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch):
    """A slet does not open, or a disk is full: the error names the host and the slet, and the others run on."""
    with hosts("a", "b", "c") as (a, b, c):
        before = a.apply(counting("b", also=["c"]))
        edited = before.replace("check", check_too).replace("check-c", refuses, lose_state=True)
        with pytest.raises(
            PlanError, match=r"c: check-c failed while opening: no room.*nothing was changed on any host"
        ):
            a.apply(edited)
        with monkeypatch.context() as full:
            full.setattr(b._hosts, "record", Mock(side_effect=StateError("no room")))
            with pytest.raises(PlanError, match=r"^b: no room; nothing was changed on any host"):
                a.apply(before.replace("check", check_too))
        assert a.mesh("app") == before
        at_rest(a, b, c)
        assert b.deployment("app").components["check"].spec.name == "check"
        goes_on(b)
        goes_on(c, "check-c")


def test_a_first_deployment_that_is_refused_leaves_nothing():
    """The hosts that have opened their fragments discard them."""
    with hosts("a", "b", "c") as (a, b, c):
        mesh = counting("b", also=["c"]).replace("check-c", refuses)
        with pytest.raises(PlanError, match="c: check-c failed while opening"):
            a.apply(mesh)
        for one in (a, b, c):
            eventually(lambda one=one: one.applications() == [], f"{one.name} without applications")
            assert one.registry.find("Slet", "(application=app)") == []
        a.apply(counting("b", also=["c"]))
        goes_on(c, "check-c")


def test_a_user_step_that_hangs_meets_the_deadline():
    """The hold has one deadline for all hosts; afterwards the streams go on, and other changes can be made."""
    with hosts("a", "b", "c") as (a, b, c):
        before = a.apply(counting("b", also=["c"]).replace("check-c", hangs))
        goes_on(b)
        eventually(lambda: total(c, "check-c").number > 0)  # before: it might hang on the first item
        HANG.clear()
        with pytest.raises(PlanError, match=r"(?s)c: .* to a safe point within 0\.5 s.*check-c is at.*in hangs"):
            a.apply(before.replace("check", check_too).replace("check-c", check_too), timeout=0.5)
        at_rest(a, b)
        assert b.deployment("app").components["check"].spec.name == "check"
        HANG.set()
        at_rest(a, b, c)
        goes_on(b)
        goes_on(c, "check-c")
        a.apply(before.replace("check-c", check_too), timeout=PATIENCE)
        goes_on(c, "check-c")


def test_two_changes_at_once_take_turns():
    """One of two edits of the same revision is made; the other one is stale."""
    with hosts("a", "b") as (a, b), ThreadPoolExecutor(2) as pool:
        before = a.apply(counting("b"))
        edits = [before.replace("check", check_too), before.suspend("check")]
        found = [one.exception(PATIENCE) for one in [pool.submit(a.apply, edit) for edit in edits]]
        assert sorted(type(one).__name__ for one in found) == ["NoneType", "StaleMesh"]
        assert a.mesh("app").revision == 2
        at_rest(a, b)


class Turn:
    """The turn of an application, which another change takes just before."""

    def __init__(self, turn: Any, change: Callable[[], object]) -> None:
        self.turn, self.changes = turn, [change]

    def acquire(self, **given: Any) -> bool:
        """Take the turn, behind the other change."""
        while self.changes:
            self.changes.pop()()
        return bool(self.turn.acquire(**given))

    def release(self) -> None:
        """Give the turn away."""
        self.turn.release()


@pytest.mark.parametrize("place", ["a", "b"])
def test_a_node_is_resumed_beside_another_change(place: str):
    """Another change that comes first, on one host or on two, does not stand in the way."""
    with hosts("a", "b") as (a, b):
        mesh = a.apply(counting(place))
        a.apply(mesh.suspend("check").suspend("numbers"))
        there, turns = a._hosts.homes.get("app"), a._applications.changes.turns
        found = Turn(turns["app"] if there is None else there.turn, lambda: a.apply(a.mesh("app").resume("numbers")))
        if there is None:
            turns["app"] = cast("Any", found)
        else:
            there.turn = cast("Any", found)
        a.resume("app", "check")
        assert (a.mesh("app").revision, found.changes) == (4, [])
        goes_on(b if place == "b" else a)


def test_a_change_is_made_at_the_home():
    """Another host refuses it, and names the home."""
    with hosts("a", "b") as (a, b):
        a.apply(counting("b"))
        for work in (lambda: b.apply(b.mesh("app").suspend("check")), lambda: b.remove("app")):
            with pytest.raises(PlanError, match="changed at its home, the platform 'a'"):
                work()
        assert b.status("app")["home"] == "a"
        assert sorted(a.status("app")["hosts"]) == ["a", "b"]
        with pytest.raises(StaleMesh):
            a.apply(counting("b").at(7))


@pytest.mark.parametrize(
    ("lost", "reason"), [(False, "repeat it, with a longer timeout"), (True, "c cannot be reached at the moment")]
)
def test_a_partition_before_the_vote_aborts(monkeypatch: pytest.MonkeyPatch, lost: bool, reason: str):
    """One pair is cut while both see the third: the plan ends at its deadline, on all hosts; the home tells why."""
    plan_time = PlanTime(monkeypatch)
    with hosts("a", "b", "c") as (a, b, c):
        network = Network(a, b, c)
        before = a.apply(counting("b", also=["c"]))
        goes_on(b)

        def watch(source: str, to: str, message: Any) -> None:
            if isinstance(message, Proceed) and message.step == "hold" and not network.cut:
                network.cut.add(frozenset("ac"))
                if lost:
                    patch.setattr(PeerLink, "connected", property(lambda link: link.peer != "c"))
                plan_time.pass_deadlines()

        network.watch = watch
        told = f"no answer to hold from .*c within 62 s.*{reason}.*nothing was changed"
        with monkeypatch.context() as patch, pytest.raises(PlanError, match=told):
            a.apply(before.replace("check", check_too).replace("check-c", check_too), timeout=PATIENCE)
        network.cut.clear()
        network.watch = lambda *_: None
        at_rest(a, b, c)
        assert b.deployment("app").components["check"].spec.name == "check"
        assert c.deployment("app").components["check-c"].spec.name == "check"
        goes_on(b)
        goes_on(c, "check-c")


def test_a_partition_after_the_vote_commits_when_it_heals():
    """The member that does not hear the decision is in doubt, and held; it asks another member that knows it."""
    with hosts("a", "b", "c") as (a, b, c):
        network, lost = Network(a, b, c), threading.Event()
        before = a.apply(counting("b", also=["c"]))

        def watch(source: str, to: str, message: Any) -> None:
            if isinstance(message, Decision) and source == "a" and to == "c":
                network.cut.update((frozenset("ac"), frozenset("bc")))
                await_no_host(a)
                lost.set()

        network.watch = watch
        made = a.apply(before.replace("check", check_too).replace("check-c", check_too), timeout=PATIENCE)
        assert made.revision == 2
        assert lost.wait(PATIENCE)
        assert c.status("app")["state"] == "in doubt"
        with pytest.raises(PlanError, match="not settled"):
            a.apply(made.suspend("check-c"), timeout=0.5)
        network.watch = lambda *_: None
        network.cut.discard(frozenset("bc"))
        at_rest(a, b, c)
        assert c.deployment("app").components["check-c"].spec.name == "check_too"
        goes_on(b)
        goes_on(c, "check-c")


def test_an_interrupt_aborts_the_change():
    """Ctrl-C during a change that is not decided: it is undone on all hosts."""
    with hosts("a", "b") as (a, b):
        before = a.apply(counting("b"))
        goes_on(b)

        def watch(source: str, to: str, message: Any) -> None:
            if isinstance(message, Proceed) and message.step == "cut":
                network.cut.add(frozenset("ab"))
                _thread.interrupt_main()

        network = Network(a, b)
        network.watch = watch
        with pytest.raises(KeyboardInterrupt):
            a.apply(before.replace("check", check_too), timeout=PATIENCE)
        network.watch = lambda *_: None
        network.cut.clear()
        assert a.mesh("app") == before
        at_rest(a, b)
        assert b.deployment("app").components["check"].spec.name == "check"
        goes_on(b)


@pytest.mark.parametrize("what", ["memento", "resume"])
def test_an_operation_that_waits_for_a_change_keeps_no_message_up(monkeypatch: pytest.MonkeyPatch, what: str):
    """A platform asks for the state of a slet on another host, or resumes it, while that waits for the decision."""
    cut, asked, arrived = FragmentChange._cut, list[Any](), threading.Event()
    place, name = (successors, "capture") if what == "memento" else (Applications, "resume")
    called = getattr(place, name)
    monkeypatch.setattr(place, name, lambda *given: (arrived.set(), called(*given))[1])
    with hosts("a", "b") as (a, b), ThreadPoolExecutor(1) as pool:

        def cutting(self: FragmentChange, *given: Any) -> Any:
            if self._here.name == "b":
                asked.append(pool.submit(getattr(a, what), "app", "check"))
                assert arrived.wait(PATIENCE)
            return cut(self, *given)

        before = a.apply(counting("b"))
        goes_on(b)
        monkeypatch.setattr(FragmentChange, "_cut", cutting)
        a.apply(before.replace("check", check_too))
        if what == "memento":
            assert asked[0].result(PATIENCE).wrong == 0
        else:
            assert isinstance(asked[0].exception(PATIENCE), LifecycleError)
        goes_on(b)


def test_an_application_that_has_finished_is_not_changed():
    """It has finished since the change was planned: nothing begins anew."""
    with hosts("a", "b") as (a, b):
        app = Application("app")
        app.on("b").add("check", check, item=app.on("b").add("numbers", numbers, upto=10))
        app.on("a").add("collect", collect, item=app.output("check"))
        before = a.apply(app.build())
        plan = a.plan(before.replace("check", check_too))
        assert a.wait("app", PATIENCE)
        with pytest.raises(PlanError, match="has finished"):
            plan.apply()
        eventually(lambda: b.deployment("app").finished.is_set(), "b has finished")
        assert SEEN["all"] == [*range(1, 11)]


def test_an_unchanged_mesh_is_applied_after_a_refusal():
    """The application stays on one host: a change that spreads it was refused."""
    with hosts("a", "b") as (a, _):
        before = a.apply(counting("a"))
        with pytest.raises(PlanError, match="no room"):
            a.apply(before.replace("check", refuses, lose_state=True).move("check", to="b"))
        assert a.apply(a.mesh("app")) == before


def test_a_move_to_where_the_node_is_loses_nothing():
    """It is no change, on another host and at home, by whichever name; with a real one, only what moves is lost."""
    with hosts("a", "b") as (a, _):
        mesh = a.apply(counting("b"))
        for node, places in (("check", ("b",)), ("numbers", ("a", None))):
            for to in places:
                assert not a.plan(mesh.move(node, to, lose_state=True))
        edit = {"edit": "move", "node": "numbers", "to": "a", "also": ["check"], "lose_state": True}
        after = a.plan_edits("app", [edit]).after
        assert {name: node.lose_state for name, node in after.nodes.items()} == {"numbers": False, "check": True}
        assert a.plan(mesh.replace("numbers", numbers, lose_state=True))
