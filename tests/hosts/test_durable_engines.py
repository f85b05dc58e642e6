"""Engines in durable applications that span hosts: a slet that drives itself is replaced at its host."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.durable_app.engine import Doubled, doubled_here
from exop import Application, Platform, hookimpl
from exop.errors import StateError
from exop.hooks import Plugins
from exop.stock.slets import count_up
from tests.hosts.hosts_rig import GATES, SEEN, collect, keeps, opened
from tests.rig import eventually


class Offered:
    """The plugin with the slets."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [count_up, collect, keeps, opened, Doubled, doubled_here]


def platform(name: str, folder: Path) -> Platform:
    """A platform that has them."""
    plugins = Plugins()
    plugins.register("test", Offered())
    return Platform(name=name, control=False, plugins=plugins, listen=f"inproc:{name}", state=folder / name)


def grows() -> None:
    """Wait for more numbers, and check all of them."""
    before = len(SEEN.get("all", ()))
    eventually(lambda: len(SEEN.get("all", ())) > before + 100)
    seen = [*SEEN["all"]]
    assert seen == [2 * number for number in range(len(seen))]


def test_an_engine_is_replaced_in_a_durable_application(tmp_path: Path):
    """What is inside it goes to its successor, and nothing is lost, doubled or reordered, at the home or elsewhere."""
    SEEN.clear()
    with platform("b", tmp_path) as b, platform("a", tmp_path) as a:
        a.remoting.connect("inproc:b")
        app = Application("app")
        app.durable(every=0.1)
        numbers = app.add("numbers", count_up)
        app.on("b").add("collect", collect, item=app.add("engine", Doubled, number=numbers))
        mesh = a.apply(app.build())
        for slet in (doubled_here, Doubled):
            grows()
            mesh = a.apply(mesh.replace("engine", slet))
        grows()
        assert b.applications() == ["app"]


def test_streams_part_in_the_change_that_replaces_an_engine(tmp_path: Path):
    """Its vote has no checkpoint: what they have sent waits for the next one, since a kill may change the order."""

    def dead(snapshot: Any) -> int:
        raise StateError("it is killed")

    for gate in GATES.values():
        gate.clear()
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        app = Application("app")
        app.durable(every=3600)
        numbers = app.add("numbers", count_up, to=10)
        app.add("collect", collect, item=app.add("engine", Doubled, number=numbers))
        both = app.channel("both")
        for tag in GATES:
            app.add(tag, opened, tag=tag, out=both)
        app.on("c").add("keeps", keeps, item=both)
        mesh = a.apply(app.build())
        a.checkpoint("app")
        GATES["y"].set()
        eventually(lambda: a.deployment("app").channels["both.to.c"].depth == 10, "all of y")
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        a.apply(mesh.replace("engine", doubled_here).remove("y"))
        eventually(lambda: a.status("app")["checkpoints"]["failing"], "a checkpoint after the change")
        assert c.memento("app", "keeps").items == []
        stack.close()
        GATES["y"].clear()
        GATES["x"].set()
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 11)], "all of x")
