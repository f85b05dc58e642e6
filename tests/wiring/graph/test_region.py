"""A change binds anew only what is connected with it; the other parts of the application go on."""

import random
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any
from unittest import mock

import pytest

from exop import Application, Memento, Platform, Punctuation, Slet, input_port, slet
from exop.errors import ExopError, MementoError
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.slets.slet import spec_of
from exop.runtime.channels.queue import Buffered
from exop.runtime.channels.window import WindowChannel
from exop.runtime.dataflow.entry import NOWHERE
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.worker import Worker
from exop.wiring.changes.channels import unpunctuated
from exop.wiring.graph import execution_plan, ids
from exop.wiring.graph.execution_plan import plan_execution
from tests.change.test_any_change import GOOD_REASONS, Unopened, refused_behind_the_bind, refusing
from tests.change.tools import Position
from tests.rig import eventually, parked, same, threads_leave

BRANCHES = ("one", "two", "three")


@slet
def tagged(position: Position, *, tag: str) -> Iterator[Any]:
    """Emit 1, 2, 3, …, each with a tag, until it is told to end."""
    while True:
        position.number += 1
        yield tag, position.number


class Count(Memento):
    """How many items a slet had."""

    items: int = 0


@slet
def counting(item: Any, count: Count) -> Any:
    """Count, and pass on."""
    count.items += 1
    return item


@slet
def marking(item: Any, count: Count) -> Any | Punctuation:
    """Do the same; it may punctuate."""
    count.items += 1
    return item


@slet
def dropping(item: Any) -> None:
    """Drop."""


class Joint(Slet):
    """Takes from two branches, which are connected by it."""

    @input_port
    def left(self, item: Any) -> None:
        """Drop."""

    @input_port
    def right(self, item: Any) -> None:
        """Drop."""


@pytest.fixture(scope="module")
def platform():
    """A platform for all tests."""
    with threads_leave(), Platform() as made:
        yield made


def branches(platform: Platform) -> dict[str, list[Any]]:
    """Several branches, each with two sources, a queue and a sink; returns what the sinks see."""
    app, seen = Application("branches"), {name: list[Any]() for name in BRANCHES}
    for name in BRANCHES:

        @slet
        def writing(item: Any, *, branch: str) -> None:
            seen[branch].append(item)

        both = app.channel(f"{name}-both")
        for source in ("a", "b"):
            app.add(f"{name}-{source}", tagged, tag=f"{name}-{source}", out=both)
        counted = app.add(f"{name}-count", counting, item=both)
        queue = app.channel(f"{name}-queue", kind="queue", capacity=10)
        app.add(f"{name}-same", same, item=counted, out=queue)
        app.add(f"{name}-sink", writing, item=queue, branch=name)
        window = app.channel(f"{name}-window", kind="window", count=3)
        app.add(f"{name}-into", same, item=queue, out=window)
        app.add(f"{name}-last", dropping, item=window)
    platform.apply(app.build())
    return seen


def wrong(platform: Platform, seen: dict[str, list[Any]]) -> list[str]:
    """End the application; which streams are not whole, and of their own branch."""
    platform.end("branches")
    assert platform.wait("branches", 60)
    platform.remove("branches")
    tags = {branch: {tag for tag, _ in items} for branch, items in seen.items()}
    found = [branch for branch in BRANCHES if tags[branch] != {f"{branch}-a", f"{branch}-b"}]
    for branch, items in seen.items():
        for tag in tags[branch]:
            got = [number for one, number in items if one == tag]
            found += [tag] if got != list(range(1, len(got) + 1)) else []
    return found


def drivers_of(platform: Platform, branch: str) -> set[Driver]:
    """All drivers that run a branch."""
    components = platform.deployment("branches").components
    found = {one for node, one in components.items() if node.startswith(branch)}
    return {driver for one in found for driver in (one.driver, one.pusher, one.runner) if driver is not None}


def test_a_change_in_one_branch_parks_no_driver_of_another(platform):
    """It may be made, or fail at opening, in the pause or behind the bind: the streams of the others are exact."""
    seen = branches(platform)
    other = drivers_of(platform, "two") | drivers_of(platform, "three")
    assert len(other) >= 2 * 4
    closed: list[Driver] = []
    close = Driver.close

    def counted(driver: Driver, *watcher: Any) -> None:
        closed.append(driver)
        close(driver, *watcher)

    with mock.patch.object(Driver, "close", counted):
        for number in range(3):
            mesh = platform.mesh("branches")
            for spoilt in (mesh.replace("one-same", Unopened, lose_state=True), mesh.replace("one-count", refusing)):
                with pytest.raises(ExopError, match="refused"):
                    platform.apply(spoilt)
            made = mesh.replace("one-count", counting).replace("one-a", tagged)
            made = made.add(Node(f"watch{number}", spec_of(same), {}, {"item": "one-both"}))
            with pytest.raises(ExopError, match="refused"), refused_behind_the_bind():
                platform.apply(made)
            platform.apply(made)
            for branch in BRANCHES:
                before = len(seen[branch])
                eventually(lambda b=branch, n=before: len(seen[b]) > n + 20, f"more of {branch}")
            platform.apply(platform.mesh("branches").remove(f"watch{number}"))
    assert closed
    assert not other & {*closed}
    assert not wrong(platform, seen)


