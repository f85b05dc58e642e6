"""Spark queries that go on after a crash: Spark commits by itself, what goes in and comes out is in logs."""

from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from exop_spark import EventTime, Input, SparkSlet, aggregate, query

from bench.across import SETTINGS, expected, second
from exop import EndOfStream, Punctuation
from exop.engine import EngineState
from exop.engine.pull_slet import PullSlet
from exop.errors import QueryError
from exop.runtime.drivers.source import EngineDriver
from exop.runtime.durable.engine_journal import DiskJournal, EngineFolders
from exop.stock.slets import Aggregate
from exop.testing import open as open_slet

pytestmark = [pytest.mark.edges, pytest.mark.spark, pytest.mark.usefixtures("spark")]

ROWS = pa.schema([pa.field("time", pa.int32(), nullable=False), pa.field("value", pa.int32())])
DOUBLE = "SELECT time, value * 2 AS value FROM rows"
WINDOWS = """
SELECT CAST(unix_seconds(window.end) AS INT) AS time, CAST(sum(value) AS INT) AS value
FROM rows GROUP BY window(event, '10 seconds')
"""


def rows(*pairs):
    """Rows of (time, value)."""
    times, values = zip(*pairs, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(times, pa.int32()), pa.array(values, pa.int32())], schema=ROWS)


class Life:
    """One life of a Spark slet: its tie, and the port by which it puts out."""

    def __init__(self, kind, places, noted, held=None, prepare=lambda tie: None):
        driver = EngineDriver("engine", lambda: None, lambda: ())
        self.out = noted()
        self._count(driver)
        self.tie = DiskJournal(
            lambda name: places.folder("a", "n", name), {"rows": "columns"}, {"out": self.out}, driver
        )
        if held is not None:
            self.tie.restore(held)
        self.tie.open()
        prepare(self.tie)
        self.slet = kind(out=self.out, tie=self.tie)
        self.slet.__enter__()
        with suppress(QueryError):  # it is told at the port, too
            self.slet.ready()
        self.tie.start()

    def die(self):
        """Nothing is left of it but files."""
        self.slet.__exit__()
        self.tie.close()

    def finish(self):
        """End the input, and wait for the end of the output."""
        self.slet.rows(EndOfStream())
        self.out.wait_for(lambda: self.out.ended)
        assert self.out.error is None
        self.die()

    def _count(self, driver):
        for way in ("push", "push_batch", "end"):
            plain = getattr(self.out, way)

            def counted(*item, plain=plain):
                driver.count += 1
                plain(*item)

            setattr(self.out, way, counted)


def doubling() -> type[SparkSlet]:
    """A query without state."""
    return query("double", DOUBLE, inputs={"rows": ROWS}, out=ROWS, warm_up=0)


def windowed() -> type[SparkSlet]:
    """A query with windows of ten seconds."""
    return query("sums", WINDOWS, inputs={"rows": Input(ROWS, EventTime("time"))}, out=ROWS, warm_up=0)


@pytest.fixture
def places(tmp_path):
    """A state directory's folders of engines."""
    return EngineFolders(tmp_path)


def test_a_query_that_is_killed_before_it_has_sent_the_end_sends_it(places, noted, monkeypatch):
    """Spark has computed and committed all, the mark of the end included: it has nothing to do after the restart."""
    with monkeypatch.context() as patch:
        patch.setattr(PullSlet, "_drain", lambda _: None)
        first = Life(windowed(), places, noted)
        first.slet.rows(rows((3, 1)))
        first.slet.rows(EndOfStream())
        first.out.wait_for(lambda: first.out.batches)
        first.slet._trigger.release()
        first.slet.engine.settle()
        held = first.tie.capture()
        first.die()
    second = Life(windowed(), places, noted, held)
    second.out.wait_for(lambda: second.out.ended)
    assert second.out.error is None
    second.die()


def test_what_was_put_out_before_a_crash_is_not_asked_for_again(places, noted):
    """The query is ahead of the checkpoint: what it has put out leaves once more from the log, and only there."""
    first = Life(doubling(), places, noted)
    first.slet.rows(rows((1, 1)))
    first.slet.rows(Punctuation(1))
    first.out.wait_for(lambda: first.out.punctuations == [1])
    held = first.tie.capture()
    first.slet.rows(rows((2, 2), (2, 3)))
    first.slet.rows(Punctuation(2))
    first.out.wait_for(lambda: first.out.punctuations == [1, 2])
    first.die()
    second = Life(doubling(), places, noted, held)
    # In other batches than before: rows are counted one by one.
    for again in (rows((2, 2)), rows((2, 3)), Punctuation(2), rows((3, 4)), Punctuation(3)):
        second.slet.rows(again)
    second.finish()
    assert second.out.table() == [(2, 4), (2, 6), (3, 8)]
    assert second.out.punctuations == [2, 3]


