"""The specification of a slet, and its settings: conversion, defaults, errors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest

from exop import Application, slet
from exop.errors import ExpressionError, MeshError, SettingError, SletError, UnknownName
from exop.model.meshes.mesh import Node
from exop.model.slets.ports import PortSpec, PortType
from exop.model.slets.signature import read_function, read_settings
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import Setting, SletSpec, configured
from exop.runtime.channels import BUILT_IN
from exop.runtime.channels.queue import QueueChannel
from exop.stock.event_time import Watermark
from tests.model.sample_meshes import SLETS


@slet
def average(report: int, *, window: int = 10) -> float:
    """Average the last *window* reports."""
    return report / window


SPEC = spec_of(average)


def test_the_identity_is_what_any_platform_resolves():
    """A slet of a plugin is `plugin:name`; others are named by their module, for people to find."""
    assert SPEC.identity == f"{__name__}:average"
    assert SPEC.of("traffic").identity == "traffic:average"
    assert SPEC.plugin is None


def test_a_slet_read_twice_is_the_same_slet():
    """Gathering the plugins again changes no mesh: equality is by code, name, plugin and policies."""
    assert dataclasses.replace(SPEC) == SPEC
    assert read_function(average) == SPEC
    assert hash(read_function(average)) == hash(SPEC)
    assert SPEC.of("traffic") != SPEC
    assert dataclasses.replace(SPEC, atomic=True) != SPEC
    assert SPEC != "average"


def test_ports_by_name_inputs_first():
    """`ports` lists every port."""
    assert list(SPEC.ports) == ["report", "out"]


def test_settings_are_checked_with_ports_among_the_known_names():
    """A misspelled port given as a setting is told with the ports, too."""
    assert SPEC.configured("averages", {"window": "3"}) == {"window": 3}
    with pytest.raises(UnknownName, match="averages has no port or setting 'reprt'; did you mean 'report'"):
        SPEC.configured("averages", {"reprt": 3}, beside_ports=True)
    with pytest.raises(SettingError, match="averages: the setting 'window' does not fit: expected int, got 'None'"):
        SPEC.configured("averages", {"window": "None"})


def test_a_port_is_no_setting():
    """Where settings stand alone, a port is not among the known names, and is told as what it is."""
    with pytest.raises(UnknownName, match="averages has no setting 'report'; known: window\n") as caught:
        SPEC.configured("averages", {"report": 3})
    assert caught.value.__notes__ == [f"report is a port of {SPEC.identity}: `rewire` connects it elsewhere"]


def test_a_specification_is_its_own():
    """`spec_of` takes a specification, too: what a plugin has made by hand."""
    assert spec_of(SPEC) is SPEC
    assert isinstance(SPEC, SletSpec)


def doubling(settings, inputs):
    """Lets the output carry what the input takes."""
    return spec_of(generic).with_outputs({"out": inputs.get("item", PortType())})


@slet(specialised=doubling)
def generic(item: object, *, times: int = 1) -> object:
    """Pass on."""
    return item


def test_ports_come_from_settings_and_inputs():
    """`specialised` is asked with both; name, plugin and policies stay, and the same question is asked once."""
    asked = []

    def ports(settings, inputs):
        asked.append((dict(settings), dict(inputs)))
        return doubling(settings, inputs)

    spec = dataclasses.replace(spec_of(generic), plugin="mine", on_error="skip")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generic, "specialised", ports)
        found = spec.specialised("node", {"times": 1}, {"item": PortType(int)})
        assert found.specialised("node", {"times": 1}, {"item": PortType(int)}) is found
    assert asked == [({"times": 1}, {"item": PortType(int)})]
    assert found.outputs == (PortSpec("out", "out", PortType(int)),)
    assert (found.identity, found.on_error) == ("mine:generic", "skip")
    assert SPEC.specialised("node", {"window": 1}, {}) is SPEC


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        (["a b"], "'a b' is no name for a port"),
        (["times"], "a port cannot be called 'times', which is a setting"),
        (["on_error"], "a port cannot be called 'on_error', which is a setting"),
        (["item"], "two ports are called 'item'"),
    ],
)
def test_ports_that_no_slet_can_have_are_refused(outputs, problem, monkeypatch):
    """The error names the node, the slet and the port."""
    made = spec_of(generic).with_outputs(dict.fromkeys(outputs, int))
    monkeypatch.setattr(generic, "specialised", lambda settings, inputs: made)
    with pytest.raises(SletError, match=problem) as caught:
        spec_of(generic).asked("node", {})
    assert str(caught.value).startswith(f"node ({__name__}:generic) is no slet with these settings: ")


def test_the_settings_of_a_node_made_by_hand_are_complete_where_ports_depend_on_them():
    """A slet need not repeat its defaults; a setting that is missing is told by its name."""
    timed = Node("timed", spec_of(Watermark), {"time": "t"}, {})
    assert "late" in timed.slet.ports
    with pytest.raises(SettingError, match="timed: the setting 'time' does not fit: it has no default: give time: str"):
        Node("timed", spec_of(Watermark), {}, {})


def test_families_of_outputs_get_a_type():
    """`with_outputs` takes `to.*` for the family; its members have the type."""
    found = SLETS["Fan"].with_outputs({"to.*": str}).connected(["to.a"])
    assert found.ports["to.a"].type == PortType(str)
    assert [port.name for port in found.families] == ["to.*", "side.*"]


def test_what_specialised_raises_names_the_node(monkeypatch):
    """An error of the model keeps its class and gets the node as its place; any other is a `SletError`."""
    condition = {"expression": "item >", "position": 6, "problem": "no expression"}
    for error, kind, text in (
        (SettingError(place="", setting="times", problem="it is odd"), SettingError, "node: the setting 'times' does"),
        (ExpressionError(place="times", **condition), ExpressionError, "node.times: no expression"),
        (MeshError("no such thing"), SletError, "specialised raised MeshError: no such thing"),
        (ValueError("odd"), SletError, "specialised raised ValueError: odd"),
        (
            ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow"),
            SletError,
            r"No module named 'pyarrow'; run `pip install 'exop\[columns\]'`",
        ),
    ):

        def refuse(settings, inputs, error=error):
            raise error

        monkeypatch.setattr(generic, "specialised", refuse)
        with pytest.raises(kind, match=text):
            spec_of(generic).asked("node", {})
    monkeypatch.setattr(generic, "specialised", lambda settings, inputs: None)
    with pytest.raises(SletError, match="specialised returned NoneType, not a SletSpec"):
        spec_of(generic).asked("node", {})


@dataclass
class Sizes:
    """A default that can be changed."""

    width: int = 1


SETTINGS = {
    "window": Setting("window", int, 10),
    "path": Setting("path", Path, required=True),
    "tags": Setting("tags", list[str], ["a"]),
    "sizes": Setting("sizes", Sizes, Sizes()),
}


def test_defaults_complete_what_is_given():
    """What is not given stands at its default, what is given is converted."""
    found = configured("average", SETTINGS, {"path": "in.csv", "window": "5"})
    assert found == {"window": 5, "path": Path("in.csv"), "tags": ["a"], "sizes": Sizes()}


def test_no_two_instances_share_a_default():
    """A list or dataclass that is a default is copied for each: one instance never changes another's."""
    one, other = (configured("n", SETTINGS, {"path": "p"}) for _ in range(2))
    one["tags"].append("b")
    one["sizes"].width = 7
    assert other["tags"] == ["a"] == SETTINGS["tags"].default
    assert other["sizes"].width == 1


