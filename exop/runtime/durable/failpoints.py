"""Named places at which a test kills the process: `EXOP_FAILPOINT=checkpoint-captured:3` at the third pass.

The variable is read once; without it, a failpoint calls a built-in function without effect.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

#: Every failpoint, and the moment at which it is passed.
FAILPOINTS: Final = {
    "checkpoint-begin": "a checkpoint: nothing is parked yet",
    "memento-before": "a checkpoint or a change: everything is parked, no memento has been taken",
    "memento-after": "a checkpoint or a change: a memento has been taken",
    "checkpoint-captured": "a checkpoint: everything is captured, all drivers are parked still",
    "checkpoint-released": "a checkpoint: the stream runs again, nothing is written yet",
    "checkpoint-writing": "a checkpoint: written, but not committed",
    "checkpoint-committed": "a checkpoint: committed",
    "generation-written": "the state directory: a transaction is in the generation file, and not committed",
    "generation-committed": "the state directory: a transaction is committed, and the generation file does not say so",
    "checkpoint-put-out": "a checkpoint: the sinks have put out what belongs to it",
    "rebind-before": "a change: the states are handed over, the old connections are still bound",
    "rebind-after": "a change: the new connections are bound, all drivers are parked still",
    "exclusive-closed": "a change: the old slets that own what the new ones need are closed, these are not open yet",
    "change-made": "a change has been made, and is in no checkpoint yet",
    "plan-prepared-before": "a change over hosts: everything is cut, the host has not recorded its vote",
    "plan-prepared-after": "a change over hosts: the host has recorded its vote, and not sent it",
    "plan-committed-before": "a change over hosts: all have voted, the home has not recorded the commit",
    "plan-committed-after": "a change over hosts: the home has recorded the commit, and told no other host",
    "plan-settled-before": "a change over hosts: the host knows the outcome, and has not recorded it",
    "plan-settled-after": "a change over hosts: the host has recorded the outcome, and not carried it out",
    "plan-carried-out": "a change over hosts: the stream runs again, the checkpoint of the cut is not written",
    "log-append-before": "a log on disk: nothing of the batch is written",
    "log-append-half": "a log on disk: half of the batch is written",
    "log-append-after": "a log on disk: the batch is written, and not yet acknowledged",
    "engine-commit-before": "an engine: the output of a batch is in its log, the engine has not committed it",
    "engine-commit-after": "an engine: a batch is committed, the platform does not know it yet",
}

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
