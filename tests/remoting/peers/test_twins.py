"""Two platforms of one name: the first one stays linked, the second one is told so, and both logs say it once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import pytest

from exop import Platform
from exop.errors import PeerRefused
from exop.remoting import policy
from exop.remoting.authority import create_authority, issue
from exop.remoting.transport.handshake import CONTROL, DATA, REVERSE
from exop.remoting.transport.limits import Limits
from exop.remoting.transport.sockets import Peer
from tests.hosts.faulty_network import Cable
from tests.remoting.peers.ends import Inbox, Outbox
from tests.rig import PATIENCE, eventually

REFUSED = "another platform called 'b' is linked already, at .*, and answers; stop one of the two, or start one"


class Twins:
    """A platform `a`, which listens, and platforms that dial it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.a = stack.enter_context(Platform(name="a", control=False, listen="tcp://127.0.0.1:0"))

    def dialler(self, name: str = "b", uri: str = "", **given: Any) -> Platform:
        """Start a platform that dials `a`, or that address."""
        peers = {"a": uri or str(self.a.address)}
        return self._stack.enter_context(Platform(name=name, control=False, peers=peers, **given))

    def serves(self, one: Platform, name: str = "b") -> None:
        """Wait until calls and events of `a` by the name reach this platform, and it calls `a`."""
        link, there = one.remoting.peers["a"], self.a.remoting.wires[name]
        assert link.wait_until(connected=True, timeout=PATIENCE)
        inbox, outbox = Inbox(link), Outbox(there)
        outbox.post(b"event")
        inbox.wait(lambda: inbox.bodies == [b"event"])
        outbox.detach(), inbox.detach()
        eventually(lambda: there.client is not None, "the calls of a")
        assert there.call("applications") == link.call("applications") == []
        client: Any = there.client
        assert client._contact.peer.run == one.remoting.run


@pytest.fixture
def twins() -> Iterator[Twins]:
    """A platform that listens."""
    with ExitStack() as stack:
        yield Twins(stack)


def refused(second: Platform) -> None:
    """Wait until a platform is told that another one has its name."""
    link = second.remoting.peers["a"]
    eventually(lambda: re.search(REFUSED, link.reason), "the refusal")
    assert not link.connected


def test_the_first_of_two_platforms_of_one_name_stays(twins, monkeypatch, caplog):
    """Its link lasts, however often the other one tries; the history and both logs name the reason."""
    warning = Mock()
    monkeypatch.setattr(policy, "logger", lambda name: Mock(warning=warning))
    first = twins.dialler()
    twins.serves(first)
    connection = twins.a.remoting.peers["b"]._connection
    second = twins.dialler()
    refused(second)
    eventually(lambda: [one for one in twins.a.history() if one.get("count", 0) > 1], "it goes on trying")
    assert twins.a.remoting.peers["b"]._connection is connection
    twins.serves(first)
    assert re.search(REFUSED, twins.a.history()[-1]["reason"])
    assert len(re.findall(f"the peer 'a' is not linked: .*{REFUSED}", caplog.text)) == 1, "the log of the second one"
    assert [bool(re.search(REFUSED, one.kwargs["reason"])) for one in warning.mock_calls] == [True], "the log of a"


def test_the_second_one_is_linked_when_the_first_one_has_stopped(twins):
    """The first cure that the refusal names."""
    first = twins.dialler()
    twins.serves(first)
    second = twins.dialler()
    refused(second)
    first.close()
    twins.serves(second)


def test_the_second_one_is_linked_under_a_name_of_its_own(twins):
    """The second cure that the refusal names."""
    first = twins.dialler()
    twins.serves(first)
    second = twins.dialler()
    refused(second)
    second.close()
    renamed = twins.dialler("c")
    twins.serves(renamed, "c")
    twins.serves(first)


def test_a_platform_whose_connection_only_looks_alive_gives_way(twins, monkeypatch):
    """Its host has died, and no byte tells it: the one that was started in its place is linked at its first attempt."""
    monkeypatch.setattr(twins.a.remoting, "_limits", Limits(greeting_time=0.6))
    cable = Cable(str(twins.a.address))
    first = twins.dialler(uri=cable.uri)
    twins.serves(first)
    cable.hold("out", "back")
    second = twins.dialler()
    twins.serves(second)
    assert not [one for one in twins.a.history() if one["outcome"] == "refused"]
    monkeypatch.undo()  # on a busy machine, the second one may take as long to answer
    cable.hold()
    refused(first)
    first.close()
    cable.close()


def test_a_platform_that_is_started_again_is_not_refused(twins):
    """Also without a pause, when its last connection may not have ended yet."""
    for _ in range(5):
        with Platform(name="b", control=False, peers={"a": str(twins.a.address)}) as one:
            twins.serves(one)
    assert not [one for one in twins.a.history() if one["outcome"] == "refused"]


def test_a_platform_does_not_dial_another_one_of_the_name_of_its_peer(twins):
    """By `connect`, or by an address that it was given: its calls and its events go to one process."""
    first = twins.dialler()
    twins.serves(first)
    with Platform(name="b", control=False, listen="tcp://127.0.0.1:0") as second:
        with pytest.raises(PeerRefused, match=REFUSED):
            twins.a.remoting.connect(str(second.address))
        twins.serves(first)
        assert "a" not in second.remoting.peers
        with pytest.raises(PeerRefused, match=REFUSED):
            twins.a.remoting._client(str(second.address), "b").ping()
        first.close()
        assert twins.a.remoting.peers["b"].wait_until(connected=False, timeout=PATIENCE)
        assert twins.a.remoting.connect(str(second.address)).call("status", application=None)["platform"] == "b"


def test_of_two_that_connect_at_once_one_is_linked_as_a_whole(twins):
    """While none of them has a data connection, the last one has the name, and nothing of the other one is used."""
    remoting = twins.a.remoting
    one, two = (Peer(name="b", run=run, uid=0) for run in ("1", "2"))
    assert remoting.objection(one, REVERSE) == remoting.objection(two, CONTROL) == ""
    link = remoting._link("b", one)
    assert remoting.objection(two, REVERSE) == ""
    with pytest.raises(PeerRefused, match="another platform called 'b' has connected meanwhile"):
        remoting._link("b", one)
    assert remoting._link("b", two) is link
    assert remoting.objection(one, DATA) == ""
    with pytest.raises(PeerRefused):
        remoting._link("b", two)


def test_a_copy_of_a_platform_has_its_certificate_as_well(tmp_path):
    """The first one of two with one certificate stays linked, too."""
    create_authority(tmp_path / "certs")
    given: dict[str, Any] = {}
    for name, other in ("ab", "ba"):
        (rights := tmp_path / f"{name}.toml").write_text(f'[peers.{other}]\nrole = "admin"\n')
        rights.chmod(0o600)
        given[name] = {"control": False, "identity": issue(tmp_path / "certs", name), "policy": rights}
    with Platform(name="a", listen="tls://127.0.0.1:0", **given["a"]) as a:
        peers = {"a": str(a.address)}
        with Platform(name="b", peers=peers, **given["b"]) as first, Platform(name="b", **given["b"]) as second:
            assert first.remoting.peers["a"].wait_until(connected=True, timeout=PATIENCE)
            eventually(lambda: a.remoting.wires["b"].connected, "the link of a")
            with pytest.raises(PeerRefused, match=REFUSED):
                second.remoting.connect(str(a.address))
            assert first.remoting.peers["a"].call("applications") == []
            first.close()
            assert second.remoting.connect(str(a.address)).call("applications") == []
