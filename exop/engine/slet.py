"""`EngineSlet`: runs one query on an `Engine` as a slet; and what slets have whose queries read inputs as tables.

`AggregateSlet`: the base of the slets that compute a keyed aggregate, one for each engine, with the same state.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from exop.engine.engine import Engine, EngineState
from exop.errors import QueryError, QueryInterrupted, SettingError, StoredStateError
from exop.model.items import EndOfStream, Punctuation
from exop.model.slets.ports import PortSpec, PortType
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.model.types.conversion import convert
from exop.runtime.supervision.watchdog import SAMPLER
from exop.safe_repr import error_text

if TYPE_CHECKING:
    from exop.engine.aggregation import Aggregation

#: Seconds from one interrupt of a call to the next.
_AGAIN: Final = 1.0
#: The number of batches after which their mean size is examined, and the smallest one that is not worth a warning.
_SAMPLE: Final = 1000
_SMALL: Final = 10
_log: Final = logging.getLogger("exop.engine")
#: The input port of an aggregate.
_ROWS: Final = "rows"


class EngineSlet(Slet):
    """The base of slets that run one query on an engine that is called.

    A subclass makes the engine, and declares its input ports. Each of them passes everything to `take`, also the
    control items:

        @input_port
        def rows(self, rows: Batch[Row] | Punctuation | EndOfStream) -> Iterator[Batch[Row] | Punctuation]:
            return self.take("rows", rows)

    The platform converts items to the form of the port once, at the channel. A batch is processed as a whole or not at
    all, so the policy for failed items applies to batches. Punctuations leave after the results that they complete.

    Attributes:
        query: The text of the query.
        time_limit: The maximum number of seconds for one call of the engine, which is then interrupted; 0: no limit.
            Time for which the whole process stands still (SIGSTOP, a paused VM) does not count.
        isolation: Where the engine runs: in the threads of the platform, or in a worker process, which is killed if an
            interrupt has no effect within 2 seconds, or if it takes too much memory.
        memory_limit: The maximum number of bytes of the worker process; 0: no limit.
        max_wait: The maximum number of seconds for which rows in a queue wait for a batch of `gathers` rows while the
            engine is idle; 0: it is called at once. They do not wait if the queue is full, or a punctuation follows.
        engine: The open engine.
    """

    query: str
    time_limit: float = 60.0
    isolation: Literal["thread", "process"] = "thread"
    memory_limit: int = 0
    max_wait: float = 0.0
    state: EngineState
    reopens: ClassVar[bool] = True
    #: A call of an engine costs far more than a row: a queue passes all rows that wait, up to this number.
    gathers: ClassVar[int] = 10_000

    @abstractmethod
    def make_engine(self) -> Engine:
        """Return a new engine for the settings of this slet, which is not open yet."""

    def __enter__(self) -> Self:
        self._turn, self._began, self._due, self._interrupted = threading.Lock(), 0.0, inf, False
        self._changed, self._calls, self._busy, self._rows, self._batches = False, 0, 0.0, 0, 0
        self._ports = tuple(getattr(self, "inputs", ())) or tuple(port.name for port in spec_of(type(self)).inputs)
        self.engine = self._opened()
        SAMPLER.add(self._check_limit)
        return self

    def __exit__(self, *exc: object) -> None:
        if (engine := self.__dict__.pop("engine", None)) is not None:
            engine.close()

    def __setattr__(self, name: str, value: Any) -> None:
        """Restore the engine from a memento that the platform assigns while the slet is open."""
        if name == "state" and "engine" in self.__dict__:
            self._restore(self.engine, value)
            self._changed = False
        super().__setattr__(name, value)

    @classmethod
    def deep_check(cls, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Callable[[], None]:
        """Let the engine check the query without data; return the function that closes the engine.

        Raises:
            QueryError: the query is invalid.
        """
        return cls(state=EngineState(), **settings)._opened().close

    @classmethod
    def restores(cls, before: Any, after: Any) -> str | None:
        """Return why the engine of this slet cannot read the snapshots of another slet's engine."""
        if (former := before.slet.factory) is cls:
            return None
        if not (isinstance(former, type) and issubclass(former, EngineSlet)):
            continues = f"{spec_of(cls).name} continues with a snapshot of one that is called"
            return f"its engine commits by itself, and {continues}"
        theirs, own = (kind(state=EngineState(), **node.settings) for kind, node in ((former, before), (cls, after)))
        with closing(theirs.make_engine()) as held, closing(own.make_engine()) as engine:
            return _unreadable(held.name, held.version, engine)

    def take(self, port: str, payload: Any) -> Iterator[Any]:
        """Process a batch or a control item that arrives at *port*; return the results.

        Raises:
            QueryError: the engine raises an exception, which is the cause of this error.
            QueryInterrupted: the call took longer than `time_limit`.
        """
        if isinstance(payload, (Punctuation, EndOfStream)):
            return iter(self._reached(port, payload))
        results = self._called(port, lambda: self.engine.push(port, payload))
        self._rows += len(payload) if isinstance(payload, list) else payload.num_rows
        self._batches += 1
        if self._batches == _SAMPLE and self._rows < _SMALL * _SAMPLE:
            _log.warning(
                "the engine was called %d times for %d rows, which is slow: connect the input by a queue, which gathers"
                " rows (`out=app.channel(NAME, 'queue')`), and let `stock:watermark` emit fewer punctuations (`step`)",
                self._batches,
                self._rows,
            )
        return iter(results)

    def omit_rows(self, error: BaseException, rows: Sequence[tuple[str, Any]] | None) -> bool:
        """Skip or set aside the rows of a window that fails, with their ports; `None` asks whether the policy does so.

        The platform replaces this method.
        """
        return False

    def flush(self) -> None:
        """Take a snapshot of the engine into the memento. Called while nothing arrives, before the memento is read."""
        if self._changed:
            state, engine = self.state, self.engine
            state.snapshot = b"".join(self._called("", lambda: [engine.snapshot()]))
            state.engine, state.version = engine.name, engine.version
            self._changed = False

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of calls of the engine, their duration, the number of rows, and the engine's metrics."""
        own = {"engine_calls": self._calls, "engine_ms": round(self._busy * 1000, 1), "engine_rows": self._rows}
        return {**own, **self.engine.metrics()}

    def _reached(self, port: str, mark: Punctuation | EndOfStream) -> list[Any]:
        """Advance the engine to the earliest time of all inputs, if that has become later."""
        times, before = self.state.times, self._complete()
        known = times.get(port, -inf)
        times[port] = max(known, mark.time) if isinstance(mark, Punctuation) else inf
        if (now := self._complete()) <= before:
            return []
        try:
            results = self._advanced(port, now)
        except BaseException:
            times[port] = known  # the control item will arrive again
            raise
        return results if now == inf else [*results, Punctuation(now, getattr(mark, "idle", None))]

    def _advanced(self, port: str, now: float) -> list[Any]:
        """Advance the engine; if that fails, and the policy omits what fails, window by window, without those."""
        try:
            return self._called(port, lambda: self.engine.advance(now))
        except QueryError as error:
            if not self.omit_rows(error, None):
                raise
        before, ends = self._called("", lambda: [self.engine.snapshot(), self.engine.windows(now)])
        results, failed = list[Any](), list[tuple[QueryError, Sequence[tuple[str, Any]]]]()
        try:
            for end in ends:
                try:
                    results += self._called("", partial(self.engine.advance, end))
                except QueryError as error:
                    if (rows := self.engine.take_out(end)) is None:
                        raise
                    problem = f"the window up to {end} fails: {error.facts.get('problem', error_text(error))}"
                    failed.append((self._error(port, QueryError(problem=problem)), rows))
        except BaseException:
            self.engine.restore(before, self.engine.version)
            raise
        for omitted in failed:
            self.omit_rows(*omitted)
        return results

    def _complete(self) -> float:
        return min((self.state.times.get(port, -inf) for port in self._ports), default=-inf)

    def _opened(self) -> Engine:
        """Return a new engine with the query and the state."""
        with ExitStack() as undo:
            engine = undo.enter_context(closing(self._made()))
            try:
                engine.compile(self.query)
            except Exception as error:
                raise self._error("", error) from error
            self._restore(engine, self.state)
            undo.pop_all()
        return engine

    def _made(self) -> Engine:
        for setting in ("time_limit", "memory_limit"):
            if not (limit := getattr(self, setting)) >= 0:
                problem = f"it is {limit}, and must be 0 (no limit) or more"
                raise SettingError(place=spec_of(type(self)).name, setting=setting, problem=problem)
        if self.isolation == "thread":
            if self.memory_limit:
                problem = "an engine in the platform's process has no limit; set isolation='process'"
                raise SettingError(place=spec_of(type(self)).name, setting="memory_limit", problem=problem)
            return self.make_engine()
        from exop.engine.isolated import IsolatedEngine  # most engines need no process

        settings = {name: getattr(self, name) for name in spec_of(type(self)).settings}
        return IsolatedEngine(type(self), settings, self.memory_limit)

    def _restore(self, engine: Engine, state: EngineState) -> None:
        """Let *engine* continue with the snapshot in a memento, if there is one."""
        if not state.engine:
            return
        if problem := _unreadable(state.engine, state.version, engine):
            cure = "use the engine that wrote it, or start without state (`exop replace APP.NODE SLET --lose-state`)"
            raise StoredStateError(what=f"the state of {spec_of(type(self)).name}", problem=problem, cure=cure)
        try:
            engine.restore(state.snapshot, state.version)
        except Exception as error:
            raise self._error("", error) from error

    def _called(self, port: str, call: Callable[[], Iterable[Any]]) -> list[Any]:
        """Return all results of a call of the engine, which `_check_limit` interrupts if it takes too long."""
        began, counted = time.monotonic(), SAMPLER.clock()
        with self._turn:
            self._began, self._due = began, counted + (self.time_limit or inf)
        try:
            results = list(call())
            self._changed = True
            return results
        except Exception as error:
            raised = self._error(port, error)
            if port:
                with suppress(QueryError):  # the platform stores the memento with the failed item
                    self.flush()
            raise raised from error
        finally:
            with self._turn:
                self._began, self._interrupted = 0.0, False
            self._calls += 1
            self._busy += time.monotonic() - began

    def _error(self, port: str, error: Exception) -> QueryError:
        """Return the error for an exception of the engine, with the slet, the port, the query and the position."""
        facts = {"slet": spec_of(type(self)).name, "port": port, "query": self.query}
        if getattr(self, "_interrupted", False):
            return QueryInterrupted(**facts, limit=self.time_limit)
        if isinstance(error, QueryError):
            return type(error)(**{**error.facts, **facts})
        return QueryError(**facts, problem=error_text(error))

    def _check_limit(self) -> bool:
        """Interrupt a call that exceeds its limit, in another thread; return whether the slet is open."""
        if "engine" not in self.__dict__:
            return False
        if self._began and SAMPLER.clock() >= self._due:
            self._due += _AGAIN  # an engine that was between two statements may have missed it
            threading.Thread(target=self._interrupt, args=(self._began,), name="exop interrupt", daemon=True).start()
        return True

    def _interrupt(self, began: float) -> None:
        with self._turn:
            if self._began == began:
                self._interrupted = True
                self.engine.interrupt()


