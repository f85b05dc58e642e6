"""A message is one of three kinds, with a name in requests only; any other frame is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.remoting.transport.frames import FAULT, REPLY, REQUEST, FrameRefused, Message, parse_message

ALL = frozenset({REQUEST, REPLY, FAULT})
HEAD = 11
numbers = st.integers(0, 2**64 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.sampled_from(sorted(ALL)), numbers, st.binary(max_size=270), names)
def test_messages(kind: int, number: int, payload: bytes, name: str) -> None:
    """Every message passes, and only where its kind is accepted."""
    message = Message(kind, number, payload, name if kind == REQUEST else "")
    packed = message.packed()
    assert parse_message(packed, ALL) == message
    assert parse_message(memoryview(bytearray(packed)), frozenset({kind})) == message
    with pytest.raises(FrameRefused):
        parse_message(packed, ALL - {kind})


@given(st.one_of(st.binary(max_size=60), st.tuples(st.sampled_from(sorted(ALL)), st.binary(max_size=60))))
def test_noise(noise: bytes | tuple[int, bytes]) -> None:
    """Noise is refused, or is a message with these bytes; there is no other error."""
    frame = noise if isinstance(noise, bytes) else bytes([noise[0]]) + noise[1]
    try:
        assert parse_message(frame, ALL).packed() == frame
    except FrameRefused:
        return


@given(st.integers(0, HEAD + 4))
def test_cut(length: int) -> None:
    """A message that ends within its head or its name is refused."""
    with pytest.raises(FrameRefused):
        parse_message(Message(REQUEST, 7, b"", "ready").packed()[:length], ALL)


@pytest.mark.parametrize("kind", [REPLY, FAULT])
def test_a_name_in_an_answer(kind: int) -> None:
    """Only a request names an operation."""
    with pytest.raises(FrameRefused):
        parse_message(Message(kind, 0, b"", "ready").packed(), ALL)
