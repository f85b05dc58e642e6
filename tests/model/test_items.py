"""Batches and control items."""

from __future__ import annotations

import pytest

from exop import Batch, EndOfStream, Punctuation
from exop.model.items import CONTROL


def test_a_batch_is_a_list():
    """A batch is made, compared and iterated as a list is."""
    batch = Batch([1, 2])
    assert batch == [1, 2]
    assert isinstance(batch, list)
    assert len(batch) == 2


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
