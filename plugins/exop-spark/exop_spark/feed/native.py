"""`NativeFeed`: the offsets and control items of a channel whose rows are read by Spark's tasks.

The platform has the ends of the partitions, up to which Spark may read; Spark's checkpoint has the offsets up to which
it has read.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from exop import Tie
from exop.engine.feed import Feed
from exop.engine.pull import BEGINNING, EventTime, InputPosition
from exop.engine.trigger import BatchTrigger
from exop.safe_repr import error_text

from ..errors import SparkError
from .records import Refused, problem_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
#: Seconds between two questions for the ends of the partitions.
POLL_INTERVAL: Final = 0.1
Parts = Mapping[str, int]
Offset = Mapping[str, Any]


class _Control(NamedTuple):
    """A control item: its number, from 1; the offsets of the rows before it; and its time, `None` for the end."""

    number: int
    behind: Parts
    complete: float | None


class NativeFeed(Feed):
    """The feed of an input whose rows are read by Spark's tasks; it contains offsets and control items, but no rows.

    An offset, as Spark stores it, is `{"at": {partition: row}, "mark": number, "moment": time}`. When the number of the
    mark increases, a task makes a marker, a row that only moves the watermark to the moment. `{}` is the offset before
    the first micro-batch.
    """

    def __init__(
        self,
        port: str,
        columns: pa.Schema,
        trigger: BatchTrigger,
        *,
        tie: Tie,
        event_time: EventTime | None = None,
        begin: InputPosition = BEGINNING,
        by_input: bool = True,
        on_commit: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            port, columns, trigger, event_time=event_time, begin=begin, by_input=by_input, on_commit=on_commit
        )
        self._tie, self._channel = tie, tie.native[port]
        self._number = self._reached_number = begin.event
        self._next = self._sent = _offset(begin)
        self._readable: Parts = {}
        self._controls: deque[_Control] = deque()
        self._times: deque[tuple[Parts, float]] = deque()
        self._moments: deque[tuple[Parts, float]] = deque()
        self._omitted: dict[tuple[str, int], Refused] = {}
        self._stop: Parts | None = None
        self._held = False
        self._failure: SparkError | None = None
        # What was sent after the checkpoint is not computed again, but a kill has lost the effect of the policy on it.
        again = tie.checkpointed.positions.get(port, {}), tie.committed.positions.get(port, {})
        threading.Thread(
            target=self._poll_channel, args=again, name=f"exop-spark offsets of {port}", daemon=True
        ).start()

    # For the platform.

    def admit(self, batch: pa.RecordBatch, give_up: Callable[[], bool] = lambda: False) -> None:
        """Raise `SparkError`: Spark reads the rows of the channel by itself."""
        raise SparkError(f"port {self.port!r} is read by Spark itself, and takes no rows from the platform")

    def punctuate(self, complete: float) -> None:
        """Record that the rows written until now are complete up to and including the time *complete*."""
        behind = dict(self._channel.written())  # of a topic, this may take long
        with self._lock:
            self._add_control(behind, complete)
            if self._complete is not None and complete <= self._complete:
                return
            before = None if self._complete is None else self._following(self._complete)
            crossing = self._trigger.crosses(before, self._following(complete))
            self._complete = complete
            self._times.append((behind, complete))
            if self.event_time is not None and (crossing or self._trigger.boundary is None):
                self._moments.append((behind, self._following(complete)))
            self._lock.notify_all()

    def probe(self) -> None:
        """Append a marker for the present watermark, so that the engine computes something."""
        with self._lock:
            if self.event_time is not None and self._complete is not None:
                self._moments.append(({}, self._following(self._complete)))

    def end(self, *, close_windows: bool = True) -> None:
        """Record the end of the stream. With *close_windows*, the watermark moves past every window."""
        stop = dict(self._channel.written())
        with self._lock:
            self._add_control(stop, None)
            self._stop, self.ended = stop, True
            if self.event_time is not None and (close_windows or self._complete is not None):
                moment = self._moment(self.never) if close_windows else self._following(self._complete or 0)
                self._moments.append((stop, moment))
            self._lock.notify_all()

    def hold(self, *, on: bool) -> None:
        """Let the engine read no further rows while the slet is quiesced; its successor reads them."""
        with self._lock:
            self._held = on
            self._lock.notify_all()

    def await_readable(self) -> None:
        """Wait until all rows before the end are readable; in a durable application, a checkpoint must come first."""
        with self._lock:
            self._lock.wait_for(
                lambda: self._held or self.retired is not None or _covers(self._readable, self._stop or {})
            )

    # For the engine.

    def latest(self, start: Offset, limit: int | None, timeout: float) -> Offset:  # type: ignore[override]
        """Return the end of the next micro-batch, after a wait of at most *timeout* seconds.

        Raises:
            SparkError: the channel has failed, or the checkpoint of the query is too old.
        """
        following = self.following
        if following is not None and (step := following.next(self.port, start, timeout)) is not None:
            return dict(step)
        with self._lock:
            if start:  # all before is sent; the marks may be those of an earlier life, or of the predecessor
                if not _covers(start["at"], sent := self._beginning() or {}):
                    raise SparkError(
                        f"port {self.port!r}: Spark's checkpoint is older than the state of the platform: it ends at "
                        f"{start['at']}, and the results up to {dict(sent)} are sent; restore both from one copy, or "
                        f"begin anew with lose_state=True (--lose-state)"
                    )
                self._next = self._sent = start
            self._trigger.wait(self, timeout)
            if self._failure is not None:
                raise self._failure
            self._next = end = self._end_behind(start, limit)
            if self.follower is not None:
                self.follower.plan(self, end)
            return end

    def plan(self, end: Offset) -> Offset:
        """Record that a micro-batch up to *end* begins, perhaps repeatedly; return the reference of the channel."""
        with self._lock:
            self._next = end or self._next
        return self._channel.native("spark") or {}

    def commit(self, offset: Any) -> None:
        """Record that Spark has committed the rows before *offset*."""
        if self.following is None:
            self._on_commit()

    def omit(self, part: str, records: list[Refused]) -> bool:
        """Record what a task has found not to be rows; return whether the policy of the slet leaves it out."""
        with self._lock:
            # Those of a micro-batch that was sent before, and is computed again, were omitted before.
            self._omitted |= {(part, one[0]): one for one in records if one[0] >= self._sent_until(part)}
        return self._tie.omit(self.port, [])

    # For the query.

    def apply_policy(self) -> None:
        """Count or set aside, by the policy of the slet, the omitted records whose micro-batch is sent."""
        with self._lock:
            passed = {key: one for key, one in self._omitted.items() if key[1] < self._sent_until(key[0])}
            self._omitted = {key: one for key, one in self._omitted.items() if key not in passed}
        self._apply(passed)

    def _apply(self, passed: Mapping[tuple[str, int], Refused]) -> None:
        topic, failed = (self._channel.native("spark") or {}).get("topic", ""), list[tuple[Any, Exception]]()
        for (part, offset), one in sorted(passed.items()):
            item = [{"topic": topic, "partition": int(part), "offset": offset, "value": one[2]}]
            failed.append((item, SparkError(problem_with(topic, part, one))))
        self._tie.omit(self.port, failed)

    def put_out(self, *, over: bool = False) -> None:
        """Record that the results of all planned rows are sent; with *over*, the end of the stream, too."""
        with self._lock:
            if self._sent and self._next:
                self.rows += _count(self._sent["at"], self._next["at"])
                self.markers += self._next["mark"] - self._sent["mark"]
            self._sent, self._over = self._next, over
            self._lock.notify_all()

    def resume(self, position: InputPosition) -> None:
        """Continue after *position*: the results before it are sent."""
        with self._lock:
            self._next = self._sent = _offset(position)
            self._omitted = {key: one for key, one in self._omitted.items() if key[1] >= self._sent_until(key[0])}
            self._delivered = position.complete

    def reached(self) -> InputPosition:
        """Return the position up to which the results are sent, before the punctuations that are not sent yet."""
        with self._lock:
            while self._controls and self._is_passed(self._controls[0]):
                self._reached_number = self._controls.popleft().number
            parts = self._out if self._out is not None else self._beginning()
            return InputPosition(self._reached_number, 0, self._delivered, parts)

    def complete(self) -> float | None:
        """Return the time up to which the stream is complete at the offsets whose results are sent."""
        with self._lock:
            while self.undelivered:
                self._delivered = self._times.popleft()[1]
            return self._delivered

    @property
    def finished(self) -> bool:
        """Whether the stream has ended, and all results are sent."""
        return self._stop is not None and not self._moments and _covers(self._out, self._stop)

    @property
    def undelivered(self) -> bool:
        """Whether the results before a punctuation are sent, but not the punctuation."""
        return bool(self._times) and _covers(self._out, self._times[0][0])

    @property
    def pending(self) -> int:
        """The number of readable rows, and of due markers, that are in no micro-batch yet."""
        if self._at is None:
            return int(self._beginning() is not None)
        end = self._readable if self._may_read else self._at
        return _count(self._at, end) + sum(_covers(end, behind) for behind, _ in self._moments)

    @property
    def urgent(self) -> bool:
        """Whether a marker, the end of the stream, or the first micro-batch is due."""
        return bool(self._moments) or self._stop is not None or self._at is None

    @property
    def offset(self) -> Any:
        """The end of the readable rows, for the progress report of Spark."""
        return {**self._next, "at": dict(self._readable)} if self._next else {}

    @property
    def planned(self) -> dict[str, int]:
        """The offsets after the present micro-batch."""
        return dict(self._at or {})

    @property
    def done(self) -> Offset:
        """The offset up to which the results are sent."""
        return self._sent

    @property
    def lag(self) -> int:
        """The number of rows whose results are not sent.

        These are the readable rows or, after the end of the stream, all rows before it. While the feed is held, or the
        position at which it begins is unknown, only rows in micro-batches that have begun count.
        """
        begin = self._out if self._out is not None else self._beginning()
        if begin is None or (self._at is None and not self._may_read):
            return 0
        if not self._may_read:
            return _count(begin, self._at or begin)
        return _count(begin, self._readable if self._stop is None else self._stop) + len(self._moments)

    @property
    def _may_read(self) -> bool:
        return not self._held and self._beginning() is not None

    def _beginning(self) -> Parts | None:
        """Return the position at which the query begins; `None` for a successor until its predecessor has stopped."""
        return self._tie.committed.positions.get(self.port)

    def _omit_again(self, kept: Parts, sent: Parts) -> None:
        """Apply the policy to records of a topic that were sent after the last checkpoint before a restart."""
        reference = self._channel.native("spark") or {}
        if not kept or reference["format"] != "kafka" or not self._tie.omit(self.port, []):
            return
        from .native_source import Slice, read_topic  # imported lazily: it loads pyspark

        found: dict[tuple[str, int], Refused] = {}
        for part, end in sent.items():
            place = Slice(reference, part, kept.get(part, 0), end)
            try:
                for _ in read_topic(place, self._columns, partial(_note, found, part)):
                    pass
            except ValueError as problem:
                _log.warning("%s: records that were left out before a restart are not known: %s", self.port, problem)
        self._apply(found)

    def _sent_until(self, part: str) -> int:
        return int(self._sent["at"].get(part, 0)) if self._sent else 0

    @property
    def _at(self) -> Parts | None:
        """The offsets after the present micro-batch."""
        return self._next.get("at")

    @property
    def _out(self) -> Parts | None:
        """The offsets up to which the results are sent."""
        return self._sent.get("at")

    def _end_behind(self, start: Offset, limit: int | None) -> Offset:
        begin = self._at if self._at is not None else self._beginning()
        if self.retired or begin is None or not self.pending:
            return start
        if not start:  # the first micro-batch reads no rows: it stores the offsets at which the next one begins
            return {"at": dict(begin), "mark": 0, "moment": None}
        at, mark, moment = dict(begin), start["mark"], start["moment"]
        share = None if limit is None else max(1, limit // max(1, len(self._readable)))
        for part, end in (self._readable if self._may_read else {}).items():
            first = at.get(part, 0)
            at[part] = max(first, end if share is None else min(end, first + share))
        moments = [one for behind, one in self._moments if _covers(at, behind)]
        if moments:
            mark, moment = mark + 1, max(moments)
            self._moments = deque(one for one in self._moments if not _covers(at, one[0]))
            self._trigger.poll_again = True  # windows close in the micro-batch after the one with the mark
        return {"at": at, "mark": mark, "moment": moment}

    def _trim(self) -> None:
        """Do nothing: the channel keeps the rows."""

    def _add_control(self, behind: Parts, complete: float | None) -> None:
        self._number += 1
        self._controls.append(_Control(self._number, behind, complete))

    def _is_passed(self, one: _Control) -> bool:
        if not _covers(self._out, one.behind):
            return False
        if one.complete is None:
            return self._over
        return not self._by_input or (self._delivered is not None and self._delivered >= one.complete)

    def _poll_channel(self, kept: Parts, sent: Parts) -> None:
        """Ask the channel how far its partitions may be read, until the query stops."""
        could = False
        self._omit_again(kept, sent)
        while self.retired is None:
            try:
                found = dict(self._channel.readable())
            except Exception as error:  # noqa: BLE001 - the next question of the engine raises it, which ends the query
                with self._lock:
                    self._failure = SparkError(f"port {self.port!r}: the channel cannot be read: {error_text(error)}")
                    self._trigger.poll_again = True
                    self._lock.notify_all()
                return
            with self._lock:
                if (found, self._may_read) != (self._readable, could):
                    self._readable, could = found, self._may_read
                    self._lock.notify_all()
                if self.retired is None:
                    self._lock.wait(POLL_INTERVAL)


def register(session: SparkSession) -> str:
    """Register the data source for native channels in *session*; return the name of the format."""
    from pyspark import cloudpickle

    from . import native_source, records

    for module in (native_source, records):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    session.dataSource.register(native_source.NativeSource)
    return native_source.NativeSource.name()


def _note(found: dict[tuple[str, int], Refused], part: str, records: list[Refused]) -> bool:
    found |= {(part, one[0]): one for one in records}
    return True


def _offset(position: InputPosition) -> Offset:
    return {} if position.parts is None else {"at": dict(position.parts), "mark": 0, "moment": None}


def _covers(parts: Parts | None, behind: Parts) -> bool:
    return parts is not None and all(parts.get(part, 0) >= row for part, row in behind.items())


def _count(begin: Parts, end: Parts) -> int:
    return sum(max(0, row - begin.get(part, 0)) for part, row in end.items())
