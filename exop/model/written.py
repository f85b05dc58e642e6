"""The value of a setting as a topology file writes it: the other half of `convert`."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

from exop.errors import MeshError
from exop.model.depth import DEPTH, deep_place


def written(place: str, value: Any) -> Any:
    """Give *value* a form that TOML has, from which `convert` makes the same value again.

    Raises:
        MeshError: it has none, or is nested too deeply; *place* says where it stands.
    """
    deep = deep_place(value)
    if deep is not None:
        raise MeshError(
            f"{place} is nested more than {DEPTH} levels deep, or refers to itself, at {deep}; make it flatter"
        )
    return _written(place, value)


def _written(place: str, value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _written(place, value.value)
    if isinstance(value, (bool, datetime, date, time)):
        return value
    for plain in (int, float):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, (str, PurePath, Decimal, UUID)):
        return _text(place, str(value))
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _table(
            place, {name: one for name, one, default in _fields(value) if one is not None or default is not None}
        )
    if isinstance(value, Mapping):
        return _table(place, value)
    if hasattr(value, "_asdict"):
        return _table(place, value._asdict())
    if isinstance(value, Set):
        return [_written(place, one) for one in sorted(value, key=repr)]
    if isinstance(value, (list, tuple)):
        return [_written(place, one) for one in value]
    raise MeshError(
        f"{place} is {value!r:.80}, which a topology file cannot hold; "
        f"use numbers, text, dates, lists, tables and dataclasses for settings that are stored"
    )


def _text(place: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MeshError(
            f"{place} is {text!r:.80}, which is not Unicode, and a topology file cannot hold it; "
            f"use other text, or give the file or folder another name"
        ) from None
    return text


def _table(place: str, value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(_written(place, key)): _written(f"{place}.{key}", one) for key, one in value.items()}


def _fields(value: Any) -> list[tuple[str, Any, Any]]:
    """Name, value and default of the fields of a dataclass that its maker takes."""
    return [
        (field.name, getattr(value, field.name), field.default) for field in dataclasses.fields(value) if field.init
    ]
