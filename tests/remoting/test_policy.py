"""The policy file: roles and channels per peer, nothing by default, read again when it changes."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import Mock

import pytest

from exop.errors import PolicyError
from exop.remoting.identity import PeerCertificate
from exop.remoting.policy import AccessControl, Policy
from exop.remoting.transport.sockets import Peer
from exop.runtime.history import History

POLICY = """
[peers.home]
role = "admin"
read = ["*/*"]
write = ["*/*"]

[peers.edge]
role = "observe"
read = ["traffic/jams", "traffic/log*"]  # APPLICATION/CHANNEL
write = ["*/reports"]

[peers."partner.example.org"]
read = ["traffic/tolls"]
"""


class Watched:
    """A policy, its file, and the clock on which it looks at the file."""

    def __init__(self, path: Path) -> None:
        self.now = 0.0
        self.path = path
        path.write_text(POLICY)
        path.chmod(0o644)
        self.policy = Policy(path, clock=lambda: self.now)

    def write(self, text: str) -> None:
        """Replace the file, as an editor does; the next look is due."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.replace(self.path)
        self.now += 1.0


@pytest.fixture
def watched(tmp_path):
    """A policy in a file."""
    return Watched(tmp_path / "policy.toml")


@pytest.mark.parametrize(
    ("peer", "role"), [("home", "admin"), ("edge", "observe"), ("partner.example.org", None), ("stranger", None)]
)
def test_a_peer_has_the_role_that_the_file_gives_it(watched, peer, role):
    """A peer without an entry, or without a role, may call no operation."""
    assert watched.policy.rights(peer).role == role


@pytest.mark.parametrize(
    ("peer", "access", "application", "channel", "allowed"),
    [
        ("home", "read", "any", "thing", True),
        ("edge", "read", "traffic", "jams", True),
        ("edge", "read", "traffic", "jams2", False),
        ("edge", "read", "traffic", "log.to.cloud", True),
        ("edge", "read", "other", "jams", False),
        ("edge", "write", "traffic", "jams", False),
        ("edge", "write", "any", "reports", True),
        ("edge", "read", "traffic/jams", "", False),
        ("edge", "read", "", "traffic/jams", False),
        ("edge", "read", "traffic", "JAMS", False),
        ("edge", "write", "a/reports", "b", False),
        ("partner.example.org", "read", "traffic", "tolls", True),
        ("partner.example.org", "write", "traffic", "tolls", False),
        ("stranger", "read", "traffic", "jams", False),
        ("*", "read", "traffic", "jams", False),
    ],
)
def test_a_peer_reads_and_writes_the_channels_that_the_file_gives_it(
    watched, peer, access, application, channel, allowed
):
    """Patterns match application and channel apart; a role gives no access to channels."""
    assert watched.policy.rights(peer).allow(access, application, channel) is allowed


def test_a_new_file_applies_without_a_restart(watched):
    """The file is looked at once per second at most, when it is asked."""
    watched.write('[peers.edge]\nrole = "operate"\n')
    watched.now = 0.9
    assert watched.policy.rights("edge").role == "observe"
    watched.now = 1.0
    assert watched.policy.rights("edge").role == "operate"
    assert watched.policy.rights("home").role is None
    assert not watched.policy.rights("edge").allow("read", "traffic", "jams")


