"""Trips: drop the reports of vehicles that are on no trip, before any query sees them."""

from dataclasses import field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from exop import Memento, Slet, input_port

from .columns import Mask, columns, grown
from .schema import Tuples
from .segments import EXIT_LANE
from .vehicles import runs, vehicle_numbers

ENTRY_LANE: Final = 0
UNSEEN: Final = 0
ON_THE_ROAD: Final = 1
LEFT: Final = 2


class Phases(Memento):
    """The phase of each vehicle: not seen yet, on the road, left by a ramp."""

    phase: Any = field(default_factory=lambda: np.zeros(0, np.uint8))
    sparse: dict[int, int] = field(default_factory=dict)
    ignored: int = 0


class Trips(Slet, name="trips"):
    """Ignore reports outside a trip wholly (`spec`, question 13).

    A trip ends with a report from lane 4 and the next begins in lane 0; what comes between, and a first report that
    is in lane 4 already, counts nowhere. It stands before the car positions so that every engine sees the same.
    """

    phases: Phases

    @input_port
    def tuples(self, tuples: Tuples) -> Tuples | None:
        """Pass the batch on as it is unless a report has to go."""
        kind, vids, lanes = columns(tuples, "type", "vid", "lane")
        reports = np.flatnonzero(kind == 0)
        if len(reports) == 0:
            return tuples
        if len(reports) < len(kind):
            vids, lanes = vids[reports], lanes[reports]
        outside = self._outside(vehicle_numbers(vids, self.phases.sparse), lanes)
        if not outside.any():
            return tuples
        self.phases.ignored += int(outside.sum())
        kept = np.ones(len(kind), np.bool_)
        kept[reports[outside]] = False
        return tuples.filter(pa.array(kept)) if kept.any() else None

    def _outside(self, vehicles: Any, lanes: Any) -> Mask:
        """Mark the reports that belong to no trip, and move the vehicles of the others on."""
        phase = self.phases.phase = grown(self.phases.phase, int(vehicles.max()) + 1, UNSEEN)
        outside: Mask = np.zeros(len(vehicles), np.bool_)
        for run in runs(vehicles):
            who, lane = vehicles[run], lanes[run]
            before = phase[who]
            leaving = lane == EXIT_LANE
            outside[run] = ignored = ((before == LEFT) & (lane != ENTRY_LANE)) | ((before == UNSEEN) & leaving)
            phase[who] = np.where(ignored, before, np.where(leaving, LEFT, ON_THE_ROAD))
        return outside

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of ignored reports."""
        return {"ignored": self.phases.ignored}
