"""Settings that take effect at a point in the stream: exactly there, whatever drives it and changes the mesh."""

import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest

from exop import Application, Batch, InputPort, OutputPort, Platform, Punctuation, Shadow, Slet, input_port, slet
from exop.errors import ExpressionError, MeshError, PlanError, SettingError, StaleMesh, UnknownName
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import ConditionalUpdate
from exop.runtime.conditional_updates import AppliedUpdate
from tests.change.tools import (
    Position,
    Sum,
    Tap,
    chain,
    changed,
    count_to,
    end,
    endless,
    finish,
    grows,
    in_thread,
    suspended,
    tapped,
    writing,
)
from tests.rig import Gate, eventually

LAST = 30_000


@slet
def scale(x: int, *, by: int = 1) -> tuple[int, int]:
    """Say which factor the number met."""
    return x, by


@slet
def scale_too(x: int, *, by: int = 1, more: int = 0) -> tuple[int, int]:
    """The same by other code."""
    return x, by


@slet
def unscaled(x: int) -> tuple[int, int]:
    """A successor without the setting."""
    return x, 0


@slet
def counted(x: int, total: Sum, *, by: int = 1) -> Iterator[tuple[int, int]]:
    """With state, and any number of results."""
    total.count += 1
    yield x, by
    if x % 3 == 0:
        yield x, by


@slet
def by_batch(x: Batch[int], *, by: int = 1) -> Batch[tuple[int, int]]:
    """Whole batches."""
    return Batch((one, by) for one in x)


class Scale(Slet):
    """A class with two ports."""

    by: int = 1

    @input_port
    def x(self, x: int) -> tuple[int, int]:
        """One way in."""
        return x, self.by

    @input_port
    def y(self, y: int) -> tuple[int, int]:
        """Another one."""
        return -y, self.by


def opening(gate: Gate, error: Exception | None = None) -> Any:
    """A slet that opens when the gate does, or fails then."""

    class Opening(Slet):
        by: int = 1

        def __enter__(self) -> "Opening":
            gate.pass_through()
            if error is not None:
                raise error
            return self

        @input_port
        def x(self, x: int) -> tuple[int, int]:
            return x, self.by

    return Opening


@slet
def in_batches(position: Position, *, to: int = LAST, seed: int = 1) -> Iterator[Batch[int]]:
    """Emit 1, 2, 3, … in batches of different sizes."""
    size = random.Random(seed)
    while position.number < to:
        first = position.number + 1
        position.number = min(to, position.number + size.randrange(1, 40))
        yield Batch(range(first, position.number + 1))


def expected(*steps: tuple[int, int], last: int = LAST) -> list[tuple[int, int]]:
    """Return the outputs if the factor changes at each of these numbers."""
    found, factor, rest = [], 1, list(steps)
    for number in range(1, last + 1):
        while rest and number >= rest[0][0]:
            factor = rest.pop(0)[1]
        found.append((number, factor))
    return found


def armed(platform: Platform, when: str, *slets: Any) -> AbstractContextManager[tuple[Tap, list[Any]]]:
    """Run a tap, these slets and a sink, with an update of `b` that is pending."""
    return tapped(platform, *slets, edit=lambda mesh: mesh.configure("b", by=2, when=when))


@contextmanager
def on_trial(platform: Platform, node: str, successor: Any, items: int) -> Iterator[None]:
    """Prove a successor while the block runs, which begins when the trial does."""
    plan = platform.plan(platform.mesh("app").replace(node, successor))
    with in_thread(lambda: plan.apply(shadow=Shadow(items=items, seconds=20))):
        eventually(lambda: platform.status("app").get("shadow", {}).get(node, {}).get("seconds"), "the trial")
        yield


def pending(platform: Any, node: str, application: str = "app") -> list[str]:
    """Return the pending updates in the status."""
    return list(platform.status(application)["nodes"][node].get("pending", []))


