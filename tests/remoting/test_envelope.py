"""The walk over the bytes of a message lets rpyc's own forms of the three messages by, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rpyc.core import brine

from exop.remoting.transport.frames import FAULT, OPERATION, REPLY, REQUEST, FrameRefused, Message, parse_message

ALL = frozenset({REQUEST, REPLY, FAULT})
numbers = st.integers(0, 2**62)
payloads = st.one_of(st.binary(max_size=6), st.binary(min_size=250, max_size=270))
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def message(kind: int, number: int, payload: bytes, name: str = "ready") -> bytes:
    """A message as rpyc packs it."""
    content: object = {
        REQUEST: (number, (OPERATION, (1, (name, payload)))),
        REPLY: (number, (1, payload)),
        FAULT: (number, payload),
    }[kind]
    return bytes([kind]) + brine.dump(content)


@given(st.sampled_from(sorted(ALL)), numbers, payloads, names)
def test_lets_messages_by(kind: int, number: int, payload: bytes, name: str) -> None:
    """Every message that rpyc packs passes, and only where its kind is accepted; ours are packed as rpyc does it."""
    packed = message(kind, number, payload, name)
    meant = Message(kind, number, payload, name if kind == REQUEST else "")
    assert parse_message(packed, ALL) == meant
    assert meant.packed() == packed
    parse_message(memoryview(bytearray(packed)), frozenset({kind}))
    with pytest.raises(FrameRefused):
        parse_message(packed, ALL - {kind})


@given(st.sampled_from(sorted(ALL)), numbers, payloads, st.data())
def test_what_passes_is_what_it_seems(kind: int, number: int, payload: bytes, data: st.DataObject) -> None:
    """A changed message is refused, or unpacks to a message of the same shape: nothing in between, no other error."""
    packed = bytearray(message(kind, number, payload))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        seen = parse_message(packed, ALL)
    except FrameRefused:
        return
    found, content = brine.load(bytes(packed[1:]))
    name = ""
    if packed[0] == REQUEST:
        handler, (label, (name, content)) = content
        assert (handler, label) == (OPERATION, 1)
    elif packed[0] == REPLY:
        label, content = content
        assert label == 1
    assert (type(found), type(name), type(content)) == (int, str, bytes)
    assert seen == Message(packed[0], found, content, name)


@given(st.binary(max_size=60))
def test_noise(noise: bytes) -> None:
    """Noise is refused, by no other error."""
    with pytest.raises(FrameRefused):
        parse_message(noise, ALL)


@given(st.sampled_from(sorted(ALL)), payloads, st.data())
def test_cut_and_lengthened(kind: int, payload: bytes, data: st.DataObject) -> None:
    """A message that is cut, or has bytes behind it, is refused."""
    packed = message(kind, 7, payload)
    with pytest.raises(FrameRefused):
        parse_message(packed[: data.draw(st.integers(0, len(packed) - 1))], ALL)
    with pytest.raises(FrameRefused):
        parse_message(packed + data.draw(st.binary(min_size=1, max_size=5)), ALL)
