"""ω: the answers as lines, each with the moment at which it was out."""

import os
import stat
import time
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from exop import Memento, Slet, input_port

from .clock import Clock
from .columns import column
from .latency import Latency
from .schema import Alerts, Balances, Expenditures, Notices
from .segments import minute_of

#: Per type of answer the seconds within which it has to be out.
LIMITS: Final = {0: 5.0, 1: 5.0, 2: 5.0, 3: 10.0}
#: Per type of answer its line, and the columns of the batch that fill it; the emit time is put in after `time`.
_LINES: Final = {
    0: ("0,%d,%d,%.3f,%d,%d\n", ("vid", "time", "lav", "toll")),
    1: ("1,%d,%.3f,%d,%d,%d,%d\n", ("time", "xway", "seg", "dir", "vid")),
    2: ("2,%d,%.3f,%d,%d,%d\n", ("time", "result", "qid", "balance")),
    3: ("3,%d,%.3f,%d,%d\n", ("time", "qid", "balance")),
}


class Written(Memento):
    """The size of our part of the output file, the clocks of this and earlier runs, and the response times by type."""

    size: int = 0
    clock: Clock | None = None
    earlier: list[Clock] = field(default_factory=list)
    latency: dict[int, Latency] = field(default_factory=lambda: {kind: Latency(LIMITS[kind]) for kind in LIMITS})


class Answers(Slet, name="answers"):
    """Write the answers to *output* as the benchmark wants them.

    The emit time is the question's second plus the wall-clock seconds from when the question was due until its
    answer is handed to the file, in one unbuffered write per batch. A successor goes on where the memento ends: what
    else the file holds behind that place is cut off, so nothing is written twice. So it is when the disk was full.
    """

    output: Path
    written: Written

    #: The wall clock: replaced in tests.
    now = staticmethod(time.time)
    #: The latest minute that answers are for, and the longest response time among them.
    _minute, _slowest = 0, 0.0

    def __enter__(self) -> "Answers":
        """Open the file without touching what a predecessor may still be writing."""
        self._file: IO[bytes] = os.fdopen(os.open(self.output, os.O_WRONLY | os.O_CREAT, 0o666), "wb", buffering=0)
        self._placed = False
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    @input_port
    def clock(self, clock: Clock) -> None:
        """The clock of the run, which comes before the first tuple; at another speed, before the first it holds for."""
        before = self.written.clock
        if before is not None and before.first < clock.first:
            self.written.earlier.append(before)
        self.written.clock = clock
        self._place()

    @input_port
    def tolls(self, notices: Notices) -> None:
        """Answers of type 0."""
        self._write(0, notices)

    @input_port
    def alerts(self, alerts: Alerts) -> None:
        """Answers of type 1."""
        self._write(1, alerts)

    @input_port
    def balances(self, balances: Balances) -> None:
        """Answers of type 2."""
        self._write(2, balances)

    @input_port
    def expenditures(self, expenditures: Expenditures) -> None:
        """Answers of type 3."""
        self._write(3, expenditures)

    def _write(self, kind: int, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        self._place()
        line, names = _LINES[kind]
        fields: list[list[Any]] = [column(batch, name).tolist() for name in names]
        seconds = column(batch, "time")
        delays = self._delays(seconds)
        fields.insert(names.index("time") + 1, (seconds + delays).tolist())
        text = (line * batch.num_rows % tuple(chain.from_iterable(zip(*fields, strict=True)))).encode()
        self._append(text)
        self.written.latency[kind].add(delays)
        self._note(minute_of(seconds[-1]), float(delays.max()))

    def _note(self, minute: int, slowest: float) -> None:
        """Keep the longest response time of the latest minute that answers are for."""
        if minute > self._minute:
            self._minute, self._slowest = minute, 0.0
        self._slowest = max(self._slowest, slowest)

    def _append(self, text: bytes) -> None:
        """Write all of it: a disk that fills up takes a part, which is cut off when the batch is tried again."""
        rest = memoryview(text)
        self._placed = False
        while rest:
            rest = rest[self._file.write(rest) :]
        self._placed = True
        self.written.size += len(text)

    def _delays(self, seconds: Any) -> Any:
        """The wall-clock seconds since each question was due by the clock in force then."""
        clock = self.written.clock
        if clock is None:
            return np.zeros(len(seconds))
        due = clock.due(seconds)
        for before in reversed(self.written.earlier):
            due = np.where(seconds < clock.first, before.due(seconds), due)
            clock = before
        return np.maximum(self.now() - due, 0.0)

    def _place(self) -> None:
        """Go to the end of what is ours, once, when it is our turn to write."""
        if not self._placed:
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # a device or a pipe has no places
                self._file.truncate(self.written.size)
                self._file.seek(self.written.size)
            self._placed = True

    def metrics(self) -> dict[str, int | float | str]:
        """Per type the answers, the late ones, and the response times in seconds; the slowest of the latest minute."""
        figures: dict[str, int | float | str] = {"slowest": round(self._slowest, 3)}
        for kind, latency in self.written.latency.items():
            figures |= {f"type{kind}/answers": latency.answers, f"type{kind}/late": latency.late}
            if latency.answers:
                figures |= {
                    f"type{kind}/median": latency.quantile(0.5),
                    f"type{kind}/p99": latency.quantile(0.99),
                    f"type{kind}/max": round(latency.worst, 3),
                }
        return figures