def test_windows_go_on_where_they_were(places, noted):
    """State, watermark and offsets are Spark's own; the rest of an open window comes after the crash."""
    first = Life(windowed(), places, noted)
    first.slet.rows(rows((3, 1), (8, 2)))
    held = first.tie.capture()
    first.slet.rows(rows((11, 4)))
    first.slet.rows(Punctuation(12))
    first.out.wait_for(lambda: 12 in first.out.punctuations)
    assert first.out.table() == [(10, 3)]
    first.die()
    second = Life(windowed(), places, noted, held)
    second.slet.rows(rows((11, 4)))
    second.slet.rows(Punctuation(12))
    second.slet.rows(rows((13, 5), (25, 6)))
    second.slet.rows(Punctuation(25))
    second.out.wait_for(lambda: 25 in second.out.punctuations)
    middle = second.tie.capture()
    second.die()
    third = Life(windowed(), places, noted, middle)
    third.finish()
    assert second.out.table() == [(10, 3), (20, 9)]
    assert third.out.table() == [(30, 6)]


def test_an_end_that_was_taken_before_a_crash_ends_the_output_after_it(places, noted):
    """Both when the output had ended before, and when it had not."""
    first = Life(windowed(), places, noted)
    held = first.tie.capture()
    first.slet.rows(rows((3, 1)))
    first.slet.rows(EndOfStream())
    first.out.wait_for(lambda: first.out.ended)
    first.die()
    second = Life(windowed(), places, noted, held)
    second.out.wait_for(lambda: second.out.ended)
    assert second.out.table() == [(10, 1)]
    second.slet.rows(rows((3, 1)))
    second.slet.rows(EndOfStream())
    second.die()
    assert second.out.table() == [(10, 1)]


def counting(state: EngineState, windows: dict[str, int]) -> Any:
    """The aggregate of `bench.across` with this memento."""
    given = {setting.name: setting.default for setting in aggregate.settings.values()}
    return partial(aggregate.factory, state=state.copied(), **given | SETTINGS | windows | {"warm_up": 0})


def crashing(batch: int, *, emitted: bool) -> Any:
    """Let nothing be emitted from that batch on; or after it, so that Spark does not commit it."""

    def prepare(tie: DiskJournal) -> None:
        put_out = tie.put_out

        def crash(number: int | None, *arguments: Any) -> bool:
            if number is None or number < batch:
                return put_out(number, *arguments)
            if emitted and number == batch:
                put_out(number, *arguments)
            raise RuntimeError("the platform is killed")

        tie.put_out = crash

    return prepare


def last_values(rows: list[Any]) -> list[Any]:
    """Return the last row of each group, in order."""
    found = {row[:2]: row for row in rows}
    return [found[key] for key in sorted(found, key=lambda key: [(one is None, one) for one in key])]


@pytest.mark.parametrize(
    ("windows", "first", "further"),
    [
        ({"window": 20, "slide": 5}, crashing(0, emitted=False), [crashing(1, emitted=False)]),
        ({"window": 0}, crashing(0, emitted=True), []),
    ],
    ids=["windows", "no windows"],
)
def test_groups_of_another_engine_count_once_wherever_the_platform_is_killed(places, noted, windows, first, further):
    """Before their batch is emitted, and before the next is; or before it is committed; then without the groups."""
    before, middle, after = ([one for at in range(20) for one in second(7, at + begin)] for begin in (1, 21, 41))
    with open_slet(Aggregate, **SETTINGS | windows) as other:
        sent = [one for item in before for one in other.rows(item)]
        other.flush()
    life = Life(counting(EngineState(), windows), places, noted, prepare=first)
    life.slet.state = other.state.copied()
    held = life.tie.capture()
    for prepare in (*further, lambda tie: None):
        with suppress(QueryError):
            for item in middle:
                life.slet.rows(item)
        life.out.wait_for(lambda life=life: life.out.error is not None)
        life.die()
        life = Life(counting(other.state, windows), places, noted, held, prepare)
    for item in middle:
        life.slet.rows(item)
    life.slet.quiesce()
    life.slet.proceed()
    life.slet.rows(after[0])
    held, state = life.tie.capture(), life.slet.state
    assert (state.engine, state.snapshot) == ("spark", b"")
    life.die()
    last = Life(counting(state, windows), places, noted, held)
    for item in after[1:]:
        last.slet.rows(item)
    last.finish()
    life.out.items[:0] = sent
    found, wanted = life.out.table() + last.out.table(), expected([*before, *middle, *after, EndOfStream()], **windows)
    assert (found if windows["window"] else last_values(found)) == wanted
