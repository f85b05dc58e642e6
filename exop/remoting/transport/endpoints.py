"""The endpoints of connections between platforms, by the scheme of their URI: how to listen, and how to dial.

    unix:PATH                    a socket that only its owner can use
    tcp://[NAME@]127.0.0.1:PORT  loopback only, for processes of the same user
    tls://[NAME@]HOST:PORT       any network, with mutual TLS 1.3
    inproc:NAME                  a platform in the same process

NAME is the name that the platform at the address must have. Each transport identifies the peer: by the user that the
kernel reports, or by the name in the certificate.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from exop.errors import AddressInUse, AddressUnusable, PeerRefused, PeerUnreachable
from exop.remoting.transport import sockets
from exop.remoting.transport.sockets import Listener, Peer, check_owner, in_words, peer_of

if TYPE_CHECKING:
    from exop.remoting.identity import Identity

#: Seconds of silence before the kernel probes a TCP connection, between two probes, and until it ends the connection.
_IDLE, _INTERVAL, _SILENCE = 3, 1, 8
_ESTABLISHED, _LISTENING = "01", "0A"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a platform, parsed.

    Attributes:
        scheme: `unix`, `tcp`, `tls` or `inproc`.
        place: The path of a socket, the name of a platform in this process, or the host.
        port: The port of `tcp` and `tls`.
        platform: The name that the platform there must have; empty for any name.
    """

    scheme: str
    place: str
    port: int = 0
    platform: str = ""

    def __str__(self) -> str:
        if self.scheme in ("unix", "inproc"):
            return f"{self.scheme}:{self.place}"
        host = f"[{self.place}]" if ":" in self.place else self.place
        return f"{self.scheme}://{quote(self.platform) + '@' if self.platform else ''}{host}:{self.port}"

    @property
    def label(self) -> str:
        """The address for messages: the path of a Unix socket, or the URI."""
        return self.place if self.scheme == "unix" else str(self)

    @classmethod
    def parse(cls, uri: str | Path) -> Endpoint:
        """Parse a URI; a `Path`, or text with a slash and without a scheme, is the path of a socket.

        Raises:
            AddressUnusable: the text is none of these, a URI has no host or port, or that of `tcp` is no loopback.
        """
        text = str(uri)
        scheme, _, rest = text.partition(":")
        if scheme in ("unix", "inproc"):
            return cls(scheme, rest)
        if isinstance(uri, Path) or ("/" in text and ":" not in text.partition("/")[0]):
            return cls("unix", text)
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
            if scheme not in ("tcp", "tls") or not host or port is None or parts.path:
                raise ValueError("it is no address of a platform")
        except ValueError as problem:
            cure = "write tls://HOST:PORT, tcp://127.0.0.1:PORT, or the path of a socket, with a slash: ./NAME"
            raise AddressUnusable(address=text, problem=str(problem), cure=cure) from None
        if scheme == "tcp" and not _is_loopback(host):
            cure = "use tls:// with certificates (`exop certs`), or the host 127.0.0.1"
            raise AddressUnusable(address=text, problem="without TLS, only loopback addresses are used", cure=cure)
        return cls(scheme, host, port, unquote(parts.username or ""))


class TcpListener(Listener):
    """Listens for TCP: on a loopback address, or with an *identity*, which makes it TLS, on any address."""

    def __init__(self, endpoint: Endpoint, identity: Identity | None) -> None:
        self._identity = identity
        try:
            family = socket.AF_INET6 if ":" in endpoint.place else socket.AF_INET
            sock = socket.create_server((endpoint.place, endpoint.port), family=family, backlog=sockets.BACKLOG)
            set_options(sock)  # accepted sockets inherit them
        except OSError as problem:
            cure = "take another host or port"
            raise AddressUnusable(address=str(endpoint), problem=in_words(problem), cure=cure) from None
        super().__init__(str(replace(endpoint, port=sock.getsockname()[1])), sock)

    def identify(self, sock: socket.socket, deadline: float) -> tuple[socket.socket, Peer]:
        """Identify the peer by the user that owns its socket, or by the name in its certificate."""
        if self._identity is not None:
            return _secured(sock, self._identity, deadline, server_side=True)
        peer = Peer(uid=_owner(sock.getpeername(), sock.getsockname(), _ESTABLISHED), address=address_of(sock))
        if peer.uid is None:  # the kernel lists no open socket at the other end
            gone = "the caller gave up while the platform was stopped or busy; a platform dials again by itself"
            raise PeerRefused(address=self.address, problem=gone)
        check_owner(peer, self.address)
        return sock, peer


def listen(uri: str | Path, identity: Identity | None = None) -> Listener:
    """Listen at *uri*.

    Raises:
        AddressInUse: another process, or another platform of this process, listens there.
        AddressUnusable: it is not possible to listen there, or only with certificates, which are missing.
    """
    if (endpoint := Endpoint.parse(uri)).scheme == "unix":
        return sockets.listen(Path(endpoint.place).absolute())
    if endpoint.scheme == "inproc":
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.bind(_abstract(endpoint.place))
        except OSError:
            sock.close()
            raise AddressInUse(address=str(endpoint), pid=os.getpid()) from None
        sock.listen(sockets.BACKLOG)
        return Listener(str(endpoint), sock)
    return TcpListener(endpoint, needed(identity, endpoint))


