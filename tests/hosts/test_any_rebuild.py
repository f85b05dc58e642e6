"""A state is rebuilt from a log, after anything in front of it has moved: it has each item once, or it is refused."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Memento, slet
from exop.errors import NotRebuildable, PlanError
from exop.model.meshes.mesh import Mesh
from exop.runtime.log.memory import Position as Place
from exop.wiring.changes import rebuild
from tests.change.tools import Position
from tests.hosts.moving import APP, Hosts, hosts
from tests.rig import eventually, stress_seeds

HOSTS = ("h1", "h2")
#: The numbers that the source may emit so far.
RELEASED = [0]


class Had(Memento):
    """The items, as the first slet keeps them."""

    items: list[int] = field(default_factory=list)


class Has(Memento):
    """The items, in a state that cannot be made from the other one."""

    every: list[int] = field(default_factory=list)


@slet
def released(position: Position) -> Iterator[int | None]:
    """Emit the numbers that are released."""
    while True:
        if position.number < RELEASED[0]:
            position.number += 1
            yield position.number
        else:
            yield None
            time.sleep(0.0005)


@slet
def scaled(x: int, *, by: int = 1) -> int:
    """Multiply."""
    return x * by


@slet(effects=False)
def had(x: int, state: Had) -> None:
    """Keep an item."""
    state.items.append(x)


@slet(effects=False)
def has(x: int, state: Has) -> None:
    """Keep an item, in the other state."""
    state.every.append(x)


def line(chance: random.Random) -> Mesh:
    """A source, a log, at times slets behind it, and the slet with the state; everything at any host."""
    app = Application(APP)
    places = (chance.choice(HOSTS),) if chance.random() < 0.7 else HOSTS
    if chance.random() < 0.5:
        app.durable(every=3600.0)
    before: Any = app.channel("kept", "log", keep=chance.choice(("all", "all", 30)), host=chance.choice(places))
    app.on(chance.choice(HOSTS)).add("source", released, out=before)
    for number in range(chance.randint(0, 2)):
        out = app.channel(f"out{number}", chance.choice(("direct", "queue")))
        before = app.on(chance.choice(places)).add(f"between{number}", scaled, x=before, out=out)
    app.on(chance.choice(places)).add("state", had, x=before)
    return app.build()


class Rebuilds:
    """One application, what was done to it, and how often the state was rebuilt or refused."""

    def __init__(self, there: Hosts, seed: int) -> None:
        self.there, self.chance = there, random.Random(seed)
        self.history, self.rebuilt, self.items = list[str](), 0, 0
        RELEASED[0] = 0
        there.home.apply(mesh := line(self.chance))
        self.history.append(mesh.to_toml())

    def seen(self) -> list[int]:
        """What the slet has kept."""
        host = self.there.home.mesh(APP).node("state").host or "h1"
        state = self.there.component(host, "state").state
        return [*(state.items if isinstance(state, Had) else state.every)]

    def more(self) -> None:
        """Let some items through, up to the state."""
        RELEASED[0] += (more := self.chance.randint(1, 20))
        self.items += more
        eventually(lambda: len(self.seen()) == self.items, "the items")

    def step(self) -> None:
        """Move something, change a setting, or rebuild the state."""
        mesh, chance = self.there.home.mesh(APP), self.chance
        between = [name for name in mesh.nodes if name.startswith("between")]
        match chance.choice(("move", "configure", "rebuild", "rebuild")):
            case "move":
                name, to, after = chance.choice([*mesh.nodes, "kept", *["all"] * 5]), chance.choice(HOSTS), mesh
                for one in ["kept", *between, "state"] if name == "all" else [name]:
                    if ((mesh.nodes.get(one) or mesh.channels[one]).host or "h1") != to:
                        after = after.move(one, to=to)
            case "configure" if between:
                name = chance.choice(between)
                after = mesh.configure(name, by=chance.randint(1, 3))
            case _:
                name, before = "rebuild", self.seen()
                other = has if mesh.node("state").slet.name == "had" else had
                after = mesh.replace("state", other, rebuild="log")
        self.history.append(name)
        try:
            self.there.home.apply(after)
        except (NotRebuildable, PlanError) as refused:
            if name == "rebuild" and "cannot be rebuilt from a log" not in str(refused):
                raise
            self.history.append(str(refused))
        else:
            if name == "rebuild":
                self.rebuilt += 1
                assert self.seen() == before, f"the log gives {self.seen()}, and it had {before}"


def campaign(seed: int, folder: Path, steps: int = 8) -> int:
    """Make and check one application; return how often its state was rebuilt."""
    with hosts(*HOSTS, slets=(released, scaled, had, has), state=folder) as there:
        made = Rebuilds(there, seed)
        try:
            for _ in range(steps):
                made.more()
                made.step()
            made.more()
        except BaseException as problem:
            problem.add_note("\n".join([f"EXOP_STRESS=1:{seed}", *made.history]))
            raise
        there.home.remove(APP)
    return made.rebuilt


@pytest.mark.parametrize("seed", [4])
def test_any_rebuild(tmp_path: Path, seed: int) -> None:
    """What is replayed is what the predecessor has got, wherever it has come from."""
    assert campaign(seed, tmp_path)


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_any_rebuild_for_long(tmp_path: Path) -> None:
    """The same with as many seeds as the time allows; some of them rebuild a state."""
    assert sum(campaign(seed, tmp_path / str(seed)) for seed in stress_seeds())


def test_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is taken for whole, wherever the slets behind it have begun."""
    monkeypatch.setattr(rebuild, "_since", lambda node, deployment, log, paths: Place(deployment.channels[log].start))

    with pytest.raises(AssertionError, match="the log gives"):
        campaign(3, tmp_path)
