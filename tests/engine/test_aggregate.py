"""Keyed aggregates: every engine gives the same output, and continues with the state of another one."""

from __future__ import annotations

import re
from importlib.util import find_spec
from math import inf, nan
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.across import SETTINGS, World, batch, carried, differences, engines, expected, second, seconds, see
from exop import Application, EndOfStream, Platform, Punctuation
from exop.engine import EngineState
from exop.engine.aggregation import Aggregation
from exop.engine.columns import schema_of
from exop.engine.groups import Groups
from exop.errors import MementoError, QueryError, SettingError
from exop.hooks import Plugins
from exop.model.slets.stored_memento import dump_memento, load_memento
from exop.stock.slets import Aggregate
from exop.testing import feed
from exop.testing import open as open_slet

KINDS: list[Any] = [Aggregate]
#: Some of these are together beyond 64 bits.
LARGE = [1, -5, 1 << 62, -(1 << 62), (1 << 63) - 1]
if find_spec("exop_duckdb") and find_spec("sqlglot"):
    from exop_duckdb import DuckDbAggregate

    KINDS.append(DuckDbAggregate)


def stream(seed: int, length: int = 25) -> list[Any]:
    """Items with times before 0, too."""
    return [*(one for time in range(-length, length, 2) for one in second(seed, time)), EndOfStream()]


def rows(found: list[Any]) -> list[tuple[Any, ...]]:
    """The rows of the results."""
    return [tuple(row.values()) for one in found if isinstance(one, pa.RecordBatch) for row in one.to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("window", "slide"), [(10, 0), (20, 5)])
def test_the_results_are_those_of_the_definition(kind: Any, window: int, slide: int):
    """Windows that slide, keys and values that are missing, times before 0, late rows; all in one order."""
    items = stream(window)
    found = feed(kind, items, **{**SETTINGS, "window": window, "slide": slide})
    assert rows(found) == expected(items, window, slide)


