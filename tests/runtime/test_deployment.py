"""A running application: opening, starting, waiting, parking, stopping."""

import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from exop import Application, EndOfStream, Mesh, Platform, Slet, input_port, slet
from exop.errors import ComponentFailed, MeshError, PlanError
from exop.runtime.channels import queue as module
from exop.runtime.channels.log import LogChannel
from exop.runtime.deployment import REPLACED, Deployment
from exop.runtime.drivers.worker import POOL
from exop.runtime.lifecycle import State
from exop.runtime.supervision import failure_policy as failure
from exop.stock.slets import count_up
from tests.rig import PATIENCE, Gate, Takes, collector, eventually, line, rests, same, threads_leave


def test_slets_are_opened_side_by_side(rig):
    """Slow openings do not add up: each of these waits until all of them are opening."""
    barrier = threading.Barrier(4)

    class Slow(Takes):
        def __enter__(self) -> "Slow":
            barrier.wait(PATIENCE)
            return self

    app = Application("slow")
    at = app.add("numbers", count_up, to=3)
    for number in range(4):
        app.add(f"slow{number}", Slow, item=at)
    rig.run(app)


def test_sources_begin_when_every_slet_is_ready(rig):
    """A slow engine warms up while it opens: nothing is pushed before."""
    story = []

    class Slow(Slet):
        def __enter__(self) -> "Slow":
            story.append("opening")
            eventually(lambda: "source made" in story)
            story.append("ready")
            return self

        @input_port
        def item(self, item: int) -> None:
            """Take."""
            story.append(item)

    class Source(Slet):
        def __enter__(self) -> "Source":
            story.append("source made")
            return self

        def __iter__(self) -> Iterator[int]:
            story.append("source begins")
            yield 1

    rig.run(line("ready", source=Source, slow=Slow))
    assert story.index("ready") < story.index("source begins")


def test_one_that_cannot_be_opened_closes_the_others(rig):
    """The deployment fails with its node and reason, what was open is closed, nothing stays registered."""
    closed = []

    def opening(name, works):
        class Device(Takes):
            def __enter__(self) -> "Device":
                if not works:
                    raise OSError(f"no {name}")
                return self

            def __exit__(self, *exc: object) -> None:
                closed.append(name)

        return Device

    app = Application("devices")
    at = app.add("numbers", count_up)
    for name, works in (("one", True), ("two", False), ("three", True)):
        app.add(name, opening(name, works), item=at)
    with pytest.raises(ComponentFailed, match="two failed while opening: no two") as failed:
        rig.deploy(app)
    assert isinstance(failed.value.__cause__, OSError)
    assert sorted(closed) == ["one", "three"]
    assert not rig.registry.find(None, "(application=devices)")


