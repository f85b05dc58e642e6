"""The sizes of windows change at a point in the stream, with or without closing the windows that are open then."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from exop import Application, Batch, Punctuation, Slet, input_port, slet
from exop.errors import ExpressionError, MeshError, PlanError, SettingError, StaleMesh, UnknownName
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.slets.slet import spec_of
from exop.stock.event_time import Watermark
from tests.change.tools import Position, Tap, changed, end, finish, in_thread
from tests.rig import Gate, eventually

LAST = 20_000


@dataclass(frozen=True)
class Report:
    """An item with a time."""

    time: int


@slet
def reports(position: Position, *, to: int = LAST) -> Iterator[Report]:
    """Emit reports of the times 1, 2, 3, …"""
    while position.number < to:
        position.number += 1
        yield Report(position.number)


@slet
def batches(position: Position, *, to: int = LAST) -> Iterator[Batch[Report]]:
    """The same in batches of 7."""
    while position.number < to:
        first = position.number + 1
        position.number = min(to, position.number + 7)
        yield Batch(Report(number) for number in range(first, position.number + 1))


def reports_of(tap: Tap) -> Any:
    """A source of the reports that a tap lets through."""

    @slet
    def tapped(position: Position) -> Iterator[Report]:
        while tap.next(position.number):
            position.number += 1
            yield Report(position.number)

    return tapped


@slet
def numbers_of(pieces: list[Report]) -> list[int]:
    """The times in a window."""
    return [one.time for one in pieces]


def collecting(seen: list[Any]) -> Any:
    """A sink of windows."""

    @slet
    def collect(x: list[int]) -> None:
        seen.append(x)

    return collect


def windowed(source: Any, seen: list[Any], *, queue: bool = False, **settings: Any) -> Application:
    """From *source* through a window and numbers_of into *seen*."""
    app = Application("app")
    pieces = app.channel("pieces", kind="window", **settings)
    if queue:
        buffer = app.channel("buffer", kind="queue", capacity=5)
        app.add("a", source, out=buffer)
        app.add("pass", "stock:pass_on", item=buffer, out=pieces)
    else:
        app.add("a", source, out=pieces)
    app.add("c", collecting(seen), x=app.add("b", numbers_of, pieces=pieces))
    return app


def span(first: int, last: int) -> list[int]:
    """The numbers from *first* up to and with *last*."""
    return list(range(first, last + 1))


def spans(first: int, last: int, size: int) -> list[list[int]]:
    """The whole windows of a size."""
    return [span(n, n + size - 1) for n in range(first, last - size + 2, size)]


NEXT = {"count": 4, "when": "item.time >= 5003"}
CLOSED = {"count": 4, "when": "pieces.time >= 5004", "close_windows": True}
OVERLAPPING = {"count": 3, "slide": 3, "when": "item.time >= 12", "close_windows": True}
SHORTER = {"seconds": 30, "when": "item.time >= 5045"}
TIMED = {"count": None, "seconds": 20, "time": "time", "when": "item.time >= 15"}
BACK = {"count": 10, "seconds": None, "when": "item.time >= 70"}


@pytest.mark.parametrize("source", [reports, batches])
@pytest.mark.parametrize(
    ("settings", "last", "updates", "wanted"),
    [
        ({"count": 10}, LAST, [NEXT], [*spans(1, 5010, 10), *spans(5011, LAST, 4)]),
        ({"count": 10, "queue": True}, LAST, [NEXT], [*spans(1, 5010, 10), *spans(5011, LAST, 4)]),
        ({"count": 10}, LAST, [CLOSED], [*spans(1, 5000, 10), span(5001, 5003), *spans(5004, LAST, 4)]),
        (
            {"count": 6, "slide": 2},
            20,
            [OVERLAPPING],
            [span(1, 6), span(3, 8), span(5, 10), span(7, 11), span(9, 11), [11], *spans(12, 20, 3)],
        ),
        (
            {"seconds": 60, "time": "time"},
            6000,
            [SHORTER],
            [span(1, 59), *spans(60, 5099, 60), *spans(5100, 5999, 30), [6000]],
        ),
        ({"count": 10}, 100, [TIMED, BACK], [*spans(1, 20, 10), span(21, 39), *spans(40, 79, 20), *spans(80, 99, 10)]),
    ],
)
def test_exactly_at_the_item(platform, source, settings, last, updates, wanted):
    """Open windows run to their end, or leave before the point; every item is in one of the windows of its time."""
    seen: list[Any] = []
    mesh = windowed(source, seen, **settings).build().configure("a", to=last)
    for update in updates:
        mesh = mesh.configure("pieces", **update)
    platform.apply(mesh)
    finish(platform, "app")
    assert seen == wanted
    sizes = {name: value for name, value in updates[-1].items() if name in ("count", "slide", "seconds") and value}
    assert sizes.items() <= platform.mesh("app").channels["pieces"].settings.items()
    assert "pending" not in platform.status("app")["channels"]["pieces"]


def test_at_a_time(platform):
    """`punctuation`: behind everything that is complete by then."""
    seen: list[Any] = []

    @slet
    def timed() -> Iterator[Report | Punctuation]:
        for number in range(1, 101):
            yield Report(number)
            if number % 25 == 0:
                yield Punctuation(number)

    app = windowed(timed, seen, count=20)
    platform.apply(app.build().configure("pieces", count=10, when="punctuation >= 50", close_windows=True))
    finish(platform, "app")
    assert seen == [span(1, 20), span(21, 40), span(41, 50), *(span(n, n + 9) for n in range(51, 101, 10))]


def test_each_port_has_its_own(platform):
    """Ports whose sizes stay keep their windows as they are."""
    seen: list[Any] = []
    beside: list[Any] = []
    app = Application("app")
    pieces = app.channel("pieces", kind="window", count=10, ports={"d.pieces": {"count": 8}})
    app.add("a", reports, out=pieces)
    app.add("c", collecting(seen), x=app.add("b", numbers_of, pieces=pieces))
    app.add("e", collecting(beside), x=app.add("d", numbers_of, pieces=pieces))
    platform.apply(app.build().configure("pieces", count=5, when="item.time >= 12").configure("a", to=40))
    finish(platform, "app")
    assert seen == [span(1, 10), span(11, 20), *(span(n, n + 4) for n in range(21, 40, 5))]
    assert beside == [span(n, n + 7) for n in range(1, 40, 8)]


@pytest.mark.parametrize("close", [False, True])
def test_at_once(platform, close):
    """Without `when`: wherever the stream is."""
    seen: list[Any] = []
    tap = Tap()

    platform.apply(windowed(reports_of(tap), seen, count=10).build())
    tap.let(13)
    eventually(lambda: platform.status("app")["channels"]["pieces"]["items"] == 10 and len(seen) == 1)
    eventually(lambda: platform.status("app")["nodes"]["a"]["metrics"]["items_out"] == 13)
    plan = platform.plan(platform.mesh("app").configure("pieces", count=4, close_windows=close))
    told = "the open windows are closed" if close else "the open windows run to their end"
    assert f"configure the channel pieces: count: 10 → 4; {told}" in str(plan)
    plan.apply()
    assert platform.mesh("app").channels["pieces"].settings == {"count": 4}
    assert not platform.mesh("app").channels["pieces"].close_windows
    tap.let(12)
    tap.shut()
    finish(platform, "app")
    wanted = [span(11, 13), span(14, 17), span(18, 21), span(22, 25)] if close else [span(11, 20), span(21, 24)]
    assert seen == [span(1, 10), *wanted]


def test_it_is_seen_and_cancelled(platform):
    """The status and the plan show it; `configure` without `when` takes it back."""
    seen: list[Any] = []
    platform.apply(windowed(reports, seen, count=10).build().suspend("c"))
    changed(platform, "app", lambda m: m.configure("pieces", count=4, when="item.time >= 30000", close_windows=True))
    text = "count=4, open windows closed when item.time >= 30000"
    assert platform.status("app")["channels"]["pieces"]["pending"] == [text]
    plan = platform.plan(platform.mesh("app").configure("pieces"))
    assert f"configure the channel pieces: no longer pending: {text}" in str(plan)
    plan.apply()
    assert "pending" not in platform.status("app")["channels"]["pieces"]
    changed(platform, "app", lambda mesh: mesh.resume("c"))
    finish(platform, "app")
    assert seen == [span(n, n + 9) for n in range(1, LAST, 10)]


def test_while_a_change_is_prepared(platform):
    """An update that took effect meanwhile is part of the change; an edit that removes it is outdated."""
    seen: list[Any] = []
    gate, tap = Gate(), Tap()

    platform.apply(
        windowed(reports_of(tap), seen, count=10).build().configure("pieces", count=4, when="item.time >= 15")
    )
    read = platform.mesh("app")

    class Opening(Slet):
        def __enter__(self) -> "Opening":
            gate.pass_through()
            return self

        @input_port
        def x(self, x: list[int]) -> None:
            seen.append(x)

    with in_thread(lambda: platform.apply(read.replace("c", Opening))):
        gate.somebody_waits()
        tap.let(24)
        eventually(lambda: len(seen) == 3)
        gate.open()
    assert platform.mesh("app").channels["pieces"].settings == {"count": 4}
    with pytest.raises(StaleMesh):
        platform.apply(read.configure("pieces", count=9))
    tap.let(8)
    tap.shut()
    finish(platform, "app")
    assert seen == [span(1, 10), span(11, 20), span(21, 24), span(25, 28), span(29, 32)]


def test_what_cannot_be(platform):
    """Sizes that do not fit, fields that are not there, kinds that keep what they have."""
    seen: list[Any] = []
    mesh = windowed(reports, seen, count=10).build()
    for edit, error, told in (
        (lambda: mesh.configure("pieces", count=4, when="item.tme > 1"), ExpressionError, "did you mean 'time'"),
        (lambda: mesh.configure("pieces", count=4, when="count > 1"), ExpressionError, "no port or setting"),
        (lambda: mesh.configure("pieces", when="item.time > 1"), MeshError, "nothing is to change"),
        (lambda: mesh.configure_channel("piece", count=4), UnknownName, "did you mean 'pieces'"),
        (lambda: platform.apply(mesh.configure("pieces", cont=4, when="item.time > 1")), UnknownName, "'count'"),
        (lambda: platform.apply(mesh.configure("pieces", count="x", when="item.time > 1")), SettingError, "count"),
        (lambda: platform.apply(mesh.configure("pieces", slide=40, when="item.time > 1")), MeshError, "do not fit"),
        (
            lambda: platform.apply(mesh.configure("pieces", count=None, evict=True, when="item.time > 1")),
            PlanError,
            "cannot change while it runs",
        ),
    ):
        with pytest.raises(error, match=told):
            edit()
    platform.apply(mesh.suspend("c"))
    with pytest.raises(PlanError, match="keeps its settings"):
        changed(platform, "app", lambda mesh: mesh.configure_channel("b", close_windows=True))
    changed(platform, "app", lambda mesh: mesh.resume("c"))
    end(platform, "app")


def test_what_is_closed_at_once_leaves_at_once(platform):
    """A queue's worker sends it though nothing comes; and it does not leave again with what comes."""
    seen: list[Any] = []
    tap = Tap()

    platform.apply(windowed(reports_of(tap), seen, queue=True, count=10).build())
    tap.let(13)
    eventually(lambda: platform.status("app")["nodes"]["pass"]["metrics"]["items_in"] >= 1 and len(seen) == 1)
    eventually(lambda: not platform.deployment("app").channels["buffer"].entries)
    changed(platform, "app", lambda mesh: mesh.configure("pieces", close_windows=True))
    eventually(lambda: seen == [span(1, 10), span(11, 13)])
    tap.let(10)
    tap.shut()
    finish(platform, "app")
    assert seen == [span(1, 10), span(11, 13), span(14, 23)]


