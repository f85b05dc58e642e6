"""The aggregate as a slet, with an engine that stands for Spark."""

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from exop_spark.slets import groups, slet

from exop import Tie
from exop.engine import EngineState
from exop.engine.aggregate import aggregation_of
from exop.errors import EngineError

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
    """Starts unless it is the first; computes nothing."""

    made = 0

    def __init__(self) -> None:
        Engine.made += 1
        self._first, self._closing = Engine.made == 1, threading.Event()

    def compile(self, *_: Any) -> None:
        """Accept it."""

    def start(self, *_: Any) -> None:
        """Find no room, once."""
        if self._first:
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
    Engine.made = 0
    for module in (groups, slet):
        monkeypatch.setattr(module, "lease", lambda _: SimpleNamespace(release=lambda: None))
    kind = groups.grouping(OF)
    monkeypatch.setattr(kind, "make_engine", lambda _: Engine())
    with kind(out=Mock(), tie=Tie(), state=EngineState(), warm_up=0) as one:
        yield one


def test_an_item_that_could_not_start_the_query_starts_it_when_it_is_tried_again(opened):
    """It is not taken by the query that has not started."""
    with pytest.raises(EngineError, match="No space left"):
        opened.take("rows", ROWS)
    opened.take("rows", ROWS)
    assert Engine.made == 2
    assert opened.metrics()["lag"] == 2


def test_rows_by_reference_are_read_for_the_aggregate(opened):
    """It marks the late ones, for which it has to see them."""
    assert not opened.takes_references("rows")
