"""`Spark`: the Spark of this process, started with the first slet that needs it, stopped with the last one."""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from exop.errors import install_command

from .. import settings
from ..cluster.master import (
    check_encrypted,
    check_master,
    check_reachable,
    check_workers,
    is_on_loopback,
    own_host,
    secrets_of,
)
from ..errors import MasterRefused, SparkError
from ..feed.server import FeedServer, Output
from ..storage.folders import Folder, RemotePath, local_path
from .scratch import Scratch, shared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..plan import Plan

#: The beginnings of the names of the operators that keep state, in a logical plan.
_STATEFUL: Final = ("Aggregate", "Distinct", "Deduplicate", "GlobalLimit", "FlatMapGroups", "TransformWithState")
#: Seconds for which the end of the process waits for an answer of Java, or for a start of Spark that is given up.
_ENDING: Final = 5.0
#: Those whose state depends on the watermark of each batch also if no row is late.
_BY_BATCH: Final = ("DeduplicateWithinWatermark", "FlatMapGroups", "TransformWithState")


class Spark:
    """The Java process, the Spark context in it, and the server of the feeds; shared by all queries."""

    def __init__(self, master: str) -> None:
        check_master(master)
        check_reachable(master)
        self.master = master
        self._host = own_host(master, os.environ.get("EXOP_SPARK_HOST", ""))
        self._lock, self._lost = threading.Lock(), False
        with ExitStack() as opened:
            self._scratch = Scratch(Path(tempfile.gettempdir()))
            opened.callback(self._scratch.close)
            self.server = FeedServer(self._scratch.path, self._host)
            opened.callback(self.server.close)
            self._session = opened.enter_context(self._started())
            self._opened = opened.pop_all()

    @property
    def alive(self) -> bool:
        """Whether the Java process runs."""
        from pyspark import SparkContext

        process = getattr(SparkContext._gateway, "proc", None)
        return not self._lost and (process is None or process.poll() is None)

    def answers(self) -> bool:
        """Return whether the Java process answers; one that does not is killed, and regarded as lost from now on."""
        from .launch import java_answers

        self._lost = self._lost or not java_answers()
        return not self._lost

    def reason(self) -> str:
        """Return why the Java process has ended, as far as its log says so; empty if it does not."""
        from .launch import memory_error

        return memory_error()

    def session(self) -> SparkSession:
        """Return a new session, with its own views and settings, in the common context."""
        from ..feed.source import FeedSource

        # pyspark stores the latest session in class attributes: one thread at a time.
        with self._lock:
            session = self._session.newSession()
            session.dataSource.register(FeedSource)
            return session

    @contextmanager
    def building(self, session: SparkSession) -> Iterator[None]:
        """Let pyspark record the lines of a query function while the block runs; errors name them."""
        from pyspark.errors import utils
        from pyspark.sql import SparkSession

        jvm: Any = session._jvm
        sessions: Any = SparkSession._get_j_spark_session_class(jvm)
        before = sessions.getActiveSession()
        sessions.setActiveSession(session._jsparkSession)
        # Otherwise pyspark never records them in a process whose first query found no active session.
        utils._enable_debugging_cache = True  # type: ignore[assignment]
        try:
            yield
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    def release(self, session: SparkSession) -> None:
        """Release a session whose query has ended; in this process it has no resources."""

    def deliver(self, frame: DataFrame, plan: Plan, checkpoint: str, put_out: Output) -> tuple[Any, str]:
        """Return a writer whose batches are passed to *put_out*, and the key of this output at the server of the feeds.

        In this process, there is no such key, and the rows are a DataFrame.
        """
        with (
            self._lock
        ):  # the first call starts the server to which Java calls back; a second one would not wait for it
            return frame.writeStream.foreachBatch(lambda rows, batch: put_out(batch, rows, None)), ""

    def parse(self, session: SparkSession, text: str) -> None:
        """Let Spark parse a SQL text, and do nothing else with it; raises Spark's exception if the syntax is wrong."""
        state: Any = session._jsparkSession.sessionState()
        state.sqlParser().parsePlan(text)

    def check_streams(self, session: SparkSession, frame: DataFrame, mode: str) -> None:
        """Let Spark check whether a query can stream in this output mode, as it does when a query starts."""
        jvm: Any = session._jvm
        output = jvm.org.apache.spark.sql.catalyst.streaming.InternalOutputModes.apply(mode)
        plan = frame._jdf.queryExecution().analyzed()
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, output)

    def keeps_state(self, frame: DataFrame) -> bool:
        """Return whether a query keeps state between two micro-batches."""
        return _has(frame._jdf.queryExecution().analyzed(), _keeps_state)

    def merges(self, frame: DataFrame) -> bool:
        """Return whether several micro-batches without late rows may be computed as one."""
        return not _has(frame._jdf.queryExecution().analyzed(), lambda one: one.nodeName().startswith(_BY_BATCH))

    def checkpoint(self, place: str = "") -> Folder:
        """Return a new folder for the checkpoint of a query, in *place* or, if it is empty, in memory.

        Raises:
            MasterRefused: *place* is empty, and the executors are on other hosts.
        """
        if not place:
            if not is_on_loopback(self.master):
                cure = "set checkpoints= to a URI that they reach: hdfs://…, s3a://…, or file:/// on a shared disk"
                problem = "its executors cannot keep state in the memory of this host"
                raise MasterRefused(master=self.master, problem=problem, cure=cure)
            return shared().new("checkpoint")
        path = local_path(place)
        if path is None:
            return self.folder(f"{place.rstrip('/')}/checkpoint-{uuid.uuid4().hex}")
        path.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="checkpoint-", dir=path))

    def folder(self, uri: str) -> Folder:
        """Return the folder at a URI; other file systems than that of this machine are reached by Hadoop's clients."""
        path = local_path(uri)
        if path is not None:
            return path
        context: Any = self._session.sparkContext
        return RemotePath(uri, context._jvm, context._jsc.hadoopConfiguration())

    def close(self) -> None:
        """Stop the context and the feeds. The Java process remains for the next context, and ends with this process."""
        self._opened.close()

    @contextmanager
    def _started(self) -> Iterator[SparkSession]:
        """Start Spark, check that its workers can do the work, and yield a session; stop Spark at the end."""
        from pyspark.sql import SparkSession

        from .launch import forget_gateway, started

        self._by_value()
        options = settings.spark_options(self.master, self._scratch.path, self._host)
        context = started(options | secrets_of(self.master))
        try:
            check_encrypted(self.master, context.getConf().get)
            check_workers(self.master, context)
            yield SparkSession(context)
        finally:
            if self.alive:
                context.stop()
            else:
                forget_gateway()

    @staticmethod
    def _by_value() -> None:
        """Let Spark send the modules that run in its workers, in which ExoP need not be installed."""
        from pyspark import cloudpickle

        from ..feed import source, wire
        from . import sending

        for module in (source, sending, wire):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _has(plan: Any, holds: Callable[[Any], bool]) -> bool:
    """Return whether this holds for a node of a logical plan, or one below it."""
    return holds(plan) or any(_has(one, holds) for one in _below(plan))


