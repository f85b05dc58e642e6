"""Platforms that die in the middle of a change over several hosts, and return: all hosts change, or none does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar, Self
from unittest.mock import Mock

import pytest

from exop import Application, Platform, Slet, input_port
from exop.cli.commands.monitoring import dead_drivers
from exop.cli.peers import Found
from exop.cli.status_text import problem_lines
from exop.errors import CheckpointError, ComponentFailed, NotNow, PlanError, StateError, StillOpening
from exop.hosts.protocol.messages import Remove
from exop.model.meshes.mesh import Mesh
from exop.runtime.deployment import Deployment
from exop.runtime.lifecycle import State
from exop.stock.slets import count_up
from exop.wiring.graph.binding import CatchUp
from tests.change.tools import endless, plain
from tests.hosts.hosts_rig import (
    GATES,
    SEEN,
    Death,
    Network,
    PlanTime,
    at_rest,
    await_no_host,
    check,
    check_too,
    collect,
    counting,
    goes_on,
    hosts,
    opened,
    platform,
    total,
)
from tests.hosts.moving import APP
from tests.hosts.moving import hosts as linked
from tests.rig import PATIENCE, Gate, eventually

#: The node that is changed on each host.
NODES = {"b": "check", "c": "check-c", "a": "check-a"}
#: What the log of a host says when its home returns; there may be nothing to accept.
OTHERWISE = "where exop ps at the home shows `fragment lost`: exop accept app, there"


class Hosts:
    """Three platforms that run a durable application; one dies in a change of two slets, and returns."""

    def __init__(self, folder: Path, stack: ExitStack, plan_time: PlanTime) -> None:
        self.folder, self.stack, self.plan_time = folder, stack, plan_time
        self.all = {one.name: one for one in stack.enter_context(hosts("a", "b", "c", state=folder))}
        self.network = Network(*self.all.values())
        self.all["a"].apply(counting("b", also=["c", "a"], every=0.1))
        for name, node in NODES.items():
            goes_on(self.all[name], node)

    def change_while(
        self,
        name: str,
        record: str,
        *,
        after: bool,
        closed: Callable[[Platform], object] = lambda one: None,
        edit: Callable[[Mesh], Mesh] | None = None,
    ) -> None:
        """Change the slets, or make another edit, while one platform dies at a record; nobody waits for its answer.

        *closed* is called before it is closed.
        """
        death = Death(self.all[name], self.network, record, after=after)
        home = self.all["a"]
        edited = home.mesh("app")
        for node in NODES.values() if edit is None else ():
            edited = edited.replace(node, check_too)
        edited = edited if edit is None else edit(edited)
        with ThreadPoolExecutor(1) as pool:
            outcome = pool.submit(home.apply, edited, timeout=PATIENCE)
            assert death.dead.wait(PATIENCE)
            self.wait_no_longer()
            outcome.exception(PATIENCE)
        closed(self.all[name])
        self.all[name].close()

    def wait_no_longer(self) -> None:
        """Let the deadlines pass, also that of the home, which waits until all hosts have made what is decided."""
        self.plan_time.pass_deadlines()
        await_no_host(self.all["a"])

    def back(self, name: str) -> None:
        """Start the platform again, which connects with the others."""
        self.join(self.stack.enter_context(platform(name, state=self.folder / name)))

    def join(self, one: Platform) -> None:
        """Connect a platform that has been started again with the others."""
        name = one.name
        self.all[name] = one
        self.network.away.discard(name)
        self.network.join(one)
        for other in self.all.values():
            if other is not one and name not in other.remoting.peers:
                one.remoting.connect(f"inproc:{other.name}")
            elif other is not one:
                other.remoting.connect(f"inproc:{name}")

    def runs(self, name: str, node: str, slet: str) -> bool:
        """Whether a node has this slet on a platform."""
        found = self.all[name]._applications.deployed.get("app")
        return found is not None and node in found.components and found.components[node].spec.name == slet

    def end_with(self, slet: str) -> None:
        """Wait until all plans are settled; every host has this slet, and items flow."""
        eventually(lambda: all(one.status("app")["state"] == "running" for one in self.all.values()), "running")
        at_rest(*self.all.values())
        assert self.all["a"].mesh("app").node("check").slet.name == slet
        for name, node in NODES.items():
            eventually(partial(self.runs, name, node, slet), f"{slet} on {name}")
            goes_on(self.all[name], node)


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Three platforms on which an application runs."""
    with ExitStack() as stack:
        yield Hosts(tmp_path, stack, PlanTime(monkeypatch))


