"""Any changes and crashes of a group: it gives, for each key, what one instance gives."""

import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bench.cases import state_at_rest
from exop import Application, Keyed, Memento, Mesh, OutputPort, Platform, Slet, hookimpl, input_port, slet
from exop import app as app_building
from exop.errors import MeshError, PlanError
from exop.hooks import Plugins
from exop.model.meshes import checks
from exop.model.meshes.mesh import Node
from exop.model.meshes.partitions import PARTITIONS, partition_of, ranges
from exop.runtime.channels import PartitionedLogChannel, partitioned
from exop.wiring.changes import change as changing
from exop.wiring.graph import binding, region
from exop.wiring.graph.wiring_graph import WiringGraph
from tests.change.offered import offered
from tests.change.tools import Books, Position
from tests.rig import parked, threads_leave

#: Keys of several types; some are equal.
KEYS: list[Any] = [0, 1, 2, 3, 5, 8, -1, 2**40]
#: What is made of one number: so many rows, as items, a list, or columns.
FORMS = ("items", "list", "columns")
#: A file system in memory, where there is one.
MEMORY = Path("/dev/shm")
LETTERS = "abcdefgh"
#: The numbers of partitions.
GIVEN: list[dict[str, int]] = [{}, {"partitions": 1}, {"partitions": 3}, {"partitions": 16}]


class PerKey(Memento):
    """A state by key."""

    numbers: Keyed[int, list[int]] = field(default_factory=dict)


class Kept(Memento):
    """All results."""

    rows: list[list[int]] = field(default_factory=list)


def rows_of(number: int) -> list[dict[str, int]]:
    """The rows that are made of one number: the same after a crash."""
    chance = random.Random(number)
    return [{"key": chance.choice(KEYS), "n": 10 * number + at} for at in range(chance.randrange(5))]


class Spread(Slet):
    """Gives the rows of each number, in one form or another."""

    out: OutputPort[dict[str, int]]

    @input_port
    def x(self, number: int) -> None:
        """Push them."""
        rows, form = rows_of(number), FORMS[number % 3]
        if form == "items":
            for row in rows:
                self.out.push(row)
        elif rows:
            self.out.push_batch(rows if form == "list" else pa.RecordBatch.from_pylist(rows))


class Single(Slet):
    """Gives each row with the number of rows of its key so far, and the last one of these."""

    per: PerKey
    label: str = ""

    @input_port
    def x(self, row: dict[str, int]) -> list[int]:
        """Count and remember."""
        numbers = self.per.numbers.setdefault(row["key"], [])
        numbers.append(row["n"])
        before = [n for n in numbers if (n < 0) == (row["n"] < 0)]  # those of this port
        return [row["key"], row["n"], len(before), sum(before)]


class SingleToo(Single):
    """Does the same."""


class Double(Single):
    """Does the same, and takes numbers from another source, which has another driver: queues stand in front of it."""

    @input_port
    def other(self, number: int) -> None:
        """Ignore it."""


class DoubleToo(Double):
    """Does the same."""


class Pair(Single):
    """Does the same, and takes rows by another port, too; their numbers are less than 0."""

    @input_port
    def other(self, row: dict[str, int]) -> list[int]:
        """Count and remember."""
        return self.x({"key": row["key"], "n": -row["n"]})


class PairToo(Pair):
    """Does the same."""


@slet
def kept(row: list[int], all_: Kept) -> None:
    """Keep every result."""
    all_.rows.append(row)


