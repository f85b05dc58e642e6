"""Slets as plain data, described where their code is and read where it is not.

A platform that lacks the code of a slet can show it, keep it in a mesh and forward it; it cannot run it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from typing import Any, Final, Literal, NotRequired, TypedDict, cast

from exop.errors import StoredStateError
from exop.model.depth import read_json
from exop.model.memento import Memento
from exop.model.ports import PortSpec, PortType
from exop.model.settings import Setting
from exop.model.spec import Absent, SletSpec
from exop.model.types.convert import convert
from exop.model.types.description import built, type_name, type_of
from exop.model.types.evolution import as_data, fingerprint, from_data

#: The form of what is written here.
FORMAT: Final = 1
_CONTROL: Final = ("punctuation", "end", "pauses")


class _Port(TypedDict):
    port: str
    direction: Literal["in", "out"]
    type: str
    pulled: bool
    form: Literal["item", "batch", "columns"]
    method: str | None
    control: list[str]
    schema: list[Any]
    fingerprint: str


class _Setting(TypedDict):
    setting: str
    text: str
    required: bool
    type: str
    default: str | None


class _State(TypedDict):
    name: str
    memento: str
    version: int
    schema: list[Any]
    fingerprint: str


class Description(TypedDict):
    """The plain data of a slet; `code` is the fingerprint of the module in which it stands."""

    format: Literal[1]
    slet: str
    role: str
    doc: str
    code: str
    ports: list[_Port]
    settings: list[_Setting]
    memento: str | None
    state: _State | None
    results: dict[str, Literal["none", "one", "optional", "many"]]
    traits: list[str]
    effects: bool | None
    on_error: Literal["suspend", "retry", "dead-letter", "skip"]
    atomic: bool
    timeout: float | None
    dead_letters: int
    guarantee: NotRequired[str]
    here: NotRequired[bool]


class _Text(str):
    """A default as text: of the value itself nothing is known."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def described(spec: SletSpec) -> dict[str, Any]:
    """Return the plain data of a slet, as JSON and msgpack have it."""
    if isinstance(spec.factory, Absent):
        return dict(spec.factory.data)
    return {
        "format": FORMAT,
        "slet": spec.identity,
        "role": str(spec.role),
        "doc": spec.doc,
        "code": _code(spec.factory),
        "ports": [_port(port) for port in (*spec.ports.values(), *spec.families)],
        "settings": [
            {"setting": one.name, "text": str(one), "required": one.required, "type": type_name(one.type)}
            | {"default": None if one.required else repr(one.default)}
            for one in spec.settings.values()
        ],
        "memento": spec.state[1].__qualname__ if spec.state else None,
        "state": None if spec.state is None else _state(*spec.state),
        "results": dict(spec.results),
        "traits": [name for name in _TRAITS if getattr(spec, name)],
        **{name: getattr(spec, name) for name in _CARE},
        "timeout": spec.timeout or None,
    }


_TRAITS: Final = ("is_class", "own_driver", "iterated", "tie")
#: What is described as it is.
_CARE: Final = ("effects", "on_error", "atomic", "timeout", "dead_letters")


def _port(port: PortSpec) -> _Port:
    return {
        "port": port.name,
        "direction": port.direction,
        "type": str(port.type),
        "pulled": port.pulled,
        "form": port.type.form,
        "method": port.method,
        "control": [name for name in _CONTROL if getattr(port.type, name)],
        "schema": as_data(port.type.items),
        "fingerprint": port.type.fingerprint,
    }


def _state(name: str, kind: type[Memento]) -> _State:
    found = type_of(kind)
    return {
        "name": name,
        "memento": found.identity,
        "version": kind.__memento_version__,
        "schema": as_data(found),
        "fingerprint": fingerprint(found),
    }


def _code(factory: Any) -> str:
    """The fingerprint of the module in which a function or class stands."""
    module = sys.modules.get(getattr(factory, "__module__", None) or "")
    try:
        source = inspect.getsource(module or factory)
    except (OSError, TypeError):  # a notebook's cell, an interpreter's line
        return ""
    return hashlib.sha256(source.encode(errors="backslashreplace")).hexdigest()[:16]


def absent(data: Any) -> SletSpec:
    """Read the description of a slet whose code is not here, as plain data or as JSON.

    Raises:
        StoredStateError: it is none.
    """
    try:
        found: Description = convert(read_json(data) if isinstance(data, bytes) else data, Description)
        json.dumps(found)
        ports = [_read_port(one) for one in found["ports"]]
        memento = None if found["state"] is None else (found["state"]["name"], _memento(found["state"]))
    except (ValueError, RecursionError, TypeError) as problem:
        cure = "use the release that wrote it"
        raise StoredStateError(what="the description of a slet", problem=f"{problem}"[:300], cure=cure) from None
    plain = cast("dict[str, Any]", found)
    plain.pop("guarantee", None)
    plain.pop("here", None)
    plugin, _, name = found["slet"].rpartition(":")
    traits: dict[str, Any] = {name: name in found["traits"] for name in _TRAITS[:-1]}
    factory = Absent(found["slet"], found["code"], plain)
    object.__setattr__(factory, "__doc__", found["doc"])
    return SletSpec(
        name=name,
        plugin=plugin or None,
        factory=factory,
        inputs=tuple(port for port in ports if port.direction == "in" and port.member != "*"),
        outputs=tuple(port for port in ports if port.direction == "out" and port.member != "*"),
        families=tuple(port for port in ports if port.member == "*"),
        settings={one["setting"]: _read_setting(one) for one in found["settings"]},
        state=memento,
        results=found["results"],
        tie="tie" if "tie" in found["traits"] else None,
        **traits,
        **{name: plain[name] for name in _CARE},
    )


def _read_port(one: _Port) -> PortSpec:
    flags: dict[str, Any] = {name: name in one["control"] for name in _CONTROL}
    carried = PortType(from_data(one["schema"]), one["form"], **flags)
    return PortSpec(one["port"], one["direction"], carried, one["method"], one["pulled"])


def _read_setting(one: _Setting) -> Setting:
    default = None if one["default"] in (None, "None") else _Text(one["default"])
    return Setting(one["setting"], built("open", one["type"]), default, one["required"])


def _memento(state: _State) -> type[Memento]:
    """A class that stands for the memento; its fields are in the description alone."""
    module, _, name = state["memento"].rpartition(":")
    given = {"__module__": module, "__qualname__": name, "__described__": from_data(state["schema"])}
    return type(name, (Memento,), given, version=state["version"])
