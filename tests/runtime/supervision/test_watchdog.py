"""An item that takes longer than its slet's time-out is reported: which slet, since when, and where it is."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from exop import Application, Batch, EndOfStream, InputPort, Memento, OutputPort, Platform, Slet, input_port, slet
from exop.errors import PlanError
from exop.model.filter import where
from exop.model.properties import HANGS, NAME
from exop.runtime.lifecycle import State
from exop.runtime.supervision import watchdog
from exop.runtime.supervision.budget import UserCalls
from exop.runtime.supervision.watchdog import Sampler, Visibility, Watchdog, probe_stack
from tests.change.tools import chain, changed, count_to, end, finish, plain, writing
from tests.rig import PATIENCE, Gate, eventually, threads_leave


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """What it shows."""
        return self.now


class Count(Memento):
    """A state."""

    number: int = 0


@pytest.fixture
def platform():
    """A platform; all its threads leave."""
    with threads_leave(), Platform() as made:
        yield made


def waits_at_three(gate: Gate, x: int) -> None:
    """Go through the gate with the third item."""
    if x == 3:
        gate.pass_through()


def function(gate: Gate) -> Any:
    """A function."""

    @slet
    def b(x: int) -> int:
        waits_at_three(gate, x)
        return x

    return b


def stateful(gate: Gate) -> Any:
    """A function with a state, atomic."""

    @slet(atomic=True)
    def b(x: int, count: Count) -> int:
        count.number += 1
        waits_at_three(gate, x)
        return x

    return b


def generator(gate: Gate) -> Any:
    """A generator."""

    @slet
    def b(x: int) -> Iterator[int]:
        yield x
        waits_at_three(gate, x)

    return b


def batch(gate: Gate) -> Any:
    """A slet that takes lists."""

    @slet
    def b(x: Batch[int]) -> Batch[int]:
        for one in x:
            waits_at_three(gate, one)
        return Batch(x)

    return b


def method(gate: Gate) -> Any:
    """A class with a further port."""

    class B(Slet):
        further: OutputPort[int]

        @input_port
        def x(self, x: int) -> int:
            waits_at_three(gate, x)
            return x

    return B


def pulling(gate: Gate) -> Any:
    """A slet that pulls."""

    @slet
    def b(x: InputPort[int]) -> Iterator[int]:
        for one in x:
            waits_at_three(gate, one)
            yield one

    return b


def behind_an_engine(gate: Gate) -> Any:
    """A slet with a driver of its own, and what it pushes into hangs."""

    class B(Slet, own_driver=True):
        out: OutputPort[int]

        @input_port
        def x(self, x: int | EndOfStream) -> None:
            if isinstance(x, EndOfStream):
                self.out.end()
                return
            waits_at_three(gate, x)
            self.out.push(x)

    return B


SHAPES = [function, stateful, generator, batch, method, pulling, behind_an_engine]


@pytest.mark.parametrize("shape", SHAPES, ids=[one.__name__ for one in SHAPES])
def test_who_hangs(platform, shape):
    """Whatever the shape: the node, how long, how many items, and the line; and that it goes on afterwards."""
    gate, clock, seen = Gate(), Clock(), list[int]()
    dog = Watchdog(clock)
    platform.apply(chain("app", count_to, shape(gate), writing(seen), a={"to": 5}, b={"timeout": 5.0}).build())
    deployment = platform.deployment("app")

    def look() -> None:
        dog.look(deployment.components, deployment.drivers())

    gate.somebody_waits()
    for seconds in (0, 1, 3.9):
        clock.now += seconds
        look()
        assert platform.status("app")["state"] == "running"
    clock.now += 0.2
    look()
    status = platform.status("app")
    hang = status["nodes"]["b"]["hang"]
    assert status["state"] == "hangs"
    assert 5 <= hang["seconds"] < 5.2
    assert hang["items"] >= (1 if shape is batch else 3)
    assert "waits_at_three(gate, " in hang["stack"]
    assert "pass_through" in hang["stack"]
    assert "exop/runtime" not in hang["stack"]
    assert [one.properties[NAME] for one in platform.registry.find("Slet", where({HANGS: True}))] == ["b"]
    assert "hang" not in status["nodes"]["c"]
    gate.open()
    finish(platform, "app")
    look()
    assert "hang" not in platform.status("app")["nodes"]["b"]
    assert platform.registry.find("Slet", where({HANGS: True})) == []
    assert seen == [1, 2, 3, 4, 5]


def test_one_slet_in_two_nodes(platform):
    """The same function behind itself: the node that hangs is named, not its twin."""
    gate = Gate()

    @slet
    def b(x: int) -> int:
        if threading.current_thread().name.startswith("exop") and x == 13:
            gate.pass_through()
        return x + 10

    platform.apply(chain("app", count_to, b, b, writing([]), a={"to": 5}).build())
    deployment = platform.deployment("app")
    gate.somebody_waits()
    found = probe_stack(list(deployment.components.values()), deployment.components["a"].driver)
    assert found.component.node.name == "c"
    gate.open()
    finish(platform, "app")


def test_waiting_for_room_is_no_hanging(platform):
    """Who waits for a full queue, or for a suspended slet, is not reported."""
    gate, clock = Gate(), Clock()
    dog = Watchdog(clock)

    @slet
    def slow(x: int) -> None:
        gate.pass_through()

    app = Application("app")
    numbers = app.add("a", count_to, to=5)
    queue = app.channel("queue", kind="queue", capacity=1)
    app.add("b", plain, x=numbers, out=queue, timeout=1.0)
    app.add("c", slow, x=queue)
    platform.apply(app.build())
    deployment = platform.deployment("app")
    gate.somebody_waits()
    eventually(lambda: deployment.channels["queue"].depth == 1)
    for _ in range(3):
        dog.look(deployment.components, deployment.drivers())
        clock.now += 10
    assert platform.status("app")["state"] == "running"
    gate.open()
    finish(platform, "app")


def test_items_that_take_their_time_are_no_hanging(platform):
    """In a batch every item has the whole time-out; between two looks, others have begun."""
    gates = [Gate() for _ in range(4)]
    clock, seen = Clock(), list[int]()
    dog = Watchdog(clock)

    @slet
    def batches() -> Iterator[Batch[int]]:
        yield Batch([0, 1, 2, 3])

    @slet(timeout=5.0)
    def slow(x: int) -> int:
        gates[x].pass_through()
        return x

    platform.apply(chain("app", batches, slow, writing(seen)).build())
    deployment = platform.deployment("app")
    for gate in gates:
        gate.somebody_waits()
        dog.look(deployment.components, deployment.drivers())
        clock.now += 2
        dog.look(deployment.components, deployment.drivers())
        clock.now += 2
        gate.open()
    finish(platform, "app")
    assert deployment.components["b"].trouble.hang is None
    assert seen == [0, 1, 2, 3]


def test_the_platform_looks_by_itself(platform, capsys):
    """A log line says who hangs, where, and what to do; another one that it goes on."""
    told = ""

    def heard(words: str) -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return words in told

    gate = Gate()
    platform.apply(chain("app", count_to, function(gate), writing([]), a={"to": 5}, b={"timeout": 0.1}).build())
    eventually(lambda: platform.status("app")["state"] == "hangs")
    eventually(lambda: heard("exop remove"))
    assert "app.b hangs: an item takes longer than 0.1 s" in told
    assert "pass_through" in told
    gate.open()
    eventually(lambda: heard("app.b no longer hangs"))
    finish(platform, "app")


def test_a_change_names_who_hangs(platform):
    """Draining is given up in time; the message has the slet and the line, and everything runs on as it was."""
    gate, seen = Gate(), list[int]()
    platform.apply(chain("app", count_to, function(gate), writing(seen), a={"to": 5}).build())
    gate.somebody_waits()
    mesh = platform.mesh("app")
    with pytest.raises(PlanError, match=r"(?s)within 0\.05 s; everything runs on as it was.*b is at.*pass_through"):
        platform.apply(mesh.replace("c", writing([])), timeout=0.05)
    with pytest.raises(PlanError, match=r"within 0\.05 s"):
        platform.plan(mesh.replace("c", writing([]))).apply(timeout=0.05)
    gate.open()
    finish(platform, "app")
    assert seen == [1, 2, 3, 4, 5]


def test_a_setting_of_that_name_is_the_slets(platform):
    """A slet that has a setting `timeout` is given it; the decorator says the platform's then."""

    @slet(timeout=7)
    def fetch(x: int, *, timeout: float = 1.0) -> float:
        return timeout

    seen: list[float] = []
    app = chain("app", count_to, fetch, writing(seen), a={"to": 1}, b={"timeout": 3})
    mesh = app.build()
    assert (mesh.node("b").patience, mesh.node("b").settings["timeout"]) == (7, 3.0)
    platform.apply(mesh)
    finish(platform, "app")
    assert seen == [3.0]