@pytest.mark.parametrize("kind", ["direct", "queue"])
@pytest.mark.parametrize("worker", [scale, counted, Scale])
def test_exactly_at_the_item(platform, kind, worker):
    """Every item before the point meets the old settings, it and every one behind it the new; update after update."""
    seen: list[Any] = []
    app = Application("app")
    numbers = app.channel("numbers", kind=kind, **({"capacity": 7} if kind == "queue" else {}))
    app.add("a", count_to, to=LAST, out=numbers)
    other = {"y": app.add("idle", count_to, to=0)} if worker is Scale else {}
    app.add("c", writing(seen), x=app.add("b", worker, x=numbers, **other))
    mesh = app.build().configure("b", by=2, when="x >= 5000").configure("b", by=3, when="x >= 20000 and by == 2")
    platform.apply(mesh)
    finish(platform, "app")
    wanted = expected((5000, 2), (20_000, 3))
    if worker is counted:
        wanted = [one for one in wanted for _ in range(2 if one[0] % 3 == 0 else 1)]
    assert seen == wanted
    node = platform.mesh("app").node("b")
    assert (dict(node.settings), node.pending, pending(platform, "b")) == ({"by": 3}, (), [])


@pytest.mark.parametrize("worker", [scale, counted, by_batch])
def test_exactly_at_the_row_of_a_batch(platform, worker):
    """A batch is cut where the condition holds first, also twice; in front of slets that take items, and batches."""
    seen: list[Any] = []
    mesh = chain("app", in_batches, worker, writing(seen)).build()
    for at, by in ((1, 5), (5000, 2), (5003, 3), (5004, 4), (LAST, 6)):
        mesh = mesh.configure("b", by=by, when=f"x >= {at}")
    platform.apply(mesh)
    finish(platform, "app")
    wanted = expected((1, 5), (5000, 2), (5003, 3), (5004, 4), (LAST, 6))
    if worker is counted:
        wanted = [one for one in wanted for _ in range(2 if one[0] % 3 == 0 else 1)]
    assert seen == wanted


@dataclass
class Report:
    """A row."""

    time: int
    speed: float


@pytest.mark.parametrize("taken", ["columns", "rows", "schema"])
def test_exactly_at_the_row_of_a_record_batch(platform, taken):
    """A record batch is cut between two rows, whether the slet takes columns or rows."""
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([("time", pa.int64()), ("speed", pa.float64())])
    seen: list[tuple[int, int]] = []

    @slet
    def reports(position: Position) -> Iterator[Annotated[pa.RecordBatch, schema]]:
        while position.number < 5000:
            times = list(range(position.number + 1, position.number + 38))
            position.number += 37
            yield pa.RecordBatch.from_pydict({"time": times, "speed": [1.5] * 37}, schema=schema)

    @slet
    def columns(report: pa.RecordBatch, *, by: int = 1) -> None:
        seen.extend((time, by) for time in report["time"].to_pylist())

    @slet
    def with_schema(report: Annotated[pa.RecordBatch, schema], *, by: int = 1) -> None:
        seen.extend((time, by) for time in report["time"].to_pylist())

    @slet
    def rows(report: Report, *, by: int = 1) -> None:
        seen.append((report.time, by))

    sink = {"columns": columns, "rows": rows, "schema": with_schema}[taken]
    app = Application("app")
    app.add("b", sink, report=app.add("a", reports))
    mesh = (
        app.build().configure("b", by=2, when="report.time >= 1000").configure("b", by=3, when="report['time'] > 4000")
    )
    platform.apply(mesh)
    finish(platform, "app")
    assert seen == expected((1000, 2), (4001, 3), last=len(seen))
    assert len(seen) >= 5000


def test_where_streams_meet(platform):
    """Two sources at full speed, one slet: each update waits for an item of its port, and for its turn."""
    seen: list[tuple[int, int]] = []
    fired = threading.Event()

    @slet
    def counting(position: Position) -> Iterator[int]:
        while not fired.is_set():
            position.number += 1
            yield position.number

    @slet
    def writing_until_fired(x: tuple[int, int]) -> None:
        seen.append(x)
        if x[1] == 4:
            fired.set()

    app = Application("app")
    app.add("c", writing_until_fired, x=app.add("b", Scale, x=app.add("a", counting), y=app.add("z", counting)))
    mesh = app.build().configure("b", by=2, when="x >= 5000").configure("b", by=3, when="y >= 6000")
    mesh = mesh.configure("b", by=4, when="x >= 20000")
    platform.apply(mesh)
    finish(platform, "app")
    factors = [by for _, by in seen]
    assert factors == sorted(factors)
    assert sorted(set(factors)) == [1, 2, 3, 4]
    assert next(x for x, by in seen if by == 2) == 5000
    first = next(x for x, by in seen if by == 3)
    assert first == -6000 or first < -6000  # behind 6000 only if the update before it took effect later
    assert next(x for x, by in seen if by == 4) >= 20_000
    for one in ([x for x, _ in seen if x > 0], [-x for x, _ in seen if x < 0]):
        assert one == list(range(1, len(one) + 1))


