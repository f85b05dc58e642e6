"""The slets of the application that no plugin offers: the replay of files, readings in records, and the alarms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from time import sleep
from time import time as clock
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import csv

from exop import Batch, Memento, Slet, input_port, slet

#: The maximum number of rows in a batch.
_LOT: Final = 10_000
#: Seconds between two readings of the clock; the source passes a safe point as often.
_NAP: Final = 0.1
#: The columns of readings; the time is the number of seconds since the start of the recording.
READINGS: Final = pa.schema([("time", pa.int64()), ("sensor", pa.int64()), ("value", pa.float64())])


class Position(Memento):
    """The number of rows that have been emitted, and the time of the clock at second 0 of the recording."""

    rows: int = 0
    began: float = 0.0


class Replay(Slet, name="replay"):
    """Emit the rows of a CSV file in batches, each row when it is due.

    Args:
        path: The file; the first line has the names of the columns.
        time: The column with the second of the recording in which a row was made.
        speed: How many times faster than it was recorded the file is replayed; 0: without waiting.
        start: The time of the clock at second 0 of the recording; 0: when the slet starts.
    """

    path: Path
    time: str = "time"
    speed: float = 0.0
    start: float = 0.0
    position: Position

    #: The clock, and how to wait: replaced in tests.
    now = staticmethod(clock)
    sleep = staticmethod(sleep)

    def __iter__(self) -> Iterator[pa.RecordBatch | None]:
        position, table = self.position, csv.read_csv(self.path).combine_chunks()
        due = np.maximum.accumulate(table[self.time].to_numpy())  # a delayed row is due with its neighbours
        position.began = position.began or self.start or self.now()
        while position.rows < len(table):
            stop = position.rows + _LOT
            if self.speed:
                second = (self.now() - position.began) * self.speed
                stop = min(stop, int(np.searchsorted(due, second, side="right")))
            begin, position.rows = position.rows, max(position.rows, min(stop, len(table)))
            yield from table.slice(begin, position.rows - begin).to_batches()
            if position.rows == begin:
                self.sleep(_NAP)
                yield None


@slet
def decode(records: Batch[Any]) -> Annotated[pa.RecordBatch, READINGS]:
    """Decode records of a topic, each of which has a reading as JSON."""
    return pa.RecordBatch.from_pylist([json.loads(record.value) for record in records], READINGS)


@slet
def stamp(minute: dict[str, Any]) -> dict[str, Any]:
    """Add the time of the clock, from which the latency is computed."""
    return minute | {"ready": clock()}


class Watched(Memento):
    """For each sensor, whether its alarm is on, and the number of minutes for which it should have been otherwise."""

    sensors: dict[int, tuple[bool, int]] = field(default_factory=dict)


class Alarms(Slet, name="alarms"):
    """Begin an alarm after several minutes whose mean is outside the limits, and end it after as many within them.

    Args:
        after: The number of minutes.
    """

    after: int = 3
    watched: Watched

    @input_port
    def minute(self, minute: dict[str, Any]) -> dict[str, Any] | None:
        """Take the next minute of a sensor."""
        sensor, mean = minute["sensor"], minute["mean"]
        on, minutes = self.watched.sensors.get(sensor, (False, 0))
        beyond = not minute["lowest"] <= mean <= minute["highest"]
        minutes = minutes + 1 if beyond != on else 0
        changed = minutes >= self.after
        self.watched.sensors[sensor] = (beyond, 0) if changed else (on, minutes)
        found = {name: minute[name] for name in ("time", "sensor", "place", "mean")}
        return found | {"event": "begins" if beyond else "ends"} if changed else None


SLETS: Final = (Replay, decode, stamp, Alarms)
