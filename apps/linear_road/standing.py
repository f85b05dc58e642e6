"""Accidents, as a function of Spark's: which vehicles stand, and where two of them do.

This module travels to Spark's Python workers by value, so it needs nothing but numpy and pandas there. A trip is on one
road in one direction, and ends with a report from the exit lane: whether a vehicle stands, and where two of them do,
depends on the reports of that direction alone. So each direction of a road is a group, and executors share the groups;
each micro-batch of a group is taken in one go, column by column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

#: A vehicle is stopped when so many consecutive reports name the same place.
STOPPED: Final = 4
_EXIT_LANE: Final = 4
#: The place of a report in one number: expressway, direction (1 bit), lane (3), segment (7), position (20).
_PLACE: Final = "shiftleft((((xway * 2L + dir) * 8 + lane) * 128 + seg), 20) + pos AS place"
_EVENTS: Final = "minute int, time int, xway int, dir int, seg int, lane int, pos int, cleared int"
_VEHICLE: Final = [("vid", "i4"), ("place", "i8"), ("reports", "i1")]
_STANDING: Final = [("place", "i8"), ("vid", "i8")]


def accidents(reports: DataFrame) -> DataFrame:
    """Tell when a second vehicle is stopped where one stands already, and when all but one of them have moved on."""
    placed = reports.selectExpr("xway", "dir", "_row", "time", "vid", _PLACE)
    return placed.groupBy("xway", "dir").applyInPandasWithState(
        detect, _EVENTS, "vehicles binary, standing binary", "append", "NoTimeout"
    )


def detect(_: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Take in a group's reports of one micro-batch; give the events that they caused, in the order of the reports."""
    vehicles, standing = state.get if state.exists else (b"", b"")
    reports = pd.concat(list(frames)).sort_values(["vid", "_row"])
    vehicles, changes = moved(np.frombuffer(vehicles, _VEHICLE), reports)
    standing, events = changed(np.frombuffer(standing, _STANDING), changes)
    state.update((vehicles.tobytes(), standing.tobytes()))
    yield pd.DataFrame(events, columns=[part.split()[0] for part in _EVENTS.split(", ")], dtype="int32")


def moved(known: np.ndarray, reports: pd.DataFrame) -> tuple[np.ndarray, pd.DataFrame]:
    """Move the vehicles on; return how they are known now, and who has stopped or moved on, in order.

    *known* has one row per vehicle, by vehicle: its last place, and how many reports in a row named it. *reports* are
    in the order of vehicles and, for each, of arrival.
    """
    vids, places = reports["vid"].to_numpy(), reports["place"].to_numpy()
    first = np.concatenate(([True], vids[1:] != vids[:-1]))
    last = np.concatenate((first[1:], [True]))
    place_before, count_before = _before(known, vids, places, first)
    same = place_before == places
    # Reports in a row at one place are numbered on from where the vehicle was; a trip ends on the exit lane.
    starts = np.maximum.accumulate(np.where(first | ~same, np.arange(len(vids)), 0))
    counts = np.arange(len(vids)) - starts + 1 + np.where(first & same, count_before, 0)[starts]
    on_the_road = (places >> 27 & 7) != _EXIT_LANE
    counts = np.where(on_the_road, np.minimum(counts, STOPPED + 1), 0)
    count_before = np.where(first, count_before, np.concatenate(([0], counts[:-1])))
    stops, leaves = (counts == STOPPED) & ~(same & (count_before >= STOPPED)), ~same & (count_before >= STOPPED)
    columns = reports[["_row", "time", "vid"]]
    changes = pd.concat(
        [
            columns[leaves].assign(place=place_before[leaves], stops=0),
            columns[stops].assign(place=places[stops], stops=1),
        ]
    )
    now = np.empty(int(last.sum()), _VEHICLE)
    now["vid"], now["place"], now["reports"] = vids[last], places[last], counts[last]
    silent = known[~np.isin(known["vid"], now["vid"], assume_unique=True)]
    both = np.concatenate([silent, now[on_the_road[last]]])
    return both[np.argsort(both["vid"])], changes.sort_values("_row", kind="stable")


def changed(known: np.ndarray, changes: pd.DataFrame) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Let vehicles stop at places and leave them; return who stands where now, and the accidents that this made."""
    standing: dict[int, set[int]] = {}
    for place, vid in known.tolist():
        standing.setdefault(place, set()).add(vid)
    events = []
    for time, vid, place, stops in changes[["time", "vid", "place", "stops"]].itertuples(index=False):
        there = standing.setdefault(place, set())
        if stops:
            there.add(vid)
        else:
            there.discard(vid)
        if len(there) == (2 if stops else 1):
            events.append(_event(int(time), int(place), cleared=not stops))
    now = [(place, vid) for place, there in standing.items() for vid in there]
    return np.array(now, _STANDING), events


def _before(known: np.ndarray, vids: Any, places: Any, first: Any) -> tuple[Any, Any]:
    """For each report the place of the one before it, and for the first of a vehicle how many had named that."""
    place_before = np.concatenate(([-1], places[:-1]))
    count_before = np.zeros(len(vids), np.int64)
    if not len(known):
        place_before[first] = -1
        return place_before, count_before
    at = np.minimum(np.searchsorted(known["vid"], vids[first]), len(known) - 1)
    found = known["vid"][at] == vids[first]
    place_before[first] = np.where(found, known["place"][at], -1)
    count_before[first] = np.where(found, known["reports"][at], 0)
    return place_before, count_before


def _event(time: int, place: int, *, cleared: bool) -> tuple[int, ...]:
    road, lane, segment, position = place >> 30, place >> 27 & 7, place >> 20 & 127, place & 0xFFFFF
    return time // 60 + 1, time, road >> 1, road & 1, segment, lane, position, int(cleared)
