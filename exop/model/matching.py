"""How one term of a filter compares a property: functions compiled from the term's text, typed by the property.

The type of the *property* decides: a number is compared as a number, a truth value as one, text as text. A property
with several values fits when any of them does; a property that is absent, or of another type than the term can be
read as, does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from exop.model.properties import Scalar

#: Decides whether properties fit.
Test: TypeAlias = Callable[[Mapping[str, Any]], bool]
#: Decides whether one plain value fits.
One: TypeAlias = Callable[[Any], bool]

_NOT_A_NUMBER: Final = float("nan")  # equal to nothing and ordered with nothing, which is what a text compares like
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?inf", re.ASCII)
_TRUTHS: Final = {"true": True, "false": False}


def text_of(value: Scalar) -> str:
    """The text that stands for *value* in a filter."""
    if isinstance(value, str):
        return str.__str__(value)  # a member of a StrEnum, too, stands for its text
    if isinstance(value, bool):
        return "true" if value else "false"
    return int.__repr__(value) if isinstance(value, int) else float.__repr__(value)


def number_of(text: str) -> int | float:
    """The number that *text* reads as; `nan` where it reads as none."""
    if not _NUMBER.fullmatch(text):
        return _NOT_A_NUMBER
    try:
        return int(text)
    except ValueError:  # a fraction, or more digits than Python reads
        return float(text)


def index_key(value: Scalar) -> Scalar:
    """The key under which an index keeps *value*; truth values by their text, because `True == 1`."""
    return text_of(value) if value is True or value is False else value


def index_keys(text: str) -> tuple[Scalar, ...]:
    """All keys under which an index may keep a value that equals *text*."""
    keys: list[Scalar] = [text]
    number = number_of(text)
    if number == number:  # nan alone differs from itself
        keys.append(number)
    if text.lower() in _TRUTHS and text.lower() != text:
        keys.append(text.lower())
    return tuple(keys)


def present(name: str) -> Test:
    """Fits when the property is there, whatever its value."""
    return lambda properties: name in properties


def equal(name: str, text: str) -> Test:
    """Fits the same text, number or truth value. Written out, because nearly every term is one."""
    one = _same(text)
    plain = len(index_keys(text)) == 1 and text not in _TRUTHS  # reads as nothing but text

    def test(properties: Mapping[str, Any]) -> bool:
        value = properties.get(name)
        if value.__class__ is str:
            return bool(value == text)
        if value is None:
            return False
        if isinstance(value, (tuple, list)):
            return text in value if plain else any(map(one, value))
        return one(value)

    return test


def approximately(name: str, text: str) -> Test:
    """Fits text that is the same but for case and white space; numbers and truth values that are equal."""
    same, squashed = _same(text), _squash(text)
    return _reader(name, lambda value: _squash(value) == squashed if isinstance(value, str) else same(value))


def ordered(name: str, text: str, holds: Callable[[Any, Any], bool]) -> Test:
    """Fits text or numbers for which *holds* (>= or <=); truth values have no order."""
    number = number_of(text)

    def one(value: Any) -> bool:
        if isinstance(value, str):
            return holds(value, text)
        return isinstance(value, (int, float)) and not isinstance(value, bool) and holds(value, number)

    return _reader(name, one)


def substring(name: str, parts: tuple[str, ...]) -> Test:
    """Fits text that begins with the first part, ends with the last, and has the others between, in order."""
    first, *middle, last = parts
    shortest = len(first) + len(last)

    def one(value: Any) -> bool:
        if not isinstance(value, str) or len(value) < shortest:
            return False
        if not (value.startswith(first) and value.endswith(last)):
            return False
        position, end = len(first), len(value) - len(last)
        for part in middle:  # the earliest place is always the best one: linear, where a pattern would go back
            found = value.find(part, position, end)
            if found < 0:
                return False
            position = found + len(part)
        return True

    return _reader(name, one)


def every(tests: tuple[Test, ...]) -> Test:
    """Fits when every test does. Two, the usual number, are written out."""
    if len(tests) == 2:
        first, second = tests
        return lambda properties: first(properties) and second(properties)

    def test(properties: Mapping[str, Any]) -> bool:
        for each in tests:  # noqa: SIM110 (a generator costs as much as a term)
            if not each(properties):
                return False
        return True

    return test


def some(tests: tuple[Test, ...]) -> Test:
    """Fits when at least one test does."""

    def test(properties: Mapping[str, Any]) -> bool:
        for each in tests:  # noqa: SIM110 (a generator costs as much as a term)
            if each(properties):
                return True
        return False

    return test


def opposite(test: Test) -> Test:
    """Fits when *test* does not."""
    return lambda properties: not test(properties)


def _same(text: str) -> One:
    number, truth = number_of(text), _TRUTHS.get(text.lower())

    def one(value: Any) -> bool:
        if isinstance(value, str):
            return value == text
        return value is truth if isinstance(value, bool) else bool(value == number)

    return one


def _reader(name: str, one: One) -> Test:
    def test(properties: Mapping[str, Any]) -> bool:
        value = properties.get(name)
        return any(map(one, value)) if isinstance(value, (tuple, list)) else one(value)

    return test


def _squash(text: str) -> str:
    return "".join(text.casefold().split())
