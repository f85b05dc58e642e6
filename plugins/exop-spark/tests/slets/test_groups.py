"""The aggregate as a slet, with an engine that stands for Spark."""

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from exop_spark.slets import groups, slet

from exop import Punctuation, Tie
from exop.engine import EngineState
from exop.engine.pull import QueryProgress
from exop.engine.slet import aggregation_of
from exop.errors import EngineError
from exop.runtime.durable.engine_journal import EngineJournal

OF = aggregation_of(
    {
        "columns": "time bigint, value double",
        "values": {"n": "count(*)"},
        "keys": [],
        "time": "time",
        "window": 10,
        "slide": 0,
    }
)
ROWS = pa.RecordBatch.from_pydict({"time": [1, 2], "value": [1.0, 2.0]}, schema=OF.columns)


class Engine:
    """Starts, except for the first one if there is no room; computes nothing."""

    made, full = 0, False

    def __init__(self) -> None:
        Engine.made += 1
        self._closing = threading.Event()

    def compile(self, *_: Any) -> None:
        """Accept it."""

    def start(self, *_: Any) -> None:
        """Find no room, once."""
        if Engine.full:
            Engine.full = False
            raise EngineError("No space left on device")

    def wait(self) -> None:
        """Wait for the end."""
        self._closing.wait()

    def close(self) -> None:
        """End."""
        self._closing.set()

    def metrics(self) -> dict[str, int]:
        """Return none."""
        return {}


@pytest.fixture
def opened(monkeypatch):
    """An aggregate that is open, without Spark."""
    Engine.made, Engine.full = 0, False
    spark = SimpleNamespace(session=lambda: "new", release=Mock())
    for module in (groups, slet):
        monkeypatch.setattr(module, "lease", lambda _: SimpleNamespace(engine=spark, release=lambda: None))
    kind = groups.grouping(OF)
    monkeypatch.setattr(kind, "make_engine", lambda _: Engine())
    with kind(out=Mock(), tie=Tie(), state=EngineState(), warm_up=0) as one:
        yield one


def test_an_item_that_could_not_start_the_query_starts_it_when_it_is_tried_again(opened):
    """It is not taken by the query that has not started."""
    Engine.full = True
    with pytest.raises(EngineError, match="No space left"):
        opened.take("rows", ROWS)
    opened.take("rows", ROWS)
    assert Engine.made == 2
    assert opened.metrics()["lag"] == 2


def test_a_query_that_does_not_come_to_rest_tells_why(opened, monkeypatch):
    """Not that its state cannot be read."""
    monkeypatch.setattr(slet.SparkSlet, "quiesce", Mock(side_effect=EngineError("the reason")))
    monkeypatch.setattr(opened, "_capture", Mock(side_effect=EngineError("no state")))
    with pytest.raises(EngineError, match="the reason"):
        opened.quiesce()


@pytest.mark.parametrize("durable", [True, False])
def test_the_state_of_a_query_that_has_failed_is_read_for_its_successor(opened, monkeypatch, tmp_path, durable):
    """By another session; the old one may be lost. In a durable application, its checkpoints belong together."""
    table = OF.state.empty_table()
    monkeypatch.setattr(groups, "read_groups", lambda run, batch, of, session: table if session == "new" else None)
    monkeypatch.setattr(groups, "Run", Engine)
    opened.take("rows", ROWS)
    opened._progress = QueryProgress(batch=3)
    opened.state.engine, opened._failure = "spark", EngineError("divided by zero")
    opened.tie = EngineJournal({"rows": "columns"})
    opened.tie.held = True
    opened.tie.directory = tmp_path if durable else None
    opened.flush()
    assert opened.state.engine == ("spark" if durable else "aggregate")
    assert [one.args for one in opened._share.engine.release.call_args_list] == ([] if durable else [("new",)])


def test_late_rows_whose_results_are_not_sent_are_counted_by_the_successor_of_a_failed_query(opened, monkeypatch):
    """It is given these rows again."""
    monkeypatch.setattr(groups, "read_groups", lambda *_: OF.state.empty_table())
    monkeypatch.setattr(groups, "Run", Engine)
    for one in (ROWS, Punctuation(10), ROWS):
        opened.take("rows", one)
    feed = opened.feeds["rows"]
    feed.latest(0, None, 0)
    feed.put_out()
    opened.take("rows", ROWS)
    assert opened.metrics()["late_rows"] == 4
    opened._progress = QueryProgress(batch=3)
    opened.state.engine, opened._failure = "spark", EngineError("divided by zero")
    opened.flush()
    assert OF.read(opened.state.snapshot)[2] == 2


def test_rows_by_reference_are_read_for_the_aggregate(opened):
    """It marks the late ones, for which it has to see them."""
    assert not opened.takes_references("rows")
