"""A successor that cannot take the state makes its own out of the log that its input comes from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Event
from typing import Any, Self

import pyarrow as pa
import pytest

from bench.durable_app.engine import Summed
from exop import (
    Application,
    Batch,
    InputPort,
    Memento,
    Mesh,
    OutputPorts,
    Platform,
    Punctuation,
    Slet,
    hookimpl,
    input_port,
    slet,
)
from exop.errors import NotRebuildable, PlanError
from exop.hooks import Plugins
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.meshes.shadow import Shadow
from exop.model.slets.slet import spec_of
from exop.stock.joins import Join
from tests.change.tools import PACE, Tap, changed, end, endless, finish, grows, suspended, whole, writing
from tests.rig import PATIENCE, eventually


class Sum(Memento):
    """The state of the predecessor."""

    total: int = 0


class Seen(Memento):
    """The state of the successor, which cannot be made from a sum."""

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


class Given(Memento):
    """A state that is made of any other."""

    before: Any = None

    @classmethod
    def upgrade(cls, old: Any) -> Self:
        """Keep the old one."""
        return cls(before=old)


@slet(effects=True)
def upgraded(x: Any, state: Given) -> int:
    """Pass on."""
    return x


class Numbers(Memento):
    """How far a source has come."""

    number: int = 0


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


def rebuilt(platform: Platform, successor: Any) -> Any:
    """The mesh with a successor whose state is made from the log."""
    return platform.mesh("line").replace("sum", successor, rebuild="log")


def rebuild(platform: Platform, *successors: Any, seen: Any = (), after: int = 0) -> None:
    """Let successors make their states from the log, each when so many more items have arrived."""
    for successor in successors:
        grows(seen, after)
        platform.apply(rebuilt(platform, successor))


@contextmanager
def tapped(platform: Platform, seen: list[Any], first: Any = summing, items: int = 0, **log: Any) -> Iterator[Tap]:
    """Run a tap, a log, a slet and a sink until the block has ended, when so many items have arrived."""
    tap = Tap()
    platform.apply(kept_line(tap.source(), seen, first, **log).build())
    tap.let(items)
    eventually(lambda: len(seen) == items)
    yield tap
    tap.shut()
    finish(platform, "line")


@pytest.mark.parametrize("log", [{}, {"path": "log", "segment": 20_000}], ids=["memory", "disk"])
def test_under_load(platform, tmp_path, log):
    """It has seen what its predecessor has, each item once and in order, and goes on with the next."""
    seen: list[int] = []
    log = {**log, "path": tmp_path / log["path"]} if log else {}
    platform.apply(kept_line(endless, seen, **log).build())
    rebuild(platform, remembering, summing, seen=seen, after=2500)
    rebuild(platform, remembering, seen=seen, after=10)
    end(platform, "line")
    assert state_of(platform).numbers == seen
    whole(seen)


class Slets:
    """A plugin."""

    def __init__(self, *slets: Any) -> None:
        self.slets = list(slets)

    @hookimpl
    def register_slets(self) -> list[Any]:
        """Offer them."""
        return self.slets


@slet
def sums_here(number: int, state: Sum) -> int:
    """The same as the engine `Summed`."""
    state.total += number
    return state.total


@pytest.mark.parametrize("durable", [False, True], ids=["", "durable"])
def test_an_engine_has_processed_the_log_when_it_takes_over(tmp_path, durable):
    """Its results of the log are dropped; what a predecessor has not processed is not replayed, but handed over."""
    seen, allowed, wait = list[int](), [0], Event()

    @slet
    def numbers(position: Numbers) -> Iterator[int | None]:
        while position.number < 500:
            while position.number >= allowed[0]:  # it stands still outside of its code: checkpoints need not wait
                wait.wait(0.001)
                yield None
            position.number += 1
            yield position.number

    app, sink, plugins = Application("line"), writing(seen), Plugins()
    plugins.register("sums", Slets(numbers, sums_here, Summed, sink))
    if durable:
        app.durable(every=0.05)
    kept = app.channel("kept", kind="log", keep="all")
    app.add("source", numbers, out=kept)
    app.add("sink", sink, x=app.add("sum", sums_here, number=kept))
    with Platform(state=tmp_path, plugins=plugins, control=False) as platform:
        platform.apply(app.build())
        for successor in (Summed, Summed, sums_here, Summed):
            allowed[0] += 100
            rebuild(platform, successor, seen=seen, after=50)
        allowed[0] += 100
        assert platform.wait("line", PATIENCE)
    assert seen == [*accumulate(range(1, 501))]


def test_a_slet_may_rebuild_its_own_state(platform):
    """The same slet, with the state that the log gives, as the plan says; a shadow copies a state, and is refused."""
    seen: list[int] = []
    with tapped(platform, seen, items=10):
        state_of(platform).total = -1
        plan = platform.plan(rebuilt(platform, summing))
        assert "the state rebuilt from the log" in str(plan)
        assert "open → replay → pause → drain → replay the last bit" in str(plan)
        with pytest.raises(PlanError, match="cannot be compared"):
            plan.apply(shadow=Shadow(items=1))
        plan.apply()
        assert state_of(platform).total == sum(range(1, 11))


def test_the_item_on_which_the_old_one_is_suspended_is_not_part_of_it(platform):
    """An item that it has not processed is not replayed: the successor gets it."""
    seen: list[int] = []

    @slet
    def fragile(x: int, state: Sum) -> int:
        if x == 5:
            raise ValueError(x)
        return x

    with tapped(platform, seen, fragile) as tap:
        tap.let(8)
        suspended(platform, "line", "sum")
        rebuild(platform, remembering)
        eventually(lambda: len(seen) == 8)
    assert state_of(platform).numbers == seen
    whole(seen, 8)


def test_what_waits_between_log_and_slet_is_not_replayed(platform):
    """A newcomer is given what the log keeps through a queue: it stands far behind the end of the log."""
    seen: list[int] = []
    tap = Tap()

    @slet
    def fragile(x: int, state: Sum) -> int:
        if x == 3:
            raise ValueError(x)
        return x

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
    rebuild(platform, remembering)
    eventually(lambda: len(seen) == 50)
    tap.shut()
    finish(platform, "line")
    assert state_of(platform).numbers == seen
    whole(seen, 50)


def test_under_load_behind_a_queue(platform):
    """While the source goes on, the log and the queue behind it are read at one moment: no item is replayed twice."""
    seen: list[int] = []
    app = Application("line")
    kept = app.channel("kept", kind="log", keep="all", replay=True)
    app.add("source", endless, out=kept)
    app.add("other", writing([]), x=kept)
    mesh = platform.apply(app.build())
    platform.apply(_added(mesh, summing, seen))
    rebuild(platform, remembering, summing, remembering, summing, remembering, seen=seen, after=100)
    end(platform, "line")
    assert state_of(platform).numbers == seen
    whole(seen)


def _added(mesh, first, seen):
    """The mesh with one more branch behind the log."""
    node = Node("sum", spec_of(first), {}, {"x": "kept", "out": "sums"})
    return mesh.add(node, ChannelSpec("sums")).add(Node("sink", spec_of(writing(seen)), {}, {"x": "sums"}))


def test_batches_and_columns_are_replayed_as_they_came(platform):
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
    platform.apply(app.build())
    tap.let(5)
    eventually(lambda: len(seen) == 6)
    rebuild(platform, columns)
    assert state_of(platform).numbers == [1, -1, 3, -3, 5, -5]
    tap.let(2)
    tap.shut()
    finish(platform, "line")
    assert state_of(platform).numbers == [1, -1, 3, -3, 5, -5, 7, -7]
    assert len(seen) == 8


def test_a_successor_that_fails_in_the_replay_is_refused(platform):
    """The old one runs on, with its state."""
    seen: list[int] = []

    @slet
    def fragile(x: int, state: Seen) -> int:
        if x == 5:
            raise ValueError("five")
        return x

    with tapped(platform, seen, items=8) as tap:
        with pytest.raises(NotRebuildable, match="five"):
            rebuild(platform, fragile)
        tap.let(2)
    assert state_of(platform).total == sum(range(1, 11))
    whole(seen, 10)


@dataclass(frozen=True)
class Reading:
    """A number with a time."""

    number: int
    at: float


class Windows(Memento):
    """The sums of the windows that have come."""

    sums: list[int] = field(default_factory=list)


@slet
def readings(position: Numbers) -> Iterator[Reading]:
    """Emit readings in pairs, of which the second is the older one, without end."""
    while True:
        position.number += 1
        number = position.number
        yield Reading(number, number + 2.0 * (number % 2))


@slet
def slowly(position: Numbers) -> Iterator[Reading]:
    """The same, one by one."""
    for reading in readings(position):
        PACE.wait(0.001)
        yield reading


@slet
def once(x: int) -> Reading:
    """A reading with this number."""
    return Reading(x, x)


@slet
def odd(x: Reading) -> Reading | None:
    """Pass every other one on."""
    return x if x.number % 2 else None


@slet
def doubled(x: Reading) -> Iterator[Reading]:
    """Emit each twice."""
    yield x
    yield x


@slet
def totals(x: list[Reading], state: Sum) -> int:
    """Add up each window."""
    state.total += 1
    return sum(one.number for one in x)


@slet
def remembered(x: list[Reading], state: Windows) -> int:
    """Add up each window, and keep the sums."""
    state.sums.append(sum(one.number for one in x))
    return state.sums[-1]


@slet
def alone(x: Reading, state: Sum) -> int:
    """Pass the number on."""
    return x.number


@slet
def remembered_alone(x: Reading, state: Windows) -> int:
    """Pass the number on, and keep it."""
    state.sums.append(x.number)
    return x.number


def between(app: Application, shape: str, kept: Any) -> Any:
    """Add the slets and channels between the log and the slet."""
    if shape == "by time":
        windows = app.channel("windows", kind="window", seconds=10, slide=5, time="at")
        return app.add("timed", "stock:watermark", item=kept, time="at", delay=2, out=windows)
    if shape == "by count":
        return app.add("odd", odd, x=kept, out=app.channel("windows", kind="window", count=3, slide=2))
    if shape == "a queue":
        return app.add("doubled", doubled, x=kept, out=app.channel("waiting", kind="queue", capacity=50))
    found = app.add("odd", odd, x=app.add("doubled", doubled, x=kept))
    return app.add("timed", "stock:watermark", item=found, time="at", delay=2)


@pytest.mark.parametrize(
    ("shape", "log"),
    [
        ("by time", {}),
        ("by time", {"path": "log", "segment": 20_000}),
        ("by count", {}),
        ("a queue", {}),
        ("slets", {}),
    ],
)
def test_windows_and_slets_between_are_computed_once_more(platform, tmp_path, shape, log):
    """The successor has got what its predecessor has, while the source goes on, whatever stands before it."""
    seen: list[int] = []
    app = Application("line")
    log = {**log, "path": tmp_path / log["path"]} if log else {}
    kept = app.channel("kept", kind="log", keep="all", **log)
    app.add("source", readings, out=kept)
    windowed = shape.startswith("by")
    first, second = (totals, remembered) if windowed else (alone, remembered_alone)
    app.add("sink", writing(seen), x=app.add("sum", first, x=between(app, shape, kept)))
    platform.apply(app.build())
    rebuild(platform, second, first, seen=seen, after=75)
    rebuild(platform, second, seen=seen, after=10)
    grows(seen, 10)
    end(platform, "line")
    assert state_of(platform).sums == seen
    assert platform.deployment("line").components["sum"].status == "ended"
    count = [0, *(n for n in range(1, len(seen) * 5) if n % 2)]
    wanted = {
        "by time": seen[:0],  # see tests/runtime/channels/test_window.py
        "by count": [sum(count[n : n + 3]) for n in range(1, len(seen) * 2, 2)],
        "a queue": [1 + n // 2 for n in range(len(seen))],
        "slets": [1 + n // 2 * 2 for n in range(len(seen))],
    }[shape]
    assert seen[: len(wanted)] == wanted


@pytest.mark.parametrize("shape", ["by count", "a queue", "slets"])
def test_a_successor_that_fails_behind_copies_is_named(platform, shape):
    """The error is that of the successor and not of a slet between; the old one runs on."""

    @slet
    def fragile(x: list[Reading] | Reading, state: Windows) -> int:
        raise ValueError("five")

    seen: list[int] = []
    app = Application("line")
    kept = app.channel("kept", kind="log", keep="all")
    app.add("source", readings, out=kept)
    first = totals if shape.startswith("by") else alone
    app.add("sink", writing(seen), x=app.add("sum", first, x=between(app, shape, kept)))
    platform.apply(app.build())
    grows(seen, 50)
    with pytest.raises(NotRebuildable, match="sum failed while taking an item at 'x': ValueError: five"):
        rebuild(platform, fragile)
    grows(seen, 10)
    end(platform, "line")


@slet
def marked(x: Reading | Punctuation, state: Windows) -> int | None:
    """Take punctuations, too."""
    state.sums.append(x.number if isinstance(x, Reading) else -1)
    return state.sums[-1]


@slet
def marking(x: Reading | Punctuation, state: Sum) -> int | None:
    """Take punctuations, too, and count."""
    state.total += 1
    return x.number if isinstance(x, Reading) else -1


def test_a_slet_that_takes_punctuations_gets_them_in_their_places(platform):
    """The log keeps them, also where they come to it through a slet."""
    seen: list[int] = []
    app = Application("line")
    kept = app.channel("kept", kind="log", keep="all")
    app.add("timed", "stock:watermark", item=app.add("source", readings), time="at", delay=2, out=kept)
    app.add("sink", writing(seen), x=app.add("sum", marking, x=kept))
    platform.apply(app.build())
    rebuild(platform, marked, marking, marked, seen=seen, after=100)
    end(platform, "line")
    assert state_of(platform).sums == seen
    assert -1 in seen


class Both(Slet):
    """Two inputs."""

    state: Windows

    @input_port
    def left(self, left: Reading) -> int:
        """Take one."""
        self.state.sums.append(left.number)
        return left.number

    @input_port
    def right(self, right: Reading) -> int:
        """Take another."""
        self.state.sums.append(-right.number)
        return -right.number


class Either(Slet):
    """Two inputs, with another state."""

    state: Sum

    @input_port
    def left(self, left: Reading) -> int:
        """Take one."""
        self.state.total += 1
        return left.number

    @input_port
    def right(self, right: Reading) -> int:
        """Take another."""
        self.state.total += 1
        return -right.number


def test_several_inputs_from_one_log_in_the_order_in_which_they_came(platform):
    """Items that reach the ports on separate paths have the order of the log, and of the ports for each payload."""
    seen: list[int] = []
    app = Application("line")
    kept = app.channel("kept", kind="log", keep="all")
    app.add("source", readings, out=kept)
    left, right = app.add("a", doubled, x=kept), app.add("b", odd, x=kept)
    app.add("sink", writing(seen), x=app.add("sum", Either, left=left, right=right))
    platform.apply(app.build())
    rebuild(platform, Both, Either, Both, seen=seen, after=20)
    end(platform, "line")
    assert state_of(platform).sums == seen
    assert seen[:5] == [1, 1, -1, 2, 2]


class Doubled(Slet):
    """Emits each item twice, at the members of a family."""

    to: OutputPorts[Reading]

    @input_port
    def x(self, x: Reading) -> None:
        """Take one."""
        for port in [*self.to.values()] * 2:
            port.push(x)


def test_members_of_a_family_are_rebuilt_from_one_log(platform):
    """Their names have a dot, at the slet itself and at those between it and the log."""
    seen: list[Any] = []
    app, tap = Application("line"), Tap()
    kept = app.channel("kept", kind="log", keep="all")
    app.add("number", once, x=app.add("source", tap.source()), out=kept)
    app.add("a", Doubled, x=kept, to=["left"])
    sides = {"left": app.output("a", "to.left"), "right": app.add("b", odd, x=kept)}
    joined = app.add("sum", "stock:join", sides=sides, by="number", time="at", within=0)
    app.add("sink", writing(seen), x=joined)
    platform.apply(app.build())
    tap.let(4)
    eventually(lambda: len(seen) == 4)
    before = state_of(platform)
    rebuild(platform, Join)
    assert state_of(platform) is not before
    assert state_of(platform).sides == before.sides
    tap.shut()
    finish(platform, "line")


class Upgraded(Slet):
    """Two inputs, with a state that is made of another."""

    state: Given

    @input_port
    def left(self, left: Reading) -> int:
        """Take one."""
        return left.number

    @input_port
    def right(self, right: Reading) -> int:
        """Take another."""
        return -right.number


def two_logs(app: Application, kept: Any) -> dict[str, Any]:
    """A log in front of each port."""
    other = app.add("more", slowly, out=app.channel("other", kind="log", keep="all"))
    return {"left": kept, "right": other}


def one_slet(app: Application, kept: Any) -> dict[str, Any]:
    """Both ports at one output."""
    found = app.add("a", doubled, x=kept)
    return {"left": found, "right": found}


def through_a_queue(app: Application, kept: Any) -> dict[str, Any]:
    """A queue in front of one port."""
    return {"left": kept, "right": app.add("a", odd, x=kept, out=app.channel("waiting", kind="queue"))}


def with_effects(app: Application, kept: Any) -> dict[str, Any]:
    """A slet that acts on something outside in front of one port."""

    @slet(effects=True)
    def telling(x: Reading) -> Reading:
        return x

    return {"left": kept, "right": app.add("a", telling, x=kept)}


def behind_it(app: Application, kept: Any) -> dict[str, Any]:
    """The same with a log behind that slet."""
    ways = with_effects(app, kept)
    app.channel("told", kind="log", keep="all")
    return {**ways, "right": app.add("b", odd, x=ways["right"], out="told")}


def without_a_log(app: Application, kept: Any) -> dict[str, Any]:
    """A source in front of one port."""
    return {"left": kept, "right": app.add("more", slowly)}


def one_log(app: Application, kept: Any) -> dict[str, Any]:
    """Both streams pass one log."""
    app.add("more", slowly, out=kept)
    return {"left": kept, "right": app.add("a", odd, x=kept)}


def slets_of_its_own(app: Application, kept: Any) -> dict[str, Any]:
    """Each port by a slet of its own."""
    return {"left": app.add("a", doubled, x=kept), "right": app.add("b", odd, x=kept)}


SEVERAL = r"come from several logs \(kept, \w+\), .*; let all pass one log that feeds its ports, from the start"
OWN = ", without an order between them; from the start, connect each to the log by slets of its own"


@pytest.mark.parametrize(
    ("ways", "problems", "cures"),
    [
        (two_logs, [SEVERAL], [one_log]),
        (one_slet, ["several of its ports are fed by one slet" + OWN], [slets_of_its_own]),
        (through_a_queue, ["several .* by way of the queue 'kept -> sum.left'; .* without queues"], [slets_of_its_own]),
        (with_effects, ["and a before it cannot be replayed; put a log behind a from", SEVERAL], [behind_it, one_log]),
        (without_a_log, [r"\(it is direct\), .*; put a log behind more from", SEVERAL], [two_logs, one_log]),
    ],
)
def test_several_inputs_without_an_order_are_refused(platform, ways, problems, cures):
    """By name, before anything has happened, with cures: an upgrade now, or another mesh from the start."""
    for built, problem in zip([ways, *cures], [*problems, None], strict=True):
        seen: list[int] = []
        app = Application("line")
        kept = app.channel("kept", kind="log", keep="all")
        app.add("source", slowly, out=kept)
        app.add("sink", writing(seen), x=app.add("sum", Either, **built(app, kept)))
        platform.apply(app.build())
        if problem is None:
            rebuild(platform, Both, seen=seen, after=20)
        else:
            with pytest.raises(NotRebuildable, match=f"{problem}.*, or give the state an upgrade, or say lose_state"):
                platform.plan(rebuilt(platform, Both))
            changed(platform, "line", lambda mesh: mesh.replace("sum", Upgraded))
        end(platform, "line")
        state = state_of(platform)
        assert state.sums == seen if problem is None else isinstance(state.before, Sum)
        platform.remove("line")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"evict": True}, r"its input 'windows' is no log \(it is window\); give the state an upgrade, or say lose_"),
        ({"seconds": 5, "time": "real"}, "no punctuations come from stateless; put a stock:watermark behind stateless"),
    ],
)
def test_windows_that_depend_on_more_than_the_log_are_refused(platform, settings, problem):
    """On what a slet has evicted from them, or on the batches whose items close them; the cures are some."""

    @slet
    def evicting(x: list[int], state: Sum) -> int:
        state.total += len(x)
        return len(x)

    for timed in [False, True] if "seconds" in settings else [False]:
        tap, seen, app = Tap(), list[int](), Application("line")
        kept = app.channel("kept", kind="log", keep="all")
        app.add("source", tap.source(), out=kept)
        windows = app.channel("windows", kind="window", **settings)
        found = app.add("stateless", stateless, x=kept, **{} if timed else {"out": windows})
        if timed:
            app.add("timed", "stock:watermark", item=found, time="real", out=windows)
        app.add("sink", writing(seen), x=app.add("sum", evicting, x=windows))
        mesh = platform.apply(app.build())
        if timed:
            tap.let(12)
            eventually(lambda seen=seen: len(seen) == 2)
            rebuild(platform, evicting)
            assert state_of(platform).total == sum(seen) == 9
        else:
            with pytest.raises(NotRebuildable, match=problem):
                platform.plan(mesh.replace("sum", evicting, rebuild="log"))
            platform.apply(mesh.replace("sum", evicting, lose_state=True))
        tap.shut()
        finish(platform, "line")
        platform.remove("line")


def test_windows_that_had_other_sizes_are_refused(platform):
    """The log gives other windows than those that the predecessor has got; the old slet goes on."""
    seen: list[int] = []
    app = Application("line")
    kept = app.channel("kept", kind="log", keep="all")
    app.add("source", readings, out=kept)
    windows = app.channel("windows", kind="window", count=3)
    app.add("odd", odd, x=kept, out=windows)
    app.add("sink", writing(seen), x=app.add("sum", totals, x=windows))
    platform.apply(app.build())
    grows(seen, 100)
    changed(platform, "line", lambda mesh: mesh.configure_channel("windows", count=1000))
    with pytest.raises(NotRebuildable, match="the window 'windows' had other settings up to revision 1"):
        rebuild(platform, remembered)
    end(platform, "line")


@slet
def stateless(x: int) -> int:
    """Keeps nothing."""
    return x


@slet(effects=True)
def telling(x: int, state: Seen) -> int:
    """Acts on something outside."""
    state.numbers.append(x)
    return x


@slet(effects=False)
def silent(x: int, state: Seen) -> int:
    """Does not."""
    return telling(x, state)


class Owning(Slet, exclusive=True):
    """Owns a port of the machine."""

    state: Seen

    @input_port
    def x(self, x: int) -> int:
        """Pass on."""
        return x


@slet
def pulling(x: InputPort[int], state: Seen) -> Iterator[int]:
    """Pull, and keep everything."""
    for number in x:
        yield silent(number, state)


def rebuilding(successor: Any) -> Callable[[Mesh], Mesh]:
    """Replace the slet by one whose state is made from the log."""
    return lambda mesh: mesh.replace("sum", successor, rebuild="log")


def with_loss(mesh: Mesh) -> Mesh:
    """By one without a state."""
    return mesh.replace("sum", stateless, lose_state=True)


def upgrading(mesh: Mesh) -> Mesh:
    """By one that makes its state of the other one."""
    return mesh.replace("sum", upgraded)


def connected(mesh: Mesh) -> Mesh:
    """Connect it to a slet behind the log."""
    between = Node("between", spec_of(stateless), {}, {"x": "kept", "out": "passed"})
    return mesh.add(between, ChannelSpec("passed")).rewire("sum", x="passed")


def joined(mesh: Mesh, rebuild: Any = "log") -> Mesh:
    """Add one more slet."""
    return mesh.add(Node("more", spec_of(remembering), {}, {"x": "kept"}, rebuild=rebuild))


def every(state: Any) -> bool:
    """Whether it has all items."""
    return bool(state.numbers == [*range(1, 11)])


@pytest.mark.parametrize(
    ("log", "edit", "problem", "cures", "made"),
    [
        ({}, rebuilding(stateless), "stateless keeps no state; say lose_state=True", [with_loss], None),
        ({}, rebuilding(telling), "acts on something outside .*; mark it effects=False", [rebuilding(silent)], every),
        ({}, rebuilding(telling), "acts on something outside .*, or give its state an upgrade", [upgrading], Given),
        (
            {"keep": 3},
            rebuilding(remembering),
            "begins with row 7, and sum began at 0; let the log keep more .*, or give the state an upgrade",
            [upgrading],
            Given,
        ),
        ({}, rebuilding(Owning), "closed before it opens, .*; give the state an upgrade", [upgrading], Given),
        (
            {},
            lambda mesh: connected(rebuilding(remembering)(mesh)),
            "is connected to 'passed' by this change; rebuild it in the change before",
            [rebuilding(remembering), connected],
            every,
        ),
        (
            {},
            lambda mesh: rebuilding(remembering)(mesh.suspend("sum")),
            "suspended; resume it first",
            [lambda mesh: mesh.suspend("sum"), lambda mesh: mesh.resume("sum"), rebuilding(remembering)],
            every,
        ),
        ({}, joined, "it replaces no slet; leave rebuild out", [lambda mesh: joined(mesh, None)], Sum),
        ({}, rebuilding(pulling), "drives itself; replace it by a slet that", [rebuilding(remembering)], every),
    ],
)
def test_what_a_log_cannot_give_is_refused_in_the_plan(platform, log, edit, problem, cures, made):
    """Before anything has happened, with what can be done, which is done then."""
    seen: list[int] = []
    with tapped(platform, seen, items=10, **log):
        with pytest.raises(NotRebuildable, match=problem):
            platform.plan(edit(platform.mesh("line")))
        for cure in cures:
            changed(platform, "line", cure)
        state = state_of(platform)
        assert isinstance(state, made) if isinstance(made, type) else state is None if made is None else made(state)


def test_what_was_set_aside_is_not_part_of_a_state(platform):
    """A dead letter is in the log and not in the state; when it was retried, it is in both."""
    seen, repaired = list[int](), Event()

    @slet(on_error="dead-letter")
    def fragile(x: int, state: Sum) -> int:
        if x == 3 and not repaired.is_set():
            raise ValueError("three")
        state.total += x
        return x

    with tapped(platform, seen, fragile) as tap:
        tap.let(5)
        eventually(lambda: len(seen) == 4)
        with pytest.raises(NotRebuildable, match="sum has set aside 1 dead letter, .*; retry them first"):
            platform.plan(rebuilt(platform, remembering))
        repaired.set()
        platform.retry_dead_letters("line", "sum")
        tap.let(1)
        eventually(lambda: len(seen) == 6)
        rebuild(platform, remembering)
        assert state_of(platform).numbers == [1, 2, 3, 4, 5, 6]
