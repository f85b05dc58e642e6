"""A mesh is a value: every edit gives a new one, and a mistake is told where it is made."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from types import GenericAlias
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Application, Mesh, OutputPorts, Slet, input_port, slet
from exop.errors import ExpressionError, MeshError, SettingError, SletError, UnknownName, WiringError
from exop.model.meshes.checks import check
from exop.model.meshes.conditional_updates import applied
from exop.model.meshes.diff import difference
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.slets.described import describe
from exop.model.slets.ports import PortSpec, PortType
from exop.model.slets.slet import spec_of
from exop.runtime.channels import BUILT_IN
from exop.stock.rows import Split
from exop.stock.slets import count_up
from exop.wiring.changes.plan import make_plan
from tests.model.sample_meshes import SLETS, line, meshes, node

T = TypeVar("T")


def test_every_edit_returns_a_new_mesh():
    """No edit changes the mesh that it is called on."""
    mesh, before = line(), line()
    edits = [
        mesh.add(node("more", "console", item="b")),
        mesh.remove("sink"),
        mesh.replace("middle", SLETS["triple"]),
        mesh.configure("middle", factor=1.5),
        mesh.move("middle", to="edge-2"),
        mesh.suspend("middle"),
        mesh.rewire("sink", item="a"),
        mesh.at(7),
    ]
    assert mesh == before
    assert all(edit != mesh for edit in edits)
    assert mesh.suspend("middle").resume("middle") == mesh


def test_nothing_in_a_mesh_can_be_changed():
    """Nodes, channels, ports and settings are read-only, and independent of what they were made from."""
    settings = {"capacity": 3}
    channel = ChannelSpec("c", "queue", settings)
    settings["capacity"] = 4
    assert channel.settings == {"capacity": 3}
    mesh = line()
    for mapping in (mesh.nodes, mesh.channels, mesh.node("middle").settings, mesh.node("middle").ports):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        mesh.name = "other"  # type: ignore[misc]


def test_replace_keeps_ports_and_the_settings_that_both_have():
    """A successor stands where its predecessor stood; settings that it does not have are left behind."""
    mesh = line().replace("middle", SLETS["triple"], tags=["x"])
    middle = mesh.node("middle")
    assert middle.slet.name == "triple"
    assert middle.ports == {"item": "a", "out": "b"}
    assert middle.settings == {"factor": 4.0, "tags": ["x"]}


@slet
def old_defaults(item: int, *, low: int = 1, high: int = 10, gone: int = 3) -> int:
    """A slet that is replaced."""
    return item


@slet
def new_defaults(item: int, *, low: int = 2, high: int = 20, more: int = 5) -> int:
    """Its successor, with other defaults."""
    return item


def test_a_successor_takes_its_own_defaults():
    """Settings that somebody set are kept, also at the old default; all others stand at the successor's defaults."""
    mesh = line().replace("middle", old_defaults)
    assert mesh.node("middle").given == set()
    unset = mesh.replace("middle", new_defaults).node("middle")
    assert (unset.settings, unset.given) == ({"low": 2, "high": 20, "more": 5}, set())
    pinned = mesh.configure("middle", low=1, gone=3).replace("middle", new_defaults, more=7).node("middle")
    assert (pinned.settings, pinned.given) == ({"low": 1, "high": 20, "more": 7}, {"low", "more"})


def test_a_setting_that_differs_from_its_default_was_set():
    """A node made of complete settings, as older releases stored it: a value equal to the default is a default."""
    made = Node("n", spec_of(old_defaults), {"low": 1, "high": 11, "gone": 3})
    assert made.given == {"high"}
    assert dataclasses.replace(made, settings={**made.settings, "low": 0}).given == {"high", "low"}


def test_a_line_that_takes_effect_sets():
    """A setting of a pending update counts as set once it has taken effect; a successor keeps it."""
    mesh = line().replace("middle", old_defaults).configure("middle", low=1, when="item > 5")
    (line_,) = mesh.node("middle").pending
    assert mesh.node("middle").given == set()
    assert (
        mesh.edited({"middle": applied(mesh.node("middle"), line_)})
        .replace("middle", new_defaults)
        .node("middle")
        .settings["low"]
        == 1
    )


