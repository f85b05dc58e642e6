"""Windows: by count, by time, by eviction; an own one for each port."""

import itertools
import math
import sys
import threading
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.errors import MeshError
from exop.model.items import EndOfStream, Punctuation, Window
from exop.model.slets.ports import PortType
from exop.runtime.channels.base import Outlet
from exop.runtime.channels.window import WindowChannel
from exop.runtime.dataflow.entry import Entry, InFlight, Unwind
from exop.runtime.drivers.base import Driver, acting_as
from tests.runtime.rig import Log, joined


@dataclass(frozen=True)
class At:
    """An item with a time."""

    t: float


def windows_of(channel, *steps):
    """What a consumer gets for items of these times, and control items in between."""
    log = Log()
    entry = joined(channel, log)
    for step in steps:
        entry.control(step) if isinstance(step, (Punctuation, EndOfStream)) else entry.push(At(step))
    return [[item.t for item in seen] for seen in log.seen if isinstance(seen, list)]


def test_a_window_by_count_is_due_when_it_is_full():
    """Tumbling windows of three: the rest that never fills one is not due."""
    log = Log()
    entry = joined(WindowChannel("w", count=3), log)
    entry.push_batch(list(range(8)))
    entry.control(EndOfStream())
    assert log.seen == [[0, 1, 2], [3, 4, 5], EndOfStream()]


def test_a_sliding_window_by_count_moves_on_by_its_slide():
    """Windows of three that move on by one."""
    log = Log()
    joined(WindowChannel("w", count=3, slide=1), log).push_batch([1, 2, 3, 4, 5])
    assert log.seen == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]


def test_a_window_that_was_delivered_does_not_change():
    """What a slet has received is its own: later items do not enter it."""
    log = Log()
    entry = joined(WindowChannel("w", count=2, slide=1), log)
    entry.push(1)
    entry.push(2)
    first = log.seen[0]
    entry.push(3)
    assert first == [1, 2]


def test_a_window_by_time_is_never_closed_by_an_item():
    """Tumbling windows of ten seconds, from multiples of ten on: only what is complete leaves."""
    channel = WindowChannel("w", seconds=10, time="t")
    assert windows_of(channel, 12, 31, 20, 15, Punctuation(29), 19, 21) == [[12, 15]]
    assert channel.metrics() == {"items": 3, "late": 1, "taken": 6, "evicted": 2}


def test_a_window_that_ends_where_the_next_item_may_be_is_complete():
    """Nothing older than ten follows: a window that ends at ten is due, though ten itself is not complete."""
    channel = WindowChannel("w", seconds=10, time="t")
    assert windows_of(channel, 3, 10, Punctuation.before(10), 10, Punctuation.before(20)) == [[3], [10, 10]]


def test_a_punctuation_makes_windows_due_and_follows_them():
    """A punctuation says how far time has come; the windows go before it."""
    log = Log()
    entry = joined(WindowChannel("w", seconds=10, time="t"), log)
    entry.push(At(3))
    entry.control(Punctuation(9))
    entry.control(Punctuation(10))
    assert log.seen == [Punctuation(9), [At(3)], Punctuation(10)]


def test_a_punctuation_costs_what_leaves():
    """The items that stay open are not looked at again, however many punctuations come."""
    reads = []

    class Counted(At):
        @property
        def number(self):
            reads.append(self)
            return self.t

    entry = joined(WindowChannel("w", seconds=10, slide=5, time="number"), log := Log())
    for time in range(300):
        entry.push(Counted(time))
    reads.clear()
    for time in range(200):
        entry.control(Punctuation(time))
    assert reads == []
    assert sum(isinstance(seen, list) for seen in log.seen) == 39


