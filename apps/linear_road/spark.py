"""The data pipeline on Spark: the queries that `positions`, `statistics` and `accidents` are elsewhere, same ports."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from exop_spark import EventTime, Input, Punctuate, query

from . import standing
from .schema import ACCIDENTS, REPORTS, STATISTICS, TUPLES
from .segments import MINUTE, complete_minute, minute_of

#: The size of the warm-up: the number of vehicles that report twice a minute.
_VEHICLES: Final = 1_000

POSITIONS: Final = """
SELECT time, vid, spd, xway, lane, dir, seg, pos
FROM tuples
WHERE type = 0
"""

#: Per vehicle and minute, then per segment and minute, then over five minutes: each stage waits for the watermark, and
#: all three let a minute go in the same micro-batch.
SEGMENT_STATISTICS: Final = """
WITH vehicles AS (
  SELECT window(event, '1 minute') AS minute, xway, dir, seg, vid, avg(spd) AS speed
  FROM reports
  GROUP BY window(event, '1 minute'), xway, dir, seg, vid
), minutes AS (
  SELECT window(window_time(minute), '1 minute') AS minute, xway, dir, seg, count(*) AS cars, avg(speed) AS speed
  FROM vehicles
  GROUP BY window(window_time(minute), '1 minute'), xway, dir, seg
), latest AS (
  SELECT window(window_time(minute), '5 minutes', '1 minute') AS five, xway, dir, seg,
         avg(speed) AS lav, max(struct(minute.end AS until, cars)) AS last
  FROM minutes
  GROUP BY window(window_time(minute), '5 minutes', '1 minute'), xway, dir, seg
)
SELECT CAST(unix_seconds(five.end) DIV 60 + 1 AS INT) AS minute, xway, dir, seg,
       CAST(IF(last.until = five.end, last.cars, 0) AS INT) AS cars, lav
FROM latest
"""


def _sample(schema: pa.Schema) -> Any:
    """Make the rows of minute *turn*: traffic that moves on, so that windows open and close."""

    def rows(turn: int) -> pa.RecordBatch:
        vids = np.repeat(np.arange(_VEHICLES, dtype=np.int32), 2)
        half = np.tile(np.array([0, 30], np.int32), _VEHICLES) + vids % 30
        segments = (vids + turn) % 100
        known = {"vid": vids, "time": turn * MINUTE + half, "spd": 40 + vids % 7, "seg": segments}
        known |= {"lane": 1 + vids % 3, "dir": vids % 2, "pos": segments * 5280}
        order = np.argsort(known["time"], kind="stable")
        zeros = np.zeros(len(vids), np.int32)
        columns = [pa.array(known.get(name, zeros)[order].astype(np.int32)) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return rows


positions = query(
    "spark_positions",
    POSITIONS,
    inputs={"tuples": Input(TUPLES, sample=_sample(TUPLES))},
    out=REPORTS,
    trigger=0.8,
    boundary=60.0,
)

statistics = query(
    "spark_statistics",
    SEGMENT_STATISTICS,
    inputs={"reports": Input(REPORTS, EventTime("time"), sample=_sample(REPORTS))},
    out=STATISTICS,
    punctuate=Punctuate("watermark", minute_of),
    trigger=30.0,
    boundary=60.0,
    close_windows_at_end=False,
)

accidents = query(
    "spark_accidents",
    standing.accidents,
    inputs={"reports": Input(REPORTS, numbered=True, sample=_sample(REPORTS))},
    out=ACCIDENTS,
    punctuate=Punctuate("input", lambda second: complete_minute(second) or None),
    trigger=30.0,
    boundary=60.0,
)
