"""How a thread that changes a mesh shares the interpreter with the streams that run."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: So long a thread lets go of the interpreter when it gives way, in seconds: until another one has woken up.
BREATH = 0.00005


def give_way() -> None:
    """Let the streams go on before they ask for it.

    A driver that has to ask waits for the switch interval, a timer and its own wake-up: on a busy machine several times
    as long as a change keeps it. So whoever prepares a change does so in short pieces.
    """
    time.sleep(BREATH)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from running while the streams stand still: it would take longer than a change.

    It runs as soon as it is due afterwards. One that is off already stays so.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
