"""`PullEngine`: the methods by which a platform runs one query on an engine that has threads of its own.

Also the event times of its inputs, its punctuations, and its progress, which the platform stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from math import floor, inf, nextafter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

if TYPE_CHECKING:
    from exop.engine.feed import Feed

#: The units of time, in microseconds.
MICROSECONDS: Final = {"us": 1, "ms": 1_000, "s": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}
#: The end of the year 9999, where the calendars of most engines end.
_LAST: Final = 253_402_300_799_000_000
#: The fields of `QueryProgress` with a position of each input.
_ENDS: Final = ("begin", "end")


class Emit(Protocol):
    """The function by which an engine emits the results of a batch, before it commits the batch."""

    def __call__(self, batch: int, results: Iterable[Any], watermark: float | None = None) -> bool:
        """Send the results, each a payload for the output port, once per number of a batch.

        The watermark is that of the batch, if punctuations follow it. An exception means that the batch must not be
        committed, and ends the query. Return whether the results are sent, now or before; a replaced slet sends none.
        """


class PullEngine(ABC):
    """One query on an engine that pulls its input, and commits numbered batches itself.

    An `Engine` is called: the platform decides when a batch is processed (`push`, `advance`), and stores the state
    (`snapshot`, `restore`). A `PullEngine` decides both: instead of `push`, it reads the rows of each input from a
    `Feed`, by offset, and sends the results by `emit`; instead of `advance`, the platform derives the punctuations of
    the output from the offsets that the batches have reached, or from the watermark; instead of `snapshot` and
    `restore`, the engine commits its state, with its offsets, to a directory. `interrupt` and `close` come at any time.

    After a crash, the engine continues after the last batch that it has committed. A batch that was emitted but not
    committed is computed again under the same number, and its results are dropped. `Feed.latest` returns the same end.
    """

    #: Several batches may be computed as one, at the watermark of the first one, if no row is late.
    merges: bool = True

    @abstractmethod
    def compile(self, query: Any, feeds: Mapping[str, Feed]) -> None:
        """Check the query without data; *feeds* are its inputs. Called once, before all other methods.

        Raises:
            QueryError: the query is invalid. Give `problem` and, if known, the `position` in the text, from 0.
        """

    @abstractmethod
    def start(
        self, emit: Emit, directory: Path | None = None, predecessor: Self | bytes | None = None, batch: int = -1
    ) -> None:
        """Start to read the feeds, beginning after the last batch that is committed in *directory*.

        Without a directory, the state does not survive the process. With a *predecessor*, which is at rest, continue
        with a copy of its state after this batch; from another host, this is the result of its `pack`. The first batch
        has the number 0.
        """

    @abstractmethod
    def wait(self) -> None:
        """Wait until the query ends; raise the exception that has ended it. Called by a thread of the platform."""

    @abstractmethod
    def close(self) -> None:
        """Stop the query, perhaps amid a batch, and release all resources. The feeds return at once."""

    def interrupt(self) -> None:
        """Stop the query, perhaps amid a batch, and keep its state; called when a batch exceeds `time_limit`."""
        self.close()

    def settle(self) -> None:
        """Return when all emitted batches are committed, and no batch follows from the rows in the feeds."""

    def copy(self, predecessor: Self, directory: Path | None, batch: int) -> int | None:
        """Copy the state of a predecessor that runs, as of a batch that it has committed: *batch*, or a later one.

        Called between `compile` and `start`, which begins with the copy in *directory*, for slets that can follow
        others (`PullSlet.can_follow`). Return the number of the batch; `None` if there is nothing to copy.
        """
        raise NotImplementedError(f"{type(self).__name__} has no copy()")

    def pack(self, batch: int) -> bytes:
        """Return the state of the engine, which is at rest, after this batch. For slets that set `packs`."""
        raise NotImplementedError(f"{type(self).__name__} has no pack()")

    def metrics(self) -> dict[str, int | float | str]:
        """Return metrics of the engine; with event times and `copy`, also `late_rows`, the number of dropped rows."""
        return {}


@dataclass(frozen=True)
class Punctuate:
    """The rule by which punctuations leave.

    With `by="input"`, a punctuation leaves when all rows before it were processed; for queries whose results leave in
    the batch of their rows. With `by="watermark"`, it follows the watermark of the batch, for which windows wait.

    Args:
        by: The rule.
        complete: From that time to the time up to which the output is complete (`None`: not yet); by default the same.
    """

    by: Literal["input", "watermark"] = "input"
    complete: Callable[[float], float | None] = field(default=lambda time: time)


@dataclass(frozen=True, slots=True)
class EventTime:
    """The column of an input that contains the time of each row. The punctuations of the input have the same unit.

    Args:
        column: An integer or floating-point column.
        unit: Its unit: `us`, `ms`, `s`, `minute` or `hour`.
        alias: The name of an additional column of the input, a timestamp that the engine computes from the column.
        step: The least difference of two times: a stream that is complete up to `t` continues with `t + step` or later.
            By default, one for integers, and zero for floating-point numbers.
    """

    column: str
    unit: str = "s"
    alias: str = "event"
    step: float | None = None

    def __post_init__(self) -> None:
        if self.unit not in MICROSECONDS:
            raise ValueError(f"{self.unit!r} is no unit of time; there are {', '.join(MICROSECONDS)}")

    def never(self, bits: int = 64) -> float:
        """Return a time after every window: the end of the calendar, or the largest number of *bits*."""
        return min((1 << (bits - 1)) - 1, _LAST // MICROSECONDS[self.unit])

    def of(self, columns: Any) -> Self:
        """Return the event time with the step of its column, if it is one of *columns*, a `pyarrow.Schema`."""
        if self.step is not None or self.column not in columns.names:
            return self
        return replace(self, step=0 if str(columns.field(self.column).type) in ("halffloat", "float", "double") else 1)

    def after(self, complete: float) -> float:
        """Return the earliest time that may follow if the stream is complete up to *complete*."""
        return nextafter(complete, inf) if self.step == 0 else floor(complete) + (self.step or 1)

    def before(self, time: float) -> float:
        """Return the time up to which the stream is complete if it continues with *time*."""
        return nextafter(time, -inf) if self.step == 0 else time - (self.step or 1)


@dataclass(frozen=True, slots=True)
class InputPosition:
    """A position in an input: the events and the rows before it, and the time up to which the stream is complete.

    For a channel that the engine reads by itself, *parts* has the offset of each partition.
    """

    event: int = 0
    offset: int = 0
    complete: float | None = None
    parts: Mapping[str, int] | None = None


BEGINNING: Final = InputPosition()
Positions = Mapping[str, InputPosition]


@dataclass(frozen=True)
class QueryProgress:
    """The progress of a query, up to a batch whose results were sent.

    The engine may or may not have committed that batch. If not, it computes it again: both its ends are stored.

    Attributes:
        batch: The number of the batch; -1 for none.
        begin: The position of each input before the batch.
        end: The position of each input after the batch.
        complete: The time of the last punctuation that was sent.
        over: Whether the end of the stream was sent.
        probes: The number of batches for which the inputs begin with a row without content: an engine that has taken
            over the state of another query checks this state when it computes something.
    """

    batch: int = -1
    begin: Positions = field(default_factory=dict)
    end: Positions = field(default_factory=dict)
    complete: float | None = None
    over: bool = False
    probes: int = 0

    def begins(self, port: str) -> InputPosition:
        """Return the position of *port* before the batch."""
        return self.begin.get(port, BEGINNING)

    def ends(self, port: str) -> InputPosition:
        """Return the position of *port* after the batch."""
        return self.end.get(port, BEGINNING)

    def after(self, batch: int, end: Positions, complete: float | None) -> QueryProgress:
        """Return the progress after the next batch."""
        return QueryProgress(batch, self.end, end, complete, probes=max(0, self.probes - 1))

    def handed_over(self, ports: Sequence[str]) -> QueryProgress:
        """Return the progress for a new slet with these inputs, which counts its events from 0, at the same offsets.

        The only input of a query may have another name.
        """
        names = dict(zip(self.end, ports, strict=True)) if len(ports) == len(self.end) == 1 else {}
        there = {names.get(port, port): replace(position, event=0) for port, position in self.end.items()}
        return replace(self, begin=there, end=there, over=False, probes=2)

    def dump(self) -> dict[str, Any]:
        """Return plain data."""
        ends = {name: {port: [*astuple(one)] for port, one in getattr(self, name).items()} for name in _ENDS}
        return {**asdict(self), **ends}

    @classmethod
    def load(cls, data: Mapping[str, Any] | None) -> QueryProgress:
        """Return the progress from plain data; without data, the beginning."""
        ends = {end: {port: InputPosition(*one) for port, one in (data or {}).get(end, {}).items()} for end in _ENDS}
        return cls(**{**(data or {}), **ends})
