"""Topology files: a mesh as TOML and back, and what is told of a file that is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings

from exop import Mesh, slet
from exop.errors import MeshError, SettingError, UnknownName
from exop.model.meshes.mesh import ChannelSpec
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from tests.model.sample_meshes import CATALOG, line, meshes, node

TEXT = """
[application]
name = "line"

[channels.a]
kind = "queue"
capacity = 3

[nodes.sink]
slet = "demo:console"
ports = {item = "b"}

[nodes.source]
slet = "demo:numbers"
ports = {out = "a"}

[nodes.middle]
slet = "demo:double"
ports = {item = "a", out = "b"}
settings = {factor = 4}
"""


def test_a_file_written_by_hand():
    """The order of the tables does not matter; an output brings a direct channel of its own."""
    mesh = Mesh.from_toml(TEXT, CATALOG)
    assert mesh == line()
    assert mesh.channels["b"] == ChannelSpec("b")


def test_what_is_written():
    """One table per channel and node; a setting that nobody set is left out."""
    document = tomllib.loads(line().to_toml())
    assert document == {
        "application": {"name": "line"},
        "channels": {"a": {"kind": "queue", "capacity": 3}, "b": {"kind": "direct"}},
        "nodes": {
            "source": {"slet": "demo:numbers", "ports": {"out": "a"}},
            "middle": {"slet": "demo:double", "ports": {"item": "a", "out": "b"}, "settings": {"factor": 4.0}},
            "sink": {"slet": "demo:console", "ports": {"item": "b"}},
        },
    }


@given(meshes("any"))
@settings(deadline=None)
def test_every_mesh_survives_the_way_through_toml(mesh):
    """What is read is what was written, with every setting, whatever its names and values are."""
    assert Mesh.from_toml(mesh.to_toml(), CATALOG) == mesh


def test_a_channel_is_placed_with_its_connectors():
    """`host` and `connector` are keys of the table, beside the settings of the kind."""
    text = TEXT.replace("capacity = 3", 'capacity = 3\nhost = "edge"\nconnector = {mode = "offline", capacity = 9}')
    mesh = Mesh.from_toml(text, CATALOG)
    assert mesh.channels["a"].host == "edge"
    assert dict(mesh.channels["a"].connector) == {"mode": "offline", "capacity": 9}
    assert dict(mesh.channels["a"].settings) == {"capacity": 3}
    assert Mesh.from_toml(mesh.to_toml(), CATALOG) == mesh
    with pytest.raises(SettingError, match="the channel 'a': connector: the setting 'mode' does not fit"):
        Mesh.from_toml(text.replace("offline", "later"), CATALOG)


def test_a_setting_that_is_switched_off_stays_off():
    """TOML has no null: a setting that is None against its default is named in `unset`."""
    mesh = line().configure("middle", limit=None)
    assert 'unset = ["limit"]' in mesh.to_toml()
    assert Mesh.from_toml(mesh.to_toml(), CATALOG).node("middle").settings["limit"] is None


def test_a_setting_at_its_default_is_written_only_when_it_was_set():
    """So it stays when the default changes; one that is not in the file follows the code that reads it."""
    mesh = line().configure("middle", limit=5)
    assert tomllib.loads(mesh.to_toml())["nodes"]["middle"]["settings"] == {"factor": 4.0, "limit": 5}
    newer = double_anew()
    middle = Mesh.from_toml(mesh.to_toml(), {**CATALOG, "demo:double": newer}).node("middle")
    assert (middle.settings["limit"], middle.settings["mode"]) == (5, "safe")
    assert Mesh.from_toml(line().to_toml(), {**CATALOG, "demo:double": newer}).node("middle").settings["limit"] == 9


def double_anew() -> SletSpec:
    """The slet `double` as a later version of its plugin has it."""

    @slet(name="double")
    def double(item: int, *, factor: float = 2.5, limit: int | None = 9, mode: str = "safe") -> int:
        return item

    return spec_of(double).of("demo")


@slet
def odd(item: int, *, thing: object = 0) -> int:
    """A slet with a setting of any type."""
    return item


def test_what_toml_cannot_hold_is_told():
    """A setting that is no plain value cannot be stored; the message names it."""
    spec = spec_of(odd).of("demo")
    for value in (object(), [None], {"a": None}):
        mesh = line().replace("middle", spec, thing=value)
        with pytest.raises(MeshError, match=r"line: the setting middle.thing.* which a topology file cannot hold; use"):
            mesh.to_toml()


def test_text_that_is_not_unicode_is_told():
    """A file whose name is not Unicode cannot be stored: the error names the setting, and the cure."""
    mesh = line().replace("middle", spec_of(odd).of("demo"), thing=Path("a\udcff"))
    with pytest.raises(MeshError, match=r"line: the setting middle.thing is 'a\\udcff', which is not Unicode.*give"):
        mesh.to_toml()


NODE = '[application]\nname = "n"\n[nodes.a]\nslet = "demo:double"\nports = {item = "c", out = "d"}\n[channels.c]\n'
WRONG = [
    ("[application", MeshError, "the topology is no TOML: "),
    ("", MeshError, "the topology has no name; begin it with"),
    ("[application]\nnam = 'x'", UnknownName, "[application] has no key 'nam'; did you mean 'name'?"),
    ("application = 5", MeshError, "application is no table; write [application]"),
    ("[application]\nname = 5", MeshError, "the topology has no name"),
    ("[application]\nname = 'a b'", MeshError, "'a b' is no name for an application"),
    ("[aplication]\nname = 'x'", UnknownName, "the topology has no table 'aplication'; did you mean 'application'?"),
    ("[application]\nname = 'x'\n[node.a]", UnknownName, "the topology has no table 'node'; did you mean 'nodes'?"),
    ("[application]\nname = 'x'\n[nodes]\na = 5", MeshError, "nodes.a is no table; [nodes] holds one table per name"),
    ("[application]\nname = 'x'\n[nodes.a]", MeshError, '[nodes.a] names no slet; write slet = "plugin:name"'),
    ("[application]\nname = 'x'\n[channels.c]\nkind = 5", MeshError, "[channels.c]: kind is 5 (int), not str"),
    (
        NODE.replace("double", "duble"),
        UnknownName,
        "the platform has no slet 'demo:duble'; did you mean 'demo:double'?",
    ),
    (NODE.replace('"demo:double"', "5"), MeshError, "[nodes.a]: slet is 5 (int), not str"),
    (NODE.replace('item = "c"', 'itm = "c"'), UnknownName, "a has no port 'itm'; did you mean 'item'?"),
    (NODE.replace('item = "c"', "item = ['c']"), MeshError, "[nodes.a]: ports['item'] is ['c'] (list), not str"),
    (NODE.replace('item = "c"', 'item = "e"'), UnknownName, "a.item: the mesh 'n' has no channel 'e'; known: c, d"),
    (NODE.replace("ports", "port"), UnknownName, "[nodes.a] has no key 'port'; did you mean 'ports'?"),
    (NODE + "[nodes.a.settings]\nfactr = 1\n", UnknownName, "a has no setting 'factr'; did you mean 'factor'?"),
    (NODE + '[nodes.a.settings]\nfactor = "x"\n', SettingError, "the setting 'factor' does not fit: expected float"),
    (NODE.replace("ports", 'on_error = "ignore"\nports'), UnknownName, "a has no policy 'ignore'; known: dead"),
    (NODE.replace("ports", 'suspended = "false"\nports'), MeshError, "suspended is 'false' (str), not bool"),
    (NODE.replace("ports", "host = 5\nports"), MeshError, "[nodes.a]: host is 5 (int), not str"),
    (NODE.replace("ports", "settings = 5\nports"), MeshError, "[nodes.a]: settings is 5 (int), not dict[str, Any]"),
    (NODE.replace("ports", "unset = ['limt']\nports"), UnknownName, "a has no setting 'limt'; did you mean 'limit'?"),
    (NODE.replace("ports", "unset = 'limit'\nports"), MeshError, "[nodes.a]: unset is 'limit' (str), not list[str]"),
]


@pytest.mark.parametrize(("text", "error", "message"), WRONG, ids=[message[:60] for _, _, message in WRONG])
def test_a_wrong_file_is_told(text, error, message):
    """Everything that is wrong in a file is told with its place, the known names and the cure."""
    with pytest.raises(error) as caught:
        Mesh.from_toml(text, CATALOG)
    assert message in str(caught.value)
    assert type(caught.value) is error


def test_settings_are_converted_as_everywhere():
    """A path is text in the file and a path in the mesh."""
    text = NODE.replace("double", "numbers").replace('item = "c", ', "") + '[nodes.a.settings]\npath = "in.csv"\n'
    assert Mesh.from_toml(text, CATALOG).node("a").settings["path"] == Path("in.csv")


def test_names_with_dots_are_quoted():
    """A name with a dot is one name, not two tables."""
    mesh = Mesh("m.1").add(node("a.b", "numbers", out="x.y"), ChannelSpec("x.y", "queue"))
    assert Mesh.from_toml(mesh.to_toml(), CATALOG) == mesh


def test_ports_of_a_family():
    """They are written with their names; by hand also as `to.cars = …`, without quotes."""
    fan = node("fan", "Fan", **{"side.a": "c", "to.b": "d"})
    mesh = Mesh("m").add(fan, ChannelSpec("c"), ChannelSpec("d"))
    assert tomllib.loads(mesh.to_toml())["nodes"]["fan"]["ports"] == {"side.a": "c", "to.b": "d"}
    text = mesh.to_toml().replace('"side.a"', "side.a").replace('"to.b"', "to.b")
    assert Mesh.from_toml(text, CATALOG) == mesh
    with pytest.raises(UnknownName, match=r"fan has no port 'to\.b c'; did you mean 'to\.\*'"):
        Mesh.from_toml(text.replace("to.b", '"to.b c"'), CATALOG)


def test_a_durable_application():
    """The seconds between two checkpoints stand beside the name; what cannot be is told."""
    text = TEXT.replace('name = "line"', 'name = "line"\ndurable = 2.5')
    assert Mesh.from_toml(text, CATALOG).durable == 2.5
    assert Mesh.from_toml(TEXT, CATALOG).durable is None
    for wrong in ("0", "-1.0", "true", '"5"', "inf", "nan"):
        with pytest.raises(MeshError, match=r"line: a checkpoint cannot be taken every .* seconds; give a number > 0"):
            Mesh.from_toml(text.replace("2.5", wrong), CATALOG)


def test_what_is_pending_is_written():
    """Lines of nodes and channels, in their order, also settings that are switched off; and they are read again."""
    mesh = line().configure("middle", factor=3, when="item > 5").configure("middle", limit=None, when="item > 7")
    mesh = mesh.configure_channel("a", capacity=9, when="item >= 2").configure_channel(
        "a", close_windows=True, when="punctuation >= 3"
    )
    document = tomllib.loads(mesh.to_toml())
    assert document["nodes"]["middle"]["pending"] == [
        {"when": "item > 5", "settings": {"factor": 3.0}},
        {"when": "item > 7", "unset": ["limit"]},
    ]
    assert document["channels"]["a"]["pending"] == [
        {"when": "item >= 2", "settings": {"capacity": 9}},
        {"when": "punctuation >= 3", "close_windows": True},
    ]
    assert Mesh.from_toml(mesh.to_toml(), CATALOG) == mesh


@pytest.mark.parametrize(
    ("pending", "told"),
    [
        ('{when = "item > ", settings = {factor = 1}}', "no expression"),
        ("{settings = {factor = 1}}", "lacks its condition"),
        ('{when = "item > 1", setting = {factor = 1}}', "did you mean 'settings'"),
        ("{when = 3, settings = {factor = 1}}", "when is 3 .int., not str"),
        ('{when = "item > 1", settings = {factr = 1}}', "did you mean 'factor'"),
        ("3", r"pending\[0\] is 3 .int., not dict"),
    ],
)
def test_a_pending_line_that_is_wrong(pending, told):
    """It is told as where the mesh is built in code."""
    text = TEXT.replace("settings = {factor = 4}", f"settings = {{factor = 4}}\npending = [{pending}]")
    with pytest.raises(MeshError, match=told):
        Mesh.from_toml(text, CATALOG)
