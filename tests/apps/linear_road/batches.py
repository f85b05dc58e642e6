"""Small record batches for tests, written as rows, and read back as rows."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from apps.linear_road.schema import ACCIDENTS, ENTRIES, REPORTS, STATISTICS, TARIFFS, TUPLES
from exop import OutputPort, Punctuation

_REPORT = {"time": 0, "vid": 1, "spd": 50, "xway": 0, "lane": 1, "dir": 0, "seg": 10, "pos": 52_800}
_QUESTION = dict.fromkeys(TUPLES.names, -1)


def batch(schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
    """A record batch of *schema* from rows as dictionaries."""
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def reports(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Position reports; what a row does not name has a default."""
    return batch(REPORTS, [_REPORT | row for row in rows])


def tuples(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Input tuples: reports, or questions when the row names a type."""
    return batch(TUPLES, [_QUESTION | (_REPORT | {"type": 0} if "type" not in row else {}) | row for row in rows])


def entries(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Segment entries in the middle of a trip, unless a row says otherwise."""
    usual = {"time": 60, "vid": 1, "xway": 0, "dir": 0, "seg": 10, "lane": 1, "first": 0}
    return batch(ENTRIES, [usual | row for row in rows])


def statistics(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Segment statistics of a crowded slow segment, unless a row says otherwise."""
    usual = {"minute": 2, "xway": 0, "dir": 0, "seg": 10, "cars": 60, "lav": 20.0}
    return batch(STATISTICS, [usual | row for row in rows])


def accidents(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Accidents that are detected, unless a row says otherwise; the minute follows from the time."""
    usual = {"time": 0, "xway": 0, "dir": 0, "seg": 10, "lane": 1, "pos": 52_800, "cleared": 0}
    return batch(ACCIDENTS, [{"minute": row.get("time", 0) // 60 + 1} | usual | row for row in rows])


def tariffs(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Tariffs that ask for a toll, unless a row says otherwise."""
    usual = {"minute": 2, "xway": 0, "dir": 0, "seg": 10, "lav": 20, "toll": 200}
    return batch(TARIFFS, [usual | row for row in rows])


def rows(items: Iterable[Any] | pa.RecordBatch | None) -> list[tuple[Any, ...]]:
    """The rows of one or several record batches as tuples; control items among them are left out."""
    found = [items] if isinstance(items, pa.RecordBatch) else items or ()
    return [tuple(row.values()) for item in found if isinstance(item, pa.RecordBatch) for row in item.to_pylist()]


def marks(items: Iterable[Any]) -> list[float]:
    """The times of the punctuation among *items*."""
    return [item.time for item in items if isinstance(item, Punctuation)]


def stopped(vid: int, start: int, count: int = 4, **place: int) -> list[dict[str, Any]]:
    """*count* reports of one vehicle from one place, 30 seconds apart."""
    return [{"vid": vid, "time": start + 30 * turn, "spd": 0, **place} for turn in range(count)]


def in_order(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows ordered by time."""
    return sorted(rows, key=lambda row: row["time"])


def cuts(size: int, pieces: int, seed: int) -> list[slice]:
    """A way to cut *size* rows into *pieces* stretches."""
    places = np.sort(np.random.default_rng(seed).integers(0, size + 1, pieces - 1)).tolist()
    return [slice(start, stop) for start, stop in zip([0, *places], [*places, size], strict=True)]


class Collected(OutputPort[Any]):
    """An output port that keeps what is pushed, and calls *then* with it."""

    def __init__(self, then: Callable[[Any], object] | None = None) -> None:
        self.items: list[Any] = []
        self._then = then

    def push(self, item: Any) -> None:
        """Keep the item."""
        self.items.append(item)
        if self._then:
            self._then(item)

    push_batch = push

    def end(self) -> None:
        """Nothing to do."""

    def fail(self, error: BaseException) -> None:
        """A slet of these tests never fails by port."""
        raise error
