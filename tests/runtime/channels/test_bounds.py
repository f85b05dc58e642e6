"""What a peer may send, and what a half of a connector keeps, is bounded in events, bytes and memory."""

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from exop.errors import NotStorable
from exop.model.slets.ports import PortType
from exop.runtime.channels import frame_body, wire
from exop.runtime.channels import inbox as inbox_module
from exop.runtime.channels import outbox as outbox_module
from exop.runtime.channels.frame_body import (
    ARROW,
    BYTES,
    GENERAL,
    ROWS,
    SCALARS,
    TABLES,
    BodyReader,
    body_of,
    checked,
    event_of,
    pieces,
)
from exop.runtime.channels.inbox import Inbox
from exop.runtime.channels.outbox import Outbox
from exop.runtime.channels.spill import Spill
from exop.runtime.channels.wire import COLUMNS, CONTROL, ITEMS, LIST, Frame, Progress, Undecoded
from exop.runtime.dataflow.entry import Method
from tests.runtime.rig import Log, joined

CAPACITY = 100
#: MiB that a frame which is refused may cost, beside its own bytes.
COST = 12.0


def receiving() -> Inbox:
    """An inbox with its credit."""
    found = Inbox("in", peer="a", key="k", capacity=CAPACITY)
    found.typed([PortType()])
    joined(found, Log())
    found.progress()
    return found


def array(count: int, element: bytes = b"\xc0") -> bytes:
    """A list of one-byte elements."""
    return b"\xdd" + struct.pack(">I", count) + element * count


HEADS = st.sampled_from([GENERAL, SCALARS, BYTES, TABLES, ROWS + b"\x00\x00", ARROW])
BODIES = st.one_of(
    st.tuples(HEADS, st.integers(0, 2**20), st.sampled_from([b"\xc0", b"\x80", b"\x90", b"\x01"])).map(
        lambda found: found[0] + array(found[1], found[2])
    ),
    st.tuples(HEADS, st.integers(0, 2**20)).map(lambda found: found[0] + b"\x91" + array(found[1])),
    st.tuples(HEADS, st.binary(max_size=40)).map(b"".join),
)
EVENTS = st.one_of(st.integers(0, 3), st.integers(90, 110), st.integers(0, 2**32 - 1))
FORMS = st.sampled_from([ITEMS, LIST, COLUMNS, CONTROL])


