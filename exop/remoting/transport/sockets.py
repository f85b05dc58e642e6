"""Unix sockets for their owner only: created atomically, tested for a living listener, at paths of any length."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from exop.errors import AddressInUse, AddressUnusable

LONGEST_NAME = 107
"""The largest length of a socket address, in bytes."""
_BACKLOG = 128
_PROBE_TIME = 1.0
_CREDENTIALS = struct.Struct("3i")
_TIME = struct.Struct("ll")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel reports it."""

    pid: int
    uid: int

    @property
    def trusted(self) -> bool:
        """Whether it belongs to our own user or to root."""
        return self.uid in (os.geteuid(), 0)


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket and its file.

    Attributes:
        pid: The process that made it. A forked child holds the socket, too, and must not remove the file.
    """

    path: Path
    sock: socket.socket
    inode: int
    pid: int = field(default_factory=os.getpid)

    @property
    def is_ours(self) -> bool:
        """Whether this process made it."""
        return self.pid == os.getpid()

    def close(self) -> None:
        """Stop listening and remove the file, unless another process has replaced it."""
        self.sock.close()
        if not self.is_ours or not self.path.parent.is_dir():
            return
        with locked(self.path.parent), suppress(FileNotFoundError):
            if self.path.lstat().st_ino == self.inode:
                self.path.unlink()


def peer_of(sock: socket.socket) -> Peer:
    """Ask the kernel for the process at the other end of *sock*."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def listen(path: Path) -> Listener:
    """Listen at *path*; the socket of a dead process there is replaced."""
    if not hasattr(socket, "SO_PEERCRED"):
        problem = "this system does not report the process at the other end"
        raise AddressUnusable(address=str(path), problem=problem, cure="run it on Linux")
    with locked(path.parent):
        _refuse_if_taken(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The socket gets its final name only when it listens and has the mode of its owner: a client may therefore
        # take a socket that refuses it for dead.
        fresh = path.with_name(f".{path.name}.new")
        try:
            fresh.unlink(missing_ok=True)
            with short_name(fresh) as name:
                sock.bind(name)
            fresh.chmod(0o600)
            sock.listen(_BACKLOG)
            fresh.rename(path)
        except OSError as problem:
            sock.close()
            raise AddressUnusable(
                address=str(path), problem=problem.strerror, cure="take a directory that can hold a socket"
            ) from None
        return Listener(path, sock, path.lstat().st_ino)


def dial(path: Path, timeout: float) -> socket.socket:
    """Connect to the socket at *path*; the connection is in blocking mode."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A non-blocking connect does not wait for room in the queue of a Unix socket; a send timeout bounds the wait.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(int(timeout), int(timeout % 1 * 1e6)))
        with short_name(path) as name:
            sock.connect(name)
    except BaseException:
        sock.close()
        raise
    return sock


def holder(path: Path) -> Peer | None:
    """Return the process that listens at *path*; `None` if there is none."""
    try:
        with dial(path, _PROBE_TIME) as sock:
            peer = peer_of(sock)
        # A forked child may hold the socket of a dead platform open; it never answers.
        return peer if _runs(peer.pid) else None
    except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
        return None
    except BlockingIOError:
        # Its queue is full: a process listens, and more is not known.
        return Peer(0, os.geteuid())


def _refuse_if_taken(path: Path) -> None:
    """Raise unless *path* is free or the socket of a dead process; called under `locked`."""
    if path.exists() and not path.is_socket():
        raise AddressUnusable(address=str(path), problem="it is no socket", cure="move it away")
    try:
        other = holder(path)
    except OSError as problem:
        raise AddressUnusable(
            address=str(path), problem=problem.strerror, cure="remove it if no platform runs there"
        ) from None
    if other is not None:
        raise AddressInUse(address=str(path), pid=other.pid)


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name of *path* that fits into a socket address: a long path goes through a descriptor of its directory."""
    if len(os.fsencode(path)) <= LONGEST_NAME:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Prevent other processes from making or removing sockets in *directory* meanwhile."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(directory / ".control.lock", flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _runs(pid: int) -> bool:
    """Whether the process exists. The pid of a process in another container is 0, which here means this process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
