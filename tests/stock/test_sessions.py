"""Windows by inactivity: those of the definition, in any order of arrival; their state, and late rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import EndOfStream, Punctuation
from exop.engine import EngineState
from exop.errors import SettingError
from exop.model.slets.stored_memento import dump_memento, load_memento
from exop.stock.aggregates import Aggregate
from exop.testing import collected
from exop.testing import open as open_slet

GAP: dict[str, Any] = {
    "columns": "time bigint, road int, v bigint",
    "values": {"n": "count(*)", "s": "sum(v)", "low": "min(time)", "first": "first(v)"},
    "keys": ["road"],
    "time": "time",
    "gap": 6,
    "form": "items",
}
ROWS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 2, None]), st.integers(-9, 9)), max_size=30)


def run(items: list[Any], state: EngineState | None = None, **more: Any) -> tuple[list[Any], EngineState, list[Any]]:
    """Return the results, the state and the late rows; a state that it begins with has been stored."""
    begun = {} if state is None else {"state": load_memento(dump_memento(state, ""), EngineState, "")}
    with open_slet(Aggregate, **GAP | more, **begun) as instance:
        found = [one for item in items for one in instance.rows(item)]
        instance.flush()
        rows = [row for one in found if isinstance(one, list) for row in one]
        return rows, instance.state, collected(instance.late)


def by_definition(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The windows of the sorted rows: one ends where the next row of its key is not nearer than the gap."""
    found = []
    for road in (1, 2, None):
        window: list[dict[str, Any]] = []
        for row in [*sorted((one for one in rows if one["road"] == road), key=lambda one: one["time"]), None]:
            if window and (row is None or row["time"] - window[-1]["time"] >= 6):
                result = {"time": window[-1]["time"] + 6, "road": road, "n": len(window)}
                result |= {"s": sum(one["v"] for one in window), "low": window[0]["time"], "first": window[0]["v"]}
                found.append(result)
                window = []
            window += [row] if row is not None else []
    return sorted(found, key=lambda one: (one["time"], one["road"] is None, one["road"]))


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(rows=ROWS, chance=st.randoms(use_true_random=False), cut=st.integers(0, 60))
def test_any_disorder_within_the_delay_gives_the_windows_of_the_sorted_rows(
    rows: list[tuple[Any, ...]], chance: Any, cut: int
):
    """A row between two windows connects them; continued from a stored state."""
    known = [dict(zip(("time", "road", "v"), row, strict=True)) for row in sorted(rows, key=lambda row: row[0])]
    items: list[Any] = []
    for row in sorted(known, key=lambda row: row["time"] + chance.random() * 10):
        items += [row, Punctuation(max(one["time"] for one in [*items, row] if isinstance(one, dict)) - 11)]
    ties = {}  # which of two rows with one time is the first depends on their arrival
    for row in (one for one in items if isinstance(one, dict)):
        ties.setdefault((row["road"], row["time"]), row["v"])
    first, state, _ = run(items[:cut])
    rest, _, late = run([*items[cut:], EndOfStream()], state)
    wanted = [{**one, "first": ties[one["road"], one["low"]]} for one in by_definition(known)]
    assert first + rest == wanted
    assert not late


def test_rows_at_the_distance_of_the_gap_are_in_two_windows():
    """A window has the times up to, and without, the last one plus the gap, and ends with a punctuation just before."""
    items = [{"time": time, "road": 1, "v": 0} for time in (0, 5, 11)]
    found, _, _ = run([*items, Punctuation(9)])
    assert found == []
    found, _, _ = run([*items, Punctuation(10)])
    assert found == [{"time": 11, "road": 1, "n": 2, "s": 0, "low": 0, "first": 0}]


def test_a_row_is_late_if_its_own_window_would_be_complete():
    """One that an open window is near to is not."""
    rows = [{"time": time, "road": road, "v": 0} for time, road in ((10, 1), (4, 1), (5, 1), (5, 2))]
    found, _, late = run([rows[0], Punctuation(11), *rows[1:], EndOfStream()])
    assert late == [rows[1], rows[3]]
    assert found == [{"time": 16, "road": 1, "n": 2, "s": 0, "low": 5, "first": 0}]


def test_a_row_that_is_refused_connects_nothing():
    """The sum of two windows and its own is beyond 64 bits."""
    most = (1 << 63) - 1
    with open_slet(Aggregate, **GAP) as instance:
        for time, value in ((0, most), (10, most)):
            instance.rows({"time": time, "road": 1, "v": value})
        with pytest.raises(OverflowError, match="the sum of 'v' is beyond 64 bits"):
            instance.rows({"time": 5, "road": 1, "v": 1})
        (found,) = instance.rows(EndOfStream())
        assert [(row["time"], row["n"], row["s"]) for row in found] == [(6, 1, most), (16, 1, most)]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"window": 10.0}, "there are windows of a length, too"),
        ({"slide": 3.0}, "windows by `gap` have none"),
        ({"gap": -1.0}, "must be 0"),
        ({"gap": 0.5}, "it must be a whole number"),
        ({"time": ""}, "windows need the column with the time of a row"),
        ({"form": "columns", "values": {"n": "count(*)"}}, "need items"),
    ],
)
def test_a_wrong_setting_is_refused(given: dict[str, Any], problem: str):
    """Before the slet is made."""
    with pytest.raises(SettingError, match=problem), open_slet(Aggregate, **{**GAP, **given}):
        pass


def test_another_gap_is_refused_with_the_state():
    """And so are windows of a length."""
    from exop.engine.aggregation import Aggregation

    settings_ = {**GAP, "window": 0, "slide": 0}
    held = Aggregation.of(settings_, items=True).layout()
    for other in ({"gap": 7}, {"gap": 0, "window": 6}):
        assert "its windows are" in str(Aggregation.of(settings_ | other, items=True).lacks(held))
