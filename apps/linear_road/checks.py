"""The checks of input lines: known types, places that exist, time that does not go backwards."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from .columns import Ints, Mask, columns
from .lines import Rows
from .segments import DIRECTIONS, EXIT_LANE, LAST_XWAY, SEGMENTS

TYPES: Final = (0, 2, 3, 4)
#: A leap ahead of more than an hour is a broken number: waiting for it would end the run, and make all the rest late.
LEAP: Final = 3600


@dataclass
class Order:
    """The latest second that was accepted; -1 before the first."""

    latest: int = -1


def checked(rows: Rows, order: Order) -> Rows:
    """Refuse the rows that cannot be, and those out of order."""
    possible = _possible(rows)
    (seconds,) = columns(possible.batch, "time")
    if len(seconds) == 0:
        return possible
    before = np.maximum.accumulate(np.concatenate(([order.latest], seconds[:-1])))
    if not (seconds < before).any() and (order.latest < 0 or seconds[0] - before[0] <= LEAP) and not _leaps(seconds):
        order.latest = int(seconds[-1])
        return possible
    wrong, reasons = _disorder(seconds, order)
    return possible.without(wrong, reasons)


def _leaps(seconds: Ints) -> bool:
    return bool((np.diff(seconds) > LEAP).any())


def _disorder(seconds: Ints, order: Order) -> tuple[Mask, list[str]]:
    """Go through the rows one by one: a refused row does not move the clock."""
    wrong = np.zeros(len(seconds), np.bool_)
    reasons = []
    for row, second in enumerate(seconds.tolist()):
        if second < order.latest:
            reasons.append(f"time goes backwards, from {order.latest}")
        elif order.latest >= 0 and second - order.latest > LEAP:
            reasons.append(f"time leaps ahead, from {order.latest}")
        else:
            order.latest = second
            continue
        wrong[row] = True
    return wrong, reasons


def _possible(rows: Rows) -> Rows:
    """Refuse types that are unknown, and numbers that name no vehicle, moment or place."""
    kind, time, vid, xway, lane, direction, segment = columns(
        rows.batch, "type", "time", "vid", "xway", "lane", "dir", "seg"
    )
    report = kind == 0
    tests = {
        "type is unknown": ~np.isin(kind, TYPES),
        "time is negative": time < 0,
        "vid is negative": vid < 0,
        "xway is out of range": report & _outside(xway, LAST_XWAY + 1),
        "lane is out of range": report & _outside(lane, EXIT_LANE + 1),
        "dir is out of range": report & _outside(direction, DIRECTIONS),
        "seg is out of range": report & _outside(segment, SEGMENTS),
    }
    bad = np.logical_or.reduce(list(tests.values()))
    reasons = [next(reason for reason, failed in tests.items() if failed[row]) for row in np.flatnonzero(bad).tolist()]
    return rows.without(bad, reasons)


def _outside(values: Ints, stop: int) -> Mask:
    outside: Mask = (values < 0) | (values >= stop)
    return outside