def test_configure_changes_what_is_given_and_converts_it():
    """Other settings stay as they are."""
    middle = line().configure("middle", limit="7").node("middle")
    assert (middle.settings["limit"], middle.settings["factor"]) == (7, 4.0)


def test_configure_changes_the_policy():
    """At once only: a policy is no setting, which a slet could take at a point in the stream."""
    mesh = line().configure("middle", on_error="skip", limit="7")
    assert (mesh.node("middle").policy, mesh.node("middle").settings["limit"]) == ("skip", 7)
    assert mesh.configure("middle", limit=8).node("middle").policy == "skip"
    with pytest.raises(UnknownName, match="suspend"):
        mesh.configure("middle", on_error="ignore")
    with pytest.raises(UnknownName, match="on_error"):
        mesh.configure("middle", when="item >= 3", on_error="skip")


@slet
def named(item: int, *, name: str = "x", slet: str = "y", to: int = 1) -> int:
    """A slet whose settings are called like parameters of the edits."""
    return item


def test_settings_may_be_called_like_anything():
    """`name` is a good name for a setting."""
    mesh = line().replace("middle", named, name="a", slet="b")
    assert mesh.configure("middle", name="c").node("middle").settings == {"name": "c", "slet": "b", "to": 1}


def test_remove_takes_the_channels_that_nobody_uses_any_more():
    """A channel goes with its last connection; one that was never connected stays."""
    mesh = line().remove("sink")
    assert set(mesh.channels) == {"a", "b"}
    assert set(mesh.remove("middle").channels) == {"a"}
    spare = Mesh("m", {}, {"spare": ChannelSpec("spare")}).add(node("s", "numbers", out="o"), ChannelSpec("o"))
    assert set(spare.remove("s").channels) == {"spare"}


def test_rewire_connects_to_known_and_new_channels():
    """A port may move to a channel of the mesh, or bring a new one; what is left without connection goes."""
    mesh = line().rewire("middle", out=ChannelSpec("c", "queue")).rewire("sink", item="c")
    assert set(mesh.channels) == {"a", "c"}
    assert mesh.node("sink").ports == {"item": "c"}


def test_who_is_connected():
    """`producers` and `consumers` give the ports at a channel; a node its own."""
    mesh = line()
    assert [(one.name, port) for one, port in mesh.producers("b")] == [("middle", "out")]
    assert [(one.name, port) for one, port in mesh.consumers("b")] == [("sink", "item")]
    assert mesh.node("middle").inputs() == {"item": "a"}
    assert mesh.node("middle").outputs() == {"out": "b"}


def test_the_policy_of_the_node_goes_before_that_of_the_slet():
    """An application may say otherwise than the slet."""
    assert node("n", "double").policy == "suspend"
    assert Node("n", SLETS["double"], on_error="skip").policy == "skip"


WRONG = [
    (lambda m: m.node("midle"), UnknownName, "the mesh 'line' has no node 'midle'; did you mean 'middle'?"),
    (lambda m: m.remove("x"), UnknownName, "the mesh 'line' has no node 'x'; known: middle, sink, source"),
    (lambda m: m.add(node("sink", "console", item="b")), MeshError, "a node 'sink' already; choose another name"),
    (
        lambda m: m.add(node("t", "console", item="bb")),
        UnknownName,
        "t.item: the mesh 'line' has no channel 'bb'; did you mean 'b'?",
    ),
    (
        lambda m: m.add(node("t", "console", itm="b")),
        UnknownName,
        "t has no port 'itm'; did you mean 'item'?",
    ),
    (
        lambda m: m.add(node("t", "console", item="b"), ChannelSpec("a", "direct")),
        MeshError,
        "another channel 'a' already; choose another name",
    ),
    (lambda m: m.configure("middle", factr=1), UnknownName, "middle has no setting 'factr'; did you mean 'factor'?"),
    (
        lambda m: m.configure("middle", factor="x"),
        SettingError,
        "middle: the setting 'factor' does not fit: expected float, got 'x' (str)",
    ),
    (
        lambda m: m.replace("middle", SLETS["console"]),
        UnknownName,
        "middle: the successor console has no port 'out'; known: item",
    ),
    (lambda m: m.replace("middle", print), SletError, "print is no slet: it is not marked"),
    (lambda m: m.rewire("middle", itm="b"), UnknownName, "middle has no port 'itm'; did you mean 'item'?"),
    (lambda m: m.rewire("middle", item="bb"), UnknownName, "middle.item: the mesh 'line' has no channel 'bb'"),
    (
        lambda m: m.rewire("middle", out=ChannelSpec("a", "queue")),
        MeshError,
        "the mesh 'line' has another channel 'a' already; choose another name",
    ),
    (
        lambda m: m.edited({"middle": dataclasses.replace(m.node("middle"), on_error="skpi")}),
        UnknownName,
        "middle has no policy 'skpi'; did you mean 'skip'?",
    ),
    (lambda m: m.move("middle", to="b/c"), MeshError, "'b/c' is no name for a host"),
    (lambda m: m.move("a", to=5), MeshError, "5 is no name for a host; use letters, digits, '-', '_' and '.'"),
    (lambda m: m.move("midle", to="x"), UnknownName, "has no node or channel 'midle'"),
    (lambda m: m.move("middle", to="x", channel=True), UnknownName, "has no channel 'middle'"),
    (lambda m: Mesh("a b"), MeshError, "'a b' is no name for an application; use letters, digits, '-', '_' and '.'"),
    (lambda m: Node("a/b", SLETS["double"]), MeshError, "'a/b' is no name for a node"),
    (lambda m: ChannelSpec(""), MeshError, "'' is no name for a channel"),
]


