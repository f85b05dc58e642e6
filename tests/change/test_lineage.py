"""A log gives a state only if all that has made the state came by the log, in the same way, from a known row on."""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Any

import pytest

from bench.cases import state_at_rest
from exop import Application, Memento, Mesh, Platform, hookimpl, slet
from exop.errors import NotRebuildable
from exop.hooks import Plugins
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from tests.change.offered import offered
from tests.rig import eventually, parked

#: How many items come between two edits.
FEW = 10


class Number(Memento):
    """How far a source has come."""

    number: int = 0


class Had(Memento):
    """All items of the slet that is replaced."""

    items: list[int] = field(default_factory=list)


class Has(Memento):
    """The same in another class, which a log alone can give."""

    every: list[int] = field(default_factory=list)


class Line:
    """source → kept (a log) → a slet between → behind; sum and behind keep all that comes to them.

    Each can be crashed: another platform goes on from the last checkpoint.
    """

    def __init__(self, root: Any) -> None:
        self.root, self.allowed, self.lives, self.news = root, 0, 0, threading.Condition()

        def numbers(position: Number) -> Iterator[int | None]:
            life = self.lives
            while self.lives == life:
                if position.number < self.allowed:
                    position.number += 1
                    yield position.number
                else:
                    with self.news:
                        self.news.wait(0.001)
                    yield None

        @slet
        def scaled(x: int, *, by: int = 1) -> int:
            return x * by

        @slet(effects=False)
        def having(x: int, state: Had) -> None:
            state.items.append(x)

        @slet(effects=False)
        def keeping(x: int, state: Has) -> None:
            state.every.append(x)

        made = [offered(slet(numbers), "source"), offered(slet(numbers), "other"), scaled, having, keeping]
        self.slets = {one.name: one for one in map(spec_of, made)}
        self.platform = self.opened()
        app = Application("line", plugins=self.platform.plugins)
        kept = app.channel("kept", kind="log", keep="all")
        app.add("source", "line:source", out=kept)
        app.add("behind", "line:having", x=app.add("between", "line:scaled", x=kept))
        app.add("sum", "line:having", x=kept)
        app.durable(every=3600)
        self.platform.apply(app.build())
        self.more()

    @hookimpl
    def register_slets(self) -> list[SletSpec]:
        """What it is made of, so that it can be recovered."""
        return [*self.slets.values()]

    def opened(self) -> Platform:
        """The platform of the life that begins."""
        plugins = Plugins()
        plugins.register("line", self)
        return Platform(state=self.root / f"life{self.lives}", plugins=plugins, control=False).start()

    def more(self) -> None:
        """Let some items through, and wait until all of them have arrived."""
        self.allowed += FEW
        deployment = self.platform.deployment("line")
        sources = [deployment.components[name] for name in ("source", "other") if name in deployment.components]
        eventually(lambda: all(one.state.number == self.allowed for one in sources))
        eventually(lambda: not any(queue.entries for queue in deployment.inserted.values()))
        with parked(deployment):
            pass

    def apply(self, edit: Callable[[Mesh], Mesh]) -> None:
        """Change it."""
        self.platform.apply(edit(self.platform.mesh("line")))

    def crash(self) -> None:
        """The machine dies after a checkpoint; all goes on from there."""
        self.platform.checkpoint("line")
        with state_at_rest(self.platform):
            before, self.lives = self.root / f"life{self.lives}", self.lives + 1
            shutil.copytree(before, self.root / f"life{self.lives}")
        self.platform.close()
        self.platform = self.opened()
        assert not self.platform.failed_to_restart, self.platform.failed_to_restart

    def rebuilt(self, node: str) -> Mesh:
        """The mesh with another slet there, whose state the log has to give."""
        return self.platform.mesh("line").replace(node, self.slets["keeping"], rebuild="log")

    def added(self, mesh: Mesh, name: str, slet: str, *channels: ChannelSpec, **ports: str) -> Mesh:
        """The mesh with another node."""
        return mesh.add(Node(name, self.slets[slet], {}, ports), *channels)


Edit = Callable[[Line, Mesh], Mesh]


def younger_log(line: Line, mesh: Mesh) -> Mesh:
    """Put a log behind the slet between."""
    return mesh.rewire("between", out=ChannelSpec("young", "log", {"keep": "all"})).rewire("behind", x="young")


