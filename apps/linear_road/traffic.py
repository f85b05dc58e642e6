"""α: the input file, released on its own clock."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from exop import Memento, OutputPort, Punctuation, Slet

from .checks import Order, checked
from .clock import Clock
from .columns import Ints, column
from .lines import Reject, Rows, check_readable, read_rows
from .schema import TUPLES, Tuples

log = logging.getLogger(__name__)

#: The longest sleep: the source passes a safe point at least so often.
_NAP: Final = 0.05
#: So many rejects are logged one by one; all of them are in the reject file.
_TOLD: Final = 10


class Position(Memento):
    """The position in the file up to which it is released, and the clock it is released by."""

    lines: int = 0
    rows: int = 0
    rejects: int = 0
    second: int = -1
    complete: int = -1
    clock: Clock | None = None


class Traffic(Slet, name="traffic"):
    """Release each tuple of *input* at its own second, *speed* times faster than it happened.

    One batch per second, then the punctuation of that second; seconds that are overdue leave together, at most
    *batch* rows at once. A bad line is counted, logged, and written to the file *rejects* as line number, reason and
    text; the run goes on. *until* is the last second to be released.

    A successor takes over in the middle of the file, and the same clock.
    """

    input: Path
    speed: float = 1.0
    until: int | None = None
    rejects: Path | None = None
    batch: int = 16_384
    position: Position
    clock: OutputPort[Clock]

    #: The wall clock, and how to wait: replaced in tests.
    now = staticmethod(time.time)
    sleep = staticmethod(time.sleep)

    def __enter__(self) -> "Traffic":
        check_readable(self.input)
        self._announced: Clock | None = None
        self._late = 0.0
        return self

    def __iter__(self) -> Iterator[Tuples | Punctuation | None]:
        position = self.position
        if position.lines == 0 and self.rejects is not None:
            self.rejects.unlink(missing_ok=True)
        order = Order(latest=position.second)
        for rows in read_rows(self.input, TUPLES, position.lines):
            good = checked(rows, order)
            yield from self._released(good)
            if self.until is not None and order.latest > self.until:
                break
        yield from self._completed(position.second)

    def _released(self, rows: Rows) -> Iterator[Tuples | Punctuation | None]:
        """Release the seconds of a piece of the file, each when it is due."""
        position = self.position
        seconds: Ints = column(rows.batch, "time")
        size = len(seconds) if self.until is None else int(np.searchsorted(seconds, self.until, side="right"))
        start = 0
        while start < size:
            second = int(seconds[start])
            clock = self._clock(second)
            yield from self._completed(min(position.second, second - 1))
            while (early := clock.due(second) - self.now()) > 0:
                self.sleep(min(early, _NAP))
                yield None
            if second - 1 > position.complete >= 0:
                yield from self._completed(second - 1)
            stop = start + self._overdue(seconds[start:size], clock)
            self._reach(rows, stop)
            position.second = int(seconds[stop - 1])
            position.rows += stop - start
            yield rows.batch.slice(start, stop - start)
            if stop < len(seconds):
                yield from self._completed(min(position.second, int(seconds[stop]) - 1))
            start = stop
        if size == len(seconds):
            self._reach(rows, size)

    def _overdue(self, seconds: Ints, clock: Clock) -> int:
        """Return the number of rows to release: the second that is due, and those after it that are due as well."""
        last = max(int(seconds[0]), clock.second(self.now()))
        self._late = max(0.0, self.now() - clock.due(int(seconds[0])))
        count = int(np.searchsorted(seconds, last, side="right"))
        if count > self.batch:
            fitting = int(np.searchsorted(seconds, seconds[self.batch], side="left"))
            count = fitting or int(np.searchsorted(seconds, seconds[0], side="right"))
        return count

    def _completed(self, second: int) -> Iterator[Punctuation]:
        """Say that everything through *second* is out, once."""
        if second > self.position.complete:
            self.position.complete = second
            yield Punctuation(second)

    def _clock(self, second: int) -> Clock:
        """The clock of the run; it starts with the first tuple, and goes on from where it is when *speed* changes."""
        clock = self.position.clock
        if clock is None:
            clock = Clock(self.now(), second, self.speed)
        elif clock.speed != self.speed:
            clock = clock.at(self.speed, self.now())
        self.position.clock = clock
        if clock is not self._announced:
            self._announced = clock
            self.clock.push(clock)
        return clock

    def _reach(self, rows: Rows, stop: int) -> None:
        """Move the position behind the row before *stop*, and report the rejects on the way."""
        position = self.position
        reached = int(rows.lines[stop]) - 1 if stop < len(rows.lines) else rows.last
        passed = [reject for reject in rows.rejects if position.lines < reject.line <= reached]
        if passed:
            self._report(passed)
        position.lines = reached

    def _report(self, rejects: list[Reject]) -> None:
        for reject in rejects:
            self.position.rejects += 1
            if self.position.rejects <= _TOLD:
                log.warning("%s, line %d: %s", self.input, reject.line, reject.reason)
        if self.rejects is not None:
            with self.rejects.open("ab") as file:
                file.writelines(b"%d\t%s\t%s\n" % (one.line, one.reason.encode(), one.text) for one in rejects)

    def metrics(self) -> dict[str, int | float | str]:
        """Return how far the input is released, and how late it left."""
        position = self.position
        late = round(self._late, 3)
        return {"second": position.second, "rows": position.rows, "rejects": position.rejects, "late": late}
