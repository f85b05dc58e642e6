"""Rows that do not pass through the platform: Spark's tasks read a partitioned log, and stage what they compute."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from typing import Annotated, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from exop_kafka import MockCluster, Record
from exop_spark import EventTime, Input, Receipt, query

from exop import Application, Memento, Platform, Punctuation, hookimpl, slet
from exop.engine import following
from exop.engine.following import Following
from exop.errors import MementoError
from exop.hooks import Plugins
from tests.rig import eventually

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


def read_by_tasks(slet: Any) -> int:
    """The rows that all executors have read."""
    return sum(rows for name, rows in slet.metrics().items() if name.startswith("rows read by "))


@pytest.mark.edges
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
        assert read_by_tasks(component.instance) == 400
    found = [row for one in receipts for row in one.read().to_pylist()]
    assert sum(row["n"] for row in found) == 400
    assert {(row["until"], row["key"]) for row in found} == {(until, key) for until in (10, 20) for key in range(7)}
    assert len(found) == 14
    assert all(one.path.startswith(stage) for one in receipts)


@pytest.mark.edges
def test_records_of_a_topic_that_are_no_rows_are_left_to_the_policy(spark):
    """The error names the first one; its cures let the query go on behind it, or set them aside, or do without one."""
    found: list[dict[str, Any]] = []

    @slet
    def gather(row: dict[str, Any]) -> None:
        found.append(row)

    @slet
    def decodes(record: Record) -> dict[str, Any] | None:
        with suppress(ValueError):
            row = json.loads(record.value)
            return row if isinstance(row, dict) and row.keys() == {"time", "key"} else None

    wrong = [b"null", b"{}", b'{"time": 1}', b'{"time": 1, "key": 1}\n{"time": 2, "key": 2}', b"\xff", b""]
    app, ends = Application("topic"), [b'{"time": %d, "key": 0}' % n for n in range(3)]
    with MockCluster({"rows": 1}) as cluster, Platform(control=False) as platform:
        producer = Producer({"bootstrap.servers": cluster.brokers})

        def written(*values: bytes) -> None:
            for value in values:
                producer.produce("rows", value)
            assert producer.flush(60) == 0

        written(ends[0], *wrong, ends[1])
        rows = app.channel("rows", "kafka", topic="rows", brokers=cluster.brokers, start="oldest")
        copied = query("copied", "SELECT * FROM rows", inputs={"rows": ROWS}, out=ROWS)
        app.add("gather", gather, row=app.add("copied", copied, rows=rows, warm_up=0))
        mesh = platform.apply(app.build())
        parts = platform.deployment("topic").components
        eventually(lambda: parts["copied"].error is not None, seconds=240)
        error = str(parts["copied"].error)
        assert "the topic 'rows', partition 0, offset 1: the value is not one JSON object with the columns" in error
        cure = re.search(r"exop configure APP.NODE on_error=(\w+)` \(or on_error=(dead-letter)\); or .* `(\S+)`", error)
        assert cure is not None
        assert not found
        mesh = platform.apply(mesh.configure("copied", on_error=cure[1]))
        eventually(lambda: len(found) == 2, seconds=240)
        platform.apply(mesh.configure("copied", on_error=cure[2]))
        written(*wrong, ends[2])
        eventually(lambda: len(found) == 3, seconds=240)
        letters = platform.deployment("topic").components["copied"].trouble.dead
        eventually(lambda: len(letters) == len(wrong), seconds=240)
        other = Application("other")
        records = other.add("read", cure[3], topic="rows", brokers=cluster.brokers, follow=False)
        other.add("gather", gather, row=other.add("decodes", decodes, record=records))
        other.run(platform)
    assert found == [{"time": n, "key": 0} for n in range(3)] * 2
    assert [(one.item[0]["offset"], one.item[0]["value"]) for one in letters] == [*enumerate(wrong, len(wrong) + 2)]


class World:
    """The number of windows that the source sends, until it is over, and of those that it has sent."""

    limit = 0
    over = False
    sent = 0


@slet
def windows() -> Iterator[Rows | Punctuation | None]:
    """Windows of 70 rows, each followed by a punctuation."""
    World.sent = window = 0
    while not World.over or window < World.limit:
        if window < World.limit:
            times, keys = [10 * window + n // 7 for n in range(70)], [n % 7 for n in range(70)]
            yield pa.RecordBatch.from_pydict({"time": times, "key": keys}, schema=ROWS)
            yield Punctuation(10 * window + 9)
            World.sent = window = window + 1
        threading.Event().wait(0.02)  # what a swap of seconds leaves behind is not much
        yield None


@slet
def passes(rows: Rows) -> Rows:
    """Pass columns on, without Spark."""
    return rows


class Noted(Memento):
    """The rows that have come."""

    found: list[tuple[int, ...]] = field(default_factory=list)


@slet(effects=False)
def note(item: dict[str, int], noted: Noted) -> None:
    """Note a row."""
    noted.found.append(tuple(item.values()))


TIMED = Input(ROWS, EventTime("time"))
BOTH = COUNTS.replace("FROM rows", "FROM (SELECT * FROM rows UNION ALL SELECT * FROM more)")
grouped = query("grouped", BOTH, inputs={"rows": TIMED, "more": TIMED}, out=OUT, key_groups=2, warm_up=0)
copies = query("copies", "SELECT * FROM rows", inputs={"rows": ROWS}, out=ROWS, trigger=3600.0, warm_up=0)


class Offered:
    """The slets that a platform with a state directory must know."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """Offer them."""
        return [windows, passes, note, grouped, copies]


@pytest.mark.edges
@pytest.mark.usefixtures("unhurried")
def test_queries_that_read_a_log_themselves_are_replaced_while_it_grows(spark, tmp_path, monkeypatch):
    """One with state and two inputs by another one, which has caught up; one by a slet that gets what is left."""
    followed, take_over = [], Following.take_over
    monkeypatch.setattr(Following, "take_over", lambda self: followed.append(take_over(self)) or followed[-1])
    monkeypatch.setattr(following, "_QUIET", 240.0)  # more rows come, but first a checkpoint
    World.limit, World.over = 2, False
    app, plugins = Application("growing"), Plugins()
    app.durable(every=0.2)
    plugins.register("native", Offered())
    log = app.channel("log", "partitioned_log", by="key", partitions=2, path=str(tmp_path / "log"))
    app.add("windows", windows, out=log)
    app.add("note", note, item=app.add("counts", grouped, rows=log, more=log))
    app.add("look", note, item=app.add("copies", copies, rows=log))
    with Platform(state=tmp_path / "state", control=False, plugins=plugins) as platform:
        mesh = platform.apply(app.build())
        parts = platform.deployment("growing").components
        eventually(lambda: len(parts["note"].state.found) == 14, seconds=240)
        other = BOTH.replace("count(*)", "CAST(avg(key) AS BIGINT)")
        with pytest.raises(MementoError, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"):
            platform.plan(mesh.configure("counts", query=other))
        plan = platform.plan(mesh.replace("copies", passes).configure("counts", trigger=0.01))
        assert "grouped is taken over by grouped (tried on a copy as of micro-batch" in str(plan)
        World.limit = 10**9
        plan.apply(timeout=240)
        assert followed == [True]
        World.limit, World.over = 0, True
        assert platform.wait("growing", 240)
        parts = platform.deployment("growing").components
        assert not parts["counts"].metrics.tallies["rows"].received
        assert parts["copies"].metrics.tallies["rows"].received >= 140  # Spark may have read the others before
        counted, passed = (sorted(parts[name].state.found) for name in ("note", "look"))
    assert counted == [(10 * window, key, 20) for window in range(1, World.sent + 1) for key in range(7)]
    assert passed == [(time, key) for time in range(10 * World.sent) for key in range(7)]
