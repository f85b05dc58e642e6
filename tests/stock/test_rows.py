"""`filter`, `map` and `split`, by items and by columns; `number` and `sample`."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Application, Platform, Punctuation, slet
from exop.errors import ExpressionError, SettingError
from exop.model.meshes.mesh import Node
from exop.model.slets.slet import spec_of
from exop.stock.rows import Counted, Filter, Map, Number, Sample, Split
from exop.testing import collected, feed
from exop.testing import open as open_slet
from tests.change.tools import Tap
from tests.rig import PATIENCE, collector, eventually
from tests.stock.tools import changed_under_load

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("name", pa.string())])
rows_of_any_values = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-3, 3),
            "x": st.none() | st.sampled_from([-1.5, 0.0, 2.0, float("inf"), float("nan")]),
            "name": st.none() | st.sampled_from(["", "a", "Ab"]),
        }
    ),
    max_size=12,
)
TEXT = "item.name == 'a' or item.n is None"
CONDITIONS = ("item.n > 0", "item.x >= item.n", "not item.x < 1", TEXT, "10 // item.n > 3")
VALUES = ("item.n + 1", "item.x * item.n", "lower(item.name)", "item.n", "item.x if item.n > 0 else 0.0", "6 // item.n")


def batches(rows: list[Any], cuts: list[int]) -> list[Any]:
    """The rows, as record batches that end at any places."""
    places = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    return [pa.RecordBatch.from_pylist(rows[low:high], SCHEMA) for low, high in pairwise(places)]


def rows_in(pieces: list[Any]) -> list[Any]:
    """The rows of record batches, with their values as text: NaN is equal to itself."""
    found = [row for one in pieces for row in (one.to_pylist() if isinstance(one, pa.RecordBatch) else [one])]
    return [{name: repr(value) for name, value in row.items()} for row in found]


def outcome(run: Any) -> Any:
    """What leaves, or that it failed."""
    try:
        return rows_in(run())
    except (ArithmeticError, ValueError):
        return "it fails"


@given(rows_of_any_values, st.lists(st.integers(0, 12), max_size=3), st.sampled_from(CONDITIONS))
def test_a_filter_by_items_and_by_columns_forwards_the_same_rows(rows, cuts, where):
    """The form is not part of the meaning."""
    items = outcome(lambda: feed(Filter, rows, where=where))
    assert items == outcome(lambda: feed(Filter, batches(rows, cuts), where=where, form="columns"))


@given(rows_of_any_values, st.lists(st.integers(0, 12), max_size=3), st.sampled_from(VALUES), st.booleans())
def test_a_map_by_items_and_by_columns_computes_the_same_rows(rows, cuts, value, keep):
    """In the same order of the fields, and with the same types."""
    fields = {"x": value, "m": "item.n"}
    items = outcome(lambda: feed(Map, rows, fields=fields, keep=keep))
    assert items == outcome(lambda: feed(Map, batches(rows, cuts), fields=fields, keep=keep, form="columns"))


@given(rows_of_any_values, st.lists(st.integers(0, 12), max_size=3), st.lists(st.sampled_from(CONDITIONS), max_size=3))
def test_a_split_by_items_and_by_columns_sends_the_same_rows_to_each_port(rows, cuts, conditions):
    """A row for which no condition holds is sent to `rest` in both forms."""
    settings = {"conditions": {f"port{number}": text for number, text in enumerate(conditions)}}

    def sent(items: list[Any], form: str) -> Any:
        with open_slet(Split, form=form, **settings) as split:
            for item in items:
                (split.split_batch if form == "columns" else split.split_item)(item)
            return {port: rows_in(collected(output)) for port, output in split.outputs.items()}

    try:
        by_items = sent(rows, "items")
    except ValueError:
        with pytest.raises(ValueError, match="cannot be tested"):
            sent(batches(rows, cuts), "columns")
    else:
        assert by_items == sent(batches(rows, cuts), "columns")


def test_a_condition_that_is_null_does_not_hold():
    """Nor does its opposite."""
    rows = [{"x": None}, {"x": 70}, {"x": 50}]
    assert feed(Filter, rows, where="item.x > 60") == [{"x": 70}]
    assert feed(Filter, rows, where="not item.x > 60") == [{"x": 50}]


def test_what_a_filter_forwards_is_the_item_itself():
    """It is not copied, and punctuations pass."""
    item = Report(1, 70.0)
    found = feed(Filter, [item, Punctuation(1), Report(2, 50.0)], where="item.speed > 60")
    assert found == [item, Punctuation(1)]
    assert found[0] is item


def test_an_item_that_cannot_be_computed_fails():
    """A field is missing, a number is divided by zero; the error of a map names the expression."""
    for settings in ({"where": "item.x > 1"}, {"where": "1 / item.zero > 1"}):
        with pytest.raises((LookupError, ArithmeticError)):
            feed(Filter, [{"zero": 0}], **settings)
    with pytest.raises(ZeroDivisionError) as raised:
        feed(Map, [{"zero": 0}], fields={"a": "1", "b": "1 / item.zero"})
    assert "in the expression of 'b'" in raised.value.__notes__


def test_a_map_keeps_the_fields_of_any_item():
    """Of a dictionary, a dataclass, a named tuple; a new field replaces an old one of the same name."""
    pair = namedtuple("pair", "time speed")
    for item in ({"time": 1, "speed": 2.0}, Report(1, 2.0), pair(1, 2.0)):
        assert feed(Map, [item], fields={"speed": "item.speed * 2", "new": "item.time"}, keep=True) == [
            {"time": 1, "speed": 4.0, "new": 1}
        ]
    with pytest.raises(TypeError, match="an item of type int has no fields"):
        feed(Map, [1], fields={"x": "item"}, keep=True)
    assert feed(Map, [1], fields={"x": "item"}) == [{"x": 1}]


@dataclass(frozen=True)
class Report:
    """An item."""

    time: int
    speed: float


@slet
def reports() -> Iterator[Report]:
    """Items."""
    yield from (Report(time, 10.0 * time) for time in range(5, 9))


@slet
def report_batches() -> Iterator[
    Annotated[pa.RecordBatch, pa.schema([("time", pa.int32()), ("speed", pa.float64()), ("day", pa.date32())])]
]:
    """Columns."""
    schema = pa.schema([("time", pa.int32()), ("speed", pa.float64()), ("day", pa.date32())])
    yield pa.RecordBatch.from_pylist([{"time": time, "speed": 10.0 * time} for time in range(5, 9)], schema)


@pytest.mark.parametrize("source", [reports, report_batches])
def test_the_result_of_a_map_has_the_types_of_its_expressions(source):
    """A wrong field behind it is refused, also one that is not kept; so is a comparison of a wrong type."""
    app = Application("typed")
    given = app.add("source", source)
    kept = app.add("kept", Map, item=given, fields={"kmh": "item.speed * 3.6", "who": "str(item.time)"}, keep=True)
    only = app.add("only", Map, item=given, fields={"kmh": "item.speed * 3.6"})
    for item, where, told in (
        (kept, "item.kmhx > 1", "has no field 'kmhx'; did you mean 'kmh'"),
        (kept, "item.who > 1", "str and int cannot be compared|string and int cannot be compared"),
        (only, "item.speed > 1", "has no field 'speed'.* known: kmh"),
    ):
        with pytest.raises(ExpressionError, match=told):
            app.add("wrong", Filter, item=item, where=where)
    app.add("right", Filter, item=kept, where="item.kmh > item.time and item.who == '1'")


def test_a_mistake_is_told_where_the_node_is_added():
    """With the node, the setting and the known names."""
    app = Application("wrong")
    source = app.add("source", reports)
    for slet_of, settings, told in (
        (Filter, {"where": "item.sped > 1"}, r"^x\.where: Report has no field 'sped'; did you mean 'speed'"),
        (Filter, {"where": "item.speed"}, r"^x\.where: "),
        (Map, {"fields": {"a": "item.sped"}}, r"^x\.fields\.a: Report has no field 'sped'; did you mean 'speed'"),
        (Split, {"conditions": {"a": "item.sped > 1"}}, r"^x\.conditions\.a: Report has no field 'sped'"),
        (Map, {"fields": {"a": "item"}, "form": "columns"}, r"^x\.fields\.a: columns have no item"),
    ):
        with pytest.raises(ExpressionError, match=told):
            app.add("x", slet_of, item=source, **settings)
    for slet_of, settings, told in (
        (Map, {"fields": {}}, "'fields' does not fit: it is empty"),
        (Filter, {"where": "item.speed > 1", "form": "rows"}, "'form' does not fit"),
        (Sample, {"rate": 1.5}, "'rate' does not fit: it is 1.5, and must be from 0 to 1"),
        (Split, {"conditions": {"rest": "item > 1"}}, "'rest' is the port of the items for which no condition holds"),
    ):
        with pytest.raises(SettingError, match=told):
            app.add("x", slet_of, item=source, **settings)


@pytest.mark.parametrize("source", [reports, report_batches])
@pytest.mark.parametrize("form", ["", "items", "columns"])
def test_the_form_follows_the_input_or_the_setting(source, form):
    """Whatever it is, the same rows leave; from columns to columns no row is taken apart."""
    seen, shapes = list[Any](), list[Any]()
    app = Application("forms")

    @slet
    def keep(item: pa.RecordBatch) -> None:
        shapes.append(item.num_rows)
        seen.extend(item.to_pylist())

    fast = app.add("fast", Filter, item=app.add("source", source), where="item.speed > 50", form=form)
    app.add("split", Split, item=fast, conditions={"odd": "item.time % 2 == 1"}, form=form)
    both = app.channel("both")
    for port in ("odd", "rest"):
        fields = {"kmh": "item.speed * 3.6"}
        app.add(f"map-{port}", Map, item=app.output("split", port), fields=fields, form=form, out=both)
    app.add("keep", keep, item=both)
    app.run()
    assert sorted(row["kmh"] for row in seen) == [216.0, 252.0, 288.0]
    assert sorted(shapes) == ([1, 2] if source is report_batches and form != "items" else [1, 1, 1])


def test_an_expression_on_the_whole_item_is_computed_by_items():
    """Also if the input has columns; the rows are dictionaries."""
    seen, app = list[Any](), Application("whole")
    source = app.add("source", report_batches)
    whole = app.add("whole", Map, item=source, fields={"row": "item", "fast": "item.speed > 60"})
    app.add("seen", collector(seen), item=app.add("some", Filter, item=whole, where="item is not None and item.fast"))
    app.run()
    assert [one["row"]["time"] for one in seen] == [7, 8]


def test_integers_and_floats_that_share_a_field_are_floats_in_both_forms():
    """If the types are declared, as in an expression."""
    for source in (reports, report_batches):
        for form in ("items", "columns"):
            seen, app = list[Any](), Application("shared")
            fields = {"x": "item.time if item.time > 6 else item.speed"}
            mapped = app.add("map", Map, item=app.add("source", source), fields=fields, form=form)
            app.add("seen", collector(seen), item=mapped)
            app.run()
            assert [(one["x"], type(one["x"])) for one in seen] == [(x, float) for x in (50.0, 60.0, 7.0, 8.0)]


def test_a_filter_changes_its_form_and_condition_while_rows_flow():
    """Nothing is lost, doubled or reordered, also if another instance replaces it."""

    class Again(Filter[Any], name="filter_again"):
        pass

    rows, seen = changed_under_load(
        Filter,
        lambda mesh: mesh.configure("x", form="columns"),
        lambda mesh: mesh.configure("x", form="items"),
        lambda mesh: mesh.replace("x", Again),
        where="item.n % 3 == 0",
    )
    assert seen == [row for row in rows if row["n"] % 3 == 0]


def test_a_map_changes_its_form_while_rows_flow():
    """Nothing is lost, doubled or reordered."""
    rows, seen = changed_under_load(
        Map,
        lambda mesh: mesh.configure("x", form="columns"),
        lambda mesh: mesh.configure("x", form="items"),
        fields={"m": "item.n + 1"},
    )
    assert seen == [{"m": row["n"] + 1} for row in rows]


def test_numbers_and_samples_go_on_after_a_replacement_while_rows_flow():
    """Each row has the number, and is in the sample, as without the replacement."""

    class NumberAgain(Number, name="number_again"):
        pass

    class SampleAgain(Sample[Any], name="sample_again"):
        pass

    rows, seen = changed_under_load(Number, lambda mesh: mesh.replace("x", NumberAgain), into="number")
    assert seen == [row | {"number": number} for number, row in enumerate(rows)]
    rows, seen = changed_under_load(Sample, lambda mesh: mesh.replace("x", SampleAgain), rate=0.4, seed=5)
    assert seen == feed(Sample, rows, rate=0.4, seed=5)


def test_a_number_is_added_to_the_fields_of_an_item():
    """An item without fields fails, and is not counted."""
    counted = Counted()
    with open_slet(Number, into="number", counted=counted) as number:
        assert number.item({"a": 1}) == {"a": 1, "number": 0}
        with pytest.raises(TypeError, match="an item of type int has no fields"):
            number.item(3)
        assert number.item(Report(1, 2.0)) == {"time": 1, "speed": 2.0, "number": 1}
    app = Application("typed")
    numbered = app.add("number", Number, item=app.add("source", reports), into="number")
    with pytest.raises(ExpressionError, match="did you mean 'number'"):
        app.add("wrong", Filter, item=numbered, where="item.numbr > 1")
    app.add("right", Filter, item=numbered, where="item.number > item.time")


def test_a_sample_depends_on_the_numbers_of_the_items_and_on_the_seed():
    """It has about the part of the rate; a higher rate adds items, and another seed chooses others."""
    small, large, other = (
        feed(Sample, range(10_000), **one) for one in ({"rate": 0.1}, {"rate": 0.3}, {"rate": 0.1, "seed": 1})
    )
    assert 900 < len(small) < 1100
    assert 2800 < len(large) < 3200
    assert {*small} < {*large}
    assert len({*small} & {*other}) < 200
    assert feed(Sample, range(100), rate=0) == []
    assert feed(Sample, range(100), rate=1) == [*range(100)]


def timed(*times):
    """Items of these times."""
    return [{"t": time} for time in times]


def test_a_split():
    """An item leaves by each port whose condition holds, and by `rest` if none does."""
    conditions = {"big": "item.t > 5", "even": "item.t % 2 == 0"}
    with open_slet(Split, conditions=conditions) as split:
        for item in timed(1, 2, 7, 8):
            split.item(item)
        assert [collected(split.outputs[port]) for port in ("big", "even", "rest")] == [
            timed(7, 8),
            timed(2, 8),
            timed(1),
        ]
        with pytest.raises(ValueError, match=r"big = 'item.t > 5' cannot be tested: TypeError"):
            split.item({"t": "late"})
    with pytest.raises(SettingError, match="'rest' is the port of the items for which no condition holds"):
        spec_of(Split).asked("split", {"conditions": {"rest": "item > 1"}})


def test_a_port_of_a_split_may_be_called_out():
    """It is an output like the others, though slets that return their results have one of this name."""
    big, small, app = list[int](), list[int](), Application("splitting")
    app.add("split", Split, item=app.add("numbers", "stock:count_up", to=5), conditions={"out": "item > 2"})
    app.add("sink", collector(big), item=app.output("split"))
    app.add("rest", collector(small), item=app.output("split", "rest"))
    report = app.run()
    assert (big, small) == ([3, 4], [0, 1, 2])
    assert report["nodes"]["split"]["metrics"]["items"] == {"item": 5, "rest": 3, "out": 2}


def test_a_split_gets_another_port_while_the_stream_runs():
    """Nothing is lost, doubled or reordered when a port comes, is read, is no longer read, and goes."""
    tap, seen, even = Tap(), list[int](), list[int]()
    app = Application("splitting")
    app.add("split", Split, item=app.add("source", tap.source()), conditions={})
    app.add("sink", collector(seen), item=app.output("split", "rest"))
    with Platform() as platform:
        platform.apply(app.build())
        tap.let(10)
        eventually(lambda: len(seen) == 10)
        mesh = platform.mesh("splitting").configure("split", conditions={"even": "item % 2 == 0"})
        platform.apply(mesh.add(Node("evens", spec_of(collector(even)), {}, {"item": "split.even"})))
        tap.let(10)
        eventually(lambda: len(seen) + len(even) == 20)
        platform.apply(platform.mesh("splitting").remove("evens").configure("split", conditions={}))
        assert set(platform.mesh("splitting").channels) == {"source", "split.rest"}
        tap.let(5)
        tap.shut()
        assert platform.wait("splitting", PATIENCE)
    assert seen == [*range(1, 11), *range(11, 20, 2), *range(21, 26)]
    assert even == list(range(12, 21, 2))
