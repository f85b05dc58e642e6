"""State per vehicle as arrays: dense numbers for vehicles, and runs of rows that name no vehicle twice."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from .columns import Ints

#: Vehicles below this number are their own index; generators number them from 0 without holes.
DENSE: Final = 1 << 23


def vehicle_numbers(vids: Ints, sparse: dict[int, int]) -> Any:
    """An index for each vehicle, small enough to size arrays by.

    Numbers that are far out get an index of their own behind the dense ones, remembered in *sparse*, so that one
    odd number in the input does not cost gigabytes in every slet.
    """
    if len(vids) == 0 or int(vids.max()) < DENSE:
        return vids
    numbers = vids.copy()
    for place in np.flatnonzero(vids >= DENSE).tolist():
        numbers[place] = sparse.setdefault(int(vids[place]), DENSE + len(sparse))
    return numbers


def runs(numbers: Ints) -> Iterator[slice]:
    """Cut the rows into stretches that name no vehicle twice, in order.

    Within such a stretch all vehicles can be updated at once; a batch of one second is a single stretch, one that an
    engine puts out for half a minute or more is several.
    """
    size = len(numbers)
    if size == 0:
        return
    in_order = np.sort(numbers)
    if not (in_order[1:] == in_order[:-1]).any():
        yield slice(0, size)
        return
    order = np.argsort(numbers, kind="stable")
    again = numbers[order[1:]] == numbers[order[:-1]]
    before = np.full(size, -1)
    before[order[1:][again]] = order[:-1][again]
    start = 0
    while start < size:
        repeated = np.flatnonzero(before[start:] >= start)
        stop = start + int(repeated[0]) if len(repeated) else size
        yield slice(start, stop)
        start = stop
