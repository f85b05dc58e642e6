"""Batches and control items."""

from __future__ import annotations

from datetime import datetime

import pytest

from exop import Batch, EndOfStream, Punctuation
from exop.model.items import CONTROL
from exop.model.values.encoding import decode, encode


def test_control_items_are_values():
    """Control items compare by what they say, and cannot be changed."""
    assert Punctuation(5) == Punctuation(5.0)
    assert EndOfStream() == EndOfStream()
    assert Punctuation(5) != Punctuation(6)
    with pytest.raises(AttributeError):
        Punctuation(5).time = 6  # type: ignore[misc]


def test_control_items_are_told_from_items():
    """`isinstance(x, CONTROL)` is the one question; no item of a user's is one by accident."""
    assert isinstance(Punctuation(1), CONTROL)
    assert isinstance(EndOfStream(), CONTROL)
    assert not isinstance(Batch(), CONTROL)
    assert Batch([1, 2]) == [1, 2]


def test_a_punctuation_that_an_older_release_has_stored():
    """It has named no allowance. Two that say the same of the stream are equal, whatever they allow."""
    stored = "94d4400cbc65786f702e6d6f64656c2e6974656d733a50756e6374756174696f6ea474696d65cb4014000000000000"
    assert decode(bytes.fromhex(stored)).idle is None
    assert decode(encode(Punctuation(5, 3))).idle == 3
    assert Punctuation(5, 3) == Punctuation(5)


@pytest.mark.parametrize("time", [float("nan"), None, "12:30", datetime(2026, 1, 1)])
def test_a_punctuation_whose_time_is_no_number_is_refused_where_it_is_made(time):
    """Nothing could be compared with it: windows would stay open for ever."""
    with pytest.raises(ValueError, match="the time of a Punctuation is .*, not a number"):
        Punctuation(time)


def test_a_punctuation_before_a_large_integer_is_before_it():
    """A float may round it up; what is said of the stream must not be more than is known."""
    for time in (1_700_006_400 * 10**9 - 1, 2**53 + 1, 5, 0.1):
        assert Punctuation.before(time).time < time
        assert Punctuation.before(time).following <= time
    assert Punctuation.before(10, 3).following == 10
    assert Punctuation.before(10, 3).idle == 3