@pytest.mark.parametrize(
    "spoil", ["[peers.home\n", '[peers.home]\nrole = "root"\n', None], ids=["syntax", "role", "gone"]
)
def test_a_file_that_becomes_invalid_keeps_the_previous_rights(watched, spoil):
    """The problem is shown until the file is valid again; no right is gained or lost meanwhile."""
    if spoil is None:
        watched.path.unlink()
        watched.now += 1.0
    else:
        watched.write(spoil)
    assert watched.policy.rights("home").role == "admin"
    assert watched.policy.rights("stranger").role is None
    assert watched.policy.problem.startswith(str(watched.path))
    watched.write('[peers.stranger]\nrole = "observe"\n')
    assert watched.policy.rights("stranger").role == "observe"
    assert watched.policy.problem == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[peers.edge]\nrole = \n", "2: Invalid value; correct this line"),
        ("[peers.a]\n[peers.edge]\nrole = 'operator'\n", "3: 'role' of the peer 'edge' is 'operator'; take observe, "),
        ("[peers.edge-10]\n[peers.edge-1]\nrole = []\n", "3: 'role' of the peer 'edge-1' is []; take observe, "),
        ("[peers.edge]\n\nroles = 'admin'\n", "3: 'roles' of the peer 'edge' is unknown; known: role, read, write"),
        ("[peers.edge.org]\n", "1: 'org' of the peer 'edge' is unknown; quote a name with dots: [peers.\"edge.org\"]"),
        ("[peers.edge]\nread = 'a/b'\n", "2: 'read' of the peer 'edge' is 'a/b'; give a list of APPLICATION/CHANNEL"),
        ("[peers.edge]\nread = [\n  'a/b',\n  'jams',\n]\n", "4: 'read' of the peer 'edge' contains 'jams'; give a "),
        ("[peers.edge]\nwrite = [3]\n", "2: 'write' of the peer 'edge' contains 3; give a list"),
        ("# peer\n[peer.edge]\n", "2: 'peer' is no section of a policy; give one section [peers.NAME] per peer"),
        ("peers = 3\n", "1: `peers` is no table; give one section [peers.NAME] per peer"),
        ("[peers]\nedge = 'admin'\n", "2: 'edge' is no table; write [peers.edge]"),
    ],
)
def test_an_invalid_file_is_refused_with_line_and_cure(tmp_path, text, problem):
    """A spelling mistake must not leave a peer with other rights than the author means."""
    path = tmp_path / "policy.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(PolicyError) as refused:
        Policy(path)
    assert str(refused.value).startswith(f"{path}:{problem}")


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_file_is_refused(tmp_path, content):
    """A platform does not start without the rights that it was given."""
    path = tmp_path / "policy.toml"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(
        PolicyError, match=r"policy.toml:1: it cannot be read: .*; give a TOML file with \[peers.NAME\]"
    ):
        Policy(path)


def test_a_file_that_other_users_can_write_is_refused(watched):
    """Its content gives the rights: nobody but its owner may change it, also while the platform runs."""
    watched.path.chmod(0o664)
    with pytest.raises(PolicyError, match=r"other users can write it \(mode 664\); chmod go-w"):
        Policy(watched.path)
    watched.write('[peers.stranger]\nrole = "admin"\n')
    watched.path.chmod(0o666)
    assert watched.policy.rights("stranger").role is None
    assert "other users can write it" in watched.policy.problem


def test_names_that_a_peer_makes_up_are_one_kind_of_refusals(tmp_path):
    """They neither displace other entries of the history nor fill the memory."""
    watched, history, now = Watched(tmp_path / "policy.toml"), History({"traffic"}.__contains__), [0.0]
    access = AccessControl(watched.policy, None, history.counted, lambda: now[0])
    peer = Peer(name="edge", certificate=PeerCertificate("edge", 1, math.inf), address="address")
    history.counted("traffic", "connect", "another refusal")
    for number in range(300):
        assert not access.may(peer, "read", f"traffic/{number}{'x' * 1000}/a>b")
        assert not access.may(peer, "read", f"{number}/any/a>b")
    now[0] = 10.0
    access.watch(lambda which: 0, Mock(wait=Mock(side_effect=[False, False, True])))
    assert [one["what"] for one in history.of("traffic")] == ["connect", "read"]
    assert [one["count"] for one in history.of("traffic")] == [1, 300]
    assert max(len(one["reason"]) for one in history.of("traffic")) < 300
    assert len(access._recorded) < 10


def test_a_failure_does_not_end_the_watch(tmp_path):
    """The connections of other peers are looked at again."""
    identity, hang_up = Mock(), Mock(side_effect=[OSError, 0])
    access = AccessControl(Watched(tmp_path / "policy.toml").policy, identity)
    access.watch(hang_up, Mock(wait=Mock(side_effect=[False, False, True])))
    assert hang_up.call_count == 2
    identity.warn.assert_called_once()
