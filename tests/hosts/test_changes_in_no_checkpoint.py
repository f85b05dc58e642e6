"""Kills between a change of a durable application and the checkpoint after it, over hosts and before engines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.durable_app.engine import Doubled, doubled_here
from exop import Application, Platform, hookimpl, slet
from exop.errors import StateError
from exop.hooks import Plugins
from exop.stock.slets import count_up
from tests.hosts.hosts_rig import Last, collect, keeps, opened
from tests.rig import eventually

#: The last number that sources emit so far.
READY = [0]


@slet
def rising(position: Last) -> Iterator[int | None]:
    """Emit the numbers from 1 on, as far as they are ready."""
    while True:
        if position.number < READY[0]:
            position.number += 1
            yield position.number
        else:
            yield None
            time.sleep(0.001)


@slet
def passes(item: int) -> int:
    """Pass on all."""
    return item


@slet
def evens(item: int) -> Iterator[int]:
    """Pass on every other one."""
    if item % 2 == 0:
        yield item


#: Whether a slet does not take the number 5.
BROKEN = [False]


@slet
def some(item: int) -> int:
    """Pass on all, or nearly."""
    if item == 5 and BROKEN[0]:
        raise ValueError("not yet")
    return item


class Offered:
    """The plugin with the slets."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [count_up, collect, keeps, opened, rising, passes, evens, some, Doubled, doubled_here]


def platform(name: str, folder: Path) -> Platform:
    """A platform that has them."""
    plugins = Plugins()
    plugins.register("test", Offered())
    return Platform(name=name, control=False, plugins=plugins, listen=f"inproc:{name}", state=folder / name)


def dead(snapshot: Any) -> int:
    """Instead of writing a checkpoint: whatever comes later is lost by a kill."""
    raise StateError("it is killed")


def halved(items: list[int]) -> int | None:
    """The last number before only the even ones come; `None` if anything is lost, doubled or out of order."""
    found = range(max(items, default=0) + 1)
    return next((at for at in found if items == [n for n in found[1:] if n <= at or n % 2 == 0]), None)


@pytest.mark.parametrize("engine", [True, False])
def test_a_change_that_is_in_no_checkpoint(tmp_path: Path, engine: bool):
    """Another slet, which emits less, and other readers: after a kill, the change is made at another item.

    If it replaces an engine, its vote has no checkpoint; so what is made of it leaves the host with the next one.
    """
    READY[0] = 10
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        app = Application("app")
        app.durable(every=3600)
        app.add("there", keeps, item=app.add("engine", Doubled, number=app.add("numbers", rising)))
        far = app.add("pass", passes, item=app.add("rising", rising), out=app.channel("far"))
        app.on("c").add("keeps", keeps, item=far)
        mesh = a.apply(app.build())
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 11)], "the first ones")
        a.checkpoint("app")
        READY[0] = 20
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 21)], "more")
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        after = mesh.replace("pass", evens).add(replace(mesh.node("keeps"), name="late"))
        a.apply(after.replace("engine", doubled_here) if engine else after)
        READY[0] = 30
        eventually(lambda: a.status("app")["checkpoints"]["failing"], "a checkpoint after the change")
        eventually(lambda: a.deployment("app").components["rising"].state.number == 30, "all")
        stack.close()
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        eventually(lambda: "app" in a.applications() and a.mesh("app").node("pass").slet.name == "evens", "the change")
        READY[0] = 60
        eventually(lambda: 60 in c.memento("app", "keeps").items and 60 in c.memento("app", "late").items, "the rest")
        eventually(lambda: 120 in a.memento("app", "there").items, "the rest of the engine")
        kept, late = (c.memento("app", name).items for name in ("keeps", "late"))
        assert halved(kept), kept
        assert late == kept[20:]
        assert a.memento("app", "there").items == [*range(2, 121, 2)]
        assert {one["state"] for one in a.status("app")["hosts"].values()} == {"running"}


def test_a_change_before_an_engine_that_is_in_no_checkpoint(tmp_path: Path):
    """On one host: what comes of it reaches the engine, whose journal counts, with the next checkpoint."""
    READY[0] = 10
    with ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        app = Application("app")
        app.durable(every=3600)
        passed = app.add("pass", passes, item=app.add("rising", rising))
        app.add("keeps", keeps, item=app.add("engine", Doubled, number=passed))
        mesh = a.apply(app.build())
        eventually(lambda: a.memento("app", "keeps").items == [*range(2, 21, 2)], "the first ones")
        a.checkpoint("app")
        READY[0] = 20
        eventually(lambda: a.memento("app", "keeps").items == [*range(2, 41, 2)], "more")
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        a.apply(mesh.replace("pass", evens))
        READY[0] = 30
        eventually(lambda: a.status("app")["checkpoints"]["failing"], "a checkpoint after the change")
        pusher = a.deployment("app").components["engine"].pusher
        assert pusher is not None
        eventually(lambda: "engine waits for a checkpoint" in str(pusher.held_by), "what waits")
        stack.close()
        a = stack.enter_context(platform("a", tmp_path))
        eventually(lambda: "app" in a.applications() and a.mesh("app").node("pass").slet.name == "evens", "the change")
        READY[0] = 60
        eventually(lambda: 120 in a.memento("app", "keeps").items, "the rest")
        assert halved([number // 2 for number in a.memento("app", "keeps").items]), a.memento("app", "keeps").items


def test_dead_letters_that_are_tried_again_and_in_no_checkpoint(tmp_path: Path):
    """A kill takes the trial back, and no other item passes for what came of it: they are dead letters as before."""
    READY[0], BROKEN[0] = 10, True
    with ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        app = Application("app")
        app.durable(every=3600)
        passed = app.add("some", some, item=app.add("rising", rising), on_error="dead-letter")
        app.add("keeps", keeps, item=app.add("engine", Doubled, number=passed))
        a.apply(app.build())
        eventually(lambda: 20 in a.memento("app", "keeps").items, "the first ones")
        a.checkpoint("app")
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        BROKEN[0] = False
        assert a.retry_dead_letters("app", "some") == 1
        READY[0] = 20
        eventually(lambda: a.status("app")["checkpoints"]["failing"], "a checkpoint after it")
        stack.close()
        a = stack.enter_context(platform("a", tmp_path))
        eventually(lambda: 40 in a.memento("app", "keeps").items, "the rest")
        assert a.memento("app", "keeps").items == [2 * number for number in range(1, 21) if number != 5]
        assert a.retry_dead_letters("app", "some") == 1
        eventually(lambda: a.memento("app", "keeps").items[-1] == 10, "the dead letter")
