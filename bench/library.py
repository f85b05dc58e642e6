"""What does the base library cost: expressions, beside the same slet by hand and the same calls of Arrow?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bench.harness import Result, Side, compare, timed
from bench.hop import Chain, Counter
from exop.expressions import Names, read
from exop.plugin import PortType

BY_HAND: Final = "the same slet by hand"
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


def measure(*, rounds: Annotated[int, "how many pairs of runs"] = 15) -> Iterator[Result]:
    """Measure expressions: for items, and for record batches of 65 536 and of 1 000 rows."""
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
