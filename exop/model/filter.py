r"""Filters over service properties: LDAP-style text (RFC 4515) as values that match, print and can be built from code.

    >>> wanted = parse("(&(role=pi)(rank>=3)(!(name=test-*)))")
    >>> wanted.match({"role": "pi", "rank": 5, "name": "average"})
    True
    >>> str(where({"role": "pi", "node": "a(b)"}))
    '(&(role=pi)(node=a\\28b\\29))'

Names are compared exactly. In text every value is text; the type of the property decides how it is compared (see
`matching`). `(&)` fits everything and `(|)` nothing (RFC 4526). Extensible matches (`:=`) are not supported.
"""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final, TypeAlias

from exop.errors import FilterSyntaxError
from exop.model import matching
from exop.model.matching import Test
from exop.model.properties import Scalar

#: Alternatives, of which a service that fits has at least one, as (property, index key).
Term: TypeAlias = tuple[tuple[str, Scalar], ...]

#: What a property may be called in a filter.
NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.;-]*"
_NAME: Final = re.compile(NAME)
_SPECIAL: Final = re.compile(r"[\\*()\x00]")


class Filter(ABC):
    """A condition on properties: immutable, comparable, safe to share.

    Filters combine with `&`, `|` and `~`.
    """

    def match(self, properties: Mapping[str, Any]) -> bool:
        """Tell whether *properties* fit."""
        return self.test(properties)

    @cached_property
    def test(self) -> Test:
        """The filter as one function, compiled at first use: what a registry calls."""
        return self._compile()

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The equalities without which nothing fits: a registry looks one of them up in its index.

        Necessary, not sufficient: what the index gives is still matched.
        """
        return self._terms()

    @abstractmethod
    def _compile(self) -> Test:
        """Build the function of `test`."""

    def _terms(self) -> tuple[Term, ...]:
        return ()

    def __and__(self, other: Filter) -> And:
        return And((self, other))

    def __or__(self, other: Filter) -> Or:
        return Or((self, other))

    def __invert__(self) -> Not:
        return Not(self)


@dataclass(frozen=True)
class And(Filter):
    """Fits when every part does: `(&(role=pi)(node=jams))`."""

    parts: tuple[Filter, ...]

    def __str__(self) -> str:
        return f"(&{''.join(map(str, self.parts))})"

    def _compile(self) -> Test:
        return matching.every(tuple(part.test for part in self.parts))

    def _terms(self) -> tuple[Term, ...]:
        return tuple(term for part in self.parts for term in part.terms)


@dataclass(frozen=True)
class Or(Filter):
    """Fits when at least one part does: `(|(role=alpha)(role=omega))`."""

    parts: tuple[Filter, ...]

    def __str__(self) -> str:
        return f"(|{''.join(map(str, self.parts))})"

    def _compile(self) -> Test:
        return matching.some(tuple(part.test for part in self.parts))

    def _terms(self) -> tuple[Term, ...]:
        if not all(part.terms for part in self.parts):
            return ()
        return (tuple(alternative for part in self.parts for alternative in part.terms[0]),)


@dataclass(frozen=True)
class Not(Filter):
    """Fits when its part does not: `(!(state=active))`; so also where the property is absent."""

    part: Filter

    def __str__(self) -> str:
        return f"(!{self.part})"

    def _compile(self) -> Test:
        return matching.opposite(self.part.test)


@dataclass(frozen=True)
class Comparison(Filter):
    """A property and the text it is compared with; the base of the comparisons."""

    name: str
    value: str
    sign: ClassVar[str]

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not isinstance(self.value, str):
            problem = f"{self.name} is compared with {self.value!r}: a filter holds text; use where() for other values"
            raise FilterSyntaxError(filter=f"({self.name}={self.value})", position=len(self.name) + 2, problem=problem)

    def __str__(self) -> str:
        return f"({self.name}{self.sign}{escape(self.value)})"


class Equal(Comparison):
    """The same text, number or truth value: `(node=jams)`, `(capacity=100)`."""

    sign = "="

    def _compile(self) -> Test:
        return matching.equal(self.name, self.value)

    def _terms(self) -> tuple[Term, ...]:
        return (tuple((self.name, key) for key in matching.index_keys(self.value)),)


class Approx(Comparison):
    """The same but for case and white space: `(node~=Traffic Jams)`."""

    sign = "~="

    def _compile(self) -> Test:
        return matching.approximately(self.name, self.value)


class AtLeast(Comparison):
    """The same or more: `(service.ranking>=5)`."""

    sign = ">="

    def _compile(self) -> Test:
        return matching.ordered(self.name, self.value, operator.ge)


class AtMost(Comparison):
    """The same or less: `(capacity<=1000)`."""

    sign = "<="

    def _compile(self) -> Test:
        return matching.ordered(self.name, self.value, operator.le)


@dataclass(frozen=True)
class Present(Filter):
    """The property is there: `(connected-to=*)`."""

    name: str

    def __post_init__(self) -> None:
        _check_name(self.name)

    def __str__(self) -> str:
        return f"({self.name}=*)"

    def _compile(self) -> Test:
        return matching.present(self.name)


@dataclass(frozen=True)
class Substring(Filter):
    """Text with gaps: `(name=seg-*-out)` is `Substring("name", ("seg-", "-out"))`.

    `parts` is the text between the stars; the first and the last are empty where the value begins or ends with one.
    """

    name: str
    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_name(self.name)
        if len(self.parts) < 2 or not any(self.parts) or not all(self.parts[1:-1]):
            problem = f"{self.parts!r} do not stand around stars: two or more, not all empty, none empty between stars"
            raise FilterSyntaxError(filter=f"({self.name}=…)", position=len(self.name) + 2, problem=problem)

    def __str__(self) -> str:
        return f"({self.name}={'*'.join(map(escape, self.parts))})"

    def _compile(self) -> Test:
        return matching.substring(self.name, self.parts)


#: Fits everything.
ANYTHING: Final = And(())


@lru_cache(maxsize=4096)
def parse(text: str) -> Filter:
    """Read a filter from its text; the same text gives the same object again.

    Raises:
        FilterSyntaxError: *text* is no filter; the error points at the place.
    """
    # lark is only loaded for a filter that comes as text: a platform that builds its filters by where() starts without
    from exop.model.filter_text import read

    return read(text)


def as_filter(given: Filter | str | None) -> Filter:
    """A filter from what callers pass: a filter, its text, or nothing for everything."""
    if isinstance(given, str):
        return parse(given)
    return ANYTHING if given is None else given


def where(properties: Mapping[str, Scalar]) -> Filter:
    """A filter that asks for all of *properties*: `where({"kind": "slet", "node": "jams"})`."""
    parts = tuple(Equal(name, matching.text_of(value)) for name, value in properties.items())
    return parts[0] if len(parts) == 1 else And(parts)


def escape(value: str) -> str:
    r"""Write a value so that it can stand in a filter: `a*b` becomes `a\2ab`."""
    return _SPECIAL.sub(lambda found: f"\\{ord(found[0]):02x}", value)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        problem = f"{name!r} cannot name a property in a filter: letters, digits and _ . ; - can"
        raise FilterSyntaxError(filter=f"({name}=…)", position=1, problem=problem)
