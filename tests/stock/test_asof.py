"""`stock:asof`: which item is the latest, when results leave, and what is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Application, EndOfStream, Platform, Punctuation, slet
from exop.errors import ExpressionError, SettingError
from exop.model.slets.stored_memento import dump_memento, load_memento
from exop.stock.asof import Asof, Latest
from exop.testing import collected
from exop.testing import open as open_slet
from tests.change.tools import changed, end, endless, grows
from tests.stock.tools import items_between


def at(time: float, vid: Any = 1, **fields: Any) -> dict[str, Any]:
    """An item."""
    return {"vid": vid, "time": time, **fields}


def test_the_latest_item_that_is_not_later():
    """Of the same time, the one that arrived last; `None` if there is none of the key, or it is too old."""
    with open_slet(Asof, by="vid", time="time", tolerance=10) as asof:
        for item in (at(5), at(7, n=1), at(20), at(7, n=2), at(6, 2), at(1, None)):
            assert list(asof.right(item)) == []
        for item in (at(7), at(17), at(17.5), at(6, 2), at(5, 2), at(9, None)):
            assert list(asof.left(item)) == []
        assert asof.metrics() == {"waiting": 6, "kept": 6}
        rows = list(asof.right(EndOfStream()))
    assert [(row["time"], row["vid"]) for row in rows] == [(5, 2), (6, 2), (7, 1), (9, None), (17, 1), (17.5, 1)]
    assert [row["right"] for row in rows] == [None, at(6, 2), at(7, n=2), None, at(7, n=2), None]
    assert all(row["left"]["time"] == row["time"] for row in rows)


def test_an_item_waits_until_the_right_side_is_complete_through_its_time():
    """Punctuations remain below the items that wait; late items are not joined."""
    with open_slet(Asof, by=[], time="time") as asof:
        assert list(asof.left(at(5))) == []
        assert list(asof.left(Punctuation(9))) == []
        assert list(asof.right(Punctuation(4))) == [Punctuation(4)]
        assert list(asof.right(at(5, n=1))) == []
        assert list(asof.right(Punctuation(5))) == [{"time": 5, "left": at(5), "right": at(5, n=1)}, Punctuation(5)]
        assert list(asof.left(at(9))) == list(asof.right(at(5))) == []
        assert collected(asof.late) == [at(9), at(5)]
        assert list(asof.right(Punctuation(20))) == [Punctuation(9)]
        assert list(asof.left(at(15))) == [{"time": 15, "left": at(15), "right": at(5, n=1)}]


def test_an_eager_join_does_not_wait():
    """It takes what has arrived."""
    with open_slet(Asof, by="vid", time="time", eager=True) as asof:
        assert [row["right"] for row in asof.left(at(5))] == [None]
        assert list(asof.right(at(4))) == []
        assert [row["right"] for row in asof.left(at(5))] == [at(4)]


stream = st.lists(st.tuples(st.sampled_from([1, 2, None, math.nan]), st.integers(-1, 9), st.booleans()), max_size=25)


def marked(rows: list[Any], start: float) -> tuple[list[Any], list[Any]]:
    """A stream with punctuations and its end, and the items in it that are not late."""
    coming: list[Any] = [Punctuation(start)]
    timely: list[Any] = []
    complete = start
    for number, (vid, ahead, follows) in enumerate(rows):
        coming.append(item := at(complete + ahead, vid, n=number))
        timely += [item] if item["time"] > complete else []
        if follows:
            complete += ahead // 2 if ahead > 0 else 1
            coming.append(Punctuation(complete))
    return [*coming, EndOfStream()], timely


def latest_of(left: Any, rights: list[Any], tolerance: float | None) -> Any:
    """The latest item, by looking at all."""
    found = None
    for right in rights:
        same = left["vid"] is not None and (
            left["vid"] == right["vid"] or {*map(str, (left["vid"], right["vid"]))} == {"nan"}
        )
        if same and right["time"] <= left["time"] and (found is None or right["time"] >= found["time"]):
            found = right
    return None if found and tolerance is not None and left["time"] - found["time"] > tolerance else found


@given(
    streams=st.tuples(stream, stream),
    start=st.sampled_from([0, 0.25, 10**18]),
    tolerance=st.none() | st.integers(0, 8),
    turns=st.lists(st.booleans(), max_size=110),
    handed_over=st.sets(st.integers(0, 100), max_size=3),
)
def test_the_results_do_not_depend_on_how_the_inputs_interleave(streams, start, tolerance, turns, handed_over):
    """They are those of a search in the whole streams; what leaves is not older than a punctuation before it."""
    marked_streams = [marked(rows, start) for rows in streams]
    queues = [list(coming) for coming, _ in marked_streams]
    latest, number, found, complete = Latest(), 0, [], -math.inf
    while any(queues):
        with open_slet(Asof, latest=latest, by="vid", time="time", tolerance=tolerance) as asof:
            while any(queues):
                turn = turns[number] if number < len(turns) else number % 2
                number += 1
                side = turn if queues[turn] else not turn
                more, complete = items_between((asof.right if side else asof.left)(queues[side].pop(0)), complete)
                found += more
                asof._sweep()  # at any moment: it drops nothing that is needed
                if number in handed_over:
                    break
        latest = load_memento(dump_memento(latest, "latest"), Latest, "latest")
    lefts, rights = (timely for _, timely in marked_streams)
    expected = [
        {"vid": one["vid"], "time": one["time"], "left": one, "right": latest_of(one, rights, tolerance)}
        for one in lefts
    ]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert asof.metrics() == {"waiting": 0, "kept": 0}


def test_what_is_kept_is_bounded():
    """One item for each key, and those that are later than the left side."""
    with open_slet(Asof, by="vid", time="time") as asof:
        for time in range(2000):
            asof.right(at(time, time % 5))
            asof.left(at(time, 1))
            asof.right(Punctuation(time))
            asof.left(Punctuation(time))
            assert asof.metrics()["kept"] <= 2 * 6 + 101
            assert asof.metrics()["waiting"] == 0


@dataclass(frozen=True)
class Trade:
    """An item of the left side."""

    share: str
    time: int


@dataclass(frozen=True)
class Quote:
    """An item of the right side."""

    name: str
    at: int
    price: float


@slet
def trade(number: int) -> Trade:
    """Make trades."""
    return Trade("A", number)


@slet
def quote(number: int) -> Quote:
    """Make quotes."""
    return Quote("A", number, number / 2)


def test_settings_and_fields_are_checked():
    """Fields have other names on a side; results have a type."""
    app = Application("typed")
    numbers = app.add("numbers", "stock:count_up", to=1)
    ports = {"left": app.add("trades", trade, number=numbers), "right": app.add("quotes", quote, number=numbers)}
    settings = {"by": "share", "time": "time", "on": {"right": {"share": "name", "time": "at"}}}
    found = app.add("asof", "stock:asof", **ports, **settings)
    app.add("split", "stock:split", item=found, conditions={"high": "item.right.price > 3 and item.left.time > 1"})
    with pytest.raises(ExpressionError, match="Quote has no field 'prize'"):
        app.add("other", "stock:split", item=found, conditions={"high": "item.right.prize > 3"})
    for wrong, text in (
        ({"on": {}}, "'by' does not fit: Quote has no field 'share'"),
        ({"on": {"rigth": {}}}, "'on' does not fit: there is no side 'rigth'; did you mean 'right'"),
        ({"tolerance": -1}, "'tolerance' does not fit: it is -1, and must be finite"),
    ):
        with pytest.raises(SettingError, match=f"^wrong: the setting {text}"):
            app.add("wrong", "stock:asof", **ports, **{**settings, **wrong})


def test_an_item_that_fails_changes_nothing():
    """It has no key, no time, or a key that cannot be compared."""
    with open_slet(Asof, by="vid", time="time") as asof:
        for wrong in ({"time": 1}, {"vid": 1, "time": math.nan}, {"vid": [], "time": 1}):
            for port in (asof.left, asof.right):
                with pytest.raises((LookupError, ValueError, TypeError)):
                    port(wrong)
        assert asof.metrics() == {"waiting": 0, "kept": 0}
        assert asof.latest == Latest()


class AsofToo(Asof, name="asof_too"):
    """The same by other code."""


def test_it_is_replaced_by_itself_while_rows_flow():
    """Nothing is lost, doubled or reordered."""
    seen: list[Any] = []

    @slet
    def item(number: int) -> dict[str, int]:
        return at(number)

    @slet
    def third(number: int) -> dict[str, int] | None:
        return at(number) if number % 3 == 0 else None

    @slet
    def note(row: dict[str, Any]) -> None:
        seen.append((row["time"], row["right"] and row["right"]["time"]))

    app = Application("app")
    numbers = app.add("a", endless)
    left = app.add("left", "stock:watermark", item=app.add("item", item, number=numbers), time="time")
    right = app.add("right", "stock:watermark", item=app.add("third", third, number=numbers), time="time")
    app.add("note", note, row=app.add("asof", Asof, left=left, right=right, by="vid", time="time"))
    with Platform() as platform:
        platform.apply(app.build())
        for other in (AsofToo, Asof) * 5:
            changed(platform, "app", lambda mesh, other=other: mesh.replace("asof", other))
            grows(seen, 100)
        end(platform, "app")
    assert seen == [(number, number // 3 * 3 or None) for number in range(1, len(seen) + 1)]
