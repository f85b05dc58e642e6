"""`stock:join`: which items are joined, which are late, and what is kept."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Application, EndOfStream, Platform, Punctuation, slet
from exop.errors import ExpressionError, SettingError
from exop.model.slets.stored_memento import dump_memento, load_memento
from exop.stock.event_time import Watermark
from exop.stock.joins import Join, Kept
from exop.testing import collected
from exop.testing import open as open_slet
from tests.change.tools import Tap, changed, end, endless, grows
from tests.rig import PATIENCE, collector, eventually
from tests.stock.tools import items_between


@dataclass(frozen=True)
class Car:
    """An item of one side."""

    vid: int
    time: int
    speed: int = 0


@dataclass(frozen=True)
class Toll:
    """An item of another side."""

    vid: int
    time: int


def joined(*items: Any, vid: int = 1) -> dict[str, Any]:
    """A result of cars, tolls and perhaps others."""
    sides = zip(("cars", "tolls", "others"), items, strict=False)
    return {"vid": vid, "time": max(item.time for item in items), **dict(sides)}


def test_items_of_one_key_that_are_close():
    """Each pair leaves when its second item comes; what is too old for the other side's punctuations is let go of."""
    with open_slet(Join, sides=["cars", "tolls"], by="vid", time="time", within=10) as join:
        assert list(join.sides("cars", Car(1, 100))) == []
        assert list(join.sides("tolls", Toll(1, 110))) == [joined(Car(1, 100), Toll(1, 110))]
        assert list(join.sides("tolls", Toll(1, 111))) == []
        assert list(join.sides("tolls", Toll(2, 100))) == []
        assert list(join.sides("cars", Car(1, 101))) == [
            joined(Car(1, 101), Toll(1, 110)),
            joined(Car(1, 101), Toll(1, 111)),
        ]
        assert list(join.sides("cars", Punctuation(105))) == []
        assert list(join.sides("tolls", Punctuation(103))) == [Punctuation(103)]
        assert list(join.sides("cars", Car(1, 105))) == []
        assert collected(join.late) == [Car(1, 105)]
        assert list(join.sides("tolls", Toll(1, 104))) == [
            joined(Car(1, 100), Toll(1, 104)),
            joined(Car(1, 101), Toll(1, 104)),
        ]
        assert join.metrics() == {"kept": 6}
        assert list(join.sides("tolls", EndOfStream())) == [Punctuation(105)]
        assert join.metrics() == {"kept": 4}
        assert list(join.sides("cars", EndOfStream())) == []
        assert join.metrics() == {"kept": 0}


items = st.tuples(st.sampled_from(["cars", "tolls", "others"]), st.integers(0, 2), st.integers(0, 12))


def oracle(lefts: list[Any], rights: list[Any], how: str, before: float, after: float, where: bool) -> list[Any]:
    """The rows of two whole streams, by nested loops."""

    def same(a: Any, b: Any) -> bool:
        return a is not None and (a == b or (a != a and b != b))

    def row(left: Any, right: Any) -> Any:
        return {"vid": (left or right)["vid"], "time": max(one["time"] for one in (left, right) if one)} | {
            "l": left,
            "r": right,
        }

    pairs = [
        (left, right)
        for left in lefts
        for right in rights
        if same(left["vid"], right["vid"])
        and left["time"] - before <= right["time"] <= left["time"] + after
        and not (where and (left["n"] + right["n"]) % 2)
    ]
    alone = [
        [one for one in side if not any(one is pair[number] for pair in pairs)]
        for number, side in enumerate((lefts, rights))
    ]
    if how == "anti":
        return alone[0]
    if how == "semi":
        return [one for one in lefts if any(one is left for left, _ in pairs)]
    found = [row(*pair) for pair in pairs]
    found += [row(left, None) for left in alone[0]] * (how in ("left", "outer"))
    return found + [row(None, right) for right in alone[1]] * (how in ("right", "outer"))