@pytest.mark.parametrize("kind", KINDS)
def test_without_windows_the_new_values_of_the_groups_in_a_batch_are_emitted(kind: Any):
    """In the order of the keys; groups that are not in the batch are not emitted again."""
    settings = {"columns": "k string, v double", "keys": ["k"], "values": {"n": "count(*)", "m": "avg(v)"}}
    schema = pa.schema([("k", pa.string()), ("v", pa.float64())])
    data = [[("b", 1.5), ("a", None), ("b", 2.5)], [("a", 4.0), (None, 1.0)], [], [(None, 3.0)]]
    assert rows(feed(kind, [batch(one, schema) for one in data], **settings)) == [
        ("a", 1, None), ("b", 2, 2.0), ("a", 2, 4.0), (None, 1, 1.0), (None, 2, 2.0),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_ends_where_nothing_older_follows(kind: Any):
    """Also with floating-point times, and without keys."""
    settings = {"columns": "t double, v float", "values": {"z": "max(v)", "s": "sum(v)"}, "time": "t", "window": 0.5}
    schema = pa.schema([("t", pa.float64()), ("v", pa.float32())])
    first, second = batch([(0.1, 1.5), (0.5, 2.0)], schema), batch([(0.4, 0.25)], schema)
    assert rows(feed(kind, [first, Punctuation.before(0.5), second], **settings)) == [(0.5, 1.5, 1.5), (1.0, 2.0, 2.0)]


@pytest.mark.parametrize("kind", KINDS)
def test_many_partial_results_are_merged(kind: Any, monkeypatch: pytest.MonkeyPatch):
    """The state grows with the number of groups, not of batches."""
    monkeypatch.setattr(f"{kind.__module__.rpartition('.')[0]}.groups._FEW".replace("stock", "engine"), 20)
    items = stream(3)
    assert rows(feed(kind, items, **SETTINGS)) == expected(items)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_is_the_greatest_number_and_infinity_is_one(kind: Any):
    """As in SQL, in one batch and in several; whatever the names of the columns are."""
    schema = pa.schema([("v_max", pa.string()), ("v", pa.float32()), ("number", pa.int64())])
    settings = {"columns": "v_max string, v float, number bigint", "keys": ["v_max"], "time": "number", "slide": 5}
    settings |= {"values": {"least": "min(v)", "most": "max(v)"}, "window": 10}
    data = [("a", nan, 7), ("b", None, 7), ("c", -1.5, 7)], [("b", nan, 7), ("b", -inf, 7), ("c", -0.5, 7)]
    found = rows(feed(kind, [batch(one, schema) for one in data], **settings))
    wanted = [("a", nan, nan), ("b", -inf, nan), ("c", -1.5, -0.5)]
    assert repr(found) == repr([(end, *one) for end in (10, 15) for one in wanted])


def test_a_call_that_has_failed_can_be_repeated(monkeypatch: pytest.MonkeyPatch):
    """The windows that it was to close leave at the second attempt."""
    engine = Groups(Aggregation.of({**SETTINGS, "window": 10, "slide": 0}))
    engine.push("rows", second(1, 1)[0])
    with monkeypatch.context() as broken:
        broken.setattr(engine, "_collect", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            engine.advance(20)
    assert len(engine.advance(20)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batches", [1, 2])
def test_a_sum_beyond_64_bits_is_an_error_and_leaves_the_state(kind: Any, batches: int):
    """Whether it is one batch or the merging that exceeds them."""
    schema, most = pa.schema([("k", pa.int32()), ("v", pa.int64())]), (1 << 63) - 1
    settings: Any = {"columns": "k int, v bigint", "keys": ["k"], "values": {"s": "sum(v)", "m": "avg(v)"}}
    with open_slet(kind, **settings) as instance:
        (before,) = instance.rows(batch([(1, most - 5), (2, most), (2, -1)], schema))
        assert rows([before]) == [(1, most - 5, float(most)), (2, most - 1, float(most) / 2)]
        with pytest.raises(QueryError, match="beyond 64 bits|out of range"):
            instance.rows(batch([(1, 6)] if batches == 2 else [(3, most), (3, 1)], schema))
        assert rows(list(instance.rows(batch([(1, 5), (3, None)], schema)))) == [
            (1, most, float(most) / 2),
            (3, None, None),
        ]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2), st.sampled_from(LARGE)), max_size=3), max_size=8
    )
)
def test_a_sum_beyond_64_bits_is_refused_when_it_arrives(kind: Any, batches: list[list[tuple[int, int, int]]]):
    """Over the whole state: no punctuation, checkpoint or replacement fails later; the other batches are summed."""
    schema = pa.schema([("time", pa.int64()), ("k", pa.int32()), ("v", pa.int64())])
    settings = {"columns": "time bigint, k int, v bigint", "keys": ["k"], "values": {"s": "sum(v)"}}
    sums: dict[tuple[int, int], int] = {}
    with open_slet(kind, **settings, time="time", window=1) as instance:
        for data in batches:
            fresh = dict(sums)
            for time, key, value in data:
                fresh[time, key] = fresh.get((time, key), 0) + value
            partial = [sum(value for *at, value in data if at == [*key]) for key in fresh]
            if all(-(1 << 63) <= one < 1 << 63 for one in [*fresh.values(), *partial]):
                instance.rows(batch(data, schema))
                sums = fresh
            else:
                with pytest.raises(QueryError, match="beyond 64 bits|out of range"):
                    instance.rows(batch(data, schema))
            instance.flush()
        found = rows(list(instance.rows(EndOfStream())))
    assert found == [(time + 1, key, value) for (time, key), value in sorted(sums.items())]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_that_is_not_checked_when_it_arrives_is_found(kind: Any, monkeypatch: pytest.MonkeyPatch):
    """As if the sums of a batch were checked, and not those of the whole state."""
    batches = [[(0, 1, (1 << 63) - 1)], [(0, 1, 1 << 62)]]
    check = test_a_sum_beyond_64_bits_is_refused_when_it_arrives.hypothesis.inner_test
    check(kind=kind, batches=batches)
    monkeypatch.setattr(Aggregation, "largest", lambda self, groups: 0)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check(kind=kind, batches=batches)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("time", "column", "problem"),
    [
        (nan, "double", "infinite or no number"),
        (-inf, "double", "infinite or no number"),
        (1e300, "double", "has the time 1e+300, and the last window ends at 9.0"),
        ((1 << 63) - 1, "bigint", "has the time 9223372036854775807, and the last window"),
        (125, "tinyint", "has the time 125, and the last window ends at 127 or before"),
        (None, "bigint", "a row without a time"),
    ],
)
def test_a_time_without_a_window_is_refused(kind: Any, time: float | None, column: str, problem: str):
    """Instead of a window somewhere else."""
    settings: Any = {"columns": f"t {column}", "values": {"n": "count(*)"}, "time": "t", "window": 10}
    with open_slet(kind, **settings) as instance, pytest.raises(QueryError, match=re.escape(problem)):
        instance.rows(batch([(time,)], schema_of(settings["columns"])))


def test_windows_may_be_fractions_and_are_compared_exactly():
    """Three times 0.1 is nearly 0.3; and of two long windows, the digits behind the sixth count."""
    settings: Any = {"columns": "t double", "values": {"n": "count(*)"}, "time": "t", "window": 0.3}
    settings |= {"slide": 0.1, "keys": []}
    schema = pa.schema([("t", pa.float64())])
    assert [one[1] for one in rows(feed(Aggregate, [batch([(0.25,)], schema)], **settings))] == [1, 1, 1]
    layouts = [Aggregation.of({**settings, "window": one, "slide": 0}).layout() for one in (3_600_000, 3_600_001)]
    assert layouts[0] != layouts[1]


