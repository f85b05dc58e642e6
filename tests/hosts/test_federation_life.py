"""Applications that span hosts, over their life: lost messages, failures, restarts of all hosts, removal."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest import mock

import pytest

from exop import Application
from exop.cli.peers import Found
from exop.cli.status_text import attention_lines
from exop.cli.view import Rates, title
from exop.errors import (
    ComponentFailed,
    LastCheckpointFailed,
    MessageTooLarge,
    PeerUnreachable,
    PlanError,
    StateError,
    UnknownName,
)
from exop.hosts import federation
from exop.hosts.federation import Federation
from exop.hosts.fragment_change import FragmentChange
from exop.hosts.home import Home
from exop.hosts.protocol.messages import Remove, Report
from exop.model.meshes.mesh import Mesh
from exop.model.slets.slet import spec_of
from exop.report import run_report
from exop.runtime.durable.store import Checkpoints
from exop.stock.sinks import WriteSqlite
from tests.change.tools import endless, in_thread
from tests.hosts.hosts_rig import (
    GATES,
    SEEN,
    Network,
    at_rest,
    check,
    check_too,
    collect,
    counting,
    fails,
    goes_on,
    hosts,
    numbers,
    opened,
    platform,
    scale,
    total,
)
from tests.rig import PATIENCE, eventually


def test_each_message_is_lost_once():
    """Messages are repeated until they are answered: the change is made on all hosts, once."""
    with hosts("a", "b", "c") as (a, b, c):
        for one in (a, b, c):
            one._hosts.exchange.resend = 0.05
        network, seen = Network(a, b, c), set[tuple[str, ...]]()

        def lose(source: str, to: str, message: Any) -> None:
            key = source, to, type(message).__name__, str(getattr(message, "step", ""))
            network.cut = set() if key in seen else {frozenset((source, to))}
            seen.add(key)

        network.watch = lose
        a.apply(counting("b", also=["c"]), timeout=PATIENCE)
        goes_on(b)
        eventually(lambda: a._hosts.exchange.machines["app"].home.due is None, "the last answer, which was lost, too")
        a.apply(a.mesh("app").replace("check", check_too).replace("check-c", check_too), timeout=PATIENCE)
        at_rest(a, b, c)
        for one, node in ((b, "check"), (c, "check-c")):
            assert one.deployment("app").components[node].spec.name == "check_too"
            goes_on(one, node)


def test_a_failure_on_another_host_is_raised_by_wait():
    """The home names the node that is suspended on an item; repaired, the application ends, without need of it."""
    with hosts("a", "b") as (a, b):
        app = Application("app")
        failing = app.on("b").add("fails", fails, item=app.add("numbers", numbers, upto=10))
        app.add("collect", collect, item=failing)
        made = a.apply(app.build())
        with pytest.raises(ComponentFailed, match="fails on b failed while running: .*not 5"):
            a.wait("app", PATIENCE)
        assert a.status("app")["state"] == "suspended"
        assert a.status("app")["hosts"]["b"]["state"] == "suspended"
        a.apply(made.replace("fails", check, lose_state=True))
        eventually(lambda: a.status("app")["state"] == "finished")
        assert a.wait("app", PATIENCE)
        assert b.wait("app", PATIENCE)
        assert SEEN["all"] == list(range(1, 11))
        eventually(lambda: b.deployment("app").finished.is_set())
        a.close()
        assert b.remoting.peers["a"].wait_until(connected=False, timeout=PATIENCE)
        assert "problem" not in b.status("app")


@pytest.mark.parametrize("full", ["", "a", "b"])
def test_the_end_is_stored_on_all_hosts_or_wait_names_what_is_not(tmp_path: Path, full: str):
    """No host waits for its next checkpoint; if it fails, `wait` tries it again, and names the host and its sinks."""
    GATES["x"].clear()
    with hosts("a", "b", state=tmp_path) as (a, b):
        app = Application("app")
        app.durable(every=3600)
        first = app.add("first", opened)
        for host in "ab":
            app.on(host).add(f"rows-{host}", WriteSqlite, item=first, path=tmp_path / f"{host}.sqlite")
        a.apply(app.build())
        store = (b if full == "b" else a)._applications.store
        assert store is not None
        failing = mock.patch.object(store.checkpoints, "write", side_effect=StateError("no room"))
        with failing if full else nullcontext():
            GATES["x"].set()
            for _ in full * 2:
                with pytest.raises(
                    LastCheckpointFailed, match=f"no room; not written: 10 items of rows-{full} on {full};"
                ):
                    a.wait("app", PATIENCE)
                assert run_report(a.status("app"), "failed")["unwritten"] == {f"rows-{full} on {full}": 10}
        if not full:
            eventually(lambda: a.status("app")["state"] == "finished")
        assert a.wait("app", PATIENCE)
        assert run_report(a.status("app"), "finished")["unwritten"] == {}
        for host in "ab":
            with closing(sqlite3.connect(tmp_path / f"{host}.sqlite")) as database:
                assert database.execute("SELECT count(*) FROM items").fetchall() == [(10,)]


def test_a_host_that_could_not_start_it_again_is_named_by_wait(tmp_path: Path):
    """The home waits no longer for what does not come."""
    with hosts("a", "b", state=tmp_path) as (a, b):
        a.apply(counting("b", every=3600))
        b.close()
        with (
            mock.patch.object(Checkpoints, "read", side_effect=StateError("damaged")),
            platform("b", state=tmp_path / "b") as again,
        ):
            again.remoting.connect("inproc:a")
            with pytest.raises(ComponentFailed, match="app on b failed while being started again: damaged"):
                a.wait("app", PATIENCE)


def test_an_application_that_comes_to_its_end_before_a_change_is_begun_is_not_changed(monkeypatch):
    """Its hosts are told to finish from then on: a plan that is made meanwhile is refused, and begins nothing anew."""
    GATES["x"].clear()
    with hosts("a", "b") as (a, _):
        app = Application("app")
        app.on("b").add("collect", collect, item=app.add("first", opened))
        made, lead, begun = a.apply(app.build()), Home.lead, list[Any]()

        def ends_before(*given: Any) -> None:
            GATES["x"].set()
            assert a.wait("app", PATIENCE)
            lead(*given)

        monkeypatch.setattr(Home, "lead", ends_before)
        monkeypatch.setattr(FragmentChange, "_prepare", lambda *given: begun.append(given))
        with pytest.raises(PlanError, match="app has finished: .*`exop apply APP`"):
            a.apply(made.move("collect", to="a"))
        assert not begun
        assert a._hosts.homes["app"].hosts.keys() == {"a", "b"}
        assert SEEN["all"] == list(range(1, 11))


def test_an_application_that_comes_to_its_end_while_a_change_is_prepared_ends_with_what_that_adds(monkeypatch):
    """What ran has ended before the change is committed; the new source still counts."""
    for gate in GATES.values():
        gate.clear()
    with hosts("a", "b") as (a, b):
        app = Application("app")
        app.on("b").add("collect", collect, item=app.add("first", opened))
        made = a.apply(app.build())
        prepare, heard, reports = FragmentChange._prepare, Federation._heard, list[Report]()

        def hears(home: Federation, application: str, report: Report) -> None:
            heard(home, application, report)
            if report.sender == "b" and report.ended:
                reports.append(report)

        def ended_meanwhile(*given: Any) -> None:
            prepare(*given)
            GATES["x"].set()
            eventually(lambda: len(reports) > 10)  # it would have been told to finish, and have said that

        monkeypatch.setattr(federation, "REPEAT", 0.0)
        monkeypatch.setattr(Federation, "_heard", hears)
        monkeypatch.setattr(FragmentChange, "_prepare", ended_meanwhile)
        more = made.add_slet("second", spec_of(opened), {}, {"tag": "y"}, host="b")
        a.apply(more.add_slet("later", spec_of(collect), {"item": "second"}, {"into": "more"}, host="b"))
        assert a.status("app")["state"] == "running"
        assert not a._hosts.homes["app"].finished
        assert not b.deployment("app").finished.is_set()
        GATES["y"].set()
        assert a.wait("app", PATIENCE)
        assert SEEN["all"] == list(range(1, 11))
        assert SEEN["more"] == list(range(101, 111))


def test_all_hosts_restart(tmp_path: Path):
    """A durable application goes on from its checkpoints, whole, and can be changed."""
    with hosts("a", "b", state=tmp_path) as (a, b):
        a.apply(counting("b", every=0.1))
        goes_on(b)
        a.apply(a.mesh("app").replace("check", check_too))
        a.checkpoint("app")
    with ExitStack() as stack:
        a, b = (stack.enter_context(platform(name, state=tmp_path / name)) for name in "ab")
        b.remoting.connect("inproc:a")
        assert a.mesh("app").revision == 2
        assert sorted(a.mesh("app").nodes) == ["check", "numbers"]
        goes_on(b)
        a.apply(a.mesh("app").replace("check", check))
        goes_on(b)
        assert a.remove("app", PATIENCE)
        assert a.applications() == b.applications() == []


def test_what_has_come_home_is_no_more_placed_than_what_has_never_left():
    """Whether the home is named or not: it is drawn, stored and compared as the other nodes there."""
    with hosts("a", "b") as (a, b):
        made = a.apply(counting("b"))
        goes_on(b)
        back = a.apply(made.move("check", to="a"))
        assert {node.host for node in back.nodes.values()} == {None}
        assert "host" not in a.mesh("app").to_toml()
        assert not a.plan(back.configure("numbers").move("check", to="a"))
        goes_on(a)


def test_a_link_is_made_again_at_every_start(tmp_path: Path):
    """What spans it goes on; of a link that was forgotten, the error names the peer, and its cure brings all back."""
    with platform("b", state=tmp_path / "b") as b:
        with platform("a", state=tmp_path / "a") as a:
            assert a.connect_peer("inproc:b")["peer"] == "b"
            a.apply(counting("b", every=0.1))
            goes_on(b)
            a.checkpoint("app")
        with platform("a", state=tmp_path / "a") as a:
            assert not a.failed_to_restart
            goes_on(b)
            a._applications.store.remember_peer("a", "inproc:b")  # of a platform that has another name since
            a._applications.store.remember_peer("far", "tls://127.0.0.1:1")
            a.forget_peer("b")
            with pytest.raises(UnknownName, match="no link with 'b'; the present one ends when 'a' stops$"):
                a.forget_peer("b")
            with pytest.raises(UnknownName, match="'a' dials: .* `exop disconnect b --on a`, or .* without --peer b="):
                b.forget_peer("a")
            a.checkpoint("app")
        with platform("a", state=tmp_path / "a", listen=None) as a:
            assert "`exop connect URI` links it" in str(a.failed_to_restart["app"])
            assert "certificate" in next(one["problem"] for one in a.peers() if one["peer"] == "far")
            assert "repair the network, or link it by `exop connect URI`; if a is gone" in b.status("app")["problem"]
            a.connect_peer("inproc:b")
            a.restart("app")
            goes_on(b)
            assert a.remove("app", PATIENCE)


def test_a_host_that_is_away_removes_its_fragment_later():
    """The home repeats the removal until the host confirms it; a new application of this name waits for that."""
    with hosts("a", "b", "c") as (a, b, c):
        network = Network(a, b, c)
        a.apply(counting("b", also=["c"]))
        goes_on(c, "check-c")
        network.away.add("c")
        assert not a.remove("app", 0.5)
        assert b.applications() == a.applications() == []
        assert c.applications() == ["app"]
        with pytest.raises(PlanError, match="c has not removed the former app yet"):
            a.apply(counting("b", also=["c"]))
        network.away.clear()
        eventually(lambda: c.applications() == [], "c without applications")
        eventually(lambda: not a._hosts.homes["app"].leaving)
        a.apply(counting("b", also=["c"]))
        goes_on(c, "check-c")


def test_a_host_returns_without_its_fragment():
    """A change that concerns it is refused with the cure, the status says so, and the cure helps."""
    with hosts("b", "a") as (b, a):
        mesh = a.apply(counting("b"))
        goes_on(b)
        b.close()
        assert a.remoting.peers["b"].wait_until(connected=False, timeout=PATIENCE)
        with pytest.raises(PlanError, match="b cannot be reached at the moment: .*; nothing was changed"):
            a.apply(mesh.move("check", to="a"))
        with pytest.raises(PeerUnreachable) as told:
            a.remoting.peers["b"].call("platform")
        assert str(told.value).count("no platform answers") == 1
        status = a.status("app")
        assert (status["state"], "opening" in status) == ("unreachable", False)
        here, there = Rates().sections(status)
        assert (here["host"], here["state"], title(there)) == ("a", "running", "app on b  unreachable")
        with platform("b") as b:
            assert a.remoting.peers["b"].wait_until(connected=True, timeout=PATIENCE)
            assert a.status("app")["state"] == a.metrics("app")["state"] == "fragment lost"
            assert any("exop accept app" in line for line in Rates().sections(a.status("app"))[0]["notes"])
            with pytest.raises(PlanError, match="app.check is on b: b has returned without its fragment"):
                Found(a, "app", "check").node_status()
            assert any("exop accept app" in line for line in attention_lines(a.status("app")))
            for change in (mesh.move("check", to="a"), mesh.suspend("check")):
                with pytest.raises(PlanError, match="b has returned without its fragment of app; .*`exop accept app`"):
                    a.plan(change)
            assert a.remove("app", PATIENCE)
            a.apply(counting("b"))
            goes_on(b)


def test_all_nodes_of_a_host_are_removed():
    """A fragment that has become empty is removed; the rest goes on, and a node can be placed there again."""
    with hosts("a", "b", "c") as (a, b, c):
        whole = a.apply(counting("b", also=["c"]))
        goes_on(c, "check-c")
        a.apply(whole.remove("check-c"))
        eventually(lambda: c.applications() == [], "c without applications")
        goes_on(b)
        assert sorted(a.status("app")["hosts"]) == ["a", "b"]
        assert b.mesh("app").revision == 1
        assert [one["revision"] for one in Rates().sections(a.status("app"))] == [2, 2]
        assert "  revision 1 of this part  " in title(Rates().sections(b.status("app"))[0])
        assert "  revision 2  " in title(Rates().sections(a.status("app"))[1])
        edited = a.mesh("app").add(
            whole.node("check-c"), *(whole.channels[to] for to in whole.node("check-c").ports.values())
        )
        a.apply(edited)
        eventually(lambda: total(c, "check-c").number > 0)
        assert total(c, "check-c").wrong == 1  # it begins in the middle of the stream
        goes_on(b)


def test_an_update_at_a_point_in_the_stream_remains():
    """Settings that have taken effect on another host are not reverted by later changes of that host."""
    with hosts("a", "b") as (a, b):
        app = Application("app")
        scaled = app.on("b").add("scale", scale, item=app.add("numbers", endless))
        app.add("collect", collect, item=scaled)
        a.apply(app.build().configure("scale", when="item == 100", by=-1))
        eventually(lambda: SEEN.get("all") and SEEN["all"][-1] < 0, "the settings")
        for edit in (Mesh.suspend, Mesh.resume, Mesh.suspend, Mesh.resume):
            a.apply(edit(a.mesh("app"), "scale"))
        seen = len(SEEN["all"])
        eventually(lambda: len(SEEN["all"]) > seen + 1000)
        signs = [item > 0 for item in SEEN["all"]]
        assert signs == sorted(signs, reverse=True), "the settings were reverted"
        assert [abs(item) for item in SEEN["all"][:1000]] == list(range(1, 1001))
        assert b.deployment("app").components["scale"].node.settings["by"] == -1


def test_a_host_that_cannot_take_its_part_is_named_at_once(monkeypatch: pytest.MonkeyPatch):
    """A change that a host refuses to receive, or with a host that is away, does not wait for the deadline."""
    with hosts("a", "b") as (a, b):
        made = a.apply(counting("b"))
        goes_on(b)

        def refused(*_: Any) -> None:
            raise MessageTooLarge(what="the request", size=2, limit=1, cure="send less")

        with monkeypatch.context() as patch:
            patch.setattr(a._hosts, "call", refused)
            with pytest.raises(PlanError, match="b: .*the request"):
                a.apply(made.suspend("check"))
        b.close()
        eventually(lambda: not a.remoting.peers["b"].connected)
        with pytest.raises(PlanError, match="b cannot be reached at the moment"):
            a.apply(made.suspend("check"))
        assert a.mesh("app") == made


def test_what_a_platform_still_sends_while_it_stops_is_lost(monkeypatch: pytest.MonkeyPatch):
    """As if its peer were away, of which the log tells nothing: that it does not run is no news."""
    with hosts("a", "b") as (a, b):
        a.apply(counting("b"))
        closed, problems, call = threading.Event(), SimpleQueue[Exception](), b._hosts.call

        def late(*given: Any) -> None:
            assert closed.wait(PATIENCE)
            try:
                call(*given)
            except Exception as problem:
                problems.put(problem)
                raise

        monkeypatch.setattr(b._hosts, "call", late)
        b._hosts.exchange.send("a", "app", Report("b", "1@a"))
        b.close()
        closed.set()
        assert isinstance(problems.get(timeout=PATIENCE), PeerUnreachable)
        with pytest.raises(PlanError, match="the platform is not running"):
            b.remoting.peers["a"]


def test_a_removal_that_is_asked_for_again_is_not_over_before_everything_is_gone(monkeypatch: pytest.MonkeyPatch):
    """The home asks once a second; an application of the same name may begin when the first removal has ended."""
    with hosts("a", "b") as (a, b):
        a.apply(counting("b"))
        goes_on(b)
        begun, go_on, undeploy = threading.Event(), threading.Event(), b._applications.undeploy

        def slowly(*given: Any) -> bool:
            begun.set()
            assert go_on.wait(PATIENCE)
            return undeploy(*given)

        monkeypatch.setattr(b._applications, "undeploy", slowly)
        with in_thread(lambda: a.remove("app", PATIENCE)) as removed:
            assert begun.wait(PATIENCE)
            with monkeypatch.context() as watched:
                told: list[Any] = []
                watched.setattr(b._hosts.exchange, "send", lambda peer, application, message: told.append(message))
                b._hosts._remove_for("app", Remove("a", PATIENCE))
                assert not [one for one in told if isinstance(one, Report) and one.gone]
            go_on.set()
            assert removed.result(PATIENCE)
        a.apply(counting("b"))
        goes_on(b)
