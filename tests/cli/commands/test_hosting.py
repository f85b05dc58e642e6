"""`exop peers`, `connect`, `discover`: the links of a running platform, as text and as JSON."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from exop import Application, Platform
from exop.cli import main
from exop.cli.commands.hosting import _placed, peers_text
from exop.errors import NotNow, PeerUnreachable
from exop.remoting.api.remote_platform import RemotePlan, RemotePlatform
from exop.remoting.peers import service
from exop.remoting.peers.discovery import Announcement
from tests.cli.shell import answer_of, exop, facts
from tests.rig import PATIENCE, eventually

CONNECTOR = {
    "connector": "app/numbers/a>b",
    "direction": "out",
    "events": 1200,
    "lag": 5,
    "credit": 1024,
    "state": "connected",
}


@pytest.fixture
def near() -> Iterator[Platform]:
    """A running platform `near`, and another one that listens."""
    with Platform(name="far", control=False, listen="inproc:far"), Platform(name="near", control=True) as platform:
        yield platform


@pytest.fixture
def spread(near: Platform, tmp_path: Path) -> None:
    """An application on both platforms, which has ended."""
    near.remoting.connect("inproc:far")
    app = Application("spread")
    numbers = app.add("numbers", "stock:count_up", to=5)
    app.add(
        "sink",
        "stock:write_lines",
        item=app.on("far").add("pass", "stock:pass_on", item=numbers),
        path=tmp_path / "out",
    )
    near.apply(app.build())
    assert near.wait("spread", PATIENCE)


@pytest.mark.usefixtures("near")
def test_a_platform_without_peers_says_how_to_link_it(capsys):
    """The list of no peers names the command that makes one."""
    assert main(["peers"]) == 0
    assert "exop connect URI" in capsys.readouterr().out


@pytest.mark.usefixtures("near")
def test_a_platform_is_linked_and_lists_its_peer(capsys):
    """`connect` links the running platform; `peers` then shows the peer with its address."""
    assert main(["connect", "inproc:far", "far"]) == 0
    assert "near is linked with far" in capsys.readouterr().out
    assert main(["peers", "--json"]) == 0
    (peer,) = json.loads(capsys.readouterr().out)
    assert (peer["peer"], peer["address"], peer["state"]) == ("far", "inproc:far", "connected")


def test_a_link_that_the_command_line_makes_again(tmp_path: Path):
    """`disconnect` tells that the platform links itself at its next start all the same, and with which option."""
    far, near = {"name": "far", "listen": "inproc:far"}, {"name": "near", "state": tmp_path}
    for peers, more in (({"far": "inproc:far"}, ", if it is started without --peer far=inproc:far"), ({}, "")):
        with Platform(**far), Platform(**near, peers=peers) as platform:
            platform.connect_peer("inproc:far")
            said = answer_of("disconnect", "far", "--on", "near")
        assert said == f"near does not link itself with far any more at its next start{more}\n"


@pytest.mark.usefixtures("near")
def test_a_platform_that_is_discovered_is_linked_by_the_command_that_is_shown(monkeypatch):
    """The address has the name, without which one on this host is refused."""
    with Platform(name="close-by", control=False, listen="tcp://127.0.0.1:0") as far:
        seen = [Announcement("close-by", str(far.address).replace("close-by@", ""), "0")]
        monkeypatch.setattr(service, "announcements", lambda seconds: seen)
        _, line = answer_of("discover", "--seconds", "0").splitlines()
        command = line.partition("usable")[2].split()
        assert command[:2] == ["exop", "connect"]
        assert answer_of(*command[1:]).startswith("near is linked with close-by at tcp://close-by@127.0.0.1:")


@pytest.mark.usefixtures("near")
def test_a_platform_of_another_name_is_not_linked(capsys):
    """The command fails with the name that the platform has."""
    assert main(["connect", "inproc:far", "other"]) == 2
    assert "'far', not 'other'" in capsys.readouterr().err


def test_the_connectors_of_a_peer_are_listed_with_credits_and_lag():
    """Each connector has a line with its counts."""
    peer = {"peer": "b", "state": "connected", "address": "tls://b:7700", "role": "operate", "round_trip_ms": 0.41234}
    text = peers_text([{**peer, "connectors": [CONNECTOR]}])
    assert [line.split() for line in text.splitlines()] == [
        ["peer", "state", "address", "role", "round", "trip"],
        ["b", "connected", "tls://b:7700", "operate", "0.412", "ms"],
        [],
        ["peer", "connector", "direction", "events", "lag", "credit", "state"],
        ["b", "app/numbers/a>b", "out", "1,200", "5", "1,024", "connected"],
    ]


@pytest.mark.usefixtures("spread")
def test_the_connectors_of_an_application_are_in_top_with_credit_and_lag():
    """Each host has a table of its nodes, and one of its connectors."""
    sections = facts("top", "--once", "--every", "0.05")["applications"]
    found = [(one["application"], one["host"], one["items"]) for one in sections]
    assert found == [("spread", "far", 5), ("spread", "near", 5)], "the end of the stream is no item"
    (out, back) = sections[1]["connectors"]
    assert (out["channel"], out["peer"], out["lag"], out["credit"] > 0) == ("numbers.to.far", "far", 0, True)
    assert back["channel"] == "pass.from.far"
    shown = answer_of("top", "--once", "--every", "0.05")
    assert "spread on far" in shown
    assert "connector       peer  state      lag  lag s  credit" in shown


@pytest.mark.usefixtures("spread")
def test_the_metrics_of_connectors_are_those_of_their_channels():
    """Text, JSON and the format of Prometheus have them, of all hosts."""
    assert "pass.to.near" in answer_of("metrics")
    channels = facts("metrics")["spread"]["channels"]
    assert {"numbers.to.far", "numbers.from.near", "pass.to.near", "pass.from.far"} < set(channels)
    labels = 'application="spread",channel="numbers.to.far",kind="outbox"'
    lines = answer_of("metrics", "--prometheus").splitlines()
    assert f"exop_channel_lag{{{labels}}} 0" in lines
    assert any(line.startswith(f"exop_channel_credit{{{labels}}}") for line in lines)


def test_a_plan_is_resolved_only_in_doubt(near: Platform, capsys):
    """`resolve` needs a decision, and a plan in doubt."""
    assert main(["resolve", "app"]) == 2
    assert main(["resolve", "app", "--abort"]) == 2
    assert "no plan of 'app' is in doubt on the platform 'near'" in capsys.readouterr().err


def test_the_home_is_adopted_from_a_host(near: Platform, capsys):
    """`adopt` makes the platform the home of an application of which it runs a part."""
    with Platform(name="home", control=False, listen="inproc:home") as home:
        near.remoting.connect("inproc:home")
        app = Application("spread")
        numbers = app.on("near").add("numbers", "stock:count_up")
        app.add("pass", "stock:pass_on", item=numbers)
        home.apply(app.build())
        for command in (["remove", "spread"], ["remove", "spread", "--dry-run"], ["end", "spread"]):
            assert "give the command to the home, --on home" in answer_of(*command, code=2)
    assert main(["adopt", "spread"]) == 0
    assert "near is its home, revision 2" in capsys.readouterr().out
    assert "pass" in near.deployment("spread").components
    assert "near is its home, revision 2" in answer_of("adopt", "spread"), "as it is already"


def test_an_adopted_application_shows_what_still_runs_at_the_old_home(near: Platform, monkeypatch: pytest.MonkeyPatch):
    """`top` shows its state, with one line on the new home; the removal there concerns that part alone."""

    def away(application: str) -> NoReturn:
        raise PeerUnreachable(address="near", problem="the network is cut")

    with Platform(name="new", control=False, listen="inproc:new") as new:
        near.remoting.connect("inproc:new")
        app = Application("spread")
        numbers = app.on("new").add("numbers", "stock:count_up")
        app.on("new").add("passed", "stock:pass_on", item=app.add("pass", "stock:pass_on", item=numbers))
        near.apply(app.build())
        monkeypatch.setattr(near._hosts, "fragment", away)

        def adopted() -> bool:
            with suppress(NotNow):  # the endless stream has not left a queue empty for a moment
                new.adopt("spread")
                return True
            return False

        eventually(adopted, "it is adopted")
        (section,) = facts("top", "--once", "--every", "0.05")["applications"]
        told = "new has adopted spread, and leads it; what still runs on near is not connected with it"
        assert (section["state"], "pass" in {row["node"] for row in section["nodes"]}) == ("adopted", True)
        assert "".join(section["notes"]).count(told) == 1
        plan = answer_of("plan", "remove", "spread")
        assert f"spread: only what runs on near would be stopped at once, and removed: {told}" in plan


@pytest.fixture
def two_parts(near: Platform) -> Platform:
    """Two applications with nodes on `far`, one of which has its source there, and a queue named as the source."""
    near.remoting.connect("inproc:far")
    for name in ("one", "two"):
        app = Application(name)
        place = app if name == "one" else app.on("far")
        numbers = app.channel("numbers", kind="queue", host="far")
        place.add("numbers", "stock:count_up", out=numbers)
        app.on("far").add("passed", "stock:pass_on", item=numbers)
        near.apply(app.build())
    return near


@pytest.mark.usefixtures("two_parts")
def test_a_host_is_drained(near: Platform) -> None:
    """Everything that runs there moves to the home, in one change per application; what is there already stays."""
    assert answer_of("move", "one.passed", "far", "one.channel:numbers") == "one: revision 1: nothing to do\n"
    assert "with an empty state" in answer_of("plan", "move", "two.numbers", "near", "--lose-state", "--on", "near")
    planned = answer_of("plan", "drain", "far", "--to", "near", "--timeout", "9", "--on", "near")
    assert planned.endswith("two: channel:numbers, numbers, passed would move to near\n")
    found = facts("drain", "far", "--on", "near")
    assert [(one["application"], one["moved"]) for one in found] == [
        ("one", ["channel:numbers", "passed"]),
        ("two", ["channel:numbers", "numbers", "passed"]),
    ]
    assert not any(near.mesh(name).spans("near") for name in ("one", "two"))
    assert facts("drain", "far", "--on", "near") == []
    assert answer_of("move", "one.passed", "near") == "one: revision 2: nothing to do\n"


@pytest.mark.parametrize(("producers", "moved"), [("bc", ["here", "m"]), ("aa", ["from0", "from1", "here"])])
def test_a_drain_takes_a_direct_channel_that_does_not_go_with_its_producers(producers: str, moved: list[str]) -> None:
    """Streams of several hosts meet at the home in a direct channel without a place."""
    app = Application("app")
    met = app.channel("m")
    for number, host in enumerate(producers):
        app.on(host).add(f"from{number}", "stock:count_up", out=met)
    app.add("here", "stock:pass_on", item=met)
    platform = cast("RemotePlatform", SimpleNamespace(name="a", mesh=lambda name: app.build()))
    assert _placed(platform, "app", "a") == moved


@pytest.mark.usefixtures("two_parts")
def test_a_drain_names_what_is_left_on_the_host(near: Platform, monkeypatch, capsys) -> None:
    """What another change has placed there meanwhile is not reported as moved, and the exit code is 1."""
    plain = RemotePlan.carry_out

    def carry_out(plan: RemotePlan, **bounds: Any) -> Any:
        found = plain(plan, **bounds)
        near.apply(near.mesh(found.application).move("numbers", "far", channel=True))
        return found

    monkeypatch.setattr(RemotePlan, "carry_out", carry_out)
    assert main(["drain", "far", "--on", "near", "--json"]) == 1
    said = capsys.readouterr()
    assert [one["moved"] for one in json.loads(said.out)] == [["passed"], ["numbers", "passed"]]
    assert "one: channel:numbers is still on far; drain it again" in said.err


@pytest.mark.usefixtures("two_parts")
def test_a_drain_that_another_change_overtakes_is_planned_again(near: Platform, monkeypatch) -> None:
    """As any other command: the change that came first stays, and the nodes move."""
    carry_out, others = RemotePlan.carry_out, ["one"]

    def overtaken(plan: RemotePlan, **bounds: Any) -> Any:
        while others:
            near.apply(near.mesh(others.pop()).suspend("passed"))
        return carry_out(plan, **bounds)

    monkeypatch.setattr(RemotePlan, "carry_out", overtaken)
    done = exop("drain", "far", "--on", "near")
    assert (done.returncode, done.stderr) == (0, "exop: one was changed meanwhile: the change is planned again\n")
    assert (near.mesh("one").spans("near"), near.mesh("one").node("passed").suspended) == (False, True)


@pytest.mark.usefixtures("two_parts")
@pytest.mark.parametrize("command", ["suspend one.passed", "plan suspend one.passed", "memento export one.passed"])
def test_a_host_that_is_away_is_no_mistake(near: Platform, monkeypatch, command: str) -> None:
    """The request is right, and cannot be carried out now: exit code 1."""
    link = near.remoting.peers["far"]
    monkeypatch.setattr(type(link), "connected", property(lambda link: False))
    monkeypatch.setattr(type(link), "wait_until", lambda link, **given: False)
    assert "far" in answer_of(*command.split(), "--on", "near", code=1)


@pytest.mark.usefixtures("two_parts")
def test_what_a_drained_host_keeps_is_named(near: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown platform is no place to move to: each application stays where it is, and the exit code is 1."""
    assert main(["drain", "far", "--to", "nowhere", "--on", "near"]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert near.mesh("one").node("passed").host == "far"
    assert main(["drain", "near", "--on", "near"]) == 2
