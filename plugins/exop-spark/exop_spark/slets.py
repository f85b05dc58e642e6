"""A query as a slet."""

from __future__ import annotations

import json
import logging
import threading
import typing
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from exop import EndOfStream, OutputPort, Punctuation, Slet, Tie
from exop.engine.pace import Pace
from exop.engine.standing import Standing
from exop.errors import EngineError, PlanError

from .carried import other_inputs
from .errors import SparkError
from .plan import Input, Mode, Plan, Punctuate, Query
from .session import Lease, lease
from .settings import DEFAULT_MASTER

if TYPE_CHECKING:
    from pathlib import Path

    from .run import Run

_log = logging.getLogger(__name__)
#: One round of a warm-up lasts so much event time where no boundary says otherwise.
_SPAN: Final = 60.0
#: The file that says in which order the inputs have ended.
_ENDED: Final = "ended"


class SparkSlet(Slet):
    """The base of all slets that run a query on Spark; made by `exop_spark.query`, not derived by hand.

    It is open when its query has been analysed, warmed up with rows that are thrown away, and started. Its input
    methods only append to the feeds; results leave from a thread of Spark's, once per micro-batch.
    """

    #: Least seconds between the starts of two micro-batches.
    trigger: float = 0.0
    #: A punctuation that reaches the next multiple of so much stream time starts a micro-batch at once; 0: none does.
    boundary: float = 0.0
    #: So many waiting rows start a micro-batch at once.
    enough: int = 50_000
    #: Most rows of one input in one micro-batch.
    max_rows: int = 200_000
    #: Most rows of one input that are with Spark; its producers wait then.
    capacity: int = 500_000
    #: How late rows may be, as Spark writes it: `10 seconds`.
    watermark: str = "0 seconds"
    mode: Mode = "append"
    master: str = DEFAULT_MASTER
    tie: Tie = field(default_factory=Tie)
    reopens: typing.ClassVar[bool] = True
    #: Rounds of the warm-up; 0: none.
    warm_up: int = 3
    #: When the query is to go on with the state of a running one: try that on a copy while the change is planned.
    dry_run: bool = True
    #: At the end of the stream let all windows close, as if time went on for ever.
    close_windows: bool = True
    #: A directory that all hosts of a cluster share; only wanted with a `spark://` master.
    checkpoints: str = ""

    #: Set by the factory.
    title: typing.ClassVar[str] = ""
    ports: typing.ClassVar[Mapping[str, Input]] = {}
    columns: typing.ClassVar[pa.Schema] = pa.schema([])
    function: typing.ClassVar[Query] = ""
    punctuation: typing.ClassVar[Punctuate] = Punctuate()

    if TYPE_CHECKING:
        #: Declared with its columns by the factory.
        out: OutputPort[Any]

    def __enter__(self) -> typing.Self:
        """Start Spark if it is not running yet, analyse and warm up the query, and start it."""
        self._ended: list[str] = []
        self._closing = False
        self._run: Run | None = None
        self._lease: Lease = lease(self.master)
        try:
            if self.warm_up:
                self._warmed_up()
            if self.tie.inherits is None:
                self._begin(Standing.of(self.tie.committed.note))
        except BaseException:
            self.__exit__()
            raise
        return self

    @classmethod
    def deep_check(cls, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Callable[[], None]:
        """Let Spark analyse the query of a node without running it; Spark is kept until what is returned is called.

        The query declares the columns of its inputs; the wiring has compared them with what arrives.

        Raises:
            SparkError: Spark refuses it, or cannot be started.
        """
        return cls(out=Nowhere(), **settings).analysed()

    def analysed(self) -> Callable[[], None]:
        """Do this for a slet that is not open."""
        from .run import Run

        share = lease(self.master)
        try:
            Run(self.plan(), share.engine, Tie(), Nowhere(), Standing()).analyse()
        except BaseException:
            share.release()
            raise
        return share.release

    def ready(self) -> None:
        """Return when Spark has asked for rows: a micro-batch may begin at once."""
        if self._run is not None:
            self._run.ready()

    def __exit__(self, *exc: object) -> None:
        """Stop the query, remove its checkpoint, and let go of Spark."""
        self._closing = True
        if self._run is not None:
            self._run.stop()
        self._lease.release()

    def quiesce(self) -> None:
        """Return when all that arrived has been put out, as far as it can be while more may come."""
        if self._run is not None:
            self._run.settle()
            if self.punctuation.by == "input":
                self._run.say_complete()

    @classmethod
    def inherits(cls, before: Any, after: Any) -> str | None:
        """Why a query cannot go on with the checkpoint of another; the schemas of the states are compared by Spark."""
        other = before.slet.factory
        if not (isinstance(other, type) and issubclass(other, SparkSlet)):
            return super().inherits(before, after)
        if before.settings["mode"] != after.settings["mode"]:
            return f"its mode is {after.settings['mode']!r}, the state is of one in mode {before.settings['mode']!r}"
        return other_inputs(other.ports, cls.ports)

    @classmethod
    def try_inherit(cls, predecessor: Any, after: Any) -> str:
        """Let Spark try the query of the node *after* on a copy of the state of *predecessor*, which goes on."""
        return tried(predecessor, cls(out=Nowhere(), **after.private_settings()))

    def inherit(self, predecessor: SparkSlet) -> None:
        """Go on with a copy of Spark's checkpoint, at the offsets of then; returns when Spark has computed with it.

        Raises:
            SparkError: the predecessor has not come to rest, or Spark cannot go on with its state.
        """
        before = predecessor._run
        if before is None or before.directory is None:
            raise SparkError(f"{predecessor.title} never ran")
        standing = before.standing.from_zero()
        self.tie.put_out(None, [], {}, standing.noted())
        self._begin(standing, (before.directory, standing.batch))
        assert self._run is not None
        self._run.computed()

    def __setattr__(self, name: str, value: object) -> None:
        """Keep the settings of an open slet as they are: Spark has compiled them."""
        running = self.__dict__.get("_run") is not None and not self._closing
        spec = type(self).__slet__
        if running and spec is not None and name in spec.settings and value != getattr(self, name):
            raise PlanError(
                f"{self.title}: {name!r} is compiled into the query that Spark runs; replace the slet to change it"
            )
        super().__setattr__(name, value)

    def metrics(self) -> dict[str, int | float | str]:
        """Rows, micro-batches and their times, watermark, state, and how far the output is behind."""
        run = getattr(self, "_run", None)
        return {} if run is None else run.figures()

    def plan(self) -> Plan:
        """Return the plan of this slet with its present settings."""
        pace = Pace(self.trigger, self.boundary or None, self.enough, self.max_rows)
        return Plan(
            name=self.title,
            query=getattr(self, "query", None) or type(self).function,
            inputs=self.ports,
            out=self.columns,
            punctuate=self.punctuation,
            mode=self.mode,
            watermark=self.watermark,
            pace=pace,
            capacity=self.capacity,
            checkpoints=self.checkpoints,
        )

    def take(self, port: str, item: pa.RecordBatch | Punctuation | EndOfStream) -> None:
        """Hand over what arrived at *port*; waits while Spark has enough, unless the driver is wanted elsewhere."""
        assert self._run is not None
        feed = self._run.feeds[port]
        if isinstance(item, pa.RecordBatch):
            feed.admit(item, self.tie.hurried)
        else:
            feed.check_open()
        fresh = self.tie.take(port, item)
        if fresh is not None:
            self._give(port, fresh, self._run)

    def _give(self, port: str, item: pa.RecordBatch | Punctuation | EndOfStream, run: Run) -> None:
        if isinstance(item, Punctuation):
            run.feeds[port].punctuate(item.time)
        elif isinstance(item, EndOfStream):
            self._end(port, run)
        else:
            run.feeds[port].push(item)

    def _begin(self, standing: Standing, carried: tuple[Path, int] | None = None) -> None:
        """Start the query where it stood, or its predecessor, whose checkpoint is *carried*."""
        from .run import Run

        place = self.tie.directory
        run = Run(self.plan(), self._lease.engine, self.tie, self.out, standing)
        if place is not None and (place / _ENDED).exists():
            self._ended = json.loads((place / _ENDED).read_text())
        for port in self.ports:
            if standing.probes:
                run.feeds[port].probe()
            for _, item in self.tie.events(port, standing.begins(port).event):
                self._give(port, item, run)
            run.feeds[port].go_on(standing.ends(port))
        self._run = run
        run.start(place / "spark" if place is not None else None, carried=carried)
        self._thread("watch", self._watch)
        if self.punctuation.by == "input":
            self._thread("tell", self._tell)
        if len(self._ended) == len(self.ports) and not standing.over:
            self._thread("drain", self._drain)

    def _warmed_up(self) -> None:
        """Send made-up rows through the whole query, with a feed and a checkpoint of their own, and forget them."""
        from .run import Run

        plan = replace(self.plan(), checkpoints="")
        span = self.boundary or _SPAN
        run = Run(plan, self._lease.engine, Tie(), Nowhere(), Standing())
        try:
            run.start()
            run.ready()
            for turn in range(self.warm_up):
                for port, one in plan.inputs.items():
                    rows = one.sampled(turn, span)
                    run.feeds[port].admit(rows)
                    run.feeds[port].push(rows)
                    run.feeds[port].punctuate((turn + 1) * span - (one.time.step if one.time else 0))
                run.settle()
            for port in plan.inputs:
                run.end(port, close_windows=True)
            run.drain()
        except EngineError as error:
            error.add_note("while it was warmed up with made-up rows: give its inputs a sample=, or set warm_up=0")
            raise
        finally:
            run.stop()

    def _end(self, port: str, run: Run) -> None:
        if port not in self._ended:  # else it had ended before a crash, and the order is known
            self._ended.append(port)
            if self.tie.directory is not None:
                (self.tie.directory / _ENDED).write_text(json.dumps(self._ended))
        last = self._ended.index(port) == len(self.ports) - 1
        # An input that ends before the others keeps no window open; what the last one closes is a setting.
        run.end(port, close_windows=self.close_windows or not last)
        if last and run is self._run:
            self._thread("drain", self._drain)

    def _drain(self) -> None:
        """All inputs have ended: put out the rest, then the end."""
        assert self._run is not None
        try:
            self._run.drain()
        except EngineError as error:
            # The watching thread reports what ended the query.
            _log.debug("%s: not drained: %s", self.title, error)

    def _watch(self) -> None:
        """Wait for the end of the query; an end that was not asked for is a failure of this slet."""
        assert self._run is not None
        try:
            self._run.wait()
        except EngineError as error:
            # Later pushes get the same error, and keep the item.
            self._run.refuse(error)
            if not (self._closing or self._run.halted):
                self.out.fail(error)

    def _tell(self) -> None:
        """Tell what no micro-batch will; ends with the query, or when the platform halts this driver."""
        assert self._run is not None
        try:
            self._run.tell()
        except Exception as error:  # noqa: BLE001 - what is downstream failed: it is shown as this slet's failure
            self.out.fail(error)
        except BaseException:  # noqa: BLE001 - the platform's way to end a driver
            _log.debug("%s: halted", self.title)

    def _thread(self, task: str, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name=f"exop-spark {self.title} {task}", daemon=True).start()


def tried(predecessor: Any, successor: SparkSlet) -> str:
    """Return what the plan of a change says about the state of a running slet that a new one is to go on with.

    Raises:
        QueryError: Spark cannot go on with it.
    """
    from .dry_run import dry_run

    return dry_run(predecessor, successor) if successor.dry_run else "not tried on a copy, since dry_run is off"


class Nowhere(OutputPort[Any]):
    """A sink that discards the results of a warm-up."""

    def push(self, item: Any) -> None:
        """Drop it."""

    def push_batch(self, batch: Any) -> None:
        """Drop it."""

    def end(self) -> None:
        """Nothing ends."""

    def fail(self, error: BaseException) -> None:
        """Ignore it: the caller of the warm-up gets the error itself."""
