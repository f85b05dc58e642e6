"""The offsets of a channel that Spark reads by itself: what its tasks may read, and the control items between them.

No row passes here. The platform tells how far each partition may be read, Spark's checkpoint how far it was read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from exop import Tie
from exop.engine.event_time import EventTime
from exop.engine.feed import Feed
from exop.engine.pace import Gate
from exop.engine.progress import BEGINNING, InputPosition
from exop.safe_repr import error_text

from ..errors import SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds between two looks at the ends of the partitions.
GLANCE: Final = 0.1
Parts = Mapping[str, int]


class _Control(NamedTuple):
    """A control item: how many came up to it, the rows written before it, and its time; of the end `None`."""

    number: int
    behind: Parts
    complete: float | None


class NativeFeed(Feed):
    """One input whose rows Spark's tasks read: it knows offsets and control items, and never a row.

    An offset, as Spark stores it, is `{"at": {partition: row}, "mark": number, "moment": time}`: with each new mark a
    task makes a row that only moves the watermark to that moment. `{}` is the offset before the first micro-batch.
    """

    def __init__(
        self,
        port: str,
        columns: pa.Schema,
        gate: Gate,
        *,
        tie: Tie,
        event_time: EventTime | None = None,
        begin: InputPosition = BEGINNING,
        tells: bool = True,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(port, columns, gate, event_time=event_time, begin=begin, tells=tells, committed=committed)
        self._tie, self._channel = tie, tie.native[port]
        self._number = self._reached_number = begin.event
        self._at = self._out = begin.parts
        self._readable: Parts = {}
        self._controls: deque[_Control] = deque()
        self._times: deque[tuple[Parts, float]] = deque()
        self._moments: deque[tuple[Parts, float]] = deque()
        self._moment: float | None = None
        self._marked = self._marks_out = 0
        self._stop: Parts | None = None
        self._held = False
        self._failure: SparkError | None = None
        threading.Thread(target=self._look, name=f"exop-spark offsets of {port}", daemon=True).start()

    # For the platform.

    def admit(self, batch: pa.RecordBatch, give_up: Callable[[], bool] = lambda: False) -> None:
        """Refuse rows: Spark reads the channel by itself."""
        raise SparkError(f"port {self.port!r} is read by Spark itself, and takes no rows from the platform")

    def punctuate(self, complete: float) -> None:
        """Note that the rows written so far are complete up to and including *complete*."""
        with self._lock:
            behind = self._arrives(complete)
            if self._complete is not None and complete <= self._complete:
                return
            before = None if self._complete is None else self._following(self._complete)
            crossing = self.pace.crosses(before, self._following(complete))
            self._complete = complete
            self._times.append((behind, complete))
            if self.event_time is not None and (crossing or self.pace.boundary is None):
                self._moments.append((behind, self._following(complete)))
            self._lock.notify_all()

    def probe(self) -> None:
        """Move the watermark to where it is, so that something is computed."""
        with self._lock:
            if self.event_time is not None and self._complete is not None:
                self._moments.append(({}, self._following(self._complete)))

    def end(self, *, close_windows: bool = True) -> None:
        """Note the end of the stream. With *close_windows*, the watermark moves past every window."""
        with self._lock:
            self._stop, self._ended = self._arrives(None), True
            if self.event_time is not None and (close_windows or self._complete is not None):
                moment = self.never if close_windows else self._following(self._complete or 0)
                self._moments.append((self._stop, moment))
            self._lock.notify_all()

    def hold(self, *, on: bool) -> None:
        """Offer no further rows while the slet comes to rest; what is left is read by its successor."""
        with self._lock:
            self._held = on
            self._lock.notify_all()

    def await_readable(self) -> None:
        """Return when all that was written before the end may be read: a checkpoint may have to come first."""
        with self._lock:
            self._lock.wait_for(
                lambda: self._held or self._retired is not None or _covers(self._readable, self._stop or {})
            )

    # For the engine.

    def latest(self, start: Mapping[str, Any], limit: int | None, timeout: float) -> Mapping[str, Any]:  # type: ignore[override]
        """Return how far the next micro-batch reads, after a wait of at most *timeout* seconds.

        Raises:
            SparkError: the channel has failed.
        """
        with self._lock:
            if self._at is None and start:
                self._plan(start)
            self._gate.wait(self, timeout)
            if self._failure is not None:
                raise self._failure
            begin = self._at if self._at is not None else self._beginning()
            if self._retired or begin is None or not self.pending:
                return start
            at = dict(begin)
            if start:  # the first micro-batch reads nothing: it notes where the next one begins
                share = None if limit is None else max(1, limit // max(1, len(self._readable)))
                for part, end in (self._readable if self._may_read else {}).items():
                    first = at.get(part, 0)
                    at[part] = max(first, end if share is None else min(end, first + share))
                moments = [moment for behind, moment in self._moments if _covers(at, behind)]
                if moments:
                    self._moment, self._marked = max(moments), self._marked + 1
                    self._moments = deque(one for one in self._moments if not _covers(at, one[0]))
                    self._gate.nudge()  # windows close in the micro-batch after the one that moved the watermark
            return self._plan({"at": at, "mark": self._marked, "moment": self._moment})

    def plan(self, end: Mapping[str, Any]) -> Mapping[str, Any]:
        """Note that a micro-batch up to *end* begins, perhaps once more; return the reference of the channel."""
        with self._lock:
            if end:
                self._plan(end)
        return self._channel.native("spark") or {}

    def commit(self, offset: Any) -> None:
        """Note that Spark has committed up to *offset*."""
        self._told_committed()

    # For the query.

    def put_out(self, *, over: bool = False) -> None:
        """Note that the results of all planned rows are sent; with *over*, the end of the stream, too."""
        with self._lock:
            if self._at is not None:
                self.rows += _count(self._out or self._at, self._at)
            self._out, self._over, self._marks_out = self._at, over, self._marked
            self._lock.notify_all()

    def resume(self, position: InputPosition) -> None:
        """Continue after *position*: the results before it are sent."""
        with self._lock:
            self._at, self._out, self._told = position.parts, position.parts, position.complete

    def reached(self) -> InputPosition:
        """Return the position up to which the results are sent, before the punctuations that are not sent yet."""
        with self._lock:
            while self._controls and _covers(self._out, self._controls[0].behind) and self._is_told(self._controls[0]):
                self._reached_number = self._controls.popleft().number
            parts = self._out if self._out is not None else self._beginning()
            return InputPosition(self._reached_number, 0, self._told, parts)

    def complete(self) -> float | None:
        """Return the time up to which the stream is complete at the offsets whose results are sent."""
        with self._lock:
            while self.untold:
                self._told = self._times.popleft()[1]
            return self._told

    @property
    def finished(self) -> bool:
        """Whether the stream has ended, and all results are sent."""
        return self._stop is not None and not self._moments and _covers(self._out, self._stop)

    @property
    def untold(self) -> bool:
        """Whether the results before a punctuation are sent, but not the punctuation."""
        return bool(self._times) and _covers(self._out, self._times[0][0])

    @property
    def markers(self) -> int:
        """The number of rows that only moved the watermark, among those whose results are sent."""
        return self._marks_out

    @property
    def pending(self) -> int:
        """The number of rows that may be read and are in no micro-batch yet, and of moments for the watermark."""
        if self._at is None:
            return int(self._beginning() is not None)
        end = self._readable if self._may_read else self._at
        return _count(self._at, end) + sum(_covers(end, behind) for behind, _ in self._moments)

    @property
    def urgent(self) -> bool:
        """Whether a boundary, the end of the stream, or the first micro-batch waits."""
        return bool(self._moments) or self._stop is not None or self._at is None

    @property
    def offset(self) -> Any:
        """The end of what may be read, for Spark's own progress report."""
        return {"at": dict(self._readable), "mark": self._marked, "moment": self._moment} if self._at else {}

    @property
    def planned(self) -> dict[str, int]:
        """The offsets after the present micro-batch."""
        return dict(self._at or {})

    @property
    def lag(self) -> int:
        """The number of rows whose results are not sent: of those that may be read, or until the end are to be.

        While it is held, or does not know yet where to begin, only of those that Spark has begun.
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
        """The position at which the query begins; not known yet for a successor whose predecessor still runs."""
        return self._tie.committed.positions.get(self.port)

    def _plan(self, end: Mapping[str, Any]) -> Mapping[str, Any]:
        if end["mark"] > self._marked or self._at is None:
            self._marked, self._moment = end["mark"], end["moment"]
        self._at = dict(end["at"])
        return end

    def _arrives(self, complete: float | None) -> Parts:
        self._number += 1
        behind = dict(self._channel.written())
        self._controls.append(_Control(self._number, behind, complete))
        return behind

    def _is_told(self, one: _Control) -> bool:
        if one.complete is None:
            return self._over
        return not self._tells or (self._told is not None and self._told >= one.complete)

    def _look(self) -> None:
        """Ask the channel how far its partitions may be read, until the query stops."""
        while self._retired is None:
            try:
                found = dict(self._channel.readable())
            except Exception as error:  # noqa: BLE001 - the next question of the engine raises it, which ends the query
                with self._lock:
                    self._failure = SparkError(f"port {self.port!r}: the channel cannot be read: {error_text(error)}")
                    self._gate.nudge()
                    self._lock.notify_all()
                return
            with self._lock:
                if found != self._readable:
                    self._readable = found
                    self._lock.notify_all()
                if self._retired is None:
                    self._lock.wait(GLANCE)


def register(session: SparkSession) -> str:
    """Let the queries of *session* read channels; return the name of the format."""
    from pyspark import cloudpickle

    from . import native_source

    cloudpickle.register_pickle_by_value(native_source)  # type: ignore[no-untyped-call]
    session.dataSource.register(native_source.NativeSource)
    return native_source.NativeSource.name()


def _covers(parts: Parts | None, behind: Parts) -> bool:
    return parts is not None and all(parts.get(part, 0) >= row for part, row in behind.items())


def _count(begin: Parts, end: Parts) -> int:
    return sum(max(0, row - begin.get(part, 0)) for part, row in end.items())
