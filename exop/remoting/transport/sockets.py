"""Unix sockets for their owner only: created atomically, tested for a living listener, at paths of any length."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from exop.errors import AddressInUse, AddressUnusable, PeerRefused

if TYPE_CHECKING:
    from exop.remoting.identity import PeerCertificate

LONGEST_NAME = 107  #: The largest length of a socket address, in bytes.
BACKLOG = 128
_CREDENTIALS = struct.Struct("3i")
_TIME = struct.Struct("ll")


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, as far as its transport identifies it.

    Attributes:
        pid: Its process; 0 if unknown.
        uid: Its user on this host; `None` if it is identified by a certificate, or unknown.
        name: The name in its certificate; on other transports, the name of the platform in its greeting.
        certificate: Its certificate, of a TLS connection.
        address: Its address, for messages.
        run: Of a platform, what it has made up when it started: it tells two platforms of one name apart.
    """

    pid: int = 0
    uid: int | None = None
    name: str = ""
    certificate: PeerCertificate | None = None
    address: str = ""
    run: str = ""

    @property
    def trusted(self) -> bool:
        """Whether it belongs to our own user or to root, on this host."""
        return self.uid in (os.geteuid(), 0)

    def __str__(self) -> str:
        if self.certificate is not None:
            return f"platform {self.name} ({self.address})"
        process = f" (process {self.pid})" if self.pid else f" ({self.address})"
        return (f"platform {self.name}, " if self.name else "") + f"user {self.uid}{process}"


class Listener:
    """A listening socket; peers are identified by the kernel.

    Attributes:
        address: The URI at which it listens, with the port that the kernel has chosen.
    """

    def __init__(self, address: str, sock: socket.socket) -> None:
        self.address = address
        self.sock = sock
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process made it; a forked child has a copy only."""
        return self._pid == os.getpid()

    def identify(self, sock: socket.socket, deadline: float) -> tuple[socket.socket, Peer]:
        """Identify the peer of an accepted connection; returns the socket to use from now on.

        Waits for the peer until *deadline* (of `time.monotonic`).

        Raises:
            PeerRefused: the peer belongs to another user.
            OSError: the peer does not complete a TLS handshake, or its certificate is not accepted.
        """
        peer = replace(peer_of(sock), address=self.address)
        check_owner(peer, self.address)
        return sock, peer

    def close(self) -> None:
        """Stop listening."""
        self.sock.close()


class UnixListener(Listener):
    """A listening Unix socket and its file; *link* is a symbolic link to the file, if there is one."""

    def __init__(self, path: Path, sock: socket.socket) -> None:
        super().__init__(f"unix:{path}", sock)
        self.path = path
        self.link: Path | None = None
        self._inode = path.lstat().st_ino

    def close(self) -> None:
        """Stop listening and remove the file, unless another process has replaced it, and the link."""
        self.sock.close()
        if not self.is_ours:  # a forked child holds the socket, too, and must not remove the file
            return
        if self.link is not None:
            self.link.unlink(missing_ok=True)
        with suppress(FileNotFoundError, NotADirectoryError), locked(self.path.parent):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()


def check_owner(peer: Peer, address: str) -> None:
    """Raise `PeerRefused` unless *peer* belongs to our own user or to root."""
    if not peer.trusted:
        raise PeerRefused(address=address, problem=f"it serves its owner only, and you are user {peer.uid}")


def peer_of(sock: socket.socket) -> Peer:
    """Ask the kernel for the process at the other end of *sock*."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def listen(path: Path) -> UnixListener:
    """Listen at *path*; the socket of a dead process there is replaced."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise unusable(path, "this system does not report the process at the other end", "run it on Linux")
    with locked(path.parent):
        if path.exists() and not path.is_socket():
            raise unusable(path, "it is no socket", "move it away")
        try:
            other = holder(path)
        except OSError as problem:
            raise unusable(path, problem, "remove it if no platform runs there") from None
        if other is not None:
            raise AddressInUse(address=str(path), pid=other.pid)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The socket gets its final name only when it listens and has the mode of its owner: a client may therefore
        # take a socket that refuses it for dead.
        fresh = path.with_name(f".{path.name}.new")
        try:
            fresh.unlink(missing_ok=True)
            with short_name(fresh) as name:
                sock.bind(name)
            fresh.chmod(0o600)
            sock.listen(BACKLOG)
            fresh.rename(path)
        except OSError as problem:
            sock.close()
            raise unusable(path, problem, "take a directory that can hold a socket") from None
        return UnixListener(path, sock)


def in_words(problem: Exception | str) -> str:
    """Return the text of an error; of one of the kernel or TLS without numbers and places in the code."""
    if not isinstance(problem, OSError):
        return str(problem)
    reason = str(getattr(problem, "reason", None) or "").replace("_", " ").lower()  # of TLS
    return reason or problem.strerror or str(problem) or type(problem).__name__


def unusable(path: Path, problem: OSError | str, cure: str) -> AddressUnusable:
    """Return the error about a socket or directory."""
    return AddressUnusable(address=str(path), problem=in_words(problem), cure=cure)


def dial(path: Path, timeout: float) -> socket.socket:
    """Connect to the socket at *path*; the connection is in blocking mode."""
    with short_name(path) as name:
        return connect(name, timeout)


def connect(name: str | bytes, timeout: float) -> socket.socket:
    """Connect to the Unix socket with this address."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A non-blocking connect does not wait for room in the queue of a Unix socket; a send timeout bounds the wait.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(int(timeout), int(timeout % 1 * 1e6)))
        sock.connect(name)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(0, 0))
    except BaseException:
        sock.close()
        raise
    return sock


def holder(path: Path) -> Peer | None:
    """Return the process that listens at *path*; `None` if there is none."""
    try:
        with dial(path, timeout=1.0) as sock:
            peer = peer_of(sock)
        with suppress(PermissionError):  # a process of another user
            # A forked child may hold the socket of a dead platform open; it never answers. The pid of a process in
            # another container is 0, which here means this process.
            os.kill(peer.pid, 0)
        return peer
    except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return None
    except BlockingIOError:
        # Its queue is full: a process listens, and more is not known.
        return Peer(0, os.geteuid())


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
    lock = os.open(directory / ".control.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
