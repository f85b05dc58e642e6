"""Does an aggregate give the same results when it moves from engine to engine while the stream runs?

Every case makes an aggregate and an endless stream, with missing values, late rows and punctuations. It replaces the
engine a few times without stopping the source, and compares all results with those of the definition.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import pyarrow as pa

from bench.cases import carry_out
from bench.harness import Result
from exop import Application, EndOfStream, Memento, Platform, Punctuation
from exop.model.slets.slet import slet
from exop.stock.aggregates import Aggregate

ROWS: Final = pa.schema([("time", pa.int64()), ("road", pa.int32()), ("spd", pa.int32()), ("name", pa.string())])
SETTINGS: Final[dict[str, Any]] = {
    "columns": "time bigint, road int, spd int, name string",
    "keys": ["road", "name"],
    "values": {
        "cars": "count(*)",
        "n": "count(spd)",
        "s": "sum(spd)",
        "m": "avg(spd)",
        "a": "min(spd)",
        "z": "max(name)",
    },
    "time": "time",
    "window": 10,
}
#: Windows that the cases choose from.
WINDOWS: Final = ({"window": 10}, {"window": 60}, {"window": 20, "slide": 5}, {"window": 0})
#: The seconds that a case waits for results.
PATIENCE: Final = 300.0


def measure(
    *,
    runs: Annotated[int, "how many cases"] = 20,
    seed: int = 0,
    record: Annotated[Path | None, "where the outcomes are kept, for a second run to go on"] = None,
    only: Annotated[int | None, "repeat this one"] = None,
    master: Annotated[str, "where Spark runs, such as spark://HOST:PORT"] = "local[*]",
    key_groups: Annotated[int, "of the aggregate on Spark; with more than one, its state is in RocksDB"] = 0,
) -> Iterator[Result]:
    """Replace the engine of an aggregate under load."""
    World.spark = {"master": master, "key_groups": key_groups}
    yield from carry_out("across", moved, runs=runs, seed=seed, record=record, only=only)


def engines() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return the aggregates of the engines that are installed, of `stock` in both forms, with settings of their own."""
    forms = {"stock": "columns", "items": "items"}
    found: dict[str, tuple[Any, dict[str, Any]]] = {name: (Aggregate, {"form": form}) for name, form in forms.items()}
    if find_spec("exop_duckdb"):
        from exop_duckdb import DuckDbAggregate

        found["duckdb"] = DuckDbAggregate, {}
    if find_spec("exop_spark"):
        from exop_spark import aggregate

        found["spark"] = aggregate, {"warm_up": 0, **World.spark}
    return found


def batch(rows: list[tuple[Any, ...]], schema: pa.Schema = ROWS) -> pa.RecordBatch:
    """Return a record batch."""
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def second(seed: int, time: int) -> list[Any]:
    """Return the items of a second: a batch with rows that are late or early, and perhaps a punctuation."""
    chance = random.Random(f"{seed} {time}")
    rows = [
        (
            time + chance.randrange(-12, 15),
            chance.choice([1, 2, None]),
            chance.choice([None, 7, -3, 100]),
            chance.choice(["a", "b", None]),
        )
        for _ in range(chance.randrange(12))
    ]
    punctuation = [Punctuation(time - chance.choice([0, 0.001, 5]))] if chance.random() < 0.7 else []
    return [batch(rows), *punctuation]


