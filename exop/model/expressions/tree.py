"""The checked tree of an expression."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from typing import Literal as OneOf

from exop.model.expressions.functions import Function
from exop.model.expressions.kinds import Kind, kind_of
from exop.model.types.description import Type


@dataclass(frozen=True, eq=False)
class Tree:
    """A part of an expression.

    Attributes:
        at: Its position in the text.
        type: The type of its values.
        nullable: Whether it may be NULL.
    """

    at: int
    type: Type
    nullable: bool

    @cached_property
    def kind(self) -> Kind:
        """The kind of its values."""
        return kind_of(self.type)

    @property
    def parts(self) -> Iterator[Tree]:
        """The parts of which it consists, in the order in which they are written."""
        return _trees(tuple(vars(self).values()))

    def walk(self) -> Iterator[Tree]:
        """Yield this part and all below it."""
        stack: list[Tree] = [self]
        while stack:
            yield (one := stack.pop())
            stack += reversed([*one.parts])


def _trees(value: Any) -> Iterator[Tree]:
    if isinstance(value, Tree):
        yield value
    for one in value if isinstance(value, tuple) else ():
        yield from _trees(one)


@dataclass(frozen=True, eq=False)
class Literal(Tree):
    """A constant."""

    value: Any


@dataclass(frozen=True, eq=False)
class Subject(Tree):
    """The item, or the time of a punctuation."""

    name: str


@dataclass(frozen=True, eq=False)
class Setting(Tree):
    """A setting, whose value is known when the expression is compiled."""

    name: str


@dataclass(frozen=True, eq=False)
class Field(Tree):
    """A field: `item.speed`, `item["speed"]`, `item.place.road`."""

    of: Tree
    name: str


@dataclass(frozen=True, eq=False)
class Operation(Tree):
    """A call of a function of the module `values`: `not x`, `x is None`, `x in y`, `x[0]`, `[x, y]`."""

    call: Callable[..., Any]
    operands: tuple[Tree, ...]


@dataclass(frozen=True, eq=False)
class Arithmetic(Tree):
    """`first + a * …`: the steps are carried out from left to right, so that a long sum is one flat part."""

    first: Tree
    steps: tuple[tuple[str, Tree], ...]


@dataclass(frozen=True, eq=False)
class Comparison(Tree):
    """`first < a <= …`: each value is compared with the next one."""

    first: Tree
    steps: tuple[tuple[str, Tree], ...]


@dataclass(frozen=True, eq=False)
class Logic(Tree):
    """`a and b and …`, `a or b or …`."""

    word: OneOf["and", "or"]
    operands: tuple[Tree, ...]


@dataclass(frozen=True, eq=False)
class Choice(Tree):
    """`value if condition else value if condition else …`: the cases, and what holds otherwise."""

    cases: tuple[tuple[Tree, Tree], ...]
    otherwise: Tree


@dataclass(frozen=True, eq=False)
class Row(Tree):
    """The values of several expressions, as a dictionary by their names."""

    columns: tuple[tuple[str, Tree], ...]


@dataclass(frozen=True, eq=False)
class Call(Tree):
    """A call of a function."""

    function: Function
    arguments: tuple[Tree, ...]

    @property
    def shares(self) -> bool:
        """Whether its result is one of its arguments, which share a column of floats."""
        return self.kind == "float" and self.function.result is None
