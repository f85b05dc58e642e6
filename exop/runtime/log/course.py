"""After a crash: what the sources replay is compared with what the log has of it already, and not appended twice."""

from __future__ import annotations

from typing import Any, Final

from exop.logs import logger
from exop.model.encoding import encode
from exop.runtime.convert import cut, to_items, weight
from exop.runtime.log.disk import DiskLog

#: Rows to read from the log at once: reading begins at a place that may be far before the requested row.
_AHEAD: Final = 1000


class Course:
    """The rows behind a checkpoint that a log has: the stream comes by them once more.

    A stream that takes the same course gives the same rows again; they are in the log, and pass. Where it takes another
    one (the order in which several producers meet is not promised) the rest is taken back, and what comes now is
    appended: the log is always what its consumers were given.

    Attributes:
        next: The offset of the row that comes next.
    """

    def __init__(self, log: DiskLog, offset: int) -> None:
        self.next = offset
        self._log = log
        self._read: list[Any] = []
        self._first = offset

    @property
    def over(self) -> bool:
        """The stream has come to the end of the log."""
        return self.next >= self._log.end

    def passed(self, batch: Any) -> Any:
        """Take the rows that are in the log already; returns those that are not.

        Raises:
            StateError: the log cannot be read, or not be cut.
        """
        known = min(weight(batch), self._log.end - self.next)
        there = self._rows(known)
        given = to_items(cut(batch, 0, known))
        same = next((n for n in range(known) if encode(there[n]) != encode(given[n])), known)
        self.next += same
        if same < known:
            self.leave()
        return cut(batch, same, weight(batch))

    def _rows(self, count: int) -> list[Any]:
        """The next rows of the log."""
        if not self._first <= self.next <= self._first + len(self._read) - count:
            end = min(self._log.end, self.next + max(count, _AHEAD))
            self._read = [row for piece in self._log.read(self.next, end) for row in to_items(piece)]
            self._first = self.next
        begin = self.next - self._first
        return self._read[begin : begin + count]

    def leave(self) -> None:
        """The stream does not give the rest of these rows again: take them back."""
        if not self.over:
            logger("exop.log").warning(
                "the stream takes another course than before the crash",
                log=str(self._log.folder),
                offset=self.next,
                taken_back=self._log.end - self.next,
            )
            self._log.cut(self.next)
