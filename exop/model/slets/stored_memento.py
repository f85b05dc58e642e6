"""A memento as it is stored: its class, version and fields before its content; read back by the class there is now."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from weakref import WeakKeyDictionary

from exop.errors import NotStorable, StoredStateError
from exop.model.slets.memento import Memento, check_fields, refused, upgraded
from exop.model.types.description import type_of
from exop.model.types.instances import filled
from exop.model.values.class_names import Declared, class_named, name_of
from exop.model.values.decoding import decode
from exop.model.values.encoding import encode

#: The form of what is written here.
FORMAT: Final = 1
#: By class: its version, what stands before the content of one of that version, and the names of the fields.
_HEADS: Final[WeakKeyDictionary[type[Memento], tuple[int, bytes, Sequence[str]]]] = WeakKeyDictionary()
#: How bytes of any length begin in msgpack: this, and their length in four bytes.
_BYTES: Final = b"\xc6"


@dataclasses.dataclass(frozen=True)
class StoredMemento:
    """The facts of a stored memento before its content is read.

    `fields` are the names of the fields with their types, as they were written in the class.
    """

    kind: str
    version: int
    fields: dict[str, str]
    body: bytes


def pack(memento: Memento, place: str) -> bytes:
    """Write a memento; *place* is named in errors.

    Raises:
        NotStorable: a field holds what cannot be stored.
    """
    kind = type(memento)
    try:
        version, head, names = _HEADS.get(kind, (None, b"", ()))
        if version != kind.__memento_version__:
            version, names = kind.__memento_version__, tuple(type_of(kind).fields)
            head = encode([FORMAT, name_of(kind), version, type_of(kind).shape, b""]).removesuffix(b"\xc4\x00")
            _HEADS[kind] = version, head, names
        body = encode({name: getattr(memento, name) for name in names})
        return b"".join((head, _BYTES, len(body).to_bytes(4, "big"), body))
    except NotStorable as problem:
        raise NotStorable(**{**problem.facts, "place": place}) from problem


def header(data: bytes, place: str) -> StoredMemento:
    """Read the header of a stored memento.

    Raises:
        StoredStateError: it is damaged, or of another release.
    """
    found = decode(data, declared=Declared())
    if not isinstance(found, list) or not found or not isinstance(found[0], int):
        raise refused(place, "it is no memento", "take an older copy")
    if found[0] != FORMAT:
        problem = f"it is written in the form {found[0]}, this release reads {FORMAT}"
        raise refused(place, problem, "use the release that wrote it")
    try:
        kind, version, fields, body = found[1:]
    except ValueError:
        kind, version, fields, body = None, None, None, None
    wanted = ((kind, str), (version, int), (fields, dict), (body, bytes))
    if not all(isinstance(one, sort) for one, sort in wanted):
        raise refused(place, "its parts are none of a memento", "take an older copy")
    return StoredMemento(kind, version, fields, body)


def declared_by(kind: type[Memento]) -> Declared:
    """The classes that a memento of this class may hold, where it comes from an untrusted source."""
    return Declared(kind, home=kind.__module__)


def unpack(data: bytes, kind: type[Memento], place: str, *, declared: Declared | None = None) -> Memento:
    """Read a memento as an instance of *kind*, through its `upgrade` where it is newer than what was stored.

    *declared* is given where it may come from an untrusted source: `declared_by(kind)`.

    Raises:
        StoredStateError: it is damaged, of a newer version, of another class, or its fields do not fit.
    """
    stored = header(data, place)
    fields = decode(stored.body, declared=declared)
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise refused(place, "it holds no fields", "take an older copy")
    same = stored.kind == name_of(kind)
    if same and stored.version > kind.__memento_version__:
        known = kind.__memento_version__
        problem = f"it is of version {stored.version} of {kind.__qualname__}, the code here knows {known}"
        raise refused(place, problem, "install the newer code")
    if not same or stored.version < kind.__memento_version__:
        return _upgraded(stored, fields, kind, place, declared)
    return _filled(stored, fields, kind, place)


def _upgraded(
    stored: StoredMemento, fields: dict[str, Any], kind: type[Memento], place: str, declared: Declared | None
) -> Memento:
    """Let the class take over the older one; without an `upgrade` it takes the fields that it still has."""
    if callable(getattr(kind, "upgrade", None)):
        cure = f"mend {kind.__qualname__}.upgrade, or use the code that wrote it"
        refuse = partial(refused, place, cure=cure)
        return upgraded(kind, _old(stored, fields, declared), refuse)
    if stored.kind.rpartition(":")[2] != kind.__qualname__:
        problem = f"it is a {stored.kind.rpartition(':')[2]}, and {kind.__qualname__} has no upgrade for it"
        cure = "give the memento a `@classmethod def upgrade(cls, old)`"
        raise refused(place, problem, cure)
    return _filled(stored, fields, kind, place)


def _old(stored: StoredMemento, fields: dict[str, Any], declared: Declared | None) -> Any:
    """The old memento: an instance of its class where that is still there, otherwise its fields alone."""
    try:
        kind = class_named(stored.kind, "memento", lambda one: issubclass(one, Memento), declared)
        if type_of(kind).shape == stored.fields:
            return filled(kind, fields)
    except StoredStateError:
        return SimpleNamespace(**fields)
    return SimpleNamespace(**fields)


def _filled(stored: StoredMemento, fields: dict[str, Any], kind: type[Memento], place: str) -> Memento:
    # The annotations are compared with the values only where the class was edited: they did not keep the running slet
    # from anything, and must not keep it from coming back.
    if stored.fields != type_of(kind).shape:
        check_fields(fields, kind, place)
    try:
        made: Memento = filled(kind, fields)
    except StoredStateError as problem:
        raise StoredStateError(**{**problem.facts, "what": place}) from None
    return made
