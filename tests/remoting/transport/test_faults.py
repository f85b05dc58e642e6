"""Errors cross as class name, text and facts, whatever they carry."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exop import errors
from exop.errors import ExopError, RemotingError, StaleMesh, UnknownName
from exop.remoting.transport.codec import decode_error, encode_error, encode_message

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
