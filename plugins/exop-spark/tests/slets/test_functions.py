"""Queries that are functions of DataFrames: what they can have, and what is refused with a cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from exop_spark import query
from exop_spark.errors import QueryFailed, QueryRefused

from exop import EndOfStream

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

NUMBERS = pa.schema([("a", pa.int64())])


def made(function: Callable[..., Any], **settings: Any) -> Any:
    """A query over `rows`, whose results are numbers, too."""
    return query("q", function, inputs={"rows": NUMBERS}, out=NUMBERS, warm_up=0, **settings)


def finish(opened: Any, out: Any) -> None:
    """Give three numbers, and wait until all results have left, or the query has failed."""
    opened.rows(pa.RecordBatch.from_pylist([{"a": 1}, {"a": 1}, {"a": 2}], NUMBERS))
    opened.rows(EndOfStream())
    out.wait_for(lambda: out.ended)


def counted(rows: Any) -> Any:
    """Count the rows of each number, in a state of the user's own."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.seen = handle.getValueState("seen", "number bigint")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:  # noqa: N802
            number = sum(1 for _ in rows) + (self.seen.get()[0] if self.seen.exists() else 0)
            self.seen.update((number,))
            yield Row(a=number)

        def close(self) -> None:
            """Nothing is open."""

    return rows.groupBy("a").transformWithState(
        statefulProcessor=Count(), outputStructType="a bigint", outputMode="Update", timeMode="None"
    )


@pytest.mark.edges
def test_transform_with_state_needs_key_groups_and_runs_with_them(out, noted):
    """The error of a query with one key group says so; the query that follows it counts."""
    with made(counted, mode="update")(out=out) as opened:
        finish(opened, out)
    assert isinstance(out.error, QueryFailed)
    assert "set key_groups=2, or more" in str(out.error)
    again = noted()
    with made(counted, mode="update")(out=again, key_groups=2) as opened:
        finish(opened, again)
    assert sorted(again.table()) == [(1,), (2,)]


def test_a_query_that_is_written_to_a_sink_is_refused(out, tmp_path):
    """Without `writeStream`, as the error says, the rows leave by `out`. The query that was started is stopped."""
    sessions = []

    def written(rows: Any) -> Any:
        sessions.append(rows.sparkSession)
        return rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).queryName("lost").start()

    with pytest.raises(QueryRefused, match=r"a StreamingQuery; return the DataFrame itself, without `writeStream`"):
        made(written)(out=out).__enter__()
    assert [one.name for session in sessions for one in session.streams.active] == []
    with made(lambda rows: rows)(out=out) as opened:
        finish(opened, out)
    assert (out.error, sorted(out.table())) == (None, [(1,), (1,), (2,)])