@pytest.mark.parametrize(("edit", "error", "message"), WRONG, ids=[message[:50] for _, _, message in WRONG])
def test_a_mistake_is_told_where_it_is_made(edit, error, message):
    """Unknown names come with the known ones and a suggestion; nothing has happened."""
    mesh = line()
    with pytest.raises(error) as caught:
        edit(mesh)
    assert message in str(caught.value)
    assert type(caught.value) is error
    assert mesh == line()


def test_a_port_that_leads_the_other_way_is_no_successor():
    """An output of the successor that is called like the input of the predecessor is told."""

    class Turned:
        """Stands for a slet whose port `item` is an output."""

    turned = dataclasses.replace(
        SLETS["double"],
        name="turned",
        inputs=(dataclasses.replace(SLETS["double"].inputs[0], name="out"),),
        outputs=(dataclasses.replace(SLETS["double"].outputs[0], name="item"),),
    )
    with pytest.raises(
        MeshError, match="the port 'item' is an input, but an output of the successor turned; rename one"
    ):
        line().replace("middle", turned)


@given(meshes(), st.data())
def test_any_edit_of_any_mesh_leaves_it_sound(mesh, data):
    """After any edit every port is connected to a channel that is there, and the other nodes are the same objects.

    The ports at each channel, which the edit derives from those before it, are those of a mesh that is made anew.
    """
    if not mesh.nodes:
        return
    assert mesh.producers("any") == []
    name = data.draw(st.sampled_from(sorted(mesh.nodes)))
    edited = data.draw(
        st.sampled_from(
            [
                lambda: mesh.remove(name),
                lambda: mesh.suspend(name),
                lambda: mesh.move(name, to="edge"),
                lambda: mesh.configure(name),
                lambda: mesh.rewire(name, **{port: ChannelSpec("fresh") for port in mesh.node(name).ports}),
            ]
        )
    )()
    assert all(to in edited.channels for one in edited.nodes.values() for to in one.ports.values())
    others = {key: id(one) for key, one in mesh.nodes.items() if key != name}
    assert {key: id(one) for key, one in edited.nodes.items() if key != name} == others
    anew = Mesh(mesh.name, edited.nodes, edited.channels)
    for channel in {*mesh.channels, *edited.channels}:
        assert edited.producers(channel) == anew.producers(channel)
        assert edited.consumers(channel) == anew.consumers(channel)


