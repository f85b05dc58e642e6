"""Conditional updates in applications that span hosts: they take effect once, and hold after whatever follows."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Slet, input_port, slet
from exop.errors import PlanError, StaleMesh, UnknownName
from exop.hosts.fragment import Fragments
from exop.hosts.home import Spanning
from exop.hosts.updates import learnt, planned, without_gone
from exop.model.meshes.mesh import Mesh
from tests.change.tools import PACE, Position, Sum, Tap, count_to, plain
from tests.hosts.moving import APP, Hosts, hosts
from tests.rig import eventually


@slet
def signed(x: int, so_far: Sum, *, by: int = 1) -> int:
    """Multiply."""
    so_far.total += x * by
    return x * by


class Mode(enum.Enum):
    """A setting that is no plain value."""

    PLAIN = 1
    OTHER = 2


@slet
def typed(x: int, *, by: int = 1, mode: Mode = Mode.PLAIN, at: Path = Path("here")) -> int:
    """Multiply."""
    return x * by


class Refuses(Slet, name="refuses"):
    """Multiplies, and refuses some settings."""

    by: int = 1
    of: int = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "of" and value == 9:
            raise ValueError("not 9")
        super().__setattr__(name, value)

    @input_port
    def x(self, x: int) -> int:
        """Multiply."""
        return x * self.by


class Takes(Slet, name="takes"):
    """Multiplies, and takes all settings."""

    by: int = 1
    of: int = 0

    @input_port
    def x(self, x: int) -> int:
        """Multiply."""
        return x * self.by


class Patient(Tap):
    """One whose source comes to its safe point while it waits, so that checkpoints are taken."""

    def next(self, position: int) -> bool:
        """Whether the number *position* is let through."""
        return position < self._allowed

    def source(self) -> Any:
        """The source: the numbers 1, 2, 3, …"""

        @slet
        def patient(position: Position) -> Iterator[int | None]:
            while True:
                ready = self.next(position.number)
                position.number += ready
                yield position.number if ready else PACE.wait(0.001) or None

        return patient


@pytest.fixture
def tap() -> Tap:
    """What lets numbers through."""
    return Patient()


def begin(there: Hosts, source: Any, every: float | None = None) -> Mesh:
    """Run a line in which the sign changes at 50, on the second host."""
    line = there.line(source, signed, durable=every).move("b", to="h2")
    return there.home.apply(line.configure("b", when="x == 50", by=-1))


def let(there: Hosts, tap: Tap, upto: int) -> None:
    """Let further numbers through; each has come once, in order, and with the sign of its time."""
    tap.let(upto - len(there.seen))
    eventually(lambda: len(there.seen) >= upto)
    assert there.seen == [x if x < 50 else -x for x in range(1, upto + 1)]


def pending(there: Hosts) -> list[Any]:
    """What is pending, as far as the home knows."""
    mesh = there.home.mesh(APP)
    return [one for place in (*mesh.nodes.values(), *mesh.channels.values()) for one in place.pending]


def known(there: Hosts) -> Mesh:
    """Wait until the home knows what has taken effect."""
    eventually(lambda: not pending(there), "the home knows it")
    return there.home.mesh(APP)


def test_the_home_gets_to_know_what_has_taken_effect(tap: Tap):
    """Its mesh and history have the update, which becomes a part of an edit that was begun before; it remains."""
    with hosts("h1", "h2", slets=(signed, source := tap.source())) as there:
        before = begin(there, source)
        let(there, tap, 60)
        assert (known(there).revision, known(there).node("b").settings["by"]) == (before.revision + 1, -1)
        said = "conditional update took effect", "b", ["by=-1 when x == 50"]
        entries = partial(there.home.history, APP)
        eventually(lambda: said in [(one["what"], one.get("node"), one.get("steps")) for one in entries()])
        made = there.home.apply(before.move("sink", to="h2"))
        assert (made.revision, made.node("b").settings["by"]) == (before.revision + 2, -1)
        let(there, tap, 120)


@pytest.mark.parametrize("told", [True, False], ids=["known", "not known"])
def test_what_moves_keeps_what_has_taken_effect(tap: Tap, told: bool, monkeypatch: pytest.MonkeyPatch):
    """Also if the home does not know of it when the move is planned, and at the next host."""
    if not told:
        monkeypatch.setattr(Fragments, "updates", lambda *_: ())
    with hosts("h1", "h2", "h3", slets=(signed, source := tap.source())) as there:
        begin(there, source)
        there.move("h1", "b")
        let(there, tap, 60)
        if told:
            known(there)
        for to in ("h3", "h1"):
            there.move(to, "b")
            let(there, tap, len(there.seen) + 20)
            assert there.component(to, "b").state.total == sum(there.seen)


@pytest.mark.parametrize(("old", "new"), [(Refuses, Takes), (Takes, Refuses)])
@pytest.mark.parametrize("told", [True, False], ids=["known", "not known"])
def test_the_home_knows_the_settings_of_a_predecessor_that_is_back(
    tap: Tap, old: Any, new: Any, told: bool, monkeypatch: pytest.MonkeyPatch
):
    """It has refused settings that its successor has taken, or the other way round."""
    if not told:
        monkeypatch.setattr(Fragments, "updates", lambda *_: ())
    with hosts("h1", "h2", slets=(Refuses, Takes, source := tap.source())) as there:
        line = there.line(source, old).move("b", to="h2")
        mesh = there.home.apply(line.configure("b", when="x == 50", by=-1, of=9))
        there.home.plan(mesh.replace("b", new)).apply(keep=60.0)
        tap.let(60)
        eventually(lambda: len(there.seen) == 60)
        if told:
            known(there)
        there.home.rollback(APP, "b")
        monkeypatch.undo()
        assert known(there).node("b").settings == there.component("h2", "b").node.settings
        tap.let(10)
        eventually(lambda: len(there.seen) == 70)
        assert there.seen[-1] == (70 if old is Refuses else -70)


@pytest.mark.parametrize("told", [True, False], ids=["known", "not known"])
def test_windows_that_move_keep_the_size_that_has_taken_effect(tap: Tap, told: bool, monkeypatch: pytest.MonkeyPatch):
    """The channel has it where it goes."""
    if not told:
        monkeypatch.setattr(Fragments, "updates", lambda *_: ())
    with hosts("h1", "h2", slets=(source := tap.source(),)) as there:
        app = Application(APP)
        windows = app.channel("windows", "window", count=10, host="h2")
        app.add("a", source, out=windows)
        app.on("h2").add("sink", there.sink, x=windows)
        there.home.apply(app.build().configure_channel("windows", when="item == 25", count=5, close_windows=True))
        tap.let(36)
        eventually(lambda: len(there.seen) == 5)
        if told:
            known(there)
        there.move("h1", "windows", "sink")
        tap.let(14)
        eventually(lambda: len(there.seen) >= 8)
        assert [len(one) for one in there.seen] == [10, 10, 4, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("name", ["h1", "h2"])
def test_a_platform_that_is_started_again_takes_nothing_back(tap: Tap, name: str, tmp_path: Path):
    """A change of another node, and a move, after a restart of the home or of the host."""
    with (
        hosts("h1", "h2", slets=(signed, source := tap.source()), state=tmp_path) as there,
        ExitStack() as stack,
    ):
        begin(there, source, every=0.05)
        let(there, tap, 60)
        known(there)
        there.platforms[name].close()
        there.platforms[name] = stack.enter_context(there.platform(name))
        there.home = there.platforms["h1"]
        there.connect()
        eventually(lambda: there.home.status(APP)["state"] == "running")
        assert not pending(there)
        there.move("h2", "sink")
        let(there, tap, 90)
        there.move("h1", "b")
        let(there, tap, 120)


@pytest.mark.parametrize("told", [True, False], ids=["known", "not known"])
def test_another_home_knows_what_has_taken_effect(tap: Tap, told: bool, monkeypatch: pytest.MonkeyPatch):
    """Also if the former home did not know it: the hosts tell it to the new one."""
    with hosts("h1", "h2", "h3", slets=(signed, source := tap.source())) as there:
        if not told:
            monkeypatch.setattr(Spanning, "learn", lambda *_: [])
        line = there.line(source, signed).configure("b", when="x == 50", by=-1)
        there.home.apply(line.move("b", to="h2").move("a", to="h3").move("sink", to="h3"))
        let(there, tap, 60)
        if told:
            known(there)
        there.home.close()
        there.home = there.platforms["h2"]
        there.home.adopt(APP)
        assert not pending(there)
        assert there.home.mesh(APP).node("b").settings["by"] == -1
        there.move("h3", "b")
        let(there, tap, 120)


def test_settings_of_any_type_stay_as_they_are(tap: Tap):
    """Only numbers travel: neither an enum nor a path, whose folder the host knows, is taken for another value."""
    with hosts("h1", "h2", "h3", slets=(typed, source := tap.source())) as there:
        line = there.line(source, typed).move("b", to="h2")
        there.home.apply(line.configure("b", when="x == 50", by=-1, mode=Mode.OTHER, at=Path("there")))
        let(there, tap, 60)
        assert known(there).node("b").settings["mode"] is Mode.OTHER
        there.move("h3", "b")
        let(there, tap, 120)


@pytest.mark.parametrize("moves", [(), ("h3",), ("h3", "h2")], ids=["stays", "moves", "moves there and back"])
@pytest.mark.parametrize("again", [False, True], ids=["", "started again"])
def test_what_a_slet_refuses_is_told_from_what_took_effect(tap: Tap, moves: Any, again: bool, tmp_path: Path):
    """Also before a checkpoint has it, where it moves, and when its host is started again."""
    slets = (Refuses, signed, source := tap.source())
    with hosts("h1", "h2", "h3", slets=slets, state=tmp_path) as there, ExitStack() as stack:
        line = there.line(source, Refuses, signed, durable=3600.0).move("b", to="h2").move("c", to="h2")
        line = line.configure("b", when="x == 20", of=9).configure("b", when="x == 50", by=-1)
        there.home.apply(line.configure("b", when="x == 1000", by=1))
        let(there, tap, 40)
        for to in moves:
            there.move(to, "b")
        let(there, tap, 60)
        at = (*moves, "h2")[len(moves) - 1]
        if again:
            there.platforms[at].close()
            there.platforms[at] = stack.enter_context(there.platform(at))
            there.connect()
            eventually(lambda: there.home.status(APP)["state"] == "running")
        there.home.checkpoint(APP)
        eventually(lambda: len(pending(there)) == 1)
        assert there.home.mesh(APP).node("b").settings == {"by": -1, "of": 0}
        there.apply(lambda mesh: mesh.suspend("c"))
        there.apply(lambda mesh: mesh.resume("c"))
        there.move("h1", "b")
        let(there, tap, 120)


def test_a_cancel_that_comes_too_late_is_refused(tap: Tap, tmp_path: Path):
    """Until the home knows what has taken effect; then the edit begins there."""
    with hosts("h1", "h2", slets=(signed, source := tap.source()), state=tmp_path) as there:
        begin(there, source, every=3600.0)
        let(there, tap, 60)
        for edit in (there.home.mesh(APP).configure("b"), there.home.mesh(APP).configure("b").move("b", to="h1")):
            with pytest.raises(
                PlanError, match="settings of b that the change cancels, or others precede, have taken effect"
            ):
                there.home.apply(edit)
        let(there, tap, 80)
        there.home.checkpoint(APP)
        there.home.apply(known(there).configure("b"))
        let(there, tap, 120)


def test_what_begins_to_span_hosts_elsewhere_is_a_fragment_here(tap: Tap):
    """The home knows of the updates, and the application ends with all of its parts."""
    with hosts("h1", "h2", slets=(signed, count_to, source := tap.source())) as there:
        alone = there.home.apply(there.line(source, signed).configure("b", when="x == 50", by=-1))
        app = Application(APP)
        numbers = app.on("h2").add("other", count_to, to=5)
        app.on("h2").add("too", there.sink_too, x=numbers)
        more = app.build()
        there.home.apply(alone.edited(dict(more.nodes), dict(more.channels)))
        let(there, tap, 60)
        assert known(there).node("b").settings["by"] == -1
        eventually(lambda: there.seen_too == [1, 2, 3, 4, 5])
        let(there, tap, 70)
        assert there.home.status(APP)["state"] == "running"
        assert there.home.remove(APP)
        assert there.home.applications() == []


def test_a_plan_to_span_hosts_that_is_outdated_is_refused(tap: Tap):
    """Another change came first, or the application is gone; an update that took effect becomes a part of it."""
    with hosts("h1", "h2", slets=(signed, source := tap.source())) as there:
        alone = there.home.apply(there.line(source, signed).configure("b", when="x == 50", by=-1))
        plan, other = (there.home.plan(alone.move(node, to="h2")) for node in ("sink", "b"))
        let(there, tap, 60)
        plan.apply()
        let(there, tap, 80)
        with pytest.raises(StaleMesh):
            other.apply()
        there.home.remove(APP)
        with pytest.raises(UnknownName):
            other.apply()


def test_the_next_application_of_a_name_begins_anew(tap: Tap):
    """It can be changed, although updates of the former one are known."""
    with hosts("h1", "h2", slets=(signed, source := tap.source())) as there:
        begin(there, source)
        let(there, tap, 60)
        known(there)
        there.home.remove(APP)
        made = begin(there, source)
        assert there.home.apply(made.suspend("b")).revision > made.revision  # its own updates count, too


def test_a_part_that_does_not_fit_gets_the_updates_of_the_home(tap: Tap):
    """It lacks them, and has not processed them."""
    with hosts("h1", "h2", slets=(signed, source := tap.source())) as there:
        there.home.apply(there.line(source, signed).move("b", to="h2"))
        home = there.home._hosts.homes[APP]  # as if it had committed a plan that an operator on h2 has aborted
        home.mesh = armed = home.mesh.configure("b", when="x == 50", by=-1).at(home.mesh.revision + 1)
        home.hosts["h2"] = "other@h1"
        there.platforms["h2"]._hosts.here.known[APP].overruled = True
        eventually(lambda: there.home.status(APP)["hosts"]["h2"]["state"] == "fragment lost")
        assert there.home.accept_loss(APP) == ["h2"]
        let(there, tap, 60)
        known(there)
        home.hosts["h2"] = "another@h1"
        there.platforms["h2"]._hosts.here.known[APP].overruled = True
        eventually(lambda: there.home.status(APP)["hosts"]["h2"]["state"] == "fragment lost")
        home.mesh = armed.at(home.mesh.revision)  # it does not know what has taken effect there
        assert there.home.accept_loss(APP) == ["h2"]
        let(there, tap, 120)


def test_positions_in_the_planned_mesh():
    """Of equal updates, too: those that are gone are the first; a successor does without those that it lacks."""
    app = Application(APP)
    app.add("b", signed, x=app.add("a", count_to))
    before = app.build()
    for by in (2, 3, 2):
        before = before.configure("b", when="x > 1", by=by)
    after = before.edited({"b": replace(before.node("b"), pending=before.node("b").pending[1:])})
    assert [*planned(before, after)] == [("nodes", "b", [-1, 0, 1])]
    assert [*planned(before, before.replace("b", plain))] == [("nodes", "b", [None] * 3)]
    gone = without_gone(before, ("nodes", "b", [0, 1, 2]), [False, True]).node("b")
    assert (gone.settings["by"], [one.settings["by"] for one in gone.pending]) == (2, [2])
    assert [one.dropped for one in learnt(before, [("nodes", "b", 1, [True])])] == [False, True]
    assert learnt(before, [("nodes", "b", 4, []), ("nodes", "c", 0, [])]) == []
