"""Faults of the network between three hosts: nothing is lost, doubled or reordered, and it heals by itself.

The twins of these tests in network namespaces are in `test_namespaces`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from exop import Platform
from tests.hosts.faulty_network import BACK, OUT, Cable, cabled, platform
from tests.hosts.hosts_rig import HANG, counting, goes_on, hangs, total
from tests.rig import eventually


class Hosts(NamedTuple):
    """Three platforms with one application: numbers of `a` are checked on `b` and on `c`."""

    a: Platform
    b: Platform
    c: Platform
    cables: dict[str, Cable]

    def connected(self, one: str, other: str) -> bool:
        """Whether both ends of a link know each other to be there."""
        ends = {"a": self.a, "b": self.b, "c": self.c}
        return all(ends[x].remoting.peers[y].connected for x, y in ((one, other), (other, one)))

    def lost(self, one: str, other: str) -> bool:
        """Whether both ends of a link know that the other one is lost."""
        ends = {"a": self.a, "b": self.b, "c": self.c}
        return not any(ends[x].remoting.peers[y].connected for x, y in ((one, other), (other, one)))


@pytest.fixture
def hosts(monkeypatch) -> Iterator[Hosts]:
    """The application flows."""
    with cabled(monkeypatch) as ((a, b, c), cables):
        a.apply(counting("b", also=["c"]))
        found = Hosts(a, b, c, cables)
        goes_on(b)
        goes_on(c, "check-c")
        yield found
        for cable in cables.values():
            cable.hold()
        HANG.set()


def all_go_on(hosts: Hosts) -> None:
    """Items reach both hosts, and none was lost, doubled or reordered."""
    goes_on(hosts.b)
    goes_on(hosts.c, "check-c")


def test_a_pair_is_partitioned_while_both_see_the_third(hosts):
    """Both ends notice, the connector's service leaves the registry of `a`, and all of it returns by itself."""
    wanted = "(&(kind=connector)(peer=b))"
    eventually(lambda: hosts.a.registry.find("Connector", wanted), "the connector")
    hosts.cables["ab"].hold(OUT, BACK)
    eventually(lambda: hosts.lost("a", "b"), "the loss")
    eventually(lambda: not hosts.a.registry.find("Connector", wanted), "the service has left")
    assert hosts.connected("a", "c")
    assert hosts.connected("b", "c")
    assert hosts.a.registry.find("Connector", "(&(kind=connector)(peer=c))")
    hosts.cables["ab"].hold()
    eventually(lambda: hosts.connected("a", "b"), "the link")
    all_go_on(hosts)
    assert hosts.a.registry.find("Connector", wanted)


@pytest.mark.parametrize("direction", [OUT, BACK])
def test_bytes_of_one_direction_are_lost(hosts, direction):
    """Both ends notice, also the one that still receives; the other pairs are not affected."""
    hosts.cables["ab"].hold(direction)
    eventually(lambda: hosts.lost("a", "b"), "the loss")
    assert hosts.connected("a", "c")
    hosts.cables["ab"].hold()
    eventually(lambda: hosts.connected("a", "b"), "the link")
    all_go_on(hosts)


def test_a_connection_is_half_open(hosts):
    """Neither end is told that the connection is dead; both notice, and connect anew."""
    before = hosts.b.remoting.peers["a"]._connection
    hosts.cables["ab"].forget()
    eventually(lambda: hosts.b.remoting.peers["a"]._connection not in (before, None), "another connection")
    eventually(lambda: hosts.connected("a", "b"), "the link")
    all_go_on(hosts)


def test_every_byte_takes_200_ms(hosts):
    """The stream goes on, in order; the link stays."""
    hosts.cables["ab"].delay = 0.2
    all_go_on(hosts)
    assert hosts.connected("a", "b")


def test_a_reader_is_slow(hosts):
    """Its connector fills up to its capacity and no further, and the source waits; then all items arrive."""
    hosts.a.apply(hosts.a.mesh("app").replace("check", hangs))
    outbox = hosts.a.deployment("app").channels["numbers.to.b"]
    inbox = hosts.b.deployment("app").channels["numbers.from.a"]
    HANG.clear()
    seen = total(hosts.b).number
    eventually(lambda: outbox.depth >= outbox.capacity, "a full connector")
    assert inbox.depth <= inbox.capacity
    HANG.set()
    eventually(lambda: total(hosts.b).number > seen + 2 * outbox.capacity, "the rest")
    all_go_on(hosts)


def test_a_host_returns_with_empty_state(hosts):
    """The host and its connector are shown as such, the source waits, and nothing is put in the place of the state."""
    outbox = hosts.a.deployment("app").channels["numbers.to.b"]
    hosts.b.close()
    with platform("b") as again:
        again.remoting.connect(hosts.cables["ab"].uri)
        eventually(lambda: "no such connector" in outbox.metrics()["state"], "the state of the connector")
        assert "b has returned without its fragment of app" in hosts.a.status("app")["hosts"]["b"]["problem"]
        assert outbox.metrics()["depth"] <= outbox.capacity
        assert again.applications() == []
        assert hosts.a.remove("app")