def _below(plan: Any) -> list[Any]:
    parts = plan.children()
    return [parts.apply(number) for number in range(parts.size())]


def _keeps_state(plan: Any) -> bool:
    """Return whether a node of a logical plan keeps state; a join does if both sides are streams."""
    joins = plan.nodeName().startswith("Join") and all(one.isStreaming() for one in _below(plan))
    return joins or (plan.isStreaming() and plan.nodeName().startswith(_STATEFUL))


class Lease:
    """A share in the Spark of this process."""

    def __init__(self, engine: Spark) -> None:
        self.engine = engine
        self.released = False

    def release(self) -> None:
        """Return the share; the last one stops Spark. A second call does nothing."""
        _SHARED.give_back(self)


class _Shared:
    """The Spark of this process, and the number of its shares."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._engine: Spark | None = None
        self._shares = 0

    def take(self, master: str) -> Lease:
        with self._lock:
            if self._engine is not None and not self._engine.answers():  # it may have died just now
                self.drop()
            if self._engine is None:
                self._engine = _spark(master)
            elif self._engine.master != master:
                raise MasterRefused(
                    master=master,
                    problem=f"the Spark of this process runs on {self._engine.master!r}, and there is one per process",
                    cure="give all Spark slets of a platform the same master",
                )
            self._shares += 1
            return Lease(self._engine)

    def give_back(self, share: Lease) -> None:
        with self._lock:
            # Shares in a Spark that was lost, and perhaps replaced, no longer count.
            if share.released or share.engine is not self._engine:
                return
            share.released = True
            self._shares -= 1
            if self._shares == 0:
                self.drop()

    def drop(self) -> None:
        with self._lock:
            engine, self._engine, self._shares = self._engine, None, 0
            if engine is not None:
                engine.close()

    def end(self) -> None:
        """Stop Spark at the end of the process. Java that hangs is killed, as one that starts for a call given up."""
        from .launch import java_answers, kill_starting

        if not self._lock.acquire(blocking=False):
            kill_starting()
            if not self._lock.acquire(timeout=_ENDING):
                return
        try:
            java_answers(_ENDING)
            self.drop()
        finally:
            self._lock.release()


def check_installed() -> None:
    """Raise `SparkError` if pyspark cannot be imported."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkError(f"pyspark cannot be imported: {error}; run {install_command('exop-spark')}") from error


def _spark(master: str) -> Spark:
    check_installed()
    if not master.startswith("sc://"):
        return Spark(master)
    from .connect import ConnectSpark

    return ConnectSpark(master)


_SHARED = _Shared()


atexit.register(_SHARED.end)  # also if a process ends without closing its platform: no files remain


def lease(master: str = settings.DEFAULT_MASTER) -> Lease:
    """Take a share in the Spark of this process; the first one starts it.

    Raises:
        MasterRefused: the master cannot be used, or is not that of the slets that are open.
        JavaMissing: there is no suitable Java.
    """
    return _SHARED.take(master)
