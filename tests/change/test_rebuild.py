"""A successor that cannot take the state makes its own out of the log that its input comes from."""

from dataclasses import field
from typing import Any

import pyarrow as pa
import pytest

from exop import Application, Batch, Memento, Platform, Punctuation, slet
from exop.errors import NotRebuildable, PlanError
from exop.model.mesh import ChannelSpec, Node
from exop.model.shadow import Shadow
from exop.model.slet import spec_of
from tests.change.tools import Tap, changed, end, endless, finish, grows, suspended, whole, writing
from tests.rig import eventually


class Sum(Memento):
    """What the predecessor keeps."""

    total: int = 0


class Seen(Memento):
    """What the successor keeps: nothing that could be made out of a sum."""

    numbers: list[int] = field(default_factory=list)


@slet
def summing(x: int, state: Sum) -> int:
    """Pass on, and add up."""
    state.total += x
    return x


@slet
def remembering(x: int, state: Seen) -> int:
    """Pass on, and keep everything."""
    state.numbers.append(x)
    return x


def kept_line(source: Any, seen: list[Any], first: Any = summing, **log: Any) -> Application:
    """A source, a log, a slet with a state, a sink."""
    app = Application("line")
    kept = app.channel("kept", kind="log", **{"keep": "all", **log})
    app.add("source", source, out=kept)
    app.add("sink", writing(seen), x=app.add("sum", first, x=kept))
    return app


def state_of(platform: Platform) -> Any:
    """The state of the slet that is replaced."""
    return platform.deployment("line").components["sum"].state


@pytest.mark.parametrize("log", [{}, {"path": "log", "segment": 20_000}], ids=["memory", "disk"])
def test_under_load(tmp_path, log):
    """It has seen what its predecessor has, each item once and in order, and goes on with the next."""
    seen: list[int] = []
    log = {**log, "path": tmp_path / log["path"]} if log else {}
    with Platform() as platform:
        platform.apply(kept_line(endless, seen, **log).build())
        for successor, before in ((remembering, 3000), (summing, 2000), (remembering, 10)):
            grows(seen, before)
            changed(platform, "line", lambda mesh, to=successor: mesh.replace("sum", to, rebuild="log"))
        end(platform, "line")
        assert state_of(platform).numbers == seen
    whole(seen)


def test_a_slet_may_rebuild_its_own_state():
    """The same slet with what it would have, had it always been as it is."""
    seen: list[int] = []
    tap = Tap()
    with Platform() as platform:
        platform.apply(kept_line(tap.source(), seen).build())
        tap.let(10)
        eventually(lambda: len(seen) == 10)
        state_of(platform).total = -1
        changed(platform, "line", lambda mesh: mesh.replace("sum", summing, rebuild="log"))
        assert state_of(platform).total == sum(range(1, 11))
        tap.shut()
        finish(platform, "line")


def test_the_plan_says_so():
    """Nothing has happened yet."""
    tap = Tap()
    with Platform() as platform:
        platform.apply(kept_line(tap.source(), []).build())
        mesh = platform.mesh("line").replace("sum", remembering, rebuild="log")
        text = str(platform.plan(mesh))
        assert "the state rebuilt from the log" in text
        assert "open → replay → pause → drain → replay the last bit" in text
        tap.shut()
        finish(platform, "line")


def test_the_item_on_which_the_old_one_is_suspended_is_not_part_of_it():
    """What it has not taken is not replayed: the successor is given it."""
    seen: list[int] = []
    tap = Tap()

    @slet
    def fragile(x: int, state: Sum) -> int:
        if x == 5:
            raise ValueError(x)
        return x

    with Platform() as platform:
        platform.apply(kept_line(tap.source(), seen, fragile).build())
        tap.let(8)
        suspended(platform, "line", "sum")
        changed(platform, "line", lambda mesh: mesh.replace("sum", remembering, rebuild="log"))
        eventually(lambda: len(seen) == 8)
        tap.shut()
        finish(platform, "line")
        assert state_of(platform).numbers == seen
    whole(seen, 8)


def test_what_waits_between_log_and_slet_is_not_replayed():
    """A newcomer is given what the log keeps through a queue: it stands far behind the end of the log."""
    seen: list[int] = []
    tap = Tap()

    @slet
    def fragile(x: int, state: Sum) -> int:
        if x == 3:
            raise ValueError(x)
        return x

    with Platform() as platform:
        app = Application("line")
        kept = app.channel("kept", kind="log", replay=True)
        app.add("source", tap.source(), out=kept)
        app.add("other", writing([]), x=kept)
        mesh = platform.apply(app.build())
        tap.let(50)
        log = platform.deployment("line").channels["kept"]
        eventually(lambda: log.end == 50)
        mesh = _added(mesh, fragile, seen)
        platform.apply(mesh)
        suspended(platform, "line", "sum")
        changed(platform, "line", lambda one: one.replace("sum", remembering, rebuild="log"))
        eventually(lambda: len(seen) == 50)
        tap.shut()
        finish(platform, "line")
        assert state_of(platform).numbers == seen
    whole(seen, 50)


