"""The remoting service: platforms that are linked call each other's operations, in both directions."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from exop import Application, Platform
from exop.errors import AddressUnusable, PeerRefused, PeerUnreachable, PlatformBusy, UnknownName
from exop.remoting import policy
from exop.remoting.authority import create_authority, issue, revoke
from exop.remoting.peers import service
from exop.remoting.peers.discovery import Announcement
from exop.remoting.peers.link import PeerLink
from exop.remoting.transport.sockets import Peer
from exop.stock.slets import count_up
from tests.remoting.peers.ends import Inbox, Outbox, managed
from tests.rig import PATIENCE, eventually


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Path:
    """The folder of an authority, with the identities of `a` and `b`."""
    folder = tmp_path_factory.mktemp("authority") / "certs"
    create_authority(folder)
    for name in "ab":
        issue(folder, name)
    return folder


def opened(name: str, authority: Path, **options: Any) -> Platform:
    """A platform with an identity, which permits everything to the other one."""
    policy = authority / f"{name}.toml"
    (other,) = {"a", "b"} - {name}
    policy.write_text(f'[peers.{other}]\nrole = "admin"\nread = ["*/*"]\nwrite = ["*/*"]\n')
    policy.chmod(0o600)
    return Platform(name=name, control=False, identity=authority / name, policy=policy, **options)


@pytest.fixture(params=["inproc:a", "tcp://127.0.0.1:0", "tls://127.0.0.1:0"])
def pair(request, authority) -> Iterator[tuple[Platform, Platform]]:
    """Two linked platforms, `a` and `b`; `b` has dialled, and `a` cannot."""
    with opened("a", authority, listen=request.param) as a, opened("b", authority) as b:
        b.remoting.connect(a.address)
        assert a.remoting.wires["b"].wait_until(connected=True, timeout=PATIENCE)
        yield a, b


def numbers(path):
    """An application of stock slets."""
    app = Application("numbers")
    app.add("sink", "stock:write_lines", item=app.add("numbers", count_up, to=3), path=path)
    return app.build()


def test_linked_platforms_call_operations_of_each_other(pair, tmp_path):
    """Each side of a link calls the other, also the side that has not dialled."""
    a, b = pair
    b.apply(numbers(tmp_path / "out"))
    assert a.remoting.peers["b"].call("applications", inactive=False) == ["numbers"]
    assert b.remoting.peers["a"].call("applications") == []


def test_the_management_of_a_peer_is_that_of_a_platform(pair, tmp_path):
    """What stands for a peer has the methods of `Platform`, carried out there."""
    a, b = pair
    there = managed(a, "b")
    made = there.apply(numbers(tmp_path / "out"))
    assert there.name == "b"
    assert b.mesh("numbers").revision == made.revision
    assert there.remove("numbers")
    assert b.applications() == []


def test_an_error_of_the_peer_is_raised_as_its_class(pair):
    """The error of an operation crosses with its class and its facts."""
    a, _ = pair
    with pytest.raises(UnknownName, match="nothing"):
        a.remoting.peers["b"].call("topology", application="nothing")


def test_an_unknown_peer_is_named_with_the_known_peers(pair):
    """Looking up a peer that does not exist raises an error that lists the peers."""
    a, _ = pair
    with pytest.raises(UnknownName, match="no peer 'c'; known: b|no peer 'c'.*b"):
        a.remoting.call("c", "applications")


def test_a_platform_of_another_name_is_refused(pair):
    """The platform at an address must have the name that is expected there."""
    a, b = pair
    with pytest.raises(PeerRefused, match="'a'.*'x'"):
        b.remoting.connect(a.address.replace("a@", ""), "x")


def test_an_address_without_a_platform_is_unreachable(pair):
    """The error contains the address."""
    _, b = pair
    with pytest.raises(PeerUnreachable, match="inproc:nothing"):
        b.remoting.connect("inproc:nothing")


def test_the_wires_of_linked_platforms_carry_events_in_both_directions(pair):
    """An outbox attached to the wire of one platform reaches the inbox attached to that of the other."""
    a, b = pair
    for source, target in ((a, b), (b, a)):
        inbox = Inbox(target.remoting.wires[source.name])
        outbox = Outbox(source.remoting.wires[target.name])
        outbox.post(b"event")
        inbox.wait(lambda inbox=inbox: inbox.bodies == [b"event"])
        outbox.detach(), inbox.detach()


def test_a_peer_that_starts_later_is_linked_then(authority):
    """A platform dials the peers that it is given until they answer."""
    with opened("a", authority, peers={"b": "inproc:b"}) as a:
        link = a.remoting.peers["b"]
        assert not link.connected
        with pytest.raises(PeerUnreachable):
            link.call("applications")
        with opened("b", authority, listen="inproc:b"):
            assert link.wait_until(connected=True, timeout=PATIENCE)
            assert link.call("applications") == []


def test_a_peer_is_lost_and_returns(authority):
    """Its service leaves the registry and returns; the link calls the new process of the peer."""
    with opened("a", authority) as a:
        with opened("b", authority, listen="inproc:b") as b:
            link = a.remoting.connect(b.address)
            eventually(lambda: a.registry.find("Peer", "(name=b)"), "the service of the peer")
        assert link.wait_until(connected=False, timeout=PATIENCE)
        eventually(lambda: not a.registry.find("Peer"), "the end of the service")
        with opened("b", authority, listen="inproc:b") as b:
            assert link.wait_until(connected=True, timeout=PATIENCE)
            assert link.call("applications") == []
            assert b.remoting.wires["a"].wait_until(connected=True, timeout=PATIENCE)
            assert b.remoting.peers["a"].call("applications") == []
            eventually(lambda: a.registry.find("Peer", "(name=b)"), "the service of the peer")


def test_platforms_that_dial_each_other_share_one_link(authority):
    """Whichever connection comes first, both ends agree on one, on which events and calls pass in both directions."""
    there = opened("b", authority, listen="inproc:b", peers={"a": "inproc:a"})
    with opened("a", authority, listen="inproc:a") as a, there as b:
        a.remoting.connect("inproc:b")
        for source, target in ((a, b), (b, a)):
            inbox = Inbox(target.remoting.wires[source.name])
            outbox = Outbox(source.remoting.wires[target.name])
            outbox.post(b"event")
            inbox.wait(lambda inbox=inbox: inbox.bodies == [b"event"])
            assert source.remoting.peers[target.name].call("applications") == []


def test_the_services_of_a_peer_are_listed(pair, tmp_path):
    """Filters work as for the services of the platform itself."""
    a, b = pair
    a.apply(numbers(tmp_path / "out"))
    found = list(managed(b, "a").services("(kind=slet)"))
    assert {one["properties"]["node"] for one in found} == {"numbers", "sink"}


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"listen": "tcp://0.0.0.0:0"}, "use tls://"),
        ({"listen": "tls://127.0.0.1:0"}, "to a platform by `exop serve`"),
        ({"peers": {"b": "tls://127.0.0.1:1"}}, "to a platform by `exop serve`"),
    ],
)
def test_other_hosts_are_reached_by_tls_alone(options, cure):
    """Without TLS, a platform uses loopback addresses only; TLS needs a certificate. The errors have the cure."""
    with pytest.raises(AddressUnusable, match=cure):
        Platform(name="a", control=False, **options).start()


def test_a_name_belongs_to_one_platform(authority):
    """A platform is not linked with itself or another one of its name, nor with two of the same name."""
    with opened("a", authority, listen="tls://127.0.0.1:0") as a, opened("a", authority) as same:
        for dialling in (same, a):  # its policy gives neither any rights, which is no use
            with pytest.raises(PeerRefused, match="both platforms are called 'a', or are one; .*--name NAME"):
                dialling.remoting.connect(a.address)
        with opened("b", authority, listen="inproc:2") as b, Platform(name="b", control=False, listen="inproc:3") as c:
            a.remoting.connect(b.address)
            with pytest.raises(PeerRefused, match="linked already, at inproc:2"):
                a.remoting.connect(c.address)


def test_a_peer_that_dials_again_and_again_holds_one_connection(pair, monkeypatch):
    """Of the connections by which a peer lets itself be called, the newest one is kept, and the others end."""
    a, b = pair
    monkeypatch.setattr(service, "_EVERY", 0.02)
    ended = threading.Semaphore(0)
    for _ in range(10):
        b.remoting._server.serve_at(a.address, "a", ended=ended.release)
    for _ in range(9):
        assert ended.acquire(timeout=PATIENCE)
    assert a.remoting.peers["b"].call("applications") == []


def test_a_platform_that_is_only_dialled_shows_why_it_is_refused(tmp_path, monkeypatch):
    """The peer that refuses its certificate closes the connection without a word, and says why when it dials again."""
    monkeypatch.setattr(policy, "_WATCH_INTERVAL", 0.05)
    create_authority(certs := tmp_path / "certs")
    for name in "ab":
        issue(certs, name)
    with opened("b", certs, listen="tls://127.0.0.1:0") as b, opened("a", certs) as a:
        a.remoting.connect(b.address)
        assert b.remoting.wires["a"].wait_until(connected=True, timeout=PATIENCE)
        revoke(certs, "b")
        eventually(lambda: "the certificate of b is revoked; issue" in b.peers()[0]["problem"], "the reason")


def test_discovered_platforms_are_examined(authority, tmp_path, monkeypatch):
    """A platform that announces itself is a peer, usable, or unusable with the reason; nothing is believed unseen."""
    create_authority(tmp_path / "other")
    tls = "tls://127.0.0.1:0"
    with (
        opened("a", authority) as a,
        opened("b", authority, listen=tls) as b,
        Platform(name="s", control=False, identity=issue(tmp_path / "other", "s"), listen=tls) as stranger,
    ):

        def announced(seconds):
            uris = {"a": "tls://127.0.0.1:1", "b": b.address, "s": stranger.address, "fake": b.address}
            return [Announcement(name, str(uri).replace(f"{name}@", ""), "0") for name, uri in uris.items()]

        monkeypatch.setattr(service, "announcements", announced)
        found = {one["name"]: one for one in a.remoting.discover(0)}
        assert {name: one["state"] for name, one in found.items()} == {
            "b": "usable",
            "s": "unusable",
            "fake": "unusable",
        }
        assert "authority" in found["s"]["problem"]
        assert "'b'" in found["fake"]["problem"]
        a.remoting.connect(b.address)
        assert {one["state"] for one in a.remoting.discover(0) if one["name"] == "b"} == {"peer"}
        with opened("b", authority, listen=tls) as second:  # another one, with the name and certificate of the peer
            uri = str(second.address).replace("b@", "")
            monkeypatch.setattr(service, "announcements", lambda seconds: [Announcement("b", uri, "0")])
            (other,) = a.remoting.discover(0)
        assert (other["state"], "another platform called 'b' is linked" in other["problem"]) == ("unusable", True)
        (gone,) = a.remoting.discover(0)
        assert (gone["state"], "Connection refused" in gone["problem"]) == ("peer", True), "at another address"


def test_a_platform_closes_while_it_dials_a_peer_that_does_not_answer(authority, monkeypatch):
    """Nothing waits for the deadline of the handshake; the dialling thread ends by itself."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        platform = opened("a", authority, peers={"b": f"tcp://127.0.0.1:{silent.getsockname()[1]}"}).start()
        monkeypatch.setattr(service, "_CLOSING", 0.0)
        sock, _ = silent.accept()
        (dialling,) = [one for one in threading.enumerate() if one.name == "exop-peer-b"]
        platform.close()
        assert dialling.is_alive()  # closing has not waited for it
        sock.close()
    dialling.join(PATIENCE)
    assert not dialling.is_alive()


