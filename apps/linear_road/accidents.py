"""Accident detection: two vehicles that stand at the same place."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from exop import Memento, Punctuation, slet

from .columns import Longs, columns, grown
from .schema import ACCIDENTS, Accidents, Reports
from .segments import complete_minute, minute_of
from .vehicles import runs, vehicle_numbers

#: A vehicle is stopped when so many consecutive reports name the same place.
STOPPED: Final = 4
_NOWHERE: Final = -1
_LANES: Final = 8
#: Positions are compared, not checked: as 32 bits without a sign, a negative one is just another place.
_ANY_POSITION: Final = np.int64(0xFFFFFFFF)


@dataclass(frozen=True)
class Place:
    """The place of a standing vehicle; in another lane or position it has moved."""

    xway: int
    direction: int
    segment: int
    lane: int
    position: int


class Standing(Memento):
    """Per vehicle its place and how often it was reported there; who is stopped, by place."""

    place: Any = field(default_factory=lambda: np.zeros(0, np.int64))
    reports: Any = field(default_factory=lambda: np.zeros(0, np.int32))
    sparse: dict[int, int] = field(default_factory=dict)
    stopped: dict[int, set[int]] = field(default_factory=dict)
    accidents: dict[int, Place] = field(default_factory=dict)
    announced: int = 0


@slet
def accidents(reports: Reports | Punctuation, standing: Standing) -> Iterator[Accidents | Punctuation]:
    """Tell when a second vehicle is stopped where one stands already, and when one of them has moved on."""
    if isinstance(reports, Punctuation):
        minute = complete_minute(reports.time)
        if minute > standing.announced:
            standing.announced = minute
            yield Punctuation(minute)
        return
    events = _events(reports, standing) if reports.num_rows else []
    if events:
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, pa.int32()) for values in zip(*events, strict=True)], schema=ACCIDENTS
        )


def _events(reports: pa.RecordBatch, standing: Standing) -> list[tuple[int, ...]]:
    """Move the vehicles on; the accidents that this detected or cleared, in the order of the reports."""
    vids, xway, direction, lane, position = columns(reports, "vid", "xway", "dir", "lane", "pos")
    vehicles = vehicle_numbers(vids, standing.sparse)
    places = (((xway * 2 + direction) * _LANES + lane).astype(np.int64) << 32) | (position & _ANY_POSITION)
    size = int(vehicles.max()) + 1
    standing.place = grown(standing.place, size, _NOWHERE)
    standing.reports = grown(standing.reports, size, 0)
    events: list[tuple[int, ...]] = []
    for run in runs(vehicles):
        changed, before = _moved(vehicles[run], places[run], standing)
        for row, old in zip(changed.tolist(), before, strict=True):
            events += _changes(reports, run.start + row, int(vehicles[run.start + row]), old, standing)
    return events


def _moved(vehicles: Any, places: Longs, standing: Standing) -> tuple[Any, list[int]]:
    """Count the reports of each vehicle at its place; the rows that matter, and the place each was at before."""
    before, counted = standing.place[vehicles], standing.reports[vehicles]
    same = before == places
    now = np.where(same, counted + 1, 1)
    standing.place[vehicles] = places
    standing.reports[vehicles] = now
    changed = np.flatnonzero((now == STOPPED) | (~same & (counted >= STOPPED)))
    return changed, before[changed].tolist()


def _changes(
    reports: pa.RecordBatch, row: int, vehicle: int, before: int, standing: Standing
) -> Iterator[tuple[int, ...]]:
    """One vehicle has stopped, or a stopped one has moved on: what that does to accidents."""
    time, xway, direction, segment, lane, position = (
        int(reports.column(name)[row].as_py()) for name in ("time", "xway", "dir", "seg", "lane", "pos")
    )
    here = int(standing.place[vehicle])
    if here == before:
        there = standing.stopped.setdefault(here, set())
        there.add(vehicle)
        if len(there) == 2:
            standing.accidents[here] = Place(xway, direction, segment, lane, position)
            yield _event(time, standing.accidents[here], 0)
        return
    there = standing.stopped[before]
    there.discard(vehicle)
    if len(there) == 1 and before in standing.accidents:
        yield _event(time, standing.accidents.pop(before), 1)
    if not there:
        del standing.stopped[before]


def _event(time: int, place: Place, cleared: int) -> tuple[int, ...]:
    return (
        minute_of(time), time, place.xway, place.direction, place.segment, place.lane, place.position, cleared
    )  # fmt: skip
