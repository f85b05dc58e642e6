"""What is encoded is decoded as the declared type, or not at all; errors cross as class name, text and facts."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exop import errors
from exop.errors import ExopError, RemotingError, StaleMesh, UnknownName
from exop.remoting.transport.codec import BadMessage, decode_error, decode_message, encode_error, encode_message

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


LARGEST = 65536
CLASSES = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ExopError)),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_crosses(kind: type[ExopError]) -> None:
    """Every class of the tree crosses as itself, with its message and a fact."""
    error = kind("something happened", place="here")
    found = decode_error(encode_error(error, LARGEST), LARGEST)
    assert type(found) is kind
    assert str(found) == "something happened"
    assert found.place == "here"


def test_composed_message_and_facts() -> None:
    """A message composed of facts crosses with both."""
    found = decode_error(encode_error(StaleMesh(application="road", revision=1, current=2), LARGEST), LARGEST)
    assert isinstance(found, StaleMesh)
    assert (found.application, found.revision, found.current) == ("road", 1, 2)
    assert "read it again" in str(found)


facts = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.binary() | st.just(Path("/x")) | st.just(object),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text(), inner) | st.tuples(inner),
    max_leaves=30,
)


@given(st.dictionaries(st.text(), facts, max_size=5), st.text())
@example({"__notes__": None}, "")
@example({"__notes__": {0: None}}, "")
def test_any_facts(carried: dict[str, object], text: str) -> None:
    """Whatever facts an error carries, describing and rebuilding it never fails."""
    error = UnknownName("no such thing")
    error.facts = carried
    error.args = (text,)
    assert isinstance(decode_error(encode_error(error, LARGEST), LARGEST), ExopError)


def test_large_facts_stay_behind() -> None:
    """Facts over the bound stay behind; class and text arrive."""
    error = UnknownName("no such thing", known=["x" * 900] * 200)
    packed = encode_error(error, LARGEST)
    assert len(packed) <= LARGEST
    found = decode_error(packed, LARGEST)
    assert type(found) is UnknownName
    assert str(found) == "no such thing"


@given(st.binary(max_size=200))
def test_noise(noise: bytes) -> None:
    """Noise in the place of an error is an error of ours."""
    assert isinstance(decode_error(noise, LARGEST), ExopError)


def test_class_of_another_place() -> None:
    """A name that is no class of the tree becomes a RemotingError with the text."""
    for code in ("system", "__builtins__", "ExopError.__init__", "annotations", "KeyboardInterrupt"):
        found = decode_error(encode_message({"code": code, "text": "boom"}), LARGEST)
        assert type(found) is RemotingError
        assert str(found) == "boom"
