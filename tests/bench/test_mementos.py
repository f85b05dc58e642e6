"""The short form of the campaign of hostile bytes: whatever is read, a value or a named error comes of it."""

from __future__ import annotations

from bench.cases import failures
from bench.mementos import hostile


def test_hostile_bytes() -> None:
    """Mutations, deep nestings, hostile names, colliding keys: nothing is imported, and the process lives."""
    assert failures(hostile, 250) == []
