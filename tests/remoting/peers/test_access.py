"""Linked platforms with certificates: rights to channels, revocations and roles, while the links are open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from exop import Application, Platform
from exop.cli.status_text import access_lines
from exop.errors import IdentityError, PeerRefused, PeerUnreachable
from exop.hosts.journal import encode
from exop.hosts.protocol.messages import Ask, Finish, Propose, Remove
from exop.remoting import policy
from exop.remoting.authority import create_authority, issue, revoke
from exop.stock.slets import count_up, pass_on
from tests.remoting.peers.ends import Inbox, Outbox
from tests.rig import PATIENCE, eventually

#: A connector of a channel, from one platform to the other.
THERE, BACK = "lr/jams/home>edge", "lr/reports/edge>home"


class Hosts:
    """Two platforms, `home` and `edge`, which has dialled, with an authority and a policy each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.certs, self._folder = folder / "certs", folder
        create_authority(self.certs)
        self.policy("home", "edge", 'role = "observe"\nread = ["lr/jams"]\nwrite = ["lr/reports"]')
        self.policy("edge", "home", 'role = "operate"\nread = ["lr/*"]\nwrite = ["lr/*"]')
        self.home = stack.enter_context(self._platform("home"))
        self.edge = stack.enter_context(self._platform("edge"))
        self.edge.remoting.connect(self.home.address or "", "home")
        eventually(lambda: all(self.connected()), "both are linked")

    def _platform(self, name: str) -> Platform:
        identity, path = issue(self.certs, name), self._folder / f"{name}.toml"
        return Platform(name=name, control=False, listen="tls://127.0.0.1:0", identity=identity, policy=path)

    def policy(self, name: str, peer: str, rights: str) -> None:
        """Replace the policy of a platform."""
        fresh = self._folder / f"{name}.new"
        fresh.write_text(f"[peers.{peer}]\n{rights}\n")
        fresh.chmod(0o600)
        fresh.replace(self._folder / f"{name}.toml")

    def connected(self) -> list[bool]:
        """Whether each side has a data connection."""
        return [one.remoting.peers[peer].connected for one, peer in ((self.home, "edge"), (self.edge, "home"))]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Platforms that look at certificates and policies all the time."""
    monkeypatch.setattr(policy, "_WATCH_INTERVAL", 0.05)
    monkeypatch.setattr(policy, "_INTERVAL", 0.0)
    with ExitStack() as stack:
        yield Hosts(tmp_path, stack)


def refused(platform: Platform, application: str = "") -> set[tuple[str, str]]:
    """The operations and the callers of what a platform has refused."""
    rows = platform.history(application)
    return {(one["what"], one["who"].partition(" (")[0]) for one in rows if one["outcome"] == "refused"}


def test_a_peer_reads_and_writes_its_channels_and_no_others(hosts):
    """Both platforms have to permit a connector; one that is refused delivers nothing, and is recorded."""
    here, there = hosts.home.remoting.wires["edge"], hosts.edge.remoting.wires["home"]
    inbox, outbox = Inbox(there, THERE), Outbox(here, THERE)
    outbox.post(b"jam")
    inbox.wait(lambda: inbox.bodies == [b"jam"])
    inbox, outbox = Inbox(here, BACK), Outbox(there, BACK)
    outbox.post(b"report")
    inbox.wait(lambda: inbox.bodies == [b"report"])

    secret, stolen = "lr/secrets/home>edge", "lr/jams/edge>home"
    inboxes = Inbox(there, secret), Inbox(here, stolen)
    outboxes = Outbox(here, secret), Outbox(there, stolen)
    for outbox in outboxes:
        outbox.post(b"never")
        outbox.wait(lambda outbox=outbox: "the policy of the platform does not permit it" in outbox.reasons)
    assert [inbox.bodies for inbox in inboxes] == [[], []]
    eventually(lambda: len(refused(hosts.home)) == 2, "both are recorded")
    assert refused(hosts.home) == {("read", "platform edge"), ("write", "platform edge")}


def test_channels_that_a_peer_loses_and_regains(hosts):
    """A change of the policy counts for an attached connector; what has waited is delivered when it is permitted."""
    inbox = Inbox(hosts.edge.remoting.wires["home"], THERE)
    outbox = Outbox(hosts.home.remoting.wires["edge"], THERE)
    outbox.post(b"1")
    inbox.wait(lambda: inbox.bodies == [b"1"])
    hosts.policy("home", "edge", 'role = "observe"\nread = []')
    outbox.wait(lambda: "the policy of the platform does not permit it" in outbox.reasons)
    outbox.post(b"2")
    hosts.policy("home", "edge", 'role = "observe"\nread = ["lr/jams"]')
    inbox.wait(lambda: inbox.bodies == [b"1", b"2"])


def test_a_peer_that_has_not_dialled_may_do_what_the_policy_of_the_dialler_permits(hosts):
    """Each platform decides for itself: the role of the home at the edge is not that of the edge at the home."""
    assert hosts.home.remoting.peers["edge"].call("applications") == []
    with pytest.raises(PeerRefused, match="edge refused: the call needs the role admin, and the role .* is operate"):
        hosts.home.remoting.peers["edge"].call("start_bundle", bundle="x")
    with pytest.raises(PeerRefused, match=r'the call needs the role operate, .* is observe; \[peers."edge"\] in'):
        hosts.edge.remoting.peers["home"].call("end", application="lr")
    assert ("start_bundle", "platform home") in refused(hosts.edge)
    assert ("end", "platform edge") in refused(hosts.home)


def spread() -> Application:
    """An application of which the edge passes the items on."""
    app = Application("lr")
    jams, reports = app.channel("jams"), app.channel("reports")
    app.add("numbers", count_up, to=1000, out=jams)
    app.on("edge").add("pass", pass_on, item=jams, out=reports)
    app.add("sink", pass_on, item=reports)
    return app


def test_a_host_answers_the_home_without_a_role(hosts):
    """An application spans the hosts although the edge may not operate the home: it may answer, and nothing else."""
    hosts.home.apply(spread().build())
    assert hosts.home.wait("lr", PATIENCE)
    assert hosts.home.metrics("lr")["nodes"]["sink"]["items"]["item"] == 1000
    changes = [one for one in hosts.edge.history("lr") if one["what"] == "change"]
    assert [one["who"] for one in changes] == ["platform home"]
    for message in (Propose("1@edge", "edge", b"", {}, (), 1.0, 1.0), Remove("edge", 1.0), Finish("edge")):
        with pytest.raises(PeerRefused, match="a change of lr needs the role operate"):
            hosts.edge.remoting.peers["home"].call("protocol", application="lr", message=encode(message))
    with pytest.raises(PeerRefused, match="on other, which does not run here"):
        hosts.edge.remoting.peers["home"].call("protocol", application="other", message=encode(Ask("1@edge", "edge")))
    assert ("protocol", "platform edge") in refused(hosts.home, "lr")
    hosts.home.remove("lr", PATIENCE)


def test_a_host_hands_over_to_the_home_without_a_role(hosts):
    """The content of a channel comes home in the cut, beside the messages; the link is not cut."""
    app = Application("lr")
    app.on("edge").add("numbers", count_up, to=10**9, out=app.channel("reports", "log", host="edge", keep=50_000))
    hosts.home.apply(app.build())
    before = hosts.edge.deployment("lr").channels["reports"]
    eventually(lambda: before.end > 50_000, "the log is full")
    hosts.home.apply(hosts.home.mesh("lr").move("reports", to="home"))
    after = hosts.home.deployment("lr").channels["reports"]
    assert after.end - after.start >= 50_000
    assert hosts.home.remoting.peers["edge"].reason == ""
    hosts.home.remove("lr", PATIENCE)


def test_a_policy_that_becomes_invalid_is_shown_in_the_status(hosts):
    """The previous rights remain in force, and `exop ps` tells the line of the mistake until it is corrected."""
    good = hosts.home.status()["access"]
    assert good["policy"]["peers"] == ["edge"]
    assert good["policy"]["problem"] == good["identity"]["problem"] == ""
    hosts.policy("home", "edge", 'role = "root"')
    problem = f"{good['policy']['file']}:2: 'role' of the peer 'edge' is 'root'; take observe, operate, admin"
    assert hosts.home.status()["access"]["policy"]["problem"] == problem
    assert list(access_lines(hosts.home.status())) == [f"home: the previous policy remains in force: {problem}"]
    assert hosts.edge.remoting.peers["home"].call("applications") == []
    hosts.policy("home", "edge", 'role = "observe"')
    assert list(access_lines(hosts.home.status())) == []


@pytest.mark.parametrize("name", ["home", "edge"])
def test_a_revocation_ends_the_link_of_the_dialler_and_of_the_dialled(hosts, name):
    """All connections with the revoked platform end, and are not made again; log, history and status tell why."""
    other, link = (hosts.edge, "home") if name == "home" else (hosts.home, "edge")
    hosts.home.apply(spread().build().suspend("pass"))  # it does not finish meanwhile
    revoke(hosts.certs, name)
    eventually(lambda: not any(hosts.connected()), "the data connection ends")
    eventually(lambda: not other.remoting._server.connections, "the control connections end")
    eventually(lambda: ("stay connected", f"platform {name}") in refused(other), "it is recorded")
    with pytest.raises((PeerUnreachable, PeerRefused)):
        other.remoting.peers[link].call("applications")
    assert not any(hosts.connected())
    status = other.status("lr")
    problem = status["problem"] if name == "home" else status["hosts"]["edge"]["problem"]
    assert f"revoked; issue a new one: `exop certs issue {name}`" in problem
    assert "repair the network" not in problem


def test_a_platform_of_another_name_than_its_certificate_does_not_start(hosts, tmp_path):
    """A platform cannot take the name of another one."""
    with pytest.raises(IdentityError, match="the certificate is that of 'edge', and the platform is called 'bank'"):
        Platform(name="bank", control=False, listen="tls://127.0.0.1:0", identity=hosts.certs / "edge").start()
