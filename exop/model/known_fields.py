"""Which fields the items of a port have, as far as their type tells."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any

from exop.model.fitting import unalias, union_members
from exop.model.ports import PortType, type_name


@dataclass(frozen=True)
class Fields:
    """The fields of a type of items.

    Attributes:
        names: Those there are; empty where the type does not tell.
        shown: The type, for messages.
        owner: The class whose further attributes (properties) can be read too.
        typed: Items are instances of a class with fields, which are attributes.
    """

    names: tuple[str, ...] = ()
    shown: str = "the item"
    owner: type | None = None
    typed: bool = False


def known_fields(carried: PortType | None) -> Fields:
    """Return the known fields of the items of a port."""
    if carried is None:
        return Fields()
    if carried.form == "columns":
        names = tuple(carried.schema.names) if carried.schema is not None else ()
        return Fields(names, "the record batch")
    members = union_members(unalias(carried.item))
    plain = unalias(members[0])
    plain = typing.get_origin(plain) or plain
    if len(members) != 1 or not isinstance(plain, type):
        return Fields()
    if typing.is_typeddict(plain):
        return Fields(tuple(plain.__annotations__), type_name(plain))
    names = _names(plain)
    return Fields(names, type_name(plain), plain, typed=True) if names else Fields()


def lacks(fields: Fields, name: str) -> bool:
    """Whether items surely have no field *name*."""
    if not fields.names or name in fields.names:
        return False
    return fields.owner is None or not hasattr(fields.owner, name)


def _names(plain: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(plain):
        return tuple(field.name for field in dataclasses.fields(plain))
    found = getattr(plain, "__struct_fields__", None) or getattr(plain, "_fields", None)
    return tuple(found) if isinstance(found, tuple) else ()
