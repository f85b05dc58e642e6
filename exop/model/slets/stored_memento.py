"""Stored and exported mementos: msgpack, or JSON that a person can edit; the check of class, version and fields.

Class, version and field types precede the content. A stored memento is read as the class that the slet keeps today.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakKeyDictionary

from exop.errors import NotStorable, StoredStateError
from exop.model.slets.memento import Memento, check_fields, check_parts, refused, upgraded
from exop.model.slets.memento_json import Writer, from_json
from exop.model.types.description import type_of
from exop.model.values.classes import Declared, class_named, filled, name_of
from exop.model.values.depth import DEPTH, deep_place, read_json
from exop.model.values.encoding import Part, decode, encode, fields_of
from exop.safe_repr import json_text

Form: TypeAlias = Literal["json", "msgpack", "shown"]
#: The version of both forms.
FORMAT: Final = 1
#: The `kind` in the JSON of a memento.
KIND: Final = "exop memento"
#: The first bytes of a list in msgpack; no text begins with one of them.
_LISTS: Final = frozenset(bytes([first]) for first in (*range(0x90, 0xA0), 0xDC, 0xDD))
#: By class: its version, the bytes that precede the content, and the names of the fields.
_HEADS: Final[WeakKeyDictionary[type[Memento], tuple[int, bytes, tuple[str, ...]]]] = WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class StoredMemento:
    """A stored memento before its content is decoded.

    `fields` has the types of the fields by name, as they are written in the class.
    """

    kind: str
    version: int
    fields: dict[str, str]
    body: bytes


def dump_memento(memento: Memento, place: str, parts: Mapping[int, Part] | None = None) -> bytes:
    """Encode a memento; *place* is named in errors. For *parts* see `encode`; here they also represent whole fields."""
    kind = type(memento)
    try:
        version, head, names = _HEADS.get(kind, (None, b"", ()))
        if version != kind.__memento_version__:
            version, shape = kind.__memento_version__, type_of(kind).shape
            head, names = encode([FORMAT, name_of(kind), version, shape, b""]).removesuffix(b"\xc4\x00"), tuple(shape)
            _HEADS[kind] = version, head, names
        fields = {name: getattr(memento, name) for name in names}
        if parts:
            fields = {name: parts.get(id(value), value) for name, value in fields.items()}
        body = encode(fields, parts=parts)
        return b"".join((head, b"\xc6", len(body).to_bytes(4, "big"), body))
    except NotStorable as problem:
        raise NotStorable(**{**problem.facts, "place": place}) from problem


def header(data: bytes, place: str) -> StoredMemento:
    """Read the header of a stored memento."""
    if not isinstance(found := decode(data, declared=Declared()), list) or not found or not isinstance(found[0], int):
        raise refused(place, "it is no memento", "take an older copy")
    if found[0] != FORMAT:
        problem = f"it is written in the form {found[0]}, this release reads {FORMAT}"
        raise refused(place, problem, "use the release that wrote it")
    if len(parts := found[1:]) != 4 or not all(map(isinstance, parts, (str, int, dict, bytes))):
        raise refused(place, "its parts are none of a memento", "take an older copy")
    return StoredMemento(*parts)


def declared_by(kind: type[Memento]) -> Declared:
    """The classes that a memento of class *kind* from an untrusted source may contain."""
    return Declared(kind, home=kind.__module__)


def load_memento(
    data: bytes,
    kind: type[Memento],
    place: str,
    *,
    declared: Declared | None = None,
    parts: Mapping[int, Any] | None = None,
) -> Memento:
    """Read a memento as an instance of *kind*, through its `upgrade` if the stored one is older.

    Without an `upgrade`, an older one fills the fields that the class still has. *declared* is given for data from an
    untrusted source: `declared_by(kind)`. For *parts* see `decode`.
    """
    stored = header(data, place)
    fields = decode(stored.body, declared=declared, parts=parts)
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise refused(place, "it holds no fields", "take an older copy")
    if same := stored.kind == name_of(kind):
        _check_version(stored.version, kind, place)
    if not same or stored.version < kind.__memento_version__:
        if callable(getattr(kind, "upgrade", None)):
            cure = f"mend {kind.__qualname__}.upgrade, or use the code that wrote it"
            return upgraded(kind, _old(stored, fields, declared), partial(refused, place, cure=cure))
        if (name := stored.kind.rpartition(":")[2]) != kind.__qualname__:
            problem = f"it is a {name}, and {kind.__qualname__} has no upgrade for it"
            raise refused(place, problem, "give the memento a `@classmethod def upgrade(cls, old)`")
    # Values are checked only if the class was edited: the running slet was free to ignore its own annotations, and must
    # be able to restart.
    if stored.fields != type_of(kind).shape:
        check_fields(fields, kind, place)
    try:
        made: Memento = filled(kind, fields)
    except StoredStateError as problem:
        raise StoredStateError(**{**problem.facts, "what": place}) from None
    return made


def _check_version(version: int, kind: type[Memento], place: str) -> None:
    if version > (known := kind.__memento_version__):
        problem = f"it is of version {version} of {kind.__qualname__}, the code here knows {known}"
        raise refused(place, problem, "install the newer code")


def _old(stored: StoredMemento, fields: dict[str, Any], declared: Declared | None) -> Any:
    """The old memento: an instance of its class if that is loaded and unchanged, else its fields alone."""
    with suppress(StoredStateError):
        kind = class_named(stored.kind, "memento", lambda one: issubclass(one, Memento), declared)
        if type_of(kind).shape == stored.fields:
            return filled(kind, fields)
    return SimpleNamespace(**fields)


def export_memento(memento: Memento, place: str, form: Form | None = None) -> tuple[Form, bytes]:
    """Encode a memento for a file: as JSON if that can represent all of it, else as msgpack; or as *form* says.

    The form `shown` is JSON in which text stands for the values that JSON cannot represent.
    """
    if form == "msgpack":
        return "msgpack", dump_memento(memento, place)
    if (deep := deep_place(fields_of(memento))) is not None:
        problem = f"it is nested more than {DEPTH} levels deep, or refers to itself"
        cure = "remove the reference to itself, and keep a chain as a list"
        raise NotStorable(value=f"the value at {deep}", problem=problem, cure=cure, place=place)
    writer = Writer()
    fields = writer.fields(memento)
    if writer.opaque and form is None:
        return "msgpack", dump_memento(memento, place)
    if writer.opaque and form == "json":
        problem, cure = "JSON has no form for it", "export it as msgpack"
        raise NotStorable(value=writer.opaque[0], problem=problem, cure=cure, place=f"{place} as JSON")
    head = {"kind": KIND, "format": FORMAT, "of": place, "memento": type_of(type(memento)).identity}
    document = {**head, "version": memento.__memento_version__, "fields": fields}
    return "json", (json_text(document) + "\n").encode()


def import_memento(data: bytes, kind: type[Memento], place: str) -> Memento:
    """Read an exported memento as one of class *kind*; an older one in msgpack is upgraded.

    The file may come from an untrusted source: no module is imported, and only declared classes are instantiated.

    Raises:
        StoredStateError: it is damaged, of another class or a newer version, or a value is of the wrong type.
    """
    if data.lstrip()[:1] == b"{":
        made = from_json(_fields_in(data, kind, place), kind, place)
    elif data[:1] in _LISTS:
        try:
            made = load_memento(data, kind, place, declared=declared_by(kind))
        except StoredStateError as error:
            raise StoredStateError(**{**error.facts, "what": place}) from error.__cause__
    else:
        problem = "the file is neither JSON of a memento nor msgpack" if data.strip() else "the file is empty"
        raise refused(place, problem, "name a file that `exop memento export` wrote")
    check_parts(made, place)
    return made


def _fields_in(data: bytes, kind: type[Memento], place: str) -> dict[str, Any]:
    """Return the fields in the JSON of a memento of this class and version."""
    cure = "export it again with `exop memento export`, and edit its fields"
    try:
        found = read_json(data, object_pairs_hook=_unique)
    except ValueError as error:
        raise refused(place, f"the file is no JSON: {error}", cure) from None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise refused(place, f'the file does not say "kind": "{KIND}"', cure)
    if found.get("format") != FORMAT:
        text = f"the file is of the form {found.get('format')!r}, this release reads {FORMAT}"
        raise refused(place, text, "use the release that wrote it")
    if not isinstance(found.get("fields"), dict) or not isinstance(found.get("version"), int):
        raise refused(place, "the file has no fields, or no version", cure)
    # The module may differ, as where a slet is replaced.
    if str(found.get("memento")).rpartition(":")[2] != kind.__qualname__:
        problem = f"it is a {found.get('memento')}, and the slet keeps a {type_of(kind).identity}"
        raise refused(place, problem, "import a memento that was exported from such a slet")
    _check_version(version := found["version"], kind, place)
    if version < kind.__memento_version__:
        problem = f"it is of version {version} of {kind.__qualname__}, the code here keeps {kind.__memento_version__}"
        cure = "export it again from the slet that runs; msgpack of an older version is upgraded (--format msgpack)"
        raise refused(place, problem, cure)
    return dict(found["fields"])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate names, of which JSON would silently take the last."""
    if len(found := dict(pairs)) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice!r} occurs twice")
    return found
