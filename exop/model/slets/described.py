"""Slets as plain data, written by a platform that has their code and read by one that lacks it.

Without the code of a slet, a platform can show it, keep it in a mesh and forward it, but not run it.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar

from exop.errors import StoredStateError
from exop.model.slets.memento import Memento
from exop.model.slets.ports import PortSpec, PortType
from exop.model.slets.slet import Slet
from exop.model.slets.spec import Absent, Setting, SletSpec
from exop.model.types.conversion import convert
from exop.model.types.description import built, type_name, type_of
from exop.model.types.evolution import as_data, fingerprint, from_data
from exop.model.values.depth import read_json
from exop.safe_repr import Verbatim, json_text

T = TypeVar("T")

#: The version of the format.
FORMAT: Final = 1
_CONTROL: Final = ("punctuation", "end", "pauses", "bare")
_TRAITS: Final = ("is_class", "own_driver", "iterated", "exclusive")
#: What `repeats` is of a slet that has none of its own.
_REPEATS: Final = (None, Slet.repeats.__func__)  # type: ignore[attr-defined]
_ROWS: Final = list[dict[str, Any]]


def describe(spec: SletSpec) -> dict[str, Any]:
    """Return ports, settings, memento and a fingerprint of the code as plain data, as JSON and msgpack have it."""
    spec = spec.declared()
    state: dict[str, Any] | None = None
    if spec.state is not None:
        name, kind = spec.state
        found = type_of(kind)
        state = {"name": name, "memento": found.identity, "version": kind.__memento_version__}
        state |= {"schema": as_data(found), "fingerprint": fingerprint(found)}
    repeats = getattr(getattr(spec.factory, "repeats", None), "__func__", None)
    return {
        "format": FORMAT,
        "slet": spec.identity,
        "role": str(spec.role),
        "doc": spec.doc,
        "code": _code(spec.factory),
        "ports": [
            {"port": one.name, "direction": one.direction, "pulled": one.pulled, "method": one.method} | _type(one.type)
            for one in (*spec.ports.values(), *spec.families)
        ],
        "settings": [
            {"setting": one.name, "text": str(one), "required": one.required, "type": type_name(one.type)}
            | {"default": None if one.required else repr(one.default)}
            for one in spec.settings.values()
        ],
        "memento": spec.state[1].__qualname__ if spec.state else None,
        "state": state,
        "results": dict(spec.results),
        "traits": [name for name in (*_TRAITS, "tie") if getattr(spec, name)],
        **{name: getattr(spec, name) for name in ("effects", "on_error", "atomic", "dead_letters")},
        "timeout": spec.timeout or None,
        "gathers": getattr(spec.factory, "gathers", 0),
        "varies": spec.factory.varies if isinstance(spec.factory, Absent) else repeats not in _REPEATS,
    }


def summary(spec: SletSpec) -> dict[str, Any]:
    """Return the part of the description for a list of slets: role, first line of the docstring, ports, settings."""
    spec = spec.declared()
    ports = [
        {"port": one.name, "direction": one.direction, "type": str(one.type), "pulled": one.pulled}
        for one in (*spec.ports.values(), *spec.families)
    ]
    doc, settings = spec.doc.partition("\n")[0], [str(one) for one in spec.settings.values()]
    return {"slet": spec.identity, "role": str(spec.role), "doc": doc, "ports": ports, "settings": settings}


def _type(carried: PortType) -> dict[str, Any]:
    """Return the type of the items of a channel as plain data."""
    control, schema = [name for name in _CONTROL if getattr(carried, name)], as_data(carried.items)
    found = {"type": str(carried), "form": carried.form, "control": control, "schema": schema}
    return found | {"fingerprint": carried.fingerprint} | ({"origin": carried.origin} if carried.origin else {})


def type_text(carried: PortType) -> str:
    """Return the type of the items of a channel as a line of JSON, for `read_type`."""
    return json_text(_type(carried), indent=None)


def _code(factory: Any) -> str:
    """The fingerprint of the module of a function or class."""
    if isinstance(factory, Absent):
        return factory.code
    module = sys.modules.get(getattr(factory, "__module__", None) or "")
    try:
        source = inspect.getsource(module or factory)
    except (OSError, TypeError):  # a notebook's cell, an interpreter's line
        return ""
    return hashlib.sha256(source.encode(errors="backslashreplace")).hexdigest()[:16]


def absent(data: Any) -> SletSpec:
    """Read the description of a slet whose code is not here, from plain data or JSON."""
    with _reading("the description of a slet"):
        return _slet(convert(read_json(data) if isinstance(data, bytes) else data, dict[str, Any]))


@lru_cache(1024)
def read_type(text: str) -> PortType:
    """Read what `type_text` returned; equal texts give the same object."""
    with _reading("the type of a channel"):
        return _read_type(convert(read_json(text.encode()), dict[str, Any]))


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Report what is wrong with a description."""
    try:
        yield
    except (ValueError, RecursionError, TypeError, LookupError) as error:
        problem = f"it lacks {error}" if isinstance(error, KeyError) else str(error)[:300]
        raise StoredStateError(what=what, problem=problem, cure="use the release that wrote it") from None


