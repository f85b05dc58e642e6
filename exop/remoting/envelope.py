"""What one rpyc message must look like byte for byte: checked before rpyc unpacks anything of it.

rpyc's own loader builds whatever a peer describes: three bytes make a frozenset of 216 bytes, so that a frame of
4 MiB takes 300 MB. The control profile knows exactly three messages, and this walk over the bytes lets nothing else by:

    request    1  (number, (OPERATION, (1, (text, bytes))))
    reply      2  (number, (1, bytes))
    fault      3  (number, bytes)
"""

from __future__ import annotations

REQUEST, REPLY, FAULT = 1, 2, 3
OPERATION = 100
"""The one handler number of the profile; rpyc's own are 1 to 20."""
BY_VALUE = 1

_PAIR = 0x11
_EMPTY, _ONE, _FOUR = 0x01, 0x0A, 0x0D
_SHORT, _LONG = 0x0E, 0x0F
_TEXT = 0x08
_DIGITS = 0x16
_SMALL_FIRST, _SMALL_LAST = 0x20, 0xEF
_SMALL_ZERO = 0x50
_NAME_LENGTH = 100
_MOST_DIGITS = 19


class EnvelopeError(Exception):
    """The frame is none of the three messages."""


def check(frame: bytes | bytearray | memoryview, accepted: frozenset[int]) -> None:
    """Let *frame* pass if it is one of the *accepted* messages, else raise `EnvelopeError`."""
    try:
        kind = frame[0]
        if kind not in accepted:
            raise EnvelopeError(f"message kind {kind} is not accepted here")
        at = _number(frame, _expect(frame, 1, _PAIR))
        if kind == REQUEST:
            at = _small(frame, _expect(frame, at, _PAIR), OPERATION)
            at = _small(frame, _expect(frame, at, _PAIR), BY_VALUE)
            at = _name(frame, _expect(frame, at, _PAIR))
        elif kind == REPLY:
            at = _small(frame, _expect(frame, at, _PAIR), BY_VALUE)
        at = _bytes(frame, at)
    except IndexError:
        raise EnvelopeError("the message is cut short") from None
    if at != len(frame):
        raise EnvelopeError("the message has another length than it says")


def _expect(frame: bytes | bytearray | memoryview, at: int, tag: int) -> int:
    if frame[at] != tag:
        raise EnvelopeError(f"unexpected tag {frame[at]:#x} at byte {at}")
    return at + 1


def _small(frame: bytes | bytearray | memoryview, at: int, value: int) -> int:
    if frame[at] - _SMALL_ZERO != value:
        raise EnvelopeError(f"unexpected value at byte {at}")
    return at + 1


def _number(frame: bytes | bytearray | memoryview, at: int) -> int:
    tag = frame[at]
    if _SMALL_FIRST <= tag <= _SMALL_LAST:
        return at + 1
    if tag != _DIGITS:
        raise EnvelopeError(f"no number at byte {at}")
    length = frame[at + 1]
    end = at + 2 + length
    if not 0 < length <= _MOST_DIGITS or not bytes(frame[at + 2 : end]).isdigit():
        raise EnvelopeError(f"no number at byte {at}")
    return end


def _name(frame: bytes | bytearray | memoryview, at: int) -> int:
    start = _expect(frame, at, _TEXT)
    end = _bytes(frame, start)
    if end - start > _NAME_LENGTH:
        raise EnvelopeError("the name of the operation is too long")
    try:
        bytes(frame[start:end]).decode()
    except UnicodeDecodeError:
        raise EnvelopeError("the name of the operation is no text") from None
    return end


def _bytes(frame: bytes | bytearray | memoryview, at: int) -> int:
    """The end of the byte string at *at*, whichever of brine's forms it has."""
    tag = frame[at]
    if tag == _EMPTY:
        return at + 1
    if _ONE <= tag <= _FOUR:
        return at + 2 + tag - _ONE
    if tag == _SHORT:
        return at + 2 + frame[at + 1]
    if tag == _LONG:
        return at + 5 + int.from_bytes(frame[at + 1 : at + 5], "big")
    raise EnvelopeError(f"no byte string at byte {at}")
