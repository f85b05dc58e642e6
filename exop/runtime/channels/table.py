"""`latch` and `table`: channels that store the last item per key; a table also has indexes, scans and filters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from exop.errors import MeshError
from exop.model.items import EndOfStream, Punctuation
from exop.runtime.channels.base import KeepingChannel, Outlet, PullMode
from exop.runtime.channels.partitioned import key_reader
from exop.runtime.dataflow.batches import to_items
from exop.runtime.dataflow.entry import Entry


class LatchChannel(KeepingChannel):
    """Passes every item on and stores the last one per `key` (one field, several, or none for a single item).

    With `replay=True`, a port that connects later first receives the content; a pull reads the content. With
    `fill_first`, slets that read the channel wait until every producer has ended or sent a punctuation.
    Extended interface: `get(key)`, `items()`.
    """

    kind: ClassVar[str] = "latch"
    reading: ClassVar[frozenset[str]] = frozenset({"get", "items"})
    replaying: ClassVar[bool] = True
    pull_mode: ClassVar[PullMode] = "read"
    _unit: ClassVar[str] = "keys"

    def __init__(
        self, name: str, *, key: str | list[str] | None = None, replay: bool = True, fill_first: bool = False
    ) -> None:
        super().__init__(name)
        self.filled = not fill_first
        self._key = key_reader(key)
        self._replay = replay
        self._gone = {"overwritten": 0}
        self._kept: dict[Any, Any] = {}
        self._lock = threading.RLock()

    @classmethod
    def fields(cls, settings: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """Return the fields of the key, and those that have an index."""
        given = [(setting, settings.get(setting) or ()) for setting in ("key", "index")]
        return [(setting, one) for setting, found in given for one in ([found] if isinstance(found, str) else found)]

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Return an entry that stores and passes on; the first control item of all producers sets `filled`."""
        entry = super().entry(outlets)
        if not self.filled:
            pass_on = entry.control

            def control(mark: Punctuation | EndOfStream) -> None:
                self.filled = True
                awaited, self.awaited = self.awaited, {}
                for component in awaited.values():
                    component.wake()
                pass_on(mark)

            entry.control = entry.probe.control = control
        return entry

    def kept_for(self, port: str) -> list[Any]:
        """Return the content, if `replay` is set."""
        return self.items() if self._replay else []

    def get(self, key: Any = None, default: Any = None) -> Any:
        """Return the last item with *key*."""
        return self._kept.get(key, default)

    def items(self) -> list[Any]:
        """Return the last item of every key."""
        with self._lock:
            return list(self._kept.values())

    def read(self, port: str) -> list[Any]:
        """Return the last item of every key."""
        return self.items()

    def metrics(self) -> dict[str, int | float | str]:
        """Return the numbers of keys (rows), of items accepted, and of items replaced or deleted, by reason."""
        kept = len(self._kept)
        return {self._unit: kept, "taken": kept + sum(self._gone.values()), **self._gone}

    def capture(self) -> Mapping[str, Any]:
        """Return the items and counts."""
        return {"items": self.items(), "filled": self.filled, **self._gone}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Restore the items and counts."""
        self._keep(held["items"])
        self._gone = {name: held.get(name, 0) for name in self._gone}
        self.filled = self.filled or held.get("filled", False)

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every item."""
        with self._lock:
            items = [replace(item) for item in self._kept.values()]
            self._kept.clear()
            self._keep(items)

    def _keep(self, batch: Any) -> None:
        items = to_items(batch)
        keyed = {self._key(item): item for item in items}  # an item without a key changes nothing
        with self._lock:
            before = len(self._kept)
            self._kept |= keyed
            self._gone["overwritten"] += len(items) - (len(self._kept) - before)


class TableChannel(LatchChannel):
    """Stores one row per `key` and passes every change on; a pull reads all rows.

    `index` names further fields that have an index. Extended interface: `get(key)`, `find(field=value)`,
    `scan(where)`, `delete(key)`, `len()`.
    """

    kind: ClassVar[str] = "table"
    reading: ClassVar[frozenset[str]] = LatchChannel.reading | {"find", "scan"}
    _unit: ClassVar[str] = "rows"

    def __init__(
        self, name: str, *, key: str | list[str], index: list[str] | None = None, fill_first: bool = False
    ) -> None:
        if not key:
            raise MeshError(f"the table {name!r} needs a key: key='field', or a list of fields")
        super().__init__(name, key=key, replay=False, fill_first=fill_first)
        self._readers = {field: key_reader(field) for field in index or ()}
        self._index: dict[str, dict[Any, dict[Any, None]]] = {field: {} for field in self._readers}
        self._gone["deleted"] = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, **equal: Any) -> list[Any]:
        """Return the rows whose fields equal the given values; use an index if one of the fields has one."""
        with self._lock:
            if (indexed := next((field for field in equal if field in self._index), None)) is None:
                rows = list(self._kept.values())
            else:
                rows = [self._kept[key] for key in self._index[indexed].get(equal[indexed], ())]
        readers = [(key_reader(field), value) for field, value in equal.items() if field != indexed]
        return [row for row in rows if all(read(row) == value for read, value in readers)]

    def scan(self, where: Callable[[Any], bool] | None = None) -> list[Any]:
        """Return all rows, or those for which *where* returns true."""
        return [row for row in self.items() if where is None or where(row)]

    def delete(self, key: Any) -> bool:
        """Delete the row with *key*; `False` if there is none."""
        with self._lock:
            if (row := self._kept.pop(key, None)) is None:
                return False
            self._unindex(key, row)
            self._gone["deleted"] += 1
            return True

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every row."""
        with self._lock:
            for index in self._index.values():
                index.clear()
            super().exchange(replace)

    def _keep(self, batch: Any) -> None:
        # All fields are read first: an item without one, or with one that cannot be a key, changes nothing.
        read = [
            (item, self._key(item), [(field, reader(item)) for field, reader in self._readers.items()])
            for item in to_items(batch)
        ]
        for _, key, fields in read:
            hash((key, *(value for _, value in fields)))
        with self._lock:
            for item, key, fields in read:
                if (before := self._kept.get(key)) is not None:
                    self._unindex(key, before)
                    self._gone["overwritten"] += 1
                self._kept[key] = item
                for field, value in fields:
                    self._index[field].setdefault(value, {})[key] = None

    def _unindex(self, key: Any, row: Any) -> None:
        for field, read in self._readers.items():
            value = read(row)
            keys = self._index[field].get(value, {})
            keys.pop(key, None)
            if not keys:
                self._index[field].pop(value, None)
