"""The application builder: from readings to minutes, to limits, to alarms, over several engines."""

from __future__ import annotations

from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, Final, Literal

from exop import Application
from exop.errors import BuilderError, install_command

from .readings import DELAY, PARTITIONS, partition_file
from .slets import Alarms, Replay, decode, stamp

SOURCES: Final = ("files", "kafka")
TOPIC: Final = "readings"
#: The limits of a sensor are those that were the latest at the end of the minute.
_JOIN: Final = """
INSERT INTO known SELECT sensor, since, place, lowest, highest FROM sensors;
SELECT time, minutes.sensor, place, n, mean, low, high, lowest, highest
FROM minutes ASOF JOIN known ON minutes.sensor = known.sensor AND minutes.time >= known.since
ORDER BY time, minutes.sensor
"""
#: By engine, the slet that computes the minutes, and the plugin that offers it.
AGGREGATES: Final = {
    "spark": ("spark:aggregate", "exop_spark"),
    "duckdb": ("duckdb:aggregate", "exop_duckdb"),
    "native": ("stock:aggregate", ""),
}
_KNOWN: Final = "sensor bigint, since bigint, place varchar, lowest double, highest double"
_MINUTES: Final = "time bigint, sensor bigint, n bigint, mean double, low double, high double"


def sensors(
    *,
    folder: Path,
    output: Path,
    source: Literal["files", "kafka"] = "files",
    aggregate: Literal["spark", "duckdb", "native"] = "spark",
    master: str = "local[*]",
    brokers: str = "",
    follow: bool = True,
    speed: float = 0.0,
    after: int = 3,
    every: float = 0.0,
) -> Application:
    """Sensors: minutes of all sensors, and alarms, in a database.

    Args:
        folder: The readings, and the places and limits of the sensors (`python -m apps.sensors.readings FOLDER`).
        output: The SQLite database, with the tables `minutes`, `alarms` and `late`.
        source: Where the readings are: in the files of the folder, or in the topic `readings` of Kafka.
        aggregate: The engine that computes the minutes.
        master: The master of Spark: `local[*]`, `spark://HOST:PORT`.
        brokers: The addresses of some brokers, `HOST:PORT`.
        follow: Whether to wait for new records, instead of ending behind those that are there.
        speed: How many times faster than it was recorded a file is replayed; 0: without waiting.
        after: The number of minutes beyond a limit after which an alarm begins.
        every: Seconds between two checkpoints, with which the rows are written (`exop run --state DIR`); 0: none.

    Raises:
        BuilderError: a file is missing, or a value is not possible.
    """
    check_readings(folder, speed)
    _check_choices(output, aggregate, source, brokers)
    app = Application("sensors")
    if every:
        app.durable(every=every)
    readings, late = app.channel("readings", "queue"), app.channel("late", "queue")
    for number in range(PARTITIONS):
        if source == "kafka":
            known: dict[str, Any] = {"topic": TOPIC, "brokers": brokers, "partitions": [number], "follow": follow}
            records = app.add(f"read-{number}", "kafka:read", **known)
            arriving = app.add(f"decode-{number}", decode, records=records)
        else:
            arriving = app.add(f"read-{number}", Replay, path=partition_file(folder, number), speed=speed)
        app.add(f"timed-{number}", "stock:watermark", item=arriving, time="time", delay=DELAY, out=readings, late=late)
    minutes = _minutes(app, readings, aggregate, master)
    limits = app.add("limits", Replay, path=folder / "sensors.csv", time="since")
    joined = app.add(
        "join",
        "duckdb:sql",
        minutes=minutes,
        sensors=limits,
        query=_JOIN,
        columns={"minutes": _MINUTES, "sensors": _KNOWN},
        event_time={"minutes": "time s", "sensors": "since s"},
        tables=f"CREATE TABLE known ({_KNOWN})",
        out_columns="time bigint, sensor bigint, place varchar, n bigint, mean double, low double, high double, "
        "lowest double, highest double",
    )
    alarms = app.add("alarms", Alarms, minute=joined, after=after)
    stamped = app.add("stamp", stamp, minute=joined)
    for table, item in {"minutes": stamped, "alarms": alarms, "late": late}.items():
        app.add(f"write-{table}", "stock:write_sqlite", item=item, path=output, table=table)
    return app


def _minutes(app: Application, readings: Any, aggregate: str, master: str) -> Any:
    """Add the slet that computes the minutes. The slets of all engines have the same ports, and read the same state."""
    slet, plugin = AGGREGATES[aggregate]
    if plugin and find_spec(plugin) is None:
        name = plugin.replace("_", "-")
        cure = f"run {install_command(name)}, or choose another engine"
        raise BuilderError(f"aggregate={aggregate} needs {name}: {cure}")
    more: dict[str, Any] = {"master": master} if aggregate == "spark" else {}
    return app.add(
        "per-minute",
        slet,
        rows=readings,
        columns="time bigint, sensor bigint, value double",
        values={"n": "count(*)", "mean": "avg(value)", "low": "min(value)", "high": "max(value)"},
        keys=["sensor"],
        time="time",
        window=60,
        **more,
    )


def _check_choices(output: Path, aggregate: str, source: str, brokers: str) -> None:
    if not output.parent.is_dir():
        raise BuilderError(f"output={output}: the folder {output.parent} does not exist; make it first")
    if aggregate not in AGGREGATES:
        raise BuilderError(f"there is no engine {aggregate!r}; there are {', '.join(AGGREGATES)}")
    if source not in SOURCES:
        raise BuilderError(f"there is no source {source!r}; there are {', '.join(SOURCES)}")
    if (source == "kafka") != bool(brokers):
        raise BuilderError("give brokers=HOST:PORT with source=kafka, and with source=kafka only")


def check_readings(folder: Path, speed: float) -> None:
    """Check the files and the speed.

    Raises:
        BuilderError: a file is missing, or the speed is not possible.
    """
    for path in (*(partition_file(folder, number) for number in range(PARTITIONS)), folder / "sensors.csv"):
        if not path.is_file():
            raise BuilderError(f"{path} does not exist; make readings with `python -m apps.sensors.readings {folder}`")
    if not 0 <= speed < inf:
        raise BuilderError(
            f"speed={speed} is not possible; give a number above 0 (1: real time), or 0: without waiting"
        )
