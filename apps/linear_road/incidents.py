"""The accidents that count in each minute: shared by the toll calculation and the accident notification."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from .columns import Ints, columns, no_ints
from .segments import EAST, REACH, SEGMENTS, segment_numbers

NO_ACCIDENT = -1


@dataclass
class Incidents:
    """Accidents as the minutes see them; a part of the memento of who asks.

    An accident counts from the minute after its detection through the minute of its clearing, so what was told of
    the minutes before decides a minute. `standing` counts the accidents per segment: a detection adds one and a
    clearing takes one off, in whatever order an engine puts out the events of one second.
    """

    told: list[pa.RecordBatch] = field(default_factory=list)
    standing: dict[int, int] = field(default_factory=dict)
    minute: int = 0
    ahead: Ints = field(default_factory=no_ints)

    def learn(self, accidents: pa.RecordBatch) -> None:
        """Take in what was detected or cleared; minutes asked for already are not affected."""
        if accidents.num_rows:
            self.told.append(accidents)

    def seen_from(self, minute: int) -> Ints:
        """Per segment number the nearest segment ahead with an accident that counts in *minute*, or -1.

        Minutes are asked for in order, each when all events before it have been told. The result ends at the last
        segment concerned.
        """
        if minute > self.minute:
            if self.told:
                self._take_over(minute)
            self.minute = minute
        return self.ahead

    def _take_over(self, minute: int) -> None:
        """Count what was told of minutes before *minute*; keep the rest."""
        rest = []
        for batch in self.told:
            minutes, cleared = columns(batch, "minute", "cleared")
            early = minutes < minute
            for segment, gone in zip(segment_numbers(batch)[early].tolist(), cleared[early].tolist(), strict=True):
                self.standing[segment] = self.standing.get(segment, 0) + (-1 if gone else 1)
            if not early.all():
                rest.append(batch.filter(pa.array(~early)))
        self.told = rest
        self.standing = {segment: count for segment, count in self.standing.items() if count}
        self.ahead = self._upstream()

    def _upstream(self) -> Ints:
        """Spread each accident over its own segment and those upstream of it, the nearest winning."""
        blocked = [segment for segment, count in self.standing.items() if count > 0]
        ahead = np.full(max(blocked, default=-1) + REACH + 1 if blocked else 0, NO_ACCIDENT, np.int32)
        for distance in range(REACH, -1, -1):
            for number in blocked:
                road, segment = divmod(number, SEGMENTS)
                upstream = segment - distance if road % 2 == EAST else segment + distance
                if 0 <= upstream < SEGMENTS:
                    ahead[road * SEGMENTS + upstream] = segment
        return ahead
