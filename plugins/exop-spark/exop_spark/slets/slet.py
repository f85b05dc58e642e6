"""A query as a slet."""

from __future__ import annotations

import logging
import threading
import typing
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from exop import EndOfStream, OutputPort, Punctuation, Tie
from exop.engine.feed import Feed
from exop.engine.pull import PullEngine, QueryProgress
from exop.engine.pull_slet import PullSlet
from exop.errors import EngineError, WiringError
from exop.model.slets.ports import PortType
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from exop.runtime.dataflow.batches import to_columns

from ..errors import QueryRefused, SparkError
from ..execution.types import NoSuchType, spark_columns
from ..feed.native import NativeFeed
from ..plan import Input, Mode, Plan, check_settings
from ..session.engine import lease
from ..settings import DEFAULT_MASTER
from ..storage.carried import other_inputs
from ..storage.receipt import Receipt

_log = logging.getLogger(__name__)
#: One round of a warm-up lasts so much event time where no boundary says otherwise.
_SPAN: Final = 60.0


class SparkSlet(PullSlet):
    """The base of all slets that run a query on Spark; made by `exop_spark.query`, not derived by hand.

    It is open when its query has been analysed, warmed up with rows that are thrown away, and started. Its input
    methods only append to the feeds; results leave from a thread of Spark's, once per micro-batch.
    """

    #: How late rows may be, as Spark writes it: `10 seconds`.
    watermark: str = "0 seconds"
    mode: Mode = "append"
    master: str = DEFAULT_MASTER
    #: Rounds of the warm-up; 0: none.
    warm_up: int = 3
    #: When the query is to go on with the state of a running one: try that on a copy while the change is planned.
    dry_run: bool = True
    #: The URI of a folder that all hosts of a cluster reach; on this machine, checkpoints need none.
    checkpoints: str = ""

    #: The parts that the state and the work on it are divided into, fixed when the query first starts; with more than
    #: one, the state is in RocksDB, on the executors. 0: one, and four on a cluster.
    key_groups: int = 0
    #: The URI of a folder into which the tasks put the results; the output carries a receipt for each file. A query has
    #: it if `query` gets one.
    stage: str = ""
    #: Let Spark's tasks read a partitioned log or a Kafka topic themselves.
    native: bool = True
    packs: typing.ClassVar[bool] = True

    #: Set by the factory.
    ports: typing.ClassVar[Mapping[str, Input]] = {}
    columns: typing.ClassVar[pa.Schema] = pa.schema([])

    def __enter__(self) -> typing.Self:
        """Start Spark if it is not running yet, analyse and warm up the query, and start it.

        A successor that catches up beside its predecessor is warm from that; only if it does not, it is warmed up then.
        """
        share = lease(self.master)  # kept from the warm-up to the query
        behind = isinstance(self.tie.inherits, PullSlet)
        try:
            if self.warm_up and not behind:
                self._warm_up()
            super().__enter__()
            if self.warm_up and behind and self.following is None:
                self._warm_up()
            return self
        finally:
            share.release()

    def make_engine(self) -> PullEngine:
        """Return the query on the Spark of this process."""
        from ..execution.run import Run

        return Run(self.plan(), lease(self.master))

    def native_engine(self, port: str) -> str | None:
        """Spark reads a channel by itself where the order of the rows does not count."""
        one = self.ports.get(port)
        return "spark" if self.native and one is not None and not one.numbered else None

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification whose output sends receipts in place of rows if it is staged."""
        check_settings(settings)
        return sends_receipts(spec_of(cls), staged=bool(settings["stage"]))

    def takes_references(self, port: str) -> bool:
        """Spark's tasks read files by themselves where the order of the rows does not count."""
        return not self.ports[port].numbered

    def can_follow(self, predecessor: PullSlet) -> bool:
        """With another watermark, windows would close in other batches; what Spark reads itself has other offsets."""
        other = not isinstance(predecessor, SparkSlet) or self.watermark != predecessor.watermark
        return not other and self.tie.native.keys() == predecessor.tie.native.keys()

    def take(self, port: str, payload: Any) -> None:
        """Append what arrives to the feed; rows in the types of the port are first converted to those of Spark.

        Raises:
            EngineError: the query has failed, or a value has no equal on Spark.
        """
        columns = self.ports[port].columns
        if isinstance(payload, pa.RecordBatch) and payload.schema.types == columns.types:
            try:
                payload = to_columns(payload, PortType(pa.RecordBatch, "columns", spark_columns(columns)))
            except WiringError as problem:
                cure = "cast it with safe=False in a slet before, which drops the rest, or declare it as int64"
                raise SparkError(f"{self._name}, port {port!r}: {problem}; {cure}") from problem
        super().take(port, payload)

    def quiesce(self) -> None:
        """Return when the results of all that Spark has read are sent; what it has not read is for a successor."""
        self._hold(on=True)
        super().quiesce()

    def proceed(self) -> None:
        """Go on reading: the change was cancelled."""
        self._hold(on=False)
        super().proceed()

    def pack(self) -> bytes:
        """Return the progress and Spark's checkpoint.

        Raises:
            SparkError: Spark reads a channel of this host by itself.
        """
        if self.tie.native:
            raise SparkError(
                f"{self._name}: Spark reads {_listed(self.tie.native)} by itself, from a channel of this host; replace "
                f"it by a query with native=False first, with lose_state=True (--lose-state), and move that one"
            )
        return super().pack()

    def holds_own_state(self) -> bool:
        """Return whether the query keeps state, such as groups without an event time."""
        return getattr(self.engine, "keeps_state", False)

    def inherit(self, predecessor: PullSlet | bytes) -> None:
        """Continue with a copy of Spark's checkpoint, which has the offsets of the same inputs.

        Raises:
            EngineError: Spark cannot continue with it.
        """
        before = predecessor.tie.native if isinstance(predecessor, PullSlet) else {}
        if before.keys() != self.tie.native.keys():
            raise SparkError(
                f"{self._name}: Spark reads {_listed(self.tie.native)} by itself, its predecessor {_listed(before)}: "
                f"the offsets in its state are others; replace it with lose_state=True (--lose-state)"
            )
        super().inherit(predecessor)

    @classmethod
    def inherits(cls, before: Any, after: Any) -> str | None:
        """Why a query cannot go on with the checkpoint of another; the schemas of the states are compared by Spark."""
        other = before.slet.factory
        if not (isinstance(other, type) and issubclass(other, SparkSlet)):
            return super().inherits(before, after)
        if before.settings["mode"] != after.settings["mode"]:
            return f"its mode is {after.settings['mode']!r}, the state is of one in mode {before.settings['mode']!r}"
        if before.settings["native"] != after.settings["native"]:
            return "its setting 'native' is another one, so that the offsets in the state differ"
        return other_inputs(other.ports, cls.ports)

    @classmethod
    def try_inherit(cls, predecessor: Any, after: Any) -> str:
        """Let Spark try the query of the node *after* on a copy of the state of *predecessor*, which goes on."""
        return tried(predecessor, cls(out=typing.cast("Any", None), **after.private_settings()))

    def fields_of_trial(self) -> dict[str, Any]:
        """Return the fields of the instance that is warmed up, where they differ."""
        return {}

    def plan(self) -> Plan:
        """Return the plan of this slet with its present settings."""
        return Plan(
            name=self._name,
            query=self.query,
            inputs=self.ports,
            out=self.columns,
            mode=self.mode,
            watermark=self.watermark,
            checkpoints=self.checkpoints,
            key_groups=self.key_groups,
            stage=self.stage,
            by_watermark=self.punctuation.by == "watermark",
        )

    def compiled(self, progress: QueryProgress | None = None) -> PullEngine:
        """Return a new engine that has checked the query.

        Raises:
            QueryRefused: Spark refuses the query, or has no type for a column.
        """
        for port, one in self.ports.items():
            try:
                spark_columns(one.columns)
            except NoSuchType as problem:
                raise QueryRefused(**self.plan().facts(), port=port, detail=str(problem)) from None
        return super().compiled(progress)

    def _feed(self, port: str, columns: pa.Schema) -> Feed:
        columns = spark_columns(columns)
        if port not in self.tie.native:
            return super()._feed(port, columns)
        return NativeFeed(
            port,
            columns,
            self._trigger,
            tie=self.tie,
            event_time=self.times.get(port),
            begin=self._progress.begins(port),
            by_input=self.punctuation.by == "input",
            on_commit=lambda: self.tie.forget(port, self._progress.begins(port).event),
        )

    def _settle(self) -> None:
        for feed in self.feeds.values():
            if isinstance(feed, NativeFeed):
                feed.await_readable()
        super()._settle()

    def _hold(self, *, on: bool) -> None:
        for feed in self.feeds.values() if self.engine is not None else ():
            if isinstance(feed, NativeFeed):
                feed.hold(on=on)

    def _warm_up(self) -> None:
        """Send made-up rows through the whole query, with a feed and a checkpoint of their own, and forget them."""
        _log.info("%s is compiled by Spark, and warmed up with made-up rows", self._name)
        out, span = _Trial(), self.boundary or _SPAN
        own = self.fields_of_trial()
        trial = replace(self, out=out, tie=Tie(), warm_up=0, checkpoints="", stage="", close_windows_at_end=True, **own)
        try:
            with trial:
                trial.ready()
                for turn in range(self.warm_up):
                    for port, one in self.ports.items():
                        end = (turn + 1) * span
                        trial.take(port, one.sampled(turn, span))
                        trial.take(port, Punctuation(one.time.before(end) if one.time else end))
                    trial.quiesce()
                for port in self.ports:
                    trial.take(port, EndOfStream())
                out.wait()
        except EngineError as error:
            error.add_note("while it was warmed up with made-up rows: give its inputs a sample=, or set warm_up=0")
            raise


