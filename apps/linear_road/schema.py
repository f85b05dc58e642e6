"""What travels between the slets of Linear Road: one Arrow schema per channel.

Times are seconds since the start of the simulation, minutes count from 1 (`minute = time // 60 + 1`), positions are feet
from the west end, speeds miles per hour, tolls and balances whole currency units. Source: Arasu et al., VLDB 2004.
"""

from typing import Annotated, Final, TypeAlias

import pyarrow as pa


def _integers(*names: str) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int32(), nullable=False) for name in names])


#: The 15 fields of an input line, in their order.
TUPLES: Final = _integers(
    "type", "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos", "qid", "s_init", "s_end", "dow", "tod", "day"
)
#: Position reports (type 0).
REPORTS: Final = _integers("time", "vid", "spd", "xway", "lane", "dir", "seg", "pos")
#: What minute `minute` is charged by: Cars of the minute before, LAV of the five minutes before.
STATISTICS: Final = _integers("minute", "xway", "dir", "seg", "cars").append(pa.field("lav", pa.float64(), nullable=False))
#: An accident was detected (cleared = 0) or cleared (cleared = 1) at `time`.
ACCIDENTS: Final = _integers("minute", "time", "xway", "dir", "seg", "lane", "pos", "cleared")

Tuples: TypeAlias = Annotated[pa.RecordBatch, TUPLES]
Reports: TypeAlias = Annotated[pa.RecordBatch, REPORTS]
Statistics: TypeAlias = Annotated[pa.RecordBatch, STATISTICS]
Accidents: TypeAlias = Annotated[pa.RecordBatch, ACCIDENTS]
