"""What does one hop from slet to slet cost, against `self.next.push(self.f(x))`; and a partitioned one beyond it?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from bench.harness import Result, Side, compare, median, paired
from exop import Application, Batch, Memento, Platform, slet

FLOOR = "self.next.push(self.f(x))"
ROUTED = "members[item.xway](item)"


class Sum(Memento):
    """What the stateful operator keeps."""

    total: int = 0


@slet
def plus_one(x: int) -> int:
    """Do the work of the stateless hop."""
    return x + 1


@slet
def add_up(x: int, state: Sum, *, step: int = 1) -> int:
    """Do the work of the stateful hop: it reads a setting and writes its state."""
    state.total += x
    return x + step


@slet
def odd(x: int) -> int | None:
    """Do the work of the hop that drops half of the items."""
    return x if x & 1 else None


@slet
def one_of(x: int) -> Iterator[int]:
    """Do the work of the hop that may emit any number."""
    yield x + 1


@slet
def count(x: int, state: Sum) -> None:
    """Count what arrives."""
    state.total += 1


class Chain:
    """The floor: an object that calls the next one, with the function and its state as attributes."""

    def __init__(self, f: Callable[[int], Any], following: Chain | Counter) -> None:
        self.f = f
        self.next = following

    def push(self, x: int) -> None:
        """Work, then call the next one."""
        self.next.push(self.f(x))


class Filter(Chain):
    """The floor of a filter: the next one is called unless the function returns nothing."""

    def push(self, x: int) -> None:
        """Work, then call the next one with a result."""
        found = self.f(x)
        if found is not None:
            self.next.push(found)


class Counter:
    """The end of the floor's chain."""

    def __init__(self) -> None:
        self.total = 0

    def push(self, x: int) -> None:
        """Count."""
        self.total += 1


class Adder:
    """The stateful operator of the floor: a method with its state and setting on the object."""

    def __init__(self, step: int) -> None:
        self.total = 0
        self.step = step

    def add(self, x: int) -> int:
        """Do the same work as `add_up`."""
        self.total += x
        return x + self.step


def measure(
    *,
    hops: Annotated[int, "slets in the chain, the sink not counted"] = 10,
    items: Annotated[int, "items per run"] = 20_000,
    rounds: Annotated[int, "how many pairs of runs"] = 15,
) -> Iterator[Result]:
    """Run the same work through a chain of objects and through ExoP, in pairs; ns of CPU per item and hop."""
    stateless = plain_chain(lambda: plus_one, hops, items)
    stateful = plain_chain(lambda: Adder(1).add, hops, items)
    filtered = plain_chain(lambda: plus_one, hops, items, drops=True)
    with Platform() as platform:
        for name, work, floor in (("stateless", plus_one, stateless), ("stateful", add_up, stateful)):
            candidate = through_exop(platform, work, hops, items, batch=0)
            yield compare(f"hop/item/{name}", "ns", floor=floor, candidate=candidate, against=FLOOR, rounds=rounds)
        candidate = through_exop(platform, one_of, hops, items, batch=0)
        yield compare("hop/item/iterator", "ns", floor=stateless, candidate=candidate, against=FLOOR, rounds=rounds)
        candidate = through_exop(platform, plus_one, hops, items, batch=0, drops=True)
        yield compare("hop/item/filter", "ns", floor=filtered, candidate=candidate, against=FLOOR, rounds=rounds)
        for name, work, floor in (("stateless", plus_one, stateless), ("stateful", add_up, stateful)):
            candidate = through_exop(platform, work, hops, items, batch=32)
            yield compare(f"hop/batch32/{name}", "ns", floor=floor, candidate=candidate, against=FLOOR, rounds=rounds)
        for name, taker, pool in (("item", taken, cars()), ("row", counted, columns())):
            floor, candidate = (into_members(platform, taker, pool, by=by) for by in (None, "xway"))
            plain = routed_plainly(pool)
            pairs = [(more - base, plain()) for more, base in paired(floor, candidate, rounds)[0]]
            value, ratio = median(beyond for beyond, _ in pairs), median(beyond / base for beyond, base in pairs)
            yield Result(f"hop/partitioned/{name}", value, "ns", ROUTED, ratio, pairs)


@dataclass(frozen=True, slots=True)
class Car:
    """An item with a key."""

    xway: int
    speed: int


@slet
def taken(x: Car) -> None:
    """Take an item."""


@slet
def counted(x: pa.RecordBatch) -> None:
    """Take a batch."""


