"""Engines in durable applications that span hosts: a slet that drives itself is replaced at its host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.durable_app.engine import Doubled, doubled_here
from exop import Application, InputPort, Platform, hookimpl, slet
from exop.errors import StateError
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.model.slets.slet import spec_of
from exop.runtime.lifecycle import State
from exop.stock.slets import count_up
from exop.wiring.changes import change
from tests.hosts.hosts_rig import GATES, SEEN, Last, collect, keeps, opened
from tests.rig import eventually

#: How far the sources `steps` may come.
LIMIT = {"x": 0, "y": 0}
#: While it is not set, `breaks` raises from 20 on.
WORKS = threading.Event()


@slet
def steps(position: Last, *, tag: str = "x") -> Iterator[int]:
    """Emit numbers, as many as are permitted."""
    while True:
        if position.number >= LIMIT[tag]:
            time.sleep(0.001)
            yield None  # type: ignore[misc]
        else:
            position.number += 1
            yield position.number + 100 * (tag == "y")


@slet
def evens(number: int) -> int | None:
    """Pass the even ones."""
    return None if number % 2 else number


@slet
def passing(number: int) -> int:
    """Pass everything."""
    return number


@slet
def slowly(number: InputPort[int]) -> Iterator[int]:
    """Pass everything that it pulls."""
    for one in number:
        time.sleep(0.02)
        yield one


@slet(on_error="suspend")
def breaks(number: int) -> int:
    """Pass everything, if it works."""
    if number >= 20 and not WORKS.is_set():
        raise ValueError("it does not work")
    return number


class Twice(Doubled, own_driver=True, name="twice"):
    """Another engine that doubles."""


class Fails(Doubled, own_driver=True, name="fails"):
    """Fails at 20, and computes another batch all the same, when `WORKS` is set."""

    most: int = 20

    def work(self, event: int, state: dict[str, int]) -> int:
        """Double it."""
        if event == 21:
            self.out.fail(ValueError("it does not work"))
            WORKS.wait()
        return 2 * event


class Offered:
    """The plugin with the slets."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        here = [steps, evens, passing, slowly, breaks, Twice, Fails]
        return [count_up, collect, keeps, opened, Doubled, doubled_here, *here]


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


def emitted(one: Platform, source: str) -> int:
    """How many numbers a source has emitted; none before it is started again."""
    found = one._applications.deployed.get("app")
    return found.components[source].state.number if found is not None and source in found.components else 0


def dead(snapshot: Any) -> int:
    """Write nothing: the platform is killed."""
    raise StateError("it is killed")


def test_streams_part_in_the_change_that_replaces_an_engine(tmp_path: Path):
    """What they have sent waits for a checkpoint, that of the cut: a kill after it does not change the order."""
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
        stack.close()
        GATES["y"].clear()
        GATES["x"].set()
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        eventually(lambda: c.memento("app", "keeps").items == [*range(101, 111), *range(1, 11)], "all of both")


def y_comes(mesh: Mesh) -> Mesh:
    """Another stream meets that of x."""
    return mesh.add_slet("y", spec_of(steps), {"out": "x"}, {"tag": "y"})


def every_other(mesh: Mesh) -> Mesh:
    """What passes everything passes the even ones."""
    return mesh.replace("passes", evens)


def keeps_more(mesh: Mesh) -> Mesh:
    """Another connector."""
    return mesh.add_slet("more", spec_of(keeps), {"item": "passes"}, {}, host="c")


@pytest.mark.parametrize("edit", [y_comes, every_other, keeps_more])
def test_a_platform_is_killed_after_a_change_that_replaces_an_engine(tmp_path: Path, edit: Callable[[Mesh], Mesh]):
    """It goes on from the cut: from an older checkpoint, others would come under the numbers of what has been sent."""
    LIMIT.update(x=0, y=0)
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        app = Application("app")
        app.durable(every=3600)
        app.add("collect", collect, item=app.add("engine", Doubled, number=app.add("numbers", count_up, to=10)))
        app.on("c").add("keeps", keeps, item=app.add("passes", passing, number=app.add("x", steps)))
        mesh = a.apply(app.build())
        a.checkpoint("app")
        LIMIT["x"] = 10
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 11)], "all of x")
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        a.apply(edit(mesh.replace("engine", doubled_here)))
        eventually(lambda: a.status("app")["checkpoints"]["failing"], "a checkpoint after the change")
        if edit is keeps_more:
            LIMIT["x"] = 20
            eventually(lambda: len(c.memento("app", "more").items) == 10, "more of x")
        stack.close()
        LIMIT.update(x=0, y=10)
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        if edit is y_comes:
            eventually(lambda: emitted(a, "y") == 10, "all of y")
            a.checkpoint("app")
        LIMIT["x"] = 30
        eventually(lambda: emitted(a, "x") == 30, "all of x")
        a.checkpoint("app")
        rest = {y_comes: [*range(101, 111), *range(11, 31)], every_other: [*range(12, 31, 2)]}
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 11), *rest.get(edit, range(11, 31))], "all")
        if edit is keeps_more:
            eventually(lambda: c.memento("app", "more").items == [*range(11, 31)], "all of the new connector")


