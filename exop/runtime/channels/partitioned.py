"""Keys of items, and partitions: each item is passed to the member of a group that owns the partition of its key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeAlias, cast

from exop.errors import MeshError
from exop.model.meshes.partitions import MOST, partition_of, ranges, rows_by_owner
from exop.runtime.channels.wire import Undecoded
from exop.runtime.dataflow.entry import Entry, LateEntry, Method, Push, Step, Unwind, fan_out, in_turn
from exop.safe_repr import safe_repr

#: The maximum number of keys of which the owner is remembered, for each channel.
REMEMBERED: Final = 65_536
#: The integers between are finite as floats, too.
_WHOLE: Final = 2**1023
#: Takes an item that cannot be assigned to a partition.
Refuse: TypeAlias = Callable[[Method, Any, BaseException], None]
#: The source of the function that pushes one item.
_PUSH: Final = """
def push(item):
    try:
        push = owners[{key}]
    except BaseException as error:
        other(item, error)
        return
    push(item)
"""
#: The members of one group: the entry of one port of each, by node.
Members: TypeAlias = Mapping[str, Entry]


@dataclass(frozen=True)
class Partitioning:
    """The partitions of a channel: the field of the items that is their key, and their number.

    Two instances are equal if they assign each key to the same partition, even for different channels.
    """

    channel: str = field(compare=False)
    by: str
    partitions: int

    def __post_init__(self) -> None:
        if not self.by:
            raise MeshError(f"the channel {self.channel!r} is partitioned by no field; name one, or leave out by=''")
        if not 1 <= self.partitions <= MOST:
            cure = f"give a number from 1 to {MOST}"
            raise MeshError(f"the channel {self.channel!r} has {self.partitions} partitions; {cure}")

    @property
    def key(self) -> str:
        """The expression for the key of most items, as source code, which reads an attribute faster than `getattr`."""
        if self.by.isdigit():
            return f"item[{int(self.by)}]"
        attribute = f" if type(item) is dict else item.{self.by}"
        return f"item[{self.by!r}]" + (attribute if self.by.isidentifier() and not iskeyword(self.by) else "")


def key_reader(fields: str | Sequence[str] | None) -> Callable[[Any], Any]:
    """Return a function that reads the key of an item: one field, several (a tuple), or none (one key for all)."""
    if not fields:
        return lambda item: None
    if isinstance(fields, str):
        return _reader(fields)
    if len(fields) == 1:
        (read,) = map(_reader, fields)
        return lambda item: (read(item),)
    return _reader(*fields)


def time_reader(field: str) -> Callable[[Any], float]:
    """Return a function that reads the time of an item, a finite number."""
    read = key_reader(field)

    def moment(item: Any) -> Any:
        time = item.get(field) if type(item) is dict else read(item)
        if time - time == 0 if type(time) is float else type(time) is int and -_WHOLE < time < _WHOLE:
            return time  # the usual case; inf - inf is NaN
        time = read(item)  # it fails if the field is missing
        try:
            if math.isfinite(time):
                return time if isinstance(time, (int, float)) else float(time)
        except (TypeError, OverflowError):
            pass
        needed = "a finite number is needed; of a datetime that is its timestamp()"
        raise ValueError(f"the time of an item, its field {field!r}, is {safe_repr(time)}: {needed}")

    return moment


def _reader(*names: str) -> Callable[[Any], Any]:
    of_row = itemgetter(*names)
    last: tuple[type | None, Callable[[Any], Any]] = None, of_row  # most streams have items of one class

    def read(item: Any) -> Any:
        nonlocal last
        try:
            if type(item) is dict:
                return of_row(item)
            kind, get = last
            if type(item) is not kind:
                get = _getter(type(item), names)
                last = type(item), get
            return get(item)
        except (LookupError, AttributeError, TypeError) as error:
            kind = type(item)
            fields = [one for one in dir(item) if not (one.startswith("_") or callable(getattr(kind, one, None)))]
            known = item if isinstance(item, Mapping) else fields
            there = [*map(str, range(len(item)) if isinstance(item, (tuple, list)) else ()), *map(str, known)]
            name = next((one for one in names if one not in there), names[0])
            raise LookupError(f"the item has no field {name!r}; it has {', '.join(there) or 'none'}") from error

    return read


def _getter(kind: type, names: Sequence[str]) -> Callable[[Any], Any]:
    """Return a function that reads fields of items of a class: one, or several as a tuple."""
    if issubclass(kind, Mapping):
        return itemgetter(*names)
    if not any(name.isdigit() for name in names):
        return attrgetter(*names)
    if all(name.isdigit() for name in names):
        return itemgetter(*map(int, names))
    getters = [_getter(kind, (name,)) for name in names]
    return lambda item: tuple([get(item) for get in getters])


class Owners(dict[Any, Any]):
    """The owners of the partitions in a table, by key; looked up when a key first arrives, and then stored."""

    __slots__ = ("table",)

    def __init__(self, table: Sequence[Any]) -> None:
        super().__init__()
        self.table = table

    def __missing__(self, key: Any) -> Any:
        if len(self) >= REMEMBERED:
            self.clear()
        return self.setdefault(key, self.table[partition_of(key, len(self.table))])


def route(partitioning: Partitioning, groups: Sequence[Members], refuse: Refuse) -> Entry:
    """Compile the entry of several groups: an item is passed to one member of each, a control item to all members.

    A batch is split; the items of one partition remain in order. If the driver unwinds, the rest of a batch is assigned
    again when the driver continues.
    """
    table, key_of, expression = _table(partitioning, groups), key_reader(partitioning.by), partitioning.key
    owners, fast = Owners(table), eval(f"lambda item: {expression}")

    def push_other(item: Any, error: BaseException) -> None:
        """Push an item of a less common type, such as a mapping; refuse an item without a partition."""
        try:
            if not isinstance(error, Exception):
                raise error
            key = key_of(item)
            partition_of(key)  # its error is clearer than that of a dictionary
            owner = owners[key]
        except BaseException as problem:  # noqa: BLE001 (any exception of a property of an item)
            refuse("push", item, problem)
            return
        owner.push(item)

    def push_batch(batch: Any) -> None:
        try:
            parts = split(batch, partitioning.by, owners, fast)
        except BaseException as error:  # noqa: BLE001 (each item is tried separately)
            if isinstance(batch, list):
                in_turn(made, batch)
            elif isinstance(batch, Undecoded):  # its keys are unknown: one member of each group sets it aside
                fan_out([next(iter(group.values())) for group in groups]).push_batch(batch)
            else:
                refuse("push_batch", batch, error)
            return
        try:
            for owner, part in parts:
                owner.push_batch(part)
        except Unwind as unwound:
            unwound.then(made, "push_batch", [part for _, part in parts])
            raise

    def probe() -> Entry:
        return route(partitioning, [{name: one.probe for name, one in group.items()} for group in groups], refuse)

    late = {"push": lambda: _push(expression, table, push_other), "push_batch": lambda: push_batch, "probe": probe}
    every = fan_out([entry for group in groups for entry in group.values()])
    made = LateEntry(every.control, late)
    made.gathers, made.max_wait = every.gathers, every.max_wait
    return made


def shared_out(partitioning: Partitioning, members: Members, method: Method, payload: Any) -> Iterator[Step]:
    """Yield the parts of a payload for the members of one group; a control item goes to all of them.

    Raises:
        LookupError: an item has no key.
        TypeError: the key of an item has no partition.
    """
    if method not in ("push", "push_batch"):
        yield from ((entry, method, payload) for entry in members.values())
        return
    by, owners = partitioning.by, Owners(_table(partitioning, [members]))
    key_of = key_reader(by)
    parts = [(owners[key_of(payload)], payload)] if method == "push" else split(payload, by, owners, key_of)
    yield from ((entry, method, part) for entry, part in parts)


def _push(key: str, table: Sequence[Entry], other: Callable[[Any, BaseException], None]) -> Push:
    """Compile the function that pushes one item."""
    pushes = {entry: entry.push for entry in dict.fromkeys(table)}
    names: dict[str, Any] = {"owners": Owners([pushes[entry] for entry in table]), "other": other}
    exec(_PUSH.format(key=key), names)
    return cast("Push", names["push"])


def _table(partitioning: Partitioning, groups: Sequence[Members]) -> list[Entry]:
    """Return the entry of the owners of each partition."""
    owned = [ranges(group, partitioning.partitions) for group in groups]
    names = [[name for name, part in found.items() for _ in part] for found in owned]
    chosen = [*zip(*names, strict=True)]
    made = {one: fan_out([group[name] for group, name in zip(groups, one, strict=True)]) for one in {*chosen}}
    return [made[one] for one in chosen]


def split(batch: Any, by: str, owners: Owners, key_of: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    """Split a list, or a record batch by its column *by*: one part for each owner of any of its items."""
    if not isinstance(batch, list):
        return iter(_split_columns(batch, by, owners.table))
    parts: dict[Any, list[Any]] = {}
    for item in batch:
        parts.setdefault(owners[key_of(item)], []).append(item)
    return iter(parts.items())


def _split_columns(batch: Any, by: str, table: Sequence[Any]) -> list[tuple[Any, Any]]:
    if by not in batch.schema.names:
        raise LookupError(f"the batch has no column {by!r}; it has {', '.join(batch.schema.names)}")
    column, numbers = batch.column(by), {owner: number for number, owner in enumerate(dict.fromkeys(table))}
    if len(numbers) == 1:
        return [(table[0], batch)]
    rows, begins = rows_by_owner(column, [numbers[owner] for owner in table])
    sorted_batch, parts = batch.take(rows), zip(numbers, begins, begins[1:], strict=False)
    return [(owner, sorted_batch.slice(low, high - low)) for owner, low, high in parts if high > low]
