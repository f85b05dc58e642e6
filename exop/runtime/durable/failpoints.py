"""Named places at which a test lets the process be killed: `EXOP_FAILPOINT=checkpoint-captured:3` at the third time.

The variable is read once; without it a failpoint costs one comparison.
"""

from __future__ import annotations

import os
import signal
from typing import Final

#: Every failpoint, and where it stands.
FAILPOINTS: Final = {
    "checkpoint-begin": "nothing is parked yet",
    "checkpoint-captured": "everything is captured, all drivers are parked still",
    "checkpoint-released": "the stream runs again, nothing is written yet",
    "checkpoint-writing": "written, but not committed",
    "checkpoint-committed": "committed",
    "change-made": "a change has been made, and is in no checkpoint yet",
}

_NAME, _, _TIMES = os.environ.get("EXOP_FAILPOINT", "").partition(":")
_left = [int(_TIMES) if _TIMES.isdigit() else 1]


def failpoint(name: str) -> None:
    """Kill the process here, if it was started so."""
    if name == _NAME:
        _left[0] -= 1
        if _left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