def test_several_producers_of_one_channel(platform):
    """Fan-in: whoever brings the item, it is the one that meets the new settings first."""
    seen: list[tuple[int, int]] = []
    app = Application("app")
    both = app.channel("both")
    app.add("a", count_to, to=LAST, out=both)
    app.add("z", count_to, to=LAST, step=-1, out=both)
    app.add("c", writing(seen), x=app.add("b", scale, x=both))
    platform.apply(app.build().configure("b", by=2, when="x <= -5000"))
    finish(platform, "app")
    at = next(n for n, (x, _) in enumerate(seen) if x == -5000)
    assert [by for _, by in seen] == [1] * at + [2] * (len(seen) - at)
    assert len(seen) == 2 * LAST


def test_others_go_on_as_they_were(platform):
    """A branch beside it keeps its settings and loses nothing; the instance of the slet stays."""
    seen: list[Any] = []
    beside: list[Any] = []
    app = Application("app")
    numbers = app.add("a", count_to, to=LAST)
    app.add("c", writing(seen), x=app.add("b", Scale, x=numbers, y=app.add("idle", count_to, to=0)))
    app.add("e", writing(beside), x=app.add("d", scale, x=numbers))
    platform.apply(app.build().configure("b", by=2, when="x >= 5000"))
    before = platform.deployment("app").components["b"]
    finish(platform, "app")
    assert seen == expected((5000, 2))
    assert beside == expected()
    assert platform.deployment("app").components["b"] is before


def test_at_a_time(platform):
    """`punctuation` is the time of the punctuation that comes: what follows it meets the new settings."""
    seen: list[Any] = []

    @slet
    def timed() -> Iterator[int | Punctuation]:
        for number in range(1, LAST + 1):
            yield number
            if number % 10 == 0:
                yield Punctuation(number)

    platform.apply(chain("app", timed, scale, writing(seen)).build().configure("b", by=2, when="punctuation >= 4995"))
    finish(platform, "app")
    assert seen == expected((5001, 2))


def test_it_is_seen_until_it_fires(platform):
    """Status, services and plan show it; then they show the new settings, and the mesh is another revision."""
    with tapped(platform, scale) as (tap, seen):
        plan = platform.plan(platform.mesh("app").configure("b", by=2, when="x  >=  50"))
        assert "arm b: pending: by=2 when x  >=  50" in str(plan)
        plan.apply()
        assert pending(platform, "b") == ["by=2 when x  >=  50"]
        (service,) = platform.registry.find("Slet", "(pending=*)")
        assert service.properties["pending"] == ("by=2 when x  >=  50",)
        tap.let(49)
        eventually(lambda: len(seen) == 49)
        assert (platform.mesh("app").revision, pending(platform, "b")) == (2, ["by=2 when x  >=  50"])
        tap.let(1)
        eventually(lambda: len(seen) == 50)
        assert seen == expected((50, 2), last=50)
        assert (platform.mesh("app").revision, pending(platform, "b")) == (3, [])
        assert platform.status("app")["nodes"]["b"]["settings"] == {"by": 2}
        assert platform.registry.find("Slet", "(pending=*)") == []


