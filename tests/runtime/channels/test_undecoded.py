"""Of a frame with items that cannot be decoded, the others pass, in their places; nothing is lost, and no memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import EndOfStream, Punctuation
from exop.model.slets.ports import PortType, port_type
from exop.model.values.classes import Declared
from exop.model.values.encoding import decode, encode
from exop.runtime.channels import frame_body, wire
from exop.runtime.channels.frame_body import BodyReader, body_of, control_event, event_of, item_event
from exop.runtime.channels.inbox import Inbox
from exop.runtime.channels.log import LogChannel
from exop.runtime.channels.wire import COLUMNS, CONTROL, ITEMS, LIST, Frame, Undecoded
from exop.runtime.dataflow.batches import cut
from tests.runtime.rig import Log, joined


@dataclass
class Report:
    """A row."""

    car: int
    speed: float


#: Items of one encoding each.
KINDS: dict[str, list[Any]] = {
    "scalars": [1, "a", 2.5, True],
    "bytes": [b"a", b"b", b"c"],
    "tables": [{"a": 1}, {"b": 2}],
    "general": [{1, 2}, (1, 2), [1, [2]]],
    "rows": [Report(1, 2.0), Report(2, 3.0)],
}
#: An item of a class that is not loaded here; a row that lacks a field.
ABSENT, SHORT = encode(Report(1, 2.0)).replace(b"test_undecoded", b"test_undecodes"), b"\x91\x01"
LEFT = object()


def framed(items: list[Any], form: int, bad: set[int] = frozenset()) -> Frame:  # type: ignore[assignment]
    """A frame with these items, of which the *bad* ones cannot be decoded."""
    events = [item_event(item) for item in items]
    wrong = SHORT if isinstance(items[0], Report) else ABSENT
    events = [event._replace(data=wrong) if number in bad else event for number, event in enumerate(events)]
    return Frame(0, len(items), form, [b"".join(map(bytes, body_of(events)))])


def flat(payloads: Sequence[tuple[Any, Any]]) -> list[Any]:
    """The items of payloads, and `LEFT` in place of each that is not decoded."""
    found: list[Any] = []
    for method, payload in payloads:
        if isinstance(payload, Undecoded):
            assert method == "push_batch"
            found += [LEFT] * payload.num_rows
        else:
            found += [payload] if method == "push" else payload
    return found


@given(st.sampled_from([*KINDS]), st.sampled_from([ITEMS, LIST]), st.integers(1, 20), st.data())
@settings(max_examples=80, deadline=None)
def test_only_what_cannot_be_decoded_is_left_out(kind: str, form: int, size: int, data: st.DataObject) -> None:
    """All others are the same as without it, and in the same order."""
    items = [KINDS[kind][number % len(KINDS[kind])] for number in range(size)]
    bad = data.draw(st.sets(st.integers(0, size - 1)))
    told: list[Exception] = []
    found = BodyReader(Declared(Any)).read_each(framed(items, form, bad), told.append)
    assert flat(found) == [LEFT if number in bad else item for number, item in enumerate(items)]
    assert len(told) == bool(bad)


@pytest.mark.parametrize(("form", "events"), [(ITEMS, 3), (LIST, 1), (COLUMNS, 7), (CONTROL, 1)])
@given(body=st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_a_body_that_is_malformed_is_left_out_as_a_whole(form: int, events: int, body: bytes) -> None:
    """Its events are counted, and it is kept as it came; or it happens to be a body."""
    found = BodyReader(Declared(Any)).read_each(Frame(0, events, form, [body]))
    assert sum(getattr(one, "num_rows", 1) if method != "push_batch" else _size(one) for method, one in found) == events


def _size(batch: Any) -> int:
    return len(batch) if isinstance(batch, list) else batch.num_rows


def test_a_record_batch_that_is_cut_is_left_out() -> None:
    """Of Arrow's messages, each has its length; the next batch of the same schema passes."""
    batch = pa.record_batch({"n": list(range(100))})
    whole = b"".join(map(bytes, body_of([event_of("push_batch", batch)])))
    reader = BodyReader(Declared(Any))
    ((_, left),) = reader.read_each(Frame(0, 100, COLUMNS, [whole[:-60]]))
    assert left == Undecoded(COLUMNS, 100, whole[:-60])
    assert reader.read_each(Frame(0, 100, COLUMNS, [whole]))[0][1].equals(batch)


