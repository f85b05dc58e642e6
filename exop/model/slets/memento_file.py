"""A memento in a file of its own: JSON that can be edited, or msgpack where it holds what JSON has no form for."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Literal, TypeAlias

from exop.errors import NotStorable, StoredStateError
from exop.model.slets.memento import Memento, check_fields, check_parts, refused
from exop.model.slets.stored_memento import declared_by, pack, unpack
from exop.model.types.description import type_of
from exop.model.values.depth import DEPTH, deep_place, read_json
from exop.model.values.encoding import fields_of
from exop.model.values.json import read, written
from exop.safe_repr import json_text

Form: TypeAlias = Literal["json", "msgpack"]
#: The kind and format version that the JSON of an exported memento carries.
KIND: Final = "exop memento"
FORMAT: Final = 1
#: The first byte of a list in msgpack: none of them begins a text.
_LISTS: Final = frozenset(bytes([first]) for first in (*range(0x90, 0xA0), 0xDC, 0xDD))


def document(memento: Memento, place: str) -> tuple[dict[str, Any], list[str]]:
    """A memento as JSON, and the places of what is only shown there.

    Raises:
        NotStorable: it is nested too deeply; *place* is named.
    """
    deep = deep_place(fields_of(memento))
    if deep is not None:
        problem = f"it is nested more than {DEPTH} levels deep, or refers to itself"
        cure = "take out what refers to itself, and keep a chain as a list"
        raise NotStorable(value=f"what stands at {deep}", problem=problem, cure=cure, place=place)
    fields, opaque = written(memento)
    kind = type(memento)
    return {
        "kind": KIND,
        "format": FORMAT,
        "of": place,
        "memento": type_of(kind).identity,
        "version": kind.__memento_version__,
        "fields": fields,
    }, opaque


def exported(memento: Memento, place: str, form: Form | None = None) -> tuple[Form, bytes]:
    """The content of a file: as JSON where that has a form for everything in it, else as msgpack; or as *form* says.

    Raises:
        NotStorable: it holds what the form has no place for; *place* is named.
    """
    if form == "msgpack":
        return "msgpack", pack(memento, place)
    found, opaque = document(memento, place)
    if not opaque:
        return "json", (json_text(found) + "\n").encode()
    if form is None:
        return "msgpack", pack(memento, place)
    raise NotStorable(
        value=opaque[0], problem="JSON has no form for it", cure="export it as msgpack", place=f"{place} as JSON"
    )


def imported(data: bytes, kind: type[Memento], place: str) -> Memento:
    """Read what `exported` wrote, as the memento of a slet that keeps a *kind*; an older msgpack is upgraded.

    Nothing is imported, and nothing but classes of data is made: the file may come from an untrusted source.

    Raises:
        StoredStateError: it is damaged, of another class or of a newer version, or a value in it does not fit.
    """
    if data.lstrip()[:1] == b"{":
        found = _document(data, place)
        _check_kind(found, kind, place)
        made = read(found["fields"], kind, place)
    elif data[:1] in _LISTS:
        try:
            made = unpack(data, kind, place, declared=declared_by(kind))
        except StoredStateError as error:
            raise StoredStateError(**{**error.facts, "what": place}) from error.__cause__
        check_fields(fields_of(made), kind, place)
    else:
        problem = "the file is neither JSON of a memento nor msgpack" if data.strip() else "the file is empty"
        raise refused(place, problem, "name a file that `exop memento export` wrote")
    check_parts(made, place)
    return made


def _document(data: bytes, place: str) -> dict[str, Any]:
    cure = "export it again with `exop memento export`, and edit what stands in fields"
    try:
        found = read_json(data, object_pairs_hook=_unique)
    except ValueError as problem:
        raise refused(place, f"the file is no JSON: {problem}", cure) from None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise refused(place, f'the file does not say "kind": "{KIND}"', cure)
    if found.get("format") != FORMAT:
        told = f"the file is of the form {found.get('format')!r}, this release reads {FORMAT}"
        raise refused(place, told, "use the release that wrote it")
    if not isinstance(found.get("fields"), dict) or not isinstance(found.get("version"), int):
        raise refused(place, "the file has no fields, or no version", cure)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON itself would take the last one, in silence."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice!r} stands there twice")
    return found


def _check_kind(found: dict[str, Any], kind: type[Memento], place: str) -> None:
    # As where a slet is replaced: a class of the same name with the same fields takes them, whatever its module.
    if str(found.get("memento")).rpartition(":")[2] != kind.__qualname__:
        problem = f"it is a {found.get('memento')}, and the slet keeps a {type_of(kind).identity}"
        raise refused(place, problem, "import what was exported from a slet that keeps that")
    known, version = kind.__memento_version__, found["version"]
    told = f"it is of version {version} of {kind.__qualname__}, the code here"
    if version > known:
        raise refused(place, f"{told} knows {known}", "install the newer code")
    if version < known:
        cure = "export it again from the slet that runs; msgpack of an older version is upgraded (--format msgpack)"
        raise refused(place, f"{told} keeps {known}", cure)
