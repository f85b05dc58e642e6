"""An application whose home is gone for good gets another home."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest

from exop import Application, Platform
from exop.cli.commands.monitoring import not_running
from exop.errors import NotNow, PeerUnreachable, PlanError, StateError, UnknownName
from exop.model.meshes.mesh import Mesh
from exop.stock.slets import count_up
from tests.hosts.hosts_rig import (
    SEEN,
    Network,
    at_rest,
    check,
    check_too,
    collect,
    endless,
    goes_on,
    hosts,
    keeps,
    numbers,
    platform,
    rows,
    total,
)
from tests.rig import PATIENCE, eventually


def without_home(collect_on: str | None = None) -> Mesh:
    """Numbers on b, checked on c; the home collects, or another host."""
    app = Application("app")
    source = app.on("b").add("numbers", count_up, start=1)
    checked = app.on("c").add("check", check, item=source)
    (app.on(collect_on) if collect_on else app).add("collect", collect, item=checked)
    return app.build()


def adopted_meanwhile(a: Platform, b: Platform, c: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the network of a is cut, b adopts the application."""

    def away(application: str) -> NoReturn:
        raise PeerUnreachable(address="a", problem="the network is cut")

    network = Network(a, b, c)
    network.away.add("a")
    with monkeypatch.context() as cut:
        cut.setattr(a._hosts, "fragment", away)
        b.adopt("app")
    network.away.clear()


def test_the_home_and_another_host_have_lost_their_parts():
    """The host that answers without a part begins anew, as what ran at the home; the others go on."""
    with hosts("a", "b", "c") as (a, b, c), ExitStack() as stack:
        a.apply(without_home("c"))
        eventually(lambda: len(SEEN.get("all", ())) > 100)
        a.close()
        b.close()
        with pytest.raises(NotNow, match="b cannot be reached, and runs a part"):
            c.adopt("app")
        fresh = stack.enter_context(platform("b"))
        fresh.remoting.connect("inproc:c")
        eventually(lambda: c.remoting.peers["b"].connected, "the link")
        assert c.adopt("app") == 2
        eventually(lambda: "app" in fresh.applications(), "the part of b")
        seen = len(SEEN["all"])
        c.accept_loss("app")
        eventually(lambda: len(SEEN["all"]) > seen + 100)


def test_what_begins_anew_does_not_pass_for_what_a_restart_makes_again(tmp_path: Path):
    """The former home had sent more than the checkpoint of another host has: its connector waits for an operator."""

    def dead(snapshot: Any) -> int:
        raise StateError("it is killed")

    with ExitStack() as stack:
        a, b, c = stack.enter_context(hosts("a", "b", "c", state=tmp_path))
        app = Application("app")
        app.durable(every=3600)
        checked = app.on("b").add("check", check, item=app.add("endless", endless))
        app.on("c").add("keeps", keeps, item=checked)
        a.apply(app.build())
        a.checkpoint("app")
        b._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        outbox = b.deployment("app").channels["check.to.c"]
        eventually(lambda: len(c.memento("app", "keeps").items) > outbox._captured + 100, "more than in the checkpoint")
        a.close()
        b.close()
        b = stack.enter_context(platform("b", state=tmp_path / "b"))
        b.remoting.connect("inproc:c")
        eventually(lambda: c.remoting.peers["b"].connected, "the link")
        eventually(lambda: "app" in b.applications() and b._applications.deployed["app"], "b is back")
        c.adopt("app")
        eventually(lambda: [one for one in not_running(c.status()) if "has lost its state" in one], "it is told")
        assert c.accept_loss("app") == ["check.to.c"]
        eventually(lambda: c.memento("app", "keeps").items.count(1) == 2, "all of the new source")


def test_another_host_becomes_the_home():
    """The connectors between the others go on; what ran at the former home begins anew at the new one."""
    with hosts("a", "b", "c") as (a, b, c):
        a.apply(without_home())
        eventually(lambda: len(SEEN.get("all", ())) > 100)
        a.close()
        for one in (b, c):
            cure = f"`exop adopt app --on {one.name}`"
            eventually(lambda one=one, cure=cure: cure in one.status("app").get("problem", ""))
        seen = len(SEEN["all"])
        before = total(c).number
        assert b.adopt("app") == 2
        assert b.mesh("app").revision == 2
        assert sorted(b.mesh("app").nodes) == ["check", "collect", "numbers"]
        eventually(lambda: len(SEEN["all"]) > seen + 100)
        assert total(c).number > before
        goes_on(c)
        plan = b.plan(b.mesh("app").replace("check", check_too))
        assert "move" not in str(plan), "what ran here is at home now"
        plan.apply()
        goes_on(c)
        assert c.status("app")["home"] == "b"
        assert "problem" not in c.status("app")
        with pytest.raises(PlanError, match="changed at its home, the platform 'b'"):
            c.apply(c.mesh("app").suspend("check"))


def test_another_host_adopts_an_application_with_a_table():
    """The setting `key` of a table is no key of a connector."""
    with hosts("a", "b", "c") as (a, b, _):
        app = Application("app")
        app.on("b").add("rows", rows, out=app.on("b").channel("table", "table", key="n"))
        app.on("c").add("collect", collect, item=app.on("c").add("others", count_up, start=1))
        a.apply(app.build())
        a.close()
        assert b.adopt("app") == 2
        assert b.mesh("app").channels["table"].host is None, "it is at home"


