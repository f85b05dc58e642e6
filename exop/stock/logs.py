"""`read_log`: a source that reads a log on disk, which another application, or another process, may be writing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exop.model.items import CONTROL, Batch, EndOfStream, Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.slet import slet
from exop.runtime.dataflow.batches import to_items
from exop.runtime.log.memory import Position

#: The number of events to read at a time.
LOT = 1000
#: Items that came one by one are emitted in batches of at most so many: a change waits for the end of a batch.
TOGETHER = 32
#: Seconds between two looks for more.
PAUSE = 0.02


class Offset(Memento):
    """The offset of the next row, and the control items read since the last one; negative: nothing has been read."""

    offset: int = -1
    marks: int = 0


@slet
def read_log(offset: Offset, *, path: Path, follow: bool = False) -> Iterator[Batch[Any] | Punctuation | None]:
    """Emit the items and punctuations of a log on disk, from the oldest on; goes on behind what was emitted before.

    With *follow* it waits for more. Of a durable application's log it reads what the last checkpoint counts: what comes
    behind that may be taken back after a crash.
    """
    # Imported lazily: only this needs the encoding.
    from exop.stock.log_reader import LogReader

    with LogReader(path) as log:
        while True:
            if offset.offset < 0:
                offset.offset = log.start
            found, _ = log.events(Position(offset.offset, offset.marks), LOT)
            for one in _together(found):
                if isinstance(one, Batch):
                    offset.offset, offset.marks = offset.offset + len(one), 0
                    yield one
                else:
                    offset.marks += 1
                    if not isinstance(one, EndOfStream):  # another run may go on behind it
                        yield one
            if not found:
                if not follow:
                    return
                yield None  # a safe point
                time.sleep(PAUSE)


def _together(payloads: list[Any]) -> Iterator[Batch[Any] | Punctuation | EndOfStream]:
    """Return batches as they came, items that came one by one in small batches, and the control items between them."""
    single = Batch[Any]()
    for payload in payloads:
        rows = () if isinstance(payload, CONTROL) else payload if type(payload) is list else to_items(payload)
        if len(rows) == 1 and len(single) < TOGETHER:
            single += rows
            continue
        if single:
            yield single
        single = Batch(rows if len(rows) == 1 else ())
        if len(rows) != 1:
            yield Batch(rows) if rows else payload
    if single:
        yield single
