"""Kills between a change of a durable application and the checkpoint after it, over hosts and before engines."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench.durable_app.engine import Doubled, doubled_here
from exop import Application, Platform, hookimpl, slet
from exop.errors import ExopError, PlanError, StateError, WiringError
from exop.hooks import Plugins
from exop.hosts.fragment_change import FragmentChange
from exop.stock.slets import count_up
from tests.hosts.hosts_rig import Last, collect, keeps, opened
from tests.rig import PATIENCE, eventually, stress_seeds

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


def with_an_engine() -> Application:
    """An application with an engine, `numbers → engine → there`, whose checkpoints the test takes."""
    app = Application("app")
    app.durable(every=3600)
    app.add("there", keeps, item=app.add("engine", Doubled, number=app.add("numbers", rising)))
    return app


@pytest.mark.parametrize("engine", [True, False])
def test_a_change_that_is_in_no_checkpoint(tmp_path: Path, engine: bool):
    """Another slet, which emits less, and other readers: after a kill, the change is made at another item.

    If it replaces an engine, its vote has no checkpoint; so what is made of it leaves the host with the next one.
    """
    READY[0] = 10
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        app = with_an_engine()
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
        eventually(lambda: a.dead_letters("app", "some") != [], "the dead letter")
        a.checkpoint("app")  # without it, the engine gets nothing more: after a kill, the item might not fail
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


def killed(a: Platform, stack: ExitStack, folder: Path) -> Platform:
    """The platform, which has written no checkpoint any more, started again."""
    stack.close()
    a = stack.enter_context(platform("a", folder))
    a.remoting.connect("inproc:c")
    eventually(lambda: "app" in a.applications(), "the application")
    return a


def test_an_end_on_request_that_is_in_no_checkpoint(tmp_path: Path):
    """After a kill the sources go on: hosts and engines, which count, have not got the end in place of an item."""
    READY[0] = 10
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        app = with_an_engine()
        app.on("c").add("keeps", keeps, item=app.add("rising", rising, out=app.channel("far")))
        a.apply(app.build())
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 11)], "the first ones")
        eventually(lambda: a.memento("app", "there").items == [*range(2, 21, 2)], "those of the engine")
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        a.end("app")
        eventually(lambda: a.deployment("app").components["rising"].has_ended, "the end")
        time.sleep(0.1)  # the end would arrive
        assert not c.deployment("app").components["keeps"].has_ended
        a = killed(a, stack, tmp_path)
        READY[0] = 30
        eventually(lambda: 30 in c.memento("app", "keeps").items and 60 in a.memento("app", "there").items, "the rest")
        assert c.memento("app", "keeps").items == [*range(1, 31)]
        assert a.memento("app", "there").items == [*range(2, 61, 2)]
        a.end("app")
        eventually(lambda: a.deployment("app").components["rising"].has_ended, "the end")
        a.checkpoint("app")
        assert a.wait("app", PATIENCE)


def test_an_end_on_request_that_is_answered(tmp_path: Path):
    """A checkpoint has it, on all hosts, so a kill does not let the sources go on."""
    READY[0] = 10
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        app = Application("app")
        app.durable(every=3600)
        numbers = app.add("rising", rising, out=app.channel("near", "queue"))
        app.add("near", keeps, item=numbers)
        app.on("c").add("far", keeps, item=app.add("others", rising))
        mesh = a.apply(app.build())
        eventually(lambda: a.memento("app", "near").items == [*range(1, 11)], "the first ones")
        a.apply(mesh.suspend("near"))
        READY[0] = 20
        sources = [a.deployment("app").components[name] for name in ("rising", "others")]
        eventually(lambda: all(one.state.number == 20 for one in sources), "more, which wait")
        assert a.end("app", PATIENCE)
        READY[0] = 30
        a = killed(a, stack, tmp_path)
        a.apply(a.mesh("app").resume("near"))
        assert a.wait("app", PATIENCE)
        assert a.memento("app", "near").items == c.memento("app", "far").items == [*range(1, 21)]


def test_an_end_on_request_that_is_not_stored(tmp_path: Path):
    """Nobody has waited, or no checkpoint can be written; an application that is not durable has none."""
    READY[0] = 10
    for durable in (True, False):
        with platform("a", tmp_path / str(durable)) as a:
            app = Application("app")
            if durable:
                app.durable(every=3600)
            app.add("keeps", keeps, item=app.add("rising", rising))
            a.apply(app.build())
            eventually(lambda: a.memento("app", "keeps").items == [*range(1, 11)], "the first ones")
            a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
            assert a.end("app") is not durable
            assert a.end("app", PATIENCE) is not durable


def test_a_push_of_a_client_that_is_in_no_checkpoint(tmp_path: Path):
    """After a kill nobody pushes it again: no item of the source has its number at the host that has received it."""
    READY[0] = 10
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        eventually(lambda: "a" in c.remoting.peers and c.remoting.peers["a"].connected, "a link")
        app = Application("app")
        app.durable(every=3600)
        far = app.add("rising", rising, out=app.channel("far", "queue"))
        app.on("c").add("keeps", keeps, item=far)
        a.apply(app.build())
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 11)], "the first ones")
        client = c.remoting.peers["a"].platform().channel("app", "far")
        client.push([100])
        a.checkpoint("app")
        eventually(lambda: 100 in c.memento("app", "keeps").items, "what a checkpoint has")
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        client.push([200])
        a = killed(a, stack, tmp_path)
        READY[0] = 30
        eventually(lambda: 30 in c.memento("app", "keeps").items, "the rest")
        assert c.memento("app", "keeps").items == [*range(1, 11), 100, *range(11, 31)]


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_an_item_that_does_not_fail_again_after_a_kill(tmp_path: Path, policy: str):
    """It was left out, in no checkpoint; its result does not get the number of one that the other host has received."""
    READY[0], BROKEN[0] = 4, True
    with platform("c", tmp_path) as c, ExitStack() as stack:
        a = stack.enter_context(platform("a", tmp_path))
        a.remoting.connect("inproc:c")
        app = Application("app")
        app.durable(every=3600)
        far = app.add("some", some, item=app.add("rising", rising), on_error=policy, out=app.channel("far"))
        app.on("c").add("keeps", keeps, item=far)
        a.apply(app.build())
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 5)], "the first ones")
        a._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        READY[0] = 10
        eventually(lambda: a.deployment("app").components["rising"].state.number == 10, "all")
        time.sleep(0.1)  # the next ones would arrive
        BROKEN[0] = False
        a = killed(a, stack, tmp_path)
        READY[0] = 20
        eventually(lambda: 20 in c.memento("app", "keeps").items, "the rest")
        assert c.memento("app", "keeps").items == [*range(1, 21)]


@pytest.mark.parametrize("killed", ["a", "c"])
def test_checkpoints_begin_in_a_running_application(tmp_path: Path, killed: str):
    """The first one is part of the change: a host that is killed before it has written one goes on from there."""
    READY[0] = 10
    with ExitStack() as stack:
        there = {name: stack.enter_context(platform(name, tmp_path)) for name in ("a", "c")}
        there["a"].remoting.connect("inproc:c")
        app = Application("app")
        app.on("c").add("keeps", keeps, item=app.add("rising", rising, out=app.channel("far", "queue")))
        mesh = there["a"].apply(app.build())
        eventually(lambda: there["c"].memento("app", "keeps").items == [*range(1, 11)], "the first ones")
        there[killed]._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        there["a"].apply(replace(mesh, durable=3600.0))
        READY[0] = 20
        eventually(lambda: there["c"].memento("app", "keeps").items == [*range(1, 21)], "more")
        there[killed].close()
        there[killed] = stack.enter_context(platform(killed, tmp_path))
        there["a"].remoting.connect("inproc:c")
        READY[0] = 30
        eventually(lambda: _taken("app", there["a"])[-1:] == [30], "the rest")
        assert _taken("app", there["a"]) == [*range(1, 31)]


def test_checkpoints_that_would_have_begun_in_an_aborted_change(tmp_path: Path):
    """None is taken, and connectors go on without."""
    READY[0] = 10
    with platform("c", tmp_path) as c, platform("a", tmp_path) as a:
        a.remoting.connect("inproc:c")
        app = Application("app")
        app.on("c").add("keeps", keeps, item=app.add("rising", rising, out=app.channel("far", "queue")))
        mesh = a.apply(app.build())
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 11)], "the first ones")
        refuses = mock.Mock(side_effect=PlanError("not now"))
        late = mock.patch.object(FragmentChange, "_known", refuses)  # at the end of the cut
        with late, pytest.raises(PlanError, match="not now"):
            a.apply(replace(mesh, durable=3600.0))
        READY[0] = 2000
        eventually(lambda: c.memento("app", "keeps").items == [*range(1, 2001)], "all, without a checkpoint")
        for one in (a, c):
            assert "app" not in one._applications.checkpoints.takers


def campaign(seed: int, folder: Path) -> str:
    """Change a chain of slets, perhaps with an engine, on one host or two; kill a host that has stored nothing since.

    Returns why the mesh was refused, or nothing.
    """
    chance, read = random.Random(seed), partial(_taken, "app")
    hosts = chance.choice((("a",), ("a", "c"), ("a", "c")))
    app, between = Application("app"), [f"pass{number}" for number in range(chance.randint(1, 3))]
    app.durable(every=3600)
    end: Any = app.on(chance.choice(hosts)).add("rising", rising)
    middles = dict.fromkeys(between, passes)
    if by := chance.randrange(2):
        at = chance.randint(1, len(between))
        middles = dict([*list(middles.items())[:at], ("engine", Doubled), *list(middles.items())[at:]])
    for name, slet_of in middles.items():
        kind = chance.choice(("direct", "queue"))
        out = app.channel(f"{name}s", kind, host=chance.choice(hosts) if kind == "queue" else None)
        port = "number" if name == "engine" else "item"
        app.on(chance.choice(hosts)).add(name, slet_of, out=out, **{port: end})
        end = out
    app.on(chance.choice(hosts)).add("keeps", keeps, item=end)
    READY[0] = 10
    with ExitStack() as stack:
        there = {name: stack.enter_context(platform(name, folder)) for name in hosts}
        for name in hosts[1:]:
            there["a"].remoting.connect(f"inproc:{name}")
        try:
            mesh = there["a"].apply(app.build())
        except (WiringError, PlanError) as refused:
            if "commits by itself" not in str(refused):
                raise
            return str(refused)
        factor = 1 + by
        eventually(lambda: read(there["a"])[-1:] == [10 * factor], "the first ones")
        there["a"].checkpoint("app")
        READY[0] = 20
        eventually(lambda: read(there["a"])[-1:] == [20 * factor], "more")
        name = chance.choice(sorted({node.host or "a" for node in mesh.nodes.values()}))
        there[name]._applications.store.checkpoints.write = dead  # type: ignore[union-attr, method-assign]
        after = mesh.replace(chance.choice(between), evens)
        there["a"].apply(after.replace("engine", doubled_here) if by and chance.random() < 0.5 else after)
        READY[0] = 30
        source = there[mesh.node("rising").host or "a"].deployment("app").components["rising"]
        eventually(lambda: source.state.number > 20 or source.driver.held_by, "what comes of it")  # type: ignore[union-attr]
        there[name].close()
        there[name] = stack.enter_context(platform(name, folder))
        for other in hosts[1:]:
            there["a"].remoting.connect(f"inproc:{other}")
        READY[0] = 60
        eventually(lambda: read(there["a"])[-1:] == [60 * factor], "the rest")
        kept = [number // factor for number in read(there["a"])]
        assert halved(kept), f"{seed}: {kept}\n{after.to_toml()}\n{name} was killed"
    return ""


def _taken(application: str, home: Platform) -> list[int]:
    """What the sink has, as far as it can be asked."""
    with suppress(ExopError):
        return list(home.memento(application, "keeps").items)
    return []


@pytest.mark.parametrize("seed", range(6))
def test_any_change_that_is_in_no_checkpoint(tmp_path: Path, seed: int) -> None:
    """Nothing is lost, doubled or out of order, wherever the change is made again."""
    campaign(seed, tmp_path)


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_any_change_that_is_in_no_checkpoint_for_long(tmp_path: Path) -> None:
    """The same with as many seeds as the time allows."""
    for seed in stress_seeds():
        try:
            campaign(seed, tmp_path / str(seed))
        except BaseException as problem:
            problem.add_note(f"EXOP_STRESS=1:{seed}")
            raise