class Row(TypedDict):
    """A report as a dictionary."""

    time: int


@slet
def as_report(number: int) -> Report:
    """Make a report."""
    return Report(number)


@slet
def as_row(number: int) -> Row:
    """Make a row."""
    return {"time": number}


def test_a_producer_with_another_item_type_takes_its_place(platform):
    """The pending condition reads the items of the successor: a report by its attribute, a row by its key."""
    sizes: list[int] = []

    @slet
    def size(pieces: list[Any]) -> None:
        sizes.append(len(pieces))

    tap = Tap()
    app = Application("app")
    pieces = app.channel("pieces", kind="window", count=5)
    app.add("b", as_report, number=app.add("a", tap.source()), out=pieces)
    app.add("c", size, pieces=pieces)
    platform.apply(app.build().configure("pieces", count=2, when="item.time > 10"))
    changed(platform, "app", lambda mesh: mesh.replace("b", as_row))
    tap.let(14)
    tap.shut()
    finish(platform, "app")
    assert sizes == [5, 5, 2, 2]


def test_a_watermark_comes_and_goes_upstream(platform):
    """While none is there the times of the items close the windows, and else it alone does; no item is lost over it."""
    seen: list[Any] = []
    tap, app = Tap(), Application("app")

    @slet
    def report(number: int) -> Report:
        return Report(number)

    pieces = app.channel("pieces", kind="window", seconds=10, time="time")
    app.add("a", report, number=app.add("numbers", tap.source()))
    app.add("b", "stock:pass_on", item=app.output("a"), out=pieces)
    app.add("d", collecting(seen), x=app.add("c", numbers_of, pieces=pieces))
    platform.apply(app.build())
    window: Any = platform.deployment("app").channels["pieces"]
    tap.let(12)
    eventually(lambda: seen == [span(1, 9)], "the first window")
    assert window.unpunctuated == {"b.out"}
    mesh = platform.mesh("app")
    timed = Node("timed", spec_of(Watermark), {"time": "time", "delay": 15}, {"item": "a", "out": "timed"})
    platform.apply(mesh.add(timed, ChannelSpec("timed")).rewire("b", item="timed"))
    assert window.unpunctuated == frozenset()
    tap.let(20)
    eventually(lambda: window.metrics()["taken"] == 32, "more items")
    assert seen == [span(1, 9)]
    without = platform.mesh("app").rewire("b", item="a").remove("timed")
    assert any("no punctuations come from b.out" in note for note in platform.plan(without).notes)
    platform.apply(without)
    assert window.unpunctuated == {"b.out"}
    tap.let(3)
    eventually(lambda: len(seen) == 3, "two more windows")
    tap.shut()
    finish(platform, "app")
    assert seen == [span(1, 9), span(10, 19), span(20, 29), span(30, 35)]
