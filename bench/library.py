"""What does the base library cost: expressions and operators, beside the same work by hand and by Arrow?"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from math import inf
from statistics import median
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bench.harness import Result, Side, compare, paired, timed
from bench.hop import Chain, Counter
from bench.joins import BY_HAND, joins
from exop import Application, EndOfStream, Memento, OutputPort, Platform, Punctuation, Slet, input_port, slet
from exop.expressions import Names, read
from exop.plugin import PortType
from exop.stock.aggregates import Aggregate
from exop.stock.order import BSort, Dedupe
from exop.stock.rows import Counted, Filter, Map, Number, Split
from exop.testing import CollectingOutput
from exop.testing import open as open_slet

CALLS: Final = "the same calls"


@dataclass
class Report:
    """An item."""

    speed: float
    lane: int
    driver: str = "Ann"


#: The expressions, as functions of an object, of a row, and of the columns of a batch.
CASES: Final[dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "comparison": (
        "item.speed > 60",
        lambda item: item.speed > 60,
        lambda item: item["speed"] > 60,
        lambda of: pc.greater(of["speed"], 60.0),
    ),
    "two": (
        "item.speed > 60 and item.lane < 3",
        lambda item: item.speed > 60 and item.lane < 3,
        lambda item: item["speed"] > 60 and item["lane"] < 3,
        lambda of: pc.and_kleene(pc.greater(of["speed"], 60.0), pc.less(of["lane"], 3)),
    ),
    "arithmetic": (
        "item.speed * 2 + item.lane",
        lambda item: item.speed * 2 + item.lane,
        lambda item: item["speed"] * 2 + item["lane"],
        lambda of: pc.add_checked(pc.multiply_checked(of["speed"], 2.0), of["lane"]),
    ),
    "choice": (
        "item.speed if item.lane > 3 else 0.0",
        lambda item: item.speed if item.lane > 3 else 0.0,
        lambda item: item["speed"] if item["lane"] > 3 else 0.0,
        lambda of: pc.if_else(pc.greater(of["lane"], 3), of["speed"], 0.0),
    ),
    "text": (
        "lower(item.driver) == 'ann'",
        lambda item: item.driver.lower() == "ann",
        lambda item: item["driver"].lower() == "ann",
        lambda of: pc.equal(pc.utf8_lower(of["driver"]), "ann"),
    ),
}


class Ignored(CollectingOutput):
    """An output port that nobody reads."""

    def push(self, item: Any) -> None:
        """Drop it."""


class RowsByHand:
    """The operators, as one would write them for one stream."""

    number = 0

    def __init__(self, out: OutputPort[Any]) -> None:
        self._push = out.push

    def filter(self, item: Any) -> Any:
        """Do the work of `stock:filter`."""
        return item if item["speed"] > 60 else None

    def map(self, item: Any) -> Any:
        """Do the work of `stock:map`."""
        return {"kmh": item["speed"] * 3.6, "lane": item["lane"] + 1, "driver": item["driver"].lower()}

    def split(self, item: Any) -> None:
        """Do the work of `stock:split`."""
        rest = True
        if item["speed"] > 60:
            self._push(item)
            rest = False
        if item["lane"] < 1:
            self._push(item)
            rest = False
        if rest:
            self._push(item)

    def add_number(self, item: Any) -> Any:
        """Do the work of `stock:number`."""
        number = self.number
        self.number = number + 1
        return {**item, "into": number}


WHERE: Final = "item.speed > 60"
FIELDS: Final = {"kmh": "item.speed * 3.6", "lane": "item.lane + 1", "driver": "lower(item.driver)"}


def operators(rounds: int) -> Iterator[Result]:
    """Measure the operators, for rows, and for record batches."""
    row = vars(Report(70.0, 2))
    split: Any = Split[Any](conditions={"fast": WHERE, "left": "item.lane < 1"}, rest=Ignored())
    split.outputs, split.inputs = dict.fromkeys(("fast", "left", "rest"), split.rest), {"item": PortType()}
    filtering: Any = Filter[Any](where=WHERE)
    mapping: Any = Map(fields=FIELDS)
    filtering.inputs = mapping.inputs = split.inputs
    number = Number(into="into", counted=Counted())
    by_hand = RowsByHand(split.rest)
    with split, number:
        for name, candidate, floor in (
            ("filter", filtering.keep_item, by_hand.filter),
            ("map", mapping.compute_item, by_hand.map),
            ("split", split.split_item, by_hand.split),
            ("number", number.item, by_hand.add_number),
        ):
            pair = {"floor": pushed(floor, row), "candidate": pushed(candidate, row)}
            yield compare(f"library/{name}/items", "ns", **pair, against=BY_HAND, rounds=rounds)
    yield from stateful(rounds)
    for rows in (65_536, 1_000):
        batch, _ = columns_of(rows)
        for name, candidate, floor in (
            ("filter", filtering.keep_batch, lambda batch: batch.filter(pc.greater(batch.column("speed"), 60.0))),
            ("map", mapping.compute_batch, mapped_by_hand),
        ):
            pair = {"floor": called(floor, batch), "candidate": called(candidate, batch)}
            yield compare(f"library/{name}/columns{rows}", "us", **pair, against=CALLS, rounds=rounds)


class Sorter:
    """Sorts with a buffer of two items, by hand, with the same ports."""

    def __init__(self, late: OutputPort[Any]) -> None:
        self._late = late
        self._held: dict[Any, list[Any]] = {}
        self._left: dict[Any, float] = {}
        self._complete = -1.0
        self._number = 0

    def item(self, item: Any) -> list[Any]:
        """Do the work of `stock:bsort`."""
        if isinstance(item, (Punctuation, EndOfStream)):
            return self._all(item)
        time, key = item["time"], item["group"]
        if time <= self._complete or time < self._left.get(key, -1):
            self._late.push(item)
            return []
        held = self._held.setdefault(key, [])
        insort(held, (time, self._number, item))
        self._number += 1
        if len(held) <= 2:
            return []
        self._left[key], _, found = held.pop(0)
        return [found]

    def _all(self, mark: Punctuation | EndOfStream) -> list[Any]:
        self._complete = mark.time if isinstance(mark, Punctuation) else self._complete
        held, self._held = self._held, {}
        return [*(one[2] for one in sorted(one for each in held.values() for one in each)), mark]


class Once:
    """Drops repetitions, by hand, with the same ports."""

    def __init__(self, late: OutputPort[Any]) -> None:
        self._late = late
        self._times: dict[Any, float] = {}
        self._complete = -1.0

    def item(self, item: Any) -> Any:
        """Do the work of `stock:dedupe`."""
        if isinstance(item, Punctuation):
            self._complete = item.time
            self._times = {key: first for key, first in self._times.items() if item.time < first + 5}
            return item
        time, key = item["time"], item["group"]
        if time <= self._complete:
            self._late.push(item)
            return None
        if (first := self._times.get(key)) is not None and time < first + 5:
            return None
        self._times[key] = time
        return item


def stateful(rounds: int) -> Iterator[Result]:
    """Measure operators with state, on a stream of rows that is nearly in order."""

    def through(process: Callable[[Any], Any]) -> Side:
        rows = ({"time": number // 3 + number % 3, "group": number % 5} for number in count())

        def block(number: int) -> None:
            for row in islice(rows, number):
                process(row)

        return timed(block, unit="ns")

    with (
        open_slet(BSort, on="time", slack=2, by="group") as bsort,
        open_slet(Dedupe, by="group", time="time", within=5) as dedupe,
    ):
        for name, candidate, floor in (
            ("bsort", bsort.item, Sorter(Ignored()).item),
            ("dedupe", dedupe.item, Once(Ignored()).item),
        ):
            pair = {"floor": through(floor), "candidate": through(candidate)}
            yield compare(f"library/{name}/items", "ns", **pair, against=BY_HAND, rounds=rounds)


def mapped_by_hand(batch: Any) -> Any:
    """Do the work of `stock:map`, by Arrow."""
    kmh = pc.multiply_checked(batch.column("speed"), 3.6)
    columns = [kmh, pc.add_checked(batch.column("lane"), 1), pc.utf8_lower(batch.column("driver"))]
    return pa.RecordBatch.from_arrays(columns, ["kmh", "lane", "driver"])


def measure(*, rounds: Annotated[int, "how many pairs of runs"] = 15) -> Iterator[Result]:
    """Measure expressions and operators: for items, and for record batches of 65 536 and of 1 000 rows."""
    yield from operators(rounds)
    report = Report(70.0, 2)
    for name, (text, of_object, of_row, of_columns) in CASES.items():
        for form, known, item, by_hand in (
            ("objects", PortType(Report), report, of_object),
            ("rows", PortType(), vars(report), of_row),
        ):
            function = read(text, Names("bench", {"item": known})).item_function()
            floor, candidate = (pushed(one, item) for one in (by_hand, function))
            name_of = f"library/expressions/{form}/{name}"
            yield compare(name_of, "ns", floor=floor, candidate=candidate, against=BY_HAND, rounds=rounds)
        function = read(text, Names("bench", {"item": PortType()})).column_function()
        for rows in (65_536, 1_000):
            batch, columns = columns_of(rows)
            floor, candidate = called(of_columns, columns), called(function, batch)
            name_of = f"library/expressions/columns{rows}/{name}"
            yield compare(name_of, "us", floor=floor, candidate=candidate, against=CALLS, rounds=rounds)
    yield from aggregates(rounds)
    yield from joins(rounds)


def columns_of(rows: int) -> tuple[Any, dict[str, Any]]:
    """A batch of reports, and its columns by name."""
    reports = [Report(number * 7919 % 1000 / 10, number % 7) for number in range(rows)]
    batch = pa.RecordBatch.from_pylist([*map(vars, reports)])
    return batch, dict(zip(batch.schema.names, batch.columns, strict=True))


def pushed(function: Callable[[Any], Any], item: Any) -> Side:
    """Push an item through a slet: an object that calls the next one with the result of a function."""
    chain = Chain(function, Counter())

    def block(number: int) -> None:
        for _ in range(number):
            chain.push(item)

    return timed(block, unit="ns")


def called(function: Callable[[Any], Any], given: Any) -> Side:
    """Call a function of columns."""

    def block(number: int) -> None:
        for _ in range(number):
            function(given)

    return timed(block)


class Groups(Memento):
    """The groups by the end of their windows and by key: number of rows, of values, their sum, the greatest one."""

    windows: dict[int, dict[int, list[Any]]] = field(default_factory=dict)
    complete: float = -inf


class ByHand(Slet):
    """Rows per key and minute, their mean and the maximum, as somebody would write it who has no library."""

    groups: Groups
    late: OutputPort[Any]

    @input_port
    def rows(self, item: Any | Punctuation | EndOfStream) -> Iterable[Any | Punctuation]:
        """Take an item."""
        groups = self.groups
        if isinstance(item, (Punctuation, EndOfStream)):
            return self.close(item)
        end = item["time"] // 60 * 60 + 60
        if end <= groups.complete:
            self.late.push(item)
            return ()
        if (window := groups.windows.get(end)) is None:
            window = groups.windows[end] = {}
        spd = item["spd"]
        if (group := window.get(item["road"])) is None:
            window[item["road"]] = [1, spd, spd]
        else:
            group[0] += 1
            group[1] += spd
            if spd > group[2]:
                group[2] = spd
        return ()

    def close(self, mark: Punctuation | EndOfStream) -> list[Any]:
        """Emit the windows that are complete."""
        groups = self.groups
        groups.complete = inf if isinstance(mark, EndOfStream) else mark.time + 1
        found: list[Any] = []
        for end in sorted(one for one in groups.windows if one <= groups.complete):
            window = groups.windows.pop(end)
            for road, (n, total, top) in sorted(window.items()):
                found.append({"time": end, "road": road, "cars": n, "mean": total / n, "top": top})
        return found if isinstance(mark, EndOfStream) else [*found, mark]


SETTINGS: Final[dict[str, Any]] = {
    "columns": "time bigint, road bigint, spd double",
    "values": {"cars": "count(*)", "mean": "avg(spd)", "top": "max(spd)"},
    "keys": ["road"],
    "time": "time",
}


def readings(rows: int = 100_000, *, each: int = 100, keys: int = 10) -> list[Any]:
    """Rows of several keys, so many of each key in a unit of time, and a punctuation after each unit."""
    found: list[Any] = []
    for second in range(rows // (each * keys)):
        found += [
            {"time": second, "road": number % keys, "spd": number * 7919 % 1000 / 10} for number in range(each * keys)
        ]
        found.append(Punctuation(second))
    return found


def batched(items: list[Any]) -> list[Any]:
    """The same rows, a record batch between two punctuations."""
    found, rows = list[Any](), list[Any]()
    for item in items:
        if isinstance(item, Punctuation):
            found += [pa.RecordBatch.from_pylist(rows), item]
            rows = []
        else:
            rows.append(item)
    return found


def aggregates(rounds: int) -> Iterator[Result]:
    """Measure aggregates of items; slides of a sixtieth of the window beside windows that do not overlap."""
    with Platform() as platform:
        items = readings()
        by_hand = through(platform, ByHand, items)
        minutes = through(platform, Aggregate, items, **SETTINGS, window=60)
        slides = through(platform, Aggregate, items, **SETTINGS, window=60, slide=1)
        batches = batched(readings(1_000_000))
        whole = through(platform, Aggregate, batches, **SETTINGS, window=60)
        fine = through(platform, Aggregate, batches, **SETTINGS, window=60, slide=1)
        for name, floor, candidate, against in (
            ("aggregate/items", by_hand, minutes, BY_HAND),
            ("aggregate/items/slides", minutes, slides, "windows that do not overlap"),
            ("aggregate/columns/slides", whole, fine, "windows that do not overlap"),
        ):
            yield compare(f"library/{name}", "ns", floor=floor, candidate=candidate, against=against, rounds=rounds)
        pairs, _ = paired(through(platform, Passes, items), through(platform, PassesOrLeaves, items), rounds)
        value = median(more - base for more, base in pairs)
        ratio = median(more / base for more, base in pairs)
        yield Result("library/port", value, "ns", "the same slet without the port", ratio, pairs)


class Passes(Slet):
    """Passes items on."""

    @input_port
    def rows(self, item: Any) -> Any:
        """Take an item."""
        return item


class PassesOrLeaves(Slet):
    """Passes items on; a further output is never used."""

    late: OutputPort[Any]

    @input_port
    def rows(self, item: Any) -> Any:
        """Take an item."""
        return item


@slet(effects=False)
def taken(item: Any) -> None:
    """Take a result."""


def through(platform: Platform, work: Any, items: list[Any], **settings: Any) -> Side:
    """Run items through a slet of a platform: the time of the thread for each of them."""
    times: list[int] = []

    def given() -> Iterator[Any]:
        begin = time.thread_time_ns()
        yield from items
        times.append(time.thread_time_ns() - begin)

    kind = pa.RecordBatch if isinstance(items[0], pa.RecordBatch) else dict[str, Any]
    given.__annotations__["return"] = Iterator[kind | Punctuation]  # type: ignore[valid-type]
    source = slet(given)
    number = sum(getattr(one, "num_rows", 1) for one in items)

    def run() -> float:
        app = Application("library")
        app.add("taken", taken, item=app.add("work", work, rows=app.add("given", source), **settings))
        platform.apply(app.build())
        platform.wait("library")
        platform.remove("library")
        return times.pop() / number

    return run
