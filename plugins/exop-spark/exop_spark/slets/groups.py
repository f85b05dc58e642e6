"""A keyed aggregate as a query on Spark; its state is read from Spark's checkpoint, and put in by a first batch.

The first batch has one row for each group of the state. Such a row has, in one column more, the accumulators of the
group, which the query adds, compares and counts instead of the values of a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
import pyarrow as pa

from exop import EndOfStream, Punctuation
from exop.engine import EngineState
from exop.engine.aggregation import FIRST, FORM, ROWS, VERSION, WINDOW, Accumulator, Aggregation
from exop.engine.feed import ROW, Feed
from exop.engine.pull import InputPosition, PullEngine, Punctuate, QueryProgress
from exop.engine.pull_slet import PullSlet
from exop.errors import EngineError, SettingError, StoredStateError

from ..execution.frames import quoted
from ..execution.run import Run
from ..execution.window_time import OFFSET, WindowTime, moment
from ..plan import Input
from ..session.engine import lease
from ..storage.carried import check_committed
from .factory import query
from .slet import SparkSlet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PORT: Final = "rows"
#: The column of a feed that is empty for ordinary rows; JSON with the accumulators of a group, or with the number of
#: the window up to which a row is late.
_NOTE: Final = "_note"
#: The columns that the query adds to those of its input.
_ADDED: Final = frozenset({ROW, _NOTE, "_p", "_step", "_n", "_ended"})
#: The `engine` of a memento as long as Spark's own checkpoint has the state.
_OWN: Final = "spark"


class GroupsFeed(Feed):
    """The feed of an aggregate, which begins with the groups of a predecessor.

    Attributes:
        late: The number of rows that were late, once for each window.
    """

    def __init__(self, port: str, columns: pa.Schema, *args: Any, of: Aggregation, **settings: Any) -> None:
        super().__init__(port, columns.append(pa.field(_NOTE, pa.string())), *args, **settings)
        self._of = of
        self._groups = self.late = 0

    @property
    def at_groups(self) -> bool:
        """Whether the batch that was planned last contains the groups."""
        return self._planned <= self._groups

    @property
    def late_sent(self) -> int:
        """How many of `late` are before the offset whose results are sent; the others are given to a successor."""
        with self._lock:
            rows = self._log.events(min(self._done, self.offset), self.offset)
            notes = [note for one in rows for note in one.column(_NOTE).drop_null().to_pylist()]
            unsent: int = sum(json.loads(note).get("late", 0) for note in notes)
            return self.late - unsent

    def begin_with(self, groups: pa.Table, late: int, begin: InputPosition) -> None:
        """Append the groups that are behind *begin*, at which the stream goes on."""
        self._groups, self.late = groups.num_rows, late
        self._complete, self._reached = begin.complete, begin
        rows = groups.slice(begin.offset)
        if not rows.num_rows:
            return
        accumulators = rows.select([one.name for one in self._of.accumulators]).to_pylist()
        numbers = rows.column(WINDOW).to_pylist()
        notes = [
            json.dumps({"number": number} | {f"a{n}": value for n, value in enumerate(one.values())})
            for number, one in zip(numbers, accumulators, strict=True)
        ]
        given = {name: rows.column(name).combine_chunks() for name in self._of.keys} | {_NOTE: pa.array(notes)}
        columns = [given.get(one.name, pa.nulls(rows.num_rows, one.type)) for one in self._columns]
        with self._lock:
            self._note("rows", 0, rows.num_rows)
            offsets = pa.array(np.arange(self.offset, self.offset + rows.num_rows, dtype=np.int64))
            self._log.append(pa.record_batch([*columns, offsets], schema=self.schema))

    def latest(self, start: int, limit: int | None, timeout: float) -> int:
        """Return the end of the next batch; the groups are a batch of their own."""
        with self._lock:
            if start < self._groups:
                self._planned = max(self._planned, self._groups)
                return self._groups
        return super().latest(start, limit, timeout)

    def admit(self, batch: pa.RecordBatch, give_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until there is room for *batch*; refuse rows without a time."""
        if self._of.window and self._of.time in batch.schema.names:
            self._of.check_times(batch, OFFSET)
        super().admit(self._noted(batch.slice(0, 0)), give_up)

    def push(self, batch: pa.RecordBatch) -> None:
        """Append a batch, in which the rows that are late are marked."""
        super().push(self._noted(batch))

    def _noted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        of, notes = self._of, pa.nulls(batch.num_rows, pa.string())
        complete = of.complete(self._complete) if self._complete is not None else FIRST
        if of.window and complete > FIRST and batch.num_rows:
            times = np.asarray(batch.column(of.time))
            before = times.astype(np.int64) // of.slide if of.exact else np.floor(times.astype(np.float64) / of.slide)
            late = before + 1 <= complete
            if late.any():
                counts = np.clip(complete - before, 0, of.windows).astype(np.int64)
                self.late += int(counts.sum())
                made = {n: json.dumps({"after": complete, "late": n}) for n in np.unique(counts[late]).tolist()}
                notes = pa.array([made.get(n) for n in counts.tolist()], pa.string())
        schema = batch.schema.append(pa.field(_NOTE, pa.string()))
        return pa.RecordBatch.from_arrays([*batch.columns, notes], schema=schema)