def test_members_of_families_are_connected_and_disconnected():
    """A member is a port while it is connected; a successor with the family keeps it, one without it is refused."""
    mesh = line().add(node("fan", "Fan", **{"side.a": "b", "to.x": "x"}), ChannelSpec("x"))
    assert list(mesh.node("fan").slet.ports) == ["side.a", "out", "to.x"]
    assert mesh.node("fan").slet.ports["side.a"] == PortSpec("side.a", "in", PortType(int), "side")
    assert mesh.node("fan").slet.results["side.a"] == "one"
    more = mesh.rewire("fan", **{"to.y": ChannelSpec("y"), "side.a": None, "side.b": "b"})
    assert dict(more.node("fan").ports) == {"to.x": "x", "to.y": "y", "side.b": "b"}
    assert list(more.node("fan").slet.ports) == ["side.b", "out", "to.x", "to.y"]
    assert set(more.rewire("fan", **{"to.x": None}).channels) == set(more.channels) - {"x"}
    letters = more.rewire("fan", dead_letters="b").node("fan").slet
    assert [port.name for port in letters.outputs] == ["out", "to.x", "to.y", "dead_letters"]
    assert more.replace("fan", SLETS["Fan"]).node("fan").ports == more.node("fan").ports
    for edit, text in (
        (lambda: mesh.replace("fan", SLETS["double"]), "fan: the successor double has no port 'side.a'"),
        (lambda: mesh.rewire("fan", to="b"), "did you mean 'to.x'? known: out, side.*, side.a, to.*, to.x"),
        (lambda: mesh.rewire("fan", **{"from.x": "b"}), "fan has no port 'from.x'; did you mean 'to.x'"),
        (lambda: mesh.rewire("fan", **{"to.": "b"}), "fan has no port 'to.'"),
    ):
        with pytest.raises(UnknownName, match=re.escape(text)):
            edit()
    with pytest.raises(MeshError, match="fan: fan takes its items by a family of ports, so there is no item at which"):
        mesh.configure("fan", when="item > 1", x=1)


def split(**conditions: str) -> Mesh:
    """A mesh with a split of numbers, whose port `big` is read."""
    app = Application("splitting")
    numbers = app.add("numbers", count_up, to=5)
    app.add("split", Split, item=numbers, conditions={"big": "item > 3", **conditions})
    app.add("sink", SLETS["console"], item=app.output("split", "big"))
    return app.build()


def test_ports_follow_the_settings():
    """With other settings an output comes, with a channel of its own, or goes, with its channel."""
    mesh = split(small="item < 2")
    assert dict(mesh.node("split").ports) == {
        "item": "numbers",
        "rest": "split.rest",
        "big": "split.big",
        "small": "split.small",
    }
    for other in (
        mesh.configure("split", conditions={"big": "item > 3", "odd": "item % 2 == 1"}),
        mesh.replace("split", Split, conditions={"big": "item > 3", "odd": "item % 2 == 1"}),
    ):
        assert set(other.channels) == {"numbers", "split.rest", "split.big", "split.odd"}
        assert other.node("split").outputs() == {"rest": "split.rest", "big": "split.big", "odd": "split.odd"}
        (step,) = make_plan(mesh, other).steps
        assert (step.verb, step.text) == ("replace", "by itself, with the port odd, without small")
    taken = mesh.rewire("sink", item=ChannelSpec("split.odd"))
    with pytest.raises(MeshError, match=r"has a channel 'split\.odd' already; rename the node, or name"):
        taken.configure("split", conditions={"odd": "item > 3"})


def test_a_port_that_is_read_does_not_go():
    """The error names the port, what it feeds, the ports that there would be, and the cure."""
    text = (
        "split.big feeds sink.item through 'split.big', and with the new settings split has no such port "
        "(it has item, rest, high); remove what it feeds, or connect it elsewhere, first"
    )
    for edit in (Mesh.configure, lambda mesh, name, **given: mesh.replace(name, Split, **given)):
        with pytest.raises(MeshError, match=re.escape(text)):
            edit(split(), "split", conditions={"high": "item > 3"})
        assert "split.big" not in edit(split().remove("sink"), "split", conditions={"high": "item > 3"}).channels


def test_ports_do_not_change_at_a_point_in_the_stream():
    """A pending update changes settings alone."""
    with pytest.raises(MeshError, match="has other ports, which cannot come or go at a point in the stream"):
        split().configure("split", when="item > 2", conditions={})