def test_a_defect_in_the_last_step_of_a_change_is_told_and_a_restart_loses_nothing(
    three: Hosts, monkeypatch: pytest.MonkeyPatch
):
    """The host stands still, takes no checkpoint and no change, and goes on from the cut when it is started again."""
    deliver, failed = CatchUp.deliver, list[Deployment]()

    def fails(self: CatchUp, deployment: Deployment) -> None:
        if "check" in deployment.components and not failed:
            failed.append(deployment)
            raise KeyError("both")
        deliver(self, deployment)

    monkeypatch.setattr(CatchUp, "deliver", fails)
    home, there = three.all["a"], three.all["c"]
    home.apply(home.mesh("app").move("check", to="c"), timeout=PATIENCE)
    told = "app: a change on c has crashed: KeyError: 'both'; no item moves on"
    assert any(line.startswith(told) for line in problem_lines(there.status("app")))
    assert (there.status("app")["state"], next(dead_drivers(there.status()))[: len(told)]) == ("crashed", told)
    for one, where in ((there, ""), (home, " on c")):
        with pytest.raises(ComponentFailed, match=f"a change{where} failed while running: KeyError: 'both'"):
            one.wait("app", PATIENCE)
    with pytest.raises(CheckpointError, match="a change has crashed"):
        there.checkpoint("app")
    with pytest.raises(PlanError, match="has crashed: KeyError: 'both'; no item moves on.*restart the platform"):
        home.apply(home.mesh("app").replace("check-c", check_too), timeout=PATIENCE)
    three.network.away.add("c")
    there.close()
    three.back("c")
    eventually(lambda: home.status("app")["state"] == "running", "running")
    goes_on(three.all["c"], "check")  # which also sees that no item is missing or comes twice


def test_the_home_dies_before_the_record(three: Hosts):
    """Without the record there is no commit: the members in doubt learn it when the home is back."""
    three.change_while("a", "Committed", after=False)
    for name in "bc":
        assert three.all[name].status("app")["state"] == "in doubt"
    three.back("a")
    three.end_with("check")


def test_the_home_dies_after_the_record(three: Hosts):
    """The record is the commit: the home announces it when it is back."""
    three.change_while("a", "Committed", after=True)
    for name in "bc":
        assert three.all[name].status("app")["state"] == "in doubt"
    three.back("a")
    three.end_with("check_too")


def test_a_member_dies_after_its_yes(three: Hosts):
    """It returns in doubt, does not run, and then makes the change that was decided."""
    three.change_while("b", "Prepared", after=True)
    three.back("b")
    three.end_with("check")


def test_a_member_dies_before_it_has_recorded_the_decision(three: Hosts):
    """Its yes counts: it makes the change when it is back."""
    three.change_while("b", "Settled", after=False)
    three.back("b")
    three.end_with("check_too")


def test_a_member_dies_before_it_has_carried_out_the_decision(three: Hosts):
    """A recorded commit is carried out at the start."""
    three.change_while("b", "Settled", after=True)
    three.back("b")
    three.end_with("check_too")


def test_a_platform_that_is_closed_in_doubt_takes_no_further_checkpoint(three: Hosts):
    """It would acknowledge what has come since the cut, and the restart begins with the checkpoint of the cut."""

    def refused(one: Platform) -> None:
        taker = one._applications.checkpoints.takers["app"]
        one._hosts.exchange.close()
        with pytest.raises(CheckpointError, match="the outcome of a change is not known"):
            taker.take()

    three.change_while("b", "Settled", after=True, closed=refused)
    three.back("b")
    three.end_with("check_too")