def test_nothing_of_it_is_left(platform):
    """Before an update is pending, and some time after the last one has fired, no trigger stands in the way."""
    seen: list[Any] = []
    platform.apply(chain("app", endless, scale, writing(seen)).build())
    component = platform.deployment("app").components["b"]
    fused = platform.deployment("app").entries["b.x"].link
    assert component.updates is None
    assert fused is not None
    changed(platform, "app", lambda mesh: mesh.configure("b", by=2, when="x > 1"))
    assert component.updates is not None or not pending(platform, "b")
    ways = platform.deployment("app")
    eventually(lambda: component.updates is None and ways.entries["b.x"].link, "the compilation without a trigger")
    end(platform, "app")


def test_a_channel_goes_while_an_update_is_pending_there(platform):
    """Its update goes with it, and the triggers of other updates are compiled out as ever."""
    app = chain("app", endless, scale, writing([]))

    @slet
    def gather(part: list[int]) -> None:
        """Take what comes."""

    pieces = app.channel("pieces", kind="window", count=5)
    app.add("beside", endless, out=pieces)
    app.add("gather", gather, part=pieces)
    platform.apply(app.build().configure("pieces", count=4, when="item > 1000000000000"))
    changed(platform, "app", lambda mesh: mesh.remove("beside").remove("gather"))
    deployment = platform.deployment("app")
    assert "pieces" not in deployment.channels
    changed(platform, "app", lambda mesh: mesh.configure("b", by=2, when="x > 1"))
    eventually(lambda: deployment.components["b"].updates is None, "the compilation without a trigger")
    assert not deployment.update_log.pending
    end(platform, "app")


@pytest.mark.parametrize("settings", [{}, {"by": 7}])
def test_it_can_be_cancelled(platform, settings):
    """`configure` without `when` takes effect at once, and nothing is pending any more."""
    with armed(platform, "x >= 50", scale) as (tap, seen):
        plan = platform.plan(platform.mesh("app").configure("b", **settings))
        assert "no longer pending: by=2 when x >= 50" in str(plan)
        plan.apply()
        assert pending(platform, "b") == []
        tap.let(100)
    assert seen == [(x, settings.get("by", 1)) for x in range(1, 101)]


def test_a_replacement_tells_what_is_pending_and_suspended_then(platform):
    """As when a change is undone that came before a resume, and before an update took effect."""
    with tapped(platform, scale) as _:
        mesh = platform.mesh("app").replace("b", scale_too).configure("b", by=2, when="x >= 50").suspend("b")
        (step,) = platform.plan(mesh).steps
        assert step.text.endswith("scale_too, suspended, pending: by=2 when x >= 50")
        platform.apply(platform.mesh("app").configure("b", by=2, when="x >= 50").configure("b", by=3, when="x >= 60"))
        node = (mesh := platform.mesh("app").replace("b", scale_too)).node("b")
        assert platform.plan(mesh).steps[0].text.endswith("scale_too")
        (step,) = platform.plan(mesh.edited({"b": replace(node, pending=node.pending[::-1])})).steps
    assert step.text.endswith("scale_too, pending in another order")


def test_a_condition_that_raises(platform):
    """The item is processed as if it did not hold, the status shows the error, and the update stays pending."""
    with armed(platform, "1 / (x - 3) > 0", scale) as (tap, seen):
        tap.let(3)
        eventually(lambda: len(seen) == 3)
        told = platform.status("app")["nodes"]["b"]["pending_problem"]
        assert told == "the condition raised for 1 item, last ZeroDivisionError: division by zero"
        tap.let(2)
    assert seen == expected((4, 2), last=5)
    assert "pending_problem" not in platform.status("app")["nodes"]["b"]


def test_a_slet_that_refuses_the_settings(platform):
    """It goes on with those that it has, the update is dropped, and no item is lost."""

    class Strict(Slet):
        by: int = 1

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "by" and value == 2:
                raise ValueError("not 2")
            super().__setattr__(name, value)

        @input_port
        def x(self, x: int) -> tuple[int, int]:
            return x, self.by

    seen: list[Any] = []
    app = chain("app", count_to, Strict, writing(seen), a={"to": 100})
    platform.apply(app.build().configure("b", by=2, when="x >= 50").configure("b", by=3, when="x >= 60"))
    finish(platform, "app")
    assert seen == expected((60, 3), last=100)
    assert platform.mesh("app").node("b").settings == {"by": 3}


