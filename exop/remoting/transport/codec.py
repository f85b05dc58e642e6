"""Values, errors and pages to msgpack and back: encoded by msgpack, decoded by msgspec against a declared type.

Bytes from a peer are never decoded without a type: a message of empty maps would take 70 times its size. An error
crosses as the name of a class of `exop.errors` and its facts, never as a class of the peer.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, Any, Final, Generic, TypeVar

import msgpack
import msgspec

from exop import errors
from exop.errors import ExopError, RemotingError
from exop.model.values.depth import AROUND, DEPTH
from exop.model.values.encoding import check_nesting
from exop.safe_repr import clean, notes_of

T = TypeVar("T")
_making = threading.Lock()
_decoder: Final = lru_cache(maxsize=256)(msgspec.msgpack.Decoder)
#: The bounds of an encoded error: characters of its text and of a value, items of a collection, notes, levels.
_LONGEST_TEXT: Final = 8_000
_LONGEST_VALUE: Final = 1_000
_MOST_ITEMS: Final = 200
_MOST_NOTES: Final = 10
_DEEPEST: Final = 4
_NO_TEXT: Final = "the platform failed and gave no reason; see its log"


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of requests that are declared explicitly, as one frozen sub-class per operation.

    >>> class Describe(Request, frozen=True):
    ...     node: str
    """


class NoRequest(Request, frozen=True):
    """The request of an operation without parameters."""


class PageRequest(Request, frozen=True, kw_only=True):
    """The request for the part of a list that follows the key *after*; a sub-class may have further fields."""

    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list, and the key for requesting the next part; the key is `None` after the last part."""

    items: list[T]
    after: str | None = None


class Fault(msgspec.Struct, frozen=True):
    """An error as it crosses."""

    code: str
    text: str
    facts: dict[str, Any] = {}
    notes: list[str] = []


class BadMessage(ValueError):
    """The bytes are no msgpack, or not of the declared type."""


def encode_message(value: object, *, exactly: bool = False) -> bytes:
    """Encode a struct, dataclass or plain value.

    Integers of more than 64 bits and text that is not Unicode, which msgpack cannot hold, are sent as text that shows
    them, unless *exactly* is set: a single setting of that kind must not keep a platform from answering.
    """
    plain = msgspec.to_builtins(value, builtin_types=(bytes, bytearray), enc_hook=os.fspath)
    lenient: dict[str, Any] = {} if exactly else {"default": _digits, "unicode_errors": "backslashreplace"}
    packed: bytes = msgpack.packb(plain, use_bin_type=True, **lenient)
    check_nesting(packed, DEPTH + AROUND)
    return packed


def decode_message(data: bytes, kind: type[T]) -> T:
    """Decode *data* as a *kind*, or raise `BadMessage`."""
    try:
        check_nesting(data, DEPTH + AROUND)
        value: T = decoder(kind).decode(data)
    except (msgspec.MsgspecError, msgpack.UnpackException, RecursionError, ValueError) as problem:
        raise BadMessage(str(problem)) from None
    return value


def encode_error(error: ExopError, largest: int) -> bytes:
    """Encode *error*; facts that would make it larger than *largest* bytes are left out.

    An error of a plugin crosses as the nearest parent that every platform has.
    """
    code = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    facts = {name: _plain_fact(value) for name, value in error.facts.items() if name != "text"}
    notes = [note[:_LONGEST_VALUE] for note in notes_of(error)][:_MOST_NOTES]
    fault = Fault(code, str(error)[:_LONGEST_TEXT], facts, notes)
    packed = encode_message(fault)
    return packed if len(packed) <= largest else encode_message(Fault(fault.code, fault.text))


def decode_error(payload: bytes, largest: int) -> ExopError:
    """Make the error that *payload* describes: of its class if `exop.errors` has it, else a `RemotingError`."""
    if len(payload) > largest:
        return RemotingError(f"the platform failed, and described it in {len(payload)} bytes: too many to read")
    try:
        fault = decode_message(payload, Fault)
    except BadMessage:
        return RemotingError(_NO_TEXT)
    text = clean(fault.text) or _NO_TEXT
    if not (isinstance(known := getattr(errors, fault.code, None), type) and issubclass(known, ExopError)):
        known = RemotingError
    try:
        # Facts become attributes: a fact of a peer must not replace an attribute that Python itself uses.
        error = known(text=text, **{name: value for name, value in fault.facts.items() if not name.startswith("__")})
    except (TypeError, KeyError, ValueError):
        # Another release gives this class other facts; the text says the same.
        error = RemotingError(text)
    for note in fault.notes[:_MOST_NOTES]:
        error.add_note(clean(note))
    return error


def page(items: Iterable[T], request: PageRequest, key: Callable[[T], str]) -> Page[T]:
    """Cut the page that *request* asks for.

    Pages are determined by key and not by position, so items that come or go between two calls hide no others.
    """
    found = heapq.nsmallest(request.limit + 1, (item for item in items if key(item) > request.after), key=key)
    return Page(found) if len(found) <= request.limit else Page(found[:-1], key(found[-2]))


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of a type. Two threads that make decoders of one class at the same time crash msgspec."""
    with _making:
        return _decoder(kind)


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python does not write as many digits in decimal
        return hex(value)


def _plain_fact(value: object, depth: int = 0) -> Any:
    """The fact as a plain value; a value without a plain form is sent as its text."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEEPEST:
        return [_plain_fact(item, depth + 1) for item in list(value)[:_MOST_ITEMS]]
    if isinstance(value, dict) and depth < _DEEPEST:
        return {str(key): _plain_fact(item, depth + 1) for key, item in list(value.items())[:_MOST_ITEMS]}
    return str(value)[:_LONGEST_VALUE]