def flags(rows: int) -> bytes:
    """A record batch with as many rows as a byte string can have: one bit each."""
    column = pa.BooleanArray.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bytes(rows // 8 + 1))])
    return b"".join(map(bytes, body_of([event_of("push_batch", pa.record_batch([column], names=["n"]))])))


COUNTS = st.one_of(st.integers(0, 2 * CAPACITY), st.sampled_from([wire.MOST_ITEMS, wire.MOST_ITEMS + 1, 2**18]))


class Body(bytes):
    """A body whose repr is short."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes that begin with {bytes(self[:20])!r}"


#: Frames of a peer that sends anything, and frames whose headers are true.
FRAMES = st.one_of(
    st.tuples(EVENTS, EVENTS, FORMS, BODIES),
    st.tuples(st.integers(0, 1), COUNTS, st.sampled_from([ITEMS, LIST])).map(
        lambda found: (*found, SCALARS + array(found[1]))
    ),
    st.sampled_from([1, CAPACITY, wire.MOST_ROWS, wire.MOST_ROWS + 1]).map(
        lambda rows: (0, rows, COLUMNS, flags(rows))
    ),
).map(lambda found: (*found[:3], Body(found[3])))
MOST = {ITEMS: CAPACITY, LIST: wire.MOST_ITEMS, COLUMNS: wire.MOST_ROWS, CONTROL: 1}


def takes_no_more_than_it_says(frame: tuple[int, int, int, bytes]) -> None:
    """A frame is taken as far as its header and the credit permit, or refused; memory is bounded either way."""
    first, events, form, body = frame
    there = receiving()
    tracemalloc.start()
    try:
        there.admit((first, events, form, len(body)))
        there.received(Frame(first, events, form, [body]))
    except ValueError:
        assert not there.entries
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert there.depth <= MOST[form]
    assert peak <= 24 * len(body) + COST * 2**20


def all_frames(examples: int) -> None:
    """Try so many frames, the same every time."""
    search = settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate])
    search(given(FRAMES)(takes_no_more_than_it_says))()


def test_any_frame_takes_no_more_than_its_header_says() -> None:
    """It is the header that bounds what a frame costs."""
    all_frames(80)


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number in the header is compared with no credit."""
    monkeypatch.setattr(Inbox, "admit", lambda self, header: True)


def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists have as many items, and batches as many rows, as a peer likes."""
    monkeypatch.setattr(wire, "MOST_ITEMS", 2**32)
    monkeypatch.setattr(wire, "MOST_ROWS", 2**32)


def compared_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number in the header is compared with the items when they have been made."""
    monkeypatch.setattr(Inbox, "admit", lambda self, header: header[1] < 2**32)
    monkeypatch.setattr(BodyReader, "_items", lambda self, head, data, events: self._decoded(data))


@pytest.mark.parametrize("plant", [unchecked, unbounded, compared_later])
def test_a_planted_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """One of the frames shows it."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        all_frames(80)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ((0, CAPACITY + 1, ITEMS, 200), "the credit ends at 100"),
        ((CAPACITY, 1, LIST, 200), "the credit ends at 100"),
        ((1, 1, ITEMS, 200), "expected is 0"),
        ((0, wire.MOST_ITEMS + 1, LIST, 2**20), "the bounds are 65536"),
        ((0, 2, LIST, 2 * wire.MOST_BYTES + 1), "the bounds are 65536 and 8388608"),
        ((0, 1, ITEMS, wire.MOST_OF_EVENT + 1), "the bounds are"),
        ((0, wire.MOST_ROWS + 1, COLUMNS, 2**20), "the bounds are 16777216"),
        ((0, 2, CONTROL, 3), "the bounds are 1 and 64"),
        ((0, 1, CONTROL, 10_000), "the bounds are 1 and 64"),
    ],
)
def test_a_header_beyond_a_bound_is_refused(header: tuple[int, int, int, int], why: str) -> None:
    """The number in the header is enough: nothing has been received yet."""
    with pytest.raises(ValueError, match=why):
        receiving().admit(header)


def test_a_list_in_one_item_is_bounded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One event whose bytes would become a far larger collection stays bytes; the sending half refuses it."""
    monkeypatch.setattr(frame_body, "_MADE", 2**20)
    monkeypatch.setattr(wire, "MOST_BYTES", 1000)
    there = receiving()
    there.received(Frame(0, 1, ITEMS, [GENERAL + b"\x91" + array(2**17 + 1, b"\x90")]))
    ((_, left),) = there.capture()["entries"]
    assert isinstance(left, Undecoded)
    item = [*range(2**17 + 1)]
    with pytest.raises(NotStorable, match="; send it in parts, or as bytes, an array or a record batch"):
        checked(event_of("push", item))
    assert crossed("push", item[: 2**16]) == item[: 2**16]
    assert crossed("push", numpy.array(item).tobytes()) == numpy.array(item).tobytes()
    assert crossed("push", numpy.array(item)).tolist() == item
    assert crossed("push_batch", pa.record_batch({"n": item})) == pa.record_batch({"n": item})


def crossed(method: Method, payload: Any) -> Any:
    """What arrives of a payload at the other half."""
    event, there = checked(event_of(method, payload)), receiving()
    there.received(Frame(0, event.events, event.form, [b"".join(map(bytes, body_of([event])))]))
    ((_, found),) = there.capture()["entries"]
    return found


@pytest.mark.parametrize("form", [bytes, numpy.frombuffer, lambda item: {"a": item}])
def test_an_item_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch, form: Callable[[bytes], Any]) -> None:
    """As bytes, too, so that parts are the only cure."""
    monkeypatch.setattr(wire, "MOST_OF_EVENT", 100_000 + wire.MOST_BYTES)
    item = bytes(100_008)
    with pytest.raises(NotStorable, match=r"it has 100\d+ bytes, and the bound is 100000; send it in parts$"):
        checked(event_of("push", form(item)))
    assert repr(crossed("push", form(item[:50_000]))) == repr(form(item[:50_000]))