def test_it_holds_for_a_successor(platform):
    """A replacement keeps what is pending; a successor that lacks the setting does not, and the plan says so."""
    with armed(platform, "x >= 50", scale) as (tap, seen):
        changed(platform, "app", lambda mesh: mesh.replace("b", scale_too))
        assert pending(platform, "b") == ["by=2 when x >= 50"]
        tap.let(60)
        eventually(lambda: len(seen) == 60)
        assert seen == expected((50, 2), last=60)
        changed(platform, "app", lambda mesh: mesh.configure("b", by=3, when="x >= 70"))
        plan = platform.plan(platform.mesh("app").replace("b", unscaled))
        assert "b: the pending by=3 when x >= 70 is dropped: unscaled has no such port, field or setting" in str(plan)
        plan.apply()
        assert pending(platform, "b") == []
        tap.let(20)
    assert seen[60:] == [(x, 0) for x in range(61, 81)]


def test_under_replacements_at_full_speed(platform):
    """However often the slet is replaced and updates are added meanwhile: the point stays exact."""
    seen: list[tuple[int, int]] = []
    platform.apply(chain("app", endless, scale, writing(seen)).build())
    marks = []
    for round_ in range(2, 12):
        grows(seen, 50)
        mark = len(seen) + 3000
        marks.append((mark, round_))
        changed(platform, "app", lambda m, mark=mark, by=round_: m.configure("b", by=by, when=f"x >= {mark}"))
        while len(seen) < mark + 50:
            other = scale_too if len(seen) % 2 else scale
            changed(platform, "app", lambda mesh, other=other: mesh.replace("b", other))
    end(platform, "app")
    assert [x for x, _ in seen] == list(range(1, len(seen) + 1))
    factor, rest = 1, list(marks)
    for x, by in seen:
        if by != factor:
            at, factor = rest.pop(0)
            assert by == factor
            assert x >= at  # later only when the update came later than the item
    assert rest == []


def test_it_fires_while_a_change_is_prepared(platform):
    """The change is made on top of what took effect meanwhile; an edit that takes the update away is outdated."""
    gate = Gate()

    def edited(mesh: Mesh) -> Mesh:
        return mesh.configure("b", by=2, when="x >= 50").configure("b", by=3, when="x >= 80")

    with tapped(platform, scale, edit=edited) as (tap, seen):
        read, successor = platform.mesh("app"), opening(gate)
        with in_thread(lambda: platform.apply(read.replace("b", successor))) as done:
            gate.somebody_waits()
            tap.let(60)
            eventually(lambda: len(seen) == 60)
            gate.open()
        assert done.result().revision == 3
        assert platform.mesh("app").node("b").slet.factory is successor
        assert platform.status("app")["nodes"]["b"]["settings"] == {"by": 2}
        with pytest.raises(StaleMesh):
            platform.apply(read.configure("b", by=9))
        read = platform.mesh("app")
        tap.let(40)
        eventually(lambda: len(seen) == 100)
        platform.apply(read.suspend("c"))  # read before the second has fired: that is part of it
        assert platform.mesh("app").node("b").settings == {"by": 3}
        changed(platform, "app", lambda mesh: mesh.resume("c"))
    assert seen == expected((50, 2), (80, 3), last=100)


def test_it_does_not_fire_elsewhere_while_a_change_is_bound(platform, monkeypatch):
    """A change elsewhere in the application is about to enter its mesh: the update waits, and is not forgotten."""
    seen: list[Any] = []
    tap = Tap()
    app = Application("app")
    app.add("c", writing(seen), x=app.add("b", scale, x=app.add("a", tap.source())))
    app.add("other", writing([]), x=app.add("plain", scale, x=app.add("e", count_to, to=10)))
    platform.apply(app.build().configure("b", by=2, when="x >= 5"))
    tap.let(4)
    eventually(lambda: len(seen) == 4)
    source = platform.deployment("app").components["a"].driver

    def come(name: str) -> None:
        if name == "rebind-before":
            tap.let(1)
            eventually(lambda: source.closed or not platform.mesh("app").node("b").pending)

    with monkeypatch.context() as patch:
        patch.setattr("exop.wiring.changes.change.failpoint", come)
        changed(platform, "app", lambda mesh: mesh.replace("plain", scale_too))
    eventually(lambda: not platform.mesh("app").node("b").pending)
    assert platform.mesh("app").node("b").settings["by"] == 2
    tap.shut()
    finish(platform, "app")
    assert seen == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]


