"""What every channel kind keeps, whichever it is: one suite for all of them."""

import inspect
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from exop import Application, Batch, EndOfStream, InputPort, Punctuation, slet
from exop.model.slets.ports import PortType
from exop.runtime.channels import BUILT_IN
from exop.runtime.channels.base import Channel, Outlet
from exop.runtime.channels.queue import Buffered
from exop.runtime.drivers.worker import Worker
from tests.rig import PATIENCE, collector, eventually, rests, source_of, threads_leave
from tests.runtime.rig import Log, driven, finished

#: Every kind with settings under which what is pushed is what arrives.
KINDS: dict[str, dict[str, Any]] = {
    "direct": {},
    "queue": {"capacity": 3},
    "window": {"count": 1},
    "latch": {"key": "n"},
    "table": {"key": "n", "index": ["by"]},
    "log": {},
    "log on disk": {},
    "partitioned_log": {"by": "by", "partitions": 1},
}


def item(number, by="a"):
    """An item that every kind takes."""
    return {"n": number, "by": by}


@pytest.fixture(params=KINDS)
def kind(request, tmp_path, monkeypatch):
    """The name of a kind."""
    if request.param == "log on disk":
        monkeypatch.setitem(KINDS, request.param, {"path": tmp_path / "log"})
    return request.param


@pytest.fixture
def channel(kind):
    """A channel of the kind."""
    channel = made(kind)
    yield channel
    channel.close()


def class_of(kind):
    """The class of a kind."""
    return next(one for one in BUILT_IN if one.kind == kind.partition(" ")[0])


def made(kind):
    """A channel of a kind."""
    channel = class_of(kind)("c", **KINDS[kind])
    channel.open()
    return channel


class Running:
    """A channel with its consumers, and a worker where it needs one."""

    def __init__(self, channel, *logs):
        self.channel, self.logs = channel, logs
        self.entry = channel.entry([Outlet(f"log{n}.item", log.entry) for n, log in enumerate(logs)])
        self.worker = Worker("contract")
        if channel.buffered:
            self.worker.serve((channel,))
            self.worker.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.worker.halt()
        self.worker.join(PATIENCE)

    def arrives(self, *expected):
        """Wait until every consumer has exactly this."""
        for log in self.logs:
            eventually(lambda log=log: len(log.seen) >= len(expected), f"what was sent through {self.channel.kind}")
            assert flat(log.seen) == list(expected)


def flat(seen):
    """What arrived, windows of one item as that item."""
    return [one[0] if isinstance(one, list) else one for one in seen]


def test_every_built_in_kind_is_in_this_suite():
    """A new kind has to keep the contract too."""
    assert {kind.partition(" ")[0] for kind in KINDS} == {kind.kind for kind in BUILT_IN}


def test_a_kind_says_what_it_is(channel):
    """A name, whether it is buffered and serial, how it is pulled; settings are keyword-only and have types."""
    assert isinstance(channel, Channel)
    assert channel.pull_mode in ("take", "read")
    assert not (channel.buffered and channel.serial)
    for parameter in itertools.islice(inspect.signature(type(channel)).parameters.values(), 1, None):
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.annotation is not parameter.empty


def test_items_arrive_once_and_in_order(channel):
    """Push: each item reaches the consumer exactly once."""
    with Running(channel, Log()) as running:
        for number in range(50):
            running.entry.push(item(number))
        running.arrives(*(item(number) for number in range(50)))


def test_batches_arrive_as_their_items_in_order(channel):
    """A batch, a single item, an empty batch, a batch: the order is that of the items."""
    with Running(channel, Log()) as running:
        running.entry.push_batch([item(0), item(1)])
        running.entry.push(item(2))
        running.entry.push_batch([])
        running.entry.push_batch(Batch([item(3)]))
        running.arrives(*(item(number) for number in range(4)))