def dial(uri: str | Path | Endpoint, timeout: float, identity: Identity | None = None) -> tuple[socket.socket, Peer]:
    """Connect to *uri* within *timeout* seconds, and identify the peer; the socket is in blocking mode.

    With TLS 1.3, the peer may still refuse our certificate: the first read shows it.

    Raises:
        PeerUnreachable: no process accepts connections there.
        PeerRefused: the process there belongs to another user; its certificate is not accepted, or that of another
            platform; or it does not use TLS.
        AddressUnusable: the URI is not valid, or TLS needs certificates, which are missing.
    """
    endpoint = uri if isinstance(uri, Endpoint) else Endpoint.parse(uri)
    own = needed(identity, endpoint)
    deadline = time.monotonic() + timeout
    sock: socket.socket | None = None
    try:
        sock = _connected(endpoint, timeout)
        if own is not None:
            sock, peer = _secured(sock, own, deadline, server_side=False)
            if endpoint.platform and peer.name != endpoint.platform:
                found = f"its certificate is that of {peer.name!r}, not of {endpoint.platform!r}"
                raise PeerRefused(address=endpoint.label, problem=found)
        else:
            peer = Peer(uid=_owner(sock.getpeername(), None, _LISTENING)) if endpoint.scheme == "tcp" else peer_of(sock)
            if not peer.trusted and os.geteuid() != 0:
                whose = f"it belongs to user {peer.uid}, not to you"
                found = "no process listens at exactly this address (any more)" if peer.uid is None else whose
                raise PeerRefused(address=endpoint.label, problem=found)
        return sock, replace(peer, address=endpoint.label)
    except BaseException as problem:
        if sock is not None:
            sock.close()
        if own is not None and isinstance(problem, OSError):
            import ssl

            from exop.remoting.identity import explain

            if isinstance(problem, ssl.SSLError):
                found = explain(problem, own, endpoint.platform)
                what = "is refused" if isinstance(problem, ssl.SSLCertVerificationError) else "refused"
                raise PeerRefused(f"the platform at {endpoint.label} {what}: {found}") from None
        if isinstance(problem, OSError):
            more = {"cure": "correct the host, or its entry in DNS"} if problem.errno == socket.EAI_NONAME else {}
            raise PeerUnreachable(address=endpoint.label, problem=in_words(problem), **more) from None
        raise


def set_options(sock: socket.socket) -> None:
    """Send small messages at once, and let the kernel end a connection whose peer is silent for 8 s."""
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _SILENCE - _IDLE),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE * 1000),
    ):
        sock.setsockopt(level, option, value)


def _connected(endpoint: Endpoint, timeout: float) -> socket.socket:
    if endpoint.scheme == "unix":
        return sockets.dial(Path(endpoint.place).absolute(), timeout)
    if endpoint.scheme == "inproc":
        return sockets.connect(_abstract(endpoint.place), timeout)
    sock = socket.create_connection((endpoint.place, endpoint.port), timeout)
    set_options(sock)
    sock.settimeout(None)
    return sock


def _abstract(name: str) -> bytes:
    """The address of a Unix socket without a file, for this process only."""
    import hashlib

    return b"\0exop-" + hashlib.sha256(f"{os.getpid()}:{name}".encode()).hexdigest().encode()


def _secured(
    sock: socket.socket, identity: Identity, deadline: float, *, server_side: bool
) -> tuple[socket.socket, Peer]:
    """Make the TLS handshake, which as a whole ends at *deadline*."""
    address = address_of(sock)
    context = identity.files().server if server_side else identity.files().client
    secured = context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)
    try:
        secured.settimeout(max(0.001, deadline - time.monotonic()))
        secured.do_handshake()
        secured.settimeout(None)
        certificate = identity.peer(secured)
    except BaseException:
        secured.close()
        raise
    return secured, Peer(name=certificate.name, certificate=certificate, address=address)


def _owner(local: tuple[Any, ...], remote: tuple[Any, ...] | None, state: str) -> int | None:
    """The user of the socket with these addresses, as the kernel lists it; `None` if it is not listed.

    Only the state asked for counts: a socket that its process has closed is listed as that of root.
    """
    family, nowhere = ("tcp6", "::") if ":" in str(local[0]) else ("tcp", "0.0.0.0")
    entry = f" {_listed(local)} {_listed(remote or (nowhere, 0))} {state} "
    with Path(f"/proc/net/{family}").open() as lines:  # line by line: the file may be large, and callers may be many
        return next((int(line.split()[7]) for line in lines if entry in line), None)


def _listed(address: tuple[Any, ...]) -> str:
    """An address in the notation of `/proc/net/tcp`: words of 32 bits in the byte order of the machine."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, address[0])
    words = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"


def address_of(sock: socket.socket) -> str:
    """Return the address of the other end of a TCP connection; empty if there is none (any more)."""
    try:
        host, port = sock.getpeername()[:2]
    except (OSError, ValueError):
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return host in ("localhost", "::1") or socket.inet_pton(socket.AF_INET, host)[0] == 127
    except OSError:  # a name
        return False


def needed(identity: Identity | None, endpoint: Endpoint) -> Identity | None:
    """Return the identity if the endpoint uses TLS; raise `AddressUnusable` if it is missing."""
    if endpoint.scheme == "tls" and identity is None:
        cure = "give the folder of the certificates (--identity; to a platform by `exop serve`) that `exop certs` makes"
        raise AddressUnusable(address=str(endpoint), problem="TLS needs certificates", cure=cure)
    return identity if endpoint.scheme == "tls" else None