def test_a_node_says_otherwise():
    """What an application says comes before what the slet says; 0 switches it off; a topology file keeps it."""

    @slet(timeout=7)
    def watched(x: int) -> None: ...

    for given, patience in ((None, 7), (2, 2), (0, None)):
        mesh = chain("app", count_to, watched, b={"timeout": given}).build()
        assert mesh.node("b").patience == patience
        assert ("timeout" in mesh.to_toml()) == (given is not None)


def test_a_change_of_the_time_out_is_no_replacement(platform):
    """It is noted while the stream runs; the slet stays the one it is."""
    from dataclasses import replace

    platform.apply(chain("app", count_to, plain, writing([]), a={"to": 10**9}).build())
    before = platform.deployment("app").components["b"]
    mesh = platform.mesh("app")
    edited = replace(mesh, nodes={**mesh.nodes, "b": replace(mesh.node("b"), timeout=4.0)})
    assert "adjust b: on_error=suspend, timeout=4.0" in str(platform.plan(edited))
    changed(platform, "app", lambda _: edited)
    assert platform.deployment("app").components["b"] is before
    assert before.node.patience == 4.0
    end(platform, "app")
    assert platform.wait("app", PATIENCE)


class Buffering:
    """As much of a component as visibility looks at: how far it has come, and how often it was made visible."""

    id, status, closed = "app/sink#1", State.ACTIVE, False
    name = "app.sink"

    def __init__(self) -> None:
        self.user = UserCalls()
        self.instance = self.runner = self
        self.count = self.rows = self.calls = 0
        self.error: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()

    def make_visible(self) -> None:
        """Count the call, and hang or fail."""
        self.calls += 1
        self.gate.wait(60)
        if self.error is not None:
            raise self.error