class Group:
    """An application with a group, made by chance; it is changed while it runs, crashes, and goes on."""

    def __init__(self, chance: random.Random, root: Path) -> None:
        self.chance, self.root, self.life, self.trace = chance, root, 0, list[str]()
        self.news, self.allowed, self.over = threading.Condition(), 0, False
        self.shapes = chance.choice([(Single, SingleToo), (Double, DoubleToo), (Pair, PairToo)])
        self.given, self.too = chance.choice(GIVEN), chance.choice(GIVEN)
        self.platform, self.books = self.opened(), Books()
        try:
            self.platform.apply(self.built())
        except MeshError as refused:
            if "different numbers of partitions" not in str(refused):
                raise
            self.given = self.too = {"partitions": 3}
            self.platform.apply(self.built())
        shared = self.platform.deployment("app").channels["rows"].partitioning
        self.partitions = shared.partitions  # those by which the items are routed
        self.check()

    @hookimpl
    def register_slets(self) -> list[Any]:
        """What it is made of, so that it can be recovered."""
        life = self.life

        def numbers(position: Position) -> Iterator[int | None]:
            while not (self.over or self.life > life) or (self.life == life and position.number < self.allowed):
                if position.number < self.allowed:
                    position.number += 1
                    yield position.number
                else:
                    with self.news:
                        self.news.wait(0.001)
                    yield None

        return [slet(name="numbers")(numbers), offered(numbers, "others"), Spread, *self.shapes, kept]

    def opened(self) -> Platform:
        """The platform of the life that begins."""
        plugins = Plugins()
        plugins.register("group", self)
        return Platform(state=self.root / f"life{self.life}", plugins=plugins, control=False).start()

    def built(self) -> Mesh:
        """The application."""
        app, chance = Application("app", plugins=self.platform.plugins), self.chance
        kind = chance.choice(["direct", "queue", "partitioned_log", "partitioned_log"])
        more: dict[str, Any] = {"replay": chance.random() < 0.5} if kind == "partitioned_log" else {}
        shared = app.channel("rows", kind, by="key", **self.given, **more)
        results = app.channel("results")
        app.add("spread", "group:spread", x=app.add("source", "group:numbers"), out=shared)
        more = {"other": app.add("others", "group:others")} if self.shapes[0] is not Single else {}
        if self.shapes[0] is Pair:
            too = app.channel("too", chance.choice(["queue", "partitioned_log"]), by="key", **self.too)
            app.add("spread-too", "group:spread", x=more["other"], out=too)
            more = {"other": too}
        for name in LETTERS[: chance.randint(1, 3)]:
            app.add(name, f"group:{self.shapes[0].__name__.lower()}", x=shared, out=results, group="g", **more)
        app.add("kept", "group:kept", row=results)
        app.durable(every=3600)
        return app.build()

    def let(self, most: int) -> None:
        """Let some numbers through."""
        with self.news:
            self.allowed += self.chance.randrange(most)
            self.news.notify_all()

    def edit(self, mesh: Mesh) -> Mesh:
        """Make one edit of the group."""
        chance, members = self.chance, sorted(name for name, node in mesh.nodes.items() if node.group)
        name = chance.choice(members)
        free = [letter for letter in LETTERS if letter not in mesh.nodes]
        verb = chance.choice(["add", "add", "remove", "remove", "replace", "suspend", "resume", "resume", "configure"])
        self.trace.append(f"{verb} {name} of {members}")
        if verb == "add" and free:
            one = mesh.nodes[name]
            return mesh.add(Node(chance.choice(free), one.slet, one.settings, one.ports, group="g", given=one.given))
        if verb == "remove" and len(members) > 1:
            return mesh.remove(name)
        if verb == "replace":
            slets = self.platform.slets()
            return mesh.replace(name, slets[f"group:{chance.choice(self.shapes).__name__.lower()}"])
        if verb == "configure":
            return mesh.configure(name, label=str(chance.random()))
        return mesh.suspend(name) if verb == "suspend" else mesh.resume(name)

    def change(self) -> None:
        """Change it while it runs; a change may be refused for what waits in front of a member that is suspended."""
        mesh = self.platform.mesh("app")
        for _ in range(self.chance.choice([1, 1, 2])):
            mesh = self.edit(mesh)
        try:
            self.platform.apply(mesh)
        except PlanError as refused:
            self.trace.append(f"refused: {refused}")
            if not any(part in str(refused) for part in ("an item waits in front of", "on the way to")):
                raise
        else:
            self.trace.append("made")
        self.check()

    def check(self) -> None:
        """Every item is accounted for, and each member keeps the state of the keys that it owns."""
        deployment = self.platform.deployment("app")
        wrong = self.books.check(deployment)
        with parked(deployment):
            states = {
                name: deployment.components[name].state for name, node in deployment.mesh.nodes.items() if node.group
            }
            for name, owned in ranges(states, self.partitions).items():
                found = {key: partition_of(key, self.partitions) for key in states[name].numbers}
                wrong += [f"{name} has {key}" for key, partition in found.items() if partition not in owned]
        assert not wrong, "\n".join([*wrong, *self.trace])

    def crash(self) -> None:
        """The machine dies; a new platform goes on from what is on the disk, and nothing else."""
        self.trace.append("crash")
        before = self.root / f"life{self.life}"
        with state_at_rest(self.platform):
            self.life += 1
            shutil.copytree(before, self.root / f"life{self.life}")
        self.platform.close()
        self.platform, self.books = self.opened(), Books({})  # changes before the crash count for nothing here
        assert not self.platform.failed_to_restart, self.platform.failed_to_restart
        self.check()

    def finish(self) -> dict[tuple[int, bool], list[list[int]]]:
        """Let it come to its end; returns the results by key."""
        mesh = self.platform.mesh("app")
        for name, node in mesh.nodes.items():
            mesh = mesh.resume(name) if node.suspended else mesh
        self.platform.apply(mesh)
        self.over = True
        self.platform.wait("app", 60)
        self.check()
        return by_key(self.platform.deployment("app").components["kept"].state.rows)