def expected(items: Iterable[Any], window: int = 10, slide: int = 0) -> list[Any]:
    """Return the rows that the definition of the aggregate gives, computed one by one; without windows, the last."""
    groups: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}
    complete, found = -inf, list[Any]()
    slide = slide or window
    for item in items:
        if isinstance(item, pa.RecordBatch):
            for row in item.to_pylist():
                first = row["time"] // slide * slide + slide if window else 0
                for end in range(first, first + (window or 1), slide or 1):
                    if end > complete or not window:
                        groups.setdefault((end, row["road"], row["name"]), []).append((row["spd"], row["name"]))
            continue
        complete = max(complete, item.time // 1 + 1) if isinstance(item, Punctuation) else inf
        done = [key for key in groups if key[0] <= complete and (window or complete == inf)]
        for key in sorted(done, key=lambda key: [(one is None, one) for one in key]):
            rows = groups.pop(key)
            spds = [spd for spd, _ in rows if spd is not None]
            names = [name for _, name in rows if name is not None]
            values = (sum(spds), sum(spds) / len(spds), min(spds)) if spds else (None, None, None)
            ends = key if window else key[1:]
            found.append((*ends, len(rows), len(spds), *values, max(names, default=None)))
    return found


class World:
    """What a case and its slets share."""

    seed = 0
    over = False
    #: Settings of the aggregate on Spark.
    spark: ClassVar[dict[str, Any]] = {}
    seen: ClassVar[list[Any]] = []
    news = threading.Condition()
    pause = threading.Event()


class Position(Memento):
    """How far the source has come."""

    time: int = 0


@slet
def seconds(position: Position) -> Iterator[Annotated[pa.RecordBatch, ROWS] | Punctuation | None]:
    """Emit second after second without end, at a pace at which no engine falls far behind."""
    while not World.over:
        World.pause.wait(0.01)
        position.time += 1
        yield from second(World.seed, position.time)


@slet(effects=False)
def see(row: dict[str, Any]) -> None:
    """Note a result."""
    with World.news:
        World.seen.append(tuple(row.values()))
        World.news.notify_all()


def carried(order: Iterable[str], windows: dict[str, int], seed: int = 0, more: int = 10) -> tuple[list[Any], int]:
    """Run an aggregate on one engine after the other; return the results, and the number of seconds of the stream.

    Args:
        order: The engines; each of them replaces the one before it when there are *more* results.
        windows: The settings of the windows.
        seed: The seed of the stream.
        more: How many results each engine has to give.
    """
    World.seed, World.over, World.seen = seed, False, []
    known, (first, *others) = engines(), order
    app = Application("across")
    kind, own = known[first]
    settings = {**SETTINGS, **windows}
    rows = app.add("aggregate", kind, rows=app.add("seconds", seconds), **settings, **own)
    app.add("see", see, row=rows)
    with Platform() as platform:
        mesh = platform.apply(app.build())
        for name in [*others, ""]:
            wait_for_more(more)
            if name:
                kind, own = known[name]
                mesh = platform.apply(mesh.replace("aggregate", kind, **own), timeout=PATIENCE)
        World.over = True
        assert platform.wait("across", PATIENCE), "it did not end"
        position = platform.deployment("across").components["seconds"].state
        assert isinstance(position, Position)
        return World.seen, position.time


def wait_for_more(more: int) -> None:
    """Wait for so many results."""
    with World.news:
        wanted = len(World.seen) + more
        assert World.news.wait_for(lambda: len(World.seen) >= wanted, PATIENCE), f"{len(World.seen)} results"


def differences(seen: list[Any], last: int, windows: dict[str, int], seed: int = 0) -> int:
    """Return how many results are not those of the definition, at the same place."""
    items = [one for time in range(1, last + 1) for one in second(seed, time)]
    wanted = expected([*items, EndOfStream()], **windows)
    wrong: int = 0
    if not windows.get("window", 10):  # each engine emits the new values of a batch of its own length
        latest: dict[Any, Any] = {}
        for row in seen:
            wrong += row[2] <= latest.get(row[:2], (0, 0, 0))[2]
            latest[row[:2]] = row
        seen = [latest[key] for key in sorted(latest, key=lambda key: [(one is None, one) for one in key])]
    wrong += abs(len(seen) - len(wanted)) + sum(one != other for one, other in zip(seen, wanted, strict=False))
    return int(wrong)


def moved(chance: random.Random) -> str:
    """One case: two to four replacements, by any engine."""
    windows, seed = chance.choice(WINDOWS), chance.randrange(1 << 30)
    order = [chance.choice([*engines()]) for _ in range(chance.randrange(3, 6))]
    seen, last = carried(order, windows, seed, more=chance.randrange(1, 60))
    wrong = differences(seen, last, windows, seed)
    assert not wrong, f"{wrong} of {len(seen)} results differ: {order}, {windows}, the stream {seed}"
    return " → ".join(order)
