"""Unix sockets for their owner only: made without a gap, found alive or dead, whatever their path's length."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from exop.errors import AddressInUse, AddressUnusable

LONGEST_NAME = 107
"""Bytes that a socket address has room for."""
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
    """A listening socket and the file that stands for it.

    Attributes:
        pid: The process that made it. A child that it forks holds the socket, too, and must leave the file alone.
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
        with locked(self.path.parent):
            if _inode(self.path) == self.inode:
                self.path.unlink()


def peer_of(sock: socket.socket) -> Peer:
    """Ask the kernel for the process at the other end of *sock*."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def listen(path: Path) -> Listener:
    """Listen at *path*; a file that a dead process has left there is replaced.

    Raises:
        AddressInUse: a living process listens there.
        AddressUnusable: something else stands there, or no socket can be made.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        raise AddressUnusable(
            address=str(path), problem="this system does not tell who is at the other end", cure="run it on Linux"
        )
    with locked(path.parent):
        refuse_if_taken(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Under its final name the socket is there only when it listens already, and for its owner only: a client
        # that it refuses may therefore take it for dead.
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
        return Listener(path, sock, _inode(path))


def dial(path: Path, timeout: float) -> socket.socket:
    """Connect to the socket at *path*; the connection is in blocking mode.

    Raises:
        OSError: as the kernel says it (`BlockingIOError`: its queue was full all the time).
    """
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
    """Return the process that listens at *path*; `None` if there is none.

    Raises:
        OSError: it cannot be found out.
    """
    try:
        with dial(path, _PROBE_TIME) as sock:
            peer = peer_of(sock)
        # A forked child may hold the socket of a dead platform open; it never answers.
        return peer if _runs(peer.pid) else None
    except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
        return None
    except BlockingIOError:
        # Its queue is full: it lives, and the kernel tells no more.
        return Peer(0, os.geteuid())


def refuse_if_taken(path: Path) -> None:
    """Let a free place or a dead socket pass; call it under `locked`.

    Raises:
        AddressInUse: a living process listens there.
        AddressUnusable: something that is no socket stands there.
    """
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
    """A name of *path* that fits into a socket address.

    The bound is on the name that is given, not on where the socket lies: a longer one goes through the open directory.
    """
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
    """Keep other processes from making or removing sockets in *directory* meanwhile."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(directory / ".control.lock", flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _runs(pid: int) -> bool:
    """Whether the process is there. The kernel names one of another container 0, which here means ourselves."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _inode(path: Path) -> int:
    try:
        return path.lstat().st_ino
    except OSError as problem:
        if problem.errno == errno.ENOENT:
            return 0
        raise
