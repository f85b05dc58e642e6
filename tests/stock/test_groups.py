"""The groups of an aggregate in both forms: windows that overlap, at their cost, and values of any class."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import EndOfStream, Punctuation
from exop.engine.columns import schema_of
from exop.engine.groups import Groups
from exop.stock import groups
from exop.stock.aggregates import Aggregate
from exop.testing import feed
from exop.testing import open as open_slet
from tests.stock.test_aggregates import unbatched

PARTS = {"n": "count(*)", "sum": "sum(time)", "low": "min(time)"}


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    items=st.lists(st.one_of(st.integers(-30, 60), st.integers(-30, 60).map(Punctuation)), max_size=60),
    windows=st.sampled_from([(10, 10), (20, 5), (7, 1), (64, 1)]),
    form=st.sampled_from(["items", "lists", "columns"]),
)
def test_a_row_counts_in_the_windows_that_are_open_when_it_arrives(
    items: list[Any], windows: tuple[int, int], form: str
):
    """Rows that miss some of their windows are in the others, one window after the other or many at once."""
    (size, slide), complete = windows, -1000
    times: dict[int, list[int]] = {}
    wanted: list[dict[str, Any]] = []
    for item in [*items, EndOfStream()]:
        if isinstance(item, int):
            for number in range(item // slide + 1, item // slide + 1 + size // slide):
                times.setdefault(number, []).append(item) if number > complete else None
            continue
        complete = max(complete, (int(item.time) + 1) // slide if isinstance(item, Punctuation) else 1000)
        for number in sorted(number for number in times if number <= complete):
            held = sorted(times.pop(number))
            wanted += [{"time": number * slide, "n": len(held), "sum": sum(held), "low": min(held), "all": held}]
    rows = [{"time": item} if isinstance(item, int) else item for item in items]
    given = {"columns": "time bigint", "time": "time", "window": size, "slide": slide}
    given["values"] = PARTS | ({"all": "collect(time)"} if form == "lists" else {})
    if form == "columns":
        rows = [pa.RecordBatch.from_pylist([row]) if isinstance(row, dict) else row for row in rows]
    found = unbatched(feed(Aggregate, rows, form="columns" if form == "columns" else "items", **given))
    found = [{**row, "all": sorted(row["all"])} if "all" in row else row for row in found if isinstance(row, dict)]
    assert found == [{name: one for name, one in row.items() if name in found[0]} for row in wanted]


def test_a_state_of_fine_slides_takes_memory_for_each_window_once(monkeypatch: pytest.MonkeyPatch):
    """By columns, a pane is not written out for each of its windows."""
    most, merged = [0], Groups._merged

    def watched(self: Groups, parts: list[pa.Table], **how: Any) -> pa.Table:
        most.append(sum(part.num_rows for part in parts))
        return merged(self, parts, **how)

    monkeypatch.setattr(Groups, "_merged", watched)
    given: Any = {"columns": "time bigint", "values": PARTS, "time": "time", "window": 1000, "slide": 1}
    with open_slet(Aggregate, form="columns", **given) as instance:
        list(instance.rows(pa.RecordBatch.from_pydict({"time": [*range(1000)]})))
        instance.flush()
        assert max(most) <= 12 * 2000
        assert len(unbatched(list(instance.rows(EndOfStream())))) == 1999


@pytest.mark.parametrize("form", ["items", "columns"])
@pytest.mark.parametrize("time", ["bigint", "double"])
@pytest.mark.parametrize("mark", [1e300, -1e300, 1.7e308])
def test_a_punctuation_may_be_far_away(form: str, time: str, mark: float):
    """The rows that follow are late, or not."""
    schema = schema_of(f"time {time}")
    rows = [{"time": 5}, Punctuation(mark), {"time": 50}]
    if form == "columns":
        rows = [pa.RecordBatch.from_pylist([row], schema) if isinstance(row, dict) else row for row in rows]
    given: Any = {"columns": f"time {time}", "values": {"n": "count(*)"}, "time": "time", "window": 10}
    found = unbatched(feed(Aggregate, rows, form=form, **given))
    assert [row["time"] for row in found if isinstance(row, dict)] == ([10] if mark > 0 else [10, 60])


@pytest.mark.parametrize("form", ["items", "columns"])
@pytest.mark.parametrize("call", ["avg", "min", "sum", "max"])
def test_numbers_of_32_bits_are_rounded_when_they_arrive(form: str, call: str):
    """In both forms, whatever else is counted."""
    schema, row = schema_of("x float"), {"x": 0.1}
    given: Any = {"columns": "x float", "values": {"n": "count(x)", "found": f"{call}(x)"}, "form": form}
    items = [row if form == "items" else pa.RecordBatch.from_pylist([row], schema)]
    assert unbatched(feed(Aggregate, items, **given)) == [{"n": 1, "found": float(np.float32(0.1))}]


class Shade(StrEnum):
    """A text."""

    DARK = "dark"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 3.0),
        ("int", np.int16(3)),
        ("tinyint", np.float32(3)),
        ("double", 3),
        ("float", np.float16(1.5)),
        ("double", np.uint8(3)),
        ("string", Shade.DARK),
        ("string", np.str_("é")),
        ("timestamp", datetime(2026, 3, 29, 12)),
        ("timestamp", datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))),
    ],
)
def test_usual_values_of_other_classes_are_converted_as_by_arrow(
    kind: str, value: Any, monkeypatch: pytest.MonkeyPatch
):
    """Without the costs of a batch for each item."""
    monkeypatch.setattr(groups, "to_columns", lambda items, port: pytest.fail("a batch was made"))
    given: Any = {"columns": f"x {kind}", "values": {"found": "collect(x)"}, "form": "items"}
    (result,) = unbatched(feed(Aggregate, [{"x": value}], **given))
    assert result["found"] == pa.array([value], schema_of(f"x {kind}").field("x").type).to_pylist()
    assert type(result["found"][0]) in (int, float, str, datetime)
