"""Values to msgpack and back: packed by msgpack, unpacked by msgspec against a declared type.

What comes from a peer is never unpacked without a type: a message of empty maps would take 70 times its size.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from pathlib import PurePath
from typing import Any, TypeVar, cast

import msgpack
import msgspec

from exop.model.values.depth import AROUND, DEPTH
from exop.model.values.encoding import check_nesting

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of an operation, where its parameters do not say it all: one frozen sub-class per operation.

    >>> class Describe(Request, frozen=True):
    ...     node: str
    """


class NoRequest(Request, frozen=True):
    """The request of an operation without parameters."""


class BadMessage(ValueError):
    """The bytes are no msgpack, or not of the declared type."""


def pack(value: object, *, exactly: bool = False) -> bytes:
    """Pack a struct, dataclass or plain value.

    Integers of more than 64 bits and text that is not Unicode, which msgpack cannot hold, go as text that shows them,
    unless *exactly* this value is meant: a single setting of that kind must not keep a platform from answering.

    Raises:
        OverflowError, UnicodeError: msgpack cannot hold what is meant *exactly*.
        TypeError, RecursionError: something in *value* has no plain form.
        TooDeep: it is nested too deeply.
    """
    plain = msgspec.to_builtins(value, builtin_types=(bytes, bytearray), enc_hook=_plain)
    shown: dict[str, Any] = {} if exactly else {"default": _large, "unicode_errors": "backslashreplace"}
    packed: bytes = msgpack.packb(plain, use_bin_type=True, **shown)
    check_nesting(packed, DEPTH + AROUND)
    return packed


def unpack(data: bytes, kind: type[T]) -> T:
    """Unpack *data* as a *kind*.

    Raises:
        BadMessage: it is something else, has more bytes, or is nested too deeply.
    """
    try:
        check_nesting(data, DEPTH + AROUND)
        value: T = _decoder(cast(Hashable, kind)).decode(data)
    except (msgspec.MsgspecError, msgpack.UnpackException, RecursionError, ValueError) as problem:
        raise BadMessage(str(problem)) from None
    return value


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def _plain(value: object) -> object:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no plain form")


def _large(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python does not write as many digits in decimal
        return hex(value)