@given(
    steps=st.lists(st.one_of(st.integers(0, 60), st.integers(0, 70).map(Punctuation)), max_size=40),
    size=st.integers(1, 15),
    slide=st.integers(1, 15),
    store=st.integers(0, 40),
)
def test_windows_by_time_hold_what_their_definition_says(steps, size, slide, store):
    """For any times and punctuations: each window holds what came before it was due, in the order of arrival, once."""
    log = Log()
    channel = WindowChannel("w", seconds=size, slide=slide, time="t")
    entry = joined(channel, log)
    for number, step in enumerate(steps):
        if number == store:
            held, channel = channel.capture(), WindowChannel("w", seconds=size, slide=slide, time="t")
            entry = joined(channel, log)
            channel.restore(held)
        entry.control(step) if isinstance(step, Punctuation) else entry.push(At(step))
    entry.control(EndOfStream())
    expected, timely, belong = [], set(), set()
    for start in range(-(size + slide) // slide * slide, 75, slide):
        end, now, held = start + size, float("-inf"), []
        for number, step in enumerate(steps):
            if isinstance(step, Punctuation):
                now = max(now, step.time)
            elif start <= step < end:
                belong.add(number)
                if now < end:
                    timely.add(number)
                    held.append(step)
        expected += [held] if held else []
    assert [[item.t for item in seen] for seen in log.seen if isinstance(seen, list)] == expected
    assert channel.metrics()["late"] == len(belong - timely)


@given(slide=st.floats(0.01, 10), spans=st.integers(1, 4), data=st.data())
def test_no_item_is_lost_between_windows_whose_bounds_are_rounded(slide, spans, data):
    """With 0.1 seconds, too: an item that is a bound, or beside one, is in each of the windows that overlap there."""
    numbers = data.draw(st.lists(st.integers(-50, 50), min_size=1, max_size=20))
    times = [data.draw(st.sampled_from((n * slide, n / 10, math.nextafter(n * slide, -99)))) for n in numbers]
    marks = [Punctuation.before(min(times)), *times, EndOfStream()]
    channel = WindowChannel("w", seconds=spans * slide, slide=slide, time="t")
    found = [time for window in windows_of(channel, *marks) for time in window]
    assert sorted(found) == sorted(times * spans)


def test_times_in_nanoseconds_are_compared_exactly():
    """A number that is larger than what a float can tell apart from its neighbours is in its window."""
    day = 1_700_006_400 * 10**9
    channel = WindowChannel("w", seconds=1000, time="t")
    times = [day - 1, day, day + 999, day + 1000]
    assert windows_of(channel, *times, Punctuation.before(day + 1000), day + 1001, EndOfStream()) == [
        [day - 1],
        [day, day + 999],
        [day + 1000, day + 1001],
    ]


@pytest.mark.parametrize("time", [math.inf, math.nan, None, "12:30", datetime(2026, 1, 1), 10**400])
def test_an_item_that_is_refused_leaves_no_trace(time):
    """The time that it names is none of the stream: sizes can be changed behind it. The error names the field."""
    channel = WindowChannel("w", seconds=10, time="t")
    entry = joined(channel, log := Log())
    entry.push(At(1))
    with pytest.raises(ValueError, match="its field 't', is .*a finite number is needed"):
        entry.push(At(time))
    channel.reconfigure({"seconds": 5.0, "time": "t"}, close=False)
    entry.push(At(11))
    entry.control(EndOfStream())
    assert log.seen == [[At(1)], [At(11)], EndOfStream()]


@pytest.mark.parametrize("other", [{"time": "u"}, {"seconds": None, "count": 2}])
def test_an_item_that_one_port_refuses_is_taken_by_none(other):
    """Its sender has it again, or sets it aside: also of a batch, no port has taken any item, in whatever order."""
    ports = {"b.item": other, "c.item": {"time": "u"}}
    one, two, three = Log(), Log(), Log()
    channel = WindowChannel("w", seconds=10, time="t", ports=ports)
    outlets = [Outlet("a.item", one.entry), Outlet("b.item", two.entry), Outlet("c.item", three.entry)]
    entry = channel.entry(outlets)
    assert entry.probe.probe is entry.probe
    for way in (entry, entry.probe):
        with pytest.raises(LookupError, match="no field 'u'"):
            way.push({"t": 1})
        with pytest.raises(LookupError, match="no field 'u'"):
            way.push_batch([{"t": 1, "u": 1}, {"t": 1}])
        assert channel.metrics()["taken"] == 0
    entry.push_batch([{"t": 1, "u": 1}, {"t": 2, "u": 2}])
    entry.control(EndOfStream())
    assert [log.seen[0] for log in (one, two, three)] == [[{"t": 1, "u": 1}, {"t": 2, "u": 2}]] * 3


def test_a_stream_that_is_said_to_be_complete_ends_like_any_other():
    """`Punctuation(inf)`: all windows are due, and the end has nothing to add."""
    channel = WindowChannel("w", seconds=10, time="t")
    assert windows_of(channel, Punctuation(-math.inf), 1, 25, Punctuation(math.inf), 30, EndOfStream()) == [[1], [25]]
    assert channel.metrics()["late"] == 1


def test_with_eviction_the_slet_gets_its_whole_window_with_every_item():
    """A semantic window: the slet itself lets go of the oldest items."""
    seen = []

    def keep_two(window):
        seen.append(list(window))
        window.evict(len(window) - 2)

    entry = joined(WindowChannel("w", evict=True), Log(keep_two))
    entry.push_batch([1, 2, 3, 4])
    assert seen == [[1], [1, 2], [1, 2, 3], [2, 3, 4]]


def test_each_port_has_a_window_of_its_own():
    """Two consumers of one channel: what one of them evicts, and its sizes, are nothing to the other."""
    one, other = Log(), Log()
    channel = WindowChannel("w", count=2, ports={"b.item": {"count": 3}})
    entry = channel.entry([Outlet("a.item", one.entry), Outlet("b.item", other.entry)])
    entry.push_batch([1, 2, 3])
    assert one.seen == [[1, 2]]
    assert other.seen == [[1, 2, 3]]


def test_a_port_that_stays_connected_keeps_its_window():
    """When connections change, open windows stay open; a port that is new begins with an empty one."""
    channel, before, after, new = WindowChannel("w", count=2), Log(), Log(), Log()
    channel.entry([Outlet("a.item", before.entry)]).push(1)
    channel.entry([Outlet("a.item", after.entry), Outlet("b.item", new.entry)]).push(2)
    assert (before.seen, after.seen, new.seen) == ([], [[1, 2]], [])


def test_a_pull_reads_the_window_of_its_port():
    """A port that pulls has a window too, although nothing is delivered to it."""
    channel, log = WindowChannel("w", count=2), Log()
    channel.readers(["b.item"])
    entry = joined(channel, log)
    entry.push_batch([1, 2, 3])
    assert channel.read("b.item") == [2, 3]
    assert channel.read("nobody.item") == []


def test_rows_of_columns_enter_as_dictionaries():
    """A record batch is cut into rows; the type of the consumer says so."""
    log = Log()
    joined(WindowChannel("w", count=2), log).push_batch(pa.record_batch({"t": [1, 2]}))
    assert log.seen == [[{"t": 1}, {"t": 2}]]
    assert WindowChannel.carries(PortType(pa.RecordBatch, "columns")).item == list[dict]


def test_consumers_receive_lists_of_what_is_pushed():
    """The type of a window is the list of its items."""
    assert WindowChannel.carries(PortType(int)).item == list[int]


@pytest.mark.parametrize("defect", [None, MemoryError("a defect"), SystemExit(3)])
def test_what_was_due_when_the_driver_went_back_is_not_lost(defect):
    """Several windows become due at once and the first one is refused, or meets a defect: all are kept, in order."""
    log, refuse = Log(), [True]

    def push(window):
        if refuse:
            raise defect or Unwind("refused", lambda: True, InFlight(log.entry, "push", window))
        log.push(window)

    driver = Driver("test")
    driver.on_defect = lambda _, in_hand: Unwind("stranded", lambda: True, in_hand)
    channel = WindowChannel("w", seconds=10, slide=5, time="t")
    entry = channel.entry([Outlet("a.item", Entry(push, push, log.control))])
    entry.push(At(1))
    entry.push(At(100))
    with acting_as(driver), pytest.raises(Unwind) as unwound:
        entry.control(Punctuation(50))
    refuse.clear()
    for work in unwound.value.in_flight:
        work.do({})
    entry.control(EndOfStream())
    assert log.seen == [[At(1)], [At(1)], Punctuation(50), [At(100)], [At(100)], EndOfStream()]


def test_an_item_that_a_window_refuses_is_no_defect():
    """An item without its time fails at its sender, though it is refused where windows are delivered."""
    driver = Driver("test")
    entry = joined(WindowChannel("w", seconds=10, time="t"), Log())
    with acting_as(driver), pytest.raises(LookupError, match="has no field 't'"):
        entry.push("no time")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs one of count=, seconds= or evict=True"),
        ({"count": 3, "evict": True}, "given: count, evict"),
        ({"seconds": 5}, "name the field"),
        ({"count": 3, "slide": 4}, "do not fit"),
        ({"count": -3}, "do not fit"),
        ({"seconds": math.inf, "time": "t"}, "do not fit"),
    ],
)
def test_a_window_that_cannot_be_is_refused(settings, message):
    """A mistake in the settings is told where the channel is made."""
    with pytest.raises(MeshError, match=message):
        WindowChannel("w", **settings)