#: Of each item: its key, its distance from the last punctuation, and whether one follows.
stream = st.lists(st.tuples(st.sampled_from([1, 2, None, math.nan]), st.integers(-1, 9), st.booleans()), max_size=25)


def marked(rows: list[Any], *, start: float) -> tuple[list[Any], list[Any]]:
    """A stream with punctuations and its end, and the items in it that are not late."""
    coming: list[Any] = [Punctuation(start)]
    timely: list[Any] = []
    complete = start
    for number, (vid, ahead, follows) in enumerate(rows):
        item = {"vid": vid, "time": complete + ahead, "n": number}
        coming.append(item)
        timely += [item] if item["time"] > complete else []
        if follows:
            complete += ahead // 2 if ahead > 0 else 1
            coming.append(Punctuation(complete))
    return [*coming, EndOfStream()], timely


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer", "semi", "anti"])
@given(
    streams=st.tuples(stream, stream),
    before=st.integers(0, 6),
    after=st.integers(0, 6),
    start=st.sampled_from([0, 0.25, 10**18]),
    where=st.booleans(),
    turns=st.lists(st.booleans(), max_size=110),
    handed_over=st.sets(st.integers(0, 100), max_size=3),
)
def test_the_results_do_not_depend_on_how_the_inputs_interleave(
    how, streams, before, after, start, where, turns, handed_over
):
    """They are those of nested loops over the whole streams; what leaves is not older than a punctuation before it."""
    marked_streams = [marked(rows, start=start) for rows in streams]
    queues = [list(coming) for coming, _ in marked_streams]
    settings = {"by": "vid", "time": "time", "before": before, "after": after, "how": how}
    settings |= {"where": "(item.l.n + item.r.n) % 2 == 0"} if where else {}
    kept, number, found, complete = Kept(), 0, [], -math.inf
    late: list[Any] = []
    while any(queues):
        with open_slet(Join, kept=kept, sides=["l", "r"], **settings) as join:
            while any(queues):
                turn = turns[number] if number < len(turns) else number % 2
                number += 1
                side = turn if queues[turn] else not turn
                more, complete = items_between(join.sides("lr"[side], queues[side].pop(0)), complete)
                found += more
                if number in handed_over:
                    break
            late += collected(join.late)
        kept = load_memento(dump_memento(kept, "kept"), Kept, "kept")
    timely = [taken for _, taken in marked_streams]
    assert len(late) == sum(map(len, streams)) - sum(map(len, timely))
    assert sorted(map(repr, found)) == sorted(map(repr, oracle(*timely, how, before, after, where)))
    assert kept.added == kept.swept == 0