def other_log(line: Line, mesh: Mesh) -> Mesh:
    """Let the slet read another log, which has the same items."""
    mesh = line.added(mesh, "other", "other", ChannelSpec("others", "log", {"keep": "all"}), out="others")
    return mesh.rewire("sum", x="others")


def back(line: Line, mesh: Mesh) -> Mesh:
    """Let it read its first log again."""
    return mesh.rewire("sum", x="kept")


def late(line: Line, mesh: Mesh) -> Mesh:
    """Add one more slet to the log, which has items already."""
    return line.added(mesh, "late", "having", x="kept")


def late_path(line: Line, mesh: Mesh) -> Mesh:
    """Add one more slet, and another one between it and the log."""
    mesh = line.added(mesh, "before", "scaled", ChannelSpec("late-items"), x="kept", out="late-items")
    return line.added(mesh, "late", "having", x="late-items")


def late_behind(line: Line, mesh: Mesh) -> Mesh:
    """Add one more slet behind one that works already."""
    return line.added(mesh, "late", "having", x=mesh.nodes["between"].ports["out"])


def another_producer(line: Line, mesh: Mesh) -> Mesh:
    """Let another slet push past the log."""
    return line.added(mesh, "other", "other", out=mesh.nodes["between"].ports["out"])


def without_it(line: Line, mesh: Mesh) -> Mesh:
    """And no more."""
    return mesh.remove("other")


def lost(name: str) -> Edit:
    """Let a slet begin anew."""
    return lambda line, mesh: mesh.replace(name, line.slets["having"], lose_state=True)


def given(line: Line, mesh: Mesh) -> Mesh:
    """Give it a state."""
    return mesh.restore("sum", Had(items=[-1]))


def scaling(by: int, when: str | None = None) -> Edit:
    """Let the slet between give other items."""
    return lambda line, mesh: mesh.configure("between", by=by, **({} if when is None else {"when": when}))


def suspended(line: Line, mesh: Mesh) -> Mesh:
    """Suspend it for a while."""
    return line.platform.apply(mesh.suspend("sum")).resume("sum")


def again(line: Line, mesh: Mesh) -> Mesh:
    """Replace it by itself, with its state."""
    return mesh.edited({"sum": replace(mesh.nodes["sum"], slet=line.slets["having"])})


@pytest.mark.parametrize(
    ("node", "edits", "reason"),
    [
        ("sum", [], ""),
        ("behind", [], ""),
        ("sum", [suspended, again, scaling(2), late], ""),
        ("late", [late], ""),
        ("late", [late_path], ""),
        ("late", [late, lost("sum"), scaling(2)], ""),
        ("behind", [younger_log], "the log 'young' does not give all .* its port x was on 'between' up to revision 1"),
        ("sum", [other_log], "the log 'others' does not give all .* its port x was on 'kept' up to revision 1"),
        ("sum", [other_log, back], "the log 'kept' does not give all .* its port x was on 'others' up to revision 2"),
        ("late", [late_behind], "does not give all that between has processed: it began earlier than late"),
        ("behind", [another_producer, without_it], "other pushed other items into 'between' up to revision 2"),
        ("sum", [lost("sum")], "does not give all that sum has processed: it lost another state up to revision 1"),
        ("sum", [given], "does not give all that sum has processed: its state was given up to revision 1"),
        ("behind", [scaling(3), scaling(1)], "between pushed other items into 'between' up to revision 2"),
        ("behind", [scaling(3, "x >= 15")], "between pushed other items into 'between' up to revision 2"),
    ],
)
def test_a_log_gives_the_state_that_it_has_made(tmp_path, node, edits, reason):
    """Or the change is refused with the reason and a cure that works, also after a crash; the old slet goes on."""
    line = Line(tmp_path)
    try:
        for edit in edits:
            line.apply(lambda mesh, edit=edit: edit(line, mesh))
            line.more()
        if reason:
            with pytest.raises(NotRebuildable, match=reason):
                line.platform.plan(line.rebuilt(node))
        line.crash()
        if not reason:
            had = line.platform.deployment("line").components[node].state.items
            line.platform.apply(line.rebuilt(node))
            assert line.platform.deployment("line").components[node].state.every == had != []
            return
        with pytest.raises(NotRebuildable, match=reason):
            line.platform.apply(line.rebuilt(node))
        line.apply(lambda mesh: mesh.replace(node, line.slets["keeping"], lose_state=True))
        assert not line.platform.deployment("line").components[node].state.every
    finally:
        line.lives += 1
        line.platform.close()
