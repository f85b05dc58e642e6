"""Fragments: the meshes into which the mesh of an application over several hosts is split, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from exop import Application, Batch, InputPort, Mesh, OutputPort, Slet, Tie, input_port, slet
from exop.errors import MeshError, WiringError
from exop.model.meshes.checks import check_group, check_join
from exop.model.meshes.fragments import Connector, Placement, epochs
from exop.model.meshes.fragments import fragments as split
from exop.model.meshes.mesh import ChannelSpec
from exop.model.slets.described import absent, describe
from exop.model.slets.relay import RELAY
from exop.model.slets.spec import SletSpec
from exop.runtime.channels import BUILT_IN, REMOTE
from exop.runtime.channels.base import DirectChannel
from exop.stock.slets import count_up, pass_on, show
from tests.model.sample_meshes import CATALOG, SLETS, line, meshes, names, node

KINDS = {kind.kind: kind for kind in (*BUILT_IN, *REMOTE)}
fragments = partial(split, kinds=KINDS)


def at_home(mesh: Mesh) -> Placement:
    """Return the placement of a mesh whose home is called so."""
    return Placement(mesh, "home", KINDS)


def connectors(mesh: Mesh, home: str) -> dict[str, Connector]:
    """Return the connectors of a mesh, by key."""
    return Placement(mesh, home, KINDS).connectors


def original(channel: ChannelSpec) -> str:
    """Return the name of a channel of a fragment in the whole mesh: of a connector, that of the channel it serves."""
    way = {"outbox": "to", "inbox": "from", "reader": "at"}.get(channel.kind)
    return channel.name if way is None else channel.name.removesuffix(f".{way}.{channel.settings['peer']}")


def whole(parts: Iterable[Mesh]) -> Mesh:
    """Put the fragments of all hosts together."""
    found = list(parts)
    own = [one for part in found for one in part.channels.values() if one.name == original(one)]
    nodes = {
        one.name: replace(one, ports={port: original(part.channels[to]) for port, to in one.ports.items()})
        for part in found
        for one in part.nodes.values()
        if one.slet != RELAY
    }
    mesh = Mesh(found[0].name, revision=found[0].revision, durable=found[0].durable)
    return mesh.edited(nodes, {one.name: one for one in own})


def placed() -> Mesh:
    """Make numbers -> a (queue at home) -> double on b -> b -> console on c."""
    return line().move("middle", "b").move("sink", "c")


def test_a_mesh_on_one_host_is_its_own_fragment():
    """Nothing is added to a mesh without borders, and its entries are shared."""
    mesh = line()
    assert fragments(mesh, "home") == {"home": mesh}
    assert fragments(mesh, "home")["home"] is mesh


def test_a_consumer_on_another_host_takes_from_an_inbox():
    """At the host of the channel, a relay passes the items on to the outbox."""
    found = fragments(placed(), "home")
    assert sorted(found) == ["b", "c", "home"]
    home, there = found["home"], found["b"]
    assert dict(home.nodes["a.to.b"].ports) == {"item": "a", "out": "a.to.b"}
    assert home.nodes["a.to.b"].slet == RELAY
    assert home.channels["a.to.b"].kind == "outbox"
    assert home.channels["a.to.b"].settings["peer"] == "b"
    assert there.nodes["middle"].ports["item"] == "a.from.home"
    assert there.channels["a.from.home"].settings["peer"] == "home"
    assert "a" not in there.channels


def test_a_producer_on_another_host_pushes_into_an_outbox():
    """At the host of the channel, a relay passes the items of the inbox on to the channel."""
    found = fragments(line().move("source", "b"), "home")
    assert dict(found["b"].nodes["source"].ports) == {"out": "a.to.home"}
    assert dict(found["home"].nodes["a.from.b"].ports) == {"item": "a.from.b", "out": "a"}
    assert found["home"].channels["a"] == line().channels["a"]


def test_an_inbox_names_the_outboxes_from_which_items_come_back():
    """Where a slet pulls from it and from another queue: a driver that waits for room may be what it waits for."""

    class Pulls(Slet):
        left: InputPort[int]
        right: InputPort[int]

        def __iter__(self) -> Iterator[int]:
            yield from self.left

    app = Application("diamond")
    source = app.add("source", count_up)
    app.add("pulls", Pulls, left=app.on("b").add("there", pass_on, item=source), right=source)
    app.on("c").add("aside", pass_on, item=source)
    found = fragments(app.build(), "home")
    inboxes = {name: one.settings.get("feeders") for part in found.values() for name, one in part.channels.items()}
    assert {name: feeders for name, feeders in inboxes.items() if feeders} == {"there.from.b": ["source.to.b"]}


def test_both_halves_of_a_connector_agree():
    """Key, epoch, level of acknowledgement and capacity are the same at both ends."""
    mesh = line().move("middle", "b").edited(channels={"a": ChannelSpec("a", "queue", connector={"capacity": 7})})
    found = fragments(mesh.at(4), "home", {"line/b/b>home": 2})
    halves = found["home"].channels["a.to.b"].settings, found["b"].channels["a.from.home"].settings
    shared = {"key": "line/a/home>b", "epoch": 5, "mode": "async", "ack": "done", "capacity": 7}
    assert halves == ({"peer": "b", **shared}, {"peer": "home", **shared})
    assert found["b"].channels["b.to.home"].settings["epoch"] == 2


@st.composite
def placed_meshes(draw: st.DrawFn) -> Mesh:
    """Any mesh that is not empty, with its nodes and channels on up to three hosts."""
    mesh = draw(meshes().filter(lambda mesh: mesh.nodes or mesh.channels))
    hosts = st.sampled_from([None, "b", "c"])
    nodes = {name: replace(one, host=draw(hosts)) for name, one in mesh.nodes.items()}
    # The windows of single ports are a setting with a form.
    channels = {
        name: replace(
            one, host=draw(hosts), settings={key: one.settings[key] for key in one.settings if key != "ports"}
        )
        for name, one in mesh.channels.items()
    }
    for name in (name for name, one in mesh.channels.items() if one.kind == "window"):
        readers = [node.name for node, port in mesh.consumers(name) if node.slet.ports[port].pulled]
        nodes |= {reader: replace(nodes[reader], host="b") for reader in readers}
        channels[name] = replace(channels[name], host="b" if readers else channels[name].host)
    return mesh.edited(nodes, channels)


@given(placed_meshes())
@settings(deadline=None)
def test_the_fragments_together_are_the_mesh(mesh):
    """Nothing is lost or added by splitting a mesh, and by sending the fragments as topology files."""
    found = fragments(mesh, "home")
    assert whole(found.values()) == mesh
    sent = [Mesh.from_toml(part.to_toml(), CATALOG) for part in found.values()]
    assert sent == list(found.values())
    assert whole(sent) == mesh


def paths(mesh: Mesh, found: dict[str, Mesh]) -> list[tuple[str, str, str, str]]:
    """Follow every output port through the fragments to the input ports that it reaches."""
    reached = []

    def follow(host: str, channel: str, start: tuple[str, str]) -> None:
        spec = found[host].channels[channel]
        if spec.kind == "outbox":
            [inbox] = [
                name
                for name, one in found[spec.settings["peer"]].channels.items()
                if one.kind == "inbox" and one.settings["key"] == spec.settings["key"]
            ]
            follow(spec.settings["peer"], inbox, start)
            return
        for consumer, port in found[host].consumers(channel):
            if consumer.slet == RELAY:
                follow(host, consumer.ports["out"], start)
            else:
                reached.append((*start, consumer.name, port))
        for part in found.values():
            for reader in part.channels.values():
                if reader.kind == "reader" and reader.settings["peer"] == host and original(reader) == channel:
                    reached.extend((*start, one.name, port) for one, port in part.consumers(reader.name))

    for host, part in found.items():
        for one in part.nodes.values():
            if one.slet != RELAY:
                for port, channel in one.outputs().items():
                    follow(host, channel, (one.name, port))
    return reached


@given(placed_meshes())
@settings(deadline=None)
def test_every_edge_is_exactly_one_path(mesh):
    """Each consumer of a channel is reached once from each producer, over as many hosts as it takes."""
    found = fragments(mesh, "home")
    edges = [
        (producer.name, out, consumer.name, port)
        for channel in mesh.channels
        for producer, out in mesh.producers(channel)
        for consumer, port in mesh.consumers(channel)
    ]
    assert sorted(paths(mesh, found)) == sorted(edges)


@given(placed_meshes(), st.data())
@settings(deadline=None)
def test_a_move_there_and_back_changes_no_fragment(mesh, data):
    """The way back leads to the same fragments; connectors that were not touched keep their epochs."""
    if not mesh.nodes:
        return
    name = data.draw(st.sampled_from(sorted(mesh.nodes)))
    assume(not any(port.pulled for port in mesh.nodes[name].slet.inputs))
    before = mesh.nodes[name].host
    moved = mesh.move(name, "d" if before != "d" else None)
    found = fragments(mesh, "home", dict.fromkeys(connectors(mesh, "home"), 1))
    known = epochs(at_home(moved), at_home(moved.move(name, before)), dict.fromkeys(connectors(moved, "home"), 1))
    back = fragments(moved.move(name, before), "home", dict.fromkeys(known, 1))
    assert back == found


@given(names, st.sampled_from(["source", "middle", "sink"]))
def test_a_move_touches_only_its_neighbours(host, moved):
    """A fragment that has no port to what moved is the same as before."""
    mesh = line().move("middle", "b").move("sink", "c")
    first = node("far", "numbers", out="x")
    mesh = mesh.add(first, ChannelSpec("x")).add(node("end", "console", item="x")).move("far", "e").move("end", "f")
    before = fragments(mesh, "home", dict.fromkeys(connectors(mesh, "home"), 1))
    after_mesh = mesh.move(moved, "g")
    known = epochs(at_home(mesh), at_home(after_mesh), dict.fromkeys(connectors(mesh, "home"), 1))
    after = fragments(after_mesh, "home", known)
    assert (after["e"], after["f"]) == (before["e"], before["f"])


def test_a_channel_that_changes_sides_begins_a_new_connector():
    """Its content moves along: the numbers of the old connector say nothing about the new one."""
    mesh = line().move("middle", "b").at(3)
    moved = mesh.move("a", "b")
    known = {"line/a/home>b": 1, "line/b/b>home": 1}
    assert epochs(at_home(mesh), at_home(moved), known) == {"line/a/home>b": 4, "line/b/b>home": 1}
    assert connectors(moved, "home")["line/a/home>b"].inward


def timed(watermark: bool) -> Mesh:
    """Make numbers, with punctuations or not, -> a -> copies on b -> w, a window by time at home -> console on b."""
    app = Application("timed")
    source = app.add("numbers", count_up)
    source = app.add("marks", "stock:watermark", item=source, time="real", delay=1) if watermark else source
    window = app.channel("w", "window", seconds=5, time="real")
    app.on("b").add("copies", pass_on, item=source, out=window)
    app.on("b").add("sink", show, item=window)
    return app.build()


@pytest.mark.parametrize("watermark", [True, False])
def test_a_window_on_another_host_knows_whether_punctuations_come(watermark):
    """They pass slets and connectors; a window by time sends its own in any case."""
    found = fragments(timed(watermark), "home")
    into_b, into_home, out = (
        next(one for name, one in found[host].channels.items() if name.startswith(begin))
        for host, begin in (
            ("b", "marks.from." if watermark else "numbers.from."),
            ("home", "w.from."),
            ("b", "w.from."),
        )
    )
    assert (into_b.type.punctuation, into_home.type.punctuation) == (watermark, watermark)
    assert out.type.punctuation
    assert str(out.type).startswith("list[")


@pytest.mark.parametrize(
    ("sizes", "why"),
    [({"evict": True}, "evicts from"), ({"count": 3, "ports": {"sink.item": {"count": 2}}}, "windows of its own")],
)
def test_windows_that_a_connector_cannot_serve_are_refused(sizes, why):
    """A slet evicts from the window itself, and the sizes of a port are those of the port in its fragment."""
    app = Application("refused")
    window = app.channel("w", "window", **sizes)
    app.add("numbers", count_up, out=window)
    app.on("b").add("sink", show, item=window)
    with pytest.raises(MeshError, match=rf"sink \(b\) .*{why}.* `exop move refused.w HOST sink`"):
        fragments(app.build(), "home")


def test_a_window_that_a_slet_on_another_host_reads_is_refused():
    """A window belongs to its port; a table or a latch can be read from other hosts."""
    mesh = Mesh("read").add(node("source", "numbers", out="a"), ChannelSpec("a", "window", {"count": 2}))
    mesh = mesh.add(node("look", "Look", item="a", table="a", out="b"), ChannelSpec("b")).move("look", "b")
    with pytest.raises(MeshError, match=r"look \(b\) reads its window, and the channel 'a' is on home"):
        fragments(mesh, "home")
    table = mesh.edited(channels={"a": ChannelSpec("a", "table", {"key": "real"}, connector={"cache": True})})
    reader = fragments(table, "home")["b"].channels["a.at.home"]
    assert (reader.kind, dict(reader.settings)) == (
        "reader",
        {"peer": "home", "channel": "a", "reads": "table", "cache": True},
    )


def shared(*hosts: str | None) -> Mesh:
    """Make numbers -> partitioned channel at home -> the members of a group on these hosts, and one other consumer."""
    mesh = Mesh("shared").add(node("source", "numbers", out="a"), ChannelSpec("a", settings={"by": "real"}))
    for number, host in enumerate((*hosts, "b")):
        member = replace(node(f"n{number}", "console", item="a"), host=host, group="g" if number < len(hosts) else None)
        mesh = mesh.add(member)
    return mesh


def test_a_group_shares_the_partitions_on_its_host():
    """The inbox of its host is partitioned like the channel; the relay at the channel takes all partitions."""
    found = fragments(shared("b", "b"), "home")
    assert found["b"].channels["a.from.home"].settings["by"] == "real"
    assert "by" not in found["home"].channels["a.to.b"].settings
    check_group(found["b"], "g", KINDS)
    mesh = shared("b", "b")
    mesh = replace(mesh, channels={"a": ChannelSpec("a", "partitioned_log", {"by": "real"})})
    assert fragments(mesh, "home")["b"].channels["a.from.home"].settings["partitions"] == 4


def test_a_group_over_several_hosts_is_refused():
    """Its members would have to agree on their ranges across hosts."""
    with pytest.raises(MeshError, match=r"n0 \(home\) and n1 \(b\) are in the group 'g', .* on one host"):
        fragments(shared(None, "b"), "home")


def test_a_name_that_a_connector_needs_is_refused():
    """The names of relays, inboxes and outboxes must be free on all hosts."""
    mesh = placed().add(node("a.to.b", "console", item="a"))
    with pytest.raises(MeshError, match="'a.to.b' is the name of a connector between home and b"):
        fragments(mesh, "home")


def test_the_type_of_the_items_is_known_on_the_other_side():
    """A port on another host is checked against what is sent, and a condition against the fields of the items."""
    found = fragments(line().move("sink", "b").move("source", "c"), "home")
    assert found["b"].channels["b.from.home"].type.origin == "middle.out"
    assert found["home"].nodes["a.from.c"].slet.ports["out"].type.items.name == "int"
    wrong = found["b"].replace("sink", SLETS["words"])
    with pytest.raises(WiringError, match=r"middle.out cannot feed sink.item through 'b.from.home'"):
        check_join(wrong, "b.from.home", {"inbox": DirectChannel})
    wrong = found["c"].replace("source", spoken)
    with pytest.raises(WiringError, match=r"source.* sends through 'a.to.home' what the home does not expect: .*str"):
        check_join(wrong, "a.to.home", {"outbox": DirectChannel})
    for host, channel in (("b", "b.from.home"), ("c", "a.to.home")):
        check_join(found[host], channel, {"inbox": DirectChannel, "outbox": DirectChannel})


@slet
def spoken() -> Iterator[str]:
    """Emit words."""
    yield "one"


@slet
def in_lots(numbers: InputPort[int]) -> Iterator[int]:
    """Emit the sum of what waits."""
    while lot := numbers.pull():
        yield sum(lot)


class Merges(Slet):
    """A source that reads several partitions, in any order."""

    @classmethod
    def repeats(cls, settings: Mapping[str, Any]) -> bool:
        """Never."""
        return False

    def __iter__(self) -> Iterator[int]:
        yield 1


class Lots(Slet):
    """Adds what waits."""

    gathers: ClassVar[int] = 100

    @input_port
    def item(self, item: Batch[int]) -> int:
        """Emit the sum."""
        return sum(item)


@slet(name="whole")
def adds(item: Batch[int]) -> int:
    """Emit the sum of what was pushed as one batch."""
    return sum(item)


@slet
def pairs() -> Iterator[Batch[int]]:
    """Emit batches that are always the same."""
    yield Batch([1, 2])


class Found(Slet):
    """A source whose batches are as large as what it finds."""

    gathers: ClassVar[int] = 100

    def __iter__(self) -> Iterator[Batch[int]]:
        yield Batch([1])


class Clock(Slet):
    """Its results depend on the time of day."""

    @classmethod
    def repeats(cls, settings: Mapping[str, Any]) -> bool:
        """Never."""
        return False

    @input_port
    def item(self, item: int) -> int:
        """Pass on, or not."""
        return item


class Tied(Slet, own_driver=True):
    """An engine, whose output is stored."""

    tie: Tie
    out: OutputPort[int]

    @input_port
    def item(self, item: int) -> None:
        """Take."""


#: Sources and slets by the words of a case.
SOURCES = {"partitions": Merges, "pairs": pairs, "found": Found}
BETWEEN = {"slet": pass_on, "lots": Lots, "whole": adds, "clock": Clock, "tied": Tied}


def undeclared(spec: SletSpec) -> SletSpec:
    """The slet as a platform knows it that lacks its code, and has had it from another one that lacks it."""
    return absent(describe(absent(describe(spec))))


def meeting(case: str) -> Mesh:
    """Make a durable mesh in which items go from a to b, and streams meet before that, or not."""
    app = Application("meeting")
    app.durable(1.0)
    here, there = app.on("a"), app.on("b")
    items = app.channel("items", "queue", host="b" if case.startswith("at b") else "a")
    here.add("first", next((one for word, one in SOURCES.items() if word in case), count_up), out=items)
    if "two" in case:
        here.add("second", count_up, out=items)
    end = items
    if "beside" in case:  # it shares the queue, and with it the batches
        here.add("beside", Lots, item=items)
    for word in (word for word in case.split() if word in BETWEEN):
        end = here.add("pass" if word == "slet" else word, BETWEEN[word], item=end)
    if "pull" in case:
        end = here.add("lots", in_lots, numbers=items)
    if "back" in case:  # c gets everything that crosses from a, in one stream, and sends it back
        end = here.add("last", pass_on, item=app.on("c").add("away", pass_on, item=end))
    for host in (host for host in "bc" if f"passes at {host}" in case):
        end = app.on(host).add("passes", pass_on, item=end)
    if "adds there" in case:
        end = there.add("adds", adds, item=end)
    there.add("show", show, item=end)
    return app.build()


@pytest.mark.parametrize(
    ("case", "sent"),
    [
        ("one", set()),
        ("one by a slet", set()),
        ("two", {"items.to.b"}),
        ("two by a slet", {"pass.to.b"}),
        ("one by a pull", {"lots.to.b"}),
        ("one of partitions", {"items.to.b"}),
        ("one of partitions by a slet", {"pass.to.b"}),
        ("at b, one", set()),
        ("at b, two", {"items.to.b"}),
        ("two by a slet and back", {"pass.to.c"}),
        ("one by lots", {"lots.to.b"}),
        ("one by lots slet", {"pass.to.b"}),
        ("one by whole", set()),
        ("one by whole beside", {"whole.to.b"}),
        ("pairs by lots", set()),
        ("pairs by whole", set()),
        ("found by slet", set()),
        ("found by whole", {"whole.to.b"}),
        ("found", set()),
        ("found, adds there", {"items.to.b"}),
        ("found, passes at b, adds there", {"items.to.b"}),
        ("found, passes at c, adds there", {"items.to.c"}),
        ("found, passes at b", set()),
        ("one by clock", {"clock.to.b"}),
        ("one by lots tied", set()),
    ],
)
def test_where_streams_meet_items_are_sent_after_a_checkpoint(case: str, sent: set[str]):
    """A restart may let them meet in another order. What comes by one connector keeps its order.

    A slet that pulls, or gathers what waits, may get its items in other lots then; batches that were pushed stay whole.
    """
    mesh = meeting(case)
    without = {name: replace(node, slet=undeclared(node.slet)) for name, node in mesh.nodes.items()}
    for known in (mesh, replace(mesh, nodes=without)):
        found = fragments(known, "a")
        outboxes = [one for part in found.values() for one in part.channels.values() if one.kind == "outbox"]
        assert {one.name for one in outboxes if one.settings.get("after_checkpoint")} == sent
