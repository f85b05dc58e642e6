"""The grammar of filter text (RFC 4515) and what reads it. Imported only when a text has to be read."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from exop.errors import FilterSyntaxError
from exop.model.filter import NAME, And, Approx, AtLeast, AtMost, Comparison, Equal, Filter, Not, Or, Present, Substring

# White space may stand around parentheses and after an operator; inside a value it belongs to the value, so it is part
# of the terminals here instead of being ignored everywhere.
_GRAMMAR: Final = rf"""
    ?start: condition
    ?condition: _OPEN (every | some | opposite | term) _CLOSE
    every: _AND condition*
    some: _OR condition*
    opposite: _NOT condition
    term: NAME OPERATOR VALUE?

    _OPEN: /\s*\(\s*/
    _CLOSE: /\s*\)\s*/
    _AND: /&\s*/
    _OR: /\|\s*/
    _NOT: /!\s*/
    NAME: /{NAME}/
    OPERATOR: "=" | "~=" | ">=" | "<="
    VALUE: /([^()\\\x00]|\\[0-9A-Fa-f]{{2}})+/
"""

#: How deep a filter may nest; text from outside must not exhaust the interpreter's stack.
DEEPEST: Final = 64

_ESCAPED: Final = re.compile(r"(?:\\[0-9A-Fa-f]{2})+")
_IN_VALUE: Final = re.compile(r"=[^()]*$")
_COMPARISONS: Final[dict[str, Callable[[str, str], Comparison]]] = {"~=": Approx, ">=": AtLeast, "<=": AtMost}


def read(text: str) -> Filter:
    """Read a filter from its text.

    Raises:
        FilterSyntaxError: *text* is no filter; the error points at the place.
    """
    _check_depth(text)
    try:
        return _parser().parse(text)  # type: ignore[return-value]
    except UnexpectedInput as error:
        raise _explained(text, error) from None
    except _BadValue as error:
        raise _failure(text, error.position, error.problem) from None


class _BadValue(Exception):
    """A value that no comparison can have."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(problem)
        self.position = position
        self.problem = problem


class _Builder(Transformer[Token, Filter]):
    """Makes a node of every rule while the text is read."""

    def every(self, parts: list[Any]) -> Filter:
        return And(tuple(parts))

    def some(self, parts: list[Any]) -> Filter:
        return Or(tuple(parts))

    def opposite(self, parts: list[Any]) -> Filter:
        return Not(parts[0])

    def term(self, tokens: list[Token]) -> Filter:
        name, operator = str(tokens[0]), str(tokens[1])
        start = tokens[1].end_pos or 0
        value = str(tokens[2]) if len(tokens) > 2 else ""
        if operator == "=":
            return _equality(name, value, start)
        if "*" in value:
            raise _BadValue(start + value.index("*"), f"{operator} compares with one value: write a star as \\2a")
        return _COMPARISONS[operator](name, _unescape(value, start))


def _equality(name: str, value: str, start: int) -> Filter:
    if "*" not in value:
        return Equal(name, _unescape(value, start))
    first, *middle, last = (_unescape(part, start) for part in value.split("*"))
    parts = (first, *filter(None, middle), last)
    return Substring(name, parts) if any(parts) else Present(name)


def _unescape(value: str, start: int) -> str:
    r"""Turn `\c3\a9` into the letter of these bytes in UTF-8."""
    if "\\" not in value:
        return value
    try:
        return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("\\", "")).decode(), value)
    except UnicodeDecodeError:
        raise _BadValue(start + value.index("\\"), "these escapes are not the UTF-8 bytes of a character") from None


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", transformer=_Builder())


def _check_depth(text: str) -> None:
    depth = 0
    for found in re.finditer(r"[()]", text):
        depth += 1 if found[0] == "(" else -1
        if depth > DEEPEST:
            raise _failure(text, found.start(), f"a filter nests at most {DEEPEST} deep")


_WANTED: Final = {
    "_OPEN": "a parenthesis (",
    "_CLOSE": "a parenthesis )",
    "_AND": "&",
    "_OR": "|",
    "_NOT": "!",
    "NAME": "the name of a property",
    "OPERATOR": "one of = ~= >= <=",
    "VALUE": "a value",
    "$END": "the end",
}


def _explained(text: str, error: UnexpectedInput) -> FilterSyntaxError:
    """Say what was expected at the place where reading stopped."""
    wanted: set[str] = set()
    position = error.pos_in_stream or 0
    if isinstance(error, UnexpectedToken):
        wanted = set(error.accepts or error.expected)
        if error.token.type == "$END":
            position = len(text)
    elif isinstance(error, UnexpectedCharacters):
        wanted = set(error.allowed)
    names = [words for terminal, words in _WANTED.items() if terminal in wanted]
    found = f"{text[position]!r}" if position < len(text) else "the end"
    problem = f"expected {' or '.join(names)}, found {found}"
    if _IN_VALUE.search(text[:position]) and text[position : position + 1] in ("(", "\\"):
        problem += r"; in a value, write ( ) * \ as \28 \29 \2a \5c"
    return _failure(text, position, problem)


def _failure(text: str, position: int, problem: str) -> FilterSyntaxError:
    return FilterSyntaxError(filter=text, position=position, problem=f"no filter: {problem}")
