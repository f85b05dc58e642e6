"""Hosts that return without their fragment, or without its state: an operator lets the application go on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Platform
from exop.cli.commands.hosting import peers_text
from exop.cli.commands.looking import _platform_lines
from exop.cli.status_text import attention_lines
from exop.errors import PlanError
from exop.hosts import home
from exop.hosts.protocol.messages import Finish
from exop.logs import set_up
from exop.model.meshes.mesh import Mesh
from tests.change.tools import endless
from tests.hosts.hosts_rig import HANG, at_rest, check, check_too, hangs, numbers, platform, total
from tests.hosts.hosts_rig import hosts as linked
from tests.rig import PATIENCE, eventually

#: The channels at home of the connectors of `there_and_back`.
CHANNELS = {"app/numbers/a>b": "numbers.to.b", "app/check/b>a": "check.from.b"}


def there_and_back(every: float | None = None) -> Mesh:
    """Numbers of the home, checked on b, and again at home; durable with checkpoints *every* so many seconds."""
    app = Application("app")
    if every is not None:
        app.durable(every=every)
    app.add("back", check, item=app.on("b").add("check", check, item=app.add("numbers", endless)))
    return app.build()


class Hosts:
    """Two platforms, of which b is started again; with a folder, both have a state directory."""

    def __init__(self, stack: ExitStack, folder: Path | None) -> None:
        self._stack, self._folder = stack, folder
        self.b = self._started("b")
        self.a = self._started("a")
        self.a.remoting.connect("inproc:b")
        self.a.apply(there_and_back())
        eventually(lambda: total(self.a, "back").number > 1000)

    def _started(self, name: str) -> Platform:
        given = {} if self._folder is None else {"state": self._folder / name}
        return self._stack.enter_context(platform(name, **given))

    def restart(self) -> None:
        """Stop b as a crash does, and start it again."""
        link = self.a.remoting.peers["b"]
        self.b.close()
        assert link.wait_until(connected=False, timeout=PATIENCE)
        self.b = self._started("b")
        assert link.wait_until(connected=True, timeout=PATIENCE)

    def goes_on(self) -> None:
        """Items pass both hosts; each slet has noticed one gap."""
        seen = total(self.a, "back").number
        eventually(lambda: total(self.a, "back").number > seen + 3000, "items")
        assert total(self.b).wrong <= 1
        assert total(self.a, "back").wrong <= 1
        at_rest(self.a, self.b)


def test_a_fragment_begins_anew_on_a_host_that_has_lost_it(capsys: pytest.CaptureFixture[str]):
    """The state of the other hosts is kept, and so are the items that were not processed."""
    set_up()
    with ExitStack() as stack:
        hosts = Hosts(stack, None)
        hosts.restart()
        problem = hosts.a.status("app")["hosts"]["b"]["problem"]
        assert "`exop accept app` at the home lets the fragment begin anew" in problem
        hosts.a.status("app")
        assert capsys.readouterr().err.count("a fragment is lost") == 1
        seen = total(hosts.a, "back").number
        assert hosts.a.accept_loss("app") == ["b", "numbers.to.b", "check.to.a"]
        hosts.goes_on()
        said = capsys.readouterr().err
        assert (said.count("a connector has lost its state"), said.count("is accepted; it goes on")) == (2, 2)
        assert "error" not in said, "it has gone right"
        assert "exop accept" not in said, "it is accepted"
        assert hosts.a.history("app")[-1]["what"] == "accept"
        assert total(hosts.a, "back").number > seen
        assert hosts.a.status("app")["state"] == "running"
        with pytest.raises(PlanError, match="no host or connector of app has lost anything"):
            hosts.a.accept_loss("app")
        assert "nothing to accept" in hosts.a.history("app")[-1]["outcome"]
        with pytest.raises(PlanError, match="'b' is not the home of an application 'app'"):
            hosts.b.accept_loss("app")


@pytest.mark.parametrize("every", [None, 0.1])
def test_an_application_that_has_finished_needs_nothing_from_its_hosts(tmp_path: Path, every: float | None):
    """A host, then the home, is started again and runs nothing of it: no problem, and nothing to accept.

    The home knows that from the moment on at which a wait returns, without a further message.
    """
    with ExitStack() as stack:
        found = {name: stack.enter_context(platform(name, state=tmp_path / name)) for name in ("b", "a")}
        found["a"].remoting.connect("inproc:b")
        app = Application("app")
        if every is not None:
            app.durable(every=every)
        app.on("b").add("check", check, item=app.add("numbers", numbers, upto=10))
        exchange = found["a"]._hosts.exchange
        send = exchange.send

        def lossy(peer: str, application: str, message: Any) -> None:
            if peer == "b" or not isinstance(message, Finish):
                send(peer, application, message)

        exchange.send = lossy  # type: ignore[method-assign]
        found["a"].apply(app.build())
        assert found["a"].wait("app", PATIENCE)
        assert found["a"].deployment("app").finished.is_set()
        eventually(lambda: all(one.deployment("app").finished.is_set() for one in found.values()))
        assert found["b"].wait("app", PATIENCE)  # as `exop serve` does
        for name in ("b", "a"):
            found[name].close()
            found[name] = stack.enter_context(platform(name, state=tmp_path / name))
            (a := found["a"]).remoting.connect("inproc:b")
            assert a.remoting.peers["b"].wait_until(connected=True, timeout=PATIENCE)
            eventually(lambda a=a: a.status("app")["state"] == "finished")
            assert a.metrics("app")["state"] == "finished"
            assert [*attention_lines(a.status("app"))] == []
            with pytest.raises(PlanError, match="app has finished: there is nothing to accept"):
                a.accept_loss("app")
            assert a.wait("app", PATIENCE)
            a.end("app")
        shown = "\n".join(_platform_lines([{"pid": 1, "platform": "a", "address": "", **a.status()}]))
        assert ("0.0 s" in shown, "finished" in shown) == (False, True)
        assert found["b"].applications() == []
        assert a.remove("app", PATIENCE)


def test_two_hosts_that_have_lost_their_fragments_begin_anew():
    """Also with a connector between them, of which nothing is left at either end."""
    app = Application("app")
    one = app.on("b").add("one", check, item=app.add("numbers", endless))
    app.add("back", check, item=app.on("c").add("two", check, item=one))
    with ExitStack() as stack:
        b, c, a = (stack.enter_context(platform(name)) for name in "bca")
        for one in (b, c):
            a.remoting.connect(f"inproc:{one.name}")
        b.remoting.connect("inproc:c")
        a.apply(app.build())
        eventually(lambda: total(a, "back").number > 1000)
        for one in (b, c):
            one.close()
            assert a.remoting.peers[one.name].wait_until(connected=False, timeout=PATIENCE)
        b, c = (stack.enter_context(platform(one.name)) for one in (b, c))
        b.remoting.connect("inproc:c")
        for one in (b, c):
            assert a.remoting.peers[one.name].wait_until(connected=True, timeout=PATIENCE)
        assert a.accept_loss("app")[:2] == ["b", "c"]
        seen = total(a, "back").number
        eventually(lambda: total(a, "back").number > seen + 1000, "items")
        a.remove("app")


def test_a_change_of_a_host_that_is_away_is_refused_before_its_plan_is_shown(monkeypatch: pytest.MonkeyPatch):
    """The refusal names the host; a change of the other hosts can be planned."""
    monkeypatch.setattr(home, "CONNECTING", 0.1)
    with ExitStack() as stack:
        hosts = Hosts(stack, None)
        hosts.b.close()
        assert hosts.a.remoting.peers["b"].wait_until(connected=False, timeout=PATIENCE)
        mesh = hosts.a.mesh("app")
        with pytest.raises(PlanError, match="b cannot be reached at the moment"):
            hosts.a.plan(mesh.move("check", to="a"))
        assert hosts.a.plan(mesh.replace("back", check_too))
        hosts.b = stack.enter_context(platform("b"))


def test_a_home_that_has_lost_its_state_is_replaced():
    """It cannot deploy anew what another host still runs: the refusal tells that the host can adopt the application."""
    with ExitStack() as stack:
        hosts = Hosts(stack, None)
        hosts.a.close()
        hosts.a = stack.enter_context(platform("a"))
        hosts.a.remoting.connect("inproc:b")
        assert hosts.b.remoting.peers["a"].wait_until(connected=True, timeout=PATIENCE)
        eventually(lambda: hosts.b.status("app")["state"] == "home lost", "the state of the fragment")
        cure = "`exop adopt app --on b` makes b the home, where what ran at a begins anew"
        (line,) = (line for line in attention_lines(hosts.b.status("app")) if "has returned without it" in line)
        assert cure in line
        with pytest.raises(PlanError, match="`exop adopt app --on b` makes b the home"):
            hosts.a.apply(there_and_back())
        assert hosts.b.adopt("app") == 2
        seen = total(hosts.b).number
        eventually(lambda: total(hosts.b).number != seen, "items of the new source")
        assert hosts.b.status("app")["state"] == "running"


def test_a_home_that_was_started_without_its_state_directory(tmp_path: Path):
    """The state of its fragments says so, until it is started with the directory: the first cure."""
    with ExitStack() as stack:
        hosts = Hosts(stack, tmp_path)
        for state, told in ((None, "home lost"), (tmp_path / "a", "running")):
            hosts.a.close()
            hosts.a = stack.enter_context(platform("a", **({} if state is None else {"state": state})))
            hosts.a.remoting.connect("inproc:b")
            eventually(lambda told=told: hosts.b.status("app")["state"] == told, "the state of the fragment")
        assert hosts.a.accept_loss("app") == ["numbers.to.b", "check.to.a"]
        seen = total(hosts.a, "back").number
        eventually(lambda: total(hosts.a, "back").number > seen + 100, "items")


def test_connectors_that_have_lost_their_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """An application that is not durable begins anew at a restart: `exop peers` and the log tell it, with the cure."""
    set_up()
    with ExitStack() as stack:
        hosts = Hosts(stack, tmp_path)
        hosts.restart()

        def lost(one: Platform) -> dict[str, str]:
            return {
                row["connector"]: row["problem"]
                for peer in one.remoting.status()
                for row in peer["connectors"]
                if row["state"] == "state lost"
            }

        eventually(lambda: "app/numbers/a>b" in lost(hosts.a), "the loss of the one connector")
        eventually(lambda: "app/check/b>a" in lost(hosts.b), "the loss of the other one")
        assert capsys.readouterr().err.count("[error    ] a connector has lost its state") == 2
        assert "by `exop accept app.numbers.to.b` where the outbox is" in peers_text(hosts.a.remoting.status())
        assert hosts.a.accept_loss("app") == ["numbers.to.b", "check.to.a"]
        assert lost(hosts.a) == lost(hosts.b) == {}
        hosts.goes_on()


def test_connectors_tell_what_they_hold_while_the_peer_is_away(tmp_path: Path):
    """Also after a restart, `exop peers` has the numbers and the states of `exop describe`, in both directions."""
    with ExitStack() as stack:
        b = stack.enter_context(platform("b", state=tmp_path / "b"))
        with platform("a", state=tmp_path / "a", peers={"b": "inproc:b"}) as a:
            assert a.remoting.peers["b"].wait_until(connected=True, timeout=PATIENCE)
            a.apply(there_and_back(every=60))
            eventually(lambda: total(a, "back").number > 500)
            a.checkpoint("app")
            assert {row["state"] for row in a.remoting.status()[0]["connectors"]} == {"connected"}
            assert {a.status("app")["channels"][name]["state"] for name in CHANNELS.values()} == {"connected"}
        b.close()
        a = stack.enter_context(platform("a", state=tmp_path / "a", peers={"b": "inproc:b"}))
        eventually(lambda: "refused" in a.remoting.peers["b"].reason, "it is known why b is away")
        told, channels = a.remoting.status()[0]["connectors"], a.status("app")["channels"]
        assert {row["connector"] for row in told} == CHANNELS.keys()
        for row in told:
            half = channels[CHANNELS[row["connector"]]]
            assert row["events"] == half.get("sent", half.get("received")) > 500
            assert row["state"] == half["state"] == "disconnected (Connection refused)"


def finite() -> Mesh:
    """Ten numbers of a, checked on b; the last slet, on c, hangs."""
    app = Application("app")
    checked = app.on("b").add("check", check, item=app.add("numbers", numbers, upto=10))
    app.on("c").add("last", hangs, item=checked)
    return app.build()


@pytest.mark.parametrize("lost", ["content", "fragment"])
def test_an_end_that_was_acknowledged_comes_again_after_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
):
    """Its producer has ended, and does not send it again: without it, what begins anew would wait for ever.

    What a connector has lost is known when it is connected again: until then, the answer names it.
    """
    monkeypatch.setattr(home, "CONNECTING", 0.1 if lost == "content" else PATIENCE)
    given = {"state": tmp_path / "b"} if lost == "content" else {}
    with linked("a", "c") as (a, c), ExitStack() as stack:

        def begin(*others: str) -> Platform:
            b = stack.enter_context(platform("b", **given))
            for other in others:
                b.remoting.connect(f"inproc:{other}")
            return b

        def counted(one: Platform, channel: str, **counts: int | str) -> bool:
            metrics = one.deployment("app").channels[channel].metrics()
            return counts.items() <= metrics.items()

        b = begin("a", "c")
        HANG.clear()
        a.apply(finite())
        eventually(lambda: counted(a, "numbers.to.b", sent=11, depth=0), "the end on b")
        eventually(lambda: counted(c, "check.from.b", received=11), "the end on c")
        b.close()
        if lost == "content":
            b = begin("a")
            eventually(lambda: counted(a, "numbers.to.b", state="state lost"), "the loss on b")
            with pytest.raises(PlanError, match="accepted: .*numbers.to.b; .*: check.to.c; repeat this then"):
                a.accept_loss("app")
            b.remoting.connect("inproc:c")
            eventually(lambda: counted(b, "check.to.c", state="state lost"), "the loss on its way to c")
            assert a.accept_loss("app") == ["check.to.c"]
        else:
            b = begin("a", "c")
            assert a.accept_loss("app") == ["b", "numbers.to.b", "check.to.c"]
        HANG.set()
        eventually(lambda: a.status("app")["state"] == "finished", "the end")