@pytest.mark.parametrize("record", ["Prepared", "Settled"])
def test_an_application_is_removed_while_a_member_is_away_in_doubt(three: Hosts, record: str):
    """Its fragment is removed when the plan is settled there, whichever message of the home comes first."""
    three.change_while("b", record, after=record == "Prepared")
    three.all["a"].remove("app", 0.1)
    one = three.stack.enter_context(platform("b", state=three.folder / "b"))
    assert one.status("app")["state"] == "in doubt"
    noticed = threading.Event()
    one._hosts.exchange.receive("app", Remove("a", 1.0))
    one._hosts.exchange.do(noticed.set)
    assert noticed.wait(PATIENCE)
    for thread in [*threading.enumerate()]:
        if thread.name == "exop remove app":
            thread.join(PATIENCE)
    three.join(one)
    leaving = three.all["a"]._hosts.homes["app"].leaving
    eventually(lambda: not leaving, "removed everywhere")
    eventually(lambda: not one._hosts.exchange.machines["app"].member.plan, "settled on b")
    participant = one._hosts.exchange.machines["app"].participant
    assert participant is not None
    participant.join(PATIENCE)
    assert not one._hosts.names(inactive=True)
    assert not one._applications.store.applications()


def test_a_fragment_that_cannot_be_forgotten_is_removed_later(three: Hosts):
    """Its host does not report it as removed, so that the home asks again."""
    store = three.all["b"]._applications.store
    store.set_active = Mock(side_effect=[StateError("no room"), None])
    three.all["a"].remove("app", 0.1)
    leaving = three.all["a"]._hosts.homes["app"].leaving
    eventually(lambda: not leaving, "removed everywhere")
    assert store.set_active.call_count == 2
    assert not three.all["b"]._hosts.names(inactive=True)
    assert "app" not in three.all["b"]._hosts.here.known


def test_a_member_dies_while_it_is_adopted(three: Hosts, monkeypatch: pytest.MonkeyPatch):
    """Its fragment, which the former home did not serve, stays as it is; it knows the new home when it is back."""
    monkeypatch.setattr("exop.wiring.changes.plan.PATIENCE", 1.0)
    app = Application("app")
    app.durable(every=0.1)
    app.on("c").add("check", check, item=app.on("b").add("numbers", endless))
    three.all["a"].remove("app")
    three.all["a"].apply(app.build())
    goes_on(three.all["c"])
    three.network.away.add("a")
    three.all.pop("a").close()
    home = three.all["b"]
    death = Death(three.all["c"], three.network, "Settled", after=True)
    home._hosts.adopt("app")
    assert death.dead.wait(PATIENCE)
    three.all["c"].close()
    three.back("c")
    eventually(lambda: home._hosts.exchange.machines["app"].home.due is None, "settled")
    eventually(partial(three.runs, "c", "check", "check"))
    assert three.all["c"]._hosts.here.known["app"].home == "b"
    home.apply(home.mesh("app").replace("check", check_too))
    goes_on(three.all["c"])


@pytest.mark.parametrize("commit", [True, False])
def test_an_operator_resolves(three: Hosts, commit: bool, capsys):
    """If the home does not return, the members in doubt do what an operator decides."""
    three.change_while("a", "Committed", after=False)
    three.all.pop("a")
    three.all["b"].close()
    three.back("b")
    eventually(lambda: three.all["c"].remoting.peers["b"].connected, "linked")
    log: list[str] = []
    for command in (f"`exop resolve app --commit --on {name}`, otherwise --abort" for name in "bc"):
        eventually(lambda: log.append(capsys.readouterr().err) or command in "".join(log), command)  # noqa: B023
    for name in "cb":  # b was started again, and runs nothing
        with pytest.raises(NotNow, match="`exop resolve app --commit --on "):
            three.all[name].adopt("app")
        three.all[name].resolve("app", commit=commit)
    for name, node in (("b", "check"), ("c", "check-c")):
        one = three.all[name]
        eventually(partial(three.runs, name, node, "check_too" if commit else "check"))
        eventually(lambda one=one: one.status("app")["state"] == "running", f"{name} runs")
        at_rest(one)


@pytest.mark.parametrize("commit", [True, False])
def test_the_home_returns_and_has_decided_otherwise(three: Hosts, commit: bool):
    """The parts of the hosts that were resolved do not fit: the status tells the cure, which makes them fit."""
    three.change_while("a", "Committed", after=not commit)
    for name in "bc":
        assert "`exop resolve app --commit" in three.all[name].status("app")["problem"]
        three.all[name].resolve("app", commit=commit)
        at_rest(three.all[name])
        assert "resolve" in [one["what"] for one in three.all[name].history("app")]
    three.back("a")
    home = three.all["a"]
    for one in three.all.values():
        eventually(lambda one=one: one.status("app")["state"] == "fragment lost", "found out")
    cure = "`exop accept app` at the home makes it fit"
    assert cure in "".join(problem_lines(home.status("app")))
    with pytest.raises(PlanError, match=cure):
        home.apply(home.mesh("app").move("check", to="c"))
    assert home.accept_loss("app")[:2] == ["b", "c"]
    three.end_with("check" if commit else "check_too")


