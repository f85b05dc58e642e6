"""`reached`: what can be reached from somewhere, step by step; for meshes, wirings, types, and drivers that wait."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reached(start: Iterable[T], following: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield *start* and all that follows, each once; `following(one)` is not asked before *one* was taken."""
    seen, left = set[T](), [*start]
    while left:
        if (one := left.pop()) not in seen:
            seen.add(one)
            yield one
            left += following(one)
