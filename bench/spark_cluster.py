"""Whether the work is distributed: rows read and results staged by the tasks of a Spark cluster, and what is killed.

A standalone master and two workers on the loopback. A keyed count runs over a partitioned log, or over a topic of
librdkafka's mock cluster, into staged files. Bytes are counted at the feed server (both directions), and for the driver
as everything that its Java process reads and writes (`/proc/PID/io`: its network, and its files); the payload is what
the tasks have read meanwhile. `--fault` plants what must make a goal fail.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
from exop_spark.cluster.standalone import Cluster, Worker

from bench.counting_app import ROWS
from bench.harness import Result
from exop.model.meshes.partitions import partition_of

ROOT = Path(__file__).parents[1]
#: Seconds that a step may last on a busy machine.
PATIENCE = 900.0
#: The driver's heap.
HEAP = "512m"
LOT = 10_000
VICTIMS = ("executor", "worker", "master", "driver", "platform")
#: Seconds within which an added worker is to have tasks: rows are read for so long.
ADDED = 30.0
#: Seconds for which a query gathers the second half of a topic into one micro-batch, and what the mock cluster keeps.
GATHERED = 30.0
KEPT = 5 << 20
Fault = Literal["none", "inline", "one", "collect"]


def measure(
    *,
    source: Annotated[Literal["log", "kafka"], "where the rows are"] = "log",
    rows: Annotated[int, "how many"] = 300_000,
    width: Annotated[int, "bytes of each, beside its key"] = 2000,
    keys: Annotated[int, "different keys"] = 50_000,
    max_rows: Annotated[int, "rows of one micro-batch"] = 40_000,
    partitions: Annotated[int, "of the log or topic; the mock cluster keeps 5 MiB of each"] = 4,
    shares: Annotated[bool, "measure a run that nobody disturbs"] = True,
    kills: Annotated[int, "of each of executor, worker, master, driver and platform, in a second run"] = 0,
    state: Annotated[int, "megabytes of state, in a third run"] = 0,
    fault: Annotated[Fault, "plant this fault"] = "none",
) -> Iterator[Result]:
    """Yield what holds of a run; of one with kills; and of one with a large state."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exop-bench-")))
        cluster = Cluster(f"bench-{os.getpid()}")
        stack.callback(cluster.down)
        master = cluster.up(2, Worker(1, "2g")).master
        case = Case(cluster, master, source, rows, width, keys, max_rows, partitions, fault)
        if shares:
            yield from distribution(case, folder / "shares", grow=fault == "none" and source == "log")
        if kills:
            yield from killed(case, folder / "kills", kills)
        if state:
            yield from large_state(case, folder / "state", state)


@dataclass
class Case:
    """What runs, and where."""

    cluster: Cluster
    master: str
    source: str
    rows: int
    width: int
    keys: int
    max_rows: int
    partitions: int
    fault: Fault

    def __post_init__(self) -> None:
        if self.fault == "one":
            self.partitions = 1

    @property
    def name(self) -> str:
        """The path of its results."""
        return f"distribution/{self.source}" + (f"/{self.fault}" if self.fault != "none" else "")

    @property
    def at_first(self) -> int:
        """Rows that are there when a run begins: half of those of a topic, of which not all are kept."""
        return self.rows if self.source == "log" else self.rows // 2

    def batches(self, first: int, after: int) -> Iterator[pa.RecordBatch]:
        """Some of the rows."""
        text = "x" * self.width
        for low in range(first, after, LOT):
            numbers = range(low, min(after, low + LOT))
            columns = {"key": [n * 7919 % self.keys for n in numbers], "text": [text] * len(numbers)}
            yield pa.RecordBatch.from_pydict(columns, schema=ROWS)

    def wanted(self) -> dict[int, int]:
        """The count of each key."""
        return dict(Counter(n * 7919 % self.keys for n in range(self.rows)))


