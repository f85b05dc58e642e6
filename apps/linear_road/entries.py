"""Segment entries: the reports that have to be answered, because they come from a segment that is new."""

from dataclasses import field
from typing import Any, Final

import numpy as np

from exop import Memento, slet

from .columns import column, columns, grown, no_ints, record_batch
from .schema import ENTRIES, Entries, Reports
from .segments import EXIT_LANE, segment_numbers
from .vehicles import runs, vehicle_numbers

OFF_THE_ROAD: Final = -1


class Whereabouts(Memento):
    """The segment that each vehicle was last reported from, by the segment's number."""

    segment: Any = field(default_factory=no_ints)
    sparse: dict[int, int] = field(default_factory=dict)


@slet
def entries(reports: Reports, whereabouts: Whereabouts) -> Entries | None:
    """Pass on the first report of a vehicle from each segment; a report from lane 4 ends the trip.

    A vehicle that straight enters the exit lane of the next segment is passed on too: it is told nothing, but has
    left the segment before and owes its toll.
    """
    if reports.num_rows == 0:
        return None
    lanes, segments = column(reports, "lane"), segment_numbers(reports)
    vehicles = vehicle_numbers(column(reports, "vid"), whereabouts.sparse)
    known = whereabouts.segment = grown(whereabouts.segment, int(vehicles.max()) + 1, OFF_THE_ROAD)
    before = np.empty_like(segments)
    for run in runs(vehicles):
        who = vehicles[run]
        before[run] = known[who]
        known[who] = np.where(lanes[run] == EXIT_LANE, OFF_THE_ROAD, segments[run])
    new = np.flatnonzero(before != segments)
    if len(new) == 0:
        return None
    first = (before[new] == OFF_THE_ROAD).astype(np.int32)
    fields = columns(reports, "time", "vid", "xway", "dir", "seg", "lane")
    return record_batch(ENTRIES, *(values[new] for values in fields), first)
