"""The interpreter of a platform: its lock, how soon threads hand it over, and how a change gives way to streams."""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import Final

from exop.errors import PlanError

#: How long a thread may keep the interpreter while another one waits for it, in seconds. Python's own 5 ms would be
#: the price of every hand-over between busy drivers; and at 1 ms a driver that lets go more often by itself (small
#: writes to a file) can keep others waiting for seconds, since each time it wins the race to take the lock again. At
#: 0.2 ms neither happens, and the throughput of two busy drivers is the same.
SWITCH_INTERVAL: Final = 0.0002
#: Seconds for which a thread that gives way lets go of the interpreter: until another one has woken up.
BREATH: Final = 0.00005
#: The switch interval before each platform that runs: the first one shortens it, the last one restores it.
_BEFORE: Final[list[float]] = []
_LOCK: Final = threading.Lock()


def check_lock() -> None:
    """Refuse an interpreter without a global lock: the safe points of drivers rely on its order of memory accesses.

    Raises:
        PlanError: this is a free-threaded Python whose lock is off.
    """
    enabled = getattr(sys, "_is_gil_enabled", None)  # from Python 3.13 on
    if enabled is not None and not enabled():
        raise PlanError(
            "this Python runs without the global interpreter lock (free-threaded), on which the safe points of streams "
            "rely; run it with `python -X gil=1` or PYTHON_GIL=1, or use a Python that is not built free-threaded"
        )


def shorten_switch_interval() -> None:
    """Let threads hand the interpreter over sooner, for one more platform; `restore_switch_interval` undoes it."""
    with _LOCK:
        _BEFORE.append(_BEFORE[0] if _BEFORE else sys.getswitchinterval())
        if len(_BEFORE) == 1:
            sys.setswitchinterval(min(_BEFORE[0], SWITCH_INTERVAL))


def restore_switch_interval() -> None:
    """Put back, with the last platform that closes, the switch interval of before the first one."""
    with _LOCK:
        before = _BEFORE.pop()
        if not _BEFORE:
            sys.setswitchinterval(before)


def give_way() -> None:
    """Let the streams go on before they ask for it: called between the short pieces of work of a change.

    A driver that has to ask waits for the switch interval, a timer and its own wake-up: on a busy machine several times
    as long as a change keeps the interpreter.
    """
    time.sleep(BREATH)


def collect_young() -> None:
    """Collect the youngest objects (50 µs), so that those of a pause start no collection in the midst of it."""
    if gc.isenabled():
        gc.collect(0)
