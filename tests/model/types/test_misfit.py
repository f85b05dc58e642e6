"""Values and annotations: what does not fit is named to the element; what cannot be told fits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from exop.model.types.assignable import misfit


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1, int),
        (1, float),
        (None, int | None),
        ("a", Literal["a", "b"]),
        ([1], list[int]),
        ((1, "a"), tuple[int, str]),
        ((1, 2, 3), tuple[int, ...]),
        ({1: [2.0]}, dict[int, list[float]]),
        ({1: 2}, Mapping[int, int]),
        (deque([1]), deque[int]),
        ([1], Sequence[int]),
        (np.zeros(2), np.ndarray[Any, np.dtype[np.float64]]),
        ({1, 2}, set[int]),
        (5, Any),
        (5, Annotated[int, "seconds"]),
        (object(), object),
    ],
)
def test_it_fits(value, wanted):
    """Gradually, as a type checker has it."""
    assert misfit(value, wanted, "x") is None


@pytest.mark.parametrize(
    ("value", "wanted", "told"),
    [
        ("a", int, "x is 'a' (str), not int"),
        (True, int, "x is True (bool), not int"),
        (1.5, int | None, "x is 1.5 (float), not int | None"),
        ("c", Literal["a", "b"], "x is 'c' (str)"),
        ([1, "a"], list[int], "x[1] is 'a' (str), not int"),
        ((1,), tuple[int, str], "x has 1 elements, not 2"),
        ((1, 2), tuple[int, str], "x[1] is 2 (int), not str"),
        ({"k": [1, None]}, dict[str, list[int]], "x['k'][1] is None (NoneType), not int"),
        ({1: 1}, dict[str, int], "x: the key 1 is 1 (int), not str"),
        ([1], deque[int], "x is [1] (list)"),
    ],
)
def test_it_does_not_fit(value, wanted, told):
    """The path leads to the element."""
    assert (misfit(value, wanted, "x") or "").startswith(told)
