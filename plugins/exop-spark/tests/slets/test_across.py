"""Aggregates that move between Spark and other engines with their windows."""

from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pytest
from exop_spark import aggregate

from bench.across import SETTINGS, World, carried, differences, engines, seconds, see
from exop import Application, Platform, Punctuation
from exop.engine import EngineState
from exop.engine.columns import schema_of
from exop.errors import MementoError, StoredStateError
from exop.hooks import Plugins
from exop.stock.slets import Aggregate
from exop.testing import feed
from exop.testing import open as open_slet

OTHER = "duckdb" if find_spec("exop_duckdb") and find_spec("sqlglot") else "stock"


def app(**settings: Any) -> Application:
    """A source, an aggregate, a sink."""
    made = Application("a")
    made.add("see", see, row=made.add("count", Aggregate, rows=made.add("seconds", seconds), **SETTINGS | settings))
    return made


@pytest.mark.edges
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("order", "windows", "own"),
    [
        (["stock", "spark", OTHER, "spark"], {"window": 20, "slide": 5}, {}),
        (["spark", OTHER, "spark"], {"window": 0}, {"key_groups": 2}),
    ],
)
def test_a_round_trip_while_the_stream_runs(
    order: list[str], windows: dict[str, int], own: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    """Nothing is lost, doubled or in another order: into Spark by a first batch, out of it by its checkpoint."""
    monkeypatch.setattr(World, "spark", own)
    assert OTHER in engines()
    seen, last = carried(order, windows, more=5)
    assert differences(seen, last, windows) == 0


@pytest.mark.edges
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("kind", "window", "moved"), [("double", 60.0, 3), ("float", 86400.5, 0)])
def test_windows_over_floating_point_times_have_any_length(kind: str, window: float, moved: int):
    """The same windows as on another engine, which may have begun them, and all of them at the end of the stream."""
    settings = {"columns": f"ts {kind}, region string, amount {kind}", "time": "ts", "keys": ["region"]}
    settings |= {"window": window, "values": {"orders": "count(*)", "turnover": "sum(amount)"}}
    times = [0.37, 59.5, 60.0, 61.37, 86400.5, 1e10 if kind == "float" else 1e13]
    rows = [{"ts": time, "region": "ch", "amount": number / 8} for number, time in enumerate(times)]
    batch = pa.RecordBatch.from_pylist(rows, schema_of(settings["columns"]))
    given = [batch.slice(0, 1), Punctuation(0.5), batch.slice(1, 2), batch.slice(3)]
    with open_slet(Aggregate, **settings) as begun:
        assert not [row for item in given[:moved] for row in begun.rows(item) if row != given[1]]
        begun.flush()
    state = begun.state if moved else EngineState()
    found = feed(Aggregate, given, **settings), feed(aggregate, given[moved:], **settings, warm_up=0, state=state)
    here, there = (
        [row for one in results if isinstance(one, pa.RecordBatch) for row in one.to_pylist()] for results in found
    )
    assert here == there
    assert sum(row["orders"] for row in there) == len(times)


def test_another_aggregate_is_refused_in_the_plan():
    """Before Spark starts."""
    World.over = True
    with Platform(plugins=Plugins()) as platform:
        mesh = platform.apply(app().build())
        with pytest.raises(MementoError, match="its windows are 20 every 20 of time int64, those of the state"):
            platform.plan(mesh.replace("count", aggregate, window=20))


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_state_that_only_spark_can_read_is_refused():
    """The memento of a query that runs says that its state is in Spark's checkpoint."""
    with (
        pytest.raises(StoredStateError, match="it is a snapshot of spark, version 1; this query begins with those of"),
        open_slet(aggregate, state=EngineState(engine="spark", version=1), warm_up=0, **SETTINGS),
    ):
        pass