def test_a_required_setting_with_a_wrong_letter_is_told_by_the_name_that_was_given():
    """Also where the ports depend on settings, and are not known without them."""
    app = Application("x")
    with pytest.raises(UnknownName, match="has no setting 'were'; did you mean 'where'"):
        app.add("few", "stock:filter", item=app.add("n", "stock:count_up", to=1), were="item > 3")


def test_an_unknown_setting_is_told_with_the_known_ones():
    """A misspelled setting is refused with a suggestion; ports count as known names."""
    with pytest.raises(UnknownName) as caught:
        configured("average", SETTINGS, {"windw": 5}, ports=("report", "out"))
    assert str(caught.value).startswith("average has no port or setting 'windw'; did you mean 'window'?")
    assert caught.value.known == ["window", "path", "tags", "sizes", "report", "out"]


def test_a_required_setting_that_is_missing_is_told():
    """A setting without a default has to be given; the message shows its type."""
    with pytest.raises(SettingError) as caught:
        configured("average", SETTINGS, {})
    assert str(caught.value) == "average: the setting 'path' does not fit: it has no default: give path: Path"
    assert caught.value.setting == "path"


def test_a_value_that_does_not_fit_names_place_and_setting():
    """One line: where, which setting, what was expected, what was given."""
    with pytest.raises(SettingError) as caught:
        configured("average", SETTINGS, {"path": "p", "window": True})
    assert str(caught.value) == "average: the setting 'window' does not fit: expected int, got True (bool)"
    assert caught.value.facts == {"place": "average", "setting": "window", "problem": "expected int, got True (bool)"}


def test_a_setting_shows_type_and_default():
    """Help texts print settings as Python would."""
    assert [str(setting) for setting in SETTINGS.values()][:2] == ["window: int = 10", "path: Path"]


def build(*, input: Path, speed: float = 1.0) -> None:  # noqa: A002 (as users call it)
    """An application builder's signature."""


def test_a_builders_parameters_are_settings():
    """Application builders are configured as slets are."""
    found = configured("the builder build", read_settings(build), {"input": "a", "speed": "2"})
    assert found == {"input": Path("a"), "speed": 2.0}


def test_a_builder_takes_keywords_only():
    """A positional parameter of a builder is refused, with the cure."""

    def wrong(path: Path) -> None:
        """A builder with a positional parameter."""

    with pytest.raises(SletError, match=r"no application builder: 'path' is not keyword-only; put `\*, ` before"):
        read_settings(wrong)


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.kind)
def test_the_settings_of_every_channel_kind_can_be_read(kind):
    """Channel kinds declare their settings like slets: keyword-only and typed."""
    assert all(isinstance(setting, Setting) for setting in read_settings(kind).values())


class WiderQueue(QueueChannel):
    """A kind that inherits its settings."""


def test_a_kind_inherits_the_settings_of_its_base():
    """A subclass without an `__init__` of its own has the base's settings, with their types."""
    assert str(read_settings(WiderQueue)["capacity"]) == "capacity: int = 1024"


def test_channel_settings_are_converted_as_those_of_slets():
    """From a topology or a command line they come as text; what does not fit is refused in the same words."""
    app = Application("channels")
    app.channel("queue", kind="queue", capacity="5")
    app.channel("rows", kind="table", key=("a", "b"))
    with pytest.raises(SettingError, match=r"the channel 'q' \(queue\): the setting 'capacity' .* got 'x'"):
        app.channel("q", kind="queue", capacity="x")
    with pytest.raises(SettingError, match=r"the setting 'key' does not fit: it has no default: give key: str"):
        app.channel("t", kind="table")
    with pytest.raises(UnknownName, match=r"the channel 'l' \(latch\) has no setting 'kye'; did you mean 'key'"):
        app.channel("l", kind="latch", kye="a")
    assert app._mesh.channels["queue"].settings == {"capacity": 5}