def test_under_load_behind_a_queue():
    """While the source goes on, the log and the queue behind it are read at one moment: no item is replayed twice."""
    seen: list[int] = []
    with Platform() as platform:
        app = Application("line")
        kept = app.channel("kept", kind="log", keep="all", replay=True)
        app.add("source", endless, out=kept)
        app.add("other", writing([]), x=kept)
        mesh = platform.apply(app.build())
        platform.apply(_added(mesh, summing, seen))
        for successor in (remembering, summing, remembering, summing, remembering):
            grows(seen, 500)
            changed(platform, "line", lambda mesh, to=successor: mesh.replace("sum", to, rebuild="log"))
        end(platform, "line")
        assert state_of(platform).numbers == seen
    whole(seen)


def _added(mesh, first, seen):
    """The mesh with one more branch behind the log."""
    node = Node("sum", spec_of(first), {}, {"x": "kept", "out": "sums"})
    return mesh.add(node, ChannelSpec("sums")).add(Node("sink", spec_of(writing(seen)), {}, {"x": "sums"}))


def test_batches_and_columns_are_replayed_as_they_came():
    """Lists and record batches, converted as the port of the successor wants them."""
    seen: list[Any] = []
    tap = Tap()

    @slet
    def columns(x: pa.RecordBatch, state: Seen) -> pa.RecordBatch:
        state.numbers += x["n"].to_pylist()
        return x

    numbers = tap.source()

    @slet
    def packed(n: int) -> Batch[dict[str, int]] | None:
        return Batch([{"n": n}, {"n": -n}]) if n % 2 else None

    app = Application("line")
    kept = app.channel("kept", kind="log")
    app.add("pack", packed, n=app.add("source", numbers), out=kept)

    @slet
    def rows(x: dict[str, int], state: Sum) -> dict[str, int]:
        return x

    app.add("sink", writing(seen), x=app.add("sum", rows, x=kept))
    with Platform() as platform:
        platform.apply(app.build())
        tap.let(5)
        eventually(lambda: len(seen) == 6)
        changed(platform, "line", lambda mesh: mesh.replace("sum", columns, rebuild="log"))
        assert state_of(platform).numbers == [1, -1, 3, -3, 5, -5]
        tap.let(2)
        tap.shut()
        finish(platform, "line")
        assert state_of(platform).numbers == [1, -1, 3, -3, 5, -5, 7, -7]
    assert len(seen) == 8


def test_a_successor_that_fails_in_the_replay_is_refused():
    """The old one runs on, with its state."""
    seen: list[int] = []
    tap = Tap()

    @slet
    def fragile(x: int, state: Seen) -> int:
        if x == 5:
            raise ValueError("five")
        return x

    with Platform() as platform:
        platform.apply(kept_line(tap.source(), seen).build())
        tap.let(8)
        eventually(lambda: len(seen) == 8)
        with pytest.raises(NotRebuildable, match="five"):
            changed(platform, "line", lambda mesh: mesh.replace("sum", fragile, rebuild="log"))
        tap.let(2)
        tap.shut()
        finish(platform, "line")
        assert state_of(platform).total == sum(range(1, 11))
    whole(seen, 10)


@slet
def stateless(x: int) -> int:
    """Keeps nothing."""
    return x


@slet
def marked(x: int | Punctuation, state: Seen) -> int:
    """Takes punctuations."""
    return 0


@slet(effects=True)
def telling(x: int, state: Seen) -> int:
    """Acts on something outside."""
    return x


@pytest.mark.parametrize(
    ("successor", "log", "problem"),
    [
        (stateless, {}, "stateless keeps no state"),
        (marked, {}, "takes punctuations"),
        (telling, {}, "acts on something outside"),
        (remembering, {"keep": 3}, "begins with row 7, and the application began at 0; let the log keep more"),
    ],
)
def test_what_a_log_cannot_give_is_refused_in_the_plan(successor, log, problem):
    """Before anything has happened, with what can be done."""
    seen: list[int] = []
    tap = Tap()
    with Platform() as platform:
        platform.apply(kept_line(tap.source(), seen, **log).build())
        tap.let(10)
        eventually(lambda: len(seen) == 10)
        with pytest.raises(NotRebuildable, match=problem):
            platform.plan(platform.mesh("line").replace("sum", successor, rebuild="log"))
        tap.shut()
        finish(platform, "line")


def test_an_input_that_is_no_log_is_refused():
    """What has passed through a queue is nowhere."""
    tap = Tap()
    app = Application("line")
    app.add("sum", summing, x=app.add("source", tap.source(), out=app.channel("kept", kind="queue")))
    with Platform() as platform:
        mesh = platform.apply(app.build()).replace("sum", remembering, rebuild="log")
        with pytest.raises(NotRebuildable, match=r"its input 'kept' is no log \(it is queue\)"):
            platform.plan(mesh)
        tap.shut()
        finish(platform, "line")


def test_it_is_not_proven_by_a_shadow():
    """A copy of the state is what a shadow begins with, and there is none."""
    tap = Tap()
    with Platform() as platform:
        mesh = platform.apply(kept_line(tap.source(), []).build()).replace("sum", remembering, rebuild="log")
        with pytest.raises(PlanError, match="cannot be proven"):
            platform.plan(mesh).apply(shadow=Shadow(items=1))
        tap.shut()
        finish(platform, "line")