def test_a_change_of_one_slet_parks_only_what_calls_it(platform):
    """In one long stream, a change closes the worker before the slet; the slets behind the next queue go on."""
    seen: list[Any] = []

    @slet
    def writing(item: Any) -> None:
        seen.append(item)

    app = Application("stream")
    end: Any = app.add("source", tagged, tag="one")
    for name in ("first", "second", "third"):
        queue = app.channel(f"before-{name}", kind="queue", capacity=10)
        app.add(f"{name}-in", same, item=end, out=queue)
        end = app.add(f"{name}-count", counting, item=app.add(f"{name}-out", same, item=queue))
    app.add("sink", writing, item=end)
    platform.apply(app.build())
    deployment = platform.deployment("stream")
    closed: list[Driver] = []
    close = Driver.close

    def counted(driver: Driver, *given: Any) -> None:
        closed.append(driver)
        close(driver, *given)

    def inserted(mesh: Any) -> Any:
        ports = {"item": mesh.nodes["second-out"].ports["out"], "out": "passed"}
        return mesh.add(Node("pass", spec_of(same), {}, ports), ChannelSpec("passed")).rewire(
            "second-count", item="passed"
        )

    def taken_out(mesh: Any) -> Any:
        return mesh.rewire("second-count", item=mesh.nodes["pass"].ports["item"]).remove("pass")

    for edit in (
        lambda mesh: mesh.replace("second-count", counting),
        lambda mesh: mesh.replace("second-count", refusing),
        lambda mesh: mesh.replace("third-in", same).suspend("third-in"),
        lambda mesh: mesh.resume("third-in"),
        lambda mesh: mesh.add(Node("watch", spec_of(same), {}, {"item": mesh.nodes["second-count"].ports["out"]})),
        lambda mesh: mesh.rewire("watch", item=mesh.nodes["second-out"].ports["out"]),
        inserted,
        taken_out,
        lambda mesh: mesh.remove("watch"),
    ):
        with mock.patch.object(Driver, "close", counted), suppress(MementoError):
            platform.apply(edit(platform.mesh("stream")))
        before = len(seen)
        if not deployment.components["third-in"].held:
            eventually(lambda n=before: len(seen) > n + 20, "more")
    assert {driver.name for driver in closed} == {"stream before-second"}
    platform.end("stream")
    assert platform.wait("stream", 60)
    platform.remove("stream")
    assert [number for _, number in seen] == [*range(1, len(seen) + 1)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("longest", [2, 100])
def test_what_is_patched_equals_what_is_read_from_scratch(platform, monkeypatch, longest, seed):
    """Branches change, are joined and come apart again: connections, queues and drivers are those of a new survey.

    Where queues cut long chains, only the places between two of them are laid out anew.
    """
    monkeypatch.setattr(execution_plan, "LONGEST_CHAIN", longest)
    seen, chance = branches(platform), random.Random(seed)
    asked = asked_in_mid_change(monkeypatch, platform)
    for number in range(12):
        mesh = platform.mesh("branches")
        for _ in range(chance.choice((1, 1, 2))):
            mesh = edited(mesh, chance, number)
        try:
            with refused_behind_the_bind() if chance.random() < 0.3 else nullcontext():
                platform.apply(mesh)
        except ExopError as error:
            if not any(reason in str(error) for reason in ("refused behind the bind", *GOOD_REASONS)):
                raise
        compare(platform)
    assert asked
    assert not wrong(platform, seen)


def asked_in_mid_change(monkeypatch: pytest.MonkeyPatch, platform: Platform) -> list[Driver]:
    """At each step of a change, ask as drivers that run on do: who pushes into a queue, and who waits for whom."""
    asked: list[Driver] = []

    def asking(step: Any) -> Any:
        def stepped(driver: Driver, *given: Any) -> None:
            deployment = platform.deployment("branches")
            for queue in filter(lambda one: isinstance(one, Buffered), list(deployment.channels.values())):
                asked.extend(deployment.inlets.pushers(queue))
            for one in deployment.drivers():
                asked.extend(one.waiting())
            step(driver, *given)

        return stepped

    for owner, name in ((Driver, "close"), (Driver, "open"), (Worker, "serve")):
        monkeypatch.setattr(owner, name, asking(getattr(owner, name)))
    return asked


def edited(mesh: Any, chance: random.Random, number: int) -> Any:
    """One random edit."""
    branch = chance.choice(BRANCHES)
    added = [name for name in mesh.nodes if name.startswith(("joint", "pass"))]
    what = chance.choice(("replace", "insert", "join", "join", "take out", "take out"))
    if what == "join":
        left, right = chance.sample(BRANCHES, 2)
        name = f"joint{number}-{chance.random()}".replace(".", "")
        return mesh.add(Node(name, spec_of(Joint), {}, {"left": f"{left}-both", "right": f"{right}-count"}))
    if what == "insert":
        name = f"pass{number}-{chance.random()}".replace(".", "")
        ports = {"item": mesh.nodes[f"{branch}-same"].ports["item"], "out": name}
        kind = ChannelSpec(name, *chance.choice((("direct", {}), ("queue", {"capacity": 2}))))
        return mesh.add(Node(name, spec_of(same), {}, ports), kind).rewire(f"{branch}-same", item=name)
    if what == "take out" and added:
        name = chance.choice(added)
        for consumer, port in mesh.consumers(name) if name in mesh.channels else ():
            mesh = mesh.rewire(consumer.name, **{port: mesh.nodes[name].ports["item"]})
        return mesh.remove(name)
    return mesh.replace(f"{branch}-count", chance.choice((counting, marking)))


def compare(platform: Platform) -> None:
    """Everything that was patched is what a survey of the whole application finds."""
    deployment = platform.deployment("branches")
    with deployment.changing, parked(deployment):
        now, fresh = platform.wiring.current(deployment), platform.wiring.graph("branches")
        assert shape(now.graph) == shape(fresh)
        anew = plan_execution(now.graph, now.inserted)
        for what in ("inserted", "groups", "drivers"):
            assert getattr(now, what) == getattr(anew, what), what
        for what in ("depths", "order", "ranks"):
            assert getattr(now, what).keys() == getattr(anew, what).keys(), what
        needed = {place for place, reason in plan_execution(fresh).inserted.items() if reason != execution_plan.LONG}
        assert execution_plan.LONG in deployment.reasons.values() or needed <= deployment.inserted.keys()
        steps = [(one, further) for one in now.order for further in fresh.downstream(one)]
        assert now.cycles or all(now.order[one] < now.order[further] for one, further in steps)
        assert {min(group) for group in now.groups.values()} == deployment.workers.keys()
        for group in now.groups.values():
            worker = deployment.workers[min(group)]
            callers = [edge.component.driver for one in group for edge in fresh.producers[ids.channel_of_queue(one)]]
            assert now.cycles or all(one is None or one.rank < worker.rank for one in callers)
            queues = [deployment.inserted.get(name) or deployment.channels[name] for name in group]
            assert {queue.worker for queue in queues} == {deployment.workers[min(group)]}
        for name, component in deployment.components.items():
            runners = {key[1] for key in now.drivers.get(name, ()) if key[0] == "source"}
            own = {deployment.components[source].driver for source in runners}
            assert not own or component.runner in own
            assert component.runner in deployment.drivers()
            keys = now.drivers.get(name, set())
            assert component.pusher in {driver_of(deployment, key) for key in keys or {("source", "")}}
            check_compiled(deployment, now.graph, component)
        for name, one in now.graph.channels.items():
            if isinstance(one, WindowChannel):
                assert one.unpunctuated == frozenset(unpunctuated(fresh, name)[0]), name
            else:
                check_channel(deployment, now, name)
        for place in deployment.entries:
            assert not ids.channel_of_endpoint(place) or ids.channel_of_endpoint(place) in fresh.channels, place
            port = ids.port_of_endpoint(place)
            assert not port or port.partition(".")[0] in fresh.nodes, place


def check_compiled(deployment: Any, graph: Any, component: Any) -> None:
    """What leads out of a component and into it is what is compiled at those places now."""
    node, places = component.node.name, deployment.entries
    for channel, edge in graph.nodes[node].outputs:
        assert component.to[edge.port.name] is places.get(edge.name, places[f"channel {channel}"])
    for _, edge in graph.nodes[node].inputs:
        link = places[edge.name].link if edge.name in places else None
        if link is not None:
            assert link.metrics is component.metrics
            assert link.to is component.to.get("out", NOWHERE)


def driver_of(deployment: Any, key: tuple[str, str]) -> Driver | None:
    """The driver of a key."""
    kind, name = key
    if kind == "queue":
        return (deployment.inserted.get(name) or deployment.channels[name]).worker
    return deployment.components[name].driver if name else None


def check_channel(deployment: Any, wiring: Any, name: str) -> None:
    """A channel, and the queues at it, lead to what is compiled at the ports of its consumers now."""
    places, channel = deployment.entries, wiring.graph.channels[name]
    expected = []
    for edge in wiring.graph.consumers[name]:
        queue = deployment.inserted.get(edge.queue(name))
        expected.append(places[edge.name] if queue is None else places[f"queue {queue.name}"])
        if queue is not None:
            assert queue.deliver is places[edge.name], edge.name
    there = channel.deliver if channel.buffered else places[f"channel {name}"]
    if ids.input_queue(name) not in wiring.inserted and len(expected) > 1:
        assert [*there.targets] == expected, name
    elif ids.input_queue(name) not in wiring.inserted:
        assert [there] == expected or there is NOWHERE or not expected, name


def shape(graph: Any) -> Any:
    """The connections, whatever their order."""
    ports = [
        {name: {(edge.name, edge.component) for edge in edges} for name, edges in side.items()}
        for side in (graph.producers, graph.consumers)
    ]
    return graph.channels, ports, {name: (one.component, {**one.ports}) for name, one in graph.nodes.items()}
