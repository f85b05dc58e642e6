"""The identity of a platform: its certificate, its key, the authority that it trusts, and contexts of mutual TLS 1.3.

An identity is a folder with `ca.pem`, `NAME.pem`, `NAME.key` and `revoked.pem`, made by `exop certs issue NAME`. The
name of a platform is the common name of its certificate.
"""

from __future__ import annotations

import errno
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from exop.errors import IdentityError, PeerRefused
from exop.logs import logger
from exop.remoting.transport.sockets import in_words

#: Reasons of a failed handshake: parts of OpenSSL's names of errors and alerts, each with the problem and the cure.
_REASONS: Final = {
    "NOT_YET_VALID": "{whose} is not valid yet; compare the clocks of both hosts",
    "CERTIFICATE_EXPIRED": "{whose} has expired; issue a new one: `exop certs issue {name} --renew`",
    "CERTIFICATE_REVOKED": "{whose} is revoked; issue a new one: `exop certs issue {name}`",
    "UNKNOWN_CA": "{whose} is of another authority; issue both certificates by one authority",
    "CERTIFICATE_REQUIRED": "a certificate is required; give an identity: --identity DIR",
    "DID_NOT_RETURN": "a certificate is required; give an identity: --identity DIR",
    "BAD_CERTIFICATE": "{whose} is not valid; compare the clocks of both hosts",
    "PROTOCOL": "TLS 1.3 is required; update the other side",
    "HTTP_REQUEST": "the other side uses HTTP; only platforms connect here",
    "WRONG_VERSION": "the other side does not use TLS; give the same kind of address on both sides",
    "EOF": "the connection ended during the handshake; see the log of the other side",
}
#: The same names for the results of a verification (`X509_V_ERR_…`).
_RESULTS: Final = {9: "NOT_YET_VALID", 10: "CERTIFICATE_EXPIRED", 23: "CERTIFICATE_REVOKED"} | dict.fromkeys(
    (7, 18, 19, 20, 21), "UNKNOWN_CA"
)
_DAY: Final = 86_400


class PeerCertificate(NamedTuple):
    """The certificate of a connected peer: the name, the serial number, and the end of its validity (UNIX time)."""

    name: str
    serial: int
    expires: float


class Files(NamedTuple):
    """The content of the folder at one time.

    Attributes:
        server: The context for accepted connections.
        client: The context for opened connections. It checks no names: call `Identity.peer` after the handshake.
    """

    own: PeerCertificate
    revoked: frozenset[int]
    server: ssl.SSLContext
    client: ssl.SSLContext