@pytest.mark.parametrize(
    ("wanted", "sent", "passes"),
    [
        *((int, 1, True), (int, "1", False), (float, 1, True), (int, True, True), (int | str, "a", True)),
        *((Report, Report(1, 2.0), True), (Report, {"car": 1}, False), (dict[str, int], Report(1, 2.0), False)),
        *((Any, Report(1, 2.0), True), (list[int], [1], True), (list[int], (1,), False), (str, None, False)),
    ],
)
def test_items_of_another_type_are_left_out(wanted: Any, sent: Any, passes: bool) -> None:
    """By their class, and that of the port; single ones, and those in a list."""
    reader = BodyReader(Declared(Any), [port_type(wanted)])
    for method, payload in (("push", sent), ("push_batch", [sent, sent])):
        event = event_of(method, payload)  # type: ignore[arg-type]
        found = reader.read_each(Frame(0, event.events, event.form, body_of([event])))
        assert (flat(found) == [sent] * event.events) == passes
        assert passes or flat(found) == [LEFT] * event.events


def test_columns_of_another_schema_are_left_out() -> None:
    """A port that takes rows gets the columns that it needs; one that takes columns converts them itself."""
    event = event_of("push_batch", pa.record_batch({"car": [1]}))
    for wanted, passes in ((Report, False), (dict, True), (Any, True), (pa.RecordBatch, True)):
        reader = BodyReader(Declared(Any), [port_type(wanted)])
        ((_, batch),) = reader.read_each(Frame(0, 1, COLUMNS, body_of([event])))
        assert isinstance(batch, Undecoded) is not passes


def test_what_waits_is_the_same_after_a_restart_and_a_move() -> None:
    """It is stored with its bytes, sent on as the event that it was, and its numbers are its own."""
    there = Inbox("in", peer="a", key="k", capacity=100)
    there.typed([PortType()])
    joined(there, Log())
    there.progress()
    there.received(framed([1, 2, 3], LIST, {1}))
    there.received(Frame(3, 5, ITEMS, [b"\x00\xc1"]))
    assert (there.depth, there.progress().next, there.progress().done) == (8, 8, 0)
    again = Inbox("in", peer="a", key="k", capacity=100)
    again.restore(decode(encode(dict(there.capture()))))
    assert [*map(repr, again.capture()["entries"])] == [*map(repr, there.capture()["entries"])]
    _, following, entries = again.waiting() if again.ack == "received" else (0, 8, again.capture()["entries"])
    for method, payload in entries:
        event = event_of(method, payload)
        read = BodyReader(Declared(Any)).read_each(Frame(0, event.events, event.form, body_of([event])))
        assert read == [(method, payload)]
    left = entries[-1][1]
    assert (following, left.num_rows, cut(left, 2, 5)) == (8, 5, Undecoded(LIST, 3, left.body))


def test_splitting_is_bounded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the head of rows, nor the collections in items, take more than a frame may."""
    frame = framed([Report(1, 2.0)] * 50, LIST, {7})
    monkeypatch.setattr(wire, "MOST_BYTES", 1000)
    ((_, whole),) = BodyReader(Declared(Any)).read_each(frame)
    assert (whole.num_rows, len(whole.body)) == (50, len(frame.body[0]))
    monkeypatch.undo()
    monkeypatch.setattr(frame_body, "_MADE", 2000)
    found = flat(BodyReader(Declared(Any)).read_each(framed([[0] * 50] * 20, LIST)))
    assert 0 < found.count(LEFT) < 20


@pytest.mark.parametrize("mark", [Punctuation(1.0), EndOfStream()])
def test_control_items_are_no_items_of_a_type(mark: Any) -> None:
    """They pass to any port."""
    event = control_event(mark)
    found = BodyReader(Declared(), [port_type(int)]).read_each(Frame(0, 1, CONTROL, body_of([event])))
    assert found == [("control", mark)]


def test_a_log_keeps_what_could_not_be_decoded_in_its_place():
    """Through a checkpoint or a move, with its bytes and its offsets, among items and the end."""
    channel, there = LogChannel("l"), LogChannel("l")
    entry = channel.entry(())
    entry.push(1)
    entry.push_batch(Undecoded(LIST, 2, b"?"))
    entry.push_batch([2, 3])
    entry.control(EndOfStream())
    there.restore(decode(encode(dict(channel.capture()))))
    assert (there.start, there.end) == (channel.start, channel.end) == (0, 5)
    assert [*there.events(0, there.position)] == [[1], Undecoded(LIST, 2, b"?"), [2], [3], EndOfStream()]
    assert there.capture() == channel.capture()
