"""Rows that do not pass through the platform: Spark's tasks read a partitioned log, and stage what they compute."""

from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
from exop_spark import EventTime, Input, Receipt, query

from exop import Application, Platform, Punctuation, slet

ROWS = pa.schema([("time", pa.int64()), ("key", pa.int64())])
OUT = pa.schema([("until", pa.int64()), ("key", pa.int64()), ("n", pa.int64())])
Rows = Annotated[pa.RecordBatch, ROWS]
COUNTS = """
    SELECT unix_seconds(window.end) AS until, key, count(*) AS n FROM rows GROUP BY window(event, '10 seconds'), key
"""


@slet
def readings() -> Iterator[Rows | Punctuation]:
    """Two windows of 200 rows, each followed by a punctuation."""
    for window in range(2):
        times, keys = [10 * window + n % 10 for n in range(200)], [n % 7 for n in range(200)]
        yield pa.RecordBatch.from_pydict({"time": times, "key": keys}, schema=ROWS)
        yield Punctuation(10 * window + 9)


def test_windows_over_a_log_that_spark_reads_leave_as_receipts(spark, tmp_path):
    """Every row once; punctuations close the windows and leave; only references pass."""
    stage = f"file://{tmp_path}/staged"
    counts = query(
        "counts", COUNTS, inputs={"rows": Input(ROWS, EventTime("time"))}, out=OUT, stage=stage, key_groups=2
    )
    app, receipts = Application("staged"), list[Receipt]()

    @slet
    def gather(item: Receipt) -> None:
        receipts.append(item)

    log = app.channel("log", "partitioned_log", by="key", partitions=3, path=str(tmp_path / "log"))
    app.add("readings", readings, out=log)
    counted = app.add("counts", counts, rows=log, warm_up=0)
    app.add("collect", gather, item=counted)
    with Platform() as platform:
        platform.apply(app.build())
        platform.wait("staged")
        component = platform.deployment("staged").components["counts"]
        assert component.metrics.tallies["rows"].received == 0
        assert component.instance.feeds["rows"].rows == 400
    found = [row for one in receipts for row in one.read().to_pylist()]
    assert sum(row["n"] for row in found) == 400
    assert {(row["until"], row["key"]) for row in found} == {(until, key) for until in (10, 20) for key in range(7)}
    assert len(found) == 14
    assert all(one.path.startswith(stage) for one in receipts)
