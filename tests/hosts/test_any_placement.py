"""For any mesh on any hosts: nothing is lost, doubled or reordered, and every stream ends, as on one platform."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exop import Platform, hookimpl
from exop.errors import ComponentFailed, ExopError, LifecycleError, PlanError, UnknownName
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.model.reached import reached
from exop.runtime.channels.outbox import Outbox
from exop.runtime.lifecycle import State
from exop.runtime.supervision import failure_policy as failure
from tests.mesh.random_mesh import RandomMesh, verdict
from tests.mesh.test_any_mesh import WAITS
from tests.rig import PATIENCE, stress_seeds, threads_leave

HOSTS = ("a", "b", "c")
#: Refusals that leave everything as it was: hosts that would wait for each other, or part what waits, also in front of
#: a connector, from the suspended slet behind it; streams that have ended, and an application that has finished.
REASONS = (
    "make two changes",
    "would both hand over",
    "would be lost",
    "is on its way to",
    "has not quiesced",
    "the stream has ended at",
    "would come behind the end",
    "has finished",
)


class Offered:
    """The slets of one mesh after the other, as a plugin offers them to all platforms."""

    def __init__(self) -> None:
        self.slets: list[Any] = []

    @hookimpl
    def register_slets(self) -> list[Any]:
        """Those of the present mesh."""
        return self.slets


OFFERED = Offered()


@pytest.fixture(scope="module")
def platforms() -> Iterator[list[Platform]]:
    """Three platforms for all meshes, each linked with the others."""
    with threads_leave(), ExitStack() as stack:
        found: list[Platform] = []
        for name in HOSTS:
            plugins = Plugins()
            plugins.register("any", OFFERED)
            one = stack.enter_context(Platform(name=name, control=False, plugins=plugins, listen=f"inproc:any-{name}"))
            for other in found:
                one.remoting.connect(f"inproc:any-{other.name}")
            found.append(one)
        yield found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again at once."""
    monkeypatch.setattr(failure, "BACK_OFF", 0.0005)


def in_cycle(mesh: Mesh) -> set[str]:
    """The nodes of the cycle of a mesh, if it has one."""

    def called(name: str) -> set[str]:
        ends = (end for to in mesh.nodes[name].outputs().values() for end in mesh.consumers(to))
        return {node.name for node, port in ends if not node.slet.ports[port].pulled}

    return {name for name in mesh.nodes if name in reached(called(name), called)}


def placed(made: RandomMesh, chance: random.Random) -> Mesh:
    """Place every node and channel on one of the hosts.

    A window from which a slet evicts is at its slet. A cycle is at home: it would not end by itself over several hosts.
    """
    mesh = made.mesh
    nodes = {name: replace(node, host=chance.choice((None, *HOSTS))) for name, node in mesh.nodes.items()}
    channels = {name: replace(one, host=chance.choice((None, None, *HOSTS))) for name, one in mesh.channels.items()}
    for name in (name for name, channel in mesh.channels.items() if channel.kind == "window"):
        channels[name] = replace(channels[name], host="b")
        nodes |= {node.name: replace(nodes[node.name], host="b") for node, _ in mesh.consumers(name)}
    for name in in_cycle(mesh):
        nodes[name] = replace(nodes[name], host=None)
        channels |= {to: replace(channels[to], host=None) for to in mesh.nodes[name].ports.values()}
    return mesh.edited(nodes, channels)


def offer(platforms: list[Platform], mesh: Mesh) -> None:
    """Register the slets of a mesh on all platforms, each under the name of its node."""
    OFFERED.slets = [replace(node.slet.declared(), name=name) for name, node in mesh.nodes.items()]
    for one in platforms:
        one.catalog.slets = {}
        one.catalog.gather()


def movable(mesh: Mesh) -> list[tuple[str, ...]]:
    """What can move: nodes, channels, and queues with all that they feed, which is full as long as that is suspended.

    Not what `placed` has bound to a host.
    """
    fixed = in_cycle(mesh)
    for name in [name for name, channel in mesh.channels.items() if channel.kind == "window"]:
        fixed |= {name, *(node.name for node, _ in mesh.consumers(name))}
    fixed |= {to for name in fixed & mesh.nodes.keys() for to in mesh.nodes[name].ports.values()}
    kept = [name for name, channel in mesh.channels.items() if channel.kind != "direct"]
    queues = [name for name in kept if mesh.channels[name].kind == "queue"]
    groups = [(name, *sorted({node.name for node, _ in mesh.consumers(name)})) for name in queues]
    return [one for one in [*((name,) for name in (*mesh.nodes, *kept)), *groups, *groups] if not fixed & {*one}]


