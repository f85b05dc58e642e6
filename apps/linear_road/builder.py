"""The application builder: Linear Road as a mesh of slets and channels (paper, figure 7)."""

from collections.abc import Callable
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

from exop import Application
from exop.errors import BuilderError

from .accidents import accidents
from .accounts import Balance, DailyExpenditure
from .answers import Answers
from .entries import entries
from .faulty import faulty_positions
from .notifications import AccidentNotification, TollNotification
from .positions import positions
from .statistics import statistics
from .tolls import Tolls
from .traffic import Traffic
from .trips import Trips

Pipeline = Literal["spark", "native"]


class DataPipeline(NamedTuple):
    """The three queries that exist twice: as Spark queries, and as columnar slets of the same ports."""

    positions: Any
    statistics: Any
    accidents: Any


NATIVE = DataPipeline(positions, statistics, accidents)


def linear_road(
    *,
    input: Path,  # noqa: A002 (the name on the command line)
    history: Path,
    output: Path,
    pipeline: Pipeline = "spark",
    master: str | None = None,
    speed: float = 1.0,
    until: int | None = None,
) -> Application:
    """Linear Road: variable tolling of expressways, with answers of type 0, 1, 2 and 3.

    Args:
        input: The traffic: lines of 15 integers as CSV (plain, .xz, .gz) or Parquet.
        history: The tolls of past days: lines VID,Day,XWay,Toll, packed as the input may be.
        output: The file of the answers; malformed input lines are kept beside it, in OUTPUT.rejects.
        pipeline: The engine that filters positions, counts segments and detects accidents: Spark or columnar Python.
        master: The Spark that runs it: local[N], spark://…, sc://…; all cores of this machine by default.
        speed: The factor by which the traffic is released faster than it happened.
        until: The last second to release; the whole input by default.

    Raises:
        BuilderError: a file is missing, or a value cannot be.
    """
    _check_files(input, history, output)
    if pipeline not in ("spark", "native"):
        raise BuilderError(f"linear_road has no pipeline {pipeline!r}; write pipeline=spark or pipeline=native")
    if not 0 < speed < inf:
        raise BuilderError(
            f"linear_road cannot run at speed={speed}; give a number above 0 (1: real time; 1e6: as fast as it goes)"
        )
    if until is not None and until < 0:
        raise BuilderError(f"until={until} is before the first second; give a second of the traffic, or leave it out")
    if master is not None and pipeline == "native":
        raise BuilderError(f"master={master} is for pipeline=spark; leave it out, or leave pipeline=native out")
    source = {"input": input, "speed": speed, "until": until, "rejects": output.with_name(f"{output.name}.rejects")}
    queries = NATIVE if pipeline == "native" else _spark()
    return _mesh(queries, {} if master is None else {"master": master}, source, history, output)


def _mesh(
    queries: DataPipeline, where: dict[str, Any], source: dict[str, Any], history: Path, output: Path
) -> Application:
    app = Application("linear-road")
    released = app.add("traffic", Traffic, **source)
    tuples = app.add("trips", Trips, tuples=released)
    reports = app.add("positions", queries.positions, tuples=tuples, **where)
    figures = app.add("statistics", queries.statistics, reports=reports, **where)
    events = app.add("accidents", queries.accidents, reports=reports, **where)
    tariffs = app.add("tolls", Tolls, statistics=figures, accidents=events)
    entered = app.add("entries", entries, reports=reports)
    notices = app.add("toll_notification", TollNotification, entries=entered, tariffs=tariffs)
    alerts = app.add("accident_notification", AccidentNotification, entries=entered, accidents=events)
    charges = app.output("toll_notification", "charges")
    balances = app.add("balance", Balance, charges=charges, questions=tuples)
    spent = app.add("daily_expenditure", DailyExpenditure, history=history, questions=tuples)
    app.add(
        "answers",
        Answers,
        output=output,
        clock=app.output("traffic", "clock"),
        tolls=notices,
        alerts=alerts,
        balances=balances,
        expenditures=spent,
    )
    return app


def _check_files(traffic: Path, history: Path, output: Path) -> None:
    for name, path in (("input", traffic), ("history", history)):
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "does not exist"
            raise BuilderError(
                f"{name}={path} {what}; name a file, or make traffic with "
                f"`python -m apps.linear_road.generate --xways 1 --minutes 20 --seed 1 --out FILE --history FILE`"
            )
    if not output.parent.is_dir():
        raise BuilderError(f"output={output}: the folder {output.parent} does not exist; make it first")
    if output.is_dir():
        raise BuilderError(f"output={output} is a folder; name a file")
    for path in (traffic, history):
        if output.exists() and output.samefile(path):
            raise BuilderError(f"output={output} is read as well; the answers would overwrite it: name another file")


def _spark() -> DataPipeline:
    if find_spec("exop_spark") is None:
        raise BuilderError("pipeline=spark needs the plugin exop-spark; install it, or run with pipeline=native")
    # The queries are loaded by those who ask for them.
    from . import spark

    return DataPipeline(spark.positions, spark.statistics, spark.accidents)


def spark_slets() -> list[Any]:
    """The data pipeline on Spark, where the plugin for it is installed."""
    return [*_spark()] if find_spec("exop_spark") else []


def native_slets() -> list[Callable[..., Any]]:
    """All slets of the application but the Spark ones, and the one with a mistake that the demo tries in vain."""
    return [
        faulty_positions,
        Traffic,
        Trips,
        positions,
        statistics,
        accidents,
        Tolls,
        entries,
        TollNotification,
        AccidentNotification,
        Balance,
        DailyExpenditure,
        Answers,
    ]