@pytest.mark.parametrize(("placed", "there", "by"), ["abb", "abc", "bbc", "bcb"])
def test_what_has_ended_on_other_hosts_has_ended(placed: str, there: str, by: str):
    """It gets nothing of a source that begins anew at the new home, by any way; everything else goes on."""
    with hosts("a", "b", "c") as (a, b, c):
        app, found = Application("app"), {"a": a, "b": b, "c": c}
        queue = app.on(placed).channel("queue", "queue")
        app.add("numbers", numbers, upto=10, out=queue)
        app.on(there).add("check", check, item=queue)
        app.on("c").add("collect", collect, item=app.on("c").add("others", count_up, start=1))
        a.apply(app.build())
        eventually(lambda: found[there].deployment("app").components["check"].has_ended, "the end of the stream")
        a.close()
        new = found[by].adopt("app") and found[by].deployment("app")
        eventually(lambda: new.components["numbers"].has_ended, "the end of what begins anew")
        eventually(lambda: not (b.deployment("app").undelivered() or c.deployment("app").undelivered()), "it is read")
        state, seen = total(found[there]), len(SEEN["all"])
        assert (state.number, state.wrong) == (10, 0)
        eventually(lambda: len(SEEN["all"]) > seen + 100)


def test_a_home_that_answers_stays_the_home():
    """An application is adopted only if its home does not answer, and no other host can deploy over its parts."""
    with hosts("a", "b", "c", "d") as (a, b, _, d):
        a.apply(without_home())
        with pytest.raises(PlanError, match="the home of app is 'a', not 'd'; give the command to it, --on a"):
            d.apply(without_home())
        assert d.applications() == []
        with pytest.raises(PlanError, match="the home of the application, a, answers"):
            b.adopt("app")
        assert b.status("app")["home"] == "a"


def test_the_former_home_returns(monkeypatch: pytest.MonkeyPatch):
    """Its commands are refused, since another home leads the application now; what runs there is removed alone."""
    with hosts("a", "b", "c") as (a, b, c):
        whole = a.apply(without_home())
        eventually(lambda: len(SEEN.get("all", ())) > 100)
        adopted_meanwhile(a, b, c, monkeypatch)
        for edited in (whole.replace("check", check_too), whole.configure("numbers", start=2)):
            with pytest.raises(PlanError, match="the home of app is 'b', not 'a'; give the command to it, --on b"):
                a.apply(edited, timeout=PATIENCE)
        for command in (a.end, a.checkpoint, a.adopt):
            with pytest.raises(PlanError, match="b has adopted app, and leads it; .*`exop remove app --on a`"):
                command("app")
        with pytest.raises(PlanError, match="the home of app is 'b', not 'a'; give the command"):
            a.accept_loss("app")
        at_rest(b, c)
        goes_on(c)
        told = a.status("app")
        assert (told["state"], told["home"], *told["nodes"]) == ("adopted", "b", "collect")
        assert "`exop remove app --on a`" in told["problem"]
        assert "hosts" not in told
        with pytest.raises(PlanError, match="^b has adopted app, and leads it; .* on a .*`exop remove app --on a`"):
            b.apply(b.mesh("app").move("collect", to="a"), timeout=PATIENCE)
        assert a.remove("app", timeout=PATIENCE)
        assert a.applications() == []
        goes_on(c)
        b.apply(b.mesh("app").move("collect", to="a"), timeout=PATIENCE)
        goes_on(c)
        for last, anew in ((b, a), (a, b)):  # nothing of it runs anywhere then: any host may deploy it
            assert last.remove("app", timeout=PATIENCE)
            anew.apply(without_home(), timeout=PATIENCE)
            goes_on(c)


def test_a_former_home_takes_a_part_of_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If none of its own runs there; from then on, it is a host like any other, also after a restart."""
    with hosts("a", "b", "c", state=tmp_path) as (a, b, c):
        a.apply(without_home(collect_on="c"))
        goes_on(c)
        adopted_meanwhile(a, b, c, monkeypatch)
        assert a.status("app")["state"] == "adopted"
        b.apply(b.mesh("app").move("check", to="a"), timeout=PATIENCE)
        goes_on(a)
        assert [one.status("app")["state"] for one in (a, b, c)] == ["running"] * 3
        a.close()
        with platform("a", state=tmp_path / "a") as again:
            eventually(lambda: [one.status("app")["state"] for one in (again, b)] == ["running"] * 2)
            assert again.status("app")["home"] == "b"


def test_an_adoption_needs_all_other_hosts():
    """A host that cannot be reached, or that runs no part of the application, is named; nothing has changed."""
    with hosts("a", "b", "c") as (a, b, c):
        a.apply(without_home())
        goes_on(c)
        c.close()
        with pytest.raises(PlanError, match="c cannot be reached, and runs a part"):
            b.adopt("app")
        assert a.adopt("app") == a.mesh("app").revision, "it is its home already"
        with pytest.raises(UnknownName, match="has no fragment 'other'"):
            b.adopt("other")
        assert b.status("app")["home"] == "a"