class SparkGroups(SparkSlet):
    """The base of the aggregates on Spark; `grouping` makes them.

    An open slet whose query has nothing to do yet is prepared: its query is checked, the memento may still be replaced,
    and the first item starts the query. `engine` is `None` until then.

    The memento has the state that the query begins with until Spark has committed it, and again after `quiesce`. In
    between, its `engine` is `spark`: Spark's checkpoint has the state.
    """

    state: EngineState
    aggregation: ClassVar[Aggregation]

    def native_engine(self, port: str) -> str | None:
        """The platform marks the late rows, so it has to see them."""
        return None

    def takes_references(self, port: str) -> bool:
        """Nor can they stay in files."""
        return False

    def __enter__(self) -> Self:
        self._share = lease(self.master)
        self._prepared: PullEngine | None = None
        try:
            super().__enter__()
            if self.tie.inherits is not None:  # it comes from another host, and its memento after it
                self._prepared = self.compiled()
        except BaseException:
            self._share.release()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        if self._prepared is not None:
            self._prepared.close()
        self._share.release()

    def take(self, port: str, payload: pa.RecordBatch | Punctuation | EndOfStream) -> None:
        """Append what arrives to the feed; the first time, start the query."""
        if self.engine is None:
            self._start(QueryProgress())
        super().take(port, payload)
        if self.state.engine == _OWN:
            self.state.snapshot = b""

    def quiesce(self) -> None:
        """Return when all results are sent, and the memento has the state."""
        super().quiesce()
        self._capture()

    def flush(self) -> None:
        """Read the state of a query that has failed, whose checkpoint is kept: its successor begins with it.

        In a durable application, the checkpoint of the application refers to that of Spark.
        """
        if self._failure is not None and self.state.engine == _OWN and self.tie.directory is None:
            with ExitStack() as undo:
                share = lease(self.master)  # the Java process may have ended, too
                undo.callback(share.release)
                session = share.engine.session()
                undo.callback(share.engine.release, session)
                self._capture(session)

    def proceed(self) -> None:
        """Continue: from now on, Spark has the state again."""
        super().proceed()
        if self.engine is not None and self._progress.batch >= 0:
            self.state.engine = _OWN

    def pack(self) -> bytes:
        """Return nothing: since `quiesce`, the memento has the state."""
        return b""

    def inherit(self, predecessor: PullSlet | bytes) -> None:
        """Begin with the memento, at the first item."""

    def holds_own_state(self) -> bool:
        """Return whether there is a state outside of the memento: `quiesce` puts it there."""
        return False

    def metrics(self) -> dict[str, int | float | str]:
        """Return the metrics of the query, and the number of late rows, which were dropped."""
        late = {"late_rows": self._groups_feed.late} if getattr(self, "engine", None) is not None else {}
        return super().metrics() | late

    def __setattr__(self, name: str, value: Any) -> None:
        """Accept a memento that the platform assigns while the slet is open, before the first item."""
        if name == "state" and "engine" in self.__dict__ and value is not self.state:
            if self.engine is not None:
                cure = "replace the slet by itself with this memento"
                raise EngineError(f"{self._name}: the query that runs keeps its own state; {cure}")
            self._check_state(value, QueryProgress())
        super().__setattr__(name, value)

    def fields_of_trial(self) -> dict[str, Any]:
        """A warm-up has a memento of its own."""
        return {"state": EngineState()}

    def compiled(self, progress: QueryProgress | None = None) -> PullEngine:
        """Return an engine that has checked the query; the one that was prepared, with the state of the memento."""
        prepared: PullEngine | None = self.__dict__.get("_prepared")
        if prepared is None:
            return super().compiled(progress)
        self._prepared = None
        self._progress = progress or QueryProgress()
        self._continue()
        return prepared

    def _begin(self, progress: QueryProgress, predecessor: Any = None) -> None:
        """Start the query when the slet opens; prepare one that has nothing to do yet."""
        if progress.batch < 0 and not self.state.engine and not self.tie.arrived(_PORT):
            self._prepared = self.compiled()
        else:
            self._start(progress)

    def _start(self, progress: QueryProgress) -> None:
        self._check_state(self.state, progress)
        known = self.state.times.get(_PORT, -inf)
        if progress.batch < 0 and isfinite(known):
            there = {_PORT: InputPosition(complete=known)}
            progress = replace(progress, begin=there, end=there)
        try:
            super()._begin(progress)
        except BaseException:
            if self.engine is not None:  # otherwise the item, when it is tried again, would be taken by a dead query
                self._stop(self.engine)
                self.engine = None
            raise

    def _check_state(self, state: EngineState, progress: QueryProgress) -> None:
        if state.engine == FORM and state.version <= VERSION:
            self.aggregation.read(state.snapshot)
        elif state.engine and (state.engine != _OWN or progress.batch < 0):
            held = f"it is a snapshot of {state.engine}, version {state.version}"
            cure = "open the application again" if state.engine == _OWN else "use the engine that wrote it"
            cure += ", or start without state (`exop replace APP.NODE SLET --lose-state`)"
            problem = f"{held}; this query begins with those of {FORM}, up to version {VERSION}"
            raise StoredStateError(what=f"the state of {self._name}", problem=problem, cure=cure)

    def _feed(self, port: str, columns: pa.Schema) -> Feed:
        """Return a feed that begins with the groups of the memento, as far as Spark may still ask for them."""
        feed = GroupsFeed(
            port,
            columns,
            self._trigger,
            of=self.aggregation,
            event_time=self.times.get(port),
            capacity=self.capacity,
            by_input=self.punctuation.by == "input",
            begin=self._progress.begins(port),
            on_commit=lambda: self.tie.forget(port, self._progress.begins(port).event),
        )
        self.feeds = {port: feed}
        self._continue()
        return feed

    def _continue(self) -> None:
        """Let the feed begin with the state of the memento, as far as Spark may still ask for it."""
        if self.state.engine == FORM:
            groups, _, late = self.aggregation.read(self.state.snapshot)
            self._groups_feed.begin_with(groups, late, self._progress.begins(_PORT))

    def _emit(self, batch: int, results: Iterable[Any], watermark: float | None = None) -> bool:
        """Send the results of a batch, in the order of windows and keys; those of the groups were sent before."""
        begins, before = self._groups_feed.at_groups, self._progress.batch
        tables = [] if begins else map(pa.table, results)
        sent = super()._emit(batch, [one for table in tables for one in self.aggregation.results(table)], watermark)
        if not begins and self._progress.batch > before:  # the groups are committed, and no longer the state
            self.state.engine = _OWN
        return sent

    @property
    def _groups_feed(self) -> GroupsFeed:
        feed = self.feeds[_PORT]
        assert isinstance(feed, GroupsFeed)
        return feed

    def _capture(self, session: SparkSession | None = None) -> None:
        """Read the state into the memento: that of Spark's checkpoint, behind the batch that was sent last.

        *session* takes the place of that of the query, which has failed.
        """
        run, of, state = self.engine, self.aggregation, self.state
        if run is None or self._closing:
            return
        feed, batch = self._groups_feed, self._progress.batch
        known = inf if self._progress.over else feed.reached().complete
        if batch >= 0:
            assert isinstance(run, Run)
            groups = read_groups(run, batch, of, session)
        else:
            groups = of.read(state.snapshot)[0] if state.engine == FORM else of.state.empty_table()
        time = -inf if known is None else known
        if (
            session is None and self.tie.held
        ):  # it has taken too long: the successor has begun with the memento as it is
            return
        state.engine, state.version, state.times = FORM, VERSION, {_PORT: time}
        state.snapshot = of.write(groups, of.complete(time), feed.late_sent)