def test_a_change_that_fails_takes_nothing_back(platform):
    """An update that took effect while a change was prepared stays, though the change is undone."""
    gate = Gate()

    def refused() -> None:
        with pytest.raises(PlanError):
            platform.apply(read.replace("b", opening(gate, OSError("no"))))

    with armed(platform, "x >= 50", scale) as (tap, seen):
        read = platform.mesh("app")
        with in_thread(refused):
            gate.somebody_waits()
            tap.let(60)
            eventually(lambda: len(seen) == 60)
            gate.open()
        assert platform.mesh("app").node("b").settings == {"by": 2}
        tap.let(10)
    assert seen == expected((50, 2), last=70)


def test_a_suspended_slet(platform):
    """The item on which it is suspended has met its settings; the one that follows meets the new ones."""
    seen: list[Any] = []

    @slet
    def picky(x: int, *, by: int = 1, poison: int = 49) -> tuple[int, int]:
        if x == poison:
            raise ValueError("poison")
        return x, by

    app = chain("app", count_to, picky, writing(seen), a={"to": 100})
    platform.apply(app.build().configure("b", by=2, when="x >= 50"))
    suspended(platform, "app", "b")
    assert pending(platform, "b") == ["by=2 when x >= 50"]
    mesh = platform.mesh("app")
    node = mesh.node("b")
    healed = replace(node, settings={"by": 1, "poison": 0})
    platform.apply(replace(mesh, nodes={**mesh.nodes, "b": healed}))
    finish(platform, "app")
    assert seen == expected((50, 2), last=100)


def test_what_cannot_be_pending(platform):
    """Told at the line that makes it: conditions, settings, sources, and slets that pull."""

    @slet
    def pulling(x: InputPort[tuple[int, int]], *, by: int = 1) -> Iterator[tuple[int, int]]:
        yield from x

    mesh = chain("app", count_to, scale, pulling).build()
    for edit, error, told in (
        (lambda: mesh.configure("b", by=2, when="y > 1"), ExpressionError, "did you mean"),
        (lambda: mesh.configure("b", by="x", when="x > 1"), SettingError, "by"),
        (lambda: mesh.configure("b", to=1, when="x > 1"), UnknownName, "no setting 'to'"),
        (lambda: mesh.configure("b", when="x > 1"), MeshError, "nothing is to change"),
        (lambda: mesh.configure("b", by=2, close_windows=True), MeshError, "no open windows"),
        (lambda: mesh.configure("a", to=2, when="x > 1"), MeshError, "has no input port"),
        (lambda: mesh.configure("c", by=2, when="x > 1"), MeshError, "pulls its items"),
        (lambda: mesh.configure("z", by=2, when="x > 1"), UnknownName, "no node 'z'"),
        (
            lambda: platform.apply(mesh.configure_channel("a", capacity=3, when="item > 1")),
            PlanError,
            "keeps its settings",
        ),
    ):
        with pytest.raises(error, match=told):
            edit()


@slet
def passing(x: tuple[int, int]) -> tuple[int, int]:
    """Pass on."""
    return x


class Wide(Slet):
    """A further output port, and any number of results."""

    odd: OutputPort[tuple[int, int]]
    by: int = 1

    @input_port
    def x(self, x: int) -> Iterator[tuple[int, int]]:
        """Half of them here, half of them there."""
        if x % 2:
            self.odd.push((x, self.by))
        else:
            yield x, self.by


def test_further_ports(platform):
    """The outputs of further ports change at the point as well."""
    evens: list[Any] = []
    odds: list[Any] = []
    app = Application("app")
    even = app.add("b", Wide, x=app.add("a", count_to, to=LAST))
    app.add("even", writing(evens), x=even)
    app.add("odd", writing(odds), x=app.output("b", "odd"))
    platform.apply(app.build().configure("b", by=2, when="x >= 5000"))
    finish(platform, "app")
    assert sorted(evens + odds) == expected((5000, 2))


