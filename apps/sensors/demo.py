"""`make demo-engines`: readings from Kafka, aggregated by one engine after the other while an executor is killed.

    python -m apps.sensors.demo [--minutes M] [--speed N] [--sensors N] [--engines spark,duckdb,…] [--into FOLDER]

Starts a mock cluster of Kafka and a Spark cluster with two workers, runs the application, replaces the engine of the
aggregate while the stream runs, kills an executor of Spark, compares every row of the database with the expected ones,
and draws throughput and latency.

The readings go as fast as was asked, or down to two thirds of that on a busy machine, where a change may run out of
time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from apps.linear_road.live_changes import CHANGE, LiveChange, in_time
from apps.linear_road.pace import Pace
from apps.linear_road.terminal import run_command
from exop import connect
from exop.errors import ExopError

from .builder import AGGREGATES
from .checker import compare, expected
from .readings import PARTITIONS, generate

HERE: Final = Path(__file__).parent
APPLICATION, NODE = "sensors", "per-minute"
#: The name of the Spark cluster.
CLUSTER: Final = "demo-engines"
#: Seconds for which the demo waits for a start, or the end; for a process that ends; between two metrics.
PATIENCE: Final = 600.0
GRACE: Final = 30.0
LOOK: Final = 0.5


@dataclass
class History:
    """The times of the events of a run: of second 0 of the recording, of engines that took over, and of kills.

    Attributes:
        taken: When the metrics were read, and the number of readings that the aggregate had taken.
        failed: The changes that failed for another reason than their time, and what else was not done.
        slow: The changes that ran out of time.
        late: The engines that took over when all readings had been written.
    """

    start: float
    engines: list[tuple[float, str]]
    kills: list[float] = field(default_factory=list)
    taken: list[tuple[float, int]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m apps.sensors.demo", description=(__doc__ or "").split("\n")[0])
    made.add_argument("--minutes", type=int, default=36, help="the length of the recording (36)")
    made.add_argument("--speed", type=float, default=30.0, help="how many times faster it is replayed, at most (30)")
    made.add_argument("--sensors", type=int, default=300, help="the number of sensors (300)")
    made.add_argument("--engines", default="spark,duckdb,native,spark", help="the engines, in their order")
    made.add_argument("--into", type=Path, default=Path("demo"), help="the folder for all files (demo)")
    return made


def command(arguments: Sequence[str]) -> int:
    """Run the demo; return 0 if every expected row is in the database once, and all changes were made.

    On a machine without a core to spare, a change may run out of time: the stream goes on without it.
    """
    from exop_kafka import MockCluster

    options = parser().parse_args(arguments)
    begun, into = time.monotonic(), (options.into / "engines").absolute()
    readings, database = into / "readings", into / "sensors.db"
    shutil.rmtree(into, ignore_errors=True)
    pace = Pace(options.speed)
    with pace.calibrated():
        number = generate(readings, sensors=options.sensors, minutes=options.minutes)
    print(f"1  {options.minutes} minutes of {options.sensors} sensors: {number:,} readings")
    with MockCluster({"readings": PARTITIONS}) as kafka, _spark(options.engines) as master:
        engines = options.engines.split(",")
        print(f"2  the application, with Kafka at {kafka.brokers}{master and f' and Spark at {master}'}", flush=True)
        settings = {"folder": readings, "output": database, "source": "kafka", "brokers": kafka.brokers}
        settings |= {"aggregate": engines[0]} | ({"master": master} if master else {})
        given = [f"{name}={value}" for name, value in settings.items()]
        with _running("exop", "run", str(HERE), *given, "--on-failure", "stop", "--quiet") as application:
            opened, length = _wait_until_open(application), options.minutes * 60 / pace.speed
            at = f"at {pace.speed:.3g} times real time for {length:.0f} s"
            print(f"   it has opened after {opened:.0f} s; readings follow {at}", flush=True)
            history = History(time.time() + 1, [(time.time(), engines[0])])
            fed = [f"folder={readings}", f"brokers={kafka.brokers}", f"speed={pace.speed}", f"start={history.start}"]
            feed = _running("exop", "run", str(HERE / "feed.py"), *fed, "--quiet")
            with feed as writer, _sampled(application.pid, history, pace):
                _make_changes(application.pid, engines[1:], master, length, history)
                if writer.wait(PATIENCE):
                    history.failed.append("the readings were not written")
            with connect(str(application.pid)) as platform:  # the sources end behind the last record that is there
                end = {"edit": "configure", "settings": {"follow": "false"}}
                platform.plan_edits(APPLICATION, [end | {"node": f"read-{n}"} for n in range(PARTITIONS)]).carry_out(
                    timeout=CHANGE
                )
            code = application.wait(PATIENCE)
    print("3  every row, compared with that of the checker in plain Python")
    compared = compare(database, expected(readings))
    print("\n".join(map(str, compared)))
    # Imported lazily: matplotlib takes a second to load.
    from .pictures import draw

    print(f"   {draw(history, database, pace.speed, into / 'engines.png')}")
    code, said = outcome(history, pace, right=not code and all(one.right for one in compared))
    print(f"\n{said} after {time.monotonic() - begun:.0f} s")
    return code


def outcome(history: History, pace: Pace, *, right: bool) -> tuple[int, str]:
    """Return the exit code, and its words: wrong rows fail, and changes unless the machine is to blame."""
    slow = "".join(f": {one}" for one in history.slow)
    if not right or history.failed or (slow and not pace.saturated):
        return 1, f"FAILED{''.join(f': {one}' for one in history.failed)}{slow}"
    if slow:
        return 0, f"PASSED: every row is right; this machine was too busy or is too slow for a change{slow},"
    if history.late:
        return 0, f"PASSED, but {history.late[0]} took over after the last reading (try a longer --minutes),"
    return 0, "PASSED"


@contextmanager
def _spark(engines: str) -> Iterator[str]:
    """Run a Spark cluster with two workers, if an engine needs it; yield the URL of its master."""
    if "spark" not in engines:
        yield ""
        return
    from exop_spark.cluster.standalone import Cluster, Worker

    cluster = Cluster(CLUSTER)
    try:
        yield cluster.up(2, Worker(cores=1, memory="1g")).master
    finally:
        cluster.down()


@contextmanager
def _running(*module: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of Python in a process; end the process if it still runs after the block."""
    process = subprocess.Popen([sys.executable, "-m", *module], cwd=HERE.parent.parent)
    try:
        yield process
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)  # it got the same Ctrl-C, and processes what is in flight
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            process.kill()


