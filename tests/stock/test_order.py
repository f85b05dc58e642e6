"""`bsort`, `ordered`, `dedupe` and `delay`: what leaves when, what is late, and what is kept."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Application, EndOfStream, Memento, Platform, Punctuation, slet
from exop.errors import ExpressionError, MementoError, SettingError
from exop.model.slets.stored_memento import dump_memento, load_memento
from exop.stock import order
from exop.stock.event_time import Watermark
from exop.stock.order import BSort, Dedupe, Delay, Ordered, Unsorted
from exop.testing import collected, feed
from exop.testing import open as open_slet
from tests.rig import PATIENCE, collector, source_of
from tests.stock.tools import changed_under_load, items_between

values = st.lists(st.integers(0, 9) | st.sampled_from([2.5, -1.0]), max_size=30)
timed_items = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=40)


def timed(*times: float) -> list[dict[str, float]]:
    """Items of these times."""
    return [{"t": time} for time in times]


def items_of(found: Any) -> list[Any]:
    """What leaves, without punctuations."""
    return [one for one in found if not isinstance(one, Punctuation)]


def handed_over(
    operator: Any, memento: Any, items: list[Any], places: set[int], **settings: Any
) -> tuple[list[Any], Any]:
    """What a slet and its successors emit, and what is late; they replace each other, with stored mementos."""
    state = {"Unsorted": "unsorted", "Passed": "passed", "Delayed": "delayed", "Largest": "largest"}
    name, left, late = state[type(memento).__name__], [], []
    for low, high in pairwise([0, *sorted(place for place in places if place < len(items)), len(items)]):
        with open_slet(operator, **{name: memento}, **settings) as made:
            for item in items[low:high]:
                found = made.item(item)
                left += found if isinstance(found, (list, tuple)) else [] if found is None else [found]
            late += collected(made.late)
        memento = load_memento(dump_memento(memento, name), type(memento), name)
    return left, (late, memento)


def bubble_sorted(items: list[Any], passes: int) -> list[Any]:
    """The items after so many passes of bubble sort, as in a textbook."""
    items = [*items]
    for _ in range(passes):
        for place in range(len(items) - 1):
            if items[place]["v"] > items[place + 1]["v"]:
                items[place : place + 2] = items[place + 1], items[place]
    return items


@given(values, st.integers(0, 5))
def test_a_bsort_is_so_many_passes_of_bubble_sort(numbers, slack):
    """Of each group; an item that is smaller than one that has left leaves at its place, by `late`."""
    items = [{"v": value, "n": number, "group": number % 2} for number, value in enumerate(numbers)]
    found: dict[int, list[Any]] = {0: [], 1: []}
    with open_slet(BSort, on="v", slack=slack, by="group") as bsort:
        for item in [*items, EndOfStream()]:
            left = [*bsort.item(item), *bsort.late.taken()]  # type: ignore[attr-defined]
            for one in left:
                found[one["group"]].append(one)
            if isinstance(item, EndOfStream):
                continue
            assert bsort.metrics()["held"] == sum(map(len, bsort.unsorted.groups.values())) <= 2 * slack
        assert bsort.metrics() == {"held": 0}
    for group, left in found.items():
        assert left == bubble_sorted([one for one in items if one["group"] == group], slack)


def test_a_bsort_by_example():
    """Ties leave in the order of their arrival; what is smaller than one that has left is late."""
    with open_slet(BSort, on="t", slack=1) as bsort:
        left = [[one["t"] for one in bsort.item(item)] for item in timed(2, 5, 4, 3, 4)]
        assert left == [[], [2], [4], [], [4]]
        assert collected(bsort.late) == timed(3)
        assert list(bsort.item(EndOfStream())) == timed(5)


def test_a_punctuation_first_lets_all_up_to_its_time_leave():
    """Of all groups, in order; the punctuation follows, and what comes after it and is not later is late."""
    with open_slet(BSort, on="t", slack=9, by="g") as bsort:
        for time, group in ((5, 1), (3, 2), (9, 1), (4, 1), (5, 2)):
            assert list(bsort.item({"t": time, "g": group})) == []
        left = list(bsort.item(Punctuation(5)))
        assert [(one["t"], one["g"]) for one in left[:-1]] == [(3, 2), (4, 1), (5, 1), (5, 2)]
        assert left[-1] == Punctuation(5)
        assert list(bsort.item({"t": 5, "g": 3})) == []
        assert collected(bsort.late) == [{"t": 5, "g": 3}]
        assert bsort.metrics() == {"held": 1}


@given(timed_items, st.integers(0, 9), st.sets(st.integers(0, 60), max_size=3))
def test_behind_a_watermark_a_bsort_with_enough_slack_sorts_the_whole_stream(coming, delay, places):
    """Nothing is late, and no item leaves behind a punctuation that excludes it. It goes on from its memento."""
    items = [{"g": group, "t": time, "n": number} for number, (group, time) in enumerate(coming)]
    marked = [*feed(Watermark, items, time="t", delay=delay), EndOfStream()]
    left, (late, _) = handed_over(BSort, Unsorted(), marked, places, on="t", slack=40)
    assert late == []
    assert items_of(left) == sorted(items_of(marked[:-1]), key=lambda one: (one["t"], one["n"]))
    complete = -math.inf
    for one in left:
        if isinstance(one, Punctuation):
            complete = one.time
        else:
            assert one["t"] > complete


def test_what_a_bsort_keeps_is_bounded(monkeypatch):
    """The held items by the slack, and the groups by punctuations."""
    monkeypatch.setattr(order, "_FEW", 10)
    with open_slet(BSort, on="t", slack=2, by="g") as bsort:
        for time in range(1000):
            bsort.item({"t": time, "g": time})
            bsort.item({"t": time + 1, "g": time})
            bsort.item({"t": time + 2, "g": time})
            bsort.item(Punctuation(time))
            assert bsort.metrics()["held"] <= 6
            assert len(bsort.unsorted.left) <= 20


@given(values, st.integers(0, 3))
def test_an_item_is_in_order_if_at_most_so_many_earlier_ones_are_larger(numbers, slack):
    """Of its group, late ones included."""
    items = [{"v": value, "g": number % 2, "n": number} for number, value in enumerate(numbers)]
    with open_slet(Ordered, on="v", slack=slack, by=["g"]) as ordered:
        found = [one for item in items if (one := ordered.item(item)) is not None]
        late = collected(ordered.late)

    def larger(item: Any) -> int:
        return sum(one["g"] == item["g"] and one["v"] > item["v"] for one in items[: item["n"]])

    assert found == [item for item in items if larger(item) <= slack]
    assert late == [item for item in items if larger(item) > slack]


def test_ordered_keeps_so_many_values_of_each_group():
    """Punctuations pass, and do not change what is in order."""
    with open_slet(Ordered, on="t", slack=2) as ordered:
        for item in timed(*range(50)):
            ordered.item(item)
        assert ordered.largest.groups == {None: [47, 48, 49]}
        assert ordered.metrics() == {"groups": 1}
    assert feed(Ordered, [*timed(3), Punctuation(9), *timed(4, 2)], on="t") == [*timed(3), Punctuation(9), *timed(4)]


def first_ones(items: list[Any], within: float, *, refresh: bool) -> list[Any]:
    """The items that are no repetitions, found by looking at all earlier items of the same key."""
    passed = []
    for place, item in enumerate(items):
        counts = None  # the time from which repetitions count
        for earlier in items[:place]:
            if earlier["g"] != item["g"]:
                continue
            if counts is None or earlier["t"] >= counts + within:
                counts = earlier["t"]
            elif refresh:
                counts = max(counts, earlier["t"])
        if counts is None or item["t"] >= counts + within:
            passed.append(item)
    return passed


@given(timed_items, st.integers(0, 9), st.integers(0, 8), st.booleans(), st.sets(st.integers(0, 60), max_size=3))
def test_the_first_item_of_a_key_passes_and_its_repetitions_do_not(coming, delay, within, refresh, places):
    """For any disorder; it does not depend on what is swept, and goes on from the memento."""
    items = [{"g": group, "t": time, "n": number} for number, (group, time) in enumerate(coming)]
    marked = feed(Watermark, items, time="t", delay=delay)
    for few in (-1, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(order, "_FEW", few)
            settings = {"by": "g", "time": "t", "within": within, "refresh": refresh}
            left, (late, _) = handed_over(Dedupe, order.Passed(), marked, places, **settings)
        assert items_of(left) == first_ones(items_of(marked), within, refresh=refresh)
        assert [one for one in left if isinstance(one, Punctuation)] == [
            one for one in marked if isinstance(one, Punctuation)
        ]
        assert late == []


def test_a_repetition_ends_with_its_time():
    """At first + within an item passes again; with `refresh`, at the last repetition + within."""
    items = [{"k": 1, "t": time} for time in (0, 4, 5, 9, 14)]
    passed = feed(Dedupe, items, by="k", time="t", within=5)
    assert [one["t"] for one in passed] == [0, 5, 14]
    passed = feed(Dedupe, items, by="k", time="t", within=5, refresh=True)
    assert [one["t"] for one in passed] == [0, 14]
    assert len(feed(Dedupe, [{"k": None, "t": 0}, {"k": None, "t": 1}], by="k", time="t", within=5)) == 1


def test_dedupe_forgets_keys_behind_punctuations_and_refuses_what_is_late():
    """What is kept has at most twice the keys of the last `within`, and a few."""
    with open_slet(Dedupe, by="k", time="t", within=50) as dedupe:
        for time in range(2000):
            assert dedupe.item({"k": time, "t": time}) is not None
            dedupe.item(Punctuation(time))
            assert dedupe.metrics()["keys"] <= 2 * 51 + 102
        assert dedupe.item({"k": "new", "t": 1999}) is None
        assert collected(dedupe.late) == [{"k": "new", "t": 1999}]


@given(
    timed_items,
    st.integers(0, 9),
    st.sampled_from([0, 1, 4, 2.5]),
    st.sampled_from([int, float]),
    st.sets(st.integers(0, 60), max_size=3),
)
def test_a_delayed_item_leaves_at_the_first_punctuation_after_its_time_and_the_delay(
    coming, delay, seconds, kind, places
):
    """In order of the times; no item leaves behind a punctuation that excludes it, at the end all leave."""
    items = [{"g": group, "t": kind(time), "n": number} for number, (group, time) in enumerate(coming)]
    marked = feed(Watermark, items, time="t", delay=delay)
    left, (late, memento) = handed_over(Delay, order.Delayed(), marked, places, time="t", seconds=seconds)
    assert late == []
    wanted, waiting = [], []
    for one in marked:
        if isinstance(one, Punctuation):
            after = math.floor(one.time) + 1 if kind is int else math.nextafter(one.time, math.inf)
            due = [item for item in waiting if after >= item["t"] + seconds]
            wanted += sorted(due, key=lambda item: (item["t"], item["n"]))
            waiting = [item for item in waiting if item not in due]
        else:
            waiting.append(one)
    assert items_of(left) == wanted
    items_between(left, -math.inf, "t")
    with open_slet(Delay, delayed=memento, time="t", seconds=seconds) as made:
        assert made.metrics() == {"held": len(waiting)}
        assert list(made.item(EndOfStream())) == sorted(waiting, key=lambda item: (item["t"], item["n"]))


def test_a_delay_by_example():
    """Punctuations leave with their time less the delay, and what they exclude is late."""
    with open_slet(Delay, time="t", seconds=10) as delay:
        assert [*delay.item({"t": 3}), *delay.item({"t": 1})] == []
        assert list(delay.item(Punctuation(9))) == [Punctuation(-1)]
        assert list(delay.item(Punctuation(10))) == [{"t": 1}, Punctuation(0)]
        assert list(delay.item({"t": 0})) == []
        assert collected(delay.late) == [{"t": 0}]
        assert list(delay.item(Punctuation(12))) == [{"t": 3}, Punctuation(2)]


@pytest.mark.parametrize(
    ("operator", "settings"),
    [
        (BSort, {"on": "time", "slack": 3, "by": "group"}),
        (Ordered, {"on": "time", "slack": 2}),
        (Dedupe, {"by": "group", "time": "time", "within": 3}),
        (Delay, {"time": "time", "seconds": 5}),
    ],
)
def test_another_instance_goes_on_while_rows_flow(operator, settings):
    """Nothing is lost, doubled or reordered."""

    class Again(operator, name="again"):  # type: ignore[misc]
        pass

    rows, seen = changed_under_load(operator, lambda mesh: mesh.replace("x", Again), timed=True, **settings)
    marked = feed(Watermark, rows, time="time", delay=4)
    assert seen == items_of(feed(operator, marked, **settings))


def test_a_setting_is_changed_live_unless_the_state_belongs_to_it():
    """More or fewer items are held back from the next one on; another field is refused in the plan."""
    changes = [lambda mesh, slack=slack: mesh.configure("x", slack=slack) for slack in (40, 15)]
    rows, seen = changed_under_load(BSort, *changes, timed=True, on="time", slack=20)
    assert seen == sorted(rows, key=lambda row: row["time"])
    for wrong in ({"on": "n"}, {"by": "group"}):
        with pytest.raises(MementoError, match=f"its state belongs to {next(iter(wrong))}="):
            changed_under_load(BSort, lambda mesh, wrong=wrong: mesh.configure("x", **wrong), on="time", slack=3)


@pytest.mark.parametrize("bad", [{"t": None}, {"t": "now"}, {"t": math.nan}, {"x": 1}, {"t": 1, "g": []}])
def test_an_item_that_fails_changes_nothing(bad):
    """A time that is missing or no number, a group that cannot be one."""
    for operator, settings in (
        (BSort, {"on": "t", "slack": 1, "by": "g"}),
        (Ordered, {"on": "t", "by": "g"}),
        (Dedupe, {"time": "t", "by": "g", "within": 1}),
        (Delay, {"time": "t", "seconds": 1}),
    ):
        if operator is Delay and "g" in bad:
            continue
        with open_slet(operator, **settings) as made:
            made.item({"t": 5, "g": 0})
            memento = next(one for one in vars(made).values() if isinstance(one, Memento))
            before = dump_memento(memento, "before")
            with pytest.raises((ValueError, LookupError, TypeError)):
                made.item(bad)
            assert dump_memento(memento, "before") == before


@slet
def some_columns() -> Iterator[Annotated[pa.RecordBatch, pa.schema([("t", pa.int64()), ("g", pa.string())])]]:
    """Columns."""
    yield pa.record_batch({"t": [1, 2], "g": ["a", "a"]})


def test_a_mistake_is_told_where_the_node_is_added():
    """A field that the columns do not have, and a number that cannot be; behind the slet, fields are still checked."""
    app = Application("typed")
    source = app.add("rows", some_columns)
    for operator, settings, told in (
        (BSort, {"on": "u", "slack": 1}, "'on' does not fit: .*no field 'u'"),
        (BSort, {"on": "t", "slack": -1}, "'slack' does not fit: it is -1, and must be finite, and 0 or more"),
        (Ordered, {"on": "t", "by": ["g", "h"]}, "'by' does not fit: .*no field 'h'"),
        (Dedupe, {"by": "g", "time": "g", "within": 1}, "'time' does not fit"),
        (Delay, {"time": "t", "seconds": math.inf}, "'seconds' does not fit"),
    ):
        with pytest.raises(SettingError, match=told):
            app.add("x", operator, item=source, **settings)
    found = app.add("dedupe", Dedupe, item=source, by="g", time="t", within=9)
    with pytest.raises(ExpressionError, match="has no field 'h'"):
        app.add("wrong", "stock:filter", item=found, where="item.h > 1")
    seen = list[Any]()
    app.add("seen", collector(seen), item=found)
    app.run()
    assert seen == [{"t": 1, "g": "a"}]


def test_late_items_leave_by_a_port_and_are_counted():
    """Also if the port is not connected."""
    late = list[Any]()
    app = Application("late")
    app.add("sorted", BSort, item=app.add("items", source_of(timed(1, 3, 4, 2, 5))), on="t", slack=1)
    app.add("late", collector(late), item=app.output("sorted", "late"))
    app.add("rest", collector([]), item=app.output("sorted"))
    with Platform() as platform:
        platform.apply(app.build())
        assert platform.wait("late", PATIENCE)
        assert platform.metrics("late")["nodes"]["sorted"]["items"] == {"item": 5, "out": 4, "late": 1}
    assert late == timed(2)


def test_a_punctuation_looks_at_groups_that_have_items_for_it_only(monkeypatch):
    """Not at all that hold items back, of which there may be many; also behind a restart."""
    looks = []

    def searched(*args, **how):
        looks.append(args)
        return bisect_right(*args, **how)

    monkeypatch.setattr(order, "bisect_right", searched)
    with open_slet(BSort, on="n", slack=2, by="k") as former:
        for n in range(1000):
            assert list(former.item({"n": n, "k": n})) == []
        state = load_memento(dump_memento(former.unsorted, ""), Unsorted, "")
    with open_slet(BSort, on="n", slack=2, by="k", unsorted=state) as sort:
        for n in range(1000, 1100):
            assert list(sort.item({"n": n, "k": n % 1000})) == []
            assert list(sort.item(Punctuation(n - 1000))) == [{"n": n - 1000, "k": n % 1000}, Punctuation(n - 1000)]
        assert len(looks) == 100
        assert sort.metrics() == {"held": 1000}