def cars() -> list[Any]:
    """Items of a thousand keys."""
    return [Car(number * 7919 % 1000, number) for number in range(100_000)]


def columns() -> list[Any]:
    """Batches of 8192 rows with four columns, and the same keys."""
    names = ("xway", "speed", "lane", "position")
    rows = [[number * 7919 % 1000, number, number % 4, number * 3] for number in range(8 * 8192)]
    batch = pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*rows, strict=True)], names=names)
    return [batch.slice(at, 8192) for at in range(0, batch.num_rows, 8192)] * 10


def routed_plainly(pool: list[Any]) -> Side:
    """The floor: a dictionary of functions; or the rows sorted by two owners, and taken."""

    def run() -> float:
        members, rows = dict.fromkeys(range(1000), taken), 0
        begin = time.thread_time_ns()
        for item in pool:
            if isinstance(item, Car):
                members[item.xway](item)
                rows += 1
            else:
                owners = (item.column("xway").to_numpy() & 1).astype(np.uint8)
                counted(item.take(np.argsort(owners, kind="stable")))
                rows += item.num_rows
        return (time.thread_time_ns() - begin) / rows

    return run


def into_members(platform: Platform, work: Any, pool: list[Any], *, by: str | None) -> Side:
    """One slet behind a channel; or two that share its partitions. The figure is the time of an item, or of a row."""
    times: list[int] = []
    carries = pa.RecordBatch if isinstance(pool[0], pa.RecordBatch) else Car
    number = sum(getattr(one, "num_rows", 1) for one in pool)

    def given() -> Iterator[Any]:
        begin = time.thread_time_ns()
        yield from pool
        times.append(time.thread_time_ns() - begin)

    given.__annotations__["return"] = Iterator[carries]  # type: ignore[valid-type]
    source = slet(given)

    def run() -> float:
        app = Application("hop")
        partitions: dict[str, Any] = {} if by is None else {"by": by}
        channel = app.channel("cars", **partitions)
        app.add("source", source, out=channel)
        for name in ("a",) if by is None else ("a", "b"):
            app.add(name, work, x=channel, group=by and "g")
        platform.apply(app.build())
        platform.wait("hop")
        platform.remove("hop")
        return times.pop() / number

    return run


def plain_chain(work: Callable[[], Callable[[int], int]], hops: int, items: int, *, drops: bool = False) -> Side:
    """The floor: the same source, iterated into a chain of objects, of which the first *drops* half of the items."""
    arriving = items // 2 if drops else items

    def run() -> float:
        counter = Counter()
        head: Chain | Counter = counter
        for _ in range(hops - drops):
            head = Chain(work(), head)
        head = Filter(odd, head) if drops else head
        begin = time.thread_time_ns()
        for item in numbers(items):
            head.push(item)
        took = time.thread_time_ns() - begin
        if counter.total != arriving:
            raise RuntimeError(f"the floor has counted {counter.total} of {arriving} items")
        return took / items / (hops + 1)

    return run


def numbers(items: int) -> Iterator[int]:
    """Yield small numbers from a pool, so that making them costs nothing."""
    pool = list(range(1024))
    while items > 0:
        yield from pool[:items]
        items -= len(pool)


def through_exop(platform: Platform, work: Any, hops: int, items: int, *, batch: int, drops: bool = False) -> Side:
    """The same work as slets of an application; its source reads the clock of the thread that drives the chain."""
    times: list[int] = []

    @slet
    def singles() -> Iterator[int]:
        begin = time.thread_time_ns()
        yield from numbers(items)
        times.append(time.thread_time_ns() - begin)

    @slet
    def batches() -> Iterator[Batch[int]]:
        pool = [Batch(range(at, at + batch)) for at in range(0, 1024, batch)]
        begin = time.thread_time_ns()
        for number in range(items // batch):
            yield pool[number % len(pool)]
        times.append(time.thread_time_ns() - begin)

    def run() -> float:
        app = Application("hop")
        channel = app.add("source", batches if batch else singles)
        for number in range(hops):
            channel = app.add(f"hop{number}", odd if drops and not number else work, x=channel)
        app.add("sink", count, x=channel)
        platform.apply(app.build())
        platform.wait("hop")
        state = platform.deployment("hop").components["sink"].state
        sent = items // batch * batch if batch else items
        if not isinstance(state, Sum) or state.total != (sent // 2 if drops else sent):
            raise RuntimeError(f"the sink has counted {state} of {sent} items")
        platform.remove("hop")
        return times.pop() / sent / (hops + 1)

    return run
