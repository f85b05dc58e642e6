"""The parts of a state that can be copied while it changes.

A record batch or table never changes. A dict is copied as pieces: consecutive entries, and then those that differ.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain, compress, count, pairwise
from operator import is_, is_not
from typing import Any, Final

from exop.model.types.description import SCALARS
from exop.model.values.columns import is_columns
from exop.model.values.depth import PLAIN
from exop.model.values.encoding import Part, fields_of

#: Bytes from which it is worth to copy a part of a state by itself; and of a piece, about.
LARGE: Final = 65536
#: The levels of a state at which record batches and tables are looked for, in collections of so many elements at most.
_LEVELS, _MOST = 4, 10_000
_IMMUTABLE: Final = (PLAIN | SCALARS) - {bytearray}


@dataclass
class Piece:
    """Consecutive entries, as they were sent; in tuples, which a garbage collection does not look into each time.

    Attributes:
        numbers: The parts that the other host has: the entries, then values that have replaced some of theirs.
        keys: Their keys, in order.
        values: If they are all immutable: one that is the same object has not changed.
        data: Otherwise the entries, encoded.
    """

    numbers: list[int]
    keys: tuple[Any, ...]
    values: tuple[Any, ...] | None
    data: bytes


class Pieces:
    """The pieces of one dict that another host has.

    Args:
        encode: Encodes entries.
        add: Sends bytes to the other host as the next part; returns its number.
    """

    def __init__(self, encode: Callable[[Any], bytes], add: Callable[[bytes], int]) -> None:
        self._encode = encode
        self._add = add
        self._pieces: dict[Any, Piece] = {}  # by the first key, which tells where one begins, whatever precedes it
        self._entries = 1  # of the next piece

    def scan(self, content: dict[Any, Any]) -> Iterator[None]:
        """Send what the other host does not have as it is; yields after each piece. Between two items, each time."""
        keys, values = (*content,), (*content.values(),)
        begins = {0, *compress(count(), map(self._pieces.__contains__, keys))} if keys else ()
        found = []
        for begin, end in pairwise((*sorted(begins), len(keys))):
            for piece in self._renewed(self._pieces.get(keys[begin]), keys[begin:end], values[begin:end]):
                found.append(piece)
                yield
        self._pieces = {piece.keys[0]: piece for piece in found}

    def part(self, content: dict[Any, Any]) -> Part:
        """Return what represents the dict after a scan."""
        empty: dict[Any, Any] = defaultdict(content.default_factory) if isinstance(content, defaultdict) else {}
        return Part((empty, *(number for piece in self._pieces.values() for number in piece.numbers)))

    def _renewed(self, piece: Piece | None, keys: tuple[Any, ...], values: tuple[Any, ...]) -> Iterator[Piece]:
        """Yield the pieces of these entries, of which the other host has *piece*."""
        if piece is not None and piece.values is not None and self._update(piece, keys, values):
            yield piece
            return
        while keys:
            size = len(keys) if piece is not None and len(keys) <= len(piece.keys) else self._entries
            some, their = keys[:size], values[:size]
            data = self._encode(dict(zip(some, their, strict=True)))
            if piece is not None and piece.values is None and data == piece.data:
                yield piece
            else:
                immutable = is_immutable(their)
                yield Piece([self._add(data)], some, their if immutable else None, b"" if immutable else data)
            self._entries = max(1, min(2 * size, size * LARGE // len(data)))
            keys, values = keys[size:], values[size:]

    def _update(self, piece: Piece, keys: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
        """Send the values that were set since; not if keys were added or removed, or a new value may change itself."""
        had = piece.values or ()
        if len(keys) != len(piece.keys) or not all(map(is_, keys, piece.keys)):
            return False
        changed = dict(compress(zip(keys, values, strict=True), map(is_not, values, had)))
        if not is_immutable([*changed.values()]):
            return False
        if changed:
            piece.numbers.append(self._add(self._encode(changed)))
            piece.values = values
        return True


def is_immutable(values: Sequence[Any]) -> bool:
    """Whether none of the values can change: numbers, text, bytes, moments, and tuples of these."""
    if tuple in (kinds := {*map(type, values)}):
        kinds.remove(tuple)
        kinds.update(map(type, chain.from_iterable(one for one in values if type(one) is tuple)))
    return kinds <= _IMMUTABLE


def dicts_of(state: Any) -> dict[str, dict[Any, Any]]:
    """Return the fields of a memento that are dicts."""
    return {name: value for name, value in fields_of(state).items() if type(value) in (dict, defaultdict)}


def large_parts(value: Any, levels: int = _LEVELS) -> Iterator[Any]:
    """Yield the large record batches and tables in a state, which may change meanwhile."""
    if is_columns(value):
        if value.nbytes >= LARGE:
            yield value
        return
    inside: list[Any] = []
    if levels and is_dataclass(value):
        inside = [getattr(value, one.name) for one in fields(value)]
    elif levels and isinstance(value, (dict, list, tuple, deque)) and len(value) <= _MOST:
        inside = list(value.values() if isinstance(value, dict) else value)
    for one in inside:
        if type(one) not in PLAIN:
            yield from large_parts(one, levels - 1)
