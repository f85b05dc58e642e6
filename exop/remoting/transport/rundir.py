"""The addresses of running platforms, and the run directory in which they are found.

With a state directory, a platform listens at `STATE/control.sock`; without one, at `PID.sock` in the run directory
(`$XDG_RUNTIME_DIR/exop`, or `$TMPDIR/exop-UID`). Every platform of this user has an entry in the run directory: the
socket itself, or a link to the one in its state directory.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from exop.errors import AddressInUse, AddressUnusable, RemotingError
from exop.remoting.transport.sockets import UnixListener, holder, listen, locked, unusable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunningPlatform:
    """A platform of this user that listens."""

    pid: int
    address: Path
    name: str = ""
    exop: str = ""
    problem: str = ""  #: Why it does not answer; empty when it does.


def find_platforms(timeout: float = 5.0) -> list[RunningPlatform]:
    """Return the running platforms of this user, including those that do not answer within *timeout* seconds.

    Entries of processes that have ended are removed from the run directory.
    """
    found = []
    for address, pid in find_entries().items():
        # Imported lazily: where no platform runs, neither rpyc nor msgspec is needed.
        from exop.remoting.transport.client import ControlClient

        # On a computer whose cores are all busy, the handshake alone needs more than a second.
        try:
            with ControlClient(address, timeout=timeout) as client:
                welcome = client.platform()
        except RemotingError as error:
            found.append(RunningPlatform(pid, address, problem=str(error)))
        else:
            found.append(RunningPlatform(welcome.pid, address, welcome.name, welcome.exop))
    return found


def control_address(state: Path) -> Path:
    """Return the address at which the platform with the state directory *state* listens."""
    return state.absolute() / "control.sock"


def socket_path(address: str | Path) -> Path:
    """The socket of an address: a path, `unix:` and a path, or a state directory."""
    path = Path(str(address).removeprefix("unix:"))
    return control_address(path) if path.is_dir() else path.absolute()


def run_directory() -> Path:
    """The run directory of this user; it is made if it is missing."""
    given, owner = os.environ.get("XDG_RUNTIME_DIR", ""), os.geteuid()
    # After su or sudo, the variable may still name the directory of the other user.
    if os.path.isdir(given) and os.stat(given).st_uid == owner:
        return private_directory(Path(given) / "exop")
    return private_directory(Path(os.environ.get("TMPDIR") or "/tmp") / f"exop-{owner}")


def private_directory(path: Path) -> Path:
    """Make *path* a directory that only its owner can enter."""
    _make(path)
    if not stat.S_ISDIR((found := path.lstat()).st_mode) or found.st_uid != os.geteuid():
        cure = "remove it, or set XDG_RUNTIME_DIR to a directory of your own, or give a state directory"
        raise unusable(path, "it is no directory of your own", cure)
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def claim(address: Path | None) -> UnixListener:
    """Listen at *address*, which the run directory then has a link to, or at a free name in the run directory."""
    if address is None:
        return _first_free(run_directory(), listen)
    _make(directory := address.parent)
    if directory.stat().st_mode & stat.S_IWOTH:  # otherwise, an existing directory may be shared
        raise unusable(directory, "every user may write there", f"chmod o-w {directory}, or take another directory")
    listener = listen(address)
    with suppress(AddressUnusable, OSError):  # clients that know the state directory still find it there
        listener.link = announce(address)
    return listener


def announce(address: Path) -> Path:
    """Put a link to *address* into the run directory, and return it."""

    def link(entry: Path) -> Path:
        if os.path.lexists(entry):
            if _alive(entry):
                raise AddressInUse(address=str(entry), pid=os.getpid())
            entry.unlink()
        entry.symlink_to(address)
        return entry

    directory = run_directory()
    with locked(directory):
        return _first_free(directory, link)


def find_entries() -> dict[Path, int]:
    """The addresses of this user's platforms that listen, with their processes; the entries of dead ones are removed.

    The link of a killed platform leads to its successor, once there is one in its state directory: the newest counts.
    """
    directory = run_directory()
    found: dict[Path, int] = {}
    for name in sorted(directory.glob("*.sock"), key=_made):
        if _alive(name):
            pid, _, _ = name.stem.partition("-")
            found[_target(name)] = int(pid) if pid.isdecimal() else 0
        else:
            with locked(directory):
                # Tested again under the lock: a new process may have taken the name meanwhile.
                if not _alive(name):
                    name.unlink(missing_ok=True)
    return found


def _first_free(directory: Path, take: Callable[[Path], T]) -> T:
    """Take `PID.sock`, or `PID-2.sock` and so on: one process may run several platforms."""
    for number in itertools.count(1):
        name = f"{os.getpid()}-{number}.sock" if number > 1 else f"{os.getpid()}.sock"
        with suppress(AddressInUse):
            return take(directory / name)
    raise AssertionError("unreachable: the count does not end")


def _alive(name: Path) -> bool:
    try:
        return holder(_target(name)) is not None
    except OSError:
        # Not known: an entry is not removed on suspicion.
        return True


def _made(name: Path) -> int:
    """Return the time in nanoseconds when an entry was made; the entry may have gone meanwhile."""
    try:
        return name.lstat().st_mtime_ns
    except OSError:
        return 0


def _target(name: Path) -> Path:
    return name.readlink() if name.is_symlink() else name


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise unusable(path, problem, "take a directory that you may write to") from None
