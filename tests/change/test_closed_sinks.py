"""A sink that holds output for the checkpoints writes it, once, whenever and however the sink is closed."""

import os
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, Self
from unittest import mock

import pytest

from bench.cases import state_at_rest
from exop import Application, Memento, Platform, Slet, hookimpl, input_port, slet
from exop.cli.commands.monitoring import not_running
from exop.errors import ExopError, LastCheckpointFailed, PlanError, StateError
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.model.slets.slet import spec_of
from exop.runtime.durable import durability
from exop.runtime.durable.checkpointer import Checkpointer
from exop.runtime.durable.store import Checkpoints
from exop.wiring.changes import executor
from tests.change.offered import Held
from tests.rig import eventually

#: The seeds of the walks, and the number of steps of each.
SEEDS, STEPS = (*range(4), 18), 25


class Position(Memento):
    """How far the source has come."""

    number: int = 0


class Writer(Slet):
    """Has the items of every checkpoint for a file."""

    path: Path
    held: Held

    @input_port
    def item(self, item: int) -> None:
        """Take one item."""
        self.held.rows.append(("", item))

    def prepare_checkpoint(self, number: int) -> None:
        """Make the items so far the lot of this checkpoint."""
        if number != self.held.number:
            self.put_out()
        self.held.sealed, self.held.rows, self.held.number = self.held.sealed + self.held.rows, [], number

    def put_out(self) -> None:
        """Write it under its number."""
        if self.held.sealed:
            self.path.mkdir(exist_ok=True)
            lot = self.path / f"{self.held.number:06d}"
            lot.write_text("".join(f"{item}\n" for _, item in self.held.sealed))
            self.held.sealed = []


class Lots(Writer):
    """Write the items of every checkpoint into a file, as the how-to shows."""

    def commit_checkpoint(self, number: int) -> None:
        """Write the lot."""
        self.put_out()


class Delegating(Writer):
    """The same with a hook that is no method of the class."""

    def __enter__(self) -> Self:
        self.commit_checkpoint = lambda number: self.put_out()
        return self