@given(
    st.lists(items, max_size=40),
    st.sampled_from(["vid", ["vid"], []]),
    st.integers(0, 5),
    st.integers(0, 6),
    st.sets(st.integers(0, 39), max_size=3),
)
def test_any_streams(coming, by, within, delay, handed_over):
    """What leaves is what a join of the whole streams without their late items gives; what follows is complete.

    It goes on from its memento, stored and read again at any moment.
    """
    names = list(dict.fromkeys(side for side, _, _ in coming)) or ["cars"]
    settings = {"sides": names, "by": by, "time": "time", "within": within}
    marks, late, found, complete = dict.fromkeys(names, 0), [], [], -math.inf
    taken: dict[str, list[Car]] = {name: [] for name in names}
    kept = Kept()
    for number, (side, vid, ahead) in enumerate(coming):
        if number in handed_over:
            kept = load_memento(dump_memento(kept, "kept"), Kept, "kept")
        with open_slet(Join, kept=kept, **settings) as join:
            car = Car(vid, max(0, marks[side] + ahead - delay), number)
            left = list(join.sides(side, car))
            if collected(join.late):
                late.append(car)
                assert car.time < marks[side]
            else:
                taken[side].append(car)
            marks[side] = max(marks[side], car.time - delay // 2)
            left += join.sides(side, Punctuation.before(marks[side]))
        more, complete = items_between(left, complete)
        found += more
    whole = [
        {**({"vid": chosen[0].vid} if by else {}), "time": max(times), **dict(zip(names, chosen, strict=True))}
        for chosen in product(*taken.values())
        if len({one.vid for one in chosen} if by else {1}) == 1
        and max(times := [one.time for one in chosen]) - min(times) <= within
        and len(names) > 1
    ]
    assert len(found) == len(whole)
    assert all(one in whole for one in found)
    with open_slet(Join, kept=kept, **settings) as join:
        for name in names:
            join.sides(name, EndOfStream())
        assert join.metrics() == {"kept": 0}


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_side_that_is_idle_is_not_waited_for(handed_over, monkeypatch):
    """Nor by a successor, which waits anew. Items that would give results older than a punctuation that has left
    are late, and the items of the other sides are not kept for these.
    """
    now = [0.0]
    monkeypatch.setattr("exop.runtime.channels.base.clock", lambda: now[0])
    kept = Kept()
    settings: dict[str, Any] = {"sides": ["cars", "tolls"], "by": "vid", "time": "time", "within": 10}
    with open_slet(Join, kept=kept, **settings) as join:
        assert list(join.sides("tolls", Punctuation(5, idle=3))) == []
        assert list(join.sides("cars", Punctuation(6, idle=3))) == [Punctuation(5)]
        kept = load_memento(dump_memento(kept, "kept"), Kept, "kept") if handed_over else kept
    with open_slet(Join, kept=kept, **settings) as join:
        for time in range(7, 500):
            now[0] += 1
            assert list(join.sides("cars", Car(1, time))) == []
            left = list(join.sides("cars", Punctuation.before(time, idle=3)))
            assert left == ([] if now[0] < 5 else [Punctuation.before(time)])
        assert join.metrics()["kept"] < 130
        assert list(join.sides("tolls", Toll(1, 498))) == []
        assert collected(join.late) == [Toll(1, 498)]
        assert len(list(join.sides("tolls", Toll(1, 509)))) == 1


def test_a_side_that_comes_later_gives_no_result_older_than_a_punctuation():
    """Its items up to the last punctuation that has left are late."""
    kept = Kept()
    with open_slet(Join, kept=kept, sides=["cars"], by="vid", time="time", within=10) as join:
        assert list(join.sides("cars", Car(1, 50))) == []
        assert list(join.sides("cars", Punctuation(55))) == [Punctuation(55)]
    with open_slet(Join, kept=kept, sides=["cars", "tolls"], by="vid", time="time", within=10) as join:
        assert list(join.sides("tolls", Toll(1, 52))) == []
        assert collected(join.late) == [Toll(1, 52)]
        assert list(join.sides("tolls", Toll(1, 56))) == [joined(Car(1, 50), Toll(1, 56))]


def test_what_is_kept_is_bounded():
    """Behind punctuations the memento has at most twice what may still be joined."""
    with open_slet(Join, sides=["cars", "tolls"], by="vid", time="time", within=50) as join:
        for time in range(1500):
            for side in ("cars", "tolls"):
                join.sides(side, Car(time % 7, time))
                join.sides(side, Punctuation.before(time))
            assert join.metrics()["kept"] <= 2 * 2 * 51 + 102


@slet
def cars() -> Iterator[Car]:
    """Cars."""
    yield from (Car(time % 2, time, 50 + time) for time in range(4))


@slet
def tolls() -> Iterator[Toll]:
    """Tolls."""
    yield from (Toll(time % 2, time) for time in range(4))


def test_the_result_has_a_type():
    """Fields that a side lacks, and what reads a result and names other fields, are errors at their line."""
    app = Application("typed")
    sides = {"cars": app.add("cars", cars), "tolls": app.add("tolls", tolls)}
    result = app.add("join", "stock:join", sides=sides, by="vid", time="time", within=1)
    app.add("split", "stock:split", item=result, conditions={"fast": "item.cars.speed > 60"})
    with pytest.raises(ExpressionError, match=r"Joined has no field 'car'; did you mean 'cars'"):
        app.add("wrong", "stock:split", item=result, conditions={"fast": "item.car.speed > 60"})
    for wrong, text in (
        ({"by": "speed"}, r"the setting 'by' does not fit: Toll has no field 'speed'.*\(tolls\.out sends it\)"),
        ({"time": "at"}, r"the setting 'time' does not fit: Car has no field 'at'"),
        ({"within": -1}, r"the setting 'within' does not fit: it is -1, and must be finite"),
        (
            {"sides": {"vid": sides["cars"]}},
            r"the setting 'by' does not fit: the side 'vid' has the name of a field",
        ),
    ):
        given = {"sides": sides, "by": "vid", "time": "time", "within": 1, **wrong}
        with pytest.raises(SettingError, match=f"^other: {text}"):
            app.add("other", "stock:join", **given)
    app.build()


def test_the_settings_of_two_sides_are_checked():
    """Each mistake is told at its line, with the setting, its place and what is known."""
    app = Application("typed")
    sides = {"cars": app.add("cars", cars), "tolls": app.add("tolls", tolls)}
    others = {"cars": sides["cars"]}
    for wrong, text in (
        ({"within": None}, "'within' does not fit: give the distance of the times, or `before` and `after`, or"),
        ({"within": None, "after": 1}, "'within' does not fit: give the distance"),
        ({"rows": 2}, "'rows' does not fit: the last items are joined at any distance"),
        (
            {"rows": 2, "within": None, "how": "left"},
            "'rows' does not fit: the last items are joined .* leave out `rows` or `how`",
        ),
        ({"rows": -1, "within": None}, "'rows' does not fit: it is -1"),
        ({"before": -1}, "'before' does not fit: it is -1, and must be finite"),
        ({"after": math.inf}, "'after' does not fit: it is inf, and must be finite"),
        ({"how": "anti", "sides": others}, "'how' does not fit: it needs two sides, .* there are 1: cars"),
        ({"after": 0, "sides": others}, "'after' does not fit: it needs two sides"),
        ({"how": "full"}, "'how' does not fit: 'full' is none of the choices"),
        ({"on": {"toll": {}}}, "'on' does not fit: there is no side 'toll'; did you mean 'tolls'"),
        (
            {"on": {"tolls": {"vic": "vid"}}},
            "'on' does not fit: 'vic' is no field of `by` or `time`; did you mean 'vid'",
        ),
        ({"on": {"tolls": {"vid": "car"}}}, r"'by' does not fit: Toll has no field 'car'.*\(tolls\.out sends it\)"),
        ({"on": {"tolls": {"time": "at"}}}, "'time' does not fit: Toll has no field 'at'"),
    ):
        given = {"sides": sides, "by": "vid", "time": "time", "within": 1, **wrong}
        with pytest.raises(SettingError, match=f"^other: the setting {text}"):
            app.add("other", "stock:join", **given)
    where = "item.cars.speed > item.tolls.limit"
    with pytest.raises(ExpressionError, match=r"Toll has no field 'limit'"):
        app.add("other", "stock:join", sides=sides, by="vid", time="time", within=1, where=where)


@pytest.mark.parametrize(
    ("how", "condition"),
    [
        ("inner", "item.cars.speed > item.tolls.time"),
        ("left", "item.tolls is None or item.tolls.time > 3"),
        ("outer", "item.cars is None or item.cars.speed > 3"),
        ("semi", "item.speed > 3"),
        ("anti", "item.speed > 3"),
    ],
)
def test_what_leaves_has_a_type(how, condition):
    """Results have the sides, filters the items of the left side; a field that is not there is refused."""
    app = Application("typed")
    sides = {"cars": app.add("cars", cars), "tolls": app.add("tolls", tolls)}
    result = app.add("join", "stock:join", sides=sides, by="vid", time="time", within=1, how=how)
    app.add("split", "stock:split", item=result, conditions={"fast": condition})
    with pytest.raises(ExpressionError, match="has no field 'sped'"):
        app.add("wrong", "stock:split", item=result, conditions={"fast": f"item.sped > 1 and ({condition})"})
    app.build()


def test_an_item_that_fails_is_not_stored():
    """Neither does it leave a result, nor is what it could have been joined with noted as joined."""
    settings: dict[str, Any] = {"by": "vid", "time": "time", "within": 10, "how": "left"}
    with open_slet(Join, sides=["l", "r"], where="item.l.n < item.r.n", **settings) as join:
        assert list(join.sides("l", {"vid": 1, "time": 1, "n": 1})) == []
        assert list(join.sides("l", {"vid": 1, "time": 1, "n": "one"})) == []
        with pytest.raises(ValueError, match=r"where = 'item.l.n < item.r.n' cannot be tested: TypeError"):
            join.sides("r", {"vid": 1, "time": 1, "n": 2})
        for wrong in ({"time": 1, "n": 2}, {"vid": 1, "time": math.nan, "n": 2}, {"vid": [], "time": 1, "n": 2}):
            with pytest.raises((LookupError, ValueError, TypeError)):
                join.sides("r", wrong)
        assert join.metrics() == {"kept": 2}
        assert [row["r"] for row in join.sides("r", EndOfStream())] == [None, None]


def test_other_settings_go_on_with_the_stored_items():
    """Items that are older than the last punctuation give no row of their own, which would break its promise."""
    kept = Kept()
    settings: dict[str, Any] = {"sides": ["l", "r"], "time": "time", "within": 10}
    with open_slet(Join, kept=kept, by="vid", **settings) as join:
        for time in (1, 6):
            assert list(join.sides("l", {"vid": 1, "place": 7, "time": time})) == []
        assert list(join.sides("l", {"vid": 2, "time": time})) == []
        assert list(join.sides("l", Punctuation(5))) == []
        assert list(join.sides("r", Punctuation(5))) == [Punctuation(5)]
    with open_slet(Join, kept=kept, by=["place"], how="outer", **settings) as join:
        (row,) = join.sides("r", {"place": 7, "time": 16})
        assert (row["place"], row["l"]["time"], row["r"]["time"]) == (7, 6, 16)
        assert list(join.sides("r", EndOfStream())) == []
        assert list(join.sides("l", EndOfStream())) == []


def test_punctuations_remain_below_the_items_that_wait():
    """They go on with the item's match, or with its row."""
    settings: dict[str, Any] = {"by": [], "time": "time", "before": 0, "after": 10, "how": "left"}
    with open_slet(Join, sides=["l", "r"], **settings) as join:
        first, second, third = ({"time": time} for time in (5, 20, 21))
        for item in (first, second, third, Punctuation(30)):
            assert list(join.sides("l", item)) == []
        assert list(join.sides("r", Punctuation(14))) == [Punctuation.before(5)]
        assert list(join.sides("r", Punctuation(15))) == [{"time": 5, "l": first, "r": None}, Punctuation(15)]
        match = {"time": 20}
        assert list(join.sides("r", match)) == [{"time": 20, "l": second, "r": match}]
        assert list(join.sides("r", Punctuation(25))) == [Punctuation.before(21)]
        assert list(join.sides("r", Punctuation(31))) == [{"time": 21, "l": third, "r": None}, Punctuation(30)]


def test_the_last_items_of_each_key():
    """An item is joined with the last ones of the other sides, at any distance, in the order of their arrival."""
    kept = Kept()
    settings: dict[str, Any] = {"sides": ["l", "r"], "by": "vid", "time": "time"}
    with open_slet(Join, kept=kept, rows=2, **settings) as join:
        for vid, time in ((1, 900), (1, 5), (2, 1), (1, 7), (1, 6)):
            assert list(join.sides("l", {"vid": vid, "time": time})) == []
        assert [row["l"]["time"] for row in join.sides("r", {"vid": 1, "time": 100})] == [7, 6]
        assert join.metrics() == {"kept": 4}
    kept = load_memento(dump_memento(kept, "kept"), Kept, "kept")
    with open_slet(Join, kept=kept, rows=1, **settings) as join:
        assert [row["l"]["time"] for row in join.sides("r", {"vid": 1, "time": 101})] == [7, 6]
        assert [row["r"]["time"] for row in join.sides("l", {"vid": 1, "time": 102})] == [101]
        assert [row["l"]["time"] for row in join.sides("r", {"vid": 1, "time": 103})] == [102]
        assert join.metrics() == {"kept": 3}


def test_many_items_of_one_key_are_searched_by_time():
    """Those that are close are found, and nothing else is looked at."""
    looked = 0

    class Time(int):
        def __sub__(self, other: int) -> int:
            nonlocal looked
            looked += 1
            return int(self) - int(other)

    with open_slet(Join, sides=["l", "r"], by=[], time="time", within=1) as join:
        for time in range(10_000):
            list(join.sides("l", {"time": Time(time * 7 % 10_000)}))
        found = [row["l"]["time"] for row in join.sides("r", {"time": 7_000})]
        assert found == [6_999, 7_000, 7_001]
        assert looked < 50


tenths = st.integers(0, 40).map(lambda number: number * 0.1)


@given(st.lists(tenths, min_size=16, max_size=40), tenths, st.sampled_from([0.1, 0.3, 0.7]), st.booleans())
def test_the_differences_of_floats_decide(times, time, distance, left):
    """However many items of a key there are, on either side, and whichever arrives first."""
    with open_slet(Join, sides=["l", "r"], by=[], time="time", before=distance, after=distance / 2) as join:
        for one in times:
            list(join.sides("r" if left else "l", {"time": one}))
        found = list(join.sides("l" if left else "r", {"time": time}))
    pairs = [(time, one) if left else (one, time) for one in sorted(times)]
    near = [pair for pair in pairs if -distance <= pair[1] - pair[0] <= distance / 2]
    assert [(row["l"]["time"], row["r"]["time"]) for row in found] == near


class JoinToo(Join, name="join_too"):
    """The same by other code."""


@pytest.mark.parametrize("how", ["left", "outer"])
def test_a_join_is_replaced_by_itself_while_rows_flow(how):
    """Nothing is lost, doubled or reordered."""
    seen: list[Any] = []

    @slet
    def every(number: int) -> dict[str, int]:
        return {"vid": number % 7, "time": number}

    @slet
    def third(number: int) -> dict[str, int] | None:
        return {"vid": number % 7, "time": number} if number % 3 == 0 else None

    @slet
    def note(row: dict[str, Any]) -> None:
        seen.append((row["time"], row["r"] is not None))

    app = Application("app")
    numbers = app.add("a", endless)
    left = app.add("left", "stock:watermark", item=app.add("every", every, number=numbers), time="time")
    right = app.add("right", "stock:watermark", item=app.add("third", third, number=numbers), time="time")
    result = app.add("join", Join, sides={"l": left, "r": right}, by="vid", time="time", within=0, how=how)
    app.add("note", note, row=result)
    with Platform() as platform:
        platform.apply(app.build())
        for other in (JoinToo, Join) * 5:
            changed(platform, "app", lambda mesh, other=other: mesh.replace("join", other))
            grows(seen, 100)
        end(platform, "app")
    expected = [(3 * n - back, back == 0) for n in range(1, len(seen) // 3 + 1) for back in (0, 2, 1)]
    assert seen[: len(expected)] == expected
    assert [time for time, _ in seen[len(expected) :]] == [*range(len(expected) + 1, len(seen) + 1)]


def test_a_third_side_comes_while_the_stream_runs():
    """From then on a result needs an item of each of the three sides; the kept ones count."""
    taps = {name: Tap() for name in ("cars", "tolls", "others")}
    seen: list[Any] = []
    app = Application("joining")
    ends = {}
    for name, tap in taps.items():

        @slet
        def stamped(number: int) -> dict[str, int]:
            return {"vid": 1, "time": number}

        numbers = app.add(f"{name}-numbers", tap.source())
        stamped_items = app.add(f"{name}-stamped", stamped, number=numbers)
        ends[name] = app.add(name, Watermark, item=stamped_items, time="time")
    two = {name: ends[name] for name in ("cars", "tolls")}
    app.add("join", Join, sides=two, by="vid", time="time", within=1, out=app.channel("out"))
    app.add("seen", collector(seen), item="out")
    app.add("spare", collector([]), item=ends["others"])
    with Platform() as platform:
        platform.apply(app.build())
        for tap in taps.values():
            tap.let(2)
        eventually(lambda: len(seen) == 4)
        plan = platform.plan(platform.mesh("joining").rewire("join", **{"sides.others": "others"}))
        assert "replace join: by itself, with the port sides.others; the state (Kept) by reference" in str(plan)
        plan.apply()
        taps["others"].let(1)
        eventually(lambda: len(seen) == 4 + 1)
        for tap in taps.values():
            tap.shut()
        assert platform.wait("joining", PATIENCE)
    two_and_three = {"cars": 2, "tolls": 2, "others": 3}
    assert seen[-1] == {"vid": 1, "time": 3, **{side: {"vid": 1, "time": at} for side, at in two_and_three.items()}}


#: A state that was stored when its class was in another module, of version 1: cars of 100 and 97, and a toll of 95.
OLD = (
    "lQG6ZXhvcC5zdG9jay5ldmVudF90aW1lOktlcHQBhqVzaWRlc9kzZGljdFtzdHIsIGRpY3RbQW55LCBsaXN0W3R1cGxlW2ludCB8"
    "IGZsb2F0LCBBbnldXV1dqGNvbXBsZXRltmRpY3Rbc3RyLCBpbnQgfCBmbG9hdF2kc2FpZKVmbG9hdKZtZXJnZWSuZGljdFtzdHIs"
    "IEFueV2lYWRkZWSjaW50pXN3ZXB0o2ludMYAAAC9hqVzaWRlc4KkY2Fyc4EBkpPUQAFkgqN2aWQBpHRpbWVkk9RAAWGCo3ZpZAGk"
    "dGltZWGldG9sbHOBAZGT1EABX4KjdmlkAaR0aW1lX6hjb21wbGV0ZYKkY2Fyc2CldG9sbHNepHNhaWRepm1lcmdlZIeldGltZXOC"
    "pGNhcnNgpXRvbGxzXqVlbmRlZJCkc2VudF6kZG9uZcKmb3V0Ym94kKRpZGxlwKd1bmhlYXJkkKVhZGRlZAOlc3dlcHQA"
)


def test_a_state_of_an_earlier_release_is_continued():
    """The items in it are joined with later ones."""
    kept = load_memento(base64.b64decode(OLD), Kept, "kept")
    with open_slet(Join, kept=kept, sides=["cars", "tolls"], by="vid", time="time", within=10) as join:
        assert join.metrics() == {"kept": 3}
        car, toll, late = ({"vid": 1, "time": time} for time in (104, 90, 94))
        assert list(join.sides("tolls", {"vid": 1, "time": 107})) == [
            {"vid": 1, "time": 107, "cars": {"vid": 1, "time": time}, "tolls": {"vid": 1, "time": 107}}
            for time in (97, 100)
        ]
        assert [one["tolls"] for one in join.sides("cars", car)][:1] == [{"vid": 1, "time": 95}]
        assert list(join.sides("tolls", late)) == []
        assert list(join.sides("tolls", toll)) == []
        assert collected(join.late) == [late, toll]