def _wait_until_open(process: subprocess.Popen[bytes]) -> float:
    """Wait until all slets of the application are open; return after how many seconds."""
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE and process.poll() is None:
        with suppress(ExopError), connect(str(process.pid)) as platform:
            if platform.status(APPLICATION)["state"] == "running":
                return time.monotonic() - began
        time.sleep(LOOK)
    raise SystemExit("the application did not start; see its messages above")


def _make_changes(pid: int, engines: Sequence[str], master: str, length: float, history: History) -> None:
    """Kill an executor during the first stretch, and let the engines take over; the last one gets half of the time."""
    stretch = length / max(2 * len(engines), 1)
    if master and history.engines[0][1] == "spark":
        time.sleep(max(0.0, history.start + stretch / 2 - time.time()))
        _kill_executor(history)
    for number, engine in enumerate(engines, 1):
        time.sleep(max(0.0, history.start + number * stretch - time.time()))
        arguments = in_time("replace", f"{APPLICATION}.{NODE}", AGGREGATES[engine][0])
        arguments += (f"master={master}",) if engine == "spark" else ()
        began, change = time.time(), LiveChange(0.0, engine, arguments)
        change.carry_out(pid)
        paused = change.said.rstrip().rpartition("; ")[2] if change.right else change.end
        print(f"   {change.line}   # took {time.time() - began:.1f} s; {paused}", flush=True)
        if change.right:
            history.engines.append((time.time(), engine))
            history.late += [engine] if time.time() > history.start + length else []
        else:
            print(change.said)
            (history.slow if change.slow else history.failed).append(" ".join(arguments))


def _kill_executor(history: History) -> None:
    """Kill an executor of the cluster: a process in the group of a worker."""
    from exop_spark.cluster.standalone import Cluster

    groups = ",".join(str(one.pid) for one in Cluster(CLUSTER).status().processes)
    listed = ["pgrep", "-g", groups, "-f", "CoarseGrainedExecutorBackend"]
    executors = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split()
    if not executors:
        history.failed.append("no executor was found")
        return
    print(f"   $ kill -9 {executors[0]}   # one of {len(executors)} executors", flush=True)
    os.kill(int(executors[0]), signal.SIGKILL)
    history.kills.append(time.time())


@contextmanager
def _sampled(pid: int, history: History, pace: Pace) -> Iterator[None]:
    """Record the readings that the aggregate has taken, and the load, in a thread, while the block runs."""
    over = threading.Event()

    def sample() -> None:
        while not over.is_set():
            with suppress(ExopError), connect(str(pid)) as platform:
                while not over.wait(LOOK):
                    taken = platform.metrics(APPLICATION)["nodes"][NODE]["items_in"]
                    history.taken.append((time.time(), taken))
                    pace.look(time.time() - history.start, 0.0)

    thread = threading.Thread(target=sample, name="sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(GRACE)


if __name__ == "__main__":
    run_command("demo-engines", command, sys.argv[1:])
