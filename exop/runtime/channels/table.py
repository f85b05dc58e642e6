"""`table`: a materialized view: the items by key, with access by index, scans and filters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from exop.errors import MeshError
from exop.runtime.channel import Channel, Outlet, PullMode
from exop.runtime.channels.latch import key_reader, storing
from exop.runtime.entry import Entry, fan_out


class TableChannel(Channel):
    """Keeps one row per `key` and passes every change on; a pull reads all rows.

    `index` names further fields with an index of their own. Extended interface: `get(key)`, `find(field=value)`,
    `scan(where)`, `delete(key)`, `len()`.

    Attributes:
        overwritten, deleted: Items that another one with the same key has replaced, and those that were deleted.
    """

    kind: ClassVar[str] = "table"
    pull_mode: ClassVar[PullMode] = "read"
    refuses_whole: ClassVar[bool] = True

    def __init__(self, name: str, *, key: str | list[str], index: list[str] | None = None) -> None:
        super().__init__(name)
        if not key:
            raise MeshError(f"the table {name!r} needs a key: key='field', or a list of fields")
        self._key = key_reader(key)
        self._readers = {field: key_reader(field) for field in index or ()}
        self.overwritten = self.deleted = 0
        self._rows: dict[Any, Any] = {}
        self._index: dict[str, dict[Any, dict[Any, None]]] = {field: {} for field in self._readers}
        self._lock = threading.RLock()

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Store, then hand on."""
        return storing(self._store, fan_out([outlet.entry for outlet in outlets]))

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: Any, default: Any = None) -> Any:
        """The row with *key*."""
        return self._rows.get(key, default)

    def find(self, **equal: Any) -> list[Any]:
        """The rows whose fields equal the given values; through an index where one of the fields has one."""
        with self._lock:
            indexed = next((field for field in equal if field in self._index), None)
            if indexed is None:
                rows = list(self._rows.values())
            else:
                rows = [self._rows[key] for key in self._index[indexed].get(equal[indexed], ())]
        readers = [(key_reader(field), value) for field, value in equal.items() if field != indexed]
        return [row for row in rows if all(read(row) == value for read, value in readers)]

    def scan(self, where: Callable[[Any], bool] | None = None) -> list[Any]:
        """All rows, or those for which *where* holds."""
        with self._lock:
            rows = list(self._rows.values())
        return [row for row in rows if where(row)] if where else rows

    def delete(self, key: Any) -> bool:
        """Forget the row with *key*; tells whether there was one."""
        with self._lock:
            row = self._rows.pop(key, None)
            if row is None:
                return False
            self._unindex(key, row)
            self.deleted += 1
            return True

    def read(self, port: str) -> list[Any]:
        """What a pull sees: all rows."""
        return self.scan()

    def metrics(self) -> dict[str, int | float | str]:
        """How many rows there are, how many items have come, and what has become of the others."""
        rows, gone = len(self._rows), {"overwritten": self.overwritten, "deleted": self.deleted}
        return {"rows": rows, "taken": rows + sum(gone.values()), **gone}

    def capture(self) -> Mapping[str, Any]:
        """All rows, and the counts."""
        return {"items": self.scan(), "overwritten": self.overwritten, "deleted": self.deleted}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Store the rows again."""
        self._store(held["items"])
        self.overwritten, self.deleted = held.get("overwritten", 0), held.get("deleted", 0)

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Put what *replace* gives in the place of every row."""
        with self._lock:
            items = [replace(item) for item in self._rows.values()]
            self._rows.clear()
            for index in self._index.values():
                index.clear()
            self._store(items)

    def _store(self, items: Iterable[Any]) -> None:
        # First of all: an item that lacks a field leaves everything as it was.
        read = [(item, self._key(item), [(f, reader(item)) for f, reader in self._readers.items()]) for item in items]
        for _, key, fields in read:
            hash((key, *(value for _, value in fields)))
        with self._lock:
            for item, key, fields in read:
                before = self._rows.get(key)
                if before is not None:
                    self._unindex(key, before)
                    self.overwritten += 1
                self._rows[key] = item
                for field, value in fields:
                    self._index[field].setdefault(value, {})[key] = None

    def _unindex(self, key: Any, row: Any) -> None:
        for field, read in self._readers.items():
            value = read(row)
            keys = self._index[field].get(value, {})
            keys.pop(key, None)
            if not keys:
                self._index[field].pop(value, None)
