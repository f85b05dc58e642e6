"""The outputs of two slets as sequences: however they are cut, and whoever is ahead."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from exop import Punctuation
from exop.wiring.shadow.comparison import PortStreams


def rows(*numbers):
    """A record batch."""
    return pa.RecordBatch.from_pydict({"n": [*numbers]})


def found(streams, *, last=True):
    """The differences: kind, item, old, new."""
    return [(one.kind, one.item, one.old, one.new) for one in streams.match(last=last)]


def compared(old, new, *, in_step=True, compare=None, whole=False):
    """Compare two sequences of (item, payload)."""
    streams = PortStreams("out", compare, in_step=in_step)
    for item, payload in old:
        streams.add("old", item, payload, whole=whole)
    for item, payload in new:
        streams.add("new", item, payload, whole=whole)
    return found(streams)


@given(st.lists(st.integers(0, 5), max_size=30), st.data())
def test_however_they_are_cut(numbers, data):
    """Two streams of the same rows are equal however they are cut into batches, and whenever they come."""
    streams = PortStreams("out", None, in_step=False)
    left = {"old": list(numbers), "new": list(numbers)}
    while left["old"] or left["new"]:
        side = data.draw(st.sampled_from([one for one in ("old", "new") if left[one]]))
        size = data.draw(st.integers(1, len(left[side])))
        streams.add(side, 0, rows(*left[side][:size]), whole=True)
        del left[side][:size]
        assert found(streams, last=False) == []
    assert found(streams) == []
    assert streams.matched == len(numbers)
    assert streams.ahead("old") == streams.ahead("new") == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_a_difference_is_never_missed(old, new):
    """Sequences that differ anywhere, in value, order or length, are not taken for equal."""
    told = compared([(0, rows(*old))], [(0, rows(*new))], in_step=False, whole=True)
    assert bool(told) is (old != new)
    singles = compared([(n, x) for n, x in enumerate(old)], [(n, x) for n, x in enumerate(new)])
    assert bool(singles) is (old != new)


def test_missing_and_extra_are_told_by_the_item():
    """If both are called item by item, missing and extra outputs are reported, and the rest is compared."""
    old = [(1, "a"), (2, "b"), (3, "c"), (5, "e")]
    new = [(1, "a"), (3, "c"), (4, "d"), (5, "e")]
    assert compared(old, new) == [("missing", 2, "'b'", ""), ("extra", 4, "", "'d'")]
    assert compared([(1, "a")], [(1, "b")]) == [("different", 1, "'a'", "'b'")]


def test_rows_and_items():
    """One side in columns, the other in dictionaries: rows are compared with items."""
    assert compared([(1, rows(1, 2))], [(1, {"n": 1}), (2, {"n": 2})], in_step=False, whole=False) == []
    told = compared([(1, rows(1, 2))], [(1, {"n": 1}), (2, {"n": 3})], in_step=False, whole=False)
    assert [(kind, old, new) for kind, _, old, new in told] == [("different", "{'n': 2}", "{'n': 3}")]


def test_a_list_may_be_an_item():
    """A list that is one item is compared as one; a batch item by item."""
    assert compared([(1, [1, 2])], [(1, [1]), (1, [2])], whole=True) == []
    assert len(compared([(1, [1, 2])], [(1, [1]), (1, [2])], whole=False)) == 2


def test_punctuations_have_their_place():
    """In step they stand among the items; for engines, which put out later, they are no part of the comparison."""
    old = [(1, "a"), (1, Punctuation(1)), (2, "b")]
    new = [(1, "a"), (2, "b"), (2, Punctuation(1))]
    assert compared(old, new)
    assert compared(old, new, in_step=False) == []


def test_a_comparison_of_the_users_own():
    """It is called with items, of columns with their rows."""
    near = compared(
        [(0, rows(10, 20))], [(0, rows(11))], in_step=False, compare=lambda old, new: abs(old["n"] - new["n"]) < 2
    )
    assert [(kind, old) for kind, _, old, _ in near] == [("missing", "{'n': 20}")]