def test_a_lack_of_descriptors_passes(authority, monkeypatch):
    """The link is made when there are some again."""
    with opened("a", authority, listen="inproc:a") as a, opened("b", authority) as b:
        serve_at = b.remoting._server.serve_at
        answers = iter([OSError(24, "Too many open files"), RuntimeError("can't start new thread")])

        def failing(*given: Any, **named: Any) -> Any:
            if (problem := next(answers, None)) is not None:
                raise problem
            return serve_at(*given, **named)

        monkeypatch.setattr(b.remoting._server, "serve_at", failing)
        assert b.remoting.add("a", a.address).wait_until(connected=True, timeout=PATIENCE)


def test_a_host_of_an_unknown_name_is_told_once(authority, monkeypatch, caplog):
    """However often the platform tries, the log has one line, with the reason and the cure."""
    dialling = Mock(side_effect=socket.gaierror(-2, "Name or service not known"))
    monkeypatch.setattr(socket, "create_connection", dialling)
    with opened("a", authority, peers={"b": "tls://nowhere:7700"}):
        eventually(lambda: dialling.call_count > 2)
    (told,) = [one for one in caplog.messages if "the peer 'b' is not linked" in one]
    assert "at tls://b@nowhere:7700: Name or service not known; correct the host" in told


def test_the_rights_of_a_peer_without_a_link_change(authority):
    """A peer that is connecting has no link yet."""
    with opened("b", authority) as b:
        b.remoting._contacts["a"] = Peer(name="a")
        assert b.remoting.hang_up(lambda peer: True) == 0


def test_a_busy_peer_that_has_dialled_is_not_lost(authority, monkeypatch):
    """That it is busy is an answer."""
    monkeypatch.setattr(service, "_EVERY", 0.0)
    with opened("b", authority) as b:
        busy, peer = PlatformBusy(operation="ping", problem="it waited"), Peer(name="a", pid=1, uid=os.getuid())
        client = b.remoting._reversed["a"] = Mock(ping=Mock(side_effect=[busy, None, PeerUnreachable("gone")]))
        b.remoting._keep(PeerLink("a"), client, peer)
        assert client.ping.call_count == 3