def _slet(data: Mapping[str, Any]) -> SletSpec:
    convert(data["format"], Literal[FORMAT])
    rows = convert(data["ports"], _ROWS)
    ports = [_filled(PortSpec, one, name=convert(one["port"], str), type=_read_type(one)) for one in rows]
    plugin, _, name = convert(data["slet"], str).rpartition(":")
    traits, state = convert(data["traits"], list[str]), convert(data["state"], dict[str, Any] | None)
    gathers, varies = convert(data.get("gathers", 0), int), convert(data.get("varies", False), bool)
    factory = Absent(data["slet"], convert(data["code"], str), gathers, varies)
    object.__setattr__(factory, "__doc__", convert(data["doc"], str))
    return _filled(
        SletSpec,
        data,
        name=name,
        plugin=plugin or None,
        factory=factory,
        inputs=tuple(port for port in ports if port.direction == "in" and port.member != "*"),
        outputs=tuple(port for port in ports if port.direction == "out" and port.member != "*"),
        families=tuple(port for port in ports if port.member == "*"),
        settings={one["setting"]: _read_setting(one) for one in convert(data["settings"], _ROWS)},
        state=None if state is None else _read_state(state),
        tie="tie" if "tie" in traits else None,
        **{trait: trait in traits for trait in _TRAITS},
    )


def _filled(kind: type[T], data: Mapping[str, Any], **fields: Any) -> T:
    """Create a dataclass from *fields* and from the entries of *data* with the names and types of its other fields."""
    known = type_of(kind).fields
    given = data.keys() & known.keys() - fields.keys()
    return kind(**fields, **{name: convert(data[name], known[name].type) for name in given})


def _read_type(one: Mapping[str, Any]) -> PortType:
    flags = {name: name in convert(one["control"], list[str]) for name in _CONTROL}
    return _filled(PortType, one, item=from_data(one["schema"]), schema=None, **flags)


def _read_setting(one: Mapping[str, Any]) -> Setting:
    default = convert(one["default"], str | None)
    default = None if default in (None, "None") else Verbatim(default)
    name, kind = convert(one["setting"], str), built("open", convert(one["type"], str))
    return _filled(Setting, one, name=name, type=kind, default=default)


def _read_state(one: Mapping[str, Any]) -> tuple[str, type[Memento]]:
    """Create a class in place of that of the memento; only the description has its fields."""
    found = from_data(one["schema"])
    module, _, name = found.identity.rpartition(":")
    given = {"__module__": module, "__qualname__": name, "__described__": found}
    return convert(one["name"], str), type(name, (Memento,), given, version=convert(one["version"], int))