class Identity:
    """The certificate and the key of a platform, and the authority whose certificates it accepts.

    The files are read again when they change, so that a revocation or a renewal needs no restart. If the new files are
    unusable, the previous ones remain in force, and the log and `problem` contain the reason.

    Raises:
        IdentityError: a file is missing or unusable, other users can read the key, or the certificate is expired, not
            yet valid, revoked or of another authority.
    """

    def __init__(self, folder: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        self.folder = Path(folder)
        self.problem = ""
        self._clock = clock
        self._lock = threading.Lock()
        self._warned = 0.0
        self._revoked: dict[int, frozenset[int]] = {}
        self._seen = self._stamps()
        self._files = self._read()
        self.warn()

    def warn(self) -> None:
        """Log, once a day, that the certificate expires within 30 days."""
        now, own = self._clock(), self.files().own
        if (left := own.expires - now) < 30 * _DAY and now >= self._warned + _DAY:
            self._warned = now
            logger("exop.remoting").warning("the certificate expires soon", name=own.name, days=int(left / _DAY))

    def peer(self, sock: ssl.SSLSocket) -> PeerCertificate:
        """Return the certificate of the peer after a handshake; raises `PeerRefused` if it names no platform."""
        facts: Any = sock.getpeercert() or {}
        names = [value for part in facts.get("subject", ()) for key, value in part if key == "commonName"]
        if len(names) != 1 or not names[0]:
            raise PeerRefused(address="the peer's address", problem="its certificate does not name one platform")
        return PeerCertificate(names[0], int(facts["serialNumber"], 16), ssl.cert_time_to_seconds(facts["notAfter"]))

    def objection(self, peer: PeerCertificate) -> str:
        """Return why an open connection of a peer must end, because its certificate is revoked or has expired."""
        reason = "REVOKED" if peer.serial in self.files().revoked else "EXPIRED" if peer.expires < self._clock() else ""
        whose = f"the certificate {peer.serial:x} of {peer.name}"
        return _REASONS[f"CERTIFICATE_{reason}"].format(whose=whose, name=peer.name) if reason else ""

    def files(self) -> Files:
        """Return the content of the folder, read again if it has changed: ask for it per connection."""
        with self._lock:
            if (stamps := self._stamps()) != self._seen:
                try:
                    self._files, self._seen, self.problem = self._read(), stamps, ""
                except IdentityError as error:
                    self._seen, self.problem = stamps, str(error)
                    logger("exop.remoting").error("the new files of the identity are unusable", error=str(error))
            return self._files

    def _stamps(self) -> tuple[object, ...]:
        return file_stamps((*self.folder.glob("*.pem"), *self.folder.glob("*.key")))

    def _read(self) -> Files:
        # Imported lazily: only platforms with an identity need the library cryptography.
        from exop.remoting.authority import CA, name_of, newest_revoked, problem_at, read_certificate

        key, now = self._key(), self._clock()
        certificate, authority = read_certificate(path := key.with_suffix(".pem")), read_certificate(self.folder / CA)
        expires = certificate.not_valid_after_utc.timestamp()
        own = PeerCertificate(name_of(certificate), certificate.serial_number, expires)
        revoked = newest_revoked(self.folder, authority, self._revoked)
        again = f"issue a new one: `exop certs issue {own.name}"
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:  # noqa: BLE001 (the library raises errors of several classes)
            raise problem_at(path, f"it was not issued by {CA} beside it", "copy the whole folder again") from None
        if own.serial in revoked:
            raise problem_at(path, "it is revoked", f"{again}`")
        if own.expires < now:
            raise problem_at(path, "it has expired", f"{again} --renew`")
        if (begin := certificate.not_valid_before_utc).timestamp() > now:
            raise problem_at(path, f"it is valid only from {begin:%F %T} UTC", "set the clock of this host")
        try:
            sides = [self._context(side, path, key) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)]
        except OSError as error:
            raise problem_at(path, f"it does not fit {key.name}: {error}", "copy the whole folder again") from None
        return Files(own, revoked, *sides)

    def _key(self) -> Path:
        """Return the file with the key of the platform."""
        from exop.remoting.authority import CA_KEY, problem_at

        keys = sorted(self.folder.glob("*.key"))
        if (copied := self.folder / CA_KEY) in keys:
            cure = "remove it, unless this is the host of the authority, and give the folder NAME of an identity"
            raise problem_at(copied, "it is the key of the authority, by which any platform can be imitated", cure)
        if len(keys) != 1:
            found = f"it contains {len(keys)} keys instead of one" if self.folder.is_dir() else "no such folder"
            cure = "give the folder NAME that `exop certs issue NAME` has made, or a copy of it"
            raise problem_at(self.folder, found, cure)
        if keys[0].stat().st_mode & 0o077:
            raise problem_at(keys[0], "other users can read it", f"chmod 600 {keys[0]}")
        return keys[0]

    def _context(self, side: int, certificate: Path, key: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF | ssl.VERIFY_X509_STRICT
        context.load_verify_locations(self.folder / "ca.pem")
        context.load_verify_locations(self.folder / "revoked.pem")
        context.load_cert_chain(certificate, key)
        if side == ssl.PROTOCOL_TLS_SERVER:
            # A resumed session is not verified again: a revoked certificate would be accepted.
            context.num_tickets = 0
        return context


def explain(error: OSError, identity: Identity | None = None, peer: str = "") -> str:
    """Return the problem and the cure of a failed TLS handshake with *peer*, on the side that refuses and the other."""
    reason = _RESULTS.get(getattr(error, "verify_code", 0)) or str(getattr(error, "reason", None) or "")
    if isinstance(error, ssl.SSLEOFError | ConnectionError) or error.errno == errno.ENOTCONN:  # also without TLS
        reason = "EOF"
    found = next((text for part, text in _REASONS.items() if part in reason), "")
    own = identity.files().own.name if identity is not None and "ALERT" in reason else ""
    whose = f"for the other side, the certificate of {own}" if own else "its certificate"
    found = found.format(whose=whose, name=own or peer or "NAME")
    return found or f"the TLS handshake failed: {getattr(error, 'verify_message', '') or in_words(error)}"


def file_stamps(paths: Iterable[Path]) -> tuple[object, ...]:
    """Return a value that changes when one of the files is written, replaced or removed, or its mode changes."""
    found: list[object] = []
    for path in sorted(paths):
        with suppress(OSError):  # there is no such file (any more)
            facts = path.stat()
            found.append((str(path), facts.st_ino, facts.st_mode, facts.st_size, facts.st_mtime_ns))
    return tuple(found)