def _unreadable(name: str, version: int, engine: Engine) -> str | None:
    """Return why an engine cannot continue with a snapshot of this format."""
    if name == engine.name and version <= engine.version:
        return None
    known = f"{engine.name}, up to version {engine.version}"
    return f"it is a snapshot of {name}, version {version}; this engine reads those of {known}"


def texts_by_input(setting: str, texts: str | Mapping[str, str], single: str) -> dict[str, str]:
    """Return the text for each input; a text alone has the key *single*.

    On a command line, a mapping is written as an inline table of TOML.

    Raises:
        SettingError: the inline table is invalid.
    """
    if isinstance(texts, str) and texts.lstrip().startswith("{"):
        try:
            texts = convert(texts, dict[str, str])
        except ValueError as problem:
            raise SettingError(place="", setting=setting, problem=str(problem)) from None
    return {single: texts} if isinstance(texts, str) else dict(texts)


def accepted(wanted: PortType, given: PortType | None) -> PortType:
    """Return the type of an input for columns of the type *given*: columns may differ in whether they are nullable."""
    if given is None or given.schema is None:
        return wanted
    same = given.schema.names == wanted.schema.names and given.schema.types == wanted.schema.types
    return replace(wanted, item=given.item, schema=given.schema) if same else wanted


def aggregation_of(settings: Mapping[str, Any], *, items: bool = False) -> Aggregation:
    """Return the declaration that the settings of an aggregate make, of columns or of *items*."""
    # Imported lazily: pyarrow is loaded with the first node that needs it.
    from exop.engine.aggregation import Aggregation

    return Aggregation.of(settings, items=items)