def test_without_threads_to_open_them_slets_are_opened_one_after_the_other(rig, monkeypatch):
    """The process has no thread left for openers: the thread that deploys opens the slets, and none is forgotten."""
    opened = []

    class Device(Takes):
        def __enter__(self) -> "Device":
            opened.append(self)
            return self

    start = threading.Thread.start

    def exhausted(thread: threading.Thread) -> None:
        if thread.name.startswith("exop opener"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", exhausted)
    app = Application("exhausted")
    at = app.add("numbers", count_up, to=3)
    for name in "abc":
        app.add(name, Device, item=at)
    rig.run(app)
    assert len(opened) == 3


@pytest.mark.parametrize("error", [RuntimeError("odd"), SystemExit("odd")])
def test_a_slet_that_cannot_even_be_made_is_named(rig, error):
    """An error of a slet's own making is a failure of that component, not of the platform."""

    class Odd(Takes):
        def __post_init__(self) -> None:
            raise error

    app = line("odd", numbers=count_up, odd=Odd)
    with pytest.raises(ComponentFailed, match=f"odd failed while being made: {type(error).__name__}: odd"):
        rig.deploy(app)


def test_waiting_ends_when_everything_has_ended(rig):
    """Every component is `ended` then, and waiting again returns at once."""
    deployment = rig.deploy(line("ends", numbers=(count_up, {"to": 10}), same=same, sink=collector([])))
    assert deployment.wait(PATIENCE)
    assert deployment.wait(0)
    assert {component.status for component in deployment.components.values()} == {State.ENDED}


def test_waiting_ends_in_time(rig):
    """`False` when it has not finished by then."""
    deployment = rig.deploy(line("endless", numbers=count_up, sink=collector([])))
    assert not deployment.wait(0.01)
    deployment.end_sources()
    assert deployment.wait(PATIENCE)


@pytest.mark.parametrize("queued", [False, True], ids=["source", "worker"])
@pytest.mark.parametrize("how", ["resume", "replace"])
def test_a_driver_that_meets_a_defect_keeps_its_item(monkeypatch, how, queued):
    """It is shown as a failure of what the driver runs, with the item; a repair lets the stream go on, complete."""
    seen, poisoned = [], {3}

    def defect(*_):
        raise KeyError("a defect")

    @slet
    def careful(item: int) -> int:
        if item in poisoned:
            raise ValueError("three")
        return item

    app = Application("app")
    there = app.channel("there", "queue" if queued else "direct")
    app.add("numbers", count_up, to=5, out=there)
    app.add("sink", collector(seen), item=app.add("careful", careful, item=there))
    monkeypatch.setattr(failure, "_suspend", defect)
    with threads_leave(), Platform() as platform:
        platform.apply(app.build())
        deployment = platform.deployment("app")
        with pytest.raises(ComponentFailed, match="careful failed while running: KeyError: 'a defect'"):
            platform.wait("app", PATIENCE)
        assert platform.status("app")["state"] == "suspended"
        assert platform.kept_item("app", "careful").summary()["item"] == "3"
        monkeypatch.undo()
        poisoned.clear()
        if how == "resume":
            platform.resume("app", "careful")
        else:
            platform.apply(platform.mesh("app").replace("careful", same))
        assert platform.wait("app", PATIENCE)
        assert not deployment.crashed()
        nodes = platform.metrics("app")["nodes"]
    assert seen == [0, 1, 2, 3, 4]
    counts = [(node["items_in"], node["items_out"]) for node in nodes.values()]
    assert counts == [(0, 5), (5, 5), (5, 0)]


def test_a_cycle_that_produces_more_than_it_consumes_ends_a_wait(rig, monkeypatch):
    """Rule 5: a worker that would fill its own queue without end stops, naming the cycle."""
    monkeypatch.setattr(module, "SPILL", 100)

    @slet
    def doubling(item: int) -> Iterator[int]:
        yield item
        yield item

    app = Application("growing")
    back = app.channel("back", kind="queue", capacity=2)
    app.add("numbers", count_up, to=1, out=back)
    app.add("doubling", doubling, item=back, out=back)
    deployment = rig.deploy(app)
    with pytest.raises(ComponentFailed, match="queue 'back' produces more items than it consumes"):
        deployment.wait(PATIENCE)


def test_drivers_are_parked_from_upstream_to_downstream(rig):
    """Rule 4: what is upstream stops first, so that what it has sent is still taken."""
    app = Application("order")
    at = app.add("numbers", count_up)
    for number in range(3):
        queue = app.channel(f"q{number}", kind="queue")
        app.add(f"s{number}", same, item=at, out=queue)
        at = queue
    app.add("sink", collector([]), item=at)
    deployment = rig.deploy(app)
    names = [driver.name for driver in deployment.drivers()]
    assert names == ["order.numbers", "order q0", "order q1", "order q2"]


def test_stopping_leaves_at_safe_points_and_closes_every_slet(rig):
    """Threads have left, slets are closed; an item that was under way was finished."""
    closed, done = [], []

    class Sink(Slet):
        def __exit__(self, *exc: object) -> None:
            closed.append(len(done))

        @input_port
        def item(self, item: int) -> None:
            """Take."""
            done.append(item)

    deployment = rig.deploy(line("stop", numbers=count_up, sink=Sink))
    eventually(lambda: len(done) > 100)
    rig.undeploy(deployment)
    assert closed == [len(done)]
    assert done == list(range(len(done)))


@pytest.mark.parametrize("state", ["failed", "suspended", "full", "parked"])
def test_an_application_can_be_stopped_in_any_state(rig, state):
    """Suspended on an item, suspended by an operator, waiting for room, parked: its threads leave all the same."""

    @slet
    def refuses(item: int) -> None:
        raise ValueError("never")

    app = Application("stopped")
    queue = app.channel("queue", kind="queue", capacity=1)
    app.add("numbers", count_up, out=queue)
    app.add("sink", refuses if state == "failed" else collector([]), item=queue)
    mesh = app.build()
    deployment = rig.deploy(mesh.suspend("sink") if state in ("suspended", "full") else mesh)
    if state == "failed":
        eventually(lambda: deployment.failures())
    if state == "full":
        eventually(lambda: deployment.channels["queue"]._pushers)
    if state == "parked":
        for driver in deployment.drivers():
            driver.close()
    rig.undeploy(deployment)


def test_an_error_of_one_closing_does_not_keep_the_others_open(rig):
    """Each slet is closed; the one that failed is reported."""
    closed = []

    def closing(name, fails):
        class Device(Takes):
            def __exit__(self, *exc: object) -> None:
                closed.append(name)
                if fails:
                    raise OSError(f"{name} is jammed")

        return Device

    app = Application("closing")
    at = app.add("numbers", count_up, to=3)
    for name in ("one", "two", "three"):
        app.add(name, closing(name, name == "two"), item=at)
    deployment = rig.run(app)
    two = deployment.components["two"]
    rig.undeploy(deployment)
    assert sorted(closed) == ["one", "three", "two"]
    assert "jammed" in str(two.error)


def test_a_suspended_source_sends_nothing_until_it_is_resumed(rig):
    """Suspending an α-slet parks it, from the beginning or while it runs."""
    seen = []
    deployment = rig.deploy(line("source", numbers=count_up, sink=collector(seen)).build().suspend("numbers"))
    numbers = deployment.components["numbers"]
    assert rests(numbers.driver, PATIENCE)
    assert seen == []
    rig.resume(deployment, "numbers")
    eventually(lambda: seen)
    rig.suspend(deployment, "numbers")
    assert rests(numbers.driver, PATIENCE)
    before = len(seen)
    rig.resume(deployment, "numbers")
    eventually(lambda: len(seen) > before)
    so_far = list(seen)
    assert so_far == list(range(len(so_far)))


def test_the_end_of_the_stream_waits_in_front_of_a_suspended_slet(rig):
    """A suspended slet has not ended, however long its stream has; resumed, it sees everything and then ends."""
    seen = []
    app = Application("end")
    queue = app.channel("queue", kind="queue")
    app.add("numbers", count_up, to=5, out=queue)
    app.add("sink", collector(seen), item=queue)
    deployment = rig.deploy(app.build().suspend("sink"))
    eventually(lambda: deployment.components["numbers"].status is State.ENDED)
    assert not deployment.wait(0.01)
    assert deployment.components["sink"].status is State.SUSPENDED
    rig.resume(deployment, "sink")
    assert deployment.wait(PATIENCE)
    assert seen == [0, 1, 2, 3, 4]


def test_a_mesh_that_cannot_be_is_not_deployed(rig):
    """A deployment checks meshes as the builder does, since meshes come from files, too."""
    mesh = line("unfit", numbers=count_up).build()
    with pytest.raises(PlanError, match="no connection"):
        rig.deploy(mesh.move("numbers", to="edge-2"))
    with pytest.raises(MeshError):
        rig.deploy(mesh.remove("numbers"))


def test_idle_applications_of_many_queues_have_few_threads():
    """Threads: one per source and engine, as many as there are cores, and four at most; main is one of these."""
    gate, seen, before = Gate(), [], set(threading.enumerate())

    @slet
    def numbers() -> Iterator[int]:
        yield 1
        gate.pass_through()

    @slet
    def same_again(item: int) -> int:
        return item

    def row(name):
        app = Application(name)
        queues = [app.channel(f"queue{number}", kind="queue", capacity=1) for number in range(50)]
        app.add("numbers", numbers, out=queues[0])
        for number, (queue, following) in enumerate(itertools.pairwise(queues)):
            app.add(f"step{number}", same_again, item=queue, out=following)
        app.add("sink", collector(seen), item=queues[-1])
        return app.build()

    with threads_leave(), Platform() as platform:
        for name in ("one", "two", "three"):
            platform.apply(row(name))
            gate.somebody_waits()
            assert len(platform.deployment(name).workers) == 50
        eventually(lambda: seen == [1, 1, 1])
        eventually(lambda: len({*threading.enumerate()} - before) + 1 <= 3 + POOL.size + 4)
        gate.open()


def test_an_application_that_was_closed_is_finished_and_is_over_only_when_all_have_ended():
    """A slet that was stopped does nothing more, but its stream has not ended."""
    found = []
    deployment = Deployment(Mesh("one"))
    node = SimpleNamespace(name="one", patience=None)
    one = SimpleNamespace(status=State.ACTIVE, driver=None, pullers=[], node=node, instance=None, closed=False)
    deployment.over = lambda: found.append(one.status)
    for status, over, finished in (
        (State.ACTIVE, [], False),
        (State.STOPPED, [], True),
        (State.ENDED, [State.ENDED], True),
    ):
        one.status = status
        deployment.place({"one": one}, ["one"])
        deployment.check_finished()
        assert (found, deployment.finished.is_set()) == (over, finished)


def test_a_state_that_changes_while_its_component_is_replaced_is_not_that_of_the_successor():
    """The application is finished when the successor has ended, whatever its predecessor was."""
    deployment, placing = Deployment(Mesh("one")), []
    node = SimpleNamespace(name="one", patience=None)
    old, new = (
        SimpleNamespace(status=status, driver=None, pullers=[], node=node, instance=None, closed=False)
        for status in (State.ACTIVE, State.ENDED)
    )

    class Replaced(dict[str, SimpleNamespace]):
        def get(self, name: str) -> SimpleNamespace | None:  # type: ignore[override]
            found = super().get(name)
            if not placing:
                placing.append(threading.Thread(target=deployment.place, args=({"one": new}, ["one"])))
                placing[0].start()
                placing[0].join(0.1)  # it waits until the state is noted
            return found

    deployment.place(Replaced(one=old), ["one"])
    deployment.changed(old)
    placing[0].join(PATIENCE)
    deployment.check_finished()
    assert deployment.finished.is_set()


def test_an_application_has_finished_when_a_channel_without_consumers_has_stored_the_last_item(rig, monkeypatch):
    """The sources have ended; the queue where they meet, in front of the log, still has items."""
    gate, keep, stored = Gate(), LogChannel._keep, []

    def slowly(self: LogChannel, items: list[int] | EndOfStream) -> None:
        gate.pass_through()
        keep(self, items)
        stored.extend([] if isinstance(items, EndOfStream) else items)

    monkeypatch.setattr(LogChannel, "_keep", slowly)
    app = Application("kept")
    log = app.channel("log", kind="log")
    for number in range(3):
        app.add(f"numbers{number}", count_up, to=20, out=log)
    deployment = rig.deploy(app)
    eventually(lambda: all(one.status is State.ENDED for one in deployment.components.values()))
    assert not deployment.finished.is_set()
    assert not deployment.all_ended()
    gate.open()
    assert deployment.wait(PATIENCE)
    assert sorted(stored) == sorted([*range(20)] * 3)


def test_an_application_that_has_ended_everywhere_has_finished_whatever_an_outbox_holds():
    """The home knows that all was delivered; an outbox that was restored may hold events that its peer has had."""
    deployment = Deployment(Mesh("one"))
    deployment.is_fragment, deployment.channels["one.to.b"] = True, SimpleNamespace(unacknowledged=1)
    deployment.check_finished()
    assert not deployment.finished.is_set()
    deployment.check_finished(everywhere=True)
    assert deployment.finished.is_set()


def test_the_errors_of_the_newest_replaced_slets_remain(rig):
    """Not of all: an application may run, and be repaired, for years."""
    deployment = rig.run(line(numbers=(count_up, {"to": 1}), sink=Takes))
    one = deployment.components["sink"]
    for number in range(REPLACED + 2):
        one.id = f"{number}"
        one.metrics.errors = 1
        deployment.let_go(one)
    assert list(deployment.replaced) == [f"{number}" for number in range(2, REPLACED + 2)]
