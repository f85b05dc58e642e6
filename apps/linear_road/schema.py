"""The items between the slets of Linear Road: one Arrow schema per channel.

Times are seconds since the start of the simulation, minutes count from 1 (`minute = time // 60 + 1`), positions are
feet from the west end, speeds miles per hour, tolls and balances whole currency units. Source: Arasu et al., VLDB 2004.
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
#: The statistics by which the minute `minute` is charged: Cars of the minute before, LAV of the five minutes before.
STATISTICS: Final = _integers("minute", "xway", "dir", "seg", "cars").append(
    pa.field("lav", pa.float64(), nullable=False)
)
#: An accident was detected (cleared = 0) or cleared (cleared = 1) at `time`.
ACCIDENTS: Final = _integers("minute", "time", "xway", "dir", "seg", "lane", "pos", "cleared")
#: A report from a segment that its vehicle was not in before (lane 4: left at once); `first` = 1 begins a trip.
ENTRIES: Final = _integers("time", "vid", "xway", "dir", "seg", "lane", "first")
#: The notice and toll for entering a segment in `minute`; segments without a row: no LAV, no toll.
TARIFFS: Final = _integers("minute", "xway", "dir", "seg", "lav", "toll")
#: A toll that became due at `time`.
CHARGES: Final = _integers("time", "vid", "amount")
#: Answers of type 0: the toll told on entering a segment.
NOTICES: Final = _integers("time", "vid", "lav", "toll")
#: Answers of type 1: the segment of an accident ahead.
ALERTS: Final = _integers("time", "xway", "seg", "dir", "vid")
#: Answers of type 2: the charges of a vehicle through `result`.
BALANCES: Final = _integers("time", "result", "qid").append(pa.field("balance", pa.int64(), nullable=False))
#: Answers of type 3: what a vehicle paid on a road on one day.
EXPENDITURES: Final = _integers("time", "qid").append(pa.field("balance", pa.int64(), nullable=False))

Tuples: TypeAlias = Annotated[pa.RecordBatch, TUPLES]
Reports: TypeAlias = Annotated[pa.RecordBatch, REPORTS]
Statistics: TypeAlias = Annotated[pa.RecordBatch, STATISTICS]
Accidents: TypeAlias = Annotated[pa.RecordBatch, ACCIDENTS]
Entries: TypeAlias = Annotated[pa.RecordBatch, ENTRIES]
Tariffs: TypeAlias = Annotated[pa.RecordBatch, TARIFFS]
Charges: TypeAlias = Annotated[pa.RecordBatch, CHARGES]
Notices: TypeAlias = Annotated[pa.RecordBatch, NOTICES]
Alerts: TypeAlias = Annotated[pa.RecordBatch, ALERTS]
Balances: TypeAlias = Annotated[pa.RecordBatch, BALANCES]
Expenditures: TypeAlias = Annotated[pa.RecordBatch, EXPENDITURES]