def test_record_batches_pass(channel):
    """Columns go through every kind; whoever takes items gets their rows."""
    with Running(channel, Log()) as running:
        running.entry.push_batch(pa.record_batch({"n": [0, 1], "by": ["a", "a"]}))
        running.entry.push_batch(pa.record_batch({"n": pa.array([], pa.int64()), "by": pa.array([], pa.string())}))
        running.entry.push(item(2))
        running.arrives(item(0), item(1), item(2))


def test_control_items_keep_their_place_among_the_items(channel):
    """Punctuations and the end arrive behind what was pushed before them, and before what was pushed after them."""
    with Running(channel, Log()) as running:
        running.entry.push(item(0))
        running.entry.control(Punctuation(0))
        running.entry.push_batch([item(1), item(2)])
        running.entry.control(Punctuation(2))
        running.entry.control(EndOfStream())
        running.arrives(item(0), Punctuation(0), item(1), item(2), Punctuation(2), EndOfStream())


@pytest.mark.parametrize("number", [0, 2, 3])
def test_every_consumer_gets_everything(channel, number):
    """Fan-out: each of them all items, in order; without consumers nothing breaks."""
    with Running(channel, *(Log() for _ in range(number))) as running:
        running.entry.push(item(0))
        running.entry.push_batch([item(1), item(2)])
        running.entry.control(EndOfStream())
        running.arrives(item(0), item(1), item(2), EndOfStream())


def test_what_is_measured_arrives_like_everything_else(channel):
    """The instrumented way delivers the same, in the same order."""
    with Running(channel, Log()) as running:
        running.entry.push(item(0))
        running.entry.probe.push(item(1))
        running.entry.probe.push_batch([item(2)])
        running.entry.probe.control(Punctuation(2))
        running.entry.push(item(3))
        running.arrives(item(0), item(1), item(2), Punctuation(2), item(3))


def test_connections_can_change_between_two_items(channel):
    """Bound anew, it goes on with what it holds: a consumer that stays misses nothing."""
    log = Log()
    with Running(channel, log) as running:
        running.entry.push(item(0))
        running.arrives(item(0))
        running.worker.close()
        assert rests(running.worker, PATIENCE)
        running.entry = channel.entry([Outlet("log0.item", log.entry), Outlet("other.item", Log().entry)])
        running.worker.open()
        running.entry.push(item(1))
        running.arrives(item(0), item(1))


def test_what_it_holds_is_plain_data_and_comes_back(channel, kind):
    """Capture gives lists, dictionaries and items; a channel that restores it holds the same."""
    entry = channel.entry([Outlet("log0.item", Log().entry)])
    for number in range(2):
        entry.push(item(number))
    held = channel.capture()
    channel.close()
    other = made(kind)
    other.entry([Outlet("log0.item", Log().entry)])
    other.restore(held)
    assert other.capture() == held
    other.close()
    if channel.pull_mode == "read":
        assert other.read("log0.item") == channel.read("log0.item")


def test_figures_are_numbers_and_texts(channel):
    """Whatever a kind shows can be printed, and sent to another host."""
    entry = channel.entry([])
    entry.push(item(0))
    for name, figure in channel.metrics().items():
        assert isinstance(name, str)
        assert isinstance(figure, (int, float, str))


def test_what_it_carries_is_a_port_type(channel):
    """The types of both ends are compared through it: what enters as something leaves as something."""
    carried = channel.carries(PortType(int))
    assert isinstance(carried, PortType)
    assert carried.form == "item"


# Through a whole application: the wiring puts queues where a kind needs them.


def applied(rig, kind, producers, *consumers, pulls=()):
    """Run an application of several sources and consumers around one channel; returns what each consumer saw."""
    app = Application("contract")
    channel = app.channel("c", kind=class_of(kind).kind, **KINDS[kind])
    for name, items in producers.items():
        app.add(name, source_of(items), out=channel)
    seen: dict[str, list[Any]] = {name: [] for name in (*consumers, *pulls)}
    for name in consumers:
        app.add(name, collector(seen[name]), item=channel)
    for name in pulls:
        app.add(name, pulling(seen[name]), item=channel)
    rig.run(app)
    return {name: flat(got) for name, got in seen.items()}


