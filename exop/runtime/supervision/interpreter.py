"""The Python interpreter: its global lock, the switch interval of threads, and yields of a change to streams."""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import Final

from exop.errors import PlanError

#: Seconds for which a thread may hold the interpreter while another one waits for it. Python's own 5 ms would delay
#: every hand-over between busy drivers. At 1 ms, a driver that often releases the lock by itself (small writes to a
#: file) can starve others for seconds, since it wins each race to take the lock again. At 0.2 ms neither happens, and
#: the throughput of two busy drivers is the same.
SWITCH_INTERVAL: Final = 0.0002
#: The original switch interval, once for each running platform: the first shortens it, the last restores it.
_BEFORE: Final[list[float]] = []
_LOCK: Final = threading.Lock()


def check_lock() -> None:
    """Refuse an interpreter without a global lock: the safe points of drivers rely on its order of memory accesses."""
    if (enabled := getattr(sys, "_is_gil_enabled", None)) is not None and not enabled():  # from Python 3.13 on
        raise PlanError(
            "this Python runs without the global interpreter lock (free-threaded), on which the safe points of streams "
            "rely; run it with `python -X gil=1` or PYTHON_GIL=1, or use a Python that is not built free-threaded"
        )


def shorten_switch_interval() -> None:
    """Shorten the switch interval for one more platform; `restore_switch_interval` undoes it."""
    with _LOCK:
        _BEFORE.append(_BEFORE[0] if _BEFORE else sys.getswitchinterval())
        if len(_BEFORE) == 1:
            sys.setswitchinterval(min(_BEFORE[0], SWITCH_INTERVAL))


def restore_switch_interval() -> None:
    """Restore the switch interval when the last platform closes."""
    with _LOCK:
        before = _BEFORE.pop()
        if not _BEFORE:
            sys.setswitchinterval(before)


def yield_gil() -> None:
    """Release the interpreter between the short steps of a change.

    A driver that has to request the interpreter waits for the switch interval, a timer and its own wake-up; on a busy
    machine, this takes several times as long as the step itself.
    """
    time.sleep(0.00005)  # until another thread has woken up


def collect_young() -> None:
    """Collect the youngest generation (50 µs), so that the objects of a pause start no collection during it."""
    if gc.isenabled():
        gc.collect(0)
