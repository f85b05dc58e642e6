"""The ports of running slets: pushed items leave after the method, pulled ones are taken in order and once."""

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from exop import Application, Batch, EndOfStream, InputPort, OutputPort, Punctuation, Slet, input_port, slet
from exop.model.slets.slet import spec_of
from exop.runtime.channels.base import DirectChannel
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.lifecycle import State
from exop.runtime.ports import PulledInput
from exop.stock.slets import count_up
from tests.rig import PATIENCE, Gate, collector, eventually, line, marked, parked, seeing, source_of


def test_control_items_and_batches_can_be_pushed_by_a_further_port(rig):
    """A port typed for batches sends a pushed list as a batch; punctuations keep their place."""
    seen = []

    class Splitting(Slet):
        more: OutputPort[Batch[int] | Punctuation]

        @input_port
        def item(self, item: int) -> None:
            """Push a batch and a punctuation."""
            self.more.push(Batch([item, item]))
            self.more.push(Punctuation(item))

    app = line("kinds", numbers=(count_up, {"to": 2}), it=Splitting)
    app.add("more", seeing(seen), item=app.output("it", "more"))
    rig.run(app)
    assert seen == [0, 0, Punctuation(0), 1, 1, Punctuation(1), EndOfStream()]


def pulled(rig, items, body, **channel):
    """Run a slet that pulls: *body* gets the port and a list."""
    seen = []

    @slet
    def puller(item: InputPort[Any]) -> Iterator[Any]:
        yield from body(item, seen)

    app = Application("pulled")
    at = app.channel("between", **channel) if channel else None
    given = {"out": at} if at else {}
    at = app.add("source", source_of(items), **given)
    app.add("sink", collector([]), item=app.add("puller", puller, item=at))
    rig.run(app)
    return seen


@pytest.mark.parametrize("kind", ["direct", "queue", "log"])
def test_iterating_a_port_takes_everything_until_the_end(rig, kind):
    """On every kind that passes items on, a pull takes the next ones."""

    def body(port, seen):
        for item in port:
            seen.append(item)
            yield item

    assert pulled(rig, range(100), body, kind=kind) == list(range(100))


def test_a_pull_returns_at_most_so_many_and_nothing_after_the_end(rig):
    """With `wait` there is at least one item, unless the stream has ended."""

    def body(port, seen):
        while items := port.pull(3):
            seen.append(items)
            yield None
        seen.append(port.pull(3))
        seen.append(port.pull(3, wait=False))

    sizes = pulled(rig, range(10), body)
    assert sizes[-2:] == [[], []]
    assert all(1 <= len(items) <= 3 for items in sizes[:-2])
    assert [item for items in sizes for item in items] == list(range(10))


def test_without_waiting_a_pull_returns_what_there_is(rig):
    """`wait=False` on an empty queue is an empty list, not an end."""
    gate = Gate()

    @slet
    def source() -> Iterator[int]:
        gate.pass_through()
        yield 1

    seen = []

    @slet
    def puller(item: InputPort[int]) -> None:
        seen.append(item.pull(wait=False))
        gate.open()
        seen.append(item.pull())

    rig.run(line("waitless", source=source, puller=puller))
    assert seen == [[], [1]]


def test_batches_are_cut_and_columns_become_rows(rig):
    """A pull is of items, whatever form they were pushed in."""

    @slet
    def source() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"x": [1, 2, 3]})

    seen = []

    @slet
    def puller(item: InputPort[dict[str, int]]) -> None:
        while items := item.pull(2):
            seen.append(items)

    rig.run(line("rows", source=source, puller=puller))
    assert seen == [[{"x": 1}, {"x": 2}], [{"x": 3}]]


def test_a_punctuation_goes_on_only_behind_what_was_pulled_before_it(rig):
    """Past a slet that pulls and does not see it, it is forwarded when everything before it has been dealt with."""
    seen = []

    @slet
    def puller(item: InputPort[int]) -> Iterator[int]:
        while items := item.pull(100):
            for one in items:
                yield one * 10

    rig.run(line("punctuated", source=marked(1, 2, Punctuation(2), 3), puller=puller, sink=seeing(seen)))
    assert seen == [10, 20, Punctuation(2), 30, EndOfStream()]


def test_a_pulling_slet_sees_control_items_that_its_type_names(rig):
    """Named in the port's type, they are items; the slet decides what leaves."""
    seen = []

    @slet
    def puller(item: InputPort[int | Punctuation | EndOfStream]) -> None:
        seen.extend(item)

    rig.run(line("seeing", source=marked(1, Punctuation(1)), puller=puller))
    assert seen == [1, Punctuation(1), EndOfStream()]


def test_a_punctuation_that_is_refused_downstream_does_not_break_the_slet_that_pulls(rig):
    """The slet behind it may be suspended on the punctuation: it waits in its pull, and continues."""
    seen, bad = [], [Punctuation(1)]

    @slet
    def puller(item: InputPort[int]) -> Iterator[int]:
        yield from item

    @slet
    def sink(item: int | Punctuation | EndOfStream) -> None:
        if item in bad:
            bad.remove(item)
            raise ValueError("bad")
        seen.append(item)

    deployment = rig.deploy(line("refused", source=marked(1, Punctuation(1), 2), puller=puller, sink=sink))
    eventually(lambda: deployment.components["sink"].status is State.FAILED)
    with parked(deployment):
        pass
    deployment.components["sink"].resume()
    assert deployment.wait(PATIENCE)
    assert seen == [1, Punctuation(1), 2, EndOfStream()]


