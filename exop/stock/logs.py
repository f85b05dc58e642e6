"""`read_log`: a source that reads what another application, or another process, keeps in a log on disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exop.model.memento import Memento
from exop.model.slet import slet

#: So many rows are read at a time.
LOT = 1000
#: After so many seconds it is looked again whether there is more.
PAUSE = 0.02


class Offset(Memento):
    """The offset of the next row; negative: none has been read yet."""

    offset: int = -1


@slet
def read_log(offset: Offset, *, path: Path, follow: bool = False) -> Iterator[Any]:
    """Emit what stands in a log on disk, from its oldest row on; goes on behind what was emitted before.

    With *follow* it waits for more. Of a durable application's log it reads what the last checkpoint counts: what comes
    behind that may be taken back after a crash.
    """
    # The encoding is paid for by those who read one.
    from exop.stock.log_reader import LogReader

    with LogReader(path) as log:
        while True:
            if offset.offset < 0:
                offset.offset = log.start
            rows = log.read(offset.offset, LOT)
            for row in rows:
                offset.offset += 1
                yield row
            if not rows:
                if not follow:
                    return
                yield None  # a safe point
                time.sleep(PAUSE)
