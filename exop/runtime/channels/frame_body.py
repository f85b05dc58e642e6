"""The bodies of frames: items, lists, record batches and control items as bytes, and back.

The first byte of a body names its encoding. Plain values are encoded and decoded by msgspec. Items of one dataclass or
named tuple are rows: the names of the class and its fields once, then the values. Everything else is encoded like the
values of a checkpoint. A record batch is its schema, and one message of Arrow IPC with the columns by reference.

The bytes come from a peer: only declared classes of loaded modules are found, and no code of a class is called.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import product
from operator import attrgetter
from typing import Annotated, Any, Final, TypeAlias, cast

import msgspec

from exop.errors import NotStorable, StoredStateError, WiringError
from exop.model.items import Batch, EndOfStream, Punctuation
from exop.model.meshes.mesh import Node
from exop.model.slets.ports import PortType
from exop.model.types.assignable import find_column_mismatch, takes_class
from exop.model.types.description import is_named_tuple, type_of
from exop.model.values import columns
from exop.model.values.classes import Declared, class_named, filled, full_name, name_of, named, shown
from exop.model.values.depth import DEPTH
from exop.model.values.encoding import decode, encode
from exop.runtime.channels import wire
from exop.runtime.channels.wire import COLUMNS, CONTROL, ITEMS, LIST, Buffer, Event, Frame, Undecoded
from exop.runtime.dataflow.batches import cut, weight
from exop.runtime.dataflow.entry import Method

#: The first byte of a body.
GENERAL, SCALARS, BYTES, TABLES, ROWS, ARROW = (bytes([number]) for number in range(6))
#: The nesting depth of a body: a list around its items.
_LEVELS: Final = DEPTH + 2
_Scalar: TypeAlias = bool | int | float | str | None
_KINDS: Final = {type(None): SCALARS, bool: SCALARS, int: SCALARS, float: SCALARS, str: SCALARS, bytes: BYTES}
_TEXT: Final = frozenset({str})
_PLAIN: Final = frozenset({type(None), bool, int, float, str})
#: Bytes of memory that the collections in a frame may take.
_MADE: Final = 256 * 2**20
_SHORT: Final = struct.Struct(">H")
_LONG: Final = struct.Struct(">I")
_packed: Final = msgspec.msgpack.Encoder().encode
_decoders: Final[dict[bytes, Callable[[Any], list[Any]]]] = {
    SCALARS: msgspec.msgpack.Decoder(list[_Scalar]).decode,
    BYTES: msgspec.msgpack.Decoder(list[bytes]).decode,
    TABLES: msgspec.msgpack.Decoder(list[dict[str, _Scalar]]).decode,
    ROWS: msgspec.msgpack.Decoder(list[list[_Scalar]]).decode,
}
_class_and_fields: Final = msgspec.msgpack.Decoder(tuple[str, list[str]]).decode
_parts_of: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_control: Final = msgspec.msgpack.Decoder(tuple[int | float, int | float | None] | None).decode


def item_event(item: Any, at: float = 0.0) -> Event:
    """Encode a single item; raise `NotStorable` if it, or a part of it, is of a class that has no form as bytes."""
    if (head := _KINDS.get(kind := type(item))) is None:
        if (row := _row(cast(Hashable, kind))) is not None:
            head, values = row
            return Event(1, ITEMS, head, encode(values(item)), at)
        return Event(1, ITEMS, TABLES if kind is dict and _is_flat(item) else GENERAL, encode(item), at)
    try:
        return Event(1, ITEMS, head, _packed(item), at)
    except (OverflowError, UnicodeEncodeError):  # an integer of more than 64 bits
        return Event(1, ITEMS, GENERAL, encode(item), at)


def batch_event(batch: Any, at: float = 0.0) -> Event:
    """Encode a list of items; a record batch is encoded when it is sent.

    Raises:
        NotStorable: an item, or a part of it, is of a class that has no form as bytes.
    """
    if not isinstance(batch, list):
        rows, plain = int(batch.num_rows), type(batch).__name__ == "RecordBatch"
        if plain and not columns.has_dictionary(batch.schema):
            return Event(rows, COLUMNS, ARROW, batch, at)
        return Event(rows, COLUMNS, GENERAL, encode(batch), at)
    kinds = set(map(type, batch))
    heads = set(map(_KINDS.get, kinds))
    if (head := heads.pop() if len(heads) == 1 else None) is not None:
        with suppress(OverflowError, UnicodeEncodeError):
            return Event(len(batch), LIST, head, _packed(batch), at)
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is not None and (row := _row(cast(Hashable, kind))) is not None:
        head, values = row
        return Event(len(batch), LIST, head, encode([*map(values, batch)], levels=_LEVELS), at)
    flat = kind is dict and all(map(_is_flat, batch))
    return Event(len(batch), LIST, TABLES if flat else GENERAL, encode([*batch], levels=_LEVELS), at)


def pieces(batch: Any, at: float = 0.0) -> Iterator[tuple[Event, Any]]:
    """Encode a list or record batch, in several events if it is larger than an inbox accepts; each with its items.

    Raises:
        NotStorable: as `batch_event`, or an item or row is larger than any frame.
    """
    size, is_list = weight(batch), isinstance(batch, list)
    if not size:
        return
    step = wire.MOST_ITEMS if is_list else wire.MOST_ROWS
    if not is_list and batch.nbytes > wire.MOST_OF_EVENT // 2:  # a part of a frame is no column
        step = min(step, max(1, size // 2))
    if size > step:
        for low in range(0, size, step):
            yield from pieces(cut(batch, low, low + step), at)
        return
    event = batch_event(batch, at)
    if is_list and size > 1 and len(event.data) > wire.MOST_BYTES:
        yield from pieces(batch[: size // 2], at)
        yield from pieces(batch[size // 2 :], at)
        return
    yield checked(event), batch


def checked(event: Event) -> Event:
    """Return an event with one item, list or record batch; raise `NotStorable` if an inbox would refuse its size."""
    size, most = event.size, wire.MOST_OF_EVENT - wire.MOST_BYTES
    problem, cure = f"it has {size} bytes, and the bound is {most}" if size > most else "", "send it in parts"
    if not problem and size > wire.MOST_BYTES and event.head not in (ARROW, BYTES, SCALARS):
        try:
            decode(event.data, levels=_LEVELS, most=_MADE)
        except StoredStateError as error:
            problem, cure = str(error.__cause__ or error), f"{cure}, or as bytes, an array or a record batch"
    if problem:
        raise NotStorable(place="a connector", value="an item", problem=problem, cure=cure)
    return event


def control_event(mark: Punctuation | EndOfStream, at: float = 0.0) -> Event:
    """Encode a control item."""
    return Event(1, CONTROL, b"", _packed((mark.time, mark.idle) if isinstance(mark, Punctuation) else None), at)


def event_of(method: Method, payload: Any, at: float = 0.0) -> Event:
    """Encode a payload that *method* of an entry takes; raises as `item_event`."""
    if isinstance(payload, Undecoded):
        return Event(payload.num_rows, payload.form, payload.body[:1], payload.body[1:], at)
    if method == "push":
        return item_event(payload, at)
    return batch_event(payload, at) if method == "push_batch" else control_event(payload, at)


def body_of(group: Sequence[Event]) -> list[Buffer]:
    """Return the body of a frame: one event, or several single items with the same head."""
    if (first := group[0]).form == ITEMS:
        number = len(group)
        opening = bytes([0x90 + number]) if number < 16 else b"\xdd" + _LONG.pack(number)
        return [first.head + opening, b"".join([event.data for event in group])]
    if first.head == ARROW:
        schema, parts = columns.message(first.data)
        schema += bytes(-(len(schema) + 1 + _LONG.size) % 64)  # the columns, which refer to the body, are aligned
        return [ARROW + _LONG.pack(len(schema)) + schema, *parts]
    return [first.head, first.data]


class BodyReader:
    """Decodes the bodies of frames from a peer.

    Args:
        declared: The classes that the items may be of; `None` if the bytes are from this process.
        ports: The types of the ports, each of which has to take the items; a port by columns converts them itself.

    Attributes:
        made: About how many bytes of memory the collections in the latest frame take.
    """

    def __init__(self, declared: Declared | None, ports: Sequence[PortType] = ()) -> None:
        self.made = 0
        self._declared = declared
        self._wanted = [port.items for port in ports if port.form != "columns"]
        self._fitting: set[type] = set()  # the classes that were compared
        self._schemas: dict[bytes, Any] = {}

    def read(self, frame: Frame) -> list[tuple[Method, Any]]:
        """Return the payloads of a frame, each with the method that takes it.

        Raises:
            StoredStateError: a class is not declared, or not loaded; or a port does not take the items.
            ValueError: the body is malformed, or has another number of events than the frame.
        """
        body = frame.body[0] if len(frame.body) == 1 else b"".join(bytes(part) for part in frame.body)
        try:
            return self._payloads(frame, body)
        except (ValueError, StoredStateError):
            raise
        except Exception as problem:  # noqa: BLE001 (malformed bytes can raise anything)
            raise ValueError(f"{type(problem).__name__}: {problem}"[:200]) from None

    def read_each(self, frame: Frame, failed: Callable[[Exception], object] = bool) -> list[tuple[Method, Any]]:
        """Return the payloads of a frame, with `Undecoded` in place of items that cannot be decoded; *failed* gets why.

        Memory is bounded: a frame whose items would take more together is not decoded.
        """
        try:
            return self.read(frame)
        except (ValueError, StoredStateError) as problem:
            failed(problem)
        found, made = list[tuple[Method, Any]](), 0
        for one in _single(frame, b"".join(frame.body)):
            try:
                if one.num_rows == frame.events or made > _MADE:
                    raise ValueError
                found += self.read(Frame(0, 1, frame.form, [one.body]))
                made += self.made
            except (ValueError, StoredStateError):
                found.append(("push_batch", one))
        self.made = made
        return found

    def _payloads(self, frame: Frame, body: Buffer) -> list[tuple[Method, Any]]:
        found: list[tuple[Method, Any]]
        head, self.made = bytes(body[:1]), 0
        if frame.form == CONTROL:
            content, events = _control(body), 1
            found = [("control", EndOfStream() if content is None else Punctuation(*content))]
        elif frame.form == COLUMNS:
            batch = self._columns(head, memoryview(body)[1:])
            found, events = [("push_batch", batch)], batch.num_rows
        else:
            items = self._items(head, memoryview(body)[1:], frame.events)
            self._compare(set(map(type, items)) - self._fitting if self._wanted else ())
            found = [("push_batch", Batch(items))] if frame.form == LIST else [("push", item) for item in items]
            events = len(items)
        if events != frame.events:
            raise ValueError(f"a frame of {frame.events} events has {events}")
        return found

    def _items(self, head: bytes, data: memoryview, events: int) -> list[Any]:
        make = None
        if head == ROWS:
            size = _SHORT.unpack_from(data)[0]
            make = self._maker(bytes(data[2 : 2 + size]))
            data = data[2 + size :]
        if (found := _length_of(data)) != events:  # before anything is made of it
            raise ValueError(f"a frame of {events} events has {found}")
        flat = head in (SCALARS, BYTES)
        # The fast decoder does not count the memory.
        if (fast := _decoders.get(head)) is not None and (flat or 8 * events <= len(data) <= wire.MOST_BYTES):
            try:
                items = fast(data)
                self.made = 0 if flat or len(data) < 256 * events else sum(map(sys.getsizeof, items))
            except msgspec.DecodeError:
                items = self._decoded(data)
        else:
            items = self._decoded(data)
        if type(items) is not list or (head not in _decoders and head != GENERAL):
            raise ValueError("the items are no list in a known encoding")
        return items if make is None else [make(row) for row in items]

    def _compare(self, kinds: Iterable[type]) -> None:
        """Refuse items of these classes unless each port takes them."""
        for kind, wanted in product(kinds, self._wanted):
            if not takes_class(wanted, kind):
                raise _unfit(f"it is {shown(full_name(kind))}, and {shown(wanted.identity, str(wanted))} is expected")
        self._fitting.update(kinds)

    def _decoded(self, data: memoryview) -> Any:
        count = partial(setattr, self, "made")
        return decode(bytes(data), levels=_LEVELS, declared=self._declared, most=_MADE, count=count)

    def _maker(self, head: bytes) -> Callable[[list[Any]], Any]:
        """Return the function that makes an item of a row."""
        name, names = _class_and_fields(head)
        if is_named_tuple(named(name)):
            kind = class_named(name, "named tuple", is_named_tuple, self._declared)
        else:
            kind = class_named(name, "dataclass", dataclasses.is_dataclass, self._declared)
        if name_of(kind) != name and (extra := [one for one in names if one not in type_of(kind).fields]):
            raise _unfit(f"it is {shown(name)}, whose field {extra[0]!r} {shown(full_name(kind))} lacks")
        defaults = self._declared is None or self._declared.names(kind)
        return lambda row: filled(kind, dict(zip(names, row, strict=True)), defaults=defaults)

    def _columns(self, head: bytes, data: memoryview) -> Any:
        if head == GENERAL:
            if not columns.is_columns(found := self._decoded(data)):
                raise ValueError("the columns are no record batch")
            return found
        size = _LONG.unpack_from(data)[0]
        if (schema := self._schemas.get(described := bytes(data[4 : 4 + size]))) is None:
            schema = columns.read_schema(described)
            for wanted in self._wanted:
                if found := find_column_mismatch(type_of(Annotated[columns.batch_type(), schema]), wanted):
                    raise _unfit(f"the columns differ: {found}")
            self._schemas = {described: schema}
        return columns.read_message(data[4 + size :], schema)


def _unfit(problem: str) -> StoredStateError:
    cure = "replace the slet by one that takes it, or the sender by one whose annotation names it"
    return StoredStateError(what="an item", problem=problem, cure=cure)


def _single(frame: Frame, body: bytes) -> list[Undecoded]:
    """Return each item of a frame, or the whole if it is no list of several items."""
    start, items = 1, list[msgspec.Raw]()
    with suppress(struct.error, msgspec.MsgspecError, RecursionError):  # it may be malformed as a whole
        if body[:1] == ROWS:
            start = 3 + _SHORT.unpack_from(body, 1)[0]
        if frame.form in (ITEMS, LIST) and frame.events > 1:
            items = _parts_of(memoryview(body)[start:])
    if len(items) == frame.events and len(items) * start <= wire.MOST_BYTES:
        return [Undecoded(LIST, 1, body[:start] + b"\x91" + bytes(one)) for one in items]
    return [Undecoded(LIST if frame.form == ITEMS else frame.form, frame.events, body)]


def read_again(batch: Undecoded, node: Node, port: str, application: str) -> Any:
    """Decode a batch for one port; raise `WiringError` if it cannot be decoded, or the port does not take it."""
    wanted, place = node.slet.ports[port].type, f"{application}.{node.name}"
    reader = BodyReader(Declared(wanted.items), [wanted])
    try:
        return reader.read(Frame(0, batch.num_rows, batch.form, [batch.body]))[0][1]
    except (ValueError, StoredStateError) as error:
        problem = getattr(error, "problem", error)
        cure = f"its bytes are malformed: `exop item export {place} FILE --dead-letter N` writes them into a file"
        if isinstance(error, StoredStateError) and error.__cause__ is None:
            cure = f"{error.cure}, and then `exop item retry {place}`"
        raise WiringError(f"{place}.{port} cannot take an item of another host: {problem}; {cure}") from None


def _length_of(data: memoryview) -> int:
    """Return the length of the list with which msgpack begins; -1 if it begins with anything else."""
    if len(data) and data[0] & 0xF0 == 0x90:
        return data[0] & 0x0F
    return int.from_bytes(data[1 : 3 if data[0] == 0xDC else 5], "big") if data and data[0] in (0xDC, 0xDD) else -1


@lru_cache(maxsize=1024)
def _row(kind: Hashable) -> tuple[bytes, Callable[[Any], list[Any]]] | None:
    """Return the head of rows of this class, and how an item becomes one; `None` if they are encoded otherwise."""
    found: Any = kind
    if is_named_tuple(found):
        names, values = list(found._fields), list
    elif dataclasses.is_dataclass(found) and found not in (Punctuation, EndOfStream):
        if len(names := [field.name for field in dataclasses.fields(found)]) < 2:
            return None
        several = attrgetter(*names)
        values = lambda item: list(several(item))  # type: ignore[assignment]  # noqa: E731
    else:
        return None
    head = _packed((name_of(found), names))
    return (ROWS + _SHORT.pack(len(head)) + head, values) if len(head) < 2**16 else None


def _is_flat(table: dict[Any, Any]) -> bool:
    """Whether the fast decoder takes a dictionary: from text to plain values."""
    return _TEXT.issuperset(map(type, table)) and _PLAIN.issuperset(map(type, table.values()))
