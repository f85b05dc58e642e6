"""What each host hands over and takes over in a change of the whole mesh, before anything happens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exop import Application
from exop.errors import PlanError
from exop.hosts.moves.transfer import Moves, Rest, Transfer
from exop.model.meshes.fragments import Placement
from exop.model.meshes.mesh import Mesh, Node
from exop.model.slets.slet import spec_of
from exop.runtime.channels import BUILT_IN
from tests.change.tools import endless, plain, summing, writing

KINDS = {kind.kind: kind for kind in BUILT_IN}


def mesh(**hosts: str) -> Mesh:
    """Make source -> (direct) -> first and second -> (queue) -> sink, at these hosts; home is `a`."""
    app = Application("app")
    numbers = app.add("source", endless)
    both = app.channel("both", "queue")
    app.add("first", summing, x=numbers, out=both)
    app.add("second", plain, x=numbers, out=both)
    app.add("sink", writing([]), x=both)
    made = app.build()
    for name, host in hosts.items():
        made = made.move(name, to=host)
    return made


def moves(before: Mesh, after: Mesh) -> Moves:
    """The moves between two meshes whose home is `a`."""
    return Moves(Placement(before, "a", KINDS), Placement(after, "a", KINDS))


def found(before: Mesh, after: Mesh) -> dict[str, Transfer]:
    """The transfers between two meshes whose home is `a`."""
    return moves(before, after).hosts


def test_a_change_without_a_move_hands_over_nothing():
    """A host takes part in no transfer because of other edits."""
    there = mesh(first="b")
    assert found(there, there.suspend("first")) == {}


def test_a_node_moves_from_its_host_to_another_one():
    """Its new host is cut after its old one; the connectors are new, so nothing is in them."""
    assert found(mesh(), mesh(first="b")) == {
        "a": Transfer(departing={"first": "b"}),
        "b": Transfer(arriving={"first": "a"}, wave=1),
    }


def test_a_port_that_had_the_stream_before_goes_on_with_it():
    """Where it is, and where a relay sends it the items, or brings its own; others are new, or connected as before."""
    there = mesh(first="b").add(Node("third", spec_of(plain), ports={"x": "source"}))
    moved = found(mesh(), there)
    assert moved["b"].continued == ["first.x"]
    assert sorted(moved["a"].continued) == ["both.from.b.out", "source.to.b.item"]


def test_the_events_on_the_way_to_a_node_that_comes_home_go_to_its_port():
    """The host that has the channel delivers what the former host has not processed."""
    back = found(mesh(first="b"), mesh())
    rests = {rest.outbox: rest for rest in back["a"].rests}
    assert rests["source.to.b"] == Rest("a", "b", "source.to.b", "source.from.a", ports=("first.x",))
    assert rests["both.to.a"] == Rest("b", "a", "both.to.a", "both.from.b", channel="both", partial=True)
    assert back["b"].received == {"source.from.a": ["a"]}
    assert back["b"].sent == {"both.to.a": ["a"]}
    assert (back["b"].wave, back["a"].wave) == (0, 1)


def test_the_events_on_the_way_to_a_node_that_moves_on_go_directly_to_its_port():
    """From `b` to `c`: what `a` has sent and `b` has not processed is in front of what the new connector brings."""
    on = found(mesh(first="b"), mesh(first="c"))
    assert [(rest.outbox, rest.ports) for rest in on["c"].rests] == [("source.to.b", ("first.x",))]
    assert [(rest.outbox, rest.channel) for rest in on["a"].rests] == [("both.to.a", "both")]
    assert on["b"].wave < on["a"].wave < on["c"].wave


def test_a_port_that_leaves_a_shared_connector_takes_its_events_along():
    """The connector goes on for the other port, and what it has on its way is delivered to this one, too."""
    home = moves(mesh(first="b", second="b"), mesh(second="b"))
    assert home.renewed == {"app/both/b>a"}  # another producer stays there, and this one pushes directly now
    rests = {rest.outbox: rest for rest in home.hosts["a"].rests}
    assert rests["source.to.b"].ports == ("first.x",)


def test_a_connector_begins_anew_when_a_port_joins():
    """What is on its way is delivered to the ports that were there, and the port that joins has it already."""
    joins = moves(mesh(second="b"), mesh(first="b", second="b"))
    assert joins.renewed == {"app/source/a>b"}
    assert [rest.ports for rest in joins.hosts["b"].rests] == [("second.x",)]


@pytest.mark.parametrize(
    ("kind", "settings", "gets"),
    [
        ("latch", {}, True),
        ("latch", {"replay": False}, False),
        ("log", {"replay": True}, True),
        ("log", {}, False),
        ("partitioned_log", {"by": "real", "partitions": 2, "replay": True}, True),
        ("partitioned_log", {"by": "real", "partitions": 2}, False),
        ("queue", {}, False),
    ],
)
@pytest.mark.parametrize("stays", [True, False])
def test_a_port_that_is_added_at_a_connector_gets_what_the_channel_keeps(
    kind: str, settings: dict[str, object], gets: bool, stays: bool
):
    """What is on the way is a part of that, and goes to the port that was there before, wherever that is then."""
    app = Application("app")
    numbers = app.add("source", endless, out=app.channel("kept", kind, **settings))
    app.on("b").add("first", writing([]), x=numbers)
    there = app.build()
    after = there.add(replace(there.node("first"), name="second"))
    found = moves(there, after if stays else after.move("first", to="c"))
    kept = Rest("a", "", "kept", "", ("second.x",))
    assert [rest for rest in found.hosts["b"].rests if not rest.target] == [kept] * gets
    assert found.renewed == ({"app/kept/a>b"} if gets else set())
    ports = [rest.ports for one in found.hosts.values() for rest in one.rests if rest.target]
    assert ports == [("first.x",)] * (gets or not stays)


def test_a_member_that_joins_its_group_at_a_connector_gets_nothing_of_before():
    """The other members have received it."""
    app = Application("app")
    kept = app.channel("kept", "partitioned_log", by="real", partitions=2, replay=True)
    app.add("source", endless, out=kept)
    app.on("b").add("first", writing([]), x=kept, group="both")
    there = app.build()
    joins = replace(there.node("first"), name="second")
    assert moves(there, there.add(joins)).hosts == {}
    assert moves(there, there.add(replace(joins, group=None))).renewed == {"app/kept/a>b"}


def test_a_port_that_moves_from_one_connector_to_another_one_gets_its_rest_directly():
    """What is on the way to `b` is for the port that moves alone."""
    on = moves(mesh(first="b", second="c"), mesh(first="c", second="c"))
    assert "app/source/a>c" in on.renewed
    assert {(rest.target, *rest.ports) for rest in on.hosts["c"].rests} == {("b", "first.x"), ("c", "second.x")}


def test_a_queue_moves_with_its_content_behind_what_is_on_the_way():
    """The consumer there gets the rest of the connector first, then the content."""
    moved = found(mesh(sink="b"), mesh(sink="b", both="b"))
    assert moved["a"].contents == {"both": "b"}
    assert moved["b"].restored == {"both": "a"}
    assert moved["b"].rests == [Rest("a", "b", "both.to.b", "both.from.a", ports=("sink.x",))]


def test_hosts_that_would_wait_for_each_other_are_refused():
    """A move in each direction at once has no order of the cuts."""
    with pytest.raises(PlanError, match="a and b would both hand over"):
        found(mesh(first="b"), mesh(second="b"))
