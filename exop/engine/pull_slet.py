"""`PullSlet`: runs one query on a `PullEngine` as a slet."""

from __future__ import annotations

import json
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

import pyarrow as pa

from exop.engine.feed import Feed, completed
from exop.engine.following import Following, follow
from exop.engine.pull import EventTime, InputPosition, PullEngine, Punctuate, QueryProgress
from exop.engine.trigger import BatchTrigger
from exop.errors import EngineError, PlanError, QueryError, QueryInterrupted
from exop.model.items import EndOfStream, Punctuation, Reference
from exop.model.slets.ports import OutputPort
from exop.model.slets.slet import Slet, spec_of
from exop.model.slets.tie import Leaving, Tie
from exop.model.values.encoding import decode, encode
from exop.runtime.supervision.watchdog import SAMPLER
from exop.safe_repr import error_text

#: The file with the order in which the inputs have ended.
_ENDED: Final = "ended"
#: The maximum time until an engine reads for the first time, in seconds.
_START: Final = 120.0


class PullSlet(Slet):
    """The base of slets that run one query on an engine that pulls its input.

    A subclass has the class keyword `own_driver=True`, declares the output port `out`, makes the engine, and declares
    its input ports, with record batches. Each of them passes everything to `take`, also the control items:

        @input_port
        def rows(self, rows: Rows | Punctuation | EndOfStream) -> None:
            self.take("rows", rows)

    Events and results are numbered by the tie, and the progress of the query is stored with each batch.

    Attributes:
        trigger: The least number of seconds between the beginnings of two batches.
        boundary: A punctuation that reaches the next multiple of this time begins a batch at once; 0: none does.
        enough: The number of waiting rows that begins a batch at once.
        max_rows: The maximum number of rows of one input in one batch.
        capacity: The number of rows of one input whose results are not sent, at which the input waits.
        time_limit: The maximum number of seconds for which the engine computes one batch; then the query is interrupted
            and fails, and the batch is computed again when a setting of the slet is changed. 0: no limit. Time for
            which the whole process stands still (SIGSTOP, a paused VM) does not count.
        close_windows_at_end: At the end of the stream, close all windows, as if time went on.
        query: The query: a text, which a subclass may declare as a setting, or what the engine takes instead.
        times: The event times of the inputs that have one.
        follower: The successor that catches up beside this slet, if there is one.
        following: The batches that it computes only to catch up with its predecessor, as long as it does so.
        punctuation: The rule by which punctuations leave.
    """

    trigger: float = 0.0
    boundary: float = 0.0
    enough: int = 50_000
    max_rows: int = 200_000
    capacity: int = 500_000
    time_limit: float = 600.0
    close_windows_at_end: bool = True
    tie: Tie = field(default_factory=Tie)
    reopens: ClassVar[bool] = True
    times: ClassVar[Mapping[str, EventTime]] = {}
    punctuation: ClassVar[Punctuate] = Punctuate()

    if TYPE_CHECKING:
        #: Declared with its columns by the subclass.
        out: OutputPort[Any]
        query: Any
    else:
        query: ClassVar[Any] = ""

    @abstractmethod
    def make_engine(self) -> PullEngine:
        """Return a new engine for the settings of this slet, which is not open yet."""

    def __enter__(self) -> Self:
        """Check the query, and start it; with a predecessor, `inherit` does this."""
        self._ended, self._sending = list[str](), threading.Lock()
        self._repeated = dict[str, int]()
        self._closing = self._halted = self._started = False
        self._failure: EngineError | None = None
        self.engine: PullEngine | None = None
        self.follower: Following | None = None
        self.following: Following | None = None
        try:
            if self.tie.inherits is None:
                self._begin(QueryProgress.load(self.tie.committed.note))
            elif isinstance(self.tie.inherits, PullSlet):
                follow(self, self.tie.inherits)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing = True
        if self.following is not None:
            self.following.end()
        if self.engine is not None:
            self._stop(self.engine)

    @classmethod
    def deep_check(cls, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Callable[[], None]:
        """Let the engine check the query without data; return the function that closes the engine.

        Raises:
            EngineError: the query is invalid.
        """
        return cls(out=cast("Any", None), **settings).compiled().close  # nothing leaves

    def compiled(self, progress: QueryProgress | None = None) -> PullEngine:
        """Return a new engine that has checked the query, with feeds at this progress."""
        self._progress = progress or QueryProgress()
        self._trigger = BatchTrigger(self.trigger, self.boundary or None, self.enough, self.max_rows)
        self.feeds = {port.name: self._feed(port.name, port.type.schema) for port in spec_of(type(self)).inputs}
        with ExitStack() as undo:
            for feed in self.feeds.values():
                undo.callback(feed.retire)
            engine = self.make_engine()
            undo.callback(engine.close)
            with self._reported():
                engine.compile(self.query, self.feeds)
            undo.pop_all()
        return engine

    def ready(self) -> None:
        """Return when the engine has asked for rows: a batch can begin at once.

        Raises:
            EngineError: the engine has failed, or does not begin.
        """
        if self.engine is not None and self.following is None:
            feeds, trigger = self.feeds.values(), self._trigger
            begun = trigger.wait_until(lambda: trigger.leader is not None or any(one.retired for one in feeds), _START)
            self._check()
            if not begun:
                raise self._error(TimeoutError(f"it did not begin within {_START:.0f} s"))

    def can_follow(self, predecessor: PullSlet) -> bool:
        """Return whether this query can compute the batches of a predecessor beside it, to take over its state.

        The engine has `copy`, and with the same batches, both queries come to the same watermarks.
        """
        return False

    def quiesce(self) -> None:
        """Return when the results of all events are sent, as far as this is possible while more may arrive.

        If a successor has caught up, return when the batch in progress is sent: the next one is for the successor.
        """
        if self.follower is not None and self.follower.meet():
            self._trigger.pause()
            self._check()
        elif self.engine is not None:
            self._settle()

    def resting(self) -> int:
        """Return the number of rows whose results are not sent."""
        return sum(feed.lag for feed in self.feeds.values())

    def proceed(self) -> None:
        """Continue after `quiesce`: the change was cancelled."""
        if self.engine is not None:
            self._trigger.resume()

    def pack(self) -> bytes:
        """Return the progress and the engine's state."""
        if self.engine is None:
            raise EngineError(f"{self._name}: the query has never run")
        with self._reported():
            return encode([self._progress.dump(), self.engine.pack(self._progress.batch)])

    def inherit(self, predecessor: PullSlet | bytes) -> None:
        """Continue with a copy of the engine's state; return when the engine has computed with it.

        Raises:
            EngineError: the engine cannot continue with this state.
        """
        if self.following is None or not self.following.take_over():
            self._begin_behind(predecessor)
        self.ready()
        # One batch is enough. Its output may wait until this slet is in place, so the query does not come to rest.
        self._trigger.wait_until(lambda: all(not feed.lag or feed.retired for feed in self.feeds.values()))
        self._check()

    def metrics(self) -> dict[str, int | float | str]:
        """Return the metrics of the engine, and the number of rows whose results are not sent."""
        engine: PullEngine | None = getattr(self, "engine", None)
        return {} if engine is None else engine.metrics() | {"lag": sum(feed.lag for feed in self.feeds.values())}

    def take(self, port: str, payload: pa.RecordBatch | list[Reference] | Punctuation | EndOfStream) -> None:
        """Append what arrives at *port* to its feed; wait for room, unless the driver must reach its safe point.

        Raises:
            EngineError: the query has failed.
        """
        feed = self.feeds[port]
        if isinstance(payload, (pa.RecordBatch, list)):
            feed.admit(payload, self.tie.hurried)
        else:
            feed.check_open()
        number = self.tie.arrived(port)
        if (fresh := self.tie.take(port, payload)) is None and number >= self._repeated.get(port, sys.maxsize):
            fresh = payload  # known since before a crash, but only now are the rows before it in the channel again
        if fresh is not None:
            self._give(port, fresh)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse to change the settings of an open slet, which the engine has compiled."""
        running = self.__dict__.get("engine") is not None and not self._closing
        spec = type(self).__slet__
        if running and spec is not None and name in spec.settings and value != getattr(self, name):
            cure = "replace the slet to change it"
            raise PlanError(f"{self._name}: {name!r} is compiled into the query that runs; {cure}")
        super().__setattr__(name, value)

    @property
    def _name(self) -> str:
        return spec_of(type(self)).name

    def _feed(self, port: str, columns: pa.Schema) -> Feed:
        """Return a feed that begins where the last batch does, which the engine may compute again."""
        return Feed(
            port,
            columns,
            self._trigger,
            event_time=self.times.get(port),
            capacity=self.capacity,
            begin=self._progress.begins(port),
            by_input=self.punctuation.by == "input",
            on_commit=lambda: self.tie.forget(port, self._progress.begins(port).event),
        )

    def _begin_behind(self, predecessor: PullSlet | bytes) -> None:
        """Start the engine with a copy of the state of a predecessor that is at rest."""
        engine: PullEngine | bytes | None
        if isinstance(predecessor, bytes):
            noted, engine = decode(predecessor)
            progress = QueryProgress.load(noted)
        else:
            progress, engine = predecessor._progress, predecessor.engine
        if engine is None:
            raise EngineError(f"{self._name}: the predecessor has never run")
        progress = progress.handed_over([port.name for port in spec_of(type(self)).inputs])
        self.tie.put_out(None, [], {}, progress.dump())
        self._begin(progress, engine)

    def _begin(self, progress: QueryProgress, predecessor: PullEngine | bytes | None = None) -> None:
        if (place := self.tie.directory) is not None and (place / _ENDED).exists():
            self._ended = json.loads((place / _ENDED).read_text())
        self.engine = engine = self.compiled(progress)
        for port, feed in self.feeds.items():
            if progress.probes:
                feed.probe()
            if port in self.tie.native:
                self._repeated[port] = max(self.tie.arrived(port), progress.ends(port).event)
            for number, payload in self.tie.events(port, progress.begins(port).event):
                if number < self._repeated.get(port, sys.maxsize):
                    self._give(port, payload)
            feed.resume(progress.ends(port))
        with self._reported():
            engine.start(self._emit, place, predecessor, progress.batch)
        self._watch(engine)
        self._set_off()
        if all(feed.ended for feed in self.feeds.values()) and not progress.over:
            self._thread("drain", self._drain)

    def continue_behind(self, progress: QueryProgress) -> None:
        """Continue with an engine that has computed all before, and sent nothing."""
        self.tie.put_out(None, [], {}, progress.dump())
        self._progress = progress
        for port, feed in self.feeds.items():
            feed.go_on(progress.ends(port))
            if progress.probes:
                feed.probe()
        self._set_off()

    def _set_off(self) -> None:
        if self.punctuation.by == "input":
            self._thread("punctuations", self._send_punctuations)
        self._started = True

    def _stop(self, engine: PullEngine) -> None:
        for feed in self.feeds.values():
            feed.retire()
        self._trigger.release(lasting=True)
        engine.close()

    def _give(self, port: str, payload: Any) -> None:
        if isinstance(payload, Punctuation):
            self.feeds[port].punctuate(payload.time)
        elif isinstance(payload, EndOfStream):
            self._end(port)
        else:
            self.feeds[port].push(payload)

    def _end(self, port: str) -> None:
        if (follower := self.follower) is not None:
            follower.give_up(f"the input {port!r} of its predecessor has ended")
        if port not in self._ended:  # otherwise it had ended before a crash, and the order is known
            self._ended.append(port)
            if self.tie.directory is not None:
                from exop.runtime.log.segment import DISK, replace_file  # only durable applications need it

                replace_file(DISK, self.tie.directory / _ENDED, json.dumps(self._ended).encode())
        last = self._ended.index(port) == len(self.feeds) - 1
        # An input that ends before the others keeps no window open; the last one closes windows if the setting says so.
        self.feeds[port].end(close_windows=self.close_windows_at_end or not last)
        if self._started and all(feed.ended for feed in self.feeds.values()):
            self._thread("drain", self._drain)

    def _settle(self) -> None:
        """Wait until the results of all rows in the feeds are sent, and the punctuations that follow from them."""
        assert self.engine is not None
        # Some engines have finished only after a poll without rows. A cancelled change does not stop the last drain.
        released = self._trigger.release(lasting=all(feed.ended for feed in self.feeds.values()))
        try:
            self._trigger.wait_until(lambda: all(not feed.lag or feed.retired for feed in self.feeds.values()))
            with self._reported():
                self.engine.settle()
        finally:
            self._trigger.hold(released)
        self._check()
        if self.punctuation.by == "input":
            self._send_punctuation()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _drain(self) -> None:
        """All inputs have ended: send the remaining results, then the end."""
        try:
            self._settle()
            with self._sending:
                for feed in self.feeds.values():
                    feed.put_out(over=True)
                self._put([(self.out, EndOfStream())], replace(self._progress, end=self._reached(), over=True))
        except Exception as error:  # noqa: BLE001 - such as a full disk: nothing else would tell that the end is missing
            if not isinstance(error, EngineError):  # `_watch` reports those
                self._fail(error)

    def _watch(self, engine: PullEngine) -> None:
        """Wait for the end of a query in a thread; an end that was not requested is a failure of this slet."""
        feeds = [*self.feeds.values()]  # a successor that has not caught up is given others, and another engine

        def watch() -> None:
            try:
                with self._reported():
                    engine.wait()
                    if not (self._progress.over or any(feed.retired for feed in feeds)):
                        cure = "change a setting of the slet (`exop configure`), or open the application again"
                        raise EngineError(f"{self._name}: the query was stopped, and not by the platform; {cure}")
            except EngineError as error:
                if engine is self.engine and self._failure is None:
                    self._failure = error
                    if not (self._closing or self._halted or self.following):
                        self._fail(error)
            for feed in feeds:
                feed.retire(self._failure)  # later pushes raise the same error, and keep the item

        self._thread("watch", watch)
        SAMPLER.add(partial(self._check_limit, engine))

    def _check_limit(self, engine: PullEngine) -> bool:
        """Let the query fail, and stop it, if a batch exceeds its limit; return whether it is observed further."""
        runs = engine is self.engine and self._failure is None and not self._closing
        if runs and 0 < self.time_limit <= SAMPLER.clock() - self._trigger.began:
            batch = f"batch {self._progress.batch + 1}, in which a function may hang, was "
            self._failure = self._error(QueryInterrupted(limit=self.time_limit, batch=batch))
            self._thread("interrupt", partial(self._interrupt, engine, self._failure))
        return runs

    def _interrupt(self, engine: PullEngine, error: EngineError) -> None:
        self._fail(error)  # first: the engine may not react
        for feed in self.feeds.values():
            feed.retire(error)
        engine.interrupt()

    def _fail(self, error: Exception) -> None:
        self.tie.failure = error
        self.out.fail(error)

    def _send_punctuations(self) -> None:
        """Send the punctuations for which no batch follows, until the query is closed or halted."""
        feeds = self.feeds.values()
        try:
            while True:
                self._trigger.wait_until(lambda: any(feed.undelivered or feed.retired for feed in feeds))
                if any(feed.retired for feed in feeds):
                    return
                self._send_punctuation()
        except Exception as error:  # noqa: BLE001 - an error of a slet downstream is shown as one of this slet
            self._fail(error)

    def _emit(self, batch: int, results: Iterable[Any], watermark: float | None = None) -> bool:
        """Send the results of a batch, unless they were sent before, and the punctuation that follows from it."""
        if self.following is not None:
            self.following.put_out(batch, watermark)
            return False
        if batch <= self._progress.batch:
            return True
        leaving: list[Leaving] = [(self.out, one) for one in results]
        self._trigger.began = inf  # what is sent already may wait for room
        with self._sending:
            self._check()
            for feed in self.feeds.values():
                feed.put_out()
            due, complete = self._due_punctuation(watermark)
            sent = self._put(leaving + due, self._progress.after(batch, self._reached(), complete), batch)
            if sent and (follower := self.follower) is not None:
                follower.note(batch, watermark)
            if sent or self.tie.committed.batch < batch:
                return sent
        self._halted = True  # perhaps amid the results: the files that some of them name remain
        raise EngineError("the platform has halted this driver")

    def _send_punctuation(self) -> None:
        """Send the punctuation that is due between two batches."""
        with self._sending:
            due, complete = self._due_punctuation(None)
            progress = replace(self._progress, end=self._reached(), complete=complete, over=False)
            if progress != self._progress:
                self._put(due, progress)

    def _due_punctuation(self, watermark: float | None) -> tuple[list[Leaving], float | None]:
        """Return the punctuation that is due, if there is one, and the time of the last punctuation after it."""
        moment = completed([*self.feeds.values()]) if self.punctuation.by == "input" else watermark
        # No punctuation has a time after every window: the end of the stream follows instead.
        ended = moment is not None and any(moment >= feed.never for feed in self.feeds.values())
        complete = None if moment is None or ended else self.punctuation.complete(moment)
        before = self._progress.complete
        if complete is None or (before is not None and complete <= before):
            return [], before
        return [(self.out, Punctuation(complete))], complete

    def _put(self, leaving: list[Leaving], progress: QueryProgress, batch: int | None = None) -> bool:
        inputs = {port: one.event for port, one in progress.end.items()}
        positions = {port: one.parts for port, one in progress.end.items() if one.parts is not None}
        if sent := self.tie.put_out(batch, leaving, inputs, progress.dump(), positions):
            self._progress = progress
        return sent

    def _reached(self) -> dict[str, InputPosition]:
        return {port: feed.reached() for port, feed in self.feeds.items()}

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is reported
            found = self._error(error)
            raise found from (error.__cause__ if found is error else error)

    def _error(self, error: Exception) -> EngineError:
        """Return the error for an exception of the engine, with the slet, the only port, and the query."""
        port = next(iter(self.feeds)) if len(self.feeds) == 1 else ""
        facts = {"slet": self._name, "port": port, "query": str(self.query)}
        if isinstance(error, QueryError) and not error.facts.get("slet"):
            return type(error)(**{**error.facts, **facts})
        return error if isinstance(error, EngineError) else QueryError(**facts, problem=error_text(error))

    def _thread(self, task: str, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name=f"exop {self._name} {task}", daemon=True).start()
