"""Windows whose sizes change: every item is in a window, in one where they do not overlap, also over checkpoints."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from exop.model.items import EndOfStream, Punctuation
from exop.model.values.encoding import decode, encode
from exop.runtime.channels.base import Outlet
from exop.runtime.channels.window import WindowChannel
from exop.runtime.dataflow.entry import Entry

COMPLETE = {"count": None, "seconds": None, "slide": None, "time": None, "evict": False, "ports": None}


class Rig:
    """A window channel with one port that writes down what it gets."""

    def __init__(self, **sizes: Any) -> None:
        self.seen: list[list[Any]] = []
        self.sizes = sizes
        self.channel = self.made()

    def made(self) -> WindowChannel:
        """A channel with the sizes of now, connected."""
        channel = WindowChannel("pieces", **self.sizes)
        self.entry = channel.entry(
            [Outlet("a.x", Entry(lambda piece: self.seen.append(list(piece)), None, lambda _: None))]
        )
        return channel

    def turn(self, *, close: bool = False, **sizes: Any) -> Any:
        """Other sizes from here on."""
        self.sizes = sizes
        return self.channel.reconfigure({**COMPLETE, **sizes}, close=close)

    def store(self) -> None:
        """Go on in another channel with what this one holds."""
        held = decode(encode(dict(self.channel.capture())))
        self.channel = self.made()
        self.channel.restore(held)

    def push(self, *items: Any) -> None:
        """Push items."""
        for item in items:
            self.entry.push(item)


#: What happens one after the other: so many items, other sizes (closing or not), a checkpoint.
turns = st.lists(
    st.one_of(
        st.tuples(st.just("items"), st.integers(1, 30)),
        st.tuples(st.just("size"), st.integers(1, 20)),
        st.tuples(st.just("close"), st.integers(1, 20)),
        st.tuples(st.just("store"), st.just(0)),
    ),
    max_size=14,
)


@settings(deadline=None, max_examples=300)
@given(turns, st.integers(1, 20))
def test_by_count_every_item_is_in_one_window(steps, first):
    """Tumbling windows follow each other without a gap, whatever the sizes are and whenever they change."""
    rig, number = Rig(count=first), 0
    for step, value in steps:
        if step == "items":
            rig.push(*range(number, number + value))
            number += value
        elif step == "store":
            rig.store()
        else:
            rig.turn(count=value, close=step == "close")
    rig.turn(count=1, close=True)
    rig.push(number)
    assert [item for piece in rig.seen for item in piece] == list(range(number + 1))
    assert all(rig.seen)


@settings(deadline=None, max_examples=300)
@given(turns, st.integers(1, 20), st.sampled_from(["end", "punctuation"]))
def test_by_time_every_item_is_in_one_window(steps, first, how):
    """The same by time; a window ends where its size says, unless it was closed, or is cut by the one before it."""
    rig, number = Rig(seconds=first, time="t"), 0
    for step, value in steps:
        if step == "items":
            rig.push(*({"t": time} for time in range(number, number + value)))
            number += value
        elif step == "store":
            rig.store()
        else:
            rig.turn(seconds=value, time="t", close=step == "close")
    rig.entry.control(EndOfStream() if how == "end" else Punctuation(number + 100))
    assert [item["t"] for piece in rig.seen for item in piece] == list(range(number))
    assert all(rig.seen)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(0, 60))
def test_overlapping_windows_by_count(size, slide, later, later_slide, at):
    """Old windows are those that had begun, each whole; the new ones begin where the next old one would have."""
    slide, later_slide = min(slide, size), min(later_slide, later)
    rig = Rig(count=size, slide=slide)
    rig.push(*range(at))
    rig.turn(count=later, slide=later_slide)
    rig.push(*range(at, 100))
    begin = -(-at // slide) * slide
    old = [list(range(start, start + size)) for start in range(0, begin, slide)]
    new = [list(range(start, start + later)) for start in range(begin, 101 - later, later_slide)]
    assert sorted(rig.seen) == sorted(old + new)


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 30), st.integers(1, 30), st.integers(1, 30), st.integers(1, 30), st.integers(1, 100), st.booleans()
)
def test_overlapping_windows_by_time(size, slide, later, later_slide, at, store):
    """Old windows are those that had begun by then; the new ones hold what comes from the next beginning on."""
    slide, later_slide = min(slide, size), min(later_slide, later)
    assume((size, slide) != (later, later_slide))  # nothing would change
    rig = Rig(seconds=size, slide=slide, time="t")
    rig.push(*({"t": time} for time in range(at)))
    rig.turn(seconds=later, slide=later_slide, time="t")
    if store:
        rig.store()
    rig.push(*({"t": time} for time in range(at, 200)))
    rig.entry.control(EndOfStream())
    begin = ((at - 1) // slide + 1) * slide

    def pieces(low: int, size: int, starts: range) -> list[list[int]]:
        found = [list(range(max(low, start), min(200, start + size))) for start in starts]
        return [piece for piece in found if piece]

    old = pieces(0, size, range(-(size // slide) * slide, begin, slide))
    first = (begin - later) // later_slide * later_slide
    new = pieces(begin, later, range(first, 200, later_slide))
    assert sorted([item["t"] for item in piece] for piece in rig.seen) == sorted(old + new)


def test_a_change_that_is_taken_back():
    """Nothing of it is left: the open window is what it was."""
    for sizes, other in (({"count": 5}, {"count": 2}), ({"seconds": 5, "time": "t"}, {"seconds": 2, "time": "t"})):
        for close in (False, True):
            rig = Rig(**sizes)
            items = [{"t": number} for number in range(12)]
            rig.push(*items[:3])
            undo = rig.turn(**other, close=close)
            undo()
            rig.push(*items[3:])
            rig.entry.control(EndOfStream())
            whole = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]] + ([[10, 11]] if "time" in sizes else [])
            assert [[item["t"] for item in piece] for piece in rig.seen] == whole


def test_what_is_late_is_counted_on():
    """Late items of before the change, and behind it, are counted once."""
    rig = Rig(seconds=10, time="t")
    rig.push({"t": 25})
    rig.entry.control(Punctuation(25))
    rig.push({"t": 3})
    rig.turn(seconds=5, time="t")
    rig.push({"t": 4}, {"t": 27}, {"t": 31}, {"t": 45})
    rig.entry.control(Punctuation(45))
    rig.push({"t": 30}, {"t": 46})
    assert rig.channel.metrics()["late"] == 3
    assert [[item["t"] for item in piece] for piece in rig.seen] == [[25, 27], [31]]
    assert [item["t"] for item in rig.channel.read("a.x")] == [45, 46]


def test_a_pull_reads_old_and_new():
    """Each item once, the older first."""
    rig = Rig(count=4, slide=2)
    rig.push(0, 1, 2)
    rig.turn(count=2)
    rig.push(3, 4)
    assert rig.channel.read("a.x") == [1, 2, 3, 4]


def test_items_are_exchanged_once_each():
    """An item that is in old and new windows is replaced by one item; so are those in windows that were closed."""
    rig = Rig(count=4, slide=2)
    rig.push([0], [1], [2])
    rig.turn(count=2)
    rig.push([3], [4])
    made = []

    def replace(item: list[int]) -> list[int]:
        made.append(item)
        return [item[0] + 10]

    rig.channel.exchange(replace)
    assert sorted(made) == [[1], [2], [3], [4]]
    rig.turn(count=3, close=True)
    rig.channel.exchange(replace)
    rig.push([5])
    assert rig.seen == [[[0], [1], [2], [3]], [[22], [23], [24]], [[24]]]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 15)), min_size=1, max_size=4),
    st.booleans(),
)
def test_every_window_that_has_begun_is_whole_however_often_the_sizes_change(changes, store):
    """Windows of three sizes may be open at once: each of them comes to its end, and none is cut off by a later one."""
    rig, number = Rig(count=5, slide=2), 0
    expected, begin, size, slide = [], 0, 5, 2

    def begun_before(end):
        return range(begin, end, slide)

    for later, later_slide, items in [*changes, (1, 1, 40)]:
        rig.push(*range(number, number + items))
        number += items
        rig.turn(count=later, slide=min(later, later_slide))
        if store:
            rig.store()
        following = begin + slide * -(-(number - begin) // slide) if number > begin else begin
        expected += [[*range(first, first + size)] for first in begun_before(following)]
        begin, size, slide = following, later, min(later, later_slide)
    rig.push(*range(number, number + 60))
    expected += [[first] for first in range(begin, number + 60)]
    assert sorted(rig.seen) == sorted(expected)
