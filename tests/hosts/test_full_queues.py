"""Full queues behind connectors: whatever parks their drivers, again and again, they do not grow.

A campaign has a source, two small queues with a slet between, and a slow sink that is suspended at times, each at any
of three hosts. Moves, changes, checkpoints, restarts and kills of hosts come while the queues are full.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Batch, Memento, slet
from exop.errors import CheckpointError, PlanError
from exop.runtime.channels.queue import Buffered
from tests.change.tools import Position, plain, plain_too
from tests.hosts.moving import APP, Hosts, hosts
from tests.hosts.test_any_moves import is_possible
from tests.rig import eventually, stress_seeds
from tests.wiring.graph.test_waits import leaking

#: The capacity of the queue and of its connector, and the number of items in a batch, which is more than that.
ROOM, LOT = 8, 20


@slet
def numbers(position: Position) -> Iterator[int]:
    """Emit 1, 2, 3, …"""
    while True:
        position.number += 1
        yield position.number


@slet
def lots(position: Position) -> Iterator[Batch[int]]:
    """Emit the same in batches."""
    while True:
        first, position.number = position.number + 1, position.number + LOT
        yield Batch(range(first, position.number + 1))


def depths(there: Hosts) -> dict[str, int]:
    """The number of items in each queue, and in each half of a connector, on all hosts."""
    found = {}
    for name, one in there.platforms.items():
        deployment = one.deployment(APP)
        channels = {**deployment.channels, **deployment.inserted}.items()
        found |= {f"{key} on {name}": queue.depth for key, queue in channels if isinstance(queue, Buffered)}
    return found


def crowded(source: Any, size: int, folder: Path, rounds: int) -> list[str]:
    """Suspend the sink of a stream, take checkpoints and replace the source; return the queues that have grown."""
    with hosts("h1", "h2", slets=(numbers, lots), state=folder) as there:
        app = Application(APP)
        app.durable(every=3600.0)
        queue = app.channel("queue", "queue", capacity=ROOM, connector={"capacity": ROOM})
        app.add("source", source, out=queue)
        app.on("h2").add("sink", there.sink, x=queue)
        there.home.apply(app.build())
        there.apply(lambda mesh: mesh.suspend("sink"))
        eventually(lambda: min(depths(there).values()) >= ROOM, "full queues")
        # Each driver has one item too many, at the most.
        limit, found = max(ROOM, size) + size, list[str]()
        for number in range(rounds):
            if number % 2:
                there.home.checkpoint(APP)
            else:
                there.apply(lambda mesh: mesh.replace("source", source))
            if found := [f"{name}: {depth} of {limit}" for name, depth in depths(there).items() if depth > limit]:
                break
        there.home.remove(APP)
    return found


@pytest.mark.parametrize(("source", "size"), [(numbers, 1), (lots, LOT)])
def test_a_full_queue_does_not_grow_beside_checkpoints_and_changes(tmp_path: Path, source: Any, size: int):
    """Neither the queue nor either half of its connector, for items and for batches."""
    assert not crowded(source, size, tmp_path, rounds=8)


def test_a_planted_leak_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The outbox gets one item more in each change."""
    leaking(monkeypatch)
    assert "queue.to.h2 on h1" in str(crowded(numbers, 1, tmp_path, rounds=100))


class Followed(Memento):
    """The last number, and how many did not follow."""

    number: int = 0
    wrong: int = 0


@slet
def follows(x: int, last: Followed, *, pause: float = 0.0) -> None:
    """Count, slowly, the numbers that do not follow."""
    last.wrong += x != last.number + 1
    last.number = x
    time.sleep(pause)


