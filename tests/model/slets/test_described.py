"""Described slets: plain data where the code is, and a slet to show, keep and forward where it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Application, Batch, Memento, OutputPort, OutputPorts, Punctuation, Slet, input_port, slet
from exop.errors import MeshError, SettingError, StoredStateError, UnknownName, WiringError
from exop.model.meshes.mesh import Mesh
from exop.model.slets.described import absent, describe, read_type, type_text
from exop.model.slets.ports import PortType, mismatch
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from exop.runtime.catalog import known_slets


class Size(Enum):
    """A setting of a class."""

    SMALL = 1


class Row(TypedDict):
    """Where something is."""

    place: str


class Table(dict[str, int]):
    """Counts by name."""


class Spot(NamedTuple):
    """A place on a road."""

    road: int
    km: float


class Rank(IntEnum):
    """A number with a name."""

    FIRST = 1


class Named(Protocol):
    """What has a name."""

    name: str


@dataclass
class Car:
    """An item."""

    vid: int
    speed: float = 0.0


class Seen(Memento, version=3):
    """A state."""

    cars: dict[int, list[Car]] = field(default_factory=dict)


class Wide(Slet, on_error="retry", atomic=True, timeout=2.0):
    """Many ports.

    And a doc of several lines.
    """

    fast: OutputPort[Car]
    slow: OutputPort[Batch[Car]]
    to: OutputPorts[Car]
    seen: Seen
    size: Size = Size.SMALL
    limit: float
    words: list[str] = field(default_factory=list)
    mode: Literal["a", "b"] | None = None

    @input_port
    def car(self, car: Car | Punctuation) -> None:
        """Take one."""


def travelled(spec: SletSpec) -> SletSpec:
    """The slet where its code is not."""
    return absent(json.loads(json.dumps(describe(spec))))


SLETS = [spec_of(Wide).of("roads"), *known_slets().slets.values()]


@pytest.mark.parametrize("spec", SLETS, ids=lambda spec: spec.identity)
def test_a_slet_travels(spec: SletSpec) -> None:
    """All that a signature says is there, and it is forwarded as it came; nothing else is promised."""
    there = travelled(spec)
    assert describe(there) == describe(spec)
    assert msgpack.unpackb(msgpack.packb(describe(spec))) == describe(spec)
    assert (there.identity, there.role, there.shape, there.doc) == (spec.identity, spec.role, spec.shape, spec.doc)
    assert [str(one) for one in there.settings.values()] == [str(one) for one in spec.settings.values()]
    for one, other in zip((there, there.connected(["to.a"])), (spec, spec.connected(["to.a"])), strict=True):
        assert {name: str(port.type) for name, port in one.ports.items()} == {
            name: str(port.type) for name, port in other.ports.items()
        }
    assert (there.on_error, there.atomic, there.timeout, there.results) == (
        spec.on_error,
        spec.atomic,
        spec.timeout,
        spec.results,
    )
    assert (spec.is_here, there.is_here) == (True, False)
    assert there == travelled(spec) != spec


def test_the_memento_has_its_version_and_fields() -> None:
    """And a fingerprint that changes with them."""
    found = describe(spec_of(Wide))
    assert (found["state"]["version"], found["memento"]) == (3, "Seen")
    kind = travelled(spec_of(Wide)).state
    assert kind is not None
    assert (kind[0], kind[1].__qualname__, kind[1].__memento_version__) == ("seen", "Seen", 3)
    types = {one["name"] for one in found["state"]["schema"]}
    assert {"Seen", "Car", "int", "float"} <= types


@slet
def cars() -> Iterator[Car]:
    """Put out cars."""
    yield Car(1)


TOML = """
[application]
name = "roads"

[nodes.numbers]
slet = "stock:count_up"
ports = {out = "numbers"}

[nodes.wide]
slet = "roads:wide"
ports = {car = "numbers", fast = "quick"}
settings = {limit = 5, size = "SMALL"}