def by_key(rows: list[list[int]]) -> dict[tuple[int, bool], list[list[int]]]:
    """Results by key, and the port by which its rows came, in order."""
    found: dict[tuple[int, bool], list[list[int]]] = {}
    for row in rows:
        found.setdefault((row[0], row[1] < 0), []).append(row)
    return found


def of_one(numbers: int, kind: type[Single]) -> dict[tuple[int, bool], list[list[int]]]:
    """The results of one instance, for all rows of so many numbers."""
    one, rows = kind(per=PerKey()), [row for number in range(1, numbers + 1) for row in rows_of(number)]
    return by_key([port(row) for port in ((one.x, one.other) if isinstance(one, Pair) else (one.x,)) for row in rows])


def run(seed: int) -> None:
    """Change and crash one group; compare it with one instance."""
    root = Path(tempfile.mkdtemp(prefix="exop-group-", dir=MEMORY if MEMORY.is_dir() else None))
    group = Group(random.Random(seed), root)
    try:
        for _ in range(10):
            group.let(30)
            step = group.chance.random()
            if step < 0.75:
                group.change()
            elif step < 0.9:
                group.platform.checkpoint("app")
            else:
                group.crash()
        found = group.finish()
        assert found == of_one(group.allowed, group.shapes[0]), "\n".join(group.trace)
    finally:
        group.over = True
        group.platform.close()
        shutil.rmtree(root, ignore_errors=True)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 1 << 32))
def test_a_group_gives_for_each_key_what_one_instance_gives(seed):
    """For any keys, batches, columns, changes (members come, go, are replaced, suspended, configured), and crashes."""
    with threads_leave():
        run(seed)


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_a_long_campaign_of_groups():
    """Others every time."""
    seconds, _, seed = os.environ["EXOP_STRESS"].partition(":")
    end, number = time.monotonic() + float(seconds), int(seed or random.randrange(1 << 32))
    while time.monotonic() < end:
        try:
            run(number)
        except BaseException as error:
            error.add_note(f"with the seed {number}")
            raise
        number += 1


def stays_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a key that moves stays with the former owner, too: it is handed over twice later."""
    moved = changing.move_keys

    def move(one: Any, before: Any, after: Any, undo: Any) -> None:
        were = {name: dict(after[name].state.numbers) for name in one.after}
        moved(one, before, after, undo)
        for name, numbers in were.items():
            after[name].state.numbers.update(numbers)

    monkeypatch.setattr(changing, "move_keys", move)


def left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions move, and the state does not."""
    monkeypatch.setattr(changing, "move_keys", lambda *given: None)


def other_hash_for_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column has other partitions than its items."""
    real = partitioned.rows_by_owner
    monkeypatch.setattr(partitioned, "rows_by_owner", lambda column, owners: real(column, owners[::-1]))


def lists_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The items of a list are assigned from its end."""
    real = partitioned.split
    monkeypatch.setattr(partitioned, "split", lambda batch, *more: real(batch[::-1], *more))


def moved_by_other_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a partitioned log's group moves by the number of partitions that other channels have by default."""
    monkeypatch.setattr(PartitionedLogChannel, "partitions_of", lambda spec: (spec.settings["by"], PARTITIONS))


def shared_by_other_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody compares the numbers of partitions of two channels that a group shares."""
    real, ports = checks.check_group, checks.shared_ports

    def check(*given: Any, **how: Any) -> None:
        equal = lambda *of: {port: (key, 1) for port, (key, _) in ports(*of).items()}  # noqa: E731
        with mock.patch.object(checks, "shared_ports", equal):
            real(*given, **how)

    for module in (checks, app_building):
        monkeypatch.setattr(module, "check_group", check)


def replayed_to_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that joins gets what a log has stored, which the other members have processed."""
    real = binding._kept

    def alone(*given: Any) -> Any:
        with mock.patch.object(WiringGraph, "groups", return_value={}):
            return real(*given)

    monkeypatch.setattr(binding, "_kept", alone)


def without_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions move past the items that wait in front of their former owners."""
    monkeypatch.setattr(region, "regrouped", lambda before, after, channel: [])


@pytest.mark.parametrize(
    "mistake",
    [
        stays_too,
        left_behind,
        other_hash_for_columns,
        lists_out_of_order,
        without_what_is_under_way,
        moved_by_other_partitions,
        shared_by_other_partitions,
        replayed_to_each_member,
    ],
)
def test_a_planted_mistake_is_caught(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch):
    """Each shows in one of a few groups."""
    mistake(monkeypatch)
    for seed in range(60):
        try:
            run(seed)
        except (AssertionError, PlanError):
            return
    pytest.fail("the mistake does not show")
