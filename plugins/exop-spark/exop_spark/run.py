"""One streaming query that runs: feeds at one end, the deliveries of its micro-batches at the other."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from exop import EndOfStream, OutputPort, Punctuation, Tie
from exop.engine.feed import Feed
from exop.engine.pace import Gate
from exop.engine.place import Place
from exop.engine.standing import Standing
from exop.errors import EngineError
from exop.model.slets.tie import Leaving

from .carried import carry
from .errors import OutputMismatch, QueryError, QueryFailed, QueryRefused, SparkError
from .failure import explained, is_suspicious
from .frames import conform, differences, input_frame
from .plan import Input, Plan
from .progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .session import Engine

_log = logging.getLogger(__name__)
#: Longest wait for the first sign of life of a query.
_START: Final = 120.0
#: Between two looks whether it has failed instead.
_GLANCE: Final = 0.2


class Run:
    """One streaming query of a plan, from `start` to `stop`.

    Each micro-batch is put out once, in order, by *tie* to *out*: its rows (if any), then through when the output is
    complete (if that has moved), in a thread of Spark's.

    Attributes:
        standing: How far it has come.
        directory: Where Spark keeps its checkpoint.
    """

    def __init__(self, plan: Plan, engine: Engine, tie: Tie, out: OutputPort[Any], standing: Standing) -> None:
        self.plan = plan
        self.progress = Progress()
        self.standing = standing
        self.directory: Path | None = None
        self._engine = engine
        self._tie = tie
        self._out = out
        self._gate = Gate(plan.pace)
        self.feeds = {port: self._feed(port, one) for port, one in plan.inputs.items()}
        self._keys: dict[str, str] = {}
        self._query: Any = None
        self._known = threading.Event()
        self._scratch: Path | None = None
        self._saying = threading.Lock()
        self.halted = False
        self._error: BaseException | None = None

    def start(self, directory: Path | None = None, *, carried: tuple[Path, int] | None = None) -> None:
        """Analyse the query and start it, with its checkpoint in *directory*, or in one that goes with it.

        With *carried* it goes on with the checkpoint of another query, behind that micro-batch.

        Raises:
            QueryRefused: Spark's analysis says no.
            OutputMismatch: the columns are not those declared.
        """
        session = self._engine.session()
        try:
            frame = self._analysed(session)
            self._checked(frame)
            if directory is None:
                directory = self._scratch = self._engine.checkpoint(self.plan.checkpoints)
            self.directory = directory
            if carried is not None:
                carry(carried[0], directory, carried[1])
            writer = frame.writeStream.foreachBatch(self._put_out).outputMode(self.plan.mode)
            self._query = writer.option("checkpointLocation", directory.as_uri()).start()
        except Exception as error:
            raise self._explained(error, QueryRefused) from error
        finally:
            self._known.set()

    def analyse(self) -> None:
        """Let Spark analyse the query without running it.

        Raises:
            QueryRefused: Spark's analysis says no.
            OutputMismatch: the columns are not those declared.
        """
        session = self._engine.session()
        try:
            frame = self._analysed(session)
            self._checked(frame)
            self._streams(session, frame)
        except Exception as error:
            raise self._explained(error, QueryRefused) from error
        finally:
            self.stop()

    @property
    def active(self) -> bool:
        """Tell whether the query runs."""
        return self._query is not None and self._engine.alive and bool(self._query.isActive)

    def ready(self) -> None:
        """Return when Spark has asked for rows.

        Raises:
            QueryFailed: it has failed, or does not begin.
        """
        waited = 0.0
        while not self._gate.wait_polled(_GLANCE):
            self.check()
            waited += _GLANCE
            if waited > _START:
                raise QueryFailed(**self.plan.facts(), detail=f"it did not begin within {_START:.0f} s")

    def check(self) -> None:
        """Raise what has ended the query, if something has."""
        if self._query is not None and (error := self._query.exception()) is not None:
            raise self._explained(error)

    def wait(self) -> None:
        """Wait until the query ends; raises what ended it, unless it was stopped."""
        try:
            self._query.awaitTermination()
        except Exception as error:
            raise self._explained(error) from error

    def settle(self) -> None:
        """Wait until all that was pushed has been delivered, windows that the watermark closes included."""
        # Spark knows that nothing is left when a poll has brought nothing: no poll may wait meanwhile.
        self._gate.release()
        try:
            self._query.processAllAvailable()
        except Exception as error:
            raise self._explained(error) from error
        finally:
            self._gate.hold()

    def end(self, port: str, *, close_windows: bool) -> None:
        """End an input; with *close_windows* it holds no window of the query open any more."""
        self.feeds[port].end(close_windows=close_windows)

    def computed(self) -> None:
        """Return when a micro-batch has been computed with the state that was taken over.

        Raises:
            QueryFailed: it cannot be: Spark says why.
        """
        self.ready()
        self.settle()
        self.check()

    def drain(self) -> None:
        """Wait until everything has been put out; all inputs have ended: then the output does."""
        self.settle()
        if self.plan.punctuate.by == "input":
            self.say_complete()
        with self._saying:
            for feed in self.feeds.values():
                feed.put_out(over=True)
            standing = self.standing.meanwhile(self._reached(), self.standing.said, over=True)
            self._put([(self._out, EndOfStream())], standing)

    def tell(self) -> None:
        """Tell the punctuations that come when no micro-batch will: all rows before them have been put out already.

        Returns when the query is being closed.
        """
        feeds = self.feeds.values()
        while True:
            self._gate.wait_until(lambda: any(feed.untold or feed.retired for feed in feeds))
            if any(feed.retired for feed in feeds):
                return
            self.say_complete()

    def refuse(self, error: EngineError) -> None:
        """Take nothing more: the query has failed."""
        for feed in self.feeds.values():
            feed.retire(error)

    def stop(self) -> None:
        """Stop the query and remove what it left on disk."""
        for feed in self.feeds.values():
            feed.retire()
        self._gate.release()
        if self._query is not None and self._engine.alive:
            try:
                self._query.stop()
            except Exception as error:  # noqa: BLE001 - it is being thrown away; why it would not stop is worth a line
                _log.warning("%s: the query did not stop cleanly: %s", self.plan.name, error)
        for key in self._keys.values():
            self._engine.server.remove(key)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def figures(self) -> dict[str, int | float | str]:
        """Figures of the query, for the component's metrics."""
        if self._query is not None and self._engine.alive:
            try:
                self.progress.learn(self._query)
            except Exception as error:
                # Spark may be gone already without anybody having noticed: then the last figures are what there is.
                if not is_suspicious(error):
                    raise
        lag = sum(feed.lag for feed in self.feeds.values())
        return self.progress.figures() | {"lag": lag}

    def _analysed(self, session: SparkSession) -> DataFrame:
        frames: dict[str, DataFrame] = {}
        for port, one in self.plan.inputs.items():
            key = self._keys[port] = self._engine.server.add(self.feeds[port])
            frames[port] = input_frame(
                session, self._engine, self.feeds[port], key, delay=self.plan.watermark, numbered=one.numbered
            )
            frames[port].createOrReplaceTempView(port)
        if isinstance(self.plan.query, str):
            return session.sql(self.plan.query)
        _ship(self.plan.query)
        frame: DataFrame = self.plan.query(**frames)
        return frame

    def _checked(self, frame: DataFrame) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        wrong = differences(to_arrow_schema(frame.schema), self.plan.out)
        if wrong:
            raise OutputMismatch(slet=self.plan.name, query=self.plan.text, port="out", detail="; ".join(wrong))
        if not frame.isStreaming:
            raise QueryRefused(**self.plan.facts(), detail="it reads none of its input ports")

    def _streams(self, session: SparkSession, frame: DataFrame) -> None:
        """Let Spark check what it checks when a streaming query starts: whether the query can stream in this mode."""
        jvm: Any = session._jvm
        mode = jvm.org.apache.spark.sql.catalyst.streaming.InternalOutputModes.apply(self.plan.mode)
        plan = frame._jdf.queryExecution().analyzed()
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)

    def _put_out(self, frame: DataFrame, batch: int) -> None:
        """Deliver one micro-batch; Spark calls this, and calls it again with the same number after a failure."""
        self._known.wait()
        try:
            rows = conform(frame.toArrow(), self.plan.out)
            if batch <= self.standing.batch:  # it was put out, not committed: done again for the state that Spark keeps
                return
            with self._saying:
                for feed in self.feeds.values():
                    feed.put_out()
                leaving: list[Leaving] = [(self._out, rows)] if rows.num_rows else []
                news = self._news()
                said = news[0][1].time if news else self.standing.said
                self._put(leaving + news, self.standing.after(batch, self._reached(), said), batch)
            self._count(batch, rows.num_rows)
        except BaseException as error:
            # Spark would turn it into text: keep the original for the error that ended the query.
            self._error = error
            if isinstance(error, Exception):
                raise
            self.halted = True
            raise SparkError("the platform has halted this driver") from error

    def say_complete(self) -> None:
        """Put out, between two micro-batches, through when the output is complete, if that has moved."""
        with self._saying:
            news = self._news()
            said = news[0][1].time if news else self.standing.said
            standing = self.standing.meanwhile(self._reached(), said)
            if standing != self.standing:
                self._put(news, standing)

    def _news(self) -> list[Leaving]:
        """The punctuation that is due."""
        moment = self._watermark() if self.plan.punctuate.by == "watermark" else _least(list(self.feeds.values()))
        # The end of the stream says more than a watermark that is after every window.
        ended = moment is not None and any(moment >= feed.never for feed in self.feeds.values())
        complete = None if moment is None or ended else self.plan.punctuate.complete(moment)
        if complete is None or (self.standing.said is not None and complete <= self.standing.said):
            return []
        return [(self._out, Punctuation(complete))]

    def _put(self, leaving: list[Leaving], standing: Standing, batch: int | None = None) -> None:
        if self._tie.put_out(batch, leaving, standing.inputs, standing.noted()):
            self.standing = standing

    def _reached(self) -> dict[str, Place]:
        return {port: feed.reached() for port, feed in self.feeds.items()}

    def _feed(self, port: str, one: Input) -> Feed:
        """The feed of a port, which begins where the last micro-batch does: Spark may do that once more."""
        return Feed(
            port,
            one.columns,
            self._gate,
            event_time=one.time,
            capacity=self.plan.capacity,
            begin=self.standing.begins(port),
            tells=self.plan.punctuate.by == "input",
            committed=lambda: self._tie.forget(port, self.standing.begins(port).event),
        )

    def _count(self, batch: int, rows: int) -> None:
        self.progress.delivered(batch, rows, sum(feed.markers for feed in self.feeds.values()))
        self.progress.learn(self._query)

    def _watermark(self) -> float:
        """The watermark that the micro-batch under way was computed with, in the unit of the event time."""
        execution = self._query._jsq.streamingQuery().lastExecution()
        milliseconds = int(execution.offsetSeqMetadata().batchWatermarkMs())
        self.progress.watermark = moment = self.plan.times[0].of_watermark(milliseconds)
        return moment

    def _explained(self, error: BaseException, kind: type[QueryError] = QueryFailed) -> EngineError:
        """Return the error that ended the query: that of a delivery takes precedence over Spark's account of it."""
        lost = not self._engine.alive or (is_suspicious(error) and not self._engine.answers())
        if not lost and self._error is not None:
            error = self._error
        found = explained(error, kind, lost=lost, **self.plan.facts())
        if found is not error:
            found.__cause__ = error
        return found


def _least(feeds: list[Feed]) -> float | None:
    """Return the time up to which all inputs are complete; none while one is silent. Ended inputs hold nothing back."""
    through = [feed.complete() for feed in feeds if not feed.finished] or [feed.complete() for feed in feeds]
    known = [one for one in through if one is not None]
    return min(known) if len(known) == len(through) else None


def _ship(function: Callable[..., Any]) -> None:
    """Let Spark's workers get the functions of the query's module by value: they need not be able to import it."""
    from pyspark import cloudpickle

    module = sys.modules.get(function.__module__)
    if module is not None and module.__name__ != "__main__":
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