def test_a_mistake_in_the_settings_of_one_port_names_it():
    """Other sizes for one port are checked when the channel is made, not when the port is connected."""
    with pytest.raises(MeshError, match=r"of b\.item needs one of"):
        WindowChannel("w", count=3, ports={"b.item": {"evict": True}})
    with pytest.raises(MeshError, match=r"of b\.item has no setting 'cuont'; did you mean 'count'"):
        WindowChannel("w", count=3, ports={"b.item": {"cuont": 2}})


def test_a_window_is_a_list():
    """Slets take it as one; evicting more than there is leaves nothing."""
    window = Window([1, 2])
    window.evict(5)
    assert list(itertools.chain(window)) == []


def test_its_size_is_known_while_items_enter_and_windows_close():
    """Whoever looks is in another thread than who pushes."""
    channel = WindowChannel("w", seconds=100, slide=5, time="t")
    entry = joined(channel, Log())
    done = threading.Event()

    def push() -> None:
        for number in range(20_000):
            entry.push(At(number))
            if number % 200 == 0:
                entry.control(Punctuation(number))
        done.set()

    pushing = threading.Thread(target=push)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        pushing.start()
        while not done.is_set():
            assert channel.metrics()["items"] <= 400
            assert len(channel.read("Log.item")) <= 400
    finally:
        sys.setswitchinterval(interval)
        pushing.join()
    assert channel.metrics()["items"] == len(channel.read(next(iter(channel.windows))))
