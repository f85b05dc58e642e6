"""A dict is sent in pieces of consecutive entries; later only those that differ."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from exop.model.values.encoding import decode, encode
from exop.model.values.pieces import LARGE, Pieces, is_immutable, large_parts

TEXT = "x" * 1000


class Receiver:
    """Stores the parts, and puts a dict together."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.pieces = Pieces(encode, self.add)

    def add(self, data: bytes) -> int:
        """Store a part."""
        self.parts[len(self.parts)] = data
        return len(self.parts) - 1

    def scan(self, content: dict[Any, Any]) -> int:
        """Return how many bytes a scan has sent."""
        before = sum(map(len, self.parts.values()))
        for _ in self.pieces.scan(content):
            pass
        return sum(map(len, self.parts.values())) - before

    def found(self, content: dict[Any, Any]) -> Any:
        """Return the dict as the other host has it."""
        data = encode([self.pieces.part(content)])
        return decode(data, parts={number: decode(part) for number, part in self.parts.items()})[0]


def put(content: dict[Any, Any], key: Any, value: Any) -> None:
    """Set a value."""
    content[key] = value


def again(content: dict[Any, Any]) -> None:
    """Remove an entry, and add it at the end."""
    content[100] = content.pop(100)


CHANGES: dict[str, Callable[[dict[Any, Any]], Any]] = {
    "nothing": lambda content: None,
    "a value": lambda content: put(content, 100, TEXT + "!"),
    "a value of an equal type": lambda content: put(content, 100, True),
    "several values": lambda content: content.update(dict.fromkeys(range(100, 130, 5), "new")),
    "a mutable value": lambda content: put(content, 100, [TEXT]),
    "a new key": lambda content: put(content, 1000, TEXT),
    "a removed key": lambda content: content.pop(100, None),
    "the first key removed": lambda content: content.pop(next(iter(content))),
    "a key at another place": again,
}


@pytest.mark.parametrize("value", [1, TEXT, (1, TEXT), [TEXT]], ids=["number", "text", "tuple", "list"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_other_host_gets_the_changes_alone(change: Callable[[dict[Any, Any]], Any], value: Any):
    """After any change, the dict there has the same entries in the same order; few bytes were sent for that."""
    receiver = Receiver()
    content = {key: [*value] if type(value) is list else value for key in range(500)}
    receiver.scan(content)
    for _ in range(2):
        change(content)
        size = receiver.scan(content)
        found = receiver.found(content)
        assert [*map(repr, found.items())] == [*map(repr, content.items())]
        assert size < 2.5 * LARGE
        assert receiver.scan(content) == 0


def test_a_value_that_changes_itself_is_noticed():
    """Also one that was set since the first scan, for a value that could not change."""
    receiver = Receiver()
    content: dict[int, Any] = dict.fromkeys(range(10), 1)
    receiver.scan(content)
    content[3] = values = [1]
    receiver.scan(content)
    values.append(2)
    receiver.scan(content)
    assert receiver.found(content) == content


def test_a_piece_has_a_bounded_size():
    """A dict of small values that becomes one of large values, and grows, is cut into more pieces."""
    receiver = Receiver()
    content: dict[int, Any] = dict.fromkeys(range(100), 0)
    receiver.scan(content)
    content.update((key, [TEXT]) for key in range(100, 1000))
    receiver.scan(content)
    assert max(map(len, receiver.parts.values())) < 2.5 * LARGE
    assert len(receiver.parts) > 10


@pytest.mark.parametrize("content", [{}, defaultdict(list), defaultdict(int, {1: 2})])
def test_the_dict_keeps_its_kind(content: dict[Any, Any]):
    """With its default."""
    receiver = Receiver()
    receiver.scan(content)
    found = receiver.found(content)
    assert (type(found), found) == (type(content), content)
    assert getattr(found, "default_factory", None) == getattr(content, "default_factory", None)


@pytest.mark.parametrize(
    ("value", "expected"), [(1, True), ((1, "x"), True), ((1, [2]), False), (((1,),), False), ([1], False), ({}, False)]
)
def test_only_values_that_cannot_change_are_compared_by_identity(value: Any, expected: bool):
    """Nested tuples are not looked into."""
    assert is_immutable([value, 1]) is expected


def test_large_columns_are_found_in_collections_of_a_few_levels():
    """Small columns stay where they are."""
    one = pa.record_batch([np.arange(LARGE // 8)], names=["n"])
    small = pa.record_batch([[1]], names=["n"])
    assert list(large_parts({"a": [(one,), deque([small]), 3]})) == [one]
    assert list(large_parts([[[[[one]]]]])) == []