@pytest.mark.parametrize("commit", [True, False])
def test_a_node_whose_move_the_home_has_decided_otherwise_begins_anew(three: Hosts, commit: bool):
    """Its state has left the host, or is gone where it came from: the status tells it. Other nodes keep theirs."""
    home, c = three.all["a"], three.all["c"]
    source, target = "cb" if commit else "bc"
    if commit:
        home.apply(home.mesh("app").move("check", to="c"), timeout=PATIENCE)
    goes_on(three.all[source])
    three.change_while("a", "Committed", after=not commit, edit=lambda mesh: mesh.move("check", to=target))
    for name in "bc":
        three.all[name].resolve("app", commit=commit)
    three.back("a")
    home = three.all["a"]
    eventually(lambda: c.status("app")["state"] == "fragment lost", "found out")
    assert "moves from or to c may begin anew, without their state" in c.status("app")["problem"]
    eventually(lambda: "app" not in three.all["b"].applications(), "b runs nothing")
    assert "c" in home.accept_loss("app")
    eventually(lambda: total(c).number > 0, "items")
    assert total(c).wrong == 1
    goes_on(c, "check-c")


def test_a_part_that_the_home_has_moved_away_is_removed(three: Hosts, capsys: pytest.CaptureFixture[str]):
    """An operator has aborted the move there, which the home had committed: the node runs at its new place alone.

    There is nothing to accept, and the log does not say so.
    """
    three.change_while("a", "Committed", after=True, edit=lambda mesh: mesh.move("check", to="a"))
    three.all["b"].resolve("app", commit=False)
    eventually(lambda: three.all["b"].status("app")["state"] == "running", "the aborted change is undone")
    three.back("a")
    eventually(lambda: "app" not in three.all["b"].applications(), "removed")
    home = three.all["a"]
    eventually(lambda: not home._hosts.homes["app"].leaving, "confirmed")
    assert OTHERWISE in capsys.readouterr().err
    assert home.apply(home.mesh("app").move("check", to="b"), timeout=PATIENCE)
    goes_on(three.all["b"])
    assert home.remove("app", PATIENCE)
    assert not any(one.applications() for one in three.all.values())


def test_a_part_that_the_home_has_kept_there_begins_anew(three: Hosts, capsys: pytest.CaptureFixture[str]):
    """An operator has committed the move there, after which nothing was left, and the home had not: the log says so."""
    three.change_while("a", "Committed", after=False, edit=lambda mesh: mesh.move("check", to="a"))
    three.all["b"].resolve("app", commit=True)
    eventually(lambda: "app" not in three.all["b"].applications(), "b runs nothing")
    three.back("a")
    home = three.all["a"]
    said = list[str]()
    eventually(lambda: OTHERWISE in (said.append(capsys.readouterr().err) or "".join(said)), "the home has answered")
    eventually(lambda: home.status("app")["state"] == "fragment lost", "the home tells it, too")
    assert "b" in home.accept_loss("app")
    eventually(partial(three.runs, "b", "check", "check"), "it runs there again")


def test_a_name_is_free_again_where_an_operator_has_removed_the_last_part(three: Hosts):
    """The home, which has decided the same, is asked; after restarts its former plans are in nobody's way."""
    three.change_while("a", "Committed", after=True, edit=lambda mesh: mesh.move("check", to="a"))
    b = three.all["b"]
    b.resolve("app", commit=True)
    three.back("a")
    eventually(lambda: b._hosts.exchange.machines["app"].member._by_hand is None, "the home has answered")
    b.close()
    three.back("b")
    assert three.all["a"].remove("app", PATIENCE)
    three.all["a"].close()
    three.back("a")
    app = Application("app")
    app.add("out", "stock:show", item=app.on("b").add("numbers", "stock:count_up", to=3))
    home = three.all["a"]
    assert home.apply(app.build(), timeout=PATIENCE)
    assert home.wait("app", PATIENCE)


