"""A place in the stream of one input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the stream of one port: the events and offsets before it, and through when the stream is complete."""

    event: int = 0
    offset: int = 0
    complete: float | None = None


BEGINNING: Final = Place()