@dataclass
class Peer:
    """The application in its own process."""

    case: Case
    folder: Path
    brokers: str = ""
    state: bool = False
    trigger: float = 0.0
    write: Callable[[int, int], object] = lambda first, after: None
    process: subprocess.Popen[str] | None = None
    started: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Start it, or let it go on."""
        case = self.case
        given = {"folder": str(self.folder), "master": case.master, "partitions": case.partitions}
        given |= {"fault": case.fault, "max_rows": case.max_rows, "key_groups": 2 if case.fault != "one" else 1}
        given |= {"brokers": self.brokers, "state": self.state, "trigger": self.trigger}
        command = [sys.executable, "-m", "bench.counting_app", json.dumps(given)]
        environment = {**os.environ, "EXOP_SPARK_MEMORY": HEAP}
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._line()
        self.started.append(time.perf_counter() - begin)

    def ask(self, what: str = "status") -> Any:
        """One answer."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self._line()

    def kill(self) -> None:
        """End it at once, with the driver that it has started."""
        assert self.process is not None
        java = children(self.process.pid)
        self.process.kill()
        self.process.wait()
        for one in java:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    def _line(self) -> Any:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the application ended with exit code {self.process.wait()}")
        return json.loads(line)

    def manifests(self) -> list[list[dict[str, Any]]]:
        """The receipts of each visible micro-batch, in order."""
        paths = sorted(self.folder.glob("staged/*/*.json"), key=lambda one: int(one.stem))
        return [json.loads(one.read_text()) for one in paths]

    def reached(self) -> int:
        """How many rows the visible micro-batches have read; all of them, where no results are staged."""
        if self.case.fault == "collect":
            return int(self.ask()["rows"])
        offsets = [one[0]["offsets"]["rows"] for one in self.manifests() if one]
        return max((sum(one.values()) for one in offsets), default=0)

    def counts(self, column: str = "n") -> dict[int, int]:
        """The last value of each key in the visible files."""
        from pyarrow import parquet

        found: dict[int, int] = {}
        for receipts in self.manifests():
            for one in receipts:
                rows = parquet.read_table(one["path"].removeprefix("file://"))
                found |= dict(zip(rows["key"].to_pylist(), rows[column].to_pylist(), strict=True))
        return found


def distribution(case: Case, folder: Path, *, grow: bool) -> Iterator[Result]:
    """Tasks at once, the least share of an executor, bytes that pass, when a new worker works, differences."""
    left, topic = case.rows // case.max_rows - 1, case.source == "kafka"
    trigger = GATHERED if topic else ADDED / max(1, left - 1) if grow else 0
    with running(case, folder, trigger=trigger) as peer:
        wait(lambda: peer.reached() >= (case.at_first if topic else 1))
        before, first, begin = peer.ask(), peer.reached(), time.time()
        io = traffic(before["java"])
        peer.write(case.at_first, case.rows)
        if grow:
            case.cluster.add_worker()
        wait(lambda: finished(peer))
        after, ran = peer.ask(), [one for one in peer.ask("tasks") if one["rows"]]
        passed = after["bytes"] - before["bytes"]
        moved = traffic(after["java"]) - io
        payload = (case.rows - first) * (case.width + 8)
        yield Result(f"{case.name}/platform", passed / payload * 100, "%")
        yield Result(f"{case.name}/driver", moved / payload * 100, "%")
        original = sorted({one["executor"] for one in ran})[:2]
        shares = [sum(one["rows"] for one in ran if one["executor"] == name) for name in original]
        yield Result(f"{case.name}/tasks", at_once(ran), "tasks")
        least = min(shares) / sum(shares) * 100 if len(shares) == 2 else 0
        yield Result(f"{case.name}/share", least, "%", samples=shares)
        if grow:
            new = [one["begin"] / 1e3 for one in ran if one["executor"] not in original]
            yield Result(f"{case.name}/added", min(new) - begin if new else float("inf"), "s")
        if case.fault != "collect":
            yield Result(f"{case.name}/differences", differences(case.wanted(), peer.counts()), "keys")


