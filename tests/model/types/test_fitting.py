"""Which types may enter which: what can be told from annotations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NewType, Protocol, TypedDict, TypeVar

import pytest

from exop.model.types.fitting import fits

T = TypeVar("T")
Number = TypeVar("Number", int, float)
Unresolved = TypeVar("Unresolved", bound="Vehicle")
Metres = NewType("Metres", int)


@dataclass
class Vehicle:
    """A base."""


@dataclass
class Car(Vehicle):
    """A derived class."""


Bound = TypeVar("Bound", bound=Vehicle)


class Box(Generic[T]):
    """A generic class."""


class IntBox(Box[int]):
    """A generic class with its argument."""


class Row(TypedDict):
    """A typed dictionary."""

    a: int


class Other(TypedDict):
    """Another one."""

    b: int


class Named(Protocol):
    """A protocol that cannot be checked at run time."""

    name: str


FIT = [
    (int, int),
    (int, float),
    (bool, int),
    (bool, float),
    (Car, Vehicle),
    (Any, Car),
    (Car, Any),
    (object, Car),
    (int, int | str),
    (int | str, int | str | None),
    (list[int], list[int]),
    (list, list[int]),
    (list[int], list),
    (list[int], Sequence[float]),
    (dict[str, int], Mapping[str, int]),
    (tuple[int, str], tuple[int, str]),
    (tuple[int, int], tuple[int, ...]),
    (tuple[int, ...], Sequence[int]),
    (tuple[int, int], Iterable[int]),
    (IntBox, Box[int]),
    (Literal["a", "b"], str),
    (Literal["a"], Literal["a", "b"]),
    (Literal[1, "a"], int | str),
    (Metres, int),
    (Metres, Metres),
    (T, int),
    (int, T),
    (int, Number),
    (Car, Bound),
    (int, Unresolved),
    (Annotated[int, "metres"], int),
    (int, Annotated[float, NotImplemented]),
    (list[Annotated[int, 3]], list[int]),
    (Row, Row),
    (dict[str, Any], Row),
    (Row, dict),
    (Car, Named),
]

MISFIT = [
    (float, int),
    (str, int),
    (Vehicle, Car),
    (int | str, int),
    (int | None, int),
    (list[str], list[int]),
    (list[int], set[int]),
    (list[int], tuple[int, ...]),
    (tuple[int, float], tuple[int, float, str]),
    (tuple[int, ...], tuple[int, int]),
    (tuple[int, str], Sequence[int]),
    (str, Literal["a"]),
    (Literal["c"], Literal["a", "b"]),
    (Literal[1, "a"], int),
    (int, Metres),
    (str, Number),
    (int, Bound),
    (Row, Other),
    (int, Row),
    (dict[str, str], dict[str, int]),
]


@pytest.mark.parametrize(("source", "target"), FIT, ids=repr)
def test_fits(source, target):
    """What may stand there is let in; what is not declared fits everything."""
    assert fits(source, target)


@pytest.mark.parametrize(("source", "target"), MISFIT, ids=repr)
def test_does_not_fit(source, target):
    """What cannot be right is refused."""
    assert not fits(source, target)