def test_what_takes_effect_is_logged(platform, capsys):
    """One line in the log, and one in the history, by a thread that has time for it."""
    seen: list[Any] = []
    platform.apply(chain("app", endless, scale, writing(seen)).build().configure("b", by=2, when="x >= 50"))
    told = ""

    def logged() -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return "a conditional update took effect" in told and "by=2 when x >= 50" in told

    eventually(logged, "the line in the log")
    wanted = ("conditional update took effect", "b", ["by=2 when x >= 50"])
    history = lambda: [(one["what"], one.get("node"), one.get("steps")) for one in platform.history("app")]  # noqa: E731
    eventually(lambda: wanted in history(), "the entry")
    end(platform, "app")


def test_beside_a_successor_that_is_proven(platform):
    """An update that takes effect in another node does not end a trial."""

    @slet
    def passing_too(x: tuple[int, int]) -> tuple[int, int]:
        return x

    with armed(platform, "x >= 50", scale, passing) as (tap, seen), on_trial(platform, "c", passing_too, 60):
        tap.let(100)
    assert platform.mesh("app").node("c").slet.name == "passing_too"
    assert platform.mesh("app").node("b").settings == {"by": 2}
    assert seen == expected((50, 2), last=100)


@pytest.mark.parametrize("second", ["x >= 60", "x >= 1000"])
def test_in_the_one_that_is_on_trial(platform, second):
    """An update takes effect in the successor on trial at the same item; one that is left does so behind the proof."""

    def edited(mesh: Mesh) -> Mesh:
        return mesh.configure("b", by=2, when="x >= 50").configure("b", by=3, when=second)

    with tapped(platform, scale, edit=edited) as (tap, seen):
        with on_trial(platform, "b", scale_too, 90):
            tap.let(100)
        tap.let(1000)
    node = platform.mesh("app").node("b")
    assert (node.slet.name, dict(node.settings), node.pending) == ("scale_too", {"by": 3, "more": 0}, ())
    assert platform.deployment("app").components["b"].node.settings == {"by": 3, "more": 0}
    assert seen == expected((50, 2), (int(second.split()[-1]), 3), last=1100)


def test_errors_of_a_condition_during_a_trial(platform):
    """The successor goes on from the count of its trial when it takes over."""
    with armed(platform, "1 / (x - 50) > 1", scale) as (tap, _):
        with on_trial(platform, "b", scale_too, 90):
            tap.let(100)
        told = platform.status("app")["nodes"]["b"]
    assert told["slet"].endswith("scale_too")
    assert told["pending_problem"] == "the condition raised for 1 item, last ZeroDivisionError: division by zero"


@pytest.mark.parametrize("condition", ["x >= 50", "x == 50"])
def test_it_fires_while_a_successor_is_opened_for_its_trial(platform, condition):
    """The successor is opened with the settings of before; it is tried with those of now."""
    gate = Gate()

    def proven() -> None:
        platform.plan(platform.mesh("app").replace("b", opening(gate))).apply(shadow=Shadow(items=20, seconds=20))

    with armed(platform, condition, scale) as (tap, seen), in_thread(proven):
        gate.somebody_waits()
        tap.let(70)
        eventually(lambda: len(seen) == 70, "the items that come while it is opened")
        gate.open()
        eventually(lambda: platform.status("app").get("shadow", {}).get("b", {}).get("seconds"), "the trial")
        tap.let(50)
    node = platform.mesh("app").node("b")
    assert (node.slet.name, dict(node.settings), node.pending) == ("opening", {"by": 2}, ())
    assert seen == expected((50, 2), last=120)


def test_an_update_that_the_mesh_does_not_have(platform):
    """It is logged, and the driver that brought the item goes on."""
    told: list[str] = []
    with tapped(platform, scale):
        before, log = platform.mesh("app"), platform.deployment("app").update_log
        log.on_news = lambda: told.append(log.news.popleft()[0])
        log.record(AppliedUpdate("nodes", "b", ConditionalUpdate("x >= 50", {"by": 2})))
        assert platform.mesh("app") == before
    assert told == ["a conditional update took effect that is not in the mesh"]