def run(kind: Any, items: list[Any], state: EngineState | None = None, **settings: Any) -> tuple[Any, EngineState]:
    """Return the results of a slet for these items, and its state; a state that it begins with has been stored."""
    given = {"state": load_memento(dump_memento(state, ""), EngineState, "")} if state is not None else {}
    with open_slet(kind, **settings, **given) as instance:
        found = [one for item in items for one in instance.rows(item)]
        instance.flush()
        return rows(found), instance.state


@pytest.mark.parametrize(("before", "after"), [*zip(KINDS, reversed(KINDS), strict=True)])
@pytest.mark.parametrize("windows", [{}, {"window": 20, "slide": 5}, {"window": 0}])
def test_an_engine_continues_with_the_state_of_another(before: Any, after: Any, windows: dict[str, int]):
    """In the middle of the stream; what was emitted is not emitted again, and late rows stay late."""
    items, settings = stream(7), SETTINGS | windows
    whole, _ = run(Aggregate, items, **settings)
    first, state = run(before, items[:17], **settings)
    rest, _ = run(after, items[17:], state, **settings)
    assert len(first) > 0 < len(rest)
    assert first + rest == whole


def test_a_successor_takes_the_accumulators_that_it_needs():
    """Whatever the order of its keys and values; what it does not need is dropped."""
    items = stream(7)
    fewer = SETTINGS | {"values": {"a": "min(spd)", "cars": "count(*)"}, "keys": ["name", "road"]}
    _, state = run(Aggregate, items[:17], **SETTINGS)
    rest, _ = run(Aggregate, items[17:], state, **fewer)
    same, _ = run(Aggregate, items[17:], state, **SETTINGS)
    picked = [(time, name, road, a, cars) for time, road, name, cars, _, _, _, a, _ in same]
    assert sorted(map(str, rest)) == sorted(map(str, picked)) != []


def app(kind: Any = Aggregate, **settings: Any) -> Application:
    """A source, an aggregate, a sink."""
    made = Application("a")
    made.add("see", see, row=made.add("count", kind, rows=made.add("seconds", seconds), **{**SETTINGS, **settings}))
    return made


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"window": 20}, "its windows are 20 every 20 of time int64, those of the state 10 every 10 of time int64"),
        ({"keys": ["road"]}, "its keys are road int32, those of the state road int32, name string"),
        ({"values": {"s": "sum(road)"}}, "the state has no sum:road int64; it has n: int64, n:spd int64, sum:spd"),
    ],
)
def test_another_aggregate_is_refused_in_the_plan(changed: dict[str, Any], problem: str):
    """With the difference, before anything stops; without the state it may begin anew."""
    World.over = True
    with Platform(plugins=Plugins()) as platform:
        mesh = platform.apply(app().build())
        with pytest.raises(MementoError, match=re.escape(problem)):
            platform.plan(mesh.configure("count", **changed))
        assert "is lost, as requested" in str(
            platform.plan(mesh.replace("count", Aggregate, lose_state=True, **changed))
        )


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("keys", ["rod"], "there is no column 'rod'; there are time, road, spd, name"),
        ("keys", ["time"], "the output would have two columns 'time'"),
        ("values", {}, "there is none; write for example"),
        ("values", {"x": "median(spd)"}, "'median(spd)' is not count(*), count(x), sum(x)"),
        ("values", {"x": "sum(name)"}, "x: sum does not take 'name', which is string"),
        ("time", "name", "'name' is string, and must be a number"),
        ("time", "", "windows need the column with the time of a row"),
        ("slide", 3.0, "10 is no multiple of 3"),
        ("slide", 0.0001, "each row would be in 100000 windows"),
        ("columns", "time bigint, Time int", "'time' is there twice, or differs"),
        ("columns", "time bigint, n: int", "'n:' has a colon"),
        ("window", 2.5, "windows must be whole numbers"),
        ("window", -1.0, "it is -1, and must be 0"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_known(setting: str, value: Any, problem: str):
    """Before the slet is made."""
    with pytest.raises(SettingError, match=re.escape(problem)):
        app(**{setting: value})


def test_engines_replace_one_another_while_the_stream_runs():
    """Nothing is lost, doubled or in another order."""
    order = [name for name in ("stock", "items", "duckdb", "items", "stock") if name in engines()]
    seen, last = carried(order, {"window": 10})
    assert seen
    assert differences(seen, last, {"window": 10}) == 0
