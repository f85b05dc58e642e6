"""What is checked before a mesh runs, and its resolution: registered slets, full paths."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Mesh
from exop.errors import MeshError, UnknownName, WiringError
from exop.model.meshes.checks import check, resolved
from exop.model.meshes.diff import difference
from exop.model.meshes.mesh import ChannelSpec
from exop.runtime.channels import BUILT_IN
from tests.model.sample_meshes import CATALOG, SLETS, line, node

KINDS = {kind.kind: kind for kind in BUILT_IN}


def ring(*kinds: str) -> Mesh:
    """A source feeds a ring of `double` slets, joined by channels of these kinds."""
    channels = [ChannelSpec(f"c{number}", kind) for number, kind in enumerate(kinds)]
    mesh = Mesh("ring", {}, {channel.name: channel for channel in channels})
    mesh = mesh.add(node("source", "numbers", out="c0"))
    for number in range(len(kinds)):
        mesh = mesh.add(node(f"n{number}", "double", item=f"c{number}", out=f"c{(number + 1) % len(kinds)}"))
    return mesh


def test_a_sound_mesh_passes():
    """A line and a ring with a queue can run."""
    check(line(), KINDS)
    check(ring("direct", "queue", "direct"), KINDS)


def test_an_empty_mesh_is_refused():
    """An application without any slet is a mistake."""
    with pytest.raises(MeshError, match=r"'empty' has no slet; add one with app.add\(name, slet\)"):
        check(Mesh("empty"), KINDS)


def test_a_cycle_without_a_queue_is_refused_in_the_order_of_the_flow():
    """It would call itself endlessly; the message names the path and the cure."""
    with pytest.raises(WiringError) as caught:
        check(ring("direct", "direct", "direct"), KINDS)
    message = str(caught.value)
    assert any(path in message for path in ("n0 -> n1 -> n2 -> n0", "n1 -> n2 -> n0 -> n1", "n2 -> n0 -> n1 -> n2"))
    assert "app.channel(name, kind='queue')" in message
    check(ring("queue"), KINDS)
    with pytest.raises(WiringError, match="the cycle n0 -> n0 contains no queue"):
        check(ring("direct"), KINDS)


def test_who_reads_a_table_that_he_writes_is_no_endless_call():
    """A port that pulls ends the chain of calls: a slet may read the table which it fills."""
    mesh = Mesh("look", {}, {"in": ChannelSpec("in"), "rows": ChannelSpec("rows", "table", {"key": "real"})})
    mesh = mesh.add(node("source", "numbers", out="in")).add(node("look", "Look", item="in", table="rows", out="rows"))
    check(mesh, KINDS)


def test_an_input_that_is_connected_to_nothing_is_told():
    """Every input has a channel, and every channel that is read has somebody who pushes into it."""
    unconnected = Mesh("m").add(node("sink", "console"))
    with pytest.raises(MeshError, match=r"sink.item is connected to nothing; give item=CHANNEL \(no channel yet\)"):
        check(unconnected, KINDS)
    unfed = Mesh("m").add(node("sink", "console", item="c"), ChannelSpec("c"))
    with pytest.raises(MeshError, match=r"sink.item reads the channel 'c', into which nothing is pushed"):
        check(unfed, KINDS)
    for slet, other in {"console": "a", "words": "CHANNEL"}.items():
        fed = line().remove("sink").add(node("sink", slet, item="b"))
        with pytest.raises(MeshError, match=rf"rewire line.sink item={other}`, or remove sink; then remove middle"):
            check(fed.remove("middle"), KINDS, difference(fed, fed.remove("middle")))


def test_unknown_kinds_ports_and_channels_are_told():
    """Names that nobody knows come with the known ones, also in a mesh that was put together by hand."""
    mesh = line()
    with pytest.raises(UnknownName, match="the channel 'a': the platform has no kind 'queu'; did you mean 'queue'"):
        check(replace(mesh, channels={**mesh.channels, "a": ChannelSpec("a", "queu")}), KINDS)
    fed_elsewhere = Mesh("m").add(node("sink", "console", item="c"), ChannelSpec("c", "kafka"))
    with pytest.raises(UnknownName, match=r"has no kind 'kafka'; run `pip install plugins/exop-kafka` in"):
        check(fed_elsewhere, KINDS)
    with pytest.raises(UnknownName, match=r"middle.out: the mesh 'line' has no channel 'b'; known: a"):
        check(replace(mesh, channels={"a": mesh.channels["a"]}), KINDS)
    with pytest.raises(UnknownName, match="sink has no port 'itm'; did you mean 'item'"):
        check(replace(mesh, nodes={**mesh.nodes, "sink": node("sink", "console", itm="b")}), KINDS)


def test_families_of_ports_are_checked():
    """A slet whose inputs are a family has at least one; no node is called as a family of another one."""
    with pytest.raises(MeshError, match=r"fan\.side\.\* has no connected ports, and there is no other input"):
        check(Mesh("m").add(node("fan", "Fan")), KINDS)
    mesh = line().add(node("fan", "Fan", **{"side.a": "b"}))
    check(mesh, KINDS)
    clash = r"fan\.to\.\* are ports of fan, and there is also a node 'fan\.to'; rename it"
    for both in (mesh.add(node("fan.to", "console", item="b")), line().add(node("fan.to", "Fan", **{"side.a": "b"}))):
        taken = both if "fan" in both.nodes else both.add(node("fan", "Fan", **{"side.a": "b"}))
        with pytest.raises(MeshError, match=clash):
            check(taken, KINDS)
        with pytest.raises(MeshError, match=clash):
            check(taken, KINDS, difference(both if "fan" not in both.nodes else mesh, taken))


def test_ports_that_do_not_fit_are_told_with_the_way_between_them():
    """Producer, consumer, channel and both types stand in the message."""
    mesh = line().replace("middle", SLETS["double"]).remove("sink").add(node("text", "words", item="b"))
    with pytest.raises(
        WiringError, match=r"middle.out cannot feed text.item through 'b': items are int, expected str;"
    ):
        check(mesh, KINDS)


def test_a_window_carries_lists():
    """What a channel kind makes of the items counts: a window gives lists."""
    mesh = line()
    windowed = replace(mesh, channels={**mesh.channels, "b": ChannelSpec("b", "window", {"count": 2})})
    with pytest.raises(WiringError, match=r"items are list\[int\], expected int"):
        check(windowed, KINDS)


def test_a_port_that_pulls_from_a_window_takes_its_items():
    """And not the lists that the window pushes."""
    mesh = Mesh("look", {}, {name: ChannelSpec(name) for name in ("in", "out")})
    mesh = replace(mesh, channels={**mesh.channels, "rows": ChannelSpec("rows", "window", {"count": 2})})
    mesh = mesh.add(node("source", "numbers", out="in")).add(node("rows", "numbers", out="rows"))
    check(mesh.add(node("look", "Look", item="in", table="rows", out="out")), KINDS)


def problem(mesh, *changes):
    """The class of the error with which a check refuses a mesh; `None` if it does not."""
    try:
        check(mesh, KINDS, *changes)
    except (MeshError, UnknownName, WiringError) as error:
        return type(error)
    return None


@given(st.data())
def test_a_check_of_the_changes_finds_what_a_check_of_the_whole_mesh_finds(data):
    """After random edits of a sound mesh, good ones and bad ones, both pass or both refuse it."""
    before = ring("direct", "queue", "direct").add(node("sink", "console", item="c1"))
    check(before, KINDS)
    nodes = dict(before.nodes)
    channels = {**before.channels, "more": ChannelSpec("more", data.draw(st.sampled_from(["direct", "queue", "no"])))}
    if data.draw(st.booleans()):
        del channels[data.draw(st.sampled_from(sorted(channels)))]
    for _ in range(data.draw(st.integers(0, 3))):
        name = data.draw(st.sampled_from(["source", "n0", "n1", "n2", "sink", "new"]))
        kind = data.draw(st.sampled_from([None, "double", "triple", "words", "numbers", "console"]))
        if kind is None:
            nodes.pop(name, None)
            continue
        ports = {port: data.draw(st.sampled_from(["c0", "c1", "c2", "more"])) for port in SLETS[kind].ports}
        nodes[name] = node(name, kind, **ports)
    after = Mesh(before.name, nodes, channels)
    assert (problem(after) is None) == (problem(after, difference(before, after)) is None)


def unregistered() -> object:
    """The mesh as an application builds it: its slets know of no plugin."""
    mesh = line()
    nodes = {
        name: dataclasses.replace(one, slet=dataclasses.replace(one.slet, plugin=None))
        for name, one in mesh.nodes.items()
    }
    return dataclasses.replace(mesh, nodes=nodes)


def test_the_registered_form_takes_the_place():
    """Code that a plugin offers is found by the function or class itself."""
    assert resolved(unregistered(), CATALOG, durable=True) == line()


def test_paths_are_absolute_where_the_mesh_is_kept(tmp_path, monkeypatch):
    """A platform with a state directory may start it again from another working directory."""
    monkeypatch.chdir(tmp_path)
    mesh = line().configure("source", path="in.csv")
    assert resolved(mesh, CATALOG).nodes["source"].settings["path"] == Path("in.csv")
    assert resolved(mesh, CATALOG, durable=True).nodes["source"].settings["path"] == tmp_path / "in.csv"
    assert resolved(line(), CATALOG, durable=True).nodes["source"].settings["path"] is None


def test_what_nobody_registers_runs_embedded_only():
    """Without a state directory slets of a script run; with one they are refused, with the cure."""
    known = {"demo:double": SLETS["double"]}
    mesh = resolved(unregistered(), known, durable=False)
    assert {name: one.slet.plugin for name, one in mesh.nodes.items()} == {
        "source": None,
        "middle": "demo",
        "sink": None,
    }
    with pytest.raises(MeshError) as caught:
        resolved(unregistered(), known, durable=True)
    assert "source: the slet 'numbers' of tests.model.sample_meshes is in no plugin" in str(caught.value)
    assert "@hookimpl register_slets()" in str(caught.value)
    assert "or run it without a state directory" in str(caught.value)


def test_what_nobody_registers_does_not_travel():
    """Sent to another process the reason is another one, and so is the cure."""
    with pytest.raises(MeshError) as caught:
        resolved(unregistered(), {}, travels=True)
    assert "is in no plugin, and code does not travel by itself" in str(caught.value)
    assert "exop serve --load FOLDER" in str(caught.value)
    assert "state directory" not in str(caught.value)


def test_a_slet_that_has_its_name_keeps_it():
    """A mesh that was resolved once is not resolved again to another plugin of the same code."""
    others = {spec.of("other").identity: spec.of("other") for spec in SLETS.values()}
    assert resolved(line(), others, durable=True) == line()
