"""Channels of a platform that another one reads: by slets of an application that spans both, and by calls."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from exop import Application, InputPort, Slet, input_port, slet
from exop.errors import PeerRefused, UnknownName
from exop.model.meshes.nodes import ChannelSpec
from exop.stock.slets import count_up
from tests.hosts.moving import Hosts
from tests.remoting.peers import test_access
from tests.remoting.peers.ends import managed
from tests.rig import PATIENCE, eventually

hosts = test_access.hosts


class Asking(Slet):
    """Looks up what another slet has stored."""

    prices: InputPort[dict[str, Any]]

    @input_port
    def item(self, item: int) -> list[Any]:
        """Ask until all rows are there."""
        while len(rows := self.prices.pull()) < 3:
            continue
        return [item, self.prices.get(item % 3)["price"], len(self.prices.find(price=10)), len(rows)]


@slet
def prices() -> Iterator[dict[str, Any]]:
    """The rows of a table."""
    yield from ({"n": number, "price": 10 * number} for number in range(3))


def test_a_slet_reads_a_table_on_another_host():
    """`get`, `find` and a pull are calls of the platform that has the table."""
    rig = Hosts("a", "b", slets=(Asking, prices, count_up))
    with rig.platforms["a"] as home, rig.platforms["b"]:
        rig.connect()
        app = Application("reading")
        rows = app.on("b").channel("rows", kind="table", key="n")
        app.on("b").add("prices", prices, out=rows)
        app.add("sink", rig.sink, x=app.add("asking", Asking, item=app.add("count", count_up, to=30), prices=rows))
        home.apply(app.build())
        home.wait("reading", PATIENCE)
    assert sorted(rig.seen) == [[number, 10 * (number % 3), 1, 3] for number in range(30)]


def test_a_program_uses_a_channel_of_a_platform():
    """Without a slet: a condition on a table, rows by key, and an unknown channel."""
    rig = Hosts("a", "b", slets=(prices,))
    with rig.platforms["a"] as home, rig.platforms["b"] as other:
        rig.connect()
        app = Application("sharing")
        app.add("prices", prices, out=app.channel("rows", kind="table", key="n"))
        other.apply(app.build())
        assert other.wait("sharing", PATIENCE)
        rows = managed(home, "b").channel("sharing", "rows", dict)
        assert rows.query("item.price >= 10") == [{"n": 1, "price": 10}, {"n": 2, "price": 20}]
        assert rows.get(2) == {"n": 2, "price": 20}
        with pytest.raises(UnknownName, match="sharing on b has no outbox 'rows'"):
            managed(home, "b").accept_loss("sharing", "rows")
        with pytest.raises(UnknownName, match="sharing has no channel 'row'; did you mean 'rows'"):
            managed(home, "b").channel("sharing", "row").items()


def test_large_results_cross_in_parts():
    """A result that does not fit into one message is fetched in chunks."""

    @slet
    def long_rows() -> Iterator[dict[str, Any]]:
        yield from ({"n": number, "text": "x" * 1000} for number in range(500))

    rig = Hosts("a", "b", slets=(long_rows,))
    with rig.platforms["a"] as home, rig.platforms["b"] as other:
        rig.connect()
        app = Application("large")
        app.add("rows", long_rows, out=app.channel("rows", kind="table", key="n"))
        other.apply(app.build())
        assert other.wait("large", PATIENCE)
        assert len(managed(home, "b").channel("large", "rows").items()) == 500


def test_a_peer_calls_the_channels_that_the_policy_permits(hosts: test_access.Hosts):
    """`read` for what only reads, `write` for what changes the content; a refusal is recorded."""
    app = Application("lr")
    for name in ("jams", "secrets"):
        app.add(name, prices, out=app.channel(f"{name}", kind="table", key="n"))
    hosts.home.apply(app.build())
    assert hosts.home.wait("lr", PATIENCE)
    there = managed(hosts.edge, "home")
    assert there.channel("lr", "jams").get(1) == {"n": 1, "price": 10}
    with pytest.raises(PeerRefused, match="does not permit this peer to write the channel lr/jams"):
        there.channel("lr", "jams").delete(1)
    with pytest.raises(PeerRefused, match="does not permit this peer to read the channel lr/secrets"):
        there.channel("lr", "secrets").items()
    eventually(lambda: len(test_access.refused(hosts.home, "lr")) >= 2, "both are recorded")
    assert there.channel("lr", "jams").get(1) == {"n": 1, "price": 10}


def test_names_are_not_told_to_a_peer_without_a_right(hosts: test_access.Hosts):
    """A peer that asks for any application or channel learns the same, whether it exists or not."""
    app = Application("lr")
    app.add("rows", prices, out=app.channel("secrets", kind="table", key="n"))
    hosts.home.apply(app.build())
    there = managed(hosts.edge, "home")
    for application, channel in (("lr", "secrets"), ("lr", "nothing"), ("nothing", "secrets")):
        with pytest.raises(
            PeerRefused, match=f"does not permit this peer to [a-z]+ the channel {application}/{channel}"
        ):
            there.channel(application, channel).items()


def test_the_halves_of_a_connector_answer_no_calls(hosts: test_access.Hosts):
    """A peer that may read and write a channel cannot take events of others out of the outbox, or acknowledge them."""
    app = Application("lr")
    app.add("rows", prices, out=app.channel("jams", kind="queue"))
    mesh = app.build()
    settings = {"peer": "other", "key": "lr/jams/edge>other", "epoch": 1}
    hosts.edge.apply(replace(mesh, channels={"jams": ChannelSpec("jams", "outbox", settings)}))
    jams = managed(hosts.home, "edge").channel("lr", "jams")
    for call in (lambda: jams.frames(1000), lambda: jams.disconnected("x"), lambda: jams.push([1])):
        with pytest.raises(UnknownName, match="the outbox channel 'jams' has no method"):
            call()
