"""Partitioned channels: each item goes to the one member of a group that owns the partition of its key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, TypeAlias

from exop.errors import MeshError
from exop.model.partitions import MOST, partition_of, ranges, rows_by_owner
from exop.runtime.entry import Entry, Push, Unwind, Way, fan_out, in_turn

#: The maximum number of keys of which the owner is remembered, for each channel.
REMEMBERED: Final = 65_536
#: Takes an item that cannot be assigned to a partition.
Refuse: TypeAlias = Callable[[Way, Any, BaseException], None]
#: The members of one group: the way into one port of each, by node.
Members: TypeAlias = Mapping[str, Entry]


@dataclass(frozen=True)
class Partitioning:
    """The partitions of a channel: the field of the items that is their key, and their number.

    Raises:
        MeshError: the number of partitions is out of bounds.
    """

    channel: str
    by: str
    partitions: int

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= MOST:
            raise MeshError(
                f"the channel {self.channel!r} has {self.partitions} partitions; give a number from 1 to {MOST}"
            )

    def key_of(self) -> Callable[[Any], Any]:
        """Return a function that reads the key of an item."""
        if self.by.isdigit():
            return itemgetter(int(self.by))
        by = self.by
        return lambda item: item[by] if type(item) is dict else getattr(item, by)


class _Owners(dict[Any, Entry]):
    """The way to the owners of a key; it is computed when the key comes first, and remembered for most keys."""

    __slots__ = ("_table",)

    def __init__(self, table: Sequence[Entry]) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, key: Any) -> Entry:
        if len(self) >= REMEMBERED:
            self.clear()
        found = self[key] = self._table[partition_of(key, len(self._table))]
        return found


def route(partitioning: Partitioning, groups: Sequence[Members], refuse: Refuse, *, probing: bool = True) -> Entry:
    """Compile the way into several groups: an item goes to one member of each, a control item to all members.

    A batch is split; the items of one partition stay in order. The rest of a batch that is left over when the driver
    unwinds is assigned anew when it goes on.
    """
    table = _table(partitioning, groups)
    owners, key_of = _Owners(table), partitioning.key_of()

    def refuse_item(item: Any, error: BaseException) -> None:
        try:
            partition_of(key_of(item))  # tells it more clearly than a dictionary does
        except Exception as problem:  # noqa: BLE001 (whatever a property of an item raises)
            error = problem
        refuse("push", item, error)

    def push_batch(batch: Any) -> None:
        try:
            parts = _split(batch, owners, key_of) if isinstance(batch, list) else _split_columns(batch, by, table)
        except BaseException as error:  # noqa: BLE001 (each item is tried alone)
            if isinstance(batch, list):
                in_turn(made, batch)
            else:
                refuse("push_batch", batch, error)
            return
        try:
            for owner, part in parts:
                owner.push_batch(part)
        except Unwind as unwound:
            unwound.then(made, "push_batch", [part for _, part in parts])
            raise

    by, members = partitioning.by, [entry for group in groups for entry in group.values()]
    made = Entry(_push(by, owners, refuse_item), push_batch, fan_out(members).control)
    if probing:
        probes = [{name: one.probe for name, one in group.items()} for group in groups]
        made.probe = route(partitioning, probes, refuse, probing=False)
    return made


def _push(by: str, owners: Mapping[Any, Entry], refuse: Callable[[Any, BaseException], None]) -> Push:
    """Compile the way in for one item."""
    number = int(by) if by.isdigit() else 0

    def push(item: Any) -> None:
        try:
            owner = owners[item[by] if type(item) is dict else getattr(item, by)]
        except BaseException as error:  # noqa: BLE001 (whatever a property of an item raises)
            refuse(item, error)
            return
        owner.push(item)

    def push_tuple(item: Any) -> None:
        try:
            owner = owners[item[number]]
        except BaseException as error:  # noqa: BLE001 (it is no tuple, or too short)
            refuse(item, error)
            return
        owner.push(item)

    return push_tuple if by.isdigit() else push


def _table(partitioning: Partitioning, groups: Sequence[Members]) -> list[Entry]:
    """Return the way to the owners of each partition."""
    owned = [ranges(group, partitioning.partitions) for group in groups]
    names = [[name for name, part in found.items() for _ in part] for found in owned]
    made: dict[tuple[str, ...], Entry] = {}
    for one in dict.fromkeys(zip(*names, strict=True)):
        made[one] = fan_out([group[name] for group, name in zip(groups, one, strict=True)])
    return [made[one] for one in zip(*names, strict=True)]


def _split(batch: list[Any], owners: Mapping[Any, Entry], key_of: Callable[[Any], Any]) -> Iterator[tuple[Entry, Any]]:
    """Split a list: one part for each owner of any of its items."""
    parts: dict[Entry, list[Any]] = {}
    for item in batch:
        parts.setdefault(owners[key_of(item)], []).append(item)
    return iter(parts.items())


def _split_columns(batch: Any, by: str, table: Sequence[Entry]) -> Iterator[tuple[Entry, Any]]:
    """Split a record batch: one part for each owner of any of its rows."""
    column, numbers = batch.column(by), {owner: number for number, owner in enumerate(dict.fromkeys(table))}
    if len(numbers) == 1:
        return iter([(table[0], batch)])
    rows, begins = rows_by_owner(column, [numbers[owner] for owner in table])
    sorted_batch, parts = batch.take(rows), zip(numbers, begins, begins[1:], strict=False)
    return iter([(owner, sorted_batch.slice(low, high - low)) for owner, low, high in parts if high > low])
