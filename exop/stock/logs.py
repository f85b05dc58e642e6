"""`read_log`: a source that reads a log on disk, which another application, or another process, may be writing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.memento import Memento
from exop.model.slet import slet
from exop.runtime.convert import to_items
from exop.runtime.log.memory import Position

#: The number of events to read at a time.
LOT = 1000
#: Seconds between two looks for more.
PAUSE = 0.02


class Offset(Memento):
    """The offset of the next row, and the control items read since the last one; negative: nothing has been read."""

    offset: int = -1
    marks: int = 0


@slet
def read_log(offset: Offset, *, path: Path, follow: bool = False) -> Iterator[Any | Punctuation]:
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
            for payload in found:
                if isinstance(payload, CONTROL):
                    offset.marks += 1
                    if not isinstance(payload, EndOfStream):  # another run may go on behind it
                        yield payload
                    continue
                offset.marks = 0
                for row in to_items(payload):
                    offset.offset += 1
                    yield row
            if not found:
                if not follow:
                    return
                yield None  # a safe point
                time.sleep(PAUSE)