def test_output_is_made_visible_when_the_stream_rests():
    """Once after items have come; an idle stream is not looked after again within the second."""
    sink, visibility = Buffering(), Visibility(lambda: 5.0)
    for count, calls in ((0, 0), (3, 0), (3, 1), (3, 1), (4, 1), (4, 2), (4, 2)):
        sink.count = count
        visibility.look([sink])
        assert sink.calls == calls


def test_output_is_made_visible_every_second_while_items_come():
    """Also where the stream never rests."""
    now = 0.0
    sink, visibility = Buffering(), Visibility(lambda: now)
    for tick in range(100):
        now, sink.rows = tick * 0.05, tick
        visibility.look([sink])
    assert sink.calls == 4


def test_output_that_cannot_be_made_visible_is_logged_once(capsys):
    """The thread goes on with the others, and tells again when it has gone well in between."""
    now = 0.0
    bad, good, visibility = Buffering(), Buffering(), Visibility(lambda: now)
    good.id = "app/sink#2"
    for number, error in enumerate((OSError("full"), OSError("full"), None, SystemExit("full"))):
        now, bad.error = number * 2.0, error
        visibility.look([bad, good])
    assert good.calls == 3
    assert capsys.readouterr().err.count("buffered output could not be made visible") == 2


def test_a_slet_that_hangs_while_it_makes_its_output_visible_holds_up_nothing_else(monkeypatch):
    """The thread that looks goes on: with the other slets, the figures and the watchdog."""
    monkeypatch.setattr("exop.runtime.supervision.watchdog.VISIBLE_WITHIN", 0.01)
    now = 0.0
    hanging, good, visibility = Buffering(), Buffering(), Visibility(lambda: now)
    good.id = "app/sink#2"
    hanging.gate.clear()
    for _ in range(3):
        visibility.look([hanging, good])
        now += 2.0
    assert (hanging.calls, good.calls) == (1, 2)
    hanging.gate.set()


def test_output_is_made_visible_as_soon_as_there_can_be_a_thread(monkeypatch):
    """A shortage of threads does not end the looks at an application."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sink, visibility = Buffering(), Visibility(lambda: 5.0)
    for count in (0, 3):
        sink.count = count
        visibility.look([sink])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        visibility.look([sink])
    assert sink.calls == 0
    visibility.look([sink])
    assert sink.calls == 1


def test_applications_are_looked_at_as_soon_as_there_can_be_a_thread(monkeypatch):
    """The system had no thread for the first application: the next one tries again."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sampler, looked = Sampler(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            sampler.add(lambda: False)
    sampler.add(looked.set)  # returns None: once is enough
    assert looked.wait(PATIENCE)


def test_the_clock_stops_while_the_process_stands_still(monkeypatch):
    """An interval that takes far too long is no time that a slet has used."""
    now, looked = [1000.0], list[float]()
    lasts = iter([0.05, 73.0, 0.05])

    def sleep(_: float) -> None:
        now[0] += next(lasts)

    def look() -> bool:
        looked.append(sampler.clock())
        if len(looked) == 1:  # amid the calls; another thread goes on first
            now[0] += 50.0
            looked.append(sampler.clock())
        return len(looked) < 4

    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    sampler = Sampler()
    sampler._looks = [look]
    sampler._run()
    assert looked == pytest.approx([1000.05, 1000.05, 1000.05, 1000.1])
    now[0] += 50.0  # nothing is called any more: all time counts
    assert sampler.clock() == pytest.approx(1050.1)
