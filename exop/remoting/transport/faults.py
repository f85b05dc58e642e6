"""Errors across the border: the name of a class of `exop.errors` and its facts, never a class of the peer."""

from __future__ import annotations

from typing import Any

import msgspec

from exop import errors
from exop.errors import ExopError, RemotingError
from exop.remoting.transport.codec import BadMessage, pack, unpack
from exop.safe_repr import notes_of

_LONGEST_TEXT = 8_000
_LONGEST_VALUE = 1_000
_MOST_ITEMS = 200
_MOST_NOTES = 10
_DEEPEST = 4
_SILENT = "the platform failed without saying why; its log tells more"


class Fault(msgspec.Struct, frozen=True):
    """An error as it crosses."""

    code: str
    text: str
    facts: dict[str, Any] = {}
    notes: list[str] = []


def describe(error: ExopError, largest: int) -> bytes:
    """Pack *error*; facts that would make it larger than *largest* bytes stay behind."""
    facts = {name: _plain(value) for name, value in error.facts.items() if name != "text"}
    notes = [note[:_LONGEST_VALUE] for note in notes_of(error)][:_MOST_NOTES]
    fault = Fault(_code(error), str(error)[:_LONGEST_TEXT], facts, notes)
    packed = pack(fault)
    return packed if len(packed) <= largest else pack(Fault(fault.code, fault.text))


def rebuild(payload: bytes, largest: int) -> ExopError:
    """Make the error that *payload* describes: of its class when `exop.errors` has it, else a `RemotingError`."""
    if len(payload) > largest:
        return RemotingError(f"the platform failed, and described it in {len(payload)} bytes: too many to read")
    try:
        fault = unpack(payload, Fault)
    except BadMessage:
        return RemotingError(_SILENT)
    text = _printable(fault.text) or _SILENT
    known = getattr(errors, fault.code, None)
    if not (isinstance(known, type) and issubclass(known, ExopError)):
        known = RemotingError
    try:
        # Facts become attributes: none of a peer stands for one that Python itself uses.
        error = known(text=text, **{name: value for name, value in fault.facts.items() if not name.startswith("__")})
    except (TypeError, KeyError, ValueError):
        # Another release gives this class other facts; the text says the same.
        error = RemotingError(text)
    for note in fault.notes[:_MOST_NOTES]:
        error.add_note(_printable(note))
    return error


def _code(error: ExopError) -> str:
    """The nearest class that every platform has: an error of a plugin crosses as its parent."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)


def _printable(text: str) -> str:
    """The text without what would steer a terminal."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def _plain(value: object, depth: int = 0) -> Any:
    """The fact as a plain value; what has no plain form goes as its text."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEEPEST:
        return [_plain(item, depth + 1) for item in list(value)[:_MOST_ITEMS]]
    if isinstance(value, dict) and depth < _DEEPEST:
        return {str(key): _plain(item, depth + 1) for key, item in list(value.items())[:_MOST_ITEMS]}
    return str(value)[:_LONGEST_VALUE]
