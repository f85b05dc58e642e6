"""Run the counts in a process of their own; they go on where they were killed.

Each line of the input asks for the status (`status`) or for what the tasks have done (`tasks`), as a line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from exop_spark.feed import wire

from exop import Platform

HERE, NAME = Path(__file__).parent, "counting"


def main() -> int:
    """Run until the input ends."""
    given = json.loads(sys.argv[1])
    passed = _counted()
    with Platform(state=Path(given["folder"]) / "state", control=False) as platform:
        for name, problem in platform.failed_to_restart.items():
            sys.stderr.write(f"{name}: {problem}\n")
            return 3
        if NAME not in platform.applications():
            name = platform.load(HERE)
            module = platform.slets()[f"{name}:note"].factory.__module__
            platform.apply(sys.modules[module].build(given).build())
        _say({"started": True})
        for line in sys.stdin:
            _say(tasks() if line.strip() == "tasks" else status(platform, passed))
    return 0


def status(platform: Platform, passed: dict[str, int]) -> dict[str, Any]:
    """How far it is, whether it failed, and what has passed through this process."""
    node = platform.status(NAME)["nodes"]["counts"]
    java = _java()
    rows = node["metrics"].get("own", {}).get("input_rows", 0)
    return {"rows": rows, "state": str(node["state"]), "bytes": passed["bytes"], "java": java}


def tasks() -> list[dict[str, Any]]:
    """The tasks that have read rows: the executor, when they ran (ms), and how many rows they read."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    jvm, store = context._jvm, context._jsc.sc().statusStore()
    empty = jvm.java.util.ArrayList()
    quantiles = context._gateway.new_array(jvm.double, 0)
    stages = store.stageList(empty, False, False, quantiles, empty)
    found = []
    for at in range(stages.size()):
        stage = stages.apply(at)
        if not stage.inputRecords():
            continue
        ran = store.taskList(stage.stageId(), stage.attemptId(), 1000)
        for one in (ran.apply(number) for number in range(ran.size())):
            read = one.taskMetrics()
            rows = read.get().inputMetrics().recordsRead() if read.isDefined() else 0
            begin, took = one.launchTime().getTime(), one.duration()
            end = begin + (took.get() if took.isDefined() else 0)
            found.append({"executor": one.executorId(), "begin": begin, "end": end, "rows": rows})
    return found


def _java() -> int:
    """The number of the Java process that is the driver."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    return process.pid if process is not None else 0


def _counted() -> dict[str, int]:
    """Count the bytes that the feed server sends and receives."""
    passed, send, exactly = {"bytes": 0}, wire.send, wire._exactly

    def counted_send(connection: Any, header: Any, payload: Any = b"") -> None:
        passed["bytes"] += len(json.dumps(header)) + len(payload)
        send(connection, header, payload)

    def counted_read(connection: Any, size: int) -> bytearray:
        passed["bytes"] += size
        return exactly(connection, size)

    wire.send, wire._exactly = counted_send, counted_read
    return passed


def _say(found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
