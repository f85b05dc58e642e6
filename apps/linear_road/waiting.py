"""Entries that wait until everything that decides their minute is known."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from .columns import column
from .segments import MINUTE, minute_of


@dataclass
class Waiting:
    """Rows ordered by time, released minute by minute; a part of the memento of who waits.

    `known` is the last minute that is decided, `through` the second through which the rows are complete. Minute 1
    has nothing before it that could decide anything.
    """

    rows: list[pa.RecordBatch] = field(default_factory=list)
    known: int = 1
    through: int = -1

    def arrived(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Take in a batch; release what of it is decided, as (minute, rows)."""
        for minute, part in _by_minute(batch):
            if minute <= self.known and not self.rows:
                yield minute, part
            else:
                self.rows.append(part)

    def decided(self, minute: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Everything through *minute* is decided now: release what waited for it."""
        if minute <= self.known:
            return
        self.known = minute
        while self.rows and (first := minute_of(column(self.rows[0], "time")[0])) <= minute:
            yield first, self.rows.pop(0)

    def settled(self) -> int:
        """The second through which everything has been released."""
        return min(self.through, self.known * MINUTE - 1)


def _by_minute(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a batch where the minute changes."""
    if batch.num_rows == 0:
        return
    times = column(batch, "time")
    first, last = minute_of(times[0]), minute_of(times[-1])
    if first == last:
        yield first, batch
        return
    cuts = [0, *(np.flatnonzero(np.diff(times // MINUTE)) + 1).tolist(), batch.num_rows]
    for start, stop in pairwise(cuts):
        yield minute_of(times[start]), batch.slice(start, stop - start)