class Walk:
    """An application whose source emits what it is allowed to, and whose sinks come and go.

    Attributes:
        allowed: The number of items that the source may emit.
        first: The first item of each sink that is there.
        wanted: For each destination that is complete, its items.
    """

    def __init__(self, folder: Path, chance: random.Random, sink: type[Writer] = Lots) -> None:
        self.folder, self.chance, self.sink = folder, chance, sink
        self.allowed = self.number = self.life = 0
        self.over = False
        self.first: dict[str, int] = {}
        self.wanted: dict[Path, list[int]] = {}
        self.platform = self.opened()

        @slet
        def numbers(position: Position) -> Iterator[int | None]:
            while not self.over or position.number < self.allowed:
                if position.number == self.allowed:
                    time.sleep(0.0002)
                    yield None
                else:
                    position.number += 1
                    yield position.number

        self.numbers = spec_of(numbers)

    @hookimpl
    def register_slets(self) -> list[Any]:
        """The slets of the application."""
        return [self.numbers, self.sink] if hasattr(self, "numbers") else [self.sink]

    def opened(self) -> Platform:
        """Open the platform of the life that begins."""
        plugins = Plugins()
        plugins.discover()
        plugins.register("walk", self)
        return Platform(state=self.folder / f"life{self.life}", control=False, plugins=plugins).start()

    def deploy(self) -> None:
        """Deploy the application with one sink."""
        self.platform._gather()
        app = Application("app")
        app.durable(every=3600)
        app.add("numbers", self.numbers)
        self.platform.apply(app.build())
        self.add()

    def flow(self) -> None:
        """Let some items reach the sinks."""
        self.allowed += self.chance.randrange(1, 20)
        self.rest()

    def rest(self) -> None:
        """Wait until the sinks have all items."""
        nodes = self.platform.deployment("app").components

        def all_there() -> bool:
            counts = {name: nodes[name].metrics.items_in() for name in self.first}
            return nodes["numbers"].state.number == self.allowed and all(
                count == self.allowed - self.first[name] + 1 for name, count in counts.items()
            )

        eventually(all_there, "the items in the sinks")

    def mesh(self) -> Mesh:
        """Return the running mesh."""
        return self.platform.mesh("app")

    def add(self) -> None:
        """Add a sink."""
        self.number += 1
        name, kind = (
            f"sink{self.number}",
            self.chance.choice(("stock:write_sqlite", "stock:write_parquet", f"walk:{self.sink.__name__}")),
        )
        spec = self.platform.slets().get(kind) or self.platform.slets()[f"walk:{self.sink.__name__.lower()}"]
        self.platform.apply(
            self.mesh().add_slet(name, spec, {"item": "numbers"}, {"path": self.folder / f"out{self.number}"})
        )
        self.first[name] = self.allowed + 1

    def close(self, *, how: str) -> None:
        """Close a sink: its destination is complete then."""
        if not self.first:
            return
        name = self.chance.choice(sorted(self.first))
        mesh, path = self.mesh(), self.mesh().node(name).settings["path"]
        if how == "remove":
            after = mesh.remove(name)
        else:
            other = {"path": self.folder / f"lines{self.number}-{name}"}
            after = mesh.replace(name, self.platform.slets()["stock:write_lines"], lose_state=True, **other)
        plan = self.platform.plan(after)
        if self.chance.random() < 0.3 and how == "remove":
            self.flow()  # a sink that has committed all that it has received is closed without a checkpoint
            full = StateError("no room")
            with mock.patch.object(Checkpoints, "write", side_effect=full), pytest.raises(PlanError, match="no room"):
                plan.apply()
            plan = self.platform.plan(after)
        plan.apply()
        first = self.first.pop(name)
        self.wanted[path] = list(range(first, self.allowed + 1))
        if how == "replace":
            self.platform.apply(self.mesh().remove(name))

    def checkpoint(self) -> None:
        """Take a checkpoint."""
        self.platform.checkpoint("app")

    def fail(self) -> None:
        """Fail to take checkpoints: health tells it from the second one on, until there is room."""
        with mock.patch.object(Checkpoints, "write", side_effect=StateError("no room")):
            for told in (False, True):
                with pytest.raises(StateError):
                    self.checkpoint()
                assert any("no room" in line for line in not_running(self.platform.status())) == told
        self.checkpoint()
        assert not [*not_running(self.platform.status())]

    def crash(self) -> None:
        """Go on from what is on the disk."""
        crashed = {"side_effect": StateError("it has crashed")}
        with mock.patch.object(Checkpoints, "write", **crashed), mock.patch.object(Checkpointer, "take", **crashed):
            with state_at_rest(self.platform):
                before, self.life = self.folder / f"life{self.life}", self.life + 1
                shutil.copytree(before, self.folder / f"life{self.life}")
            self.platform.close()  # nothing is committed from then on, also not by a checkpoint that waits meanwhile
        self.platform = self.opened()
        assert not self.platform.failed_to_restart, self.platform.failed_to_restart
        self.rest()

    def step(self) -> None:
        """Do something."""
        steps: list[Callable[[], None]] = [self.flow] * 4 + [self.add, self.add, self.checkpoint, self.fail, self.crash]
        steps += [lambda: self.close(how="remove"), lambda: self.close(how="replace")] * 2
        self.chance.choice(steps)()

    def end(self) -> None:
        """Remove the application, or let it finish, or keep no checkpoints any more: all sinks are complete then."""
        self.flow()
        paths = {self.mesh().node(name).settings["path"]: first for name, first in self.first.items()}
        self.wanted |= {path: list(range(first, self.allowed + 1)) for path, first in paths.items()}
        how = self.chance.choice(("remove", "cannot be stored", "finish", "finish without room", "durable off"))
        if how == "finish without room":
            with mock.patch.object(Checkpoints, "write", side_effect=StateError("no room")):
                self.over = True
                with pytest.raises(LastCheckpointFailed, match="no room"):
                    self.platform.wait("app", timeout=20)
            if self.chance.random() < 0.5:
                self.crash()
        if how.startswith("finish"):
            self.over = True
            assert self.platform.wait("app", timeout=20)
        elif how == "durable off":
            self.platform.apply(self.mesh().edited(durable=None))
        with ExitStack() as full:
            if how == "cannot be stored":
                full.enter_context(mock.patch.object(Checkpoints, "write", side_effect=StateError("no room")))
            self.platform.remove("app")

    def wrong(self) -> list[str]:
        """Return the destinations that lack or double items."""
        found = []
        for path, items in self.wanted.items():
            if (got := written(path)) != items:
                found.append(f"{path.name} has {got}, and not {items}")
        return found