def aggregate_ports(spec: SletSpec, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
    """Return the specification of an aggregate with the columns of its ports."""
    made = aggregation_of(settings)
    wanted = accepted(PortType(Any, "columns", made.columns, True, True), inputs.get(_ROWS))
    out = PortSpec("out", "out", PortType(Any, "columns", made.out, True))
    return replace(spec, inputs=(replace(spec.inputs[0], type=wanted),), outputs=(out,))


def aggregate_restores(before: Any, after: Any) -> str | None:
    """Return why an aggregate cannot continue with the state of a node; called when a change is planned."""
    if not {"columns", "values", "keys", "window"} <= before.settings.keys():
        return f"{before.slet.name} is no aggregate"
    known = (aggregation_of(one.settings, items=True) for one in (after, before))
    return next(known).lacks(next(known).layout())


class AggregateSlet(EngineSlet):
    """The base of the aggregates: their settings, ports and hand-over.

    A subclass makes the engine for `aggregation_of(vars(self))`, whose snapshots have the form of `Aggregation.write`.
    For the settings see `stock:aggregate`.
    """

    query: str = field(default="aggregate", init=False)
    columns: str
    values: dict[str, str]
    keys: list[str] = field(default_factory=list)
    time: str = ""
    window: float = 0.0
    slide: float = 0.0
    restores = staticmethod(aggregate_restores)

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return the ports with their columns."""
        return aggregate_ports(spec_of(cls), settings, inputs)

    @input_port
    def rows(self, rows: Any | Punctuation | EndOfStream) -> Iterable[Any | Punctuation]:
        """Take a batch or a control item."""
        return self.take(_ROWS, rows)