def move(home: Platform, name: str, chance: random.Random) -> str:
    """Move something to another host, unless that is refused for a good reason; return what was done."""
    mesh, to = home.mesh(name), chance.choice(HOSTS)
    if not (able := movable(mesh)):
        return "nothing"
    for one in (group := chance.choice(able)):
        if ((mesh.nodes.get(one) or mesh.channels[one]).host or home.name) != to:
            mesh = mesh.move(one, to=to)
    try:
        home.apply(mesh)
    except PlanError as refused:
        if not any(reason in str(refused) for reason in REASONS):
            raise
        return f"{group} not to {to}: {refused}"
    return f"{group} to {to}"


def run(platforms: list[Platform], name: str, seed: int, moves: int = 0, **more: Any) -> list[str]:
    """Run one mesh to its end over the hosts, and move some of it meanwhile; return what went wrong."""
    chance = random.Random(seed)
    home, made = platforms[0], RandomMesh(name, chance, **more)
    mesh = placed(made, chance)
    offer(platforms, mesh)
    home.apply(mesh)
    history = list[str]()
    try:
        history.extend(move(home, name, chance) for _ in range(moves))
        heal(platforms, name)
        wrong = verdict(made)
        return [*wrong, *history] if wrong else []
    except AssertionError as stuck:
        return [str(stuck), *history]
    finally:
        assert home.remove(name, timeout=PATIENCE), "threads have not left"


def heal(platforms: list[Platform], name: str) -> None:
    """Resume suspended slets on all hosts until the application has finished."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if platforms[0].wait(name, timeout=0.05):
                return
        except ComponentFailed as failed:
            if failed.phase != "running":
                raise
        assert time.monotonic() < deadline, "it does not come to its end"
        for one in platforms:
            try:
                components = one.deployment(name).components
            except UnknownName:
                continue
            for node, component in components.items():
                if component.status in (State.FAILED, State.SUSPENDED):
                    try:
                        one.resume(name, node)
                    except (LifecycleError, ExopError):
                        continue


@given(seed=st.integers(0, 2**32))
@settings(
    max_examples=int(os.environ.get("EXOP_STRESS", "1").partition(":")[0]) * 8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_mesh_on_any_hosts(platforms: list[Platform], seed: int) -> None:
    """Each station has taken exactly what was sent to it, in order, wherever it runs; also where drivers wait."""
    assert run(platforms, f"any-{seed}", seed, **(WAITS if seed % 2 else {})) == []


def test_an_end_that_had_passed_elsewhere_is_not_due_again(platforms: list[Platform]) -> None:
    """A channel whose producers have all ended moves, and the host of it takes part in the next change."""
    assert run(platforms, "any-730800019", 730800019, moves=5) == []


def test_a_search_for_circles_that_ends_at_connectors_is_found(
    platforms: list[Platform], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that fills what it waits for by way of another host would wait for ever."""
    with monkeypatch.context() as planted:
        planted.setattr(Outbox, "passed_on", lambda outbox, tell: False)
        planted.setattr(f"{__name__}.PATIENCE", 2.0)
        (stuck,) = run(platforms, "any-planted", 1, **WAITS)
    assert stuck.startswith("it does not come to its end")
    assert run(platforms, "any-right", 1, **WAITS) == []


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_any_mesh_that_moves_for_long(platforms: list[Platform]) -> None:
    """The same while nodes and channels move, also full queues with what is suspended behind them."""
    for seed in stress_seeds():
        try:
            wrong = run(platforms, f"any-{seed}", seed, moves=5, **(WAITS if seed % 2 else {}))
            assert not wrong, "\n".join(wrong)
        except BaseException as problem:
            problem.add_note(f"EXOP_STRESS=1:{seed}")
            raise
