"""`stock:aggregate` by items: the same as by columns, with one state, and what only items have."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from decimal import Decimal
from importlib.util import find_spec
from math import inf, nan
from statistics import stdev
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.across import SETTINGS
from exop import EndOfStream, Punctuation
from exop.engine import EngineState
from exop.engine.aggregation import Aggregation
from exop.engine.columns import schema_of
from exop.errors import ExopError, QueryError, SettingError
from exop.model.slets.slet import spec_of
from exop.model.slets.stored_memento import dump_memento, load_memento
from exop.plugin import PortType, SletSpec
from exop.stock.aggregates import Aggregate
from exop.testing import collected, feed
from exop.testing import open as open_slet

COLUMNS = "time bigint, road int, lane tinyint, spd double, car string, mass float, weight bigint"
SCHEMA = schema_of(COLUMNS)
VALUES = {
    "rows": "count(*)", "cars": "count(car)", "mean": "avg(spd)", "low": "min(spd)", "high": "max(spd)",
    "first": "min(car)", "last": "max(car)", "many": "avg(mass)", "mass": "sum(mass)", "heavy": "max(mass)",
    "w": "sum(weight)",
    "mw": "avg(weight)",
}  # fmt: skip
#: What an item may have in a column.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "time": st.integers(-30, 60),
    "road": st.sampled_from([1, 2, None]),
    "lane": st.sampled_from([0, None]),
    "spd": st.sampled_from([None, nan, -inf, inf, 0.5, 70.25, -3.0]),
    "car": st.sampled_from([None, "a", "b", "Ü", ""]),
    "mass": st.sampled_from([None, 1.5, 0.1, nan]),
    "weight": st.sampled_from([None, 7, -(1 << 40), 1 << 50]),
}
ITEMS = st.lists(st.one_of(st.fixed_dictionaries(FIELDS), st.integers(-30, 60).map(Punctuation)), max_size=40)
WINDOWS = st.sampled_from([(0, 0, 0), (10, 10, 0), (10, 10, 3), (20, 5, 0), (20, 5, 4), (7, 1, 0), (64, 1, 0)])
KEYS = st.sampled_from([[], ["road"], ["road", "lane"]])


def batched(items: list[Any]) -> list[Any]:
    """Each item as a record batch."""
    return [item if isinstance(item, Punctuation) else pa.RecordBatch.from_pylist([item], SCHEMA) for item in items]


def unbatched(found: list[Any]) -> list[Any]:
    """Results as rows, with the punctuations between them."""
    return [row for one in found for row in rows_of(one)]


def rows_of(one: Any) -> list[Any]:
    """The rows of a batch, in either form."""
    return one.to_pylist() if isinstance(one, pa.RecordBatch) else one if isinstance(one, list) else [one]


def shown(found: list[Any]) -> list[str]:
    """Results as text, in which NaN equals NaN; sums are rounded, as their order may differ."""
    return [
        repr({name: round(one, 6) if isinstance(one, float) and abs(one) < inf else one for name, one in row.items()})
        if isinstance(row, dict)
        else repr(row)
        for row in found
    ]


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(items=ITEMS, windows=WINDOWS, keys=KEYS)
def test_items_and_columns_give_the_same(items: list[Any], windows: tuple[int, int, int], keys: list[str]):
    """Whatever the disorder, the windows and the keys are; with missing values, NaN, and late rows."""
    given = dict(zip(("window", "slide", "offset"), windows, strict=True))
    given |= {"columns": COLUMNS, "values": VALUES, "keys": keys, "time": "time"}
    found = unbatched(feed(Aggregate, items, form="items", **given))
    assert shown(found) == shown(unbatched(feed(Aggregate, batched(items), form="columns", **given)))


@pytest.mark.parametrize("form", ["items", "columns"])
@pytest.mark.parametrize("time", [1e300, -1e300])
def test_a_punctuation_may_have_any_time(form: str, time: float):
    """Beyond the times that rows can have, too: all windows are complete, or none is."""
    rows: list[Any] = [{"time": 3, "road": 1, "spd": 1.0}]
    rows = rows if form == "items" else [pa.RecordBatch.from_pylist(rows, schema_of(TEN["columns"]))]
    found = unbatched(feed(Aggregate, [*rows, Punctuation(time), EndOfStream()], form=form, **TEN))
    result = {"time": 10, "road": 1, "n": 1, "s": 1.0}
    assert found == ([result, Punctuation(time)] if time > 0 else [Punctuation(time), result])


@pytest.mark.parametrize("form", ["items", "columns"])
def test_times_may_have_32_bits(form: str):
    """The nearest number of 32 bits decides on the window, in both forms."""
    given: Any = {"columns": "t float", "values": {"n": "count(*)"}, "time": "t", "window": 1.0, "form": form}
    rows: list[Any] = [{"t": 0.99999999}, {"t": 0.5}]
    rows = rows if form == "items" else [pa.RecordBatch.from_pylist(rows, schema_of(given["columns"]))]
    assert unbatched(feed(Aggregate, [*rows, EndOfStream()], **given)) == [{"t": 1.0, "n": 1}, {"t": 2.0, "n": 1}]


def run(form: str, items: list[Any], state: EngineState | None = None, **given: Any) -> tuple[Any, EngineState]:
    """Return the results in a form, and the state; a state that it begins with has been stored."""
    begun = {} if state is None else {"state": load_memento(dump_memento(state, ""), EngineState, "")}
    items = items if form == "items" else [one if isinstance(one, EndOfStream) else batched([one])[0] for one in items]
    with open_slet(Aggregate, form=form, **given, **begun) as instance:
        found = unbatched([one for item in items for one in instance.rows(item)])
        instance.flush()
        return found, instance.state


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(items=ITEMS, windows=WINDOWS, keys=KEYS, cuts=st.lists(st.integers(0, 40), max_size=3))
def test_the_forms_continue_with_the_state_of_each_other(
    items: list[Any], windows: tuple[int, int, int], keys: list[str], cuts: list[int]
):
    """At any items of the stream, several times."""
    given = dict(zip(("window", "slide", "offset"), windows, strict=True))
    given |= {"columns": COLUMNS, "values": VALUES, "keys": keys, "time": "time"}
    whole, _ = run("items", [*items, EndOfStream()], **given)
    found, state, forms = list[Any](), None, ["items", "columns", "items", "columns"]
    bounds = [0, *sorted(cuts), len(items)]
    for form, low, high in zip(forms, bounds, bounds[1:], strict=False):
        ends = [EndOfStream()] if high == bounds[-1] and len(bounds) - 2 == bounds.index(low, 0) else []
        more, state = run(form, [*items[low:high], *ends], state, **given)
        found += more
    if len(found) < len(whole):
        more, _ = run("items", [EndOfStream()], state, **given)
        found += more
    assert shown(found) == shown(whole)


@pytest.mark.skipif(not find_spec("duckdb"), reason="DuckDB is not installed")
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    rows=st.lists(st.tuples(st.integers(-20, 40), st.sampled_from([1, 2]), st.integers(-5, 5)), max_size=30),
    windows=st.sampled_from([(10, 10, 0), (12, 4, 0), (12, 4, 3), (6, 1, 0)]),
    chance=st.randoms(use_true_random=False),
)
def test_any_disorder_within_the_delay_equals_a_query_over_the_whole(
    rows: list[tuple[int, int, int]], windows: tuple[int, int, int], chance: Any
):
    """DuckDB computes every window from the sorted rows; here they arrive up to ten units late."""
    import duckdb

    size, slide, offset = windows
    items: list[Any] = []
    for time, road, weight in sorted(rows, key=lambda row: row[0] + chance.random() * 10):
        items += [{"time": time, "road": road, "weight": weight}]
        newest = max(one["time"] for one in items if isinstance(one, dict))
        items += [Punctuation(newest - 11)]
    given: Any = {"columns": "time bigint, road int, weight bigint", "keys": ["road"], "time": "time"}
    given |= {"values": {"n": "count(*)", "s": "sum(weight)", "low": "min(weight)"}, "window": size, "slide": slide}
    found = unbatched(feed(Aggregate, items, form="items", offset=offset, **given))
    found = [row for row in found if isinstance(row, dict)]
    with duckdb.connect() as base:
        base.execute("CREATE TABLE rows (time BIGINT, road INT, weight BIGINT)")
        if rows:
            base.executemany("INSERT INTO rows VALUES (?, ?, ?)", rows)
        ends = f"SELECT {offset} + {slide} * unnest(generate_series(-30, 60)) AS stop"
        query = f"SELECT stop, road, count(*), sum(weight), min(weight) FROM rows JOIN ({ends}) ON time < stop AND "
        query += f"time >= stop - {size} GROUP BY ALL ORDER BY ALL"
        assert [tuple(row.values()) for row in found] == base.execute(query).fetchall()


MORE = {
    "first": "first(spd)", "last": "last(spd)", "deviation": "stddev(weight)", "different": "distinct(spd)",
    "all": "collect(weight)", "median": "percentile(weight, 50)", "p90": "percentile(weight, 90)", "n": "count(*)",
}  # fmt: skip


def by_definition(rows: list[dict[str, Any]], size: int, slide: int) -> list[dict[str, Any]]:
    """The results of further functions, computed for each window from all of its rows, in the order of arrival."""
    found = []
    for end in range(-slide * 30, slide * 60, slide):
        chosen = [row for row in rows if end - size <= row["time"] < end]
        spds = [(row["time"], place, row["spd"]) for place, row in enumerate(chosen) if row["spd"] is not None]
        weights = [row["weight"] for row in chosen if row["weight"] is not None]
        ranks = [float(np.percentile(weights, one)) if weights else None for one in (50, 90)]
        if chosen:
            result: dict[str, Any] = {"time": end}
            result["first"] = min(spds, key=lambda one: one[:2])[2] if spds else None
            result["last"] = max(spds, key=lambda one: one[:2])[2] if spds else None
            result["deviation"] = stdev(weights) if len(weights) > 1 else None
            result["different"] = len({repr(one) for _, _, one in spds})
            result |= {"all": sorted(weights), "median": ranks[0], "p90": ranks[1], "n": len(chosen)}
            found.append(result)
    return found


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "time": st.integers(-20, 30),
                "spd": st.sampled_from([None, nan, 1.5, -2.0, 70.25]),
                "weight": st.sampled_from([None, 1, -7, 1000, 12]),
            }
        ),
        max_size=30,
    ),
    windows=st.sampled_from([(10, 10), (20, 5), (6, 1)]),
    cut=st.integers(0, 30),
)
def test_further_functions_are_those_of_their_definitions(
    rows: list[dict[str, Any]], windows: tuple[int, int], cut: int
):
    """Also over several slides, and continued from a stored state."""
    size, slide = windows
    given: Any = {"columns": "time bigint, spd double, weight bigint", "values": MORE, "time": "time"}
    given |= {"window": size, "slide": slide}
    first, state = run("items", rows[:cut], **given)
    found, _ = run("items", [*rows[cut:], EndOfStream()], state, **given)
    found = [{**row, "all": sorted(row["all"])} for row in first + found]
    assert shown(found) == shown(by_definition(rows, size, slide))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("first(spd)", "first needs items .form='items' of stock:aggregate."),
        ("percentile(spd)", "write percentile.spd, 90., up to 100"),
        ("percentile(spd, 101)", "up to 100"),
        ("avg(spd, 3)", r"write avg.spd."),
        ("median(spd)", "'median.spd.' is not count"),
        ("stddev(car)", "stddev does not take 'car', which is string"),
    ],
)
def test_a_function_that_is_not_possible_is_refused(text: str, problem: str):
    """With those that are; and a function of items by engines of columns."""
    form = "columns" if text == "first(spd)" else "items"
    with pytest.raises(SettingError, match=problem):
        specialised(
            PortType(dict),
            columns="spd double, car string",
            keys=[],
            time="",
            window=0.0,
            form=form,
            values={"x": text},
        )


TEN: dict[str, Any] = {
    "columns": "time bigint, road int, spd double",
    "values": {"n": "count(*)", "s": "sum(spd)"},
    "keys": ["road"],
    "time": "time",
    "window": 10,
}


@dataclass
class Report:
    """An item."""

    time: int
    road: int
    spd: float


Named = namedtuple("Named", "spd time road")


@pytest.mark.parametrize("make", [dict, Report, Named])
def test_an_item_is_anything_with_fields(make: Any):
    """Dictionaries, dataclasses and named tuples; whole numbers are floating-point numbers, too."""
    items = [make(time=1, road=1, spd=2), make(time=2, road=1, spd=0.5)]
    assert feed(Aggregate, items, form="items", **TEN) == [{"time": 10, "road": 1, "n": 2, "s": 2.5}]


@pytest.mark.parametrize("form", ["items", "columns"])
def test_rows_of_complete_windows_leave_by_late(form: str):
    """A row that belongs to an open window, too, counts there."""
    late, both = {"time": 4, "road": 1, "spd": 1.0}, {"time": 14, "road": 1, "spd": 2.0}
    given = TEN | {"window": 20, "slide": 10, "form": form}
    schema = schema_of(given["columns"])
    with open_slet(Aggregate, **given) as instance:
        list(instance.rows(Punctuation(19)))
        for row in (late, both):
            list(instance.rows(row if form == "items" else pa.RecordBatch.from_pylist([row], schema)))
        assert unbatched(collected(instance.late)) == [late]
        assert instance.metrics()["late_rows"] == 3
        assert unbatched(list(instance.rows(EndOfStream()))) == [{"time": 30, "road": 1, "n": 1, "s": 2.0}]


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"time": 1, "road": 1}, "an item lacks the field 'spd'"),
        ({"time": 1.5, "road": 1, "spd": 1.0}, "1.5 is not an integer, but the column is int64"),
        ({"time": Decimal("1.5"), "road": 1, "spd": 1.0}, "1.5 is not an integer, but the column is int64"),
        ({"time": 1, "road": np.float32(1.5), "spd": 1.0}, "1.5 is not an integer, but the column is int32"),
        ({"time": "1", "road": 1, "spd": 1.0}, "convert '1' with type str"),
        ({"time": None, "road": 1, "spd": 1.0}, "a row without a time"),
        ({"time": 1 << 62, "road": 1, "spd": 1.0}, "is it of the right unit"),
        ({"time": 1, "road": 1 << 40, "spd": 1.0}, "too large to fit"),
        ({"time": 1, "road": "A", "spd": 1.0}, "convert 'A' with type str"),
        ({"time": 1, "road": 1, "spd": "fast"}, "convert 'fast' with type str"),
        (7, "int has no fields"),
    ],
)
def test_an_item_that_does_not_fit_is_refused(item: Any, problem: str):
    """With the reason, and without a trace in the state."""
    with open_slet(Aggregate, form="items", **TEN) as instance:
        instance.rows({"time": 1, "road": 1, "spd": 1.0})
        with pytest.raises((ExopError, ValueError, TypeError), match=problem):
            instance.rows(item)
        assert list(instance.rows(EndOfStream())) == [[{"time": 10, "road": 1, "n": 1, "s": 1.0}]]


def test_text_that_cannot_be_stored_is_refused():
    """A lone surrogate has no form in UTF-8; letters beyond ASCII have."""
    given: Any = {"columns": "k string", "values": {"n": "count(*)"}, "keys": ["k"], "form": "items"}
    with open_slet(Aggregate, **given) as instance:
        assert instance.rows({"k": "Grüße"}) == ([{"k": "Grüße", "n": 1}],)
        with pytest.raises((UnicodeEncodeError, ExopError)):
            instance.rows({"k": "\ud800"})
        instance.flush()


def test_a_sum_beyond_64_bits_is_refused_and_leaves_the_state():
    """Also by a sum that another window has."""
    given: Any = {"columns": "v bigint, w bigint", "values": {"a": "sum(v)", "b": "sum(w)"}, "form": "items"}
    with open_slet(Aggregate, **given) as instance:
        assert instance.rows({"v": 1, "w": (1 << 63) - 2}) == ([{"a": 1, "b": (1 << 63) - 2}],)
        with pytest.raises(OverflowError, match="the sum of 'w' is beyond 64 bits"):
            instance.rows({"v": 1, "w": 2})
        assert instance.rows({"v": 1, "w": 1}) == ([{"a": 2, "b": (1 << 63) - 1}],)


@pytest.mark.parametrize("form", ["items", "columns"])
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from([1, -5, 1 << 60, 1 << 62, -(1 << 62), (1 << 63) - 1])), max_size=12
    ),
    cut=st.integers(0, 12),
)
def test_a_sum_of_several_slides_beyond_64_bits_is_refused_when_it_arrives(
    form: str, rows: list[tuple[int, int]], cut: int
):
    """So that no punctuation, checkpoint or replacement fails later; the other rows are summed."""
    given: Any = {"columns": "time bigint, v bigint", "values": {"s": "sum(v)", "n": "count(*)"}, "time": "time"}
    given |= {"window": 4, "slide": 1}
    sums: dict[int, tuple[int, int]] = {}
    state = EngineState()
    for part in (rows[:cut], rows[cut:]):
        with open_slet(Aggregate, form=form, **given, state=state) as instance:
            for time, value in part:
                row: Any = {"time": time, "v": value}
                row = row if form == "items" else pa.RecordBatch.from_pylist([row], schema_of(given["columns"]))
                before = {end: sums.get(end, (0, 0)) for end in range(time + 1, time + 5)}
                after = {end: (total + value, n + 1) for end, (total, n) in before.items()}
                if all(-(1 << 63) <= one < 1 << 63 for one, _ in after.values()):
                    instance.rows(row)
                    sums |= after
                else:
                    with pytest.raises((OverflowError, QueryError), match="the sum of 'v' is beyond 64 bits"):
                        instance.rows(row)
                instance.flush()
            state = instance.state
    found = run("items", [EndOfStream()], state, **given)[0]
    assert found == [{"time": end, "s": total, "n": n} for end, (total, n) in sorted(sums.items())]


class Fast(TypedDict):
    """An item."""

    time: int
    road: int
    spd: float


def specialised(arriving: PortType | None, **given: Any) -> SletSpec:
    """The slet for what arrives."""
    known = spec_of(Aggregate).configured("x", TEN | given)
    return Aggregate.specialised(known, {} if arriving is None else {"rows": arriving})


def test_the_form_follows_the_input():
    """Items are processed one by one, columns as columns; the setting forces either."""
    assert specialised(PortType(dict)).ports["out"].type.form == "batch"
    assert specialised(PortType(dict), form="columns").ports["out"].type.form == "columns"
    assert specialised(PortType(form="columns")).ports["out"].type.form == "columns"
    assert specialised(None).ports["out"].type.form == "columns"  # it is not known
    assert specialised(None, values={"x": "first(spd)"}).ports["out"].type.form == "batch"
    assert specialised(PortType(form="columns"), form="items").ports["out"].type.form == "batch"


def test_a_field_that_the_items_lack_is_refused_where_it_is_written():
    """And so is one that the results lack."""
    with pytest.raises(SettingError, match="has no field 'rod'; did you mean 'road'"):
        specialised(PortType(Fast), columns="time bigint, rod int, spd double", keys=["rod"])
    with pytest.raises(SettingError, match="has no field 'cars'"):
        specialised(PortType(Fast)).ports["out"].type.check_field("", "by", "cars")


def test_items_are_grouped_in_the_process_of_the_platform():
    """A worker process is for engines of columns."""
    with pytest.raises(SettingError, match="set form='columns'"):
        feed(Aggregate, [], form="items", isolation="process", **TEN)


def test_the_offset_belongs_to_the_windows():
    """It is refused where it does not fit, and in a state with another one."""
    given = {**SETTINGS, "window": 10, "slide": 0}
    for offset, problem in ((10, "less than 10"), (-1, "0 or more"), (0.5, "a whole number")):
        with pytest.raises(SettingError, match=problem):
            Aggregation.of({**given, "offset": offset})
    with pytest.raises(SettingError, match="there are no windows"):
        Aggregation.of({**given, "window": 0, "offset": 1})
    one, other = (Aggregation.of({**given, "offset": offset}) for offset in (0, 3))
    assert "from 3" in str(one.lacks(other.layout()))