def test_frames_that_wait_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends on, though large items wait, is refused; processed ones count no longer."""
    monkeypatch.setattr(inbox_module, "MOST_OF_EVENT", 10_000)
    monkeypatch.setattr(inbox_module, "LARGEST", 5_000)
    there = receiving()
    (event,) = (event_of("push", bytes(9_000)),)
    body = b"".join(map(bytes, body_of([event])))
    for number in range(3):
        there.received(Frame(number, 1, ITEMS, [body]))
    assert there.progress().credit == 3
    with pytest.raises(ValueError, match="while 27"):
        there.admit((3, 1, ITEMS, len(body)))
    there.take(3), there.take(1)
    there.admit((3, 1, ITEMS, len(body)))


LISTS = st.lists(st.one_of(st.integers(), st.text(max_size=30), st.dictionaries(st.text(max_size=3), st.integers())))


@given(LISTS)
@settings(max_examples=50, deadline=None)
def test_a_sender_splits_what_a_receiver_would_refuse(batch: list[Any]) -> None:
    """Lists are sent in parts within the bounds, in order; each part is accepted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MOST_ITEMS", 4)
        patch.setattr(wire, "MOST_BYTES", 64)
        events = [*pieces(batch)]
    assert [item for _, part in events for item in part] == batch
    assert all(event.events <= 4 and (event.size <= 64 or event.events == 1) for event, _ in events)


def test_a_large_record_batch_still_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with more rows than the credit crosses whole; only one of more rows or bytes than the bound is split."""
    batch = pa.record_batch({"n": pa.array(range(200_000), pa.int64())})
    ((event, _part),) = pieces(batch)
    there = receiving()
    body = b"".join(map(bytes, body_of([event])))
    there.admit((0, event.events, COLUMNS, len(body)))
    there.received(Frame(0, event.events, COLUMNS, [body]))
    assert there.depth == 200_000
    monkeypatch.setattr(wire, "MOST_ROWS", 100_000)
    assert [one.events for one, _ in pieces(batch.slice(0, 150_000))] == [100_000, 50_000]
    monkeypatch.setattr(wire, "MOST_OF_EVENT", 1_000_000 + wire.MOST_BYTES)
    monkeypatch.setattr(wire, "MOST_ROWS", 2**24)
    assert [one.events for one, _ in pieces(batch.slice(0, 100_000))] == [100_000]


class Absent:
    """The wire to a peer that is away."""

    def wake(self, key: str, *, later: bool = False) -> None:
        """Send nothing."""

    send_now = wake


def sending(tmp_path: Path, mode: Any) -> Outbox:
    """An outbox whose peer is away."""
    found = Outbox("out", peer="b", key="k", capacity=1000, mode=mode)
    if mode == "offline":
        found._disk = Spill(tmp_path)
    found._wire = Absent()  # type: ignore[assignment]
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of what an outbox has in memory is 1 MB."""
    monkeypatch.setattr(outbox_module, "MOST_OF_EVENT", 1_000_000)


def night() -> Iterator[Any]:
    """What a night brings: batches of 100 kB, one every few minutes."""
    for number in range(150):
        yield pa.record_batch({"n": pa.array([number] * 12_500, pa.int64())})


def test_a_night_of_an_absent_peer_is_bounded_in_memory(small: None, tmp_path: Path) -> None:
    """Items beyond 1 MB are on disk, though `capacity` permits them in memory; all are sent later, in order."""
    there = sending(tmp_path, "offline")
    entry = there.entry(())
    for batch in night():
        entry.push_batch(batch.slice(0, 12_500))
    assert there._bytes <= 1_200_000
    assert there._in_memory <= 12 * 12_500
    there.resumed(Progress("i", 0, 0, 2**40))
    found, number = [], 0
    while frames := there.frames(2**20):
        assert there._bytes <= 6_000_000
        for frame in frames:
            found.append(frame.first)
            number = frame.first + frame.events
        there.acknowledged(Progress("i", number, number, 2**40))
    assert found == [place * 12_500 for place in range(150)]
    there._disk.close()  # type: ignore[union-attr]


def test_a_pusher_waits_for_bytes(small: None, tmp_path: Path) -> None:
    """An outbox with few large items has no room for another one until some are acknowledged."""
    there = sending(tmp_path, "async")
    entry = there.entry(())
    for _ in range(10):
        assert there._has_room(1)
        entry.push(bytes(100_000))
    assert not there._has_room(1)
    there.resumed(Progress("i", 0, 0, 100))
    there.frames(2**22)
    there.acknowledged(Progress("i", 1, 1, 100))
    assert there._has_room(1)
