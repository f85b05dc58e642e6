"""Applications across two hosts: the fragments run on two platforms, joined by a connection within the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from exop import Application, Batch, EndOfStream, InputPort, Punctuation, Slet, input_port, slet
from exop.model.meshes.fragments import fragments
from tests.rig import PATIENCE, Rig, collector, eventually, source_of
from tests.runtime.channels.wires import PairedWires, payloads


@contextmanager
def hosts():
    """Two platforms, `a` and `b`, and the connection between them."""
    rigs = {"a": Rig(), "b": Rig()}
    with PairedWires() as wires:
        rigs["a"].manager.wires, rigs["b"].manager.wires = {"b": wires.a}, {"a": wires.b}
        for name, rig in rigs.items():
            rig.deployer._host = name
        try:
            yield rigs, wires
        finally:
            for rig in rigs.values():
                rig.close()


def ran(app, rigs, **hosts):
    """Run an application at home on `a`, with some nodes and channels on other hosts, to its end."""
    mesh = app.build()
    nodes = {name: replace(mesh.nodes[name], host=host) for name, host in hosts.items() if name in mesh.nodes}
    channels = {name: replace(mesh.channels[name], host=host) for name, host in hosts.items() if name in mesh.channels}
    parts = fragments(mesh.edited(nodes, channels), "a", kinds=rigs["a"].manager.kinds)
    running = [rigs[host].deploy(parts[host]) for host in sorted(parts, reverse=True)]
    for one in running:
        assert one.wait(PATIENCE)
    return running


@pytest.mark.parametrize("at", ["a", "b"])
def test_a_stream_crosses_from_host_to_host(at):
    """Wherever the channel is, the sink on the other host receives everything once, in order, and its end."""
    seen: list[Any] = []
    app = Application("crossing")
    channel = app.channel("c", kind="queue")
    app.add("numbers", source_of(range(5000)), out=channel)
    app.add("sink", collector(seen), item=channel)
    with hosts() as (rigs, _):
        ran(app, rigs, sink="b", c=at)
    assert seen == list(range(5000))


def started(app, rigs, **hosts):
    """Begin to run an application, and return its deployments by host."""
    mesh = app.build()
    nodes = {name: replace(mesh.nodes[name], host=host) for name, host in hosts.items() if name in mesh.nodes}
    parts = fragments(mesh.edited(nodes, {}), "a", kinds=rigs["a"].manager.kinds)
    return {host: rigs[host].deploy(parts[host]) for host in sorted(parts, reverse=True)}


@pytest.mark.parametrize("mode", ["sync", "async", "offline"])
def test_every_mode_delivers_everything_across_a_network_that_fails(mode):
    """The connection is lost again and again while a stream crosses with lists, columns and punctuations."""
    seen: list[Any] = []

    @slet
    def source() -> Iterator[Batch[int] | Punctuation]:
        for number in range(100):
            yield Batch(range(3 * number, 3 * number + 3))
            yield Punctuation(number)

    @slet
    def sink(item: int | Punctuation | EndOfStream) -> None:
        seen.append(item)

    app = Application("failing")
    app.add("sink", sink, item=app.add("source", source, out=app.channel("c", connector={"mode": mode, "capacity": 8})))
    with hosts() as (rigs, wires):
        running = started(app, rigs, sink="b")
        while not running["b"].wait(0.002):
            wires.lose()
            wires.heal()
        assert running["a"].wait(PATIENCE)
        eventually(lambda: not running["a"].channels["c.to.b"].unacknowledged, "the last acknowledgement")
    expected = [one for n in range(100) for one in (3 * n, 3 * n + 1, 3 * n + 2, Punctuation(n))]
    assert seen == [*expected, EndOfStream()]


def test_the_producer_of_an_item_that_cannot_be_sent_fails_at_it():
    """Its policy counts: the item is set aside at the producer, with the channel named, and the others cross."""
    seen: list[Any] = []

    @slet(on_error="dead-letter")
    def opaque(item: int) -> Any:
        return object() if item == 2 else item

    app = Application("refusing")
    numbers = app.add("numbers", source_of(range(5)))
    app.add("sink", collector(seen), item=app.add("opaque", opaque, item=numbers))
    with hosts() as (rigs, _):
        running = started(app, rigs, sink="b")
        assert running["b"].wait(PATIENCE)
        dead = running["a"].components["opaque"].trouble.dead
        assert [letter.port for letter in dead] == ["out"]
        assert "cannot be stored" in dead[0].error
    assert seen == [0, 1, 3, 4]


@pytest.mark.parametrize("kind", ["direct", "queue"])
def test_a_producer_on_the_other_side_of_the_relay_is_suspended_and_resumed(kind):
    """The item waits before the outbox; when the producer is resumed, it is tried again."""
    seen: list[Any] = []
    items: list[Any] = [0, {"a": object()}, 2]

    app = Application("resumed")
    app.add("sink", collector(seen), item=app.add("items", source_of(items), out=app.channel("c", kind=kind)))
    with hosts() as (rigs, _):
        running = started(app, rigs, sink="b")
        component = running["a"].components["items"]
        eventually(lambda: component.trouble.kept is not None, "the suspension")
        items[1]["a"] = 1
        component.resume()
        assert running["b"].wait(PATIENCE)
    assert seen == [0, {"a": 1}, 2]


def test_an_item_on_which_a_slet_is_suspended_is_not_done():
    """The outbox stores it until the slet has returned; the items before it are acknowledged."""
    seen: list[Any] = []
    fails = [True]

    @slet
    def failing(item: int) -> None:
        if item == 3 and fails:
            raise ValueError("not yet")
        seen.append(item)

    app = Application("suspended")
    app.add("failing", failing, item=app.add("numbers", source_of(range(6)), out=app.channel("c", kind="queue")))
    with hosts() as (rigs, wires):
        running = started(app, rigs, failing="b")
        outbox, component = running["a"].channels["c.to.b"], running["b"].components["failing"]
        eventually(lambda: component.trouble.kept is not None, "the suspension")
        wires.lose()
        wires.heal()  # the inbox reports again
        eventually(lambda: outbox.metrics()["state"] == "connected")
        assert outbox.metrics()["acknowledged"] <= 3
        assert ("push", 3) in payloads(outbox)
        fails.clear()
        component.resume()
        assert running["b"].wait(PATIENCE)
        eventually(lambda: not running["a"].channels["c.to.b"].unacknowledged, "the last acknowledgement")
    assert seen == [*range(6)]


def test_a_slow_reader_makes_the_source_on_the_other_host_wait():
    """Memory is bounded by both capacities: the source stops, and goes on when the reader does."""
    gate, taken = threading.Event(), []
    pushed = []

    @slet
    def slow(item: int) -> None:
        assert gate.wait(PATIENCE)
        taken.append(item)

    @slet
    def source() -> Iterator[int]:
        for number in range(200):
            pushed.append(number)
            yield number

    app = Application("slow")
    app.add("slow", slow, item=app.add("source", source, out=app.channel("c", connector={"capacity": 8})))
    with hosts() as (rigs, _):
        running = started(app, rigs, slow="b")
        outbox = running["a"].channels["c.to.b"]
        eventually(lambda: outbox.depth == 8, "a full outbox")
        source_driver = running["a"].components["source"].driver
        eventually(lambda: source_driver.waits_at is outbox, "a source that waits")
        assert len(pushed) < 20
        gate.set()
        assert running["b"].wait(PATIENCE)
    assert taken == [*range(200)]


def test_a_port_that_pulls_takes_from_the_inbox():
    """What it has taken is done when it comes back for more."""
    seen: list[Any] = []

    @slet
    def pull(item: InputPort[int]) -> None:
        seen.extend(item)

    app = Application("pulling")
    app.add("pull", pull, item=app.add("numbers", source_of(range(500)), out=app.channel("c", kind="queue")))
    with hosts() as (rigs, _):
        running = started(app, rigs, pull="b")
        assert running["b"].wait(PATIENCE)
        eventually(lambda: not running["a"].channels["c.to.b"].unacknowledged, "the last acknowledgement")
    assert seen == [*range(500)]


def test_rows_from_another_host_wait_for_a_batch_of_the_useful_size():
    """The credit of the sender does not run out meanwhile; the end of the stream delivers the rest."""
    batches: list[int] = []

    class Gathers(Slet):
        max_wait: float = 3600.0
        gathers = 4

        @input_port
        def rows(self, rows: Batch[int]) -> None:
            batches.append(len(rows))

    app = Application("gathering")
    numbers = app.channel("c", connector={"capacity": 8})
    app.add("gathers", Gathers, rows=app.add("numbers", source_of(range(30)), out=numbers))
    with hosts() as (rigs, _):
        ran(app, rigs, gathers="b")
    assert batches == [4] * 7 + [2]
