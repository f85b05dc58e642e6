"""The history of tolls (VID, Day, XWay, Toll), laid out for looking a day up."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .columns import Ints, Longs, Mask, columns
from .lines import read_rows

FIELDS: Final = pa.schema([(name, pa.int32()) for name in ("vid", "day", "xway", "toll")])
_BITS: Final = 16
_NO_KEY: Final = -1


@dataclass(frozen=True)
class History:
    """The tolls of each vehicle per day and expressway, as one sorted array of keys and one of sums."""

    keys: Longs
    tolls: Longs
    rows: int = 0
    rejects: int = 0

    def spent(self, vids: Ints, days: Ints, xways: Ints) -> Longs:
        """The sum for each of the questions, 0 where there is no row."""
        if len(self.keys) == 0:
            return np.zeros(len(vids), np.int64)
        keys = _keys(vids, days, xways)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found: Longs = np.where(self.keys[places] == keys, self.tolls[places], 0)
        return found


def load_history(path: Path) -> History:
    """Read a history file; rows that are none are counted and left out.

    Raises:
        UnreadableInput: the file is missing or broken as a whole.
    """
    keys: list[Longs] = []
    tolls: list[Ints] = []
    rejects = 0
    for piece in read_rows(path, FIELDS):
        vids, days, xways, paid = columns(piece.batch, "vid", "day", "xway", "toll")
        known = _keys(vids, days, xways)
        good = known != _NO_KEY
        rejects += len(piece.rejects) + int((~good).sum())
        keys.append(known[good])
        tolls.append(paid[good])
    if not keys:
        return History(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, rejects)
    return _summed(np.concatenate(keys), np.concatenate(tolls), rejects)


def _summed(keys: Longs, tolls: npt.NDArray[np.int32], rejects: int) -> History:
    """Sort, and add up the rows of the same key; generated files are sorted already."""
    if (keys[1:] < keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        keys, tolls = keys[order], tolls[order]
    rows = len(keys)
    if rows == 0:
        return History(keys, tolls.astype(np.int64), 0, rejects)
    starts: Mask = np.concatenate(([True], keys[1:] != keys[:-1]))
    if starts.all():
        return History(keys, tolls.astype(np.int64), rows, rejects)
    sums = np.add.reduceat(tolls, np.flatnonzero(starts), dtype=np.int64)
    return History(keys[starts], sums, rows, rejects)


def _keys(vids: Ints, days: Ints, xways: Ints) -> Longs:
    """One number per vehicle, day and expressway; `_NO_KEY` where one of them is out of all range."""
    inside = (vids >= 0) & (days >= 0) & (days < 1 << _BITS) & (xways >= 0) & (xways < 1 << _BITS)
    keys: Longs = (vids.astype(np.int64) << 2 * _BITS) | (days.astype(np.int64) << _BITS) | xways
    return np.where(inside, keys, _NO_KEY)
