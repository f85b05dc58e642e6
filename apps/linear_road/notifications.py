"""Notifications: each entry gets its toll, and the accident ahead if there is one."""

from collections.abc import Iterator
from dataclasses import field
from typing import Any

import numpy as np
import pyarrow as pa

from exop import Memento, OutputPort, Punctuation, Slet, input_port

from .columns import Ints, column, columns, grown, no_ints, record_batch
from .incidents import NO_ACCIDENT, Incidents
from .schema import ALERTS, CHARGES, NOTICES, Accidents, Alerts, Charges, Entries, Notices, Tariffs
from .segments import EXIT_LANE, looked_up, minute_of, segment_numbers
from .vehicles import runs, vehicle_numbers
from .waiting import Waiting


class Owed(Memento):
    """The toll each vehicle was told and has not yet to pay, the tariffs by minute, and entries that wait."""

    pending: Any = field(default_factory=no_ints)
    sparse: dict[int, int] = field(default_factory=dict)
    lavs: dict[int, Ints] = field(default_factory=dict)
    tolls: dict[int, Ints] = field(default_factory=dict)
    waiting: Waiting = field(default_factory=Waiting)
    settled: int = -1


class TollNotification(Slet, name="toll_notification"):
    """Tell each entry the toll of its minute, and charge it when the vehicle shows up in another segment.

    Entries wait until the tariff of their minute is complete. `charges` carries the tolls that became due, and
    punctuation once all charges through a second are out.
    """

    owed: Owed
    charges: OutputPort[Charges | Punctuation]

    @input_port
    def entries(self, entries: Entries | Punctuation) -> Iterator[Notices]:
        """Segment entries, ordered by time; punctuation by second."""
        waiting = self.owed.waiting
        if not isinstance(entries, Punctuation):
            for minute, rows in waiting.arrived(entries):
                yield from self._told(minute, rows)
            return
        waiting.through = int(entries.time)
        self._settle()

    @input_port
    def tariffs(self, tariffs: Tariffs | Punctuation) -> Iterator[Notices]:
        """Tariffs; punctuation: complete through that minute."""
        owed = self.owed
        if not isinstance(tariffs, Punctuation):
            _learn(tariffs, owed)
            return
        for minute, rows in owed.waiting.decided(int(tariffs.time)):
            yield from self._told(minute, rows)
        self._settle()

    def _told(self, minute: int, entries: pa.RecordBatch) -> Iterator[Notices]:
        """Charge for the segments left, and tell the toll of those entered."""
        owed = self.owed
        times, vids, lanes, firsts = columns(entries, "time", "vid", "lane", "first")
        segments = segment_numbers(entries)
        told = lanes != EXIT_LANE
        lavs = looked_up(owed.lavs.get(minute, no_ints()), segments, 0)
        tolls = looked_up(owed.tolls.get(minute, no_ints()), segments, 0)
        due = self._due(vehicle_numbers(vids, owed.sparse), np.where(told, tolls, 0), firsts)
        if (charged := np.flatnonzero(due)).size:
            self.charges.push_batch(record_batch(CHARGES, times[charged], vids[charged], due[charged]))
        if told.all():
            yield record_batch(NOTICES, times, vids, lavs, tolls)
        elif told.any():
            yield record_batch(NOTICES, times[told], vids[told], lavs[told], tolls[told])

    def _due(self, vehicles: Any, tolls: Ints, firsts: Ints) -> Ints:
        """Return the toll of each vehicle for the segment it left; from now on it owes *tolls*."""
        pending = self.owed.pending = grown(self.owed.pending, int(vehicles.max()) + 1, 0)
        due = np.empty_like(tolls)
        for run in runs(vehicles):
            who = vehicles[run]
            due[run] = pending[who]
            pending[who] = tolls[run]
        due[firsts == 1] = 0
        return due

    def _settle(self) -> None:
        """Send a punctuation up to which all charges are sent, and drop the tariffs before it."""
        owed = self.owed
        settled = owed.waiting.settled()
        if settled <= owed.settled:
            return
        owed.settled = settled
        self.charges.push(Punctuation(settled))
        for minute in [minute for minute in owed.tolls if minute < minute_of(settled + 1)]:
            del owed.tolls[minute], owed.lavs[minute]


class Warned(Memento):
    """The accidents by minute, and entries that wait."""

    incidents: Incidents = field(default_factory=Incidents)
    waiting: Waiting = field(default_factory=Waiting)


class AccidentNotification(Slet, name="accident_notification"):
    """Warn each vehicle that enters a segment with an accident at most four segments ahead, the nearest one."""

    warned: Warned

    @input_port
    def entries(self, entries: Entries | Punctuation) -> Iterator[Alerts]:
        """Segment entries, ordered by time; punctuation by second."""
        if not isinstance(entries, Punctuation):
            for minute, rows in self.warned.waiting.arrived(entries):
                yield from self._alerts(minute, rows)

    @input_port
    def accidents(self, accidents: Accidents | Punctuation) -> Iterator[Alerts]:
        """Accidents; punctuation: all events through that minute are there, so the next minute is decided."""
        if not isinstance(accidents, Punctuation):
            self.warned.incidents.learn(accidents)
            return
        for minute, rows in self.warned.waiting.decided(int(accidents.time) + 1):
            yield from self._alerts(minute, rows)

    def _alerts(self, minute: int, entries: pa.RecordBatch) -> Iterator[Alerts]:
        ahead = self.warned.incidents.seen_from(minute)
        if len(ahead) == 0:
            return
        where = looked_up(ahead, segment_numbers(entries), NO_ACCIDENT)
        warned = np.flatnonzero((where != NO_ACCIDENT) & (column(entries, "lane") != EXIT_LANE))
        if len(warned):
            times, xways, directions, vids = (
                values[warned] for values in columns(entries, "time", "xway", "dir", "vid")
            )
            yield record_batch(ALERTS, times, xways, where[warned], directions, vids)


def _learn(tariffs: pa.RecordBatch, owed: Owed) -> None:
    """Lay the tariff of each minute out by segment number."""
    minutes, lavs, tolls = columns(tariffs, "minute", "lav", "toll")
    numbers = segment_numbers(tariffs)
    for minute in np.unique(minutes).tolist():
        rows = minutes == minute
        size = int(numbers[rows].max()) + 1
        for known, values in ((owed.lavs, lavs), (owed.tolls, tolls)):
            table = known[minute] = grown(known.get(minute, no_ints()), size, 0)
            table[numbers[rows]] = values[rows]
