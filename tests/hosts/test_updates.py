"""Conditional updates in applications that span hosts: they take effect once, and hold after whatever follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exop import Application, slet
from exop.hosts.fragment import Fragments
from exop.hosts.home import Spanning
from exop.hosts.updates import decoded, encoded, pending_in, taken
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import ConditionalUpdate
from exop.runtime.conditional_updates import AppliedUpdate
from tests.change.tools import PACE, Position, Sum, Tap
from tests.hosts.moving import APP, Hosts, hosts
from tests.rig import eventually


@slet
def signed(x: int, so_far: Sum, *, by: int = 1) -> int:
    """Multiply."""
    so_far.total += x * by
    return x * by


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


def known(there: Hosts) -> Mesh:
    """Wait until the home knows what has taken effect."""
    eventually(lambda: not pending_in(there.home.mesh(APP)), "the home knows it")
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
        monkeypatch.setattr(Fragments, "updates", lambda *_: b"")
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


@pytest.mark.parametrize("told", [True, False], ids=["known", "not known"])
def test_windows_that_move_keep_the_size_that_has_taken_effect(tap: Tap, told: bool, monkeypatch: pytest.MonkeyPatch):
    """The channel has it where it goes."""
    if not told:
        monkeypatch.setattr(Fragments, "updates", lambda *_: b"")
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
        assert not pending_in(there.home.mesh(APP))
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
        assert not pending_in(there.home.mesh(APP))
        assert there.home.mesh(APP).node("b").settings["by"] == -1
        there.move("h3", "b")
        let(there, tap, 120)


def test_what_was_dropped_is_told_from_what_took_effect():
    """By the settings, unless a later update has set them, too; the bytes have all of it."""
    sizes = [{"by": 2}, {"by": 3, "of": 4}, {"by": 2}, {"by": 5}]
    pending = [AppliedUpdate("nodes", "b", ConditionalUpdate("x > 1", one)) for one in sizes]
    assert decoded(encoded(pending)) == pending

    def outcome(left: int, **settings: int) -> list[bool]:
        return [one.dropped for one in taken(pending, [("nodes", "b", left, settings)])]

    assert outcome(4, by=1) == outcome(5, by=1) == []
    assert outcome(3, by=2) == [False]
    assert outcome(3, by=1) == outcome(3) == [True]
    assert outcome(1, by=2, of=4) == [False] * 3
    assert outcome(1, by=2, of=0) == [False, True, False]