def grouping(of: Aggregation) -> type[SparkGroups]:
    """Return the class of the slets that compute an aggregate on Spark."""
    if taken := [name for name in of.columns.names if name.lower() in _ADDED]:
        problem = f"the query on Spark has a column {taken[0]!r} of its own; rename this one"
        raise SettingError(place="", setting="columns", problem=problem)
    time, settings = None, dict[str, Any](mode="update")
    punctuate = Punctuate("input")
    if of.window:
        time = WindowTime(of.time, slide=of.slide, exact=of.exact)
        punctuate, settings = Punctuate("watermark", time.complete), {"boundary": float(of.slide)}
    inputs = {_PORT: Input(of.columns, time)}
    made = query(FORM, _query(of, time), inputs=inputs, out=of.state, punctuate=punctuate, base=SparkGroups, **settings)
    assert issubclass(made, SparkGroups)
    made.aggregation, made.keeps_own_state = of, False
    return made


def _query(of: Aggregation, time: WindowTime | None) -> Callable[..., Any]:
    """Return the function that builds the query: groups whose aggregates are the accumulators."""

    def aggregate(rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import col, expr

        noted = ["after BIGINT", "number BIGINT", *(f"a{n} {_sql(one.type)}" for n, one in enumerate(of.accumulators))]
        frame = rows.withColumn("_p", expr(f"from_json({_NOTE}, '{', '.join(noted)}')"))
        keys = [col(quoted(name)) for name in of.keys]
        number = "0L"
        if time is not None:
            steps = f"CASE WHEN _p.number IS NULL THEN sequence(1, {of.windows}) ELSE array(1) END"
            frame = frame.withColumn("_step", expr(f"explode({steps})" if of.windows > 1 else "1"))
            frame = frame.withColumn("_n", expr(f"coalesce(_p.number, {time.number(quoted(of.time))} + _step)"))
            # Spark closes groups by a column that is marked as the event time; the rows do not move its watermark.
            ended = expr(moment("_n")).alias("_ended", metadata={"spark.watermarkDelayMs": 0})
            frame = frame.where("_p.after IS NULL OR _n > _p.after").select(ended, "*")
            keys, number = [col("_ended"), *keys], f"unix_millis(_ended) - {OFFSET}L"
        sums = [expr(_accumulated(one, n)).alias(one.name) for n, one in enumerate(of.accumulators)]
        grouped = frame.groupBy(*keys).agg(*sums)
        return grouped.select(expr(number).alias(WINDOW), *(col(quoted(name)) for name in of.state.names[1:]))

    return aggregate


def _accumulated(one: Accumulator, n: int) -> str:
    """Return the expression that adds, or compares, the values of rows, and the accumulators of groups."""
    value = quoted(one.column)
    if one.kind == "n":
        value = "1L" if one.name == ROWS else f"IF({value} IS NULL, 0L, 1L)"
    return f"{one.merge}(IF({_NOTE} IS NULL OR _p.number IS NULL, CAST({value} AS {_sql(one.type)}), _p.a{n}))"


def read_groups(run: Run, batch: int, of: Aggregation, session: SparkSession | None = None) -> pa.Table:
    """Return the groups in the state of a query after a batch.

    Raises:
        SparkError: Spark has not committed that batch.
    """
    assert run.directory is not None
    check_committed(run.directory, batch)
    session = session or run.session()
    keys = [*(["_ended"] if of.window else []), *of.keys]
    values = ", ".join(f"a{n}: {_sql(one.type)}" for n, one in enumerate(of.accumulators))
    frame = session.read.format("statestore").option("batchId", batch).load(run.directory.as_uri())
    number = f"unix_millis(key._ended) - {OFFSET}L" if of.window else "0L"
    frame = frame.selectExpr("key", f"CAST(value AS STRUCT<{values}>) AS value", f"{number} AS _n")
    chosen = ["_n", *(f"key.{quoted(name)}" for name in keys[-len(of.keys) :] if of.keys)]
    chosen += [f"value.a{n}" for n in range(len(of.accumulators))]
    table = frame.selectExpr(*chosen).toArrow()
    return table.rename_columns(of.state.names).cast(of.state)


def _sql(kind: pa.DataType) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    return str(from_arrow_type(kind).simpleString())