def written(path: Path) -> list[int]:
    """Return the items at a destination."""
    if path.is_file():
        with closing(sqlite3.connect(path)) as base:
            there = base.execute("SELECT name FROM sqlite_master WHERE name = 'items'").fetchone()
            return [int(row[0]) for row in base.execute("SELECT value FROM items ORDER BY rowid")] if there else []
    if files := sorted(path.glob("*.parquet")):
        from pyarrow import parquet

        return [number for file in files for number in parquet.read_table(file)["value"].to_pylist()]
    return [int(line) for file in sorted(path.glob("*")) for line in file.read_text().split()]


def walked(folder: Path, seed: int) -> list[str]:
    """Return what is wrong after one walk."""
    folder.mkdir()
    walk = Walk(folder, random.Random(seed), Delegating if seed % 2 else Lots)
    try:
        walk.deploy()
        for _ in range(STEPS):
            walk.step()
        walk.end()
        return walk.wrong()
    finally:
        walk.platform.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_item_is_written_once(tmp_path, seed):
    """Removed, replaced, with crashes and full disks in between: all that a sink has received, and nothing twice."""
    assert not walked(tmp_path / "walk", seed)


def test_a_sink_is_closed_also_while_nothing_can_be_stored(tmp_path):
    """As the refusal says: its output is given up, another slet writes what comes from then on, and can be removed."""
    walk = Walk(tmp_path, random.Random(1))
    try:
        walk.deploy()
        walk.flow()
        (name,), slets = walk.first, walk.platform.slets()
        lines = tmp_path / "lines"
        with mock.patch.object(Checkpoints, "write", side_effect=StateError("no room")):
            with pytest.raises(PlanError, match="no room; repair that, or give this output up") as refused:
                walk.platform.apply(walk.mesh().remove(name))
            cure = re.search(
                r"replace (\S+) by (\S+) with another path and lose_state=True \(--lose-state\)$", str(refused.value)
            )
            assert cure is not None
            told = f"{name} commits what it holds: .*; warning: the last one failed, and if this one does, .*: no room"
            assert re.search(told, str(walk.platform.plan(walk.mesh().remove(name))))
            walk.platform.apply(walk.mesh().replace(cure[1], slets[cure[2]], lose_state=True, path=lines))
            before = walk.allowed
            walk.flow()
            walk.platform.apply(walk.mesh().remove(name))
        assert [*map(int, lines.read_text().split())] == [*range(before + 1, walk.allowed + 1)]
    finally:
        walk.platform.close()


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_every_item_is_written_once_for_long(tmp_path):
    """The same with as many walks as the time allows."""
    seconds, _, first = os.environ["EXOP_STRESS"].partition(":")
    until = time.monotonic() + float(seconds)
    for seed in count(int(first or time.time())):
        if time.monotonic() > until:
            break
        try:
            assert not walked(tmp_path / "walk", seed)
        except BaseException as problem:
            problem.add_note(f"EXOP_STRESS=1:{seed}")
            raise
        shutil.rmtree(tmp_path / "walk")


def nothing_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink is closed with what it holds."""
    monkeypatch.setattr(executor, "closed_sinks", lambda plan, slets: [])


def settled_without_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sinks write, and no checkpoint knows it."""

    def settle(self: Checkpointer, sinks: Any, seconds: float) -> None:
        self._call("prepare_checkpoint", self._number or 1)
        self._committed(self._begin_commits(self._number or 1), seconds)

    monkeypatch.setattr(Checkpointer, "settle", settle)


def removed_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sinks of an application that is removed write nothing."""
    monkeypatch.setattr(Checkpointer, "put_out", lambda self, patience: None)


def end_counts_as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application whose last checkpoint fails has finished, as if nothing were missing."""
    monkeypatch.setattr(durability, "last_checkpoint", lambda *given, **more: suppress(ExopError))


def failures_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that fails again and again is no trouble of the application."""
    monkeypatch.setattr(Checkpointer, "_note", lambda self, trouble: None)


#: Each with a walk that shows it.
MISTAKES = {
    nothing_is_settled: 0,
    settled_without_a_checkpoint: 1,
    removed_without: 0,
    end_counts_as_stored: 1,
    failures_are_not_told: 0,
}


@pytest.mark.parametrize(("plant", "known"), MISTAKES.items())
def test_a_planted_mistake_is_found(tmp_path, monkeypatch, plant, known):
    """A few walks show it."""
    plant(monkeypatch)

    def shows(seed: int) -> bool:
        try:
            return bool(walked(tmp_path / str(seed), seed))
        except (AssertionError, StateError, PlanError, pytest.fail.Exception):
            return True

    assert any(shows(seed) for seed in dict.fromkeys((known, *range(8))))