def test_types_follow_the_inputs():
    """Every edit upstream gives a split the types of what it takes now; so does reading a file."""
    mesh = split()
    assert mesh.node("split").slet.ports["big"].type.item is int
    known = {node.slet.identity: node.slet for node in mesh.nodes.values()}
    read = Mesh.from_toml(mesh.to_toml(), {**known, "exop.stock.slets:split": spec_of(Split)})
    assert read == mesh
    assert read.node("split").slet.ports == mesh.node("split").slet.ports
    with pytest.raises(ExpressionError, match=r"^split\.conditions\.big: str and int cannot be compared"):
        mesh.replace("numbers", words_of)
    text = mesh.configure("split", conditions={"big": "item is not None"}).replace("numbers", words_of)
    assert text.node("split").slet.ports["big"].type.item is str
    with pytest.raises(WiringError, match=r"split\.big cannot feed sink\.item"):
        check(text, {kind.kind: kind for kind in BUILT_IN}, difference(mesh, text))
    assert mesh.remove("numbers").node("split").slet.ports["big"].type == PortType()
    with pytest.raises(ExpressionError, match=r"^split\.conditions\.big: \w+ has no field 'speed'"):
        cars().configure("split", conditions={"big": "item.speed > 1"})


def test_an_edit_looks_at_the_slets_that_its_types_reach():
    """Among many slets whose types depend on what comes, those are asked again to which another type comes."""
    app = Application("many")
    for chain in range(20):
        item = app.add(f"{chain}-source", "stock:count_up", to=3)
        for number in range(3):
            item = app.add(f"{chain}-{number}", "stock:pass_on", item=item)
        app.add(f"{chain}-sink", "stock:show", item=item)
    mesh, asked = app.build(), list[str]()
    types_into = Mesh.types_into

    def counted(mesh, node):
        asked.append(node.name)
        return types_into(mesh, node)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mesh, "types_into", counted)
        edited = mesh.replace("7-source", words_of, lose_state=True)
        assert asked == ["7-0", "7-1", "7-2"]
        assert edited.nodes["7-2"].slet.ports["out"].type.item is str
        asked.clear()
        mesh.replace("7-source", count_up).suspend("3-sink")
        assert set(asked) <= {"7-0"}
    steps = {(step.node, step.text) for step in make_plan(mesh, edited).steps if step.verb == "adjust"}
    assert steps == {(f"7-{number}", "item takes str") for number in range(3)}
    assert make_plan(mesh, Mesh.from_toml(mesh.to_toml(), catalog_of(mesh))).steps == ()


def test_members_of_a_family_have_the_type_that_comes():
    """A type variable of a family is that of the input, whichever members are connected."""

    class Spread(Slet, Generic[T]):
        to: OutputPorts[T]

        @input_port
        def item(self, item: T) -> None:
            """Push to all."""

    app = Application("spread")
    ports = {"item": app.add("numbers", count_up, to=3), "to.a": app.channel("a")}
    app.add("spread", Spread, **ports)
    mesh = app.build()
    assert mesh.nodes["spread"].slet.ports["to.a"].type.item is int
    mesh = mesh.rewire("spread", **{"to.b": ChannelSpec("b")}).replace("numbers", words_of, lose_state=True)
    assert [port.type.item for port in mesh.nodes["spread"].slet.outputs] == [str, str]
    assert [port["type"] for port in describe(mesh.nodes["spread"].slet)["ports"]][:2] == ["T", "T"]


def catalog_of(mesh: Mesh) -> dict[str, Any]:
    """The slets of a mesh by identity, as they are declared."""
    return {node.slet.identity: spec_of(node.slet.factory).of(node.slet.plugin) for node in mesh.nodes.values()}


@slet
def words_of() -> Iterator[str]:
    """Emit a word."""
    yield "word"


@dataclasses.dataclass
class Car:
    """An item with a field."""

    name: str


@slet
def parked() -> Iterator[Car]:
    """Emit a car."""
    yield Car("a")


def cars() -> Mesh:
    """A split of cars."""
    app = Application("cars")
    app.add("split", Split, item=app.add("parked", parked), conditions={})
    return app.build()


def nested(settings, inputs):
    """Lets the output carry lists of what the input takes."""
    types = {"out": GenericAlias(list, (inputs["item"].item,))} if inputs else {}
    return spec_of(nest).with_outputs(types)


@slet(specialised=nested)
def nest(item: object) -> object:
    """Put each item into a list."""
    return [item]


def test_types_that_grow_along_a_cycle_are_refused():
    """Each round gives another type: the error names the nodes."""
    mesh = Mesh("loop", {}, {"back": ChannelSpec("back", "queue")})
    with pytest.raises(MeshError, match="the types of nest depend on each other along a cycle, and never settle"):
        mesh.add(Node("nest", spec_of(nest), {}, {"item": "back", "out": "back"}))
