"""A successor is proven before it takes over: equal, it goes on with its own state; different, the old one stays."""

import dataclasses
import re
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from exop import Application, InputPort, Memento, OutputPort, Punctuation, Shadow, Slet, input_port, slet
from exop.errors import PlanError, ShadowFailed, UnknownName
from tests.change.tools import (
    Position,
    Sum,
    chain,
    end,
    endless,
    grows,
    in_thread,
    plain,
    plain_too,
    stream,
    summing,
    summing_too,
    tapped,
    whole,
    writing,
)
from tests.rig import Gate, eventually

TWENTY = Shadow(items=20, seconds=20)


def replaced(platform, successor, shadow=TWENTY, node="b", **how):
    """Replace a node of `app`, proven."""
    mesh = platform.mesh("app").replace(node, successor, **how)
    return platform.plan(mesh).apply(shadow=shadow)


def refused(platform, successor, shadow=TWENTY, node="b", **how):
    """Try to replace a node; returns the report of why it was not."""
    before = platform.mesh("app")
    with pytest.raises(ShadowFailed) as caught:
        replaced(platform, successor, shadow, node, **how)
    assert platform.mesh("app") == before
    assert platform.deployment("app").components[node].taps == ()
    return caught.value


def on_trial(platform, items=0, node="b"):
    """Wait until a successor is on trial, and has done so many items."""

    def there():
        found = platform.status("app").get("shadow", {}).get(node, {})
        return found.get("seconds") and found["items"] == items

    eventually(there, f"the trial behind {items} items")


def running(platform, node="b"):
    """The slet that runs at a node."""
    return platform.deployment("app").components[node].spec.name


@pytest.mark.parametrize("channel", ["direct", "queue"])
def test_an_equal_twin_takes_over_under_load(platform, channel):
    """Nothing is lost, doubled or reordered, and the twin goes on with the state that it has come to by itself."""
    with stream(platform, summing, kind=channel) as seen:
        for other in (summing_too, summing) * 2:
            replaced(platform, other, Shadow(items=300, seconds=20))
            assert running(platform) == other.__name__
            grows(seen)
    state = platform.deployment("app").components["b"].state
    assert (state.count, state.total) == (len(seen), sum(seen))


