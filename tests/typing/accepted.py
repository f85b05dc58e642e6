"""A user's module: every form of slet, as the design and the reference show them. No type checker may object."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pyarrow as pa

from exop import (
    Application,
    Batch,
    EndOfStream,
    InputPort,
    Memento,
    Mesh,
    OutputPort,
    Platform,
    Punctuation,
    Slet,
    hookimpl,
    input_port,
    slet,
)
from exop.testing import check_source, collected, feed
from exop.testing import open as open_slet

REPORTS = pa.schema([("vid", pa.int32()), ("speed", pa.int32())])


@dataclass
class Report:
    """An item."""

    segment: int
    speed: float


@dataclass
class Order:
    """An item."""

    price: int


@dataclass
class Trade:
    """An item."""

    bid: Order
    ask: Order


class Speeds(Memento):
    """A state."""

    by_segment: dict[int, list[float]] = field(default_factory=dict)
    count: int = 0


class Book(Memento):
    """A state."""

    bids: list[Order] = field(default_factory=list)
    asks: list[Order] = field(default_factory=list)


@slet
def average(report: Report, speeds: Speeds, *, window: int = 10) -> tuple[int, float]:
    """Average the last *window* speeds of the report's segment."""
    recent = [*speeds.by_segment.get(report.segment, []), report.speed][-window:]
    speeds.by_segment[report.segment] = recent
    return report.segment, sum(recent) / len(recent)


@slet(name="slow", on_error="dead-letter", atomic=True)
def below(average: tuple[int, float], *, below: float = 40.0) -> str | None:
    """Tell of slow segments."""
    return f"{average[0]}" if average[1] < below else None


class Position(Memento):
    """A state."""

    number: int = 0


@slet
def traffic(position: Position, *, cars: int, mode: Literal["even", "odd"] = "even") -> Iterator[Report | None]:
    """A source."""
    while position.number < cars:
        position.number += 1
        yield Report(position.number % 3, 50.0)
        yield None


@slet
def minutes(report: Report | Punctuation | EndOfStream) -> Iterator[int | Punctuation]:
    """See control items."""
    if isinstance(report, Punctuation):
        yield Punctuation(report.time)
    elif isinstance(report, Report):
        yield report.segment


@slet
def lists(reports: Batch[Report]) -> Batch[int]:
    """Take lists."""
    return Batch([report.segment for report in reports])


@slet
def columns(rows: Annotated[pa.RecordBatch, REPORTS] | Punctuation) -> Annotated[pa.RecordBatch, REPORTS] | None:
    """Take columns."""
    return None if isinstance(rows, Punctuation) else rows


@slet
def console(line: str) -> None:
    """A sink."""


class Match(Slet):
    """Pair each bid with an ask at or below its price."""

    book: Book
    refused: OutputPort[Order]
    depth: int = 10
    tags: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Open."""
        self._opened = True
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self._opened = False

    def metrics(self) -> dict[str, int | float | str]:
        """Figures of its own."""
        return {"bids": len(self.book.bids)}

    @input_port
    def bid(self, order: Order) -> Iterator[Trade]:
        """A bid."""
        if len(self.book.bids) >= self.depth:
            self.refused.push(order)
            return
        self.book.bids.append(order)
        for ask in self.book.asks:
            yield Trade(order, ask)

    @input_port
    def ask(self, order: Order) -> Iterator[Trade]:
        """An ask."""
        self.book.asks.append(order)
        yield from ()


class Join(Slet):
    """A slet that pulls."""

    left: InputPort[int]
    right: InputPort[str]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        for one in self.left:
            yield from ((one, other) for other in self.right.pull(most=1))


class Engine(Slet, own_driver=True, on_error="retry"):
    """A slet with a driver of its own."""

    out: OutputPort[Annotated[pa.RecordBatch, REPORTS] | Punctuation]
    path: Path = Path("in")

    @input_port
    def rows(self, rows: Annotated[pa.RecordBatch, REPORTS] | EndOfStream) -> None:
        """Hand over."""
        threading.Thread(target=self.out.end).start()


class FastEngine(Engine, name="fast", own_driver=True):
    """A derived slet."""

    path: Path = Path("fast")


def a_unit_test() -> None:
    """A slet stays the function it was; a class is opened with its ports."""
    found: tuple[int, float] = average(Report(1, 10.0), Speeds(count=1), window=3)
    with open_slet(Match, depth=1) as match:
        trades: list[Trade] = list(match.bid(Order(5)))
        refused: list[Order] = collected(match.refused)
    items: list[Any] = feed(average, [Report(1, 2.0)], window=2)
    check_source(traffic, cars=3)
    console(f"{found} {items} {trades} {refused}")


def linear_road(*, path: Path, speed: float = 1.0) -> Application:
    """An application builder."""
    app = Application("linear-road")
    reports = app.channel("reports", kind="queue", capacity=10_000)
    app.add("traffic", traffic, cars=60, out=reports)
    averages = app.add("averages", average, report=reports, window=5)
    slow = app.on("edge-2").add("jams", below, average=averages, below=12)
    app.add("console", console, line=slow, on_error="skip")
    matched = app.add("match", Match, bid=reports, ask=reports)
    app.add("trades", console, line=matched)
    app.add("refused", console, line=app.output("match", "refused"))
    return app


def change(platform: Platform, app: Application) -> Mesh:
    """Edits return meshes."""
    mesh = app.build()
    return platform.apply(mesh.replace("averages", lists).configure("jams", below=20).move("averages", to="edge-2"))


@hookimpl
def register_slets() -> list[Any]:
    """What the plugin offers."""
    return [average, below, Match, Engine]