def pulling(seen):
    """A sink that pulls everything."""

    @slet
    def pull(item: InputPort[Any]) -> None:
        seen.extend(item)

    return pull


def test_several_producers_and_consumers(rig, kind):
    """Per producer and consumer nothing is lost, doubled or reordered, and the end comes when all have ended."""
    producers = {name: [item(number, name) for number in range(200)] for name in "abc"}
    for got in applied(rig, kind, producers, "x", "y").values():
        assert len(got) == 600
        for name, items in producers.items():
            assert [one for one in got if one["by"] == name] == items


def test_a_pull_beside_a_push(rig, kind):
    """A port that pulls and one that is pushed to are joined by the same channel."""
    items = [item(number) for number in range(100)]
    got = applied(rig, kind, {"a": items}, "pushed", pulls=["pulled"])
    assert got["pushed"] == items
    if class_of(kind).pull_mode == "take":
        assert got["pulled"] == items


def test_pulling_takes_everything_once(rig, kind):
    """On a kind that passes items on, several pulling ports each get everything; on one that keeps them, they read."""
    items = [item(number) for number in range(100)]
    got = applied(rig, kind, {"a": items, "b": []}, pulls=["one", "other"])
    for found in got.values():
        if class_of(kind).pull_mode == "take":
            assert found == items
        else:
            assert all(one in items for one in found)


def test_punctuations_of_several_producers_are_merged(rig, kind):
    """Punctuations rise, each one is behind all that it speaks of, of every producer, and the end is last."""
    seen = []

    def source(name):
        @slet
        def numbers() -> Iterator[dict[str, Any] | Punctuation]:
            for number in range(50):
                yield item(number, name)
                yield Punctuation(number)

        return numbers

    @slet
    def sink(item: Any | Punctuation | EndOfStream) -> None:
        seen.append(item)

    app = Application("merged")
    channel = app.channel("c", kind=class_of(kind).kind, **KINDS[kind])
    for name in "ab":
        app.add(name, source(name), out=channel)
    app.add("sink", sink, item=channel)
    rig.run(app)
    times = [mark.time for mark in seen if isinstance(mark, Punctuation)]
    assert times == sorted(set(times))
    assert times[-1] == 49
    assert seen[-1] == EndOfStream()
    for at, mark in enumerate(seen):
        if isinstance(mark, Punctuation):
            before = flat(one for one in seen[:at] if not isinstance(one, Punctuation))
            for name in "ab":
                assert sum(one["by"] == name for one in before) >= mark.time + 1


def test_it_can_be_read_and_pushed_into_by_different_threads(channel):
    """Whoever reads what a channel keeps, or its figures, does not disturb those who push."""
    stop, broken = threading.Event(), []

    def look():
        try:
            while not stop.is_set():
                channel.metrics()
                channel.read("log0.item")
                channel.capture()
                if channel.kind == "table":
                    assert all(row["by"] == "a" for row in channel.find(by="a"))
                    channel.delete(0)
        except Exception as error:  # noqa: BLE001 (shown below)
            broken.append(error)

    with threads_leave(), Running(channel, Log()) as running:
        looking = threading.Thread(target=look)
        looking.start()
        for number in range(500):
            running.entry.push(item(number))
        running.arrives(*(item(number) for number in range(500)))
        stop.set()
        looking.join(PATIENCE)
    assert not broken


@pytest.mark.parametrize("kind", ["queue", "window", "latch", "table", "log"])
def test_what_is_kept_can_be_exchanged(kind):
    """Every item that is kept is replaced, in its place; control items stay."""
    settings = {"window": {"count": 10}, "queue": {}}.get(kind, KINDS[kind])
    channel = class_of(kind)("c", **settings)
    entry = channel.entry([Outlet("port", Log().entry)])
    for number in range(3):
        entry.push(item(number))
    entry.push_batch(Batch([item(3), item(4)]))

    def replaced(one: Any) -> Any:
        return Batch(map(replaced, one)) if isinstance(one, list) else {**one, "by": "b"}

    held = repr(channel.capture())
    assert held.count("'by': 'a'") == 5
    channel.exchange(replaced)
    assert repr(channel.capture()) == held.replace("'by': 'a'", "'by': 'b'")
    channel.close()