@pytest.mark.parametrize("successor", [doubled_here, Twice])
def test_what_is_inside_an_engine_is_in_the_checkpoint_of_the_cut(tmp_path: Path, successor: Any):
    """What it has not sent, since a slet after it is suspended, and what it has not processed, in this order."""
    LIMIT.update(x=0, y=0)
    WORKS.clear()
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        app = Application("app")
        app.durable(every=3600)
        engine = app.add("engine", Doubled, number=app.add("x", steps))
        app.on("c").add("keeps", keeps, item=app.add("breaks", breaks, number=engine))
        mesh = a.apply(app.build())
        LIMIT["x"] = 300
        eventually(lambda: a.deployment("app").components["breaks"].blocked, "it is suspended")
        eventually(lambda: emitted(a, "x") == 300, "all of x")
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        a.apply(mesh.replace("engine", successor), timeout=1)
        eventually(lambda: a.status("app")["checkpoints"]["failing"], "a checkpoint after the change")
        stack.close()
        WORKS.set()
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        LIMIT["x"] = 400
        eventually(lambda: c.memento("app", "keeps").items == [*range(2, 802, 2)], "all of x")


def test_what_a_slet_has_pulled_is_in_the_checkpoint_of_the_cut(tmp_path: Path):
    """Also if its successor does not pull."""
    LIMIT.update(x=100)
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        app = Application("app")
        app.durable(every=3600)
        app.on("c").add("keeps", keeps, item=app.add("pulls", slowly, number=app.add("x", steps)))
        mesh = a.apply(app.build())
        eventually(lambda: len(a.deployment("app").components["pulls"].pulled["number"].taken) > 10, "it has pulled")
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        a.apply(mesh.replace("pulls", passing))
        eventually(lambda: a.status("app")["checkpoints"]["failing"], "a checkpoint after the change")
        stack.close()
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        eventually(lambda: emitted(a, "x") == 100, "all of x")
        a.checkpoint("app")
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 101)], "all of x")


def test_a_failed_engine_puts_out_nothing_from_the_cut_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its next batch would be in the checkpoint of the cut twice: as its output, and as input for its successor."""
    LIMIT.update(x=20)
    WORKS.clear()
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        app = Application("app")
        app.durable(every=3600)
        app.on("c").add("keeps", keeps, item=app.add("engine", Fails, number=app.add("x", steps)))
        mesh = a.apply(app.build())
        eventually(lambda: c.memento("app", "keeps").items == [*range(2, 42, 2)], "the first batch")
        LIMIT.update(x=60)
        engine = a.deployment("app").components["engine"]
        eventually(lambda: engine.status is State.FAILED and engine.tie.arrived("number") == 60, "it has failed")
        tie, was, peek = engine.tie, engine.tie.committed.batch, change.peek_unsent

        def late(component: Any, successor: Any) -> Any:
            WORKS.set()
            eventually(lambda: tie.held or tie.committed.batch > was, "it is held, or goes on")
            return peek(component, successor)

        monkeypatch.setattr(change, "peek_unsent", late)
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        a.apply(mesh.replace("engine", doubled_here))
        monkeypatch.undo()
        eventually(lambda: a.status("app")["checkpoints"]["failing"], "a checkpoint after the change")
        stack.close()
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        LIMIT.update(x=70)
        eventually(lambda: c.memento("app", "keeps").items[-1] == 140, "all of x")
        assert c.memento("app", "keeps").items == [*range(2, 142, 2)]
