"""Bytes that a platform keeps in pieces are bounded, in size and in number."""

from __future__ import annotations

import pytest

from exop.errors import MessageTooLarge, PlanError
from exop.remoting.pieces import LARGEST, MOST, PIECE, Pieces


def test_empty_ones_are_bounded() -> None:
    """A peer that sends nothing, again and again, takes no memory: the oldest makes room."""
    pieces = Pieces()
    numbers = [pieces.put(b"") for _ in range(3 * MOST)]
    assert len(pieces._held) == MOST
    assert pieces.take(numbers[-1]) == b""
    with pytest.raises(PlanError, match="keeps nothing under the number"):
        pieces.put(b"", numbers[0])


def test_large_ones_are_bounded() -> None:
    """No whole is longer than the bound."""
    pieces = Pieces()
    number = pieces.put(bytes(PIECE))
    for _ in range(LARGEST // PIECE - 1):
        pieces.put(bytes(PIECE), number)
    with pytest.raises(MessageTooLarge):
        pieces.put(b"x", number)
    assert len(pieces.take(number)) == LARGEST
