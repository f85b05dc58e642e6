"""The walk over the bytes of a message lets rpyc's own forms of the three messages by, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rpyc.core import brine

from exop.remoting.envelope import FAULT, OPERATION, REPLY, REQUEST, EnvelopeError, check

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
    """Every message that rpyc packs passes, and only where its kind is accepted."""
    packed = message(kind, number, payload, name)
    check(packed, ALL)
    check(memoryview(bytearray(packed)), frozenset({kind}))
    with pytest.raises(EnvelopeError):
        check(packed, ALL - {kind})


@given(st.sampled_from(sorted(ALL)), numbers, payloads, st.data())
def test_what_passes_is_what_it_seems(kind: int, number: int, payload: bytes, data: st.DataObject) -> None:
    """A changed message is refused, or unpacks to a message of the same shape: nothing in between, no other error."""
    packed = bytearray(message(kind, number, payload))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        check(packed, ALL)
    except EnvelopeError:
        return
    found, content = brine.load(bytes(packed[1:]))
    assert type(found) is int
    if packed[0] == REQUEST:
        handler, (label, (name, carried)) = content
        assert (handler, label, type(name), type(carried)) == (OPERATION, 1, str, bytes)
    elif packed[0] == REPLY:
        assert (content[0], type(content[1])) == (1, bytes)
    else:
        assert type(content) is bytes


@given(st.binary(max_size=60))
def test_noise(noise: bytes) -> None:
    """Noise is refused, by no other error."""
    with pytest.raises(EnvelopeError):
        check(noise, ALL)


@given(st.sampled_from(sorted(ALL)), payloads, st.data())
def test_cut_and_lengthened(kind: int, payload: bytes, data: st.DataObject) -> None:
    """A message that is cut, or has bytes behind it, is refused."""
    packed = message(kind, 7, payload)
    with pytest.raises(EnvelopeError):
        check(packed[: data.draw(st.integers(0, len(packed) - 1))], ALL)
    with pytest.raises(EnvelopeError):
        check(packed + data.draw(st.binary(min_size=1, max_size=5)), ALL)
