"""Segment statistics: cars per segment and minute, and the latest average velocity over five minutes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from exop import Memento, Punctuation, slet

from .columns import Floats, Ints, Longs, column, concatenated, record_batch
from .schema import STATISTICS, Reports, Statistics
from .segments import MINUTE, complete_minute, minute_of, segment_numbers, segment_places

#: The latest average velocity looks back so many minutes.
LOOK_BACK: Final = 5


@dataclass
class Minute:
    """One minute's figures of the segments that had a report in it."""

    segments: Ints
    cars: Longs
    speed: Floats


class Minutes(Memento):
    """The reports of minutes that are not over, and the figures of the last five that are."""

    held: list[pa.RecordBatch] = field(default_factory=list)
    counted: dict[int, Minute] = field(default_factory=dict)
    complete: int = 0
    announced: int = 0


@slet
def statistics(reports: Reports | Punctuation, minutes: Minutes) -> Iterator[Statistics | Punctuation]:
    """Count each minute when it is over and put out what the next one is charged by."""
    if not isinstance(reports, Punctuation):
        if reports.num_rows:
            minutes.held.append(reports)
        return
    through = complete_minute(reports.time)
    while minutes.complete < through:
        if not minutes.counted:
            minutes.complete = max(minutes.complete, _before_first(minutes.held, through))
            if minutes.complete >= through:
                break
        yield from _next_minute(minutes)
    if minutes.complete + 1 > minutes.announced:
        minutes.announced = minutes.complete + 1
        yield Punctuation(minutes.announced)


def count(segments: Ints, vids: Ints, speeds: Ints) -> Minute:
    """Cars, and the mean over vehicles of each vehicle's mean speed, of the segments of one minute."""
    pairs = (segments.astype(np.int64) << 32) | vids
    order = np.argsort(pairs)
    pairs = pairs[order]
    starts = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1])))
    reports = np.diff(np.append(starts, len(pairs)))
    vehicle_speeds = np.add.reduceat(speeds[order], starts, dtype=np.int64) / reports
    places = pairs[starts] >> 32
    firsts = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
    cars = np.diff(np.append(firsts, len(places)))
    return Minute(places[firsts].astype(np.int32), cars, np.add.reduceat(vehicle_speeds, firsts) / cars)


def latest_average(counted: dict[int, Minute], minute: int) -> tuple[Ints, Ints, Floats]:
    """Segments with a report in the five minutes before *minute*, their cars of the last one, and their LAV."""
    seen = [counted[past] for past in range(minute - LOOK_BACK, minute) if past in counted]
    size = 1 + max((int(past.segments[-1]) for past in seen), default=-1)
    total, present, cars = np.zeros(size), np.zeros(size, np.int32), np.zeros(size, np.int32)
    for past in seen:
        total[past.segments] += past.speed
        present[past.segments] += 1
    if (last := counted.get(minute - 1)) is not None:
        cars[last.segments] = last.cars
    segments = np.flatnonzero(present).astype(np.int32)
    return segments, cars[segments], total[segments] / present[segments]


def _next_minute(minutes: Minutes) -> Iterator[Statistics]:
    """Close the next minute and put out the rows of the one after it."""
    minute = minutes.complete + 1
    reports = _taken(minutes, minute)
    if reports is not None:
        minutes.counted[minute] = count(*reports)
    minutes.counted.pop(minute - LOOK_BACK, None)
    minutes.complete = minute
    segments, cars, lav = latest_average(minutes.counted, minute + 1)
    if len(segments):
        yield record_batch(STATISTICS, np.full_like(segments, minute + 1), *segment_places(segments), cars, lav)


def _taken(minutes: Minutes, minute: int) -> tuple[Ints, Ints, Ints] | None:
    """Take the reports of *minute* out of those held: segments, vehicles, speeds."""
    now = [batch for batch in minutes.held if int(column(batch, "time")[0]) < minute * MINUTE]
    if not now:
        return None
    times, vids, speeds = concatenated(now, "time", "vid", "spd")
    segments = np.concatenate([segment_numbers(batch) for batch in now])
    later = [batch for batch in minutes.held if int(column(batch, "time")[-1]) >= minute * MINUTE]
    minutes.held = [batch.slice(int(np.searchsorted(column(batch, "time"), minute * MINUTE))) for batch in later]
    inside = times < minute * MINUTE
    return (segments, vids, speeds) if inside.all() else (segments[inside], vids[inside], speeds[inside])


def _before_first(held: list[pa.RecordBatch], through: int) -> int:
    """The minute before the first report held, so that silent hours cost nothing."""
    first = min((minute_of(int(column(batch, "time")[0])) for batch in held), default=through + 1)
    return min(first - 1, through)