def test_a_slet_looks_things_up_in_a_channel_that_keeps_them(rig):
    """A port that pulls a table reads it, and reaches its further methods; its end does not wait for the table's."""
    seen = []

    class Enrich(Slet):
        prices: InputPort[dict[str, Any]]

        @input_port
        def order(self, name: str) -> None:
            """Look up."""
            seen.append((name, self.prices.get(name), len(self.prices.pull())))

    prices_in = Gate(closed=True)

    @slet
    def prices() -> Iterator[dict[str, Any]]:
        yield {"name": "tea", "price": 3}
        prices_in.open()
        eventually(lambda: seen)

    @slet
    def orders() -> Iterator[str]:
        prices_in.pass_through()
        yield "tea"

    app = Application("lookup")
    table = app.channel("table", kind="table", key="name")
    app.add("prices", prices, out=table)
    app.add("enrich", Enrich, order=app.add("orders", orders), prices=table)
    rig.run(app)
    assert seen == [("tea", {"name": "tea", "price": 3}, 1)]


def test_iterating_a_channel_that_keeps_things_reads_it_once(rig):
    """A content is no stream: iterating the port yields the items of now, and ends."""
    seen, ready = [], Gate()

    @slet
    def source() -> Iterator[int]:
        yield 1
        ready.open()

    @slet
    def reader(item: InputPort[int]) -> None:
        ready.pass_through()
        eventually(item.pull)
        seen.extend(item)

    app = Application("reading")
    latch = app.channel("latch", kind="latch")
    app.add("source", source, out=latch)
    app.add("reader", reader, item=latch)
    rig.run(app)
    assert seen == [1]


def test_a_slet_that_is_pushed_to_takes_from_another_port_without_waiting(rig):
    """It takes the items there at each tick, and ends with the pushed stream: no driver waits for room there then."""
    seen = []

    class Ticked(Slet):
        data: InputPort[int]

        @input_port
        def tick(self, tick: int) -> None:
            """Take what is there."""
            seen.extend(self.data.pull(5))

    app = Application("ticked")
    small = app.channel("small", kind="queue", capacity=2)
    app.add("data", count_up, to=1000, out=small)
    app.add("it", Ticked, tick=app.add("ticks", count_up, to=10), data=small)
    rig.run(app)
    assert seen == list(range(len(seen)))


def test_a_slet_that_has_pulled_enough_lets_its_source_go_on(rig):
    """A puller that ends early drops what comes after: no driver waits for room in its queue for ever."""
    seen = []

    @slet
    def three(item: InputPort[int]) -> Iterator[int]:
        for one, _ in zip(item, range(3), strict=False):
            yield one

    app = Application("limit")
    small = app.channel("small", kind="queue", capacity=1)
    app.add("numbers", count_up, to=5000, out=small)
    app.add("sink", collector(seen), item=app.add("three", three, item=small))
    rig.run(app)
    assert seen == [0, 1, 2]


def test_what_an_engine_pushes_is_counted_where_one_thread_at_a_time_is(rig):
    """Several threads push by one port: each item is counted before anybody sees it, and none is missed."""
    seen = []

    class Engine(Slet, own_driver=True):
        out: OutputPort[int]

        def __enter__(self):
            self.threads = [threading.Thread(target=self.push_all) for _ in range(4)]
            self.last = threading.Thread(target=self.end_all)
            for thread in (*self.threads, self.last):
                thread.start()
            return self

        def push_all(self):
            for _ in range(250):
                self.out.push(1)

        def end_all(self):
            for thread in self.threads:
                thread.join()
            self.out.end()

    @slet
    def look(item: int) -> None:
        seen.append(deployment.components["engine"].outputs["out"].rows)

    mesh = line("counted", engine=Engine, look=look).build()
    deployment = rig.deploy(mesh.suspend("look"))
    rig.resume(deployment, "look")
    assert deployment.wait(PATIENCE)
    assert seen == list(range(1, 1001))


def test_a_queue_of_before_is_kept_while_it_holds_something_and_is_not_connected_again():
    """Connected again, as by a change that is undone, it is there once."""

    @slet
    def taking(items: InputPort[int]) -> Iterator[int]:
        yield from items

    (spec,) = spec_of(taking).inputs
    port = PulledInput(spec, "taking.items", None, lambda *_: None)
    channel, old, new = DirectChannel("c"), QueueChannel("old"), QueueChannel("new")
    port.connect(channel, old)
    port.connect(channel, new)
    assert port.earlier == []
    port.connect(channel, old)
    old.put_first([("push", 1)])
    port.connect(channel, new)
    assert port.earlier == [old]
    port.connect(channel, old)
    assert (port.queue, port.earlier) == (old, [])


def test_a_method_that_the_channel_lacks_is_named_with_the_channel():
    """A slet that looks rows up, connected to a channel that keeps none."""

    @slet
    def looking(rows: InputPort[int]) -> Iterator[int]:
        yield from rows

    (spec,) = spec_of(looking).inputs
    port = PulledInput(spec, "looking.rows", None, lambda *_: None)
    port.connect(DirectChannel("c"), None)
    with pytest.raises(
        AttributeError, match=r"looking\.rows reads the direct channel 'c', which has no 'get'; connect"
    ):
        _ = port.get