def test_what_waits_in_a_queue_can_be_exchanged_while_more_comes():
    """The driver that fills it need not be parked; what comes meanwhile is not exchanged."""
    channel = class_of("queue")("c")
    entry = channel.entry([Outlet("port", Log().entry)])
    entry.push(1)
    entry.push_batch([2, 3])

    def replaced(one: Any) -> Any:
        entry.push(9)
        return 0

    channel.exchange(replaced)
    assert channel.capture()["entries"] == [("push", 0), ("push_batch", 0), ("push", 9), ("push", 9)]


# What the wiring asks of a boundary between drivers.


@pytest.fixture(params=[kind for kind in KINDS if issubclass(class_of(kind), Buffered)])
def boundary(request):
    """A buffered channel with room for three items, and its way in."""
    channel = made(request.param)
    assert channel.capacity == 3
    yield channel, channel.entry([Outlet("log0.item", Log().entry)])
    channel.close()


def test_a_boundary_counts_what_waits_and_what_was_taken(boundary):
    """The depth counts items and control items; the cursor grows by what is taken, whatever that is."""
    channel, entry = boundary
    assert not channel.entries
    entry.push_batch([item(0), item(1)])
    entry.control(Punctuation(1))
    assert (channel.depth, channel.cursor, bool(channel.entries)) == (3, 0, True)
    channel.take(10)
    assert (channel.depth, channel.cursor) == (1, 2)
    channel.take(10)
    assert (channel.depth, channel.cursor, bool(channel.entries)) == (0, 3, False)


def test_a_boundary_is_drained_by_its_worker_alone(boundary):
    """A driver to which it does not belong any more delivers nothing of it."""
    channel, entry = boundary
    before, after = Worker("before"), Worker("after")
    before.serve((channel,))
    entry.push(item(0))
    after.serve((channel,))
    assert channel.drain(before, 10) == 0
    assert channel.depth == 1


def test_what_is_put_first_comes_before_what_waits(boundary):
    """Entries as `capture` gives them go back in front, in their order."""
    channel, entry = boundary
    entry.push(item(0))
    entry.control(Punctuation(0))
    held = channel.capture()["entries"]
    channel.clear()
    entry.push(item(1))
    channel.put_first(held)
    assert channel.capture()["entries"] == [*held, ("push", item(1))]


def test_a_driver_waits_at_a_full_boundary_until_something_is_taken(boundary):
    """What was pushed first is there, nothing is dropped, and the status tells where the driver waits."""
    channel, entry = boundary
    driver = driven(lambda _: [entry.push(item(number)) for number in range(5)])
    eventually(lambda: driver.waits_at is channel)
    assert channel.depth == 3
    assert channel.take(1) == [item(0)]
    eventually(lambda: channel.depth == 3)
    assert channel.take(3) == [item(1), item(2), item(3)]
    finished(driver)
    assert channel.take(3) == [item(4)]
    assert driver.waits_at is None


def test_a_driver_that_is_to_park_does_not_wait_at_a_full_boundary(boundary):
    """It puts in what it has in hand, beyond the capacity."""
    channel, entry = boundary
    driver = driven(lambda _: [entry.push(item(number)) for number in range(4)])
    eventually(lambda: driver.waits_at is channel)
    driver.close()
    eventually(lambda: channel.depth == 4)
    driver.open()
    finished(driver)


def test_a_boundary_that_its_taker_has_left_keeps_no_one_out(boundary):
    """What waits is dropped, and what comes does not fill it."""
    channel, entry = boundary
    driver = driven(lambda _: [entry.push(item(number)) for number in range(50)])
    eventually(lambda: driver.waits_at is channel)
    channel.leave()
    finished(driver)
    assert channel.depth <= channel.capacity
