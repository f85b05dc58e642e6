"""When two outputs are the same."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from exop.wiring.shadow.comparison import same

NAN = float("nan")


@dataclass
class Point:
    """A point."""

    x: float
    y: Any = None
    note: str = field(default="", compare=False)


def other_version():
    """A class of the same name and fields, as another version of a bundle has it."""
    from dataclasses import make_dataclass

    made = make_dataclass("Point", [("x", float), ("y", Any), ("note", str, field(default="", compare=False))])
    made.__qualname__ = "Point"
    return made


def batch(**columns):
    """A record batch."""
    return pa.RecordBatch.from_pydict(columns)


EQUAL = [
    (1, 1.0),
    (NAN, float("nan")),
    ((1, NAN), (1, float("nan"))),
    ({"a": [NAN]}, {"a": [NAN]}),
    (Point(NAN), Point(NAN)),
    (Point(1, note="a"), Point(1, note="b")),
    (Point(1, [2]), other_version()(1, [2])),
    (np.array([1.0, NAN]), np.array([1.0, NAN])),
    (np.array(["a"]), np.array(["a"])),
    (batch(a=[1], b=[NAN]), batch(b=[NAN], a=[1])),
    (Decimal("1.0"), Decimal("1.00")),
]
DIFFERENT = [
    (1, 2),
    ("1", 1),
    ((1, 2), [1, 2]),
    ([1], [1, 2]),
    ({"a": 1}, {"a": 1, "b": 2}),
    (Point(1), Point(2)),
    (Point(1), (1, None)),
    (np.array([1, 2]), np.array([1, 3])),
    (np.array([1, 2]), np.array([[1, 2]])),
    (np.array([1]), np.array([1.0])),
    (batch(a=[1]), batch(a=[2])),
    (batch(a=[1]), batch(a=[1.0])),
    (batch(a=[1]), batch(b=[1])),
    (batch(a=[1]), batch(a=[1, 1])),
]


@pytest.mark.parametrize(("old", "new"), EQUAL)
def test_equal(old, new):
    """NaN is NaN, classes count by name and fields, columns in any order."""
    assert same(old, new)
    assert same(new, old)


@pytest.mark.parametrize(("old", "new"), DIFFERENT)
def test_different(old, new):
    """Values, lengths, keys, kinds of containers, shapes and types of columns count."""
    assert not same(old, new)
    assert not same(new, old)


@pytest.mark.parametrize("error", [TypeError("no"), SystemExit("no")], ids=repr)
def test_what_cannot_be_compared(error):
    """Values whose comparison raises are not equal."""

    class Odd:
        def __eq__(self, other):
            raise error

        __hash__ = None

    assert not same(Odd(), Odd())
