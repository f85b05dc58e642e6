"""What peers may do: roles for operations, lists for channels, by the policy and the certificate at each use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from exop.errors import PeerRefused
from exop.remoting.authority import certificates, create_authority, issue, revoke
from exop.remoting.identity import Identity, PeerCertificate
from exop.remoting.policy import AccessControl, Policy
from exop.remoting.transport.sockets import Peer
from exop.runtime.history import calling_platform

POLICY = """
[peers.edge]
role = "operate"
read = ["traffic/jams"]
write = ["traffic/reports"]
[peers.partner]
read = ["traffic/jams"]
"""


class Controlled(NamedTuple):
    """Access control with its authority, policy file, and what it has recorded."""

    access: AccessControl
    authority: Path
    policy: Path
    recorded: list[tuple[object, ...]]


@pytest.fixture
def controlled(tmp_path):
    """Access control of a platform with an identity and a policy that is read at each use."""
    create_authority(tmp_path / "certs")
    (path := tmp_path / "policy.toml").write_text(POLICY)
    path.chmod(0o600)
    recorded: list[tuple[object, ...]] = []
    ticks = iter(range(1000))
    policy = Policy(path, clock=lambda: next(ticks))
    identity = Identity(issue(tmp_path / "certs", "home"))

    def record(*facts: object) -> None:
        recorded.append((*facts, calling_platform()))

    access = AccessControl(policy, identity, record, clock=lambda: next(ticks) / 10)
    return Controlled(access, tmp_path / "certs", path, recorded)


def platform(name: str, serial: int = 1) -> Peer:
    """A peer with a certificate."""
    return Peer(name=name, certificate=PeerCertificate(name, serial, 1e12), address="192.0.2.1:4000")


@pytest.mark.parametrize(("name", "role"), [("edge", "operate"), ("partner", None)])
def test_a_platform_has_the_role_of_the_policy(controlled, name, role):
    """A platform that only shares channels may connect, and has no role."""
    assert controlled.access.role(platform(name)) == role


def test_the_owner_may_do_everything():
    """On the same host, the user of the platform needs no certificate; other users may not connect."""
    access = AccessControl()
    assert access.role(Peer(pid=1, uid=os.geteuid())) == "admin"
    assert access.may(Peer(uid=os.geteuid()), "write", "traffic/jams/a>b")
    for stranger in (Peer(uid=os.geteuid() + 1), Peer(address="192.0.2.1:1")):
        assert not access.may(stranger, "read", "traffic/jams/a>b")
        with pytest.raises(PeerRefused, match="only its owner may connect without a certificate"):
            access.role(stranger)


def test_a_platform_without_rights_may_not_connect(controlled):
    """A certificate alone permits nothing, nor does a platform without a policy."""
    told = r"the policy of the platform gives stranger no rights; add a section \[peers.stranger\]"
    with pytest.raises(PeerRefused, match=told):
        controlled.access.role(platform("stranger"))
    with pytest.raises(PeerRefused, match="the platform has no policy, .*; give it one: --policy FILE"):
        AccessControl(None, controlled.access.identity).role(platform("stranger"))


@pytest.mark.parametrize(
    ("name", "access", "key", "allowed"),
    [
        ("edge", "read", "traffic/jams/home>edge", True),
        ("edge", "write", "traffic/jams/edge>home", False),
        ("edge", "write", "traffic/reports/edge>home", True),
        ("edge", "read", "other/jams/home>edge", False),
        ("edge", "read", "traffic", False),
        ("edge", "operate", "", True),
        ("partner", "read", "traffic/jams/home>partner", True),
        ("partner", "operate", "", False),
        ("stranger", "read", "traffic/jams/home>stranger", False),
    ],
)
def test_a_connector_needs_the_right_for_its_channel(controlled, name, access, key, allowed):
    """Roles give no access to channels, and channels no roles; a refusal is recorded with the application."""
    assert controlled.access.may(platform(name), access, key) is allowed
    if not allowed and access != "operate":
        application, _, rest = key.partition("/")
        reason = f"the policy does not permit it for the channel {application}/{rest.partition('/')[0]}"
        assert controlled.recorded == [(application, access, reason, 1, name)]


def test_a_revoked_certificate_ends_an_open_connection(controlled):
    """The list of revoked certificates counts for connected peers."""
    issue(controlled.authority, "edge")
    (serial,) = revoke(controlled.authority, "edge")
    peer = platform("edge", int(serial, 16))
    with pytest.raises(PeerRefused, match=f"the certificate {serial} of edge is revoked; issue a new one"):
        controlled.access.role(peer)
    assert controlled.access.objection(platform("edge", 5)) == ""


def test_a_policy_counts_for_open_connections(controlled):
    """A lower role counts for the next call; a peer that is no longer named has to go; a mistake changes nothing."""
    controlled.policy.write_text('[peers.edge]\nrole = "observe"\n')
    assert controlled.access.role(platform("edge")) == "observe"
    assert "gives partner no rights" in controlled.access.objection(platform("partner"))
    controlled.policy.write_text("[peers.edge\n")
    assert controlled.access.role(platform("edge")) == "observe"
    assert controlled.access.policy.problem


class Ticks:
    """An event that is not set for a number of waits; each wait calls a function first."""

    def __init__(self, *works: Callable[[], object]) -> None:
        self._works = iter(works)

    def wait(self, seconds: float) -> bool:
        """Whether the watching ends."""
        assert 0 < seconds < 10
        work = next(self._works, None)
        return work is None or bool(work() and False)


def test_connections_of_revoked_and_unknown_peers_end_within_seconds(controlled):
    """A revoked peer has to go, and one that the policy names no longer; other peers and the owner stay."""
    issue(controlled.authority, "edge")
    serial = int(next(one["serial"] for one in certificates(controlled.authority) if one["name"] == "edge"), 16)
    peers = {"edge": platform("edge", serial), "partner": platform("partner"), "owner": Peer(uid=0), "new": Peer()}
    ended = []

    def hang_up(which):
        ended.append([name for name, peer in peers.items() if which(peer)])

    controlled.access.watch(
        hang_up,
        Ticks(
            lambda: None,
            lambda: revoke(controlled.authority, "edge"),
            lambda: controlled.policy.write_text(POLICY.replace("peers.partner", "peers.other")),
        ),
    )
    assert ended == [[], ["edge"], ["edge", "partner"]]
    assert {(one[1], one[-1]) for one in controlled.recorded} == {
        ("stay connected", name) for name in ("edge", "partner")
    }


def test_a_peer_whose_channels_change_connects_again(controlled):
    """Connectors are examined when they are attached: a peer that loses or gains a channel is disconnected once."""
    ended = []
    controlled.access.watch(
        lambda which: ended.append([name for name in ("edge", "partner") if which(platform(name))]),
        Ticks(
            lambda: controlled.policy.write_text(POLICY.replace('read = ["traffic/jams"]', "read = []", 1)),
            lambda: None,
            lambda: controlled.policy.write_text(POLICY.replace('"operate"', '"observe"')),
            lambda: controlled.policy.write_text(POLICY.replace('"operate"', '"admin"')),
        ),
    )
    assert ended == [["edge"], [], ["edge"], []]


def test_a_flood_of_refusals_is_recorded_once_per_second(controlled):
    """Callers cannot make the platform write to the disk for each connection; none of them is left out of the count."""
    for port in range(100):
        controlled.access.refused("", "connect", "a certificate is required", f"192.0.2.1:{port}")
    assert 2 <= len(controlled.recorded) <= 40
    controlled.access.watch(lambda which: 0, Ticks(lambda: None))
    assert sum(one[3] for one in controlled.recorded) == 100
