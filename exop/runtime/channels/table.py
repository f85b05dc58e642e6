"""`table`: a materialized view: the items by key, with access by index, scans and filters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from exop.errors import MeshError
from exop.runtime.channels.latch import LatchChannel, key_reader


class TableChannel(LatchChannel):
    """Keeps one row per `key` and passes every change on; a pull reads all rows.

    `index` names further fields with an index of their own. Extended interface: `get(key)`, `find(field=value)`,
    `scan(where)`, `delete(key)`, `len()`.

    Attributes:
        deleted: Rows that were deleted.
    """

    kind: ClassVar[str] = "table"

    def __init__(self, name: str, *, key: str | list[str], index: list[str] | None = None) -> None:
        if not key:
            raise MeshError(f"the table {name!r} needs a key: key='field', or a list of fields")
        super().__init__(name, key=key, replay=False)
        self._readers = {field: key_reader(field) for field in index or ()}
        self.deleted = 0
        self._index: dict[str, dict[Any, dict[Any, None]]] = {field: {} for field in self._readers}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, **equal: Any) -> list[Any]:
        """The rows whose fields equal the given values; through an index where one of the fields has one."""
        with self._lock:
            indexed = next((field for field in equal if field in self._index), None)
            if indexed is None:
                rows = list(self._kept.values())
            else:
                rows = [self._kept[key] for key in self._index[indexed].get(equal[indexed], ())]
        readers = [(key_reader(field), value) for field, value in equal.items() if field != indexed]
        return [row for row in rows if all(read(row) == value for read, value in readers)]

    def scan(self, where: Callable[[Any], bool] | None = None) -> list[Any]:
        """All rows, or those for which *where* holds."""
        return [row for row in self.items() if where is None or where(row)]

    def delete(self, key: Any) -> bool:
        """Forget the row with *key*; tells whether there was one."""
        with self._lock:
            row = self._kept.pop(key, None)
            if row is None:
                return False
            self._unindex(key, row)
            self.deleted += 1
            return True

    def metrics(self) -> dict[str, int | float | str]:
        """How many rows there are, how many items have come, and what has become of the others."""
        rows, gone = len(self._kept), {"overwritten": self.overwritten, "deleted": self.deleted}
        return {"rows": rows, "taken": rows + sum(gone.values()), **gone}

    def capture(self) -> Mapping[str, Any]:
        """All rows, and the counts."""
        return {**super().capture(), "deleted": self.deleted}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Store the rows again."""
        super().restore(held)
        self.deleted = held.get("deleted", 0)

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Put what *replace* gives in the place of every row."""
        with self._lock:
            for index in self._index.values():
                index.clear()
            super().exchange(replace)

    def _store(self, items: Collection[Any]) -> None:
        # First of all: an item that lacks a field leaves everything as it was.
        read = [(item, self._key(item), [(f, reader(item)) for f, reader in self._readers.items()]) for item in items]
        for _, key, fields in read:
            hash((key, *(value for _, value in fields)))
        with self._lock:
            for item, key, fields in read:
                before = self._kept.get(key)
                if before is not None:
                    self._unindex(key, before)
                    self.overwritten += 1
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
