"""Named places at which a test kills the process: `EXOP_FAILPOINT=checkpoint-captured:3` at the third pass.

The variable is read once; without it, a failpoint calls a built-in function without effect. `bench.kills` has a table
of the names, each with the moment at which it is passed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

_NAME, _, _TIMES = os.environ.get("EXOP_FAILPOINT", "").partition(":")
_left = [int(_TIMES) if _TIMES.isdigit() else 1]


def _reach(name: str) -> None:
    if name == _NAME:
        _left[0] -= 1
        if _left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


#: Kills the process at this place, if the variable says so.
failpoint: Final[Callable[[str], object]] = _reach if _NAME else bool


def armed(name: str) -> bool:
    """Whether the process is to be killed at *name*; a step may then be split in two."""
    return name == _NAME