def killed(case: Case, folder: Path, kills: int) -> Iterator[Result]:
    """Kill each victim so often while rows are read, and compare."""
    case.cluster.up(2, Worker(1, "2g"))
    case.max_rows = max(1, case.rows // (kills * len(VICTIMS) * 4))
    done: Counter[str] = Counter()
    with running(case, folder) as peer:
        peer.write(case.at_first, case.rows)
        for victim, _ in zip(cycle(VICTIMS), range(kills * len(VICTIMS)), strict=False):
            at = peer.reached()
            wait(lambda at=at: peer.reached() > at or finished(peer))  # type: ignore[misc]
            if finished(peer):
                break
            kill(case, peer, victim)
            done[victim] += 1
            print(f"{case.name}: {victim} killed at row {peer.reached()} of {case.rows}", file=sys.stderr, flush=True)
        wait(lambda: finished(peer))
        for victim in VICTIMS:
            yield Result(f"{case.name}/kills/{victim}", done[victim], "kills")
        yield Result(f"{case.name}/kills/undone", kills * len(VICTIMS) - done.total(), "kills")
        yield Result(f"{case.name}/kills/differences", differences(case.wanted(), peer.counts()), "keys")
        noted = Counter((folder / "receipts").read_text().splitlines())
        visible = Counter(f"{one['batch']} {one['rows']}" for receipts in peer.manifests() for one in receipts)
        yield Result(f"{case.name}/kills/receipts", (visible - noted).total(), "receipts")


def large_state(case: Case, folder: Path, megabytes: int) -> Iterator[Result]:
    """A state that does not fit into the driver: the growth of the platform, and whether all of it is there."""
    width = 1000
    large = replace(case, rows=megabytes * 1000, width=width, keys=megabytes * 1000, fault="none")
    with running(large, folder, state=True) as peer:
        peer.write(large.at_first, large.rows)
        wait(lambda: peer.reached() > 0)
        assert peer.process is not None
        before = resident(peer.process.pid)
        wait(lambda: finished(peer))
        after = resident(peer.process.pid)
        found = peer.counts("size")
        yield Result("distribution/state", sum(found.values()) / 1e6, "MB", samples=[len(found)])
        yield Result("distribution/state/platform", (after / before - 1) * 100, "%")
        yield Result("distribution/state/missing", large.keys - len(found), "keys")


@contextmanager
def running(case: Case, folder: Path, *, state: bool = False, trigger: float = 0.0) -> Iterator[Peer]:
    """Write the input and start the application, with a micro-batch every *trigger* seconds at most."""
    folder.mkdir()
    with ExitStack() as stack:
        peer = Peer(case, folder, state=state, trigger=trigger)
        if case.source == "kafka":
            peer.brokers, peer.write = stack.enter_context(mock(case))
            peer.write(0, case.at_first)
        else:
            write_log(case, folder / "log")
        peer.start()
        stack.callback(peer.kill)
        yield peer


def write_log(case: Case, path: Path) -> None:
    """Write the rows as another application would have."""
    from exop.runtime.channels.partitioned_log import PartitionedLogChannel

    channel = PartitionedLogChannel("rows", by="key", partitions=case.partitions, keep="all", path=path)
    channel.open()
    into = channel.entry(())
    for batch in case.batches(0, case.rows):
        into.push_batch(batch)
    channel.close()


@contextmanager
def mock(case: Case) -> Iterator[tuple[str, Callable[[int, int], object]]]:
    """A mock cluster, and what writes some of the rows to its topic as JSON.

    Raises:
        ValueError: it does not keep half of the rows.
    """
    from confluent_kafka import Producer

    if case.at_first * (case.width + 30) > KEPT * case.partitions:
        raise ValueError("the mock cluster keeps 5 MiB of each partition: choose fewer rows, or more partitions")
    command = [sys.executable, "-m", "exop_kafka.mock", f"rows:{case.partitions}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        brokers = process.stdout.readline().strip()
        producer = Producer({"bootstrap.servers": brokers, "queue.buffering.max.messages": 2_000_000, "log_level": 3})

        def write(first: int, after: int) -> None:
            for batch in case.batches(first, after):
                for row in batch.to_pylist():
                    number = partition_of(row["key"], case.partitions)
                    producer.produce("rows", json.dumps(row, separators=(",", ":")), partition=number)
                producer.poll(0)
            producer.flush()

        try:
            yield brokers, write
        finally:
            process.stdin.close()


def kill(case: Case, peer: Peer, victim: str) -> None:
    """Kill one process, and start again what does not come back by itself."""
    assert peer.process is not None
    if victim == "platform":
        peer.kill()
        peer.start()
    elif victim == "driver":
        os.kill(peer.ask()["java"], signal.SIGKILL)
        peer.kill()  # its slet has failed; a supervisor would start the platform again
        peer.start()
    elif victim == "master":
        os.kill(next(one.pid for one in case.cluster.status().processes if one.role == victim), signal.SIGKILL)
        wait(lambda: not case.cluster.status().master)
        case.cluster.up(2, Worker(1, "2g"))
    elif victim == "worker":
        lost = workers(case)[0]
        os.kill(lost, signal.SIGKILL)
        wait(lambda: lost not in workers(case))  # Java takes a while to die; `up` would count it
        case.cluster.up(2, Worker(1, "2g"))
    else:
        wait(lambda: bool(executors(case)))
        os.kill(executors(case)[0], signal.SIGKILL)


def workers(case: Case) -> list[int]:
    """The processes of the workers that are alive."""
    return [one.pid for one in case.cluster.status().processes if one.role.startswith("worker")]


def executors(case: Case) -> list[int]:
    """The processes that workers have started."""
    return [child for one in workers(case) for child in children(one)]


def finished(peer: Peer) -> bool:
    """Whether all rows have been read; raises if the application has failed."""
    state = peer.ask()["state"]
    if state == "failed":
        raise RuntimeError("the query has failed")
    return peer.reached() >= peer.case.rows


def wait(ready: Callable[[], bool]) -> None:
    """Look every half a second."""
    end = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE:g} s")
        time.sleep(0.5)


def differences(wanted: dict[int, int], found: dict[int, int]) -> int:
    """How many keys have another count."""
    return sum(wanted.get(key) != found.get(key) for key in wanted.keys() | found.keys())


def at_once(ran: list[dict[str, Any]]) -> int:
    """The greatest number of tasks that ran at one moment, on different executors."""
    return max(
        (len({two["executor"] for two in ran if two["begin"] <= one["begin"] < two["end"]}) for one in ran), default=0
    )


def traffic(pid: int) -> int:
    """The bytes that a process has read and written: network and files."""
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(lines["rchar"]) + int(lines["wchar"])


def resident(pid: int) -> int:
    """The memory of a process, in kilobytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def children(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                number = int(stat.parent.name)
                found += [number, *children(number)]
    return found
