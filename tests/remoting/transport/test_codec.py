"""What is packed comes back as the declared type, or not at all."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.remoting.transport.codec import BadMessage, decode_message, encode_message

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


class Point(msgspec.Struct, frozen=True):
    """A struct."""

    name: str
    when: datetime


@dataclasses.dataclass
class Line:
    """A dataclass that holds structs."""

    points: list[Point]


@given(plain)
def test_plain_values(value: object) -> None:
    """Plain values come back as they were."""
    assert decode_message(encode_message(value), Any) == value


def test_structs_and_dataclasses() -> None:
    """Structs, dataclasses and times come back as their declared type."""
    line = Line([Point("a", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))])
    assert decode_message(encode_message(line), Line) == line


def test_paths_go_as_text() -> None:
    """A path crosses as its text: the other side has other files."""
    assert decode_message(encode_message({"at": Path("/tmp")}), dict[str, str]) == {"at": "/tmp"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(10**30, "1" + "0" * 30), (-(10**30), "-1" + "0" * 30), (16**5000, "0x1" + "0" * 5000), ("a\udcff", r"a\udcff")],
    ids=["large", "small", "huge", "surrogate"],
)
def test_what_msgpack_cannot_hold_goes_as_text(value: object, text: str) -> None:
    """A setting of more than 64 bits, or a file name that is not Unicode, keeps no platform from answering.

    A request means exactly what it says: there it is an error.
    """
    assert decode_message(encode_message({"settings": [value]}), Any) == {"settings": [text]}
    with pytest.raises((OverflowError, UnicodeError)):
        encode_message({"settings": [value]}, exactly=True)


@pytest.mark.parametrize("value", [object(), {1: {object()}}, lambda: None])
def test_no_plain_form(value: object) -> None:
    """What has no plain form is told where it is packed."""
    with pytest.raises(TypeError):
        encode_message(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000 + b"\xc0",
        msgpack.packb([1]) + b"\x00",
        msgpack.packb(["a"]),
        msgpack.packb([1] * 11),
        msgpack.packb({"a": 1}),
        b"\xdd\xff\xff\xff\xff",
    ],
    ids=["empty", "no msgpack", "deep", "trailing", "type", "length", "map", "announced"],
)
def test_bad_messages(data: bytes) -> None:
    """Whatever is wrong with the bytes, it is one error."""
    with pytest.raises(BadMessage):
        decode_message(data, Annotated[list[int], msgspec.Meta(max_length=10)])  # type: ignore[arg-type]


def test_deep_untyped() -> None:
    """Nesting beyond the interpreter's depth is a bad message also where any type is declared."""
    with pytest.raises(BadMessage):
        decode_message(b"\x91" * 100_000 + b"\xc0", Any)
