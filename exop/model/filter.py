r"""Filters over service properties: LDAP-style text (RFC 4515) as values that match, print and can be built from code.

    >>> wanted = parse("(&(role=pi)(rank>=3)(!(name=test-*)))")
    >>> wanted.match({"role": "pi", "rank": 5, "name": "average"})
    True
    >>> str(where({"role": "pi", "node": "a(b)"}))
    '(&(role=pi)(node=a\\28b\\29))'

Names are compared exactly. The type of the *property* determines how the text of a filter is compared: as a number, as
a boolean, or as text. A property with several values matches if any of them does; one that is absent, or of a type that
the text cannot be parsed as, does not. `(&)` matches all, and `(|)` nothing (RFC 4526). There is no `:=`.
"""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final, NoReturn, TypeAlias

from exop.errors import FilterSyntaxError
from exop.model.properties import NAN, Scalar, number_of, text_of

#: Whether properties match.
Test: TypeAlias = Callable[[Mapping[str, Any]], bool]
#: Alternatives, as (property, index key); a matching service has at least one.
Term: TypeAlias = tuple[tuple[str, Scalar], ...]

#: The pattern of property names.
NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.;-]*"
_NAME: Final = re.compile(NAME)
_SPECIAL: Final = re.compile(r"[\\*()\x00]")
_OPEN, _CLOSE = re.compile(r"\s*\(\s*"), re.compile(r"\s*\)\s*")
_CONNECTIVE, _SIGN = re.compile(r"[&|]\s*|!"), re.compile(r"[~<>]?=")
_VALUE: Final = re.compile(r"([^()\\\x00]|\\[0-9A-Fa-f]{2})+")
_ESCAPED: Final = re.compile(r"(?:\\[0-9A-Fa-f]{2})+")
#: Maximum nesting: untrusted text must not overflow the stack.
DEEPEST: Final = 64
_TRUTHS: Final = {"true": True, "false": False}


