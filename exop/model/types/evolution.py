"""Types that travel and change: as plain data, as fingerprints, and as differences between two versions.

A platform that lacks a class can still read, show and compare its description.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NoReturn

from exop.errors import StoredStateError
from exop.model.types.assignable import find_mismatch
from exop.model.types.conversion import convert
from exop.model.types.description import CONCRETE, SCALARS, Field, Kind, Type, built, type_of

#: Types of which a description may consist.
MOST: Final = 1000
#: Kinds that are another name for what they consist of: they must come to an end.
_NAMES: Final = ("new", "union", "variable")
#: The classes that a description may mean, by kind and identity.
_KNOWN: Final[dict[tuple[str, str], Any]] = {
    **{(found.kind, found.identity): found.cls for found in map(type_of, (*SCALARS, *CONCRETE))},
    ("tuple", "builtins:tuple"): tuple,
    ("record", "builtins:dict"): dict,
}
#: Those from which other classes may be derived, by identity.
_BASES: Final = {identity: type_of(cls) for (_, identity), cls in _KNOWN.items()}


def as_data(described: Type) -> list[dict[str, Any]]:
    """Convert a description to types of JSON and msgpack: a list of types that refer to each other by position."""
    found = list(described.reached())
    place = {id(one): number for number, one in enumerate(found)}
    data = []
    for one in found:
        parts = {
            "identity": one.identity,
            "arguments": [place[id(argument)] for argument in one.arguments],
            "choices": list(one.texts),
            "bases": [base.identity for base in one.bases] if _KNOWN.get((one.kind, one.identity)) is None else [],
            "fields": [[each.name, place[id(each.type)], each.required, each.written] for each in one.fields.values()],
        }
        data.append({"kind": one.kind, "name": one.name} | {name: part for name, part in parts.items() if part})
    return data


@dataclass(frozen=True)
class _Node:
    """One type in this list."""

    kind: Kind
    name: str
    identity: str = ""
    arguments: list[int] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)
    fields: list[tuple[str, int, bool, str]] = field(default_factory=list)


def from_data(data: Any) -> Type:
    """Read a description. Its classes are resolved only if Python or ExoP define them."""
    if not isinstance(data, (list, tuple)) or not 0 < len(data) <= MOST:
        _refuse(f"it is no list of 1 to {MOST} types")
    try:
        nodes: list[_Node] = convert(data, list[_Node])
    except ValueError as problem:
        _refuse(str(problem)[:300])
    found = []
    for node in nodes:
        known = _KNOWN.get((node.kind, node.identity))
        found.append(built(node.kind, node.name, known, identity=node.identity, choices=tuple(node.choices)))
    for one, node in zip(found, nodes, strict=True):
        if not all(0 <= place < len(found) for place in (*node.arguments, *(each[1] for each in node.fields))):
            _refuse("it refers to a type that it does not have")
        vars(one)["arguments"] = tuple(found[place] for place in node.arguments)
        if one.cls is None:
            vars(one)["bases"] = tuple(_BASES.get(base) or built("class", base, identity=base) for base in node.bases)
        vars(one)["fields"] = {
            name: Field(name, found[place], required, written=written) for name, place, required, written in node.fields
        }
    # Names that refer to themselves, or to nothing, are refused.
    names = {place: node.arguments for place, node in enumerate(nodes) if node.kind in _NAMES}
    try:
        TopologicalSorter(names).prepare()
    except CycleError:
        _refuse("a type in it is a name for itself")
    if any(node.kind == "new" and len(node.arguments) != 1 for node in nodes):
        _refuse("a name in it has not one type")
    return found[0]


def _refuse(problem: str) -> NoReturn:
    raise StoredStateError(what="the description of a type", problem=problem, cure="use the release that wrote it")


def fingerprint(described: Type) -> str:
    """A short text that is equal for equal types, on any platform and for any version of a bundle."""
    texts: list[str] = []
    seen: dict[int, int] = {}
    left = [described]
    while left:  # depth first, in the order of the fields: the same on every platform
        if id(one := left.pop()) in seen:
            texts.append(f"@{seen[id(one)]}")
            continue
        if one.kind == "record":
            seen[id(one)] = len(seen)
        fields = list(one.fields.values())
        names = [f"{field.name}{'' if field.required else '='}" for field in fields]
        own = one.identity.partition(":")[2] or one.name
        texts.append("|".join((one.kind, own, str(len(one.arguments)), *one.texts, *names)))
        left += reversed([*one.arguments, *(field.type for field in fields)])
        if len(texts) > 100 * MOST:
            break
    return hashlib.sha256("\n".join(texts).encode(errors="backslashreplace")).hexdigest()[:16]


@dataclass(frozen=True)
class FieldChange:
    """A difference between two versions of a type.

    Attributes:
        path: The field; empty for the type itself.
        before: Its type in the old version; `None` for a new field.
        after: Its type in the new version; `None` for a removed field.
        compatible: The new version can read values that the old one wrote.
    """

    path: str
    before: str | None
    after: str | None
    compatible: bool = False

    def __str__(self) -> str:
        name = f"the field {self.path!r}" if self.path else "the type"
        if self.before is None:
            return f"{name} ({self.after}) is new{'' if self.compatible else ', without a default'}"
        gone = self.after is None
        return f"{name} ({self.before}) is gone" if gone else f"{name} was {self.before} and is {self.after} now"


def changes(before: Type, after: Type) -> list[FieldChange]:
    """Compare two versions of a type, field by field.

    A new field is compatible if it has a default or is nullable, a changed type if it takes the old values; none goes.
    """
    try:
        return list(_changes(before, after, "", set()))
    except RecursionError:
        return [FieldChange("", before.name, after.name)]


def _changes(before: Type, after: Type, path: str, seen: set[tuple[int, int]]) -> Iterator[FieldChange]:
    if before is after or (id(before), id(after)) in seen:
        return
    seen.add((id(before), id(after)))
    named = before.kind == after.kind == "record" and (not path or _own(before) == _own(after))
    if named or (before.kind == after.kind == "columns" and before.fields and after.fields):
        yield from _of_fields(before, after, path, seen)
    elif before.kind == after.kind == "enum" and _own(before) == _own(after):
        for gone in (name for name in before.texts if name not in after.texts):
            yield FieldChange(f"{path}.{gone}".lstrip("."), before.name, None)
    elif before.arguments and len({(one.kind, one.identity, len(one.arguments)) for one in (before, after)}) == 1:
        inner = [_changes(*pair, path, seen) for pair in zip(before.arguments, after.arguments, strict=True)]
        found = [one for each in inner for one in each]
        # A field within is named; a change of the elements themselves is shown as one of the collection.
        yield from (one for one in found if one.path != path)
        if own := [one for one in found if one.path == path]:
            yield FieldChange(path, before.name, after.name, all(one.compatible for one in own))
    elif before.kind != "class" or after.kind != "class" or _own(before) != _own(after):
        compatible = find_mismatch(before, after.bare) is None
        if not compatible or (before.name != after.name and "open" not in (before.kind, after.kind)):
            yield FieldChange(path, before.name, after.name, compatible)


def _of_fields(before: Type, after: Type, path: str, seen: set[tuple[int, int]]) -> Iterator[FieldChange]:
    for name, old in before.fields.items():
        place = f"{path}.{name}".lstrip(".")
        if name in after.fields:
            yield from _changes(old.type, after.fields[name].type, place, seen)
        else:
            yield FieldChange(place, old.type.name, None)
    for name in (name for name in after.fields if name not in before.fields):
        new = after.fields[name]
        yield FieldChange(f"{path}.{name}".lstrip("."), None, new.type.name, not new.required or new.type.nullable)


def _own(one: Type) -> str:
    """The name of a class within its module."""
    return one.identity.partition(":")[2]