class Gated(Slet):
    """Opens when the test lets it."""

    gate: ClassVar[Gate] = Gate(closed=False)

    def __enter__(self) -> Self:
        self.gate.pass_through()
        return self

    @input_port
    def x(self, x: int) -> int:
        """Pass on."""
        return x


@contextmanager
def opening_again(home: Platform) -> Iterator[None]:
    """A home that is started again, in another thread, and opens its applications until the end of the block."""
    home.close()
    Gated.gate = Gate()
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(home.start)
        try:
            Gated.gate.somebody_waits()
            home.remoting.connect("inproc:h2")
            yield
        finally:
            Gated.gate.open()
        started.result(PATIENCE)


def test_a_home_that_opens_its_part_again_says_so(tmp_path: Path):
    """It knows the nodes on other hosts meanwhile, and refuses changes, which it could not lead to their end."""
    with linked("h1", "h2", slets=(Gated,), state=tmp_path) as there:
        home, later = there.home, Application("later")
        home.apply(there.line(endless, plain, Gated))
        there.move("h2", "b")
        later.add("numbers", count_up)
        home.apply(later.build())
        with opening_again(home):
            assert home.status(APP)["state"] == "opening"
            assert Found(home, APP, "b").node_status()["host"] == "h2"
            with pytest.raises(StillOpening, match=r"'later' is still opening on the platform 'h1': 0 of \? slets"):
                Found(home, "later", "numbers").node_status()
            for refused in (
                lambda: home.plan_edits(APP, [{"edit": "suspend", "node": "b"}]),
                lambda: home.rollback(APP, "b"),
                lambda: home.accept_loss(APP),
                lambda: home.remove(APP),
            ):
                with pytest.raises(StillOpening, match=r"'app' is still opening on the platform 'h1': .*, c since"):
                    refused()
            assert there.platforms["h2"].applications() == [APP]
        there.apply(lambda mesh: mesh.suspend("b"), timeout=PATIENCE)


def test_a_change_over_hosts_is_made_while_another_application_opens(tmp_path: Path):
    """The platform takes part in plans as soon as it is linked."""
    with linked("h1", "h2", slets=(Gated,), state=tmp_path) as there:
        home, slow = there.home, Application("slow")
        home.apply(there.line(endless, plain))
        there.move("h2", "b")
        slow.add("gated", Gated, x=slow.add("numbers", endless))
        home.apply(slow.build())
        with opening_again(home):
            home.plan_edits(APP, [{"edit": "suspend", "node": "b"}]).apply(timeout=PATIENCE)
            assert there.component("h2", "b").status is State.SUSPENDED


def test_streams_meet_in_another_order_after_a_restart(tmp_path: Path):
    """None of their items has been sent before a checkpoint contained them, so that none is taken for another."""
    tags = {"x": [*range(1, 11)], "y": [*range(101, 111)]}
    with hosts("b", "a", state=tmp_path) as (b, a):
        network = Network(a, b)
        app = Application("app")
        app.durable(every=3600)
        items = app.channel("items", "queue")
        for tag in tags:
            app.add(tag, opened, tag=tag, out=items)
        app.on("b").add("collect", collect, item=items)
        GATES["x"].clear()
        GATES["y"].clear()
        a.apply(app.build())
        a.checkpoint("app")
        refuse = StateError("the platform is dead")
        a._applications.store.checkpoints.write = Mock(side_effect=refuse)  # type: ignore[union-attr,method-assign]
        GATES["x"].set()
        channels = a.deployment("app").channels
        eventually(lambda: channels["items.to.b"].depth == 10, "the items of x wait")
        assert SEEN == {}
        network.away.add("a")
        a.close()
        GATES["x"].clear()
        with platform("a", state=tmp_path / "a") as a:
            network.away.clear()
            network.join(a)
            a.remoting.connect("inproc:b")
            a.checkpoint("app")
            GATES["y"].set()
            channels = a.deployment("app").channels
            eventually(lambda: channels["items.to.b"].depth == 10, "the items of y wait")
            a.checkpoint("app")
            eventually(lambda: SEEN.get("all") == tags["y"], "y is there")
            GATES["x"].set()

            def all_there() -> bool:
                a.checkpoint("app")
                return SEEN["all"] == tags["y"] + tags["x"]

            eventually(all_there, "x is there")
