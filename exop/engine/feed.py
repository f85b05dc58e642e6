"""The feed: the log that a query reads one input port from, by row offset.

The platform pushes record batches and punctuations at one end; Spark's Python source asks at the other end what there
is, reads ranges, and says which it has done with. Nothing here knows Spark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from exop.engine.event_time import EventTime
from exop.engine.pace import Gate
from exop.engine.place import BEGINNING, Place
from exop.errors import EngineError, FeedClosed
from exop.runtime.log.memory import MemoryLog

#: The column that numbers the rows; -1 marks a row that only moves the watermark.
ROW: Final = "_row"
#: How often a pusher that waits for room looks whether it has to give up.
_GLANCE: Final = 0.05


class _Event(NamedTuple):
    """A range of offsets of the feed: the number of its first event, and of the first one after it."""

    kind: Literal["rows", "time", "end"]
    first: int
    after: int
    offset: int
    end: int
    complete: float | None


class Feed:
    """One input port's log: appended at the end, read by offset, trimmed as far as Spark has committed.

    Attributes:
        schema: What Spark reads: the port's columns, all nullable, and the row number.
        rows: How many rows were pushed.
    """

    def __init__(
        self,
        port: str,
        columns: pa.Schema,
        gate: Gate,
        *,
        event_time: EventTime | None = None,
        capacity: int = 500_000,
        begin: Place = BEGINNING,
        tells: bool = True,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        self.port = port
        self.event_time = event_time
        self.capacity = capacity
        self.pace = gate.pace
        self.rows = 0
        # Spark compares field by field, nullability included, and markers are empty: everything is nullable here.
        self._columns = pa.schema([field.with_nullable(True).remove_metadata() for field in columns])
        self.schema = self._columns.append(pa.field(ROW, pa.int64()))
        self._gate = gate
        self._lock = gate.lock
        self._log = MemoryLog(begin.offset)
        self._marks: deque[tuple[int, float]] = deque()
        self._markers: deque[int] = deque()
        self._markers_out = 0
        self._events: deque[_Event] = deque()
        self._event = begin.event
        self._planned = self._done = self._committed = self._urgent_until = self.begin = begin.offset
        self._complete = begin.complete
        self._reached = begin
        self._tells = tells
        self._told_committed = committed
        self._over = False
        self._told: float | None = None
        self._ended = False
        self._retired: EngineError | None = None
        gate.feeds.append(self)

    # The platform's end.

    def admit(self, batch: pa.RecordBatch, give_up: Callable[[], bool] = lambda: False) -> None:
        """Return when *batch* may be pushed: wait while `capacity` rows are with Spark, unless *give_up()* says no.

        Raises:
            FeedClosed: the query has stopped, or stops while the caller is waiting.
            EngineError: the batch is not of the port's columns, or what ended the query.
        """
        if batch.schema.names != self._columns.names or batch.schema.types != self._columns.types:
            wanted, found = _described(self._columns), _described(batch.schema)
            raise EngineError(f"port {self.port!r} takes {wanted}; what came has {found}")
        with self._lock:
            while self._end - self._committed >= self.capacity and not self._retired and not give_up():
                self._lock.wait(_GLANCE)
            self.check_open()

    def check_open(self) -> None:
        """Raise what has ended the query, if something has."""
        if self._retired:
            raise self._retired

    def push(self, batch: pa.RecordBatch) -> None:
        """Append *batch*; `admit` says whether, and when."""
        if not batch.num_rows:
            return
        with self._lock:
            self._happens("rows", batch.num_rows, batch.num_rows)
            numbers = np.arange(self._end, self._end + batch.num_rows, dtype=np.int64)
            self._append([*batch.columns, pa.array(numbers)])
            self.rows += batch.num_rows

    def punctuate(self, complete: float) -> None:
        """Note at the present offset that the stream is complete up to and including *complete*.

        With an event time a marker row goes in as well, so that Spark's watermark moves even if no row follows.
        """
        with self._lock:
            if self._complete is not None and complete <= self._complete:
                self._happens("time", 1, 0)
                return
            before = None if self._complete is None else self._following(self._complete)
            crossing = self.pace.crosses(before, self._following(complete))
            self._complete = complete
            marked = self.event_time is not None and (crossing or self.pace.boundary is None)
            self._happens("time", 1, int(marked))
            if marked:
                self._mark(self._following(complete))
            self._marks.append((self._end, complete))
            if crossing:
                self._urgent_until = self._end
            self._lock.notify_all()

    def probe(self) -> None:
        """Append a row that says nothing new, so that something is computed."""
        with self._lock:
            if self.event_time is not None and self._complete is not None:
                self._happens("time", 0, 1)
                self._mark(self._following(self._complete))
                self._urgent_until = self._end

    def end(self, *, close_windows: bool = True) -> None:
        """Say that nothing follows. With *close_windows* the watermark moves past every window."""
        with self._lock:
            moment = self.never if close_windows else self._following(self._complete or 0)
            marked = self.event_time is not None and (close_windows or self._complete is not None)
            self._happens("end", 1, int(marked))
            if marked:
                self._mark(moment)
            self._urgent_until = self._end
            self._ended = True
            self._lock.notify_all()

    def retire(self, error: EngineError | None = None) -> None:
        """Offer Spark nothing more, take nothing more (raising *error*), and wake whoever waits.

        What is being read can still be read.
        """
        with self._lock:
            self._retired = self._retired or error or FeedClosed(port=self.port)
            self._lock.notify_all()

    # Spark's end.

    def latest(self, start: int, limit: int | None, timeout: float) -> int:
        """Return how far the next micro-batch reads, after a wait for something worth a batch."""
        with self._lock:
            self._planned = max(self._planned, start)
            self._gate.wait(self, timeout)
            end = self._end if limit is None else min(self._end, start + limit)
            if self._retired or end <= start:
                return start
            # Windows close in the micro-batch after the one that moved the watermark: let it follow at once.
            if self.event_time is not None and (self.pace.boundary is None or start < self._urgent_until <= end):
                self._gate.nudge()
            self._planned = end
            return end

    def read(self, start: int, end: int) -> pa.Buffer:
        """Return the rows from *start* up to *end* as one Arrow stream.

        Raises:
            EngineError: the range is not (or no longer) in the log.
        """
        with self._lock:
            if start < self._log.start or end > self._end:
                held = f"rows {self._log.start} to {self._end}"
                raise EngineError(f"the feed of port {self.port!r} holds {held}, not {start} to {end}")
            parts = self._log.read(start, end)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema) as stream:
            stream.write_table(pa.Table.from_batches(parts, schema=self.schema).combine_chunks())
        return sink.getvalue()

    def commit(self, offset: int) -> None:
        """Forget the rows before *offset*: Spark will not ask for them again."""
        with self._lock:
            self._committed = max(self._committed, offset)
            self._log.trim(self._committed)
            self._lock.notify_all()
        self._told_committed()

    # The query's end.

    def put_out(self, *, over: bool = False) -> None:
        """Note that all that was planned has been put out, or with *over* the end of the stream, too."""
        with self._lock:
            self._done, self._over = self._planned, over
            while self._markers and self._markers[0] < self._done:
                self._markers.popleft()
                self._markers_out += 1

    def go_on(self, place: Place) -> None:
        """Begin behind *place*: Spark has it already, and what is before it has been put out."""
        with self._lock:
            self._planned = self._done = place.offset
            self._told = place.complete
            while self._marks and self._marks[0][0] <= self._done:
                self._marks.popleft()

    def reached(self) -> Place:
        """The end of what has been put out, without the punctuations (or the end) that are still to come."""
        with self._lock:
            while self._events and self._events[0].end <= self._done and self._is_over(self._events[0]):
                one = self._events.popleft()
                self._reached = Place(one.after, one.end, one.complete)
            if self._events and self._events[0].offset < self._done < self._events[0].end:
                part = self._events[0]
                event = part.first + self._done - part.offset
                self._reached = Place(event, self._done, self._reached.complete)
            return self._reached

    def complete(self) -> float | None:
        """Through when the stream is complete as far as it has been put out."""
        with self._lock:
            while self.untold:
                self._told = self._marks.popleft()[1]
            return self._told

    @property
    def finished(self) -> bool:
        """The stream has ended, and all of it has been put out."""
        return self._ended and self._done >= self._end

    @property
    def retired(self) -> bool:
        """The feed takes nothing more."""
        return self._retired is not None

    @property
    def untold(self) -> bool:
        """All rows before a punctuation have been put out, and it has not been told."""
        return bool(self._marks) and self._marks[0][0] <= self._done

    @property
    def markers(self) -> int:
        """How many of the rows that have been put out are markers, not data."""
        return self._markers_out

    @property
    def never(self) -> float:
        """A time after every window."""
        if self.event_time is None:
            return float("inf")
        return self.event_time.never(self._columns.field(self.event_time.column).type.bit_width)

    @property
    def pending(self) -> int:
        """Rows that no micro-batch has taken yet."""
        return self._end - self._planned

    @property
    def urgent(self) -> bool:
        """A boundary or the end of the stream is among them."""
        return self._urgent_until > self._planned

    @property
    def offset(self) -> int:
        """The offset that the next row gets."""
        return self._end

    @property
    def lag(self) -> int:
        """Rows that have not been put out yet."""
        return self._end - self._done

    @property
    def _end(self) -> int:
        return self._log.end

    def _append(self, columns: list[pa.Array]) -> None:
        self._log.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self._lock.notify_all()

    def _happens(self, kind: Literal["rows", "time", "end"], events: int, rows: int) -> None:
        """Note what the next rows of the feed are; the stream is complete so far when they have been put out."""
        first, self._event = self._event, self._event + events
        self._events.append(_Event(kind, first, self._event, self._end, self._end + rows, self._complete))

    def _is_over(self, one: _Event) -> bool:
        if one.kind == "time" and self._tells and one.complete is not None:
            return self._told is not None and self._told >= one.complete
        return one.kind != "end" or self._over

    def _mark(self, moment: float) -> None:
        """Append a row that is nothing but a moment in event time; the query never sees it."""
        assert self.event_time is not None
        named = zip(self._columns.names, self._columns.types, strict=True)
        values = [pa.array([moment if name == self.event_time.column else None], kind) for name, kind in named]
        self._markers.append(self._end)
        self._append([*values, pa.array([-1], pa.int64())])

    def _following(self, complete: float) -> float:
        """The earliest time that may still come; where no event time says otherwise, whole numbers follow in ones."""
        if self.event_time is not None:
            return self.event_time.after(complete)
        return complete + 1 if isinstance(complete, int) else complete


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"
