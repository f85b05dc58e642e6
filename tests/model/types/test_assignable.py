"""Which types may enter which: what can be told from annotations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Protocol, TypedDict, TypeVar

import numpy as np
import pytest

from exop.model.types.assignable import bind, find_mismatch, missing_field, substitute, takes_class, value_mismatch
from exop.model.types.description import type_of

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


@pytest.mark.parametrize(("source", "target", "fits"), [(*one, one in FIT) for one in FIT + MISFIT], ids=repr)
def test_a_type_stands_where_another_is_expected(source, target, fits):
    """Types that are not declared match everything, and certain mistakes are refused."""
    assert (find_mismatch(type_of(source), type_of(target)) is None) is fits


K = TypeVar("K")


@pytest.mark.parametrize(
    ("declared", "comes", "leaves", "type_"),
    [
        (T, Car, T, Car),
        (T, Car, list[T], list[Car]),
        (T, Car | None, T, Car | None),
        (T | None, Car | None, T, Car),
        (T | int, Car | str | int, T, Car | str),
        (list[T], list[Car], T, Car),
        (Sequence[T], list[Car], T | None, Car | None),
        (dict[K, T], dict[str, Car], tuple[T, K], tuple[Car, str]),
        (Box[T], Box[Car], Box[list[T]], Box[list[Car]]),
        (Annotated[T, "a note"], Car, T, Car),
        (Bound, Car, Bound, Car),
        (T, Any, T, Any),
        (T, list[K], list[T], list[Any]),
        (list[T], Car, T, Any),
        (Bound, int, Bound, Bound),  # refused where the ports are joined
        (int, int, list[K], list[Any]),
    ],
)
def test_a_variable_stands_for_what_comes(declared, comes, leaves, type_):
    """What leaves has the type that the variables of the input have taken; what is not known is `Any`."""
    found: dict[Any, Any] = {}
    bind(type_of(declared), type_of(comes), found)
    assert substitute(leaves, found) == type_


def test_a_variable_of_two_inputs_stands_for_both_types():
    """As a static type checker has it."""
    found: dict[Any, Any] = {}
    for comes in (Car, int):
        bind(type_of(T), type_of(comes), found)
    assert substitute(list[T], found) == list[Car | int]


class Point(NamedTuple):
    """A record whose fields have places, too."""

    x: int
    y: int

    @property
    def norm(self) -> int:
        """No field, and an attribute all the same."""
        return self.x + self.y


@pytest.mark.parametrize(
    ("item", "name", "problem"),
    [
        (Point, "x", None),
        (Point, "norm", None),
        (Point, "1", None),
        (Point, "z", "Point has no field 'z'; known: x, y"),
        (Row, "a", None),
        (Row, "keys", "Row has no field 'keys'; "),
        (int, "time", "int has no field 'time'"),
        (Point | Row, "x", "Row has no field 'x'; "),
        (Point | None, "x", None),
        (Any, "time", None),
        (dict, "time", None),
        (dict[str, int], "time", None),
        (Car, "wheels", None),
        (Box[int], "lid", None),
    ],
)
def test_a_field_that_items_lack(item, name, problem):
    """It is said where it is known; of a row, what is no key is no field."""
    found = missing_field(type_of(item), name)
    assert found is None if problem is None else (found or "").startswith(problem)


@pytest.mark.parametrize(
    ("value", "wanted", "problem"),
    [
        (1, int, ""),
        (1, float, ""),
        (None, int | None, ""),
        ("a", Literal["a", "b"], ""),
        ([1], list[int], ""),
        ((1, "a"), tuple[int, str], ""),
        ((1, 2, 3), tuple[int, ...], ""),
        ({1: [2.0]}, dict[int, list[float]], ""),
        ({1: 2}, Mapping[int, int], ""),
        (deque([1]), deque[int], ""),
        ([1], Sequence[int], ""),
        (np.zeros(2), np.ndarray[Any, np.dtype[np.float64]], ""),
        ({1, 2}, set[int], ""),
        (5, Any, ""),
        (5, Annotated[int, "seconds"], ""),
        (object(), object, ""),
        ("a", int, "x is 'a' (str), not int"),
        (True, int, "x is True (bool), not int"),
        (1.5, int | None, "x is 1.5 (float), not int | None"),
        ("c", Literal["a", "b"], "x is 'c' (str)"),
        ([1, "a"], list[int], "x[1] is 'a' (str), not int"),
        ((1,), tuple[int, str], "x has 1 element, not 2"),
        ((1, 2), tuple[int, str], "x[1] is 2 (int), not str"),
        ({"k": [1, None]}, dict[str, list[int]], "x['k'][1] is None (NoneType), not int"),
        ({1: 1}, dict[str, int], "x: the key 1 is 1 (int), not str"),
        ([1], deque[int], "x is [1] (list)"),
    ],
)
def test_a_value_is_of_a_type(value, wanted, problem):
    """The check is as gradual as that of types, and the error names the element."""
    found = value_mismatch(value, wanted, "x") or ""
    assert found.startswith(problem) if problem else not found


@pytest.mark.parametrize(
    ("value", "wanted", "fits"),
    [
        (np.int64(1), int, True),
        (np.int64(1), float | None, True),
        (np.float32(1), float, True),
        (np.float32(1), int, False),
        (np.int64(1), str, False),
        (np.bool_(True), bool | None, True),
        (np.int8(1), bool, False),
        ("a", int | float, False),
        (1, Metres, True),
        (None, int | None, True),
        (Car(), Vehicle, True),
        (Vehicle(), Car, False),
        ("c", Literal["a"], True),
        ([1], list[str], True),
    ],
)
def test_an_instance_of_a_class_may_be_of_a_type(value, wanted, fits):
    """As far as the class tells it; the numbers of numpy compute like those of Python."""
    assert takes_class(type_of(wanted), type(value)) is fits