def sends_receipts(spec: SletSpec, *, staged: bool) -> SletSpec:
    """Return *spec* with an output of these columns that sends receipts, if it is *staged*."""
    if not staged:
        return spec
    return spec.with_outputs({"out": replace(spec.ports["out"].type, reference=Receipt)})


def tried(predecessor: Any, successor: SparkSlet) -> str:
    """Return what the plan of a change says about the state of a running slet that a new one is to go on with.

    Raises:
        EngineError: Spark cannot go on with it.
    """
    from .dry_run import dry_run

    if lost := predecessor.tie.native.keys() - successor.ports.keys():
        raise SparkError(
            f"Spark reads {_listed(sorted(lost))} of {predecessor._name} by itself, and the new query has "
            f"no such input: the offsets in the state are others; replace it with lose_state=True (--lose-state)"
        )
    return dry_run(predecessor, successor) if successor.dry_run else "not tried on a copy, since dry_run is off"


def _listed(ports: Iterable[str]) -> str:
    return ", ".join(ports) or "no input"


class _Trial(OutputPort[Any]):
    """The port of a warm-up: results are dropped, and the end is waited for."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._error: BaseException | None = None

    def push(self, item: Any) -> None:
        """Drop it."""

    def push_batch(self, batch: Any) -> None:
        """Drop it."""

    def end(self) -> None:
        """Note the end."""
        self._over.set()

    def fail(self, error: BaseException) -> None:
        """Note the failure."""
        self._error = error
        self._over.set()

    def wait(self) -> None:
        """Wait for the end of the stream, and raise the failure."""
        self._over.wait()
        if self._error is not None:
            raise self._error