[nodes.show]
slet = "stock:show"
ports = {item = "quick"}
"""


def kept() -> Mesh:
    """A mesh with a slet whose code is not here."""
    known = {**known_slets().slets, "roads:wide": absent(describe(spec_of(Wide)) | {"slet": "roads:wide"})}
    return Mesh.from_toml(TOML, known)


def test_a_mesh_keeps_it() -> None:
    """A topology file with its description is read where the code is not, and written back unchanged."""
    mesh = kept()
    text = mesh.to_toml()
    again = Mesh.from_toml(text, known_slets().slets)
    assert again == mesh
    assert again.to_toml() == text
    assert again.nodes["wide"].settings["limit"] == 5
    edited = again.configure("wide", limit=6, mode="b").rewire("wide", slow="numbers")
    assert Mesh.from_toml(edited.to_toml(), known_slets().slets) == edited
    with pytest.raises(UnknownName, match="did you mean 'limit'"):
        again.configure("wide", limitt=1)
    with pytest.raises(SettingError, match="limit"):
        Mesh.from_toml(text.replace("limit = 5\n", ""), known_slets().slets)


def test_where_its_code_is_the_description_is_not_looked_at() -> None:
    """The platform that has the code runs that."""
    spec = spec_of(Wide)
    text = kept().to_toml()
    found = Mesh.from_toml(text, {**known_slets().slets, "roads:wide": spec})
    assert found.nodes["wide"].slet is spec
    assert found.nodes["wide"].settings["size"] is Size.SMALL
    assert "[slets" not in found.to_toml()


@pytest.mark.parametrize(
    ("identity", "cure"),
    [
        ("roads:wide", "install the plugin roads, or load it"),
        ("roads@1.2.0:wide", "install the bundle roads 1.2.0 (`exop bundle install FILE`)"),
    ],
)
def test_it_does_not_run_here(identity: str, cure: str) -> None:
    """A plan that starts it is refused by name, with the cure."""
    spec = absent(describe(spec_of(Wide)) | {"slet": identity})
    app = Application("roads")
    app.add("wide", spec, car=app.channel("cars"), limit=1)
    with pytest.raises(MeshError) as caught:
        app.build()
    assert f"wide cannot run here: the code of {identity} is not here; {cure}" in str(caught.value)
    with pytest.raises(MeshError, match="is not here"):
        spec.factory()


def test_joins_are_checked() -> None:
    """By the fields that it describes: the error names the field, both types and both ports."""
    data = json.loads(json.dumps(describe(spec_of(Wide))))
    schema = data["ports"][0]["schema"]
    app = Application("roads")
    passing = app.add("cars", cars)
    app.add("wide", absent(data), car=passing, limit=1)
    ((_, place, *_),) = [one for one in schema[0]["fields"] if one[0] == "vid"]
    schema[place] = {"kind": "scalar", "name": "str", "identity": "builtins:str"}
    told = r"cars.out cannot feed other.car through 'cars': the field 'vid' is int, expected str"
    with pytest.raises(WiringError, match=told):
        app.add("other", absent(data), car=passing, limit=1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@dataclass
class Bus(Car):
    """A car, too."""


@pytest.mark.parametrize(
    ("sent", "taken", "refused"),
    [
        (Row, (dict[str, Any], dict, Mapping[str, Any], TypedDict("Other", {"place": str})), (list[str], Car, Spot)),
        (Table, (dict[str, int], Mapping[str, int]), (list[int], Car)),
        (Spot, (tuple[Any, ...], Sequence[Any]), (dict[str, Any], Row)),
        (Rank, (int, Enum), (str, Size)),
        (Bus, (Car, Named), (Row, Spot)),
        (Path, (PurePath,), (str,)),
    ],
)
def test_what_an_item_is_does_not_depend_on_where_its_class_is(sent: Any, taken: Any, refused: Any) -> None:
    """A port takes the same types from another host, which describes them, as from the same one."""
    for source in (PortType(sent), read_type(type_text(PortType(sent)))):
        assert [one for one in taken if mismatch(source, PortType(one))] == []
        assert [one for one in refused if not mismatch(source, PortType(one))] == []


@given(st.data())
def test_hostile_descriptions(data: st.DataObject) -> None:
    """Whatever is changed in one, it is an error by name or a slet that can be shown."""
    found: Any = json.loads(json.dumps(describe(spec_of(Wide))))
    holder, key = found, data.draw(st.sampled_from(sorted(found)))
    while isinstance(holder[key], (dict, list)) and holder[key] and data.draw(st.booleans()):
        holder = holder[key]
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
    holder[key] = data.draw(JSON)
    try:
        spec = absent(found)
    except StoredStateError as error:
        assert "the description of a" in str(error)  # noqa: PT017 (either is right)
        return
    assert describe(spec)
    assert all(map(str, [*spec.settings.values(), *(port.type for port in spec.ports.values())]))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b'{"format": 2}'])
def test_what_is_no_description(text: bytes) -> None:
    """A file that was cut off, nested without end, or of a newer release."""
    with pytest.raises(StoredStateError, match="the description of a slet"):
        absent(text)
