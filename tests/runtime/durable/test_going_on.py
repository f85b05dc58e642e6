"""A platform that was closed, or failed, goes on where its last checkpoint was taken, with all that was in hand."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from exop import (
    Application,
    InputPort,
    Memento,
    OutputPort,
    Platform,
    Punctuation,
    Slet,
    hookimpl,
    input_port,
    slet,
    stock,
)
from exop.errors import CheckpointError, ExopError, MeshError, NotStorable, PlanError, StateError, UnknownName
from exop.hooks import Plugins
from exop.model.expressions.functions import offer, withdraw
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.durable.checkpointer import Checkpointer
from exop.runtime.durable.store import Store
from exop.runtime.supervision.failure_state import NotStored
from exop.stock.slets import WriteLines, show
from tests.rig import eventually


class Position(Memento):
    """How far a source has come."""

    number: int = 0


class Seen(Memento):
    """What a sink has seen: part of the checkpoint, so that it is seen exactly once."""

    items: list[Any] = field(default_factory=list)


@dataclass
class World:
    """What the slets of a test share with it; it is not part of the application."""

    limit: int = 10
    broken: bool = False
    odd: Any = None
    gate: threading.Event = field(default_factory=threading.Event)
    calls: list[Any] = field(default_factory=list)


WORLD = World()


@pytest.fixture(autouse=True)
def world():
    """Every test has a world of its own."""
    vars(WORLD).update(vars(World()))
    yield WORLD
    WORLD.gate.set()


@slet
def upto(position: Position) -> Iterator[int | None]:
    """Emit numbers up to the limit there is, and wait then, until it is a negative one."""
    while WORLD.limit >= 0:
        if position.number < WORLD.limit:
            position.number += 1
            yield position.number
        else:
            threading.Event().wait(0.001)
            yield None


@slet
def marked(position: Position, *, step: int = 1) -> Iterator[int | Punctuation]:
    """Emit a number and a punctuation in turns."""
    while position.number < WORLD.limit:
        position.number += 1
        yield Punctuation(position.number // 2) if position.number % 2 == 0 else position.number * step


@slet
def silent(position: Position) -> Iterator[int]:
    """Wait inside of its own, and yield nothing."""
    WORLD.calls.append("silent")
    WORLD.gate.wait()
    yield position.number


@slet
def fragile(item: int) -> int:
    """Break at 5 while the world is broken."""
    WORLD.calls.append(item)
    if WORLD.broken and item == 5:
        raise ValueError("five")
    return item


@slet
def newest_two(window: Any) -> list[int]:
    """Emit the last two items; break where 5 is the newest while the world is broken. Older ones are evicted."""
    if WORLD.broken and window[-1] == 5:
        raise ValueError("five")
    window.evict(max(0, len(window) - 2))
    return list(window)


@slet
def odd_ones(item: int) -> Any:
    """Emit what cannot be stored."""
    return WORLD.odd if item == 5 and WORLD.odd is not None else item


@slet
def collect(item: Any, seen: Seen) -> None:
    """Keep what comes."""
    seen.items.append(item)


@slet
def marks(item: int | Punctuation, seen: Seen) -> None:
    """Keep what comes, and the punctuations."""
    seen.items.append(item)


@slet
def slow(entries: InputPort[int]) -> Iterator[int]:
    """Take items at its own pace, and stop at 5 until the gate is open."""
    for item in entries:
        if item == 5:
            WORLD.gate.wait()
        yield item


@slet
def two_each(position: Position) -> Iterator[int | None]:
    """Emit two items at each position, and wait between them until the gate is open."""
    while position.number < WORLD.limit:
        position.number += 1
        yield position.number
        while not WORLD.gate.is_set():
            threading.Event().wait(0.001)
            yield None
        yield -position.number


@slet
def forgetful() -> Iterator[int | None]:
    """Emit three numbers without keeping a position, and wait then."""
    yield from (1, 2, 3)
    while WORLD.limit >= 0:
        threading.Event().wait(0.001)
        yield None


@slet
def counting(item: int, seen: Seen) -> int:
    """Note an item in the memento, and break at 5 while the world is broken."""
    seen.items.append(item)
    if WORLD.broken and item == 5:
        raise ValueError("five")
    return item


@slet
def in_lots(entries: InputPort[int], kept: Seen) -> Iterator[int | None]:
    """Pull several items at a time, and keep those that are not dealt with; stop at 2 until the gate is open."""
    while True:
        while kept.items:
            while kept.items[0] == 2 and not WORLD.gate.is_set():
                threading.Event().wait(0.001)
                yield None
            yield kept.items.pop(0)
        kept.items += entries.pull(4)
        if not kept.items:
            return


class Parted(Slet):
    """Sends the even ones by another port."""

    even: OutputPort[int]

    @input_port
    def item(self, item: int) -> int | None:
        """Take one."""
        if item % 2:
            return item
        self.even.push(item)
        return None


class Preparing(Slet):
    """A sink that leaves the process when a checkpoint is prepared, while the world is broken."""

    seen: Seen

    @input_port
    def item(self, item: Any) -> None:
        """Keep it."""
        self.seen.items.append(item)

    def prepare_checkpoint(self, number: int) -> None:
        """Call `sys.exit`, as a library may."""
        if WORLD.broken:
            sys.exit("not now")


class Engine(Slet, own_driver=True):
    """A slet that drives itself."""

    out: OutputPort[int]


class Offered:
    """The plugin that offers them."""

    @staticmethod
    @hookimpl
    def register_slets() -> list[Any]:
        """All of them."""
        single = [upto, marked, silent, fragile, newest_two, odd_ones, collect, marks, slow, Parted, Engine]
        return [*single, two_each, forgetful, counting, in_lots, collect_too, shifted, Preparing]


def platform(state: Any) -> Platform:
    """A platform that finds the slets."""
    plugins = Plugins()
    plugins.register("test", Offered())
    plugins.register("stock", stock)
    return Platform(state=state, control=False, plugins=plugins)


def line(*slets: Any, on_error: Any = None, kind: str = "queue", every: float = 1000.0) -> Application:
    """Slets in a line, from `upto` to `collect`."""
    app = Application("line")
    app.durable(every=every)
    stream = app.add("upto", upto)
    for one in slets:
        name = one.__name__.lower()
        stream = app.add(
            name, one, on_error=on_error, **{spec_port(one): stream}, out=app.channel(f"after-{name}", kind)
        )
    app.add("collect", collect, item=stream)
    return app


def spec_port(one: Any) -> str:
    """The input port of a slet."""
    from exop.model.slets.slet import spec_of

    return spec_of(one).inputs[0].name


def seen(running: Platform, node: str = "collect") -> list[Any]:
    """What a sink holds."""
    state = running.deployment("line").components[node].state
    assert isinstance(state, Seen)
    return state.items


def _crash(running: Platform) -> None:
    """Leave it as a killed process would: no last checkpoint."""
    applications = running._applications
    for name in list(applications.checkpoints.takers):
        applications.checkpoints.stop(name)


def ran(tmp_path: Path, app: Application) -> None:
    """Run an application until its sink has ten items, and close the platform."""
    with platform(tmp_path) as running:
        running.apply(app.build())
        eventually(lambda: len(seen(running)) == 10)


def crashed(tmp_path: Path, app: Application, ready: Callable[[Platform], Any]) -> None:
    """Run an application until it is ready, take a checkpoint, and crash."""
    with platform(tmp_path) as running:
        running.apply(app.build())
        eventually(lambda: ready(running))
        running.checkpoint("line")
        _crash(running)


def goes_on(tmp_path: Path, most: int) -> None:
    """Start the platform again: its sink comes to have the numbers up to *most*, once and in order."""
    with platform(tmp_path) as running:
        eventually(lambda: len(seen(running)) == most)
        assert seen(running) == list(range(1, most + 1))


def test_closed_in_order_it_goes_on_without_a_gap(tmp_path, world):
    """The last checkpoint is taken when the platform is closed, and nothing moves after it."""
    ran(tmp_path, line(fragile))
    world.limit = 25
    goes_on(tmp_path, 25)
    assert world.calls == list(range(1, 26))


def test_a_suspended_slet_tries_its_item_again(tmp_path, world):
    """What its driver had in hand is part of the checkpoint; the repaired slet goes on with it, in order."""
    world.broken = True
    crashed(tmp_path, line(fragile), lambda running: running.deployment("line").failures())
    world.broken = False
    goes_on(tmp_path, 10)


def test_a_window_in_hand_is_the_channels_own(tmp_path, world):
    """The window with which a suspended slet is tried again is the one that it evicts from."""
    app = Application("line")
    app.durable(every=1000)
    app.channel("window", kind="window", evict=True)
    app.add("upto", upto, out="window")
    app.add("collect", collect, item=app.add("newest_two", newest_two, window="window"))
    world.broken = True
    crashed(tmp_path, app, lambda running: running.deployment("line").failures())
    world.broken = False
    with platform(tmp_path) as running:
        eventually(lambda: len(seen(running)) == 10)
        assert seen(running) == [[1], *([number, number + 1] for number in range(1, 10))]
        assert running.deployment("line").channels["window"].read("newest_two.window") == [9, 10]


def test_dead_letters_are_kept(tmp_path, world):
    """Item, port and traceback."""
    world.broken = True
    with platform(tmp_path) as running:
        running.apply(line(fragile, on_error="dead-letter").build())
        eventually(lambda: len(seen(running)) == 9)
    with platform(tmp_path) as running:
        (letter,) = running.deployment("line").components["fragile"].trouble.dead
        assert (letter.port, letter.item) == ("item", 5)
        assert "ValueError: five" in letter.error


def test_a_dead_letter_that_cannot_be_stored_stays_as_a_text(tmp_path, world):
    """It holds up no checkpoint; before the restart it is the item itself, and afterwards it is not tried again."""
    world.odd, world.broken = object(), True
    with platform(tmp_path) as running:
        running.apply(line(odd_ones, shifted, on_error="dead-letter").build())
        eventually(lambda: len(seen(running)) == 9)
        running.checkpoint("line")
        (letter,) = running.dead_letters("line", "shifted")
        assert letter.item is world.odd
        _crash(running)
    with platform(tmp_path) as running:
        (letter,) = running.dead_letters("line", "shifted")
        assert (letter.item, letter.port) == (NotStored(repr(world.odd)), "item")
        assert "TypeError" in letter.error
        with pytest.raises(PlanError, match=r"a restart has lost the items of 1 dead letter of line\.shifted"):
            running.retry_dead_letters("line", "shifted")
        assert running.dead_letters("line", "shifted") == [letter]
        with pytest.raises(NotStorable, match=r"line\.shifted.*object.*a restart has lost it"):
            letter.to_bytes()


def test_what_a_pulling_slet_has_taken_is_kept(tmp_path, world):
    """It has taken all that was there, and dealt with half of it."""
    with platform(tmp_path) as running:
        running.apply(line(slow).build())
        eventually(lambda: len(seen(running)) == 4)
        nowhere = mock.patch("exop.runtime.pause.whereabouts", return_value="")
        with nowhere, pytest.raises(CheckpointError, match="slow did not come to a safe point.*; it is tried again"):
            running._applications.checkpoints.takers["line"].take(0.01)
        world.gate.set()
        eventually(lambda: len(seen(running)) == 10)
        running.checkpoint("line")
        _crash(running)
    world.limit = 12
    goes_on(tmp_path, 12)


def test_punctuations_of_a_merge_go_on(tmp_path, world):
    """How far each producer has come is part of the checkpoint: none is told twice, none is lost, and it ends."""
    app = Application("line")
    app.durable(every=1000)
    both = app.channel("both")
    for name in ("one", "other"):
        app.add(name, marked, step=1 if name == "one" else -1, out=both)
    app.add("collect", marks, item=both)
    world.limit = 6
    with platform(tmp_path) as running:
        running.apply(app.build())
        assert running.wait("line", 60)
    with platform(tmp_path) as running:
        assert running.applications() == []  # it had finished
    with closing(Store(tmp_path)) as store:
        store.set_active("line", active=True)
    with platform(tmp_path) as running:
        assert running.wait("line", 60)
        found = [one for one in seen(running) if isinstance(one, Punctuation)]
        assert found == [Punctuation(1), Punctuation(2), Punctuation(3)]
        assert sorted(one for one in seen(running) if isinstance(one, int)) == [-5, -3, -1, 1, 3, 5]


def test_a_source_that_ends_after_recovery_ends_the_stream(tmp_path, world):
    """The end goes through everything that went on from a checkpoint."""
    with platform(tmp_path) as running:
        running.apply(line(fragile, slow).build())
        world.gate.set()
        eventually(lambda: len(seen(running)) == 10)
    world.limit = -1
    with platform(tmp_path) as running:
        assert running.wait("line", 60)
        assert seen(running) == list(range(1, 11))


def test_further_outputs(tmp_path, world):
    """What leaves by a second port is part of it as well."""
    app = line(Parted)
    app.add("evens", collect, item=app.output("parted", "even"))
    with platform(tmp_path) as running:
        running.apply(app.build())
        eventually(lambda: len(seen(running)) == len(seen(running, "evens")) == 5)
    world.limit = 12
    with platform(tmp_path) as running:
        eventually(lambda: len(seen(running)) == len(seen(running, "evens")) == 6)
        assert seen(running, "evens") == [2, 4, 6, 8, 10, 12]


def test_a_suspended_node_stays_suspended(tmp_path, world):
    """What waited for it waits still."""
    with platform(tmp_path) as running:
        mesh = running.apply(line(fragile).build())
        eventually(lambda: len(seen(running)) == 10)
        running.apply(mesh.suspend("fragile"))
        world.limit = 20
        eventually(lambda: running.deployment("line").components["upto"].driver.filled)
    with platform(tmp_path) as running:
        assert running.status("line")["nodes"]["fragile"]["state"] == "suspended"
        assert len(seen(running)) == 10
        running.apply(running.mesh("line").resume("fragile"))
        eventually(lambda: len(seen(running)) == 20)
        assert seen(running) == list(range(1, 21))


def test_a_change_is_in_a_checkpoint_when_it_is_made(tmp_path, world):
    """The mesh that is restored is the one that was applied last."""
    with platform(tmp_path) as running:
        mesh = running.apply(line(fragile).build())
        eventually(lambda: len(seen(running)) == 10)
        running.apply(mesh.replace("fragile", odd_ones))
        _crash(running)
    world.limit = 12
    with platform(tmp_path) as running:
        assert running.mesh("line").node("fragile").slet.name == "odd_ones"
        assert running.mesh("line").revision == 2
        eventually(lambda: len(seen(running)) == 12)
        assert seen(running) == list(range(1, 13))


def late(item: int) -> bool:
    """A function of conditions that a later release does not have."""
    return item > 100


@pytest.mark.parametrize("durable", [True, False])
def test_a_pending_update_whose_condition_is_refused_now(tmp_path, world, durable):
    """It is left out, and the reason is told; all else goes on, other updates too."""
    app = line(shifted)
    functions = offer("early", late)
    mesh = app.build() if durable else replace(app.build(), durable=None)
    mesh = mesh.configure("shifted", by=1000, when="early.late(item)").configure("shifted", by=100, when="item == 12")
    with platform(tmp_path) as running:
        running.apply(mesh)
        eventually(lambda: len(seen(running)) == 10)
        if durable:
            running.checkpoint("line")
        _crash(running)
    withdraw(functions)
    world.limit = 12
    with platform(tmp_path) as running:
        assert "pending update of shifted is refused" in running.restarted["line"]
        assert "there is no function 'early.late'" in running.restarted["line"]
        eventually(lambda: len(seen(running)) == 12)
        assert seen(running) == [*range(1, 12), 112]


class Kept(Memento):
    """What a sink has seen, in another form: it takes over that of `collect`."""

    items: list[Any] = field(default_factory=list)
    taken_over: int = 0

    @classmethod
    def upgrade(cls, old: Seen) -> Kept:
        """Take it over, unless the world is broken."""
        if WORLD.broken:
            raise ValueError("broken")
        return cls(items=old.items, taken_over=len(old.items))


@slet
def collect_too(item: Any, kept: Kept) -> None:
    """Keep what comes, in another form."""
    kept.items.append(item)


@slet
def shifted(item: int, *, by: int = 0) -> int:
    """Add a setting."""
    return item + by


def changed_without_a_checkpoint(tmp_path, monkeypatch, edit, mesh=None):
    """Make a change of which no checkpoint can be taken, behind a checkpoint with ten items, and crash."""
    with platform(tmp_path) as running:
        before = running.apply(mesh or line(fragile).build()).revision
        eventually(lambda: len(seen(running)) == 10)
        running.checkpoint("line")
        WORLD.limit = 15
        eventually(lambda: len(seen(running)) == 15)
        with monkeypatch.context() as patched:
            refused = CheckpointError(application="line", problem="no", cure="none")
            patched.setattr(Checkpointer, "take", lambda *_, **__: (_ for _ in ()).throw(refused))
            after = running.apply(edit(running.mesh("line")))
            _crash(running)
        assert after.revision > before
    WORLD.limit = 20


def test_a_change_behind_the_last_checkpoint_is_made_again(tmp_path, world, monkeypatch):
    """The mesh is the one that was applied last; the successor takes over the state that the checkpoint has."""
    changed_without_a_checkpoint(tmp_path, monkeypatch, lambda mesh: mesh.replace("collect", collect_too))
    for _ in range(2):
        with platform(tmp_path) as running:
            mesh = running.mesh("line")
            assert (mesh.node("collect").slet.name, mesh.revision) == ("collect_too", 2)
            eventually(lambda: len(running.deployment("line").components["collect"].state.items) == 20)
            state = running.deployment("line").components["collect"].state
            assert state.items == list(range(1, 21))
            assert 10 <= state.taken_over <= 20
            _crash(running)


def test_a_change_that_cannot_be_made_again_leaves_the_mesh_of_the_checkpoint(tmp_path, world, monkeypatch):
    """The application runs on, the next start tries it once more, and both are told."""
    changed_without_a_checkpoint(tmp_path, monkeypatch, lambda mesh: mesh.replace("collect", collect_too))
    world.broken = True
    with platform(tmp_path) as running:
        assert running.mesh("line").node("collect").slet.name == "collect"
        assert "to revision 2 that was made after it could not be made again" in running.restarted["line"]
        eventually(lambda: len(seen(running)) == 20)
    world.broken, world.limit = False, 25
    with platform(tmp_path) as running:
        assert running.mesh("line").node("collect").slet.name == "collect_too"
        assert "with the change to revision 2" in running.restarted["line"]
        eventually(lambda: len(running.deployment("line").components["collect"].state.items) == 25)


def test_a_line_that_took_effect_behind_the_last_checkpoint_does_so_again_at_its_item(tmp_path, world, monkeypatch):
    """Going back to the checkpoint it is pending again, also where another change was stored after it."""
    mesh = line(shifted).build().configure("shifted", by=1000, when="item == 13")
    changed_without_a_checkpoint(tmp_path, monkeypatch, lambda mesh: mesh.replace("collect", collect_too), mesh)
    with platform(tmp_path) as running:
        assert running.mesh("line").node("collect").slet.name == "collect_too"
        eventually(lambda: len(running.deployment("line").components["collect"].state.items) == 20)
        items = running.deployment("line").components["collect"].state.items
        assert items == [*range(1, 13), *range(1013, 1021)]
        assert not running.mesh("line").node("shifted").pending


def test_a_removed_application_begins_anew(tmp_path):
    """Its checkpoint is gone with it."""
    with platform(tmp_path) as running:
        running.apply(line(fragile).build())
        eventually(lambda: len(seen(running)) == 10)
        running.checkpoint("line")
        running.remove("line")
        running.apply(line(fragile).build())
        eventually(lambda: len(seen(running)) == 10)
        assert seen(running) == list(range(1, 11))


def test_a_source_that_does_not_yield(tmp_path, world):
    """Nobody knows its position: no checkpoint, the application runs on, and the status says why."""
    app = Application("line")
    app.durable(every=1000)
    app.add("collect", collect, item=app.add("silent", silent))
    with platform(tmp_path) as running:
        running.apply(app.build())
        eventually(lambda: world.calls)
        with pytest.raises(CheckpointError, match=r"silent did not come to a safe point.*yield None from time to time"):
            running._applications.checkpoints.takers["line"].take(0.01)
        assert "did not come" in running.status("line")["checkpoints"]["trouble"]
        world.gate.set()
        assert running.wait("line", 60)


def test_what_cannot_be_stored(tmp_path, world):
    """It is named; the application runs on, and is checkpointed again when that is gone."""
    world.odd = object()
    with platform(tmp_path) as running:
        running.apply(line(odd_ones).build())
        eventually(lambda: len(seen(running)) == 10)
        with pytest.raises(NotStorable, match=r"line\.collect: a value of builtins.object"):
            running.checkpoint("line")
        assert "builtins.object" in running.status("line")["checkpoints"]["trouble"]
        seen(running)[4] = 5
        running.checkpoint("line")
        assert running.status("line")["checkpoints"]["trouble"] is None


def test_a_sink_that_raises_when_a_checkpoint_is_prepared(tmp_path, world):
    """The checkpoint is refused by the name of the sink; the application runs on, and is checkpointed later."""
    app = Application("line")
    app.durable(every=1000)
    app.add("collect", Preparing, item=app.add("upto", upto))
    with platform(tmp_path) as running:
        running.apply(app.build())
        world.broken = True
        with pytest.raises(
            CheckpointError, match=r"collect\.prepare_checkpoint\(\) raised SystemExit.*repair that first"
        ):
            running.checkpoint("line")
        assert running.status("line")["state"] == "running"
        world.broken = False
        running.checkpoint("line")


def test_checkpoints_go_on_behind_an_error_that_nobody_foresaw(tmp_path, world, monkeypatch):
    """It is shown, and none is missed later; a change that was made meanwhile is made."""

    def sync(channel: QueueChannel) -> None:
        if world.broken:
            raise ConnectionError("the broker is away")

    monkeypatch.setattr(QueueChannel, "sync", sync)
    with platform(tmp_path) as running:
        running.apply(line(fragile, every=0.01).build())
        figures = running._applications.checkpointer("line").figures
        world.broken = True
        eventually(lambda: figures.failed > 1)
        assert figures.trouble is not None
        assert "ConnectionError: the broker is away; the application runs on; it is tried again" in figures.trouble
        assert running.apply(running.mesh("line").suspend("fragile")).revision == 2
        world.broken = False
        eventually(lambda: figures.trouble is None)


def test_a_full_disk(tmp_path, world):
    """The checkpoint before stands, the application runs on."""
    with platform(tmp_path) as running:
        running.apply(line(fragile).build())
        eventually(lambda: len(seen(running)) == 10)
        running.checkpoint("line")
        store = running._applications.store
        assert store is not None
        store.database.connection.execute("PRAGMA max_page_count = 1")
        seen(running).append("x" * 200_000)
        with pytest.raises(StateError, match=r"could not be written.*full.*the one before it stands"):
            running.checkpoint("line")
        assert "full" in running.status("line")["checkpoints"]["trouble"]
        world.limit = 11
        eventually(lambda: len(seen(running)) == 12)
        _crash(running)
    goes_on(tmp_path, 11)


def test_a_damaged_checkpoint_is_kept_and_told(tmp_path):
    """The application is not started, nor begun anew over it, until it is given up."""
    ran(tmp_path, line(fragile))
    _edit(tmp_path / "platform.sqlite", "UPDATE parts SET content = x'00' WHERE name = 'upto' AND kind = 'memento'")
    for _ in range(2):
        with platform(tmp_path) as running:
            assert "memento 'upto' is damaged" in str(running.failed_to_restart["line"])
            with pytest.raises(StateError, match=r"is kept.*exop remove line"):
                running.apply(line(fragile).build())
    with platform(tmp_path) as running:
        assert running.remove("line")
        running.apply(line(fragile).build())
        eventually(lambda: len(seen(running)) == 10)


def test_an_upgrade_that_raises_keeps_its_application_down(tmp_path, monkeypatch):
    """By name, with the cure; the others start, and it goes on when it is tried again after the cure."""
    other = Application("other")
    other.add("collect", collect, item=other.add("upto", upto))
    with platform(tmp_path) as running:
        running.apply(line(fragile).build())
        eventually(lambda: len(seen(running)) == 10)
        running.apply(other.build())
    monkeypatch.setattr(Seen, "__memento_version__", 2)
    upgrades = [lambda old: old.missing, lambda _: None, lambda _: sys.exit(7), lambda old: Seen(items=old.items)]
    told = ["Seen.upgrade raised AttributeError", "Seen.upgrade returned None", "SystemExit: 7"]
    with monkeypatch.context() as broken:
        broken.setattr(Seen, "upgrade", upgrades[0], raising=False)
        running = platform(tmp_path).start()
    for upgrade, problem in zip(upgrades[1:], told, strict=True):
        assert running.applications() == ["other"]
        assert problem in running.status()["failed_to_restart"]["line"]
        with pytest.raises(StateError, match=r"'line' is down.*exop resume line.*exop remove line"):
            running.mesh("line")
        monkeypatch.setattr(Seen, "upgrade", upgrade, raising=False)
        with suppress(ExopError):
            running.restart("line")
    assert not running.failed_to_restart
    assert seen(running) == list(range(1, 11))
    with pytest.raises(UnknownName, match="down"):
        running.restart("line")
    running.close()


def test_a_slet_that_is_gone(tmp_path, monkeypatch):
    """The checkpoint is kept for when its code is there again."""
    ran(tmp_path, line(fragile))
    with Platform(state=tmp_path, control=False) as bare:
        assert "test:" in str(bare.failed_to_restart["line"])
    with platform(tmp_path) as running:
        assert seen(running) == list(range(1, 11))


def test_it_needs_a_state_directory():
    """Told when the mesh is applied, with the cure."""
    with Platform(control=False) as running, pytest.raises(MeshError, match=r"no state directory.*--state DIR"):
        running.apply(line(fragile).build())


def test_a_slet_that_drives_itself_is_refused(tmp_path):
    """Nobody knows what it has in hand."""
    app = Application("line")
    app.durable()
    app.add("collect", collect, item=app.add("engine", Engine))
    with platform(tmp_path) as running, pytest.raises(MeshError, match=r"engine .*threads of its own"):
        running.apply(app.build())


def test_what_is_not_durable_has_no_checkpoints(tmp_path):
    """Asking for one is a mistake, and the status shows none."""
    app = Application("line")
    app.add("collect", collect, item=app.add("upto", upto))
    with platform(tmp_path) as running:
        running.apply(app.build())
        assert "checkpoints" not in running.status("line")
        with pytest.raises(CheckpointError, match=r"not durable.*app\.durable"):
            running.checkpoint("line")


def _edit(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(statement)


def test_a_running_application_becomes_durable_and_is_so_no_more(tmp_path):
    """How often checkpoints are taken is part of the mesh, and changed like everything else of it."""
    app = Application("line")
    app.add("collect", collect, item=app.add("upto", upto))
    with platform(tmp_path) as running:
        mesh = running.apply(app.build())
        mesh = running.apply(replace(mesh, durable=1000.0))
        assert running.status("line")["checkpoints"]["every_s"] == 1000.0
        store = running._applications.store
        assert store is not None
        assert store.checkpoints.has("line")
        running.apply(replace(mesh, durable=None))
        assert "checkpoints" not in running.status("line")
        assert not store.checkpoints.has("line")


def test_what_is_waited_for_is_in_the_files(tmp_path, world):
    """When `wait` returns, a process that is killed at once has left the whole output, and has nothing to do again."""
    world.limit = -1
    app = Application("line")
    app.durable(every=1000)
    app.add("write", "stock:write_lines", item=app.add("count", "stock:count_up", to=5), path=tmp_path / "out")
    with platform(tmp_path / "state") as running:
        running.apply(app.build())
        assert running.wait("line", 60)
        assert (tmp_path / "out").read_text() == "0\n1\n2\n3\n4\n"
        assert [one.active for one in running._applications.store.applications()] == [False]


def test_a_slow_source_keeps_nobody_else_waiting(tmp_path, world):
    """Until it has yielded, the others go on; the checkpoint is taken then."""
    app = line(fragile)
    app.add("late", collect, item=app.add("silent", silent))
    with platform(tmp_path) as running:
        running.apply(app.build())
        eventually(lambda: world.calls and len(seen(running)) == 10)
        running._applications.checkpoints.stop("line")
        taker = Checkpointer(running.deployment("line"), running._applications.store.checkpoints)
        taking = threading.Thread(target=taker.take)
        taking.start()
        silent_driver = running.deployment("line").components["silent"].driver
        eventually(lambda: silent_driver.closed)
        world.limit = 1000
        eventually(lambda: len(seen(running)) == 1000)
        assert taker.figures.taken == 0
        world.gate.set()
        taking.join(60)
        assert taker.figures.taken == 1


def test_effects_are_done_again(tmp_path, world, capsys):
    """At least once: what a slet does outside of its memento since the last checkpoint, it does again after a crash."""
    app = line(fragile)
    app.add("show", show, item=app.output("upto"))
    with platform(tmp_path) as running:
        running.apply(app.build())
        eventually(lambda: len(seen(running)) == 10)
        running.checkpoint("line")
        world.limit = 12
        eventually(lambda: len(seen(running)) == 12)
        _crash(running)
    with platform(tmp_path) as running:
        eventually(lambda: len(seen(running)) == 12)
    assert world.calls == [*range(1, 13), 11, 12]
    assert capsys.readouterr().out.split() == [str(number) for number in world.calls]


def test_several_items_per_position(tmp_path, world):
    """A source that emits two items at a position loses the second one, when the crash comes between them."""
    app = Application("line")
    app.durable(every=1000)
    app.add("collect", collect, item=app.add("two", two_each))
    world.limit = 1
    crashed(tmp_path, app, lambda running: seen(running) == [1])
    world.limit = 3
    world.gate.set()
    with platform(tmp_path) as running:
        eventually(lambda: seen(running) == [1, 2, -2, 3, -3])


def test_a_source_without_a_memento_begins_anew(tmp_path, world):
    """What it reads anew is doubled."""
    app = Application("line")
    app.durable(every=1000)
    app.add("collect", collect, item=app.add("forgetful", forgetful))
    crashed(tmp_path, app, lambda running: seen(running) == [1, 2, 3])
    with platform(tmp_path) as running:
        eventually(lambda: seen(running) == [1, 2, 3, 1, 2, 3])


def test_a_second_try_after_recovery_begins_with_the_memento_that_the_failed_call_left(tmp_path, world):
    """The item is counted twice by a slet that counts before it fails, as without a crash."""
    world.broken = True
    crashed(tmp_path, line(counting), lambda running: running.deployment("line").failures())
    world.broken = False
    with platform(tmp_path) as running:
        eventually(lambda: len(seen(running)) == 10)
        assert seen(running, "counting") == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10]


def test_what_was_pulled_and_is_kept_in_the_memento(tmp_path, world):
    """A slet that pulls several items at a time goes on with those that it had not dealt with."""
    crashed(tmp_path, line(in_lots), lambda running: seen(running) == [1] and seen(running, "in_lots"))
    world.gate.set()
    goes_on(tmp_path, 10)


def test_without_checkpoints_everything_begins_anew(tmp_path, world):
    """States are empty; what had left the process, or stands in a log on disk, is there, and comes once more."""
    app = Application("line")
    kept = app.channel("kept", kind="log", path=tmp_path / "log")
    app.add("upto", upto, out=kept)
    app.add("collect", collect, item=kept)
    app.add("write", WriteLines, item=kept, path=tmp_path / "out")
    for life in (1, 2):
        with platform(tmp_path / "state") as running:
            if life == 1:
                running.apply(app.build())
            eventually(lambda: len(seen(running)) == 10)
            assert running.deployment("line").channels["kept"].end == 10 * life
    assert (tmp_path / "out").read_text().split() == [str(number) for number in range(1, 11)]