def test_columns_are_compared_row_by_row(platform):
    """Record batches of the same rows are equal however they are cut, NaN included."""

    @slet
    def rows(position: Position) -> Iterator[pa.RecordBatch]:
        while True:
            position.number += 4
            numbers = range(position.number - 3, position.number + 1)
            yield pa.RecordBatch.from_pydict({"n": [*numbers], "f": [float("nan"), 1.0, None, 2.0]})

    @slet
    def whole_batch(x: pa.RecordBatch) -> pa.RecordBatch:
        return x

    @slet
    def sliced(x: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield x.slice(0, 1)
        yield x.slice(1)

    @slet
    def other(x: pa.RecordBatch, position: Position) -> pa.RecordBatch:
        position.number += 1
        n = [value + (position.number == 3) for value in x.column("n").to_pylist()]
        return pa.RecordBatch.from_pydict({"n": n, "f": x.column("f")})

    seen: list[Any] = []

    @slet
    def write(x: pa.RecordBatch) -> None:
        seen.extend(x.column("n").to_pylist())

    platform.apply(chain("app", rows, whole_batch, write).build())
    assert "'n'" in str(refused(platform, other, Shadow(items=100)))
    replaced(platform, sliced, Shadow(items=200))
    grows(seen)
    end(platform, "app")
    whole(seen)


def wrong(n):
    """A successor with a wrong value for the how-manieth item."""

    @slet
    def wrong(x: int, total: Sum) -> int:
        total.count += 1
        total.total += x
        return x + (total.count % 16 == n)

    return wrong


def test_a_wrong_value_is_refused(platform):
    """The report names the item, the port and both values; the stream has not noticed anything."""
    with stream(platform, summing):
        error = refused(platform, wrong(5))
        first = error.report["differences"][0]
        assert first["kind"] == "different"
        assert int(first["new"]) == int(first["old"]) + 1
        assert f"item {first['item']}, out: old {first['old']}, new {first['new']}" in str(error)


@slet
def skipping(x: int) -> int | None:
    """Loses an item now and then."""
    return x if x % 10 else None


@slet
def doubling(x: int) -> Iterator[int]:
    """Puts an item out twice now and then."""
    yield x
    if x % 10 == 0:
        yield x


class Two(Memento):
    """The items held back."""

    held: list[int] = dataclasses.field(default_factory=list)


@slet
def swapping(x: int, two: Two) -> Iterator[int]:
    """Swaps two neighbours now and then."""
    if x % 10 == 0:
        two.held.append(x)
        return
    yield x
    yield from two.held
    two.held.clear()


@slet
def raising(x: int) -> int:
    """Raises now and then."""
    if x % 10 == 0:
        raise ValueError(f"not {x}")
    return x


@pytest.mark.parametrize(
    ("successor", "kind"), [(skipping, "missing"), (doubling, "extra"), (swapping, "missing"), (raising, "error")]
)
@pytest.mark.parametrize("channel", ["direct", "queue"])
def test_planted_differences_are_refused(platform, successor, kind, channel):
    """Missing, extra, reordered, and an error that the old one did not have: each is found, and the old one stays."""
    with stream(platform, plain, kind=channel):
        assert refused(platform, successor).report["differences"][0]["kind"] == kind
        assert running(platform) == "plain"


def test_what_is_held_back_at_the_cut_is_refused(platform):
    """One that would put out later what the old one has put out already may not take over: it would come twice."""

    @slet
    def late(x: int, two: Two) -> int | None:
        two.held.append(x)
        return two.held.pop(0) if len(two.held) > 1 else None

    with tapped(platform, plain) as (tap, _), in_thread(lambda: refused(platform, late)):
        on_trial(platform)
        tap.let(30)


def test_a_slow_one_is_refused_and_does_not_hold_the_stream(platform):
    """One that takes far longer is not waited for when it is as far behind as it may be."""

    @slet
    def slow(x: int) -> int:
        threading.Event().wait(0.002)
        return x

    with stream(platform, plain):
        error = refused(platform, slow, Shadow(items=100_000, seconds=20))
        assert "too slow" in str(error)
        assert error.report["held_s"] < 1.5


def test_one_that_hangs_is_refused(platform, monkeypatch):
    """A successor that hangs in an item does not stop the stream, which waits for a moment at most."""
    monkeypatch.setattr("exop.wiring.shadow.follower.PATIENCE", 0.05)
    gate = Gate()

    @slet
    def hanging(x: int) -> int:
        gate.pass_through()
        return x

    trial = Shadow(items=100_000, seconds=20)
    with stream(platform, plain) as seen, in_thread(lambda: refused(platform, hanging, trial)):
        gate.somebody_waits()
        grows(seen, 10_000)
        gate.open()


def test_one_that_hangs_when_time_is_up(platform, monkeypatch):
    """The stream is not made to stand still for one that does not move."""
    monkeypatch.setattr("exop.wiring.shadow.follower.Follower.patience", 0.05)
    monkeypatch.setattr("exop.wiring.shadow.follower.LEAVING", 0.05)
    gate = Gate()

    @slet
    def hanging(x: int) -> int:
        if x > 10:
            gate.pass_through()
        return x

    with tapped(platform, plain) as (tap, seen):
        with in_thread(lambda: refused(platform, hanging, Shadow(seconds=1.0))) as failing:
            on_trial(platform)
            tap.let(11)
            gate.somebody_waits()
            eventually(lambda: len(seen) == 11, "the items of the old one")
            tap.let(5)
            eventually(lambda: len(seen) == 16, "the items of the old one")
            assert "too slow" in str(failing.result(20))
        gate.open()
    whole(seen, 16)


def test_the_same_errors_are_equal(platform):
    """Where both raise for the same items, and the items are set aside, the successor is as good as the old one."""

    @slet
    def raising_too(x: int) -> int:
        return raising(x)

    seen: list[int] = []
    app = Application("app")
    numbers = app.add("a", endless)
    app.add("b", raising, x=numbers, on_error="skip")
    app.add("c", writing(seen), x=app.output("b", "out"))
    platform.apply(app.build())
    replaced(platform, raising_too)
    grows(seen)
    end(platform, "app")
    assert seen == [n for n in range(1, seen[-1] + 1) if n % 10]


def test_a_comparison_of_the_users_own(platform):
    """`compare` says what is good enough."""

    @slet
    def rough(x: int) -> float:
        return x + 0.001

    seen: list[Any] = []
    platform.apply(chain("app", endless, plain, writing(seen)).build())
    refused(platform, rough)
    replaced(platform, rough, Shadow(items=20, compare=lambda old, new: abs(old - new) < 0.01))
    assert running(platform) == "rough"


@pytest.mark.parametrize("compare", [lambda old: True, lambda old, new: old / 0 > new])
def test_a_comparison_that_raises(platform, compare):
    """The report names it, and the item; the old one runs on."""
    with stream(platform, plain):
        error = refused(platform, plain_too, Shadow(items=20, seconds=20, compare=compare))
        assert re.search(r"`compare` raised for item \d+, out .*compare\(old, new\)", str(error))


def test_a_comparison_that_hangs_is_refused(platform, monkeypatch):
    """It hangs in the thread of the successor alone: the trial ends in time, and other changes are accepted again."""
    monkeypatch.setattr("exop.wiring.shadow.follower.PATIENCE", 0.05)
    monkeypatch.setattr("exop.wiring.shadow.follower.LEAVING", 0.05)
    gate = Gate()

    def hanging(old: int, new: int) -> bool:
        gate.pass_through()
        return old == new

    with stream(platform, plain) as seen:
        error = refused(platform, plain_too, Shadow(items=100_000, seconds=20, compare=hanging))
        assert "too slow" in str(error)
        grows(seen)
        platform.apply(platform.mesh("app").replace("b", plain_too))
        gate.open()


def test_what_is_given_as_a_shadow(platform):
    """Something else than a shadow is refused, with the way to write it."""
    platform.apply(chain("app", endless, plain, writing([])).build())
    plan = platform.plan(platform.mesh("app").replace("b", plain_too))
    with pytest.raises(PlanError, match=r"shadow='10items' is no shadow; say shadow=Shadow.parse\('10items'\)"):
        plan.apply(shadow="10items")
    for other in (0, 3, Shadow):
        with pytest.raises(PlanError, match="is no shadow; say shadow=Shadow"):
            plan.apply(shadow=other)


def test_items_that_are_altered_are_copied(platform):
    """A slet that alters the items it gets, in either of the two, does not disturb the other one."""

    @slet
    def dicts(position: Position) -> Iterator[dict[str, Any]]:
        while True:
            position.number += 1
            yield {"n": position.number, "path": ["a"]}

    @slet
    def mark(x: dict[str, Any]) -> dict[str, Any]:
        x["path"].append("b")
        return x

    @slet
    def mark_too(x: dict[str, Any]) -> dict[str, Any]:
        return mark(x)

    seen: list[Any] = []

    @slet
    def write(x: dict[str, Any]) -> None:
        x["path"].append("c")
        seen.append(x)

    platform.apply(chain("app", dicts, mark, write).build())
    replaced(platform, mark_too)
    grows(seen)
    end(platform, "app")
    whole([one["n"] for one in seen])
    assert all(one["path"] == ["a", "b", "c"] for one in seen)


def test_further_ports_and_control_items(platform):
    """The outputs of further ports are compared too, and control items in their order among the others."""

    @slet
    def marked(position: Position) -> Iterator[int | Punctuation]:
        while True:
            position.number += 1
            yield position.number
            if position.number % 5 == 0:
                yield Punctuation(position.number)

    class Halves(Slet):
        odd: OutputPort[int]

        @input_port
        def x(self, x: int) -> int | None:
            if x % 2:
                self.odd.push(x)
                return None
            return x

    class HalvesToo(Halves):
        pass

    class Wrong(Halves):
        @input_port
        def x(self, x: int) -> int | None:
            if x % 2:
                self.odd.push(x + (x % 11 == 0))
                return None
            return x

    evens: list[Any] = []
    odds: list[Any] = []

    @slet
    def all_of(x: int | Punctuation) -> None:
        evens.append(x)

    app = Application("app")
    app.add("a", marked)
    app.add("b", Halves, x=app.output("a", "out"))
    app.add("c", all_of, x=app.output("b", "out"))
    app.add("d", writing(odds), x=app.output("b", "odd"))
    platform.apply(app.build())
    error = refused(platform, Wrong)
    assert error.report["differences"][0]["port"] == "odd"
    replaced(platform, HalvesToo)
    grows(evens)
    end(platform, "app")
    numbers = [one for one in evens if isinstance(one, int)]
    whole(sorted(numbers + odds))
    times = [one.time for one in evens if isinstance(one, Punctuation)]
    assert times == [5 * n for n in range(1, len(times) + 1)]


def test_an_idle_stream_ends_with_a_clear_report(platform):
    """When not enough items come in time, that is said, and the old one stays."""
    with tapped(platform, summing):
        assert "0 of 10 items" in str(refused(platform, summing_too, Shadow(items=10, seconds=0.05)))
        assert "not one item" in str(refused(platform, summing_too, Shadow(seconds=0.05)))


@slet
def dropping(x: int) -> int | None:
    """Puts out nothing."""


@slet
def marking(x: int) -> Iterator[int | Punctuation]:
    """Puts out punctuations alone."""
    yield Punctuation(x)


@pytest.mark.parametrize("shadow", [Shadow(seconds=0.5), Shadow(items=20, seconds=0.5)])
@pytest.mark.parametrize("silent", [dropping, marking])
def test_nothing_was_compared(platform, shadow, silent):
    """Two that put out no item are not equal: the successor is refused with the cure, unless that is allowed."""
    platform.apply(chain("app", endless, silent, writing([])).build())
    error = refused(platform, silent, shadow, lose_state=True)
    assert "no output was compared" in str(error)
    assert "--allow-no-output" in str(error)
    assert (error.report["compared"], error.report["items"] > 0) == (0, True)
    before = platform.deployment("app").components["b"]
    replaced(platform, silent, dataclasses.replace(shadow, allow_no_output=True), lose_state=True)
    assert platform.deployment("app").components["b"] is not before
    assert shadow.items or platform.status("app")["proof"]["b"]["seconds"] >= 0.1


def test_outputs_that_come_late_are_waited_for(platform):
    """When enough items have passed, the proof goes on until there is an output to compare."""

    @slet
    def tenth(x: int) -> int | None:
        return x if x % 10 == 0 else None

    @slet
    def tenth_too(x: int) -> int | None:
        return None if x % 10 else x

    with tapped(platform, tenth) as (tap, _):
        with in_thread(lambda: replaced(platform, tenth_too, Shadow(items=5, seconds=20))) as proving:
            on_trial(platform)
            tap.let(9)
            on_trial(platform, 9)
            assert not proving.done()
            tap.let(1)
        assert platform.status("app")["proof"]["b"]["compared"] == 1


def test_two_nodes_at_once(platform):
    """All successors of a plan are proven, or none takes over."""
    with stream(platform, summing, plain):
        mesh = platform.mesh("app").replace("b", summing_too).replace("c", skipping)
        with pytest.raises(ShadowFailed, match="c was not replaced"):
            platform.plan(mesh).apply(shadow=TWENTY)
        mesh = platform.mesh("app").replace("b", summing_too).replace("c", summing)
        platform.plan(mesh).apply(shadow=TWENTY)


def test_others_are_refused_while_a_successor_is_on_trial(platform):
    """Other changes are refused at once meanwhile; `status` shows the progress."""
    with tapped(platform, summing) as (tap, _):
        with in_thread(lambda: replaced(platform, summing_too)):
            on_trial(platform)
            tap.let(5)
            on_trial(platform, 5)
            with pytest.raises(PlanError, match="a successor is on trial for 20 items.*b: 5 items so far"):
                platform.apply(platform.mesh("app").suspend("b"))
            tap.let(15)
        assert running(platform) == "summing_too"
        assert "shadow" not in platform.status("app")


def test_an_application_that_is_removed_meanwhile(platform):
    """Removing the application gives the proof up."""
    seen: list[int] = []
    platform.apply(chain("app", endless, summing, writing(seen)).build())

    def given_up() -> None:
        with pytest.raises(PlanError, match="removed"):
            replaced(platform, summing_too, Shadow(items=10**9, seconds=20))

    with in_thread(given_up):
        eventually(lambda: platform.status("app").get("shadow", {}).get("b", {}).get("items"), "the first items")
        platform.remove("app")
    whole(seen)


def test_the_old_one_is_suspended_meanwhile(platform):
    """Nothing can be compared with one that is suspended on an item: that is said, and it stays as it is."""
    with stream(platform, raising):
        with pytest.raises(PlanError, match="failed"):
            replaced(platform, plain)
        platform.apply(platform.mesh("app").replace("b", plain))


def test_an_opening_that_fails(platform):
    """A successor that cannot be opened is no reason to touch the stream."""

    class Closed(Slet):
        def __enter__(self) -> "Closed":
            raise OSError("no engine here")

        @input_port
        def x(self, x: int) -> int:
            return x

    with stream(platform, plain), pytest.raises(PlanError, match="no engine here"):
        replaced(platform, Closed)


def test_effects_are_refused_unless_diverted(platform, tmp_path):
    """A sink is tried with its effects elsewhere; what takes over then has its own settings and the old state."""

    class Writer(Slet):
        path: str
        total: Sum

        def __enter__(self) -> "Writer":
            self.file = open(self.path, "a")
            return self

        def __exit__(self, *exc: object) -> None:
            self.file.close()

        def flush(self) -> None:
            self.file.flush()

        @input_port
        def x(self, x: int) -> None:
            self.total.count += 1
            self.file.write(f"{x}\n")

    class WriterToo(Writer):
        pass

    real, trial = tmp_path / "real", tmp_path / "trial"
    app = Application("app")
    app.add("b", Writer, x=app.add("a", endless), path=str(real))
    platform.apply(app.build())
    mesh = platform.mesh("app").replace("b", WriterToo)
    with pytest.raises(PlanError, match="it is a sink.*divert"):
        platform.plan(mesh).apply(shadow=TWENTY)
    with pytest.raises(UnknownName, match="pth"):
        platform.plan(mesh).apply(shadow=Shadow(items=20, divert={"pth": "x"}))
    for divert in ({"bb.path": str(trial)}, {"a.path": str(trial)}):
        with pytest.raises(UnknownName, match="no node"):
            platform.plan(mesh).apply(shadow=Shadow(items=20, divert=divert))
    for divert in ({"path": str(real)}, {"b.path": str(real)}):
        with pytest.raises(PlanError, match="diverts nothing.*another value"):
            platform.plan(mesh).apply(shadow=Shadow(items=20, divert=divert))
    with pytest.raises(PlanError, match="diverts nothing"):
        platform.plan(platform.mesh("app").replace("b", WriterToo, path=str(trial))).apply(
            shadow=Shadow(items=20, divert={"path": str(real)})
        )
    shadow = Shadow(items=20, divert={"path": str(trial)})
    plan = platform.plan(mesh)
    assert f"path='{trial}' meanwhile" in str(plan.proven(shadow))
    plan.apply(shadow=shadow)
    end(platform, "app")
    count = platform.deployment("app").components["b"].state.count
    platform.remove("app")
    whole([int(line) for line in real.read_text().split()], count)
    tried = [int(line) for line in trial.read_text().split()]
    assert len(tried) >= 20
    assert tried == list(range(tried[0], tried[0] + len(tried)))


def test_a_sink_without_effects_is_proven_by_its_state(platform):
    """A sink that says it has no effects outside has nothing but its memento to be compared by."""

    @slet(effects=False)
    def adding(x: int, total: Sum) -> None:
        total.total += x

    @slet(effects=False)
    def adding_too(x: int, total: Sum) -> None:
        total.total += x

    @slet(effects=False)
    def adding_wrong(x: int, total: Sum) -> None:
        total.total += 2 * x

    platform.apply(chain("app", endless, adding).build())
    assert refused(platform, adding_wrong).report["differences"][0]["kind"] == "memento"
    replaced(platform, adding_too)
    assert running(platform) == "adding_too"


def test_what_cannot_be_proven_says_so(platform):
    """A source, a slet that pulls, one that says it has effects, and a plan without a replacement are refused."""

    @slet
    def pulling(x: InputPort[int]) -> Iterator[int]:
        yield from x

    @slet(effects=True)
    def calling(x: int) -> int:
        return x

    @slet
    def endless_too(position: Position) -> Iterator[int]:
        yield position.number

    platform.apply(chain("app", endless, plain, pulling, writing([])).build())
    mesh = platform.mesh("app")
    for node, other, why in (
        ("a", endless_too, "is a source"),
        ("b", calling, "outside of the mesh, which would"),
        ("c", plain, "share out the items of a queue, and read a table .* at different moments"),
    ):
        with pytest.raises(PlanError, match=why):
            platform.plan(mesh.replace(node, other)).proven(TWENTY)
    with pytest.raises(PlanError, match="replaces no slet"):
        platform.plan(mesh.suspend("b")).proven(TWENTY)


def test_a_window_from_which_the_slet_evicts(platform):
    """The successor gets a copy of the window, and evicts from that; then it has the window itself."""

    @slet
    def pairs(x: list[int]) -> tuple[int, ...]:
        window: Any = x
        found = tuple(window)
        window.evict(max(0, len(window) - 1))
        return found

    @slet
    def pairs_too(x: list[int]) -> tuple[int, ...]:
        return pairs(x)

    seen: list[Any] = []
    app = Application("app")
    app.add("b", pairs, x=app.add("a", endless, out=app.channel("last", kind="window", evict=True)))
    app.add("c", writing(seen), x=app.output("b", "out"))
    platform.apply(app.build())
    replaced(platform, pairs_too)
    grows(seen)
    end(platform, "app")
    assert seen == [(1,), *((n, n + 1) for n in range(1, len(seen)))]


def test_several_inputs(platform):
    """The calls of all inputs are handed on in the order in which they came, with the merged punctuations."""

    @slet
    def marked(position: Position) -> Iterator[int | Punctuation]:
        while True:
            position.number += 1
            yield position.number
            if position.number % 3 == 0:
                yield Punctuation(position.number)

    class Sums(Slet):
        total: Sum

        @input_port
        def x(self, x: int) -> int:
            self.total.total += x
            return self.total.total

        @input_port
        def y(self, y: int) -> int:
            self.total.total *= -1
            self.total.total += y
            return self.total.total

    class SumsToo(Sums):
        pass

    class Other(Sums):
        @input_port
        def y(self, y: int) -> int:
            self.total.total += y
            return self.total.total

    seen: list[Any] = []
    app = Application("app")
    app.add("b", Sums, x=app.add("a", marked), y=app.add("a2", marked))
    app.add("c", writing(seen), x=app.output("b", "out"))
    platform.apply(app.build())
    refused(platform, Other)
    replaced(platform, SumsToo, Shadow(items=200, seconds=20))
    grows(seen)
    end(platform, "app")


def test_the_plan_shows_the_shadow():
    """The plan shows the proof and the kept predecessor before anything happens."""
    from exop import Platform

    with Platform() as platform:
        platform.apply(chain("app", endless, plain, writing([])).build())
        plan = platform.plan(platform.mesh("app").replace("b", skipping)).proven(Shadow(items=5), 30)
        assert "shadow b: beside the old one, on the same items, for 5 items, within 60 s" in str(plan)
        assert "keep the predecessor of b as a standby for 30 s (exop rollback app.b)" in str(plan)
