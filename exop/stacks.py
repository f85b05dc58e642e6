"""Stacks of running threads. No garbage is collected while they are read, nor in a pause of the stream."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from types import CodeType, FrameType
from typing import Final

from exop.safe_repr import PARSING, clean

#: So many of the innermost frames of a stack are shown.
FRAMES: Final = 12
#: Packages of the platform whose frames are left out of a stack; slets are in others.
_OURS: Final = tuple(f"exop.{one}." for one in ("hosts", "model", "registry", "remoting", "runtime", "wiring"))
#: For each block without collections: whether they are to be resumed after it.
_UNCOLLECTED: Final[list[bool]] = []
_LOCK: Final = threading.Lock()


@contextmanager
def uncollected() -> Iterator[None]:
    """Put off garbage collections during the block, in all threads.

    One that looks at all objects of the process takes 10 ms for 40,000 of them.
    """
    with _LOCK:
        _UNCOLLECTED.append(_UNCOLLECTED[0] if _UNCOLLECTED else gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            if _UNCOLLECTED.pop() and not _UNCOLLECTED:
                gc.enable()


@contextmanager
def frames_of_threads() -> Iterator[dict[int, FrameType]]:
    """Yield the innermost frame of each thread by its number; the stacks may be walked within the block.

    No garbage is collected meanwhile: before Python 3.12 `f_back` may start a collection, in which the other thread
    leaves the very frame that is being read, and the process crashes.
    """
    with uncollected():
        yield sys._current_frames()


def frames_within(thread: int | None, entry: CodeType) -> list[tuple[FrameType, int]]:
    """Return the frames of a thread inside of the call of *entry*, and their lines, innermost first."""
    with frames_of_threads() as innermost:
        walked = traceback.walk_stack(innermost[thread]) if thread in innermost else ()
        return list(takewhile(lambda one: one[0].f_code is not entry, walked))


def stack_of(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return a running stack as Python prints it, without frames of the platform; the first frame is the innermost."""
    users = (one for one in frames if not str(one[0].f_globals.get("__name__")).startswith(_OURS))
    with PARSING:
        return clean("".join(traceback.StackSummary.extract(reversed(list(islice(users, FRAMES)))).format()))
