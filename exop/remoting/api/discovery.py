"""The running platforms of this user: every entry of the run directory is asked for its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exop.errors import RemotingError
from exop.remoting.api.rundir import Entry, find_entries
from exop.remoting.transport.client import ControlClient


@dataclass(frozen=True, slots=True)
class RunningPlatform:
    """A platform of this user that listens."""

    pid: int
    address: Path
    name: str = ""
    exop: str = ""
    problem: str = ""
    """Why it does not answer; empty when it does."""


#: Seconds for an answer: on a computer whose cores are all taken, saying hello alone needs more than one.
_PATIENCE = 5.0


def find_platforms(timeout: float = _PATIENCE) -> list[RunningPlatform]:
    """The running platforms of this user, those included that do not answer within *timeout*.

    What dead processes have left in the run directory is removed on the way.
    """
    return [_asked(entry, timeout) for entry in find_entries()]


def _asked(entry: Entry, timeout: float) -> RunningPlatform:
    try:
        with ControlClient(entry.address, timeout=timeout) as client:
            welcome = client.platform()
    except RemotingError as error:
        return RunningPlatform(entry.pid, entry.address, problem=str(error))
    return RunningPlatform(welcome.pid, entry.address, welcome.name, welcome.exop)