class Filter(ABC):
    """A condition on properties: immutable, comparable, thread-safe. Filters combine with `&`, `|` and `~`."""

    def match(self, properties: Mapping[str, Any]) -> bool:
        """Whether *properties* match."""
        return self.test(properties)

    @cached_property
    def test(self) -> Test:
        """The filter as one function, compiled at first use, which the registry calls."""
        return self._compile()

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Necessary equalities, which the registry looks up in its index."""
        return self._terms()

    @abstractmethod
    def _compile(self) -> Test:
        """Create the function of `test`."""

    def _terms(self) -> tuple[Term, ...]:
        return ()

    def __and__(self, other: Filter) -> And:
        return And((self, other))

    def __or__(self, other: Filter) -> Or:
        return Or((self, other))

    def __invert__(self) -> Not:
        return Not(self)


@dataclass(frozen=True)
class _Joined(Filter):
    parts: tuple[Filter, ...]
    sign: ClassVar[str]

    def __str__(self) -> str:
        return f"({self.sign}{''.join(map(str, self.parts))})"

    def _compile(self) -> Test:
        tests, ends = tuple(part.test for part in self.parts), self.sign == "|"

        def test(properties: Mapping[str, Any]) -> bool:
            for each in tests:
                if each(properties) is ends:
                    return ends
            return not ends

        return test


class And(_Joined):
    """Matches if every part does: `(&(role=pi)(node=jams))`."""

    sign = "&"

    def _terms(self) -> tuple[Term, ...]:
        return tuple(term for part in self.parts for term in part.terms)


class Or(_Joined):
    """Matches if at least one part does: `(|(role=alpha)(role=omega))`."""

    sign = "|"

    def _terms(self) -> tuple[Term, ...]:
        known = all(part.terms for part in self.parts)
        return (tuple(one for part in self.parts for one in part.terms[0]),) if known else ()


@dataclass(frozen=True)
class Not(Filter):
    """Matches if its part does not: `(!(state=active))`; so also if the property is absent."""

    part: Filter

    def __str__(self) -> str:
        return f"(!{self.part})"

    def _compile(self) -> Test:
        test = self.part.test
        return lambda properties: not test(properties)


@dataclass(frozen=True)
class _Named(Filter):
    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            problem = f"{self.name!r} cannot name a property in a filter: letters, digits and _ . ; - can"
            raise FilterSyntaxError(filter=f"({self.name}=…)", position=1, problem=problem)


@dataclass(frozen=True)
class _Compared(_Named):
    """A property and the text it is compared with: the base of all comparisons."""

    value: str
    sign: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.value, str):
            problem = f"{self.name} is compared with {self.value!r}: a filter holds text; use where() for other values"
            raise FilterSyntaxError(filter=f"({self.name}={self.value})", position=len(self.name) + 2, problem=problem)

    def __str__(self) -> str:
        return f"({self.name}{self.sign}{escape(self.value)})"


class Equal(_Compared):
    """Equal text, number or boolean: `(node=jams)`, `(capacity=100)`."""

    sign = "="

    def _compile(self) -> Test:
        # Optimised: nearly every term is an equality.
        name, text, one = self.name, self.value, _same(self.value)
        plain = number_of(text) is NAN and text.lower() not in _TRUTHS

        def test(properties: Mapping[str, Any]) -> bool:
            if (value := properties.get(name)).__class__ is str:
                return bool(value == text)
            if value is None:
                return False
            if isinstance(value, (tuple, list)):
                return text in value if plain else any(map(one, value))
            return one(value)

        return test

    def _terms(self) -> tuple[Term, ...]:
        # All index keys of values that equal the text.
        keys: list[Scalar] = [self.value]
        number, lower = number_of(self.value), self.value.lower()
        keys += [] if number is NAN else [number]
        keys += [lower] if lower in _TRUTHS and lower != self.value else []
        return (tuple((self.name, key) for key in keys),)


class Approx(_Compared):
    """Equal except for case and white space: `(node~=Traffic Jams)`."""

    sign = "~="

    def _compile(self) -> Test:
        def squash(text: str) -> str:
            return "".join(text.casefold().split())

        same, squashed = _same(self.value), squash(self.value)
        return _any_value(self.name, lambda one: squash(one) == squashed if isinstance(one, str) else same(one))


class _Ordered(_Compared):
    holds: ClassVar[Callable[[Any, Any], bool]]

    def _compile(self) -> Test:
        text, number, holds = self.value, number_of(self.value), type(self).holds

        def one(value: Any) -> bool:
            if isinstance(value, str):
                return holds(value, text)
            return isinstance(value, (int, float)) and not isinstance(value, bool) and holds(value, number)

        return _any_value(self.name, one)


class AtLeast(_Ordered):
    """Greater or equal: `(service.ranking>=5)`. Booleans have no order."""

    sign, holds = ">=", operator.ge


class AtMost(_Ordered):
    """Less or equal: `(capacity<=1000)`."""

    sign, holds = "<=", operator.le


class Present(_Named):
    """The property is present: `(connected-to=*)`."""

    def __str__(self) -> str:
        return f"({self.name}=*)"

    def _compile(self) -> Test:
        name = self.name
        return lambda properties: name in properties


@dataclass(frozen=True)
class Substring(_Named):
    """Text with gaps: `(name=seg-*-out)` is `Substring("name", ("seg-", "-out"))`.

    `parts` are the texts between the stars; the first and last are empty if the value begins or ends with a star.
    """

    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.parts) < 2 or not any(self.parts) or not all(self.parts[1:-1]):
            problem = f"{self.parts!r} are no texts around stars: two or more, not all empty, none empty between stars"
            raise FilterSyntaxError(filter=f"({self.name}=…)", position=len(self.name) + 2, problem=problem)

    def __str__(self) -> str:
        return f"({self.name}={'*'.join(map(escape, self.parts))})"

    def _compile(self) -> Test:
        first, *middle, last = self.parts

        def one(value: Any) -> bool:
            if not (isinstance(value, str) and value.startswith(first) and value.endswith(last)):
                return False
            position, end = len(first), len(value) - len(last)
            for part in middle:  # the earliest match suffices: linear, without the backtracking of a pattern
                if (found := value.find(part, position, end)) < 0:
                    return False
                position = found + len(part)
            return position <= end

        return _any_value(self.name, one)


#: Matches everything.
ANYTHING: Final = And(())


def as_filter(given: Filter | str | None) -> Filter:
    """Accept a filter, its text, or `None`, which matches everything."""
    return parse(given) if isinstance(given, str) else ANYTHING if given is None else given


def where(properties: Mapping[str, Scalar]) -> Filter:
    """A filter for all of these *properties*: `where({"kind": "slet", "node": "jams"})`."""
    parts = tuple(Equal(name, text_of(value)) for name, value in properties.items())
    return parts[0] if len(parts) == 1 else And(parts)


def escape(value: str) -> str:
    r"""Escape a value for use in a filter: `a*b` becomes `a\2ab`."""
    return _SPECIAL.sub(lambda found: f"\\{ord(found[0]):02x}", value)


def _same(text: str) -> Callable[[Any], bool]:
    number, truth = number_of(text), _TRUTHS.get(text.lower())

    def one(value: Any) -> bool:
        if isinstance(value, str):
            return value == text
        return value is truth if isinstance(value, bool) else bool(value == number)

    return one


def _any_value(name: str, one: Callable[[Any], bool]) -> Test:
    def test(properties: Mapping[str, Any]) -> bool:
        value = properties.get(name)
        return any(map(one, value)) if isinstance(value, (tuple, list)) else one(value)

    return test


@lru_cache(maxsize=4096)
def parse(text: str) -> Filter:
    """Parse a filter; equal texts return the same object."""
    reader = _Parser(text)
    read = reader.condition()
    if reader.at < len(text):
        reader.expect("the end")
    return read


class _Parser:
    """Parses a text from left to right. White space within a value belongs to the value."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def condition(self, depth: int = 1) -> Filter:
        """Parse a condition in parentheses."""
        if depth > DEEPEST:
            self.fail(self.at, f"a filter nests at most {DEEPEST} deep")
        if self._take(_OPEN) is None:
            self.expect("`(`")
        if (sign := self._take(_CONNECTIVE)) is None:
            read = self._comparison()
        elif sign[0] == "!":
            read = Not(self.condition(depth + 1))
        else:
            parts = []
            while _OPEN.match(self.text, self.at):
                parts.append(self.condition(depth + 1))
            read = (And if sign[0] == "&" else Or)(tuple(parts))
        if self._take(_CLOSE) is None:
            before = ["`(`"] if isinstance(read, _Joined) else []
            self.expect(*before, "`)`", *(["a value"] if getattr(read, "value", None) == "" else []))
        return read

    def _comparison(self) -> Filter:
        name = self._take(_NAME) or self.expect("&", "|", "!", "the name of a property")
        sign = self._take(_SIGN) or self.expect("one of = ~= >= <=")
        start, value = self.at, self._take(_VALUE) or ""
        star = value.find("*")
        if sign != "=":
            if star >= 0:
                self.fail(start + star, f"{sign} compares with one value: write a star as \\2a")
            kind = {one.sign: one for one in (Approx, AtLeast, AtMost)}[sign]
            return kind(name, self._unescaped(value, start))
        if star < 0:
            return Equal(name, self._unescaped(value, start))
        first, *middle, last = (self._unescaped(part, start) for part in value.split("*"))
        parts = (first, *filter(None, middle), last)
        return Substring(name, parts) if any(parts) else Present(name)

    def _unescaped(self, value: str, start: int) -> str:
        r"""Decode escaped UTF-8 bytes: `\c3\a9` is one character."""
        try:
            return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("\\", "")).decode(), value)
        except UnicodeDecodeError:
            self.fail(start + value.index("\\"), "these escapes are not the UTF-8 bytes of a character")

    def _take(self, pattern: re.Pattern[str]) -> str | None:
        if found := pattern.match(self.text, self.at):
            self.at = found.end()
        return found and found[0]

    def expect(self, *wanted: str) -> NoReturn:
        """Fail with what was expected at the current position."""
        here = self.text[self.at : self.at + 1]
        problem = f"expected {' or '.join(wanted)}, found {repr(here) if here else 'the end of the text'}"
        if here and here in "(\\" and re.search(r"=[^()]*$", self.text[: self.at]):
            problem += r"; in a value, write ( ) * \ as \28 \29 \2a \5c"
        self.fail(self.at, problem)

    def fail(self, position: int, problem: str) -> NoReturn:
        raise FilterSyntaxError(filter=self.text, position=position, problem=f"invalid filter: {problem}")