class Crowd:
    """One durable application, the queues of which are full at times, and the largest depth that each may have."""

    def __init__(self, there: Hosts, stack: ExitStack, seed: int) -> None:
        self.there, self.stack, self.chance, self.history = there, stack, random.Random(seed), list[str]()
        chance, app = self.chance, Application(APP)
        self.source, size = chance.choice(((numbers, 1), (lots, LOT)))
        self.rooms = chance.choices((2, ROOM, 30), k=2)
        self.limit = max(*self.rooms, size) + size
        app.durable(every=chance.choice((0.05, 3600.0)))
        hosts = chance.choices(HOSTS, k=5)
        first, second = (
            app.channel(name, "queue", capacity=room, host=host, connector={"capacity": room})
            for name, room, host in zip(("first", "second"), self.rooms, hosts[3:], strict=True)
        )
        app.on(hosts[0]).add("source", self.source, out=first)
        app.on(hosts[1]).add("between", plain, x=first, out=second)
        app.on(hosts[2]).add("sink", follows, x=second, pause=chance.choice((0.0, 0.0005, 0.002)))
        self.history.append(str(there.home.apply(app.build()).to_toml()))

    def step(self) -> None:
        """Do something, at times while the sink is suspended; no queue grows, and the sink goes on."""
        home, chance = self.there.home, self.chance
        if chance.random() < 0.6 and not home.mesh(APP).node("sink").suspended:
            self.history.append("suspend")
            self.there.apply(lambda mesh: mesh.suspend("sink"))
            with suppress(AssertionError):  # streams that wait for checkpoints fill no queue
                eventually(lambda: self.depths().get("second", 0) >= self.rooms[1], seconds=0.5)
        does = chance.choice((self.move, self.replace, self.replace, self.checkpoint, self.restart))
        self.history.append(does.__name__)
        # A connector that a move ends leaves the items of both halves to what remains, whatever room that has.
        moved = does in (self.move, self.restart)
        most = max(self.limit, *self.depths().values()) + 4 * self.limit * moved
        does()
        found = {name: depth for name, depth in self.depths().items() if depth > most}
        assert not found, f"{found} have grown, of {most}"
        if home.mesh(APP).node("sink").suspended and chance.random() < 0.6:
            self.there.home.resume(APP, "sink")
            self.goes_on()

    def depths(self) -> dict[str, int]:
        """The depth of each queue, and of each half of a connector, as far as the hosts run the application."""
        deployed = {name: one._applications.deployed.get(APP) for name, one in self.there.platforms.items()}
        channels = {name: {**one.channels, **one.inserted} for name, one in deployed.items() if one is not None}
        found = [(f"{key} on {name}", one) for name, all_of in channels.items() for key, one in all_of.items()]
        return {key: queue.depth for key, queue in found if isinstance(queue, Buffered)}

    def move(self) -> None:
        """Move some nodes and queues."""
        mesh, names = self.there.home.mesh(APP), ("source", "between", "sink", "first", "second")
        after = mesh
        for name in self.chance.sample(names, self.chance.randint(1, 2)):
            host = (mesh.nodes.get(name) or mesh.channels[name]).host or "h1"
            after = after.move(name, to=self.chance.choice([one for one in HOSTS if one != host]))
        if is_possible(mesh, after):
            self.change(after)

    def replace(self) -> None:
        """Replace the source by itself, or the slet between the queues by another."""
        mesh = self.there.home.mesh(APP)
        other = plain if mesh.node("between").slet.name == "plain_too" else plain_too
        self.change(
            mesh.replace("source", self.source) if self.chance.random() < 0.5 else mesh.replace("between", other)
        )

    def change(self, after: Any) -> None:
        """Change the mesh, unless that is refused."""
        try:
            self.there.home.apply(after)
        except PlanError as refused:
            self.history.append(f"refused: {refused}")

    def checkpoint(self) -> None:
        """Take a checkpoint, if no slow item keeps the hosts from it."""
        with suppress(CheckpointError):
            self.there.home.checkpoint(APP)

    def restart(self) -> None:
        """Close a platform, and start it again."""
        name = self.chance.choice(HOSTS)
        self.history.append(name)
        self.there.platforms[name].close()
        self.there.back(name, self.stack)

    def goes_on(self) -> None:
        """Items come to the sink, each once and in order."""

        def sink() -> Any:
            host = self.there.home.mesh(APP).node("sink").host or "h1"
            deployment = self.there.platforms[host]._applications.deployed.get(APP)
            return deployment and "sink" in deployment.components and deployment.components["sink"].state

        def seen() -> int:
            self.checkpoint()  # streams that wait for one go on
            return ((state := sink()) and state.number) or 0

        first = seen()
        eventually(lambda: seen() > first + 50, "the sink goes on")
        assert sink().wrong == 0, f"the sink has lost or doubled {sink().wrong}"


HOSTS = ("h1", "h2", "h3")


def campaign(seed: int, folder: Path, steps: int = 8) -> None:
    """Crowd one application."""
    with ExitStack() as stack:
        slets = (numbers, lots, follows, plain_too)
        there = stack.enter_context(hosts(*HOSTS, slets=slets, state=folder))
        crowd = Crowd(there, stack, seed)
        try:
            for _ in range(steps):
                crowd.step()
            if there.home.mesh(APP).node("sink").suspended:
                there.home.resume(APP, "sink")
            crowd.goes_on()
        except BaseException as problem:
            problem.add_note("\n".join([f"EXOP_STRESS=1:{seed}", *crowd.history]))
            raise


def test_a_planted_leak_is_found_by_a_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside changes that are no moves, too."""
    leaking(monkeypatch)
    with pytest.raises(AssertionError, match="have grown"):
        campaign(1, tmp_path)


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_any_full_queue_for_long(tmp_path: Path) -> None:
    """Nothing grows, is lost, doubled or stuck, with as many seeds as the time allows."""
    for seed in stress_seeds():
        campaign(seed, tmp_path / str(seed))
