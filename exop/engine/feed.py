"""`Feed`: the log from which a `PullEngine` reads an input, by offset.

The platform appends record batches and punctuations. The engine asks for the end of the next batch, reads, and commits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from math import ceil, inf
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from exop.engine.columns import check_times
from exop.engine.following import Following
from exop.engine.pull import BEGINNING, EventTime, InputPosition
from exop.engine.trigger import BatchTrigger
from exop.errors import EngineError, FeedClosed
from exop.model.items import Reference
from exop.model.values.columns import stream_of
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.log.memory import MemoryLog

#: The column with the number of the row; -1 denotes a marker, a row that only moves the watermark.
ROW: Final = "_row"


class _Event(NamedTuple):
    """A range of offsets of the feed, and the number of the first event after it."""

    kind: Literal["rows", "file", "time", "end"]
    after: int
    offset: int
    end: int
    complete: float | None


class Part(NamedTuple):
    """Rows of a range of a feed: those of *file*, if there is one, else those that `Feed.read` returns."""

    start: int
    end: int
    file: Reference | None


class _File(NamedTuple):
    """The rows of a file in the log of a feed; a batch never ends within them."""

    file: Reference
    num_rows: int

    def slice(self, start: int, rows: int) -> _File:
        return self


class Feed:
    """The log of one input, trimmed up to the offset that the engine has committed.

    Rows by reference have offsets, too, and are read from their files by the engine.

    Attributes:
        schema: The columns of the port, all nullable, and the number of the row.
        never: A time after every window.
        rows: The number of appended rows.
        ended: Whether the end of the stream has arrived.
        retired: The error that later rows raise, since the query has ended; `None` as long as it runs.
        markers: The number of markers among the rows whose results are sent.
        following: While it is set, the batches and rows are those of a predecessor.
        follower: The successor that computes the same batches.
    """

    following: Following | None = None
    follower: Following | None = None

    def __init__(
        self,
        port: str,
        columns: pa.Schema,
        trigger: BatchTrigger,
        *,
        event_time: EventTime | None = None,
        capacity: int = 500_000,
        begin: InputPosition = BEGINNING,
        by_input: bool = True,
        on_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.port, self.capacity, self.rows, self.max_rows = port, capacity, 0, trigger.max_rows
        self.event_time = None if event_time is None else event_time.of(columns)
        self.never = inf
        if self.event_time is not None:
            self._time_type = kind = columns.field(self.event_time.column).type
            self.never = self.event_time.never(kind.bit_width if pa.types.is_integer(kind) else 64)
        # Engines compare schemas including nullability, and markers are empty: all columns are nullable here.
        self._columns = pa.schema([field.with_nullable(True).remove_metadata() for field in columns])
        self.schema = self._columns.append(pa.field(ROW, pa.int64()))
        self._trigger, self._lock = trigger, trigger.lock
        self._markers: deque[int] = deque()
        self.markers = 0
        self._events: deque[_Event] = deque()
        self._by_input, self._on_commit = by_input, on_commit
        self._delivered: float | None = None
        self._pushers: set[Driver] = set()
        self._over = self.ended = False
        self.retired: EngineError | None = None
        self._begin(begin)
        trigger.feeds.append(self)

    def _begin(self, begin: InputPosition) -> None:
        """Begin an empty log at a position."""
        self._log = MemoryLog(begin.offset)
        self._event = begin.event
        self._planned = self._done = self._committed = self._urgent_until = self._repeated = begin.offset
        self._complete: float | None = begin.complete
        self._reached, self._kept = begin, begin.offset

    # For the platform.

    def admit(self, batch: pa.RecordBatch | list[Reference], give_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until there is room for *batch*, or *give_up()* is true.

        Raises:
            FeedClosed: the query has stopped, or stops during the wait.
            EngineError: the batch has other columns, or a time that no calendar has; or the query has failed.
        """
        if not isinstance(batch, list):
            if batch.schema.names != self._columns.names or batch.schema.types != self._columns.types:
                wanted, found = _described(self._columns), _described(batch.schema)
                raise EngineError(f"port {self.port!r} takes {wanted}; what came has {found}")
            if (time := self.event_time) is not None:
                check_times(batch, time.column, time.never(), time.unit, self.port)
        with self._lock:
            while self._full and not give_up():
                self._lock.wait(0.05)
            self.check_open()
            if self._full and (driver := current_driver()) is not None:
                driver.overfill(self)

    def keeps_out(self, driver: Driver) -> bool:
        """Whether *driver* has to wait for room; if so, the feed wakes it later."""
        with self._lock:
            self._pushers |= {driver} if self._full else set()
            return self._full

    @property
    def _full(self) -> bool:
        return self.lag >= self.capacity and not self.retired

    def _let_in(self) -> None:
        """Wake all threads, and the drivers that wait for room."""
        self._lock.notify_all()
        while self._pushers:
            self._pushers.pop().wake()

    def check_open(self) -> None:
        """Raise the error that has ended the query, if it has ended."""
        if self.retired:
            raise self.retired

    def push(self, batch: pa.RecordBatch | list[Reference]) -> None:
        """Append a batch; `admit` says whether, and when."""
        with self._lock:
            if isinstance(batch, list):
                for one in batch:
                    self._note("file", 1, one.rows)
                    self._log.append(_File(one, one.rows))
                    self.rows += one.rows
            elif batch.num_rows:
                self._note("rows", batch.num_rows, batch.num_rows)
                numbers = np.arange(self._log.end, self._log.end + batch.num_rows, dtype=np.int64)
                self._log.append(pa.record_batch([*batch.columns, pa.array(numbers)], schema=self.schema))
                self.rows += batch.num_rows

    def punctuate(self, complete: float) -> None:
        """Note that the stream is complete up to *complete* at the present offset.

        With an event time, append a marker, so that the watermark of the engine moves even if no row follows.
        """
        with self._lock:
            if self._complete is not None and complete <= self._complete:
                self._note("time", 1, 0)
                return
            before = None if self._complete is None else self._following(self._complete)
            following = self._following(complete)
            crossing = self._trigger.crosses(before, following)
            self._complete = complete
            self._control("time", 1, following if crossing or self._trigger.boundary is None else None)
            if crossing:
                self._urgent_until = self._log.end

    def probe(self) -> None:
        """Append a marker for the present time, so that the engine computes something."""
        with self._lock:
            if self.event_time is not None and self._complete is not None:
                self._control("time", 0, self._following(self._complete))
                self._urgent_until = self._log.end

    def end(self, *, close_windows: bool = True) -> None:
        """Note the end of the stream. With *close_windows*, the watermark moves past every window."""
        with self._lock:
            known = None if self._complete is None else self._following(self._complete)
            self._control("end", 1, self.never if close_windows else known)
            self._urgent_until = self._log.end
            self.ended = True

    def retire(self, error: EngineError | None = None) -> None:
        """Offer no more rows, refuse later ones with *error*, and wake all threads; ranges can still be read."""
        with self._lock:
            self.retired = self.retired or error or FeedClosed(port=self.port)
            self._let_in()

    def lead(self, follower: Following | None) -> None:
        """Tell a successor the batches, and keep their rows until it has committed them; `None`: not any more."""
        with self._lock:
            self.follower, self._kept = follower, self._done
            self._trim()

    def release(self, offset: int) -> None:
        """Drop the rows before *offset*, which the successor does not need any more either."""
        with self._lock:
            self._kept = offset
            self._trim()

    def go_on(self, position: InputPosition) -> None:
        """Follow no longer: continue behind *position* with what is appended from now on."""
        with self._lock:
            self._begin(position)
            self.resume(position)
            self.following = None

    # For the engine.

    def latest(self, start: int, limit: int | None, timeout: float) -> int:
        """Return the end of the next batch, after a wait of at most *timeout* seconds; *start* if there is none.

        A batch that was emitted, and not committed, ends where it ended before.
        """
        following = self.following
        if following is not None and (step := following.next(self.port, start, timeout)) is not None:
            return int(step)
        with self._lock:
            if start < self._repeated:
                return self._repeated
            if start > self._planned:  # sent and committed before a crash; the end is noted when it is sent, too
                self._planned = start
                self.put_out()
            self._trigger.wait(self, timeout)
            end = self._log.end if limit is None else self._whole(start, min(self._log.end, start + limit))
            end = start if self.retired else max(start, end)
            if self.follower is not None:
                self.follower.plan(self, end)
            if end == start:
                return start
            # Windows close in the batch after the one that has moved the watermark, which may follow at once.
            if self.event_time is not None and (self._trigger.boundary is None or start < self._urgent_until <= end):
                self._trigger.poll_again = True
            self._planned = end
            return end

    def read(self, start: int, end: int) -> pa.Buffer:
        """Return the rows from *start* up to *end* as a stream of Arrow IPC.

        Raises:
            EngineError: the log does not contain the range (any more).
        """
        return stream_of(pa.Table.from_batches(self._log_of(start, end), schema=self.schema).combine_chunks())

    def parts(self, start: int, end: int) -> list[Part]:
        """Return where the rows from *start* up to *end* are, in order.

        Raises:
            EngineError: the log does not contain the range (any more).
        """
        found: list[Part] = []
        for one in self._log_of(start, end):
            file, after = one.file if isinstance(one, _File) else None, start + one.num_rows
            if file is None and found and found[-1].file is None:
                found[-1] = found[-1]._replace(end=after)
            else:
                found.append(Part(start, after, file))
            start = after
        return found

    def commit(self, offset: int) -> None:
        """Drop the rows before *offset*, which the engine does not need any more."""
        if self.following is not None:
            self.following.leaders[self.port].release(offset)
            return
        with self._lock:
            self._committed = max(self._committed, offset)
            self._trim()
        self._on_commit()

    # For the query.

    def put_out(self, *, over: bool = False) -> None:
        """Note that the results of all planned rows are sent; with *over*, the end of the stream, too."""
        with self._lock:
            self._done, self._over = self._planned, over
            while self._markers and self._markers[0] < self._done:
                self._markers.popleft()
                self.markers += 1
            self._let_in()

    def resume(self, position: InputPosition) -> None:
        """Continue after *position*: the results before it are sent."""
        with self._lock:
            self._planned = self._done = self._repeated = position.offset
            self._delivered = position.complete

    def reached(self) -> InputPosition:
        """Return the position up to which the results are sent, before the punctuations that are not sent yet."""
        with self._lock:
            while self._events and self._events[0].end <= self._done and self._is_over(self._events[0]):
                one = self._events.popleft()
                self._reached = InputPosition(one.after, one.end, one.complete)
            if self._events and (part := self._events[0]).offset < self._done < part.end:
                self._reached = InputPosition(part.after - (part.end - self._done), self._done, self._reached.complete)
            return self._reached

    def complete(self) -> float | None:
        """Return the time up to which the stream is complete at the offset whose results are sent."""
        with self._lock:
            self._delivered = self._punctuated()
            return self._delivered

    @property
    def finished(self) -> bool:
        """Whether the stream has ended, and all results are sent."""
        return self.ended and self._done >= self._log.end

    @property
    def undelivered(self) -> bool:
        """Whether the results before a punctuation are sent, but not the punctuation."""
        return self._punctuated() != self._delivered

    @property
    def pending(self) -> int:
        """The number of rows that are in no batch yet."""
        return self._log.end - self._planned

    @property
    def urgent(self) -> bool:
        """Whether a boundary, or the end of the stream, is among them."""
        return self._urgent_until > self._planned

    @property
    def offset(self) -> int:
        """The offset of the next row."""
        return self._log.end

    @property
    def planned(self) -> dict[str, int]:
        """The offset after the present batch."""
        return {"rows": self._planned}

    @property
    def done(self) -> Any:
        """The offset up to which the results are sent."""
        return self._done

    @property
    def lag(self) -> int:
        """The number of rows whose results are not sent."""
        return max(0, self._log.end - self._done)

    def _whole(self, start: int, end: int) -> int:
        """Return the end of a batch that no file crosses: before the file, or after it if the batch begins with it."""
        for one in self._events:
            if one.offset >= end:
                break
            if one.kind == "file" and end < one.end:
                return one.offset if one.offset > start else one.end
        return end

    def _log_of(self, start: int, end: int) -> list[Any]:
        """Return the parts of the log from *start* up to *end*; raise `EngineError` if it does not contain them."""
        if self.following is not None:
            return self.following.leaders[self.port]._log_of(start, end)
        with self._lock:
            if start < self._log.start or end > self._log.end:
                held = f"rows {self._log.start} to {self._log.end}"
                raise EngineError(f"the feed of port {self.port!r} holds {held}, not {start} to {end}")
            # A batch that was planned before a crash, and not emitted, is read without being planned again.
            self._planned = max(self._planned, end)
            return self._log.events(start, end)

    def _trim(self) -> None:
        self._log.trim(self._committed if self.follower is None else min(self._committed, self._kept))

    def _note(self, kind: Literal["rows", "file", "time", "end"], events: int, rows: int) -> None:
        """Note the meaning of the next rows, and the time up to which the stream is complete after them; wake all."""
        self._event += events
        self._events.append(_Event(kind, self._event, self._log.end, self._log.end + rows, self._complete))
        self._lock.notify_all()

    def _punctuated(self) -> float | None:
        """Return the time of the last punctuation before which all results are sent."""
        sent = takewhile(lambda one: one.end <= self._done, self._events)
        times = [self._delivered, *(one.complete for one in sent)]
        return max((time for time in times if time is not None), default=None)

    def _is_over(self, one: _Event) -> bool:
        if one.kind == "time" and self._by_input and one.complete is not None:
            return self._delivered is not None and self._delivered >= one.complete
        return one.kind != "end" or self._over

    def _control(self, kind: Literal["time", "end"], events: int, moment: float | None) -> None:
        """Note a control item; with an event time, append a marker for a *moment*, which queries do not see."""
        if self.event_time is None or moment is None:
            self._note(kind, events, 0)
            return
        self._note(kind, events, 1)
        self._markers.append(self._log.end)
        marker = {self.event_time.column: self._moment(moment), ROW: -1}
        self._log.append(pa.RecordBatch.from_pylist([marker], self.schema))

    def _following(self, complete: float) -> float:
        """Return the earliest time that may follow; without an event time, that of integers, or the same."""
        if self.event_time is not None:
            last = self.never  # also of a punctuation that is infinite, or that the column cannot reach
            return self._moment(min(self.event_time.after(max(-last, min(complete, last))), last))
        return complete + 1 if isinstance(complete, int) else complete

    def _moment(self, moment: float) -> float:
        """Return the first time, from *moment* on, that the column of the event time can hold."""
        if not pa.types.is_floating(self._time_type):
            return ceil(moment)
        number = self._time_type.to_pandas_dtype()(moment)  # not every integer is a floating-point number
        return float(number if float(number) >= moment else np.nextafter(number, type(number)(inf)))


def completed(feeds: list[Feed]) -> float | None:
    """Return the time up to which all inputs are complete; none while one is silent. Ended inputs hold nothing back."""
    times = [(feed.finished, feed.complete()) for feed in feeds]  # `complete` also of ended inputs: it has an effect
    through = [time for finished, time in times if not finished] or [time for _, time in times]
    known = [one for one in through if one is not None]
    return min(known) if len(known) == len(through) else None


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"
