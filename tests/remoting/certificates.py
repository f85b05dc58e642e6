"""Identities for the tests of TLS, and a peer that checks nothing and sends any certificate."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from exop.remoting.authority import create_authority, issue
from exop.remoting.identity import Files, PeerCertificate


class Authority:
    """An authority in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        create_authority(folder)

    def issue(self, name: str, *, since: float = 0.0, days: int = 1) -> Path:
        """Issue a certificate that is valid for *days* from *since* days on; return the folder of the identity."""
        return issue(self.folder, name, days=days, now=datetime.now(UTC) + timedelta(days=since))


class Forger:
    """A stand-in for an identity: sends the certificate in *folder*, or none, and accepts every peer."""

    def __init__(self, folder: Path | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        self._folder = folder
        self._newest = newest

    def files(self) -> Files:
        """The contexts for accepted and for dialled connections."""
        sides = (self._context(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
        return Files(PeerCertificate("anyone", 0, 0.0), frozenset(), *sides)

    def peer(self, sock: ssl.SSLSocket) -> PeerCertificate:
        """Accept the peer under any name."""
        return PeerCertificate("anyone", 0, 0.0)

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.maximum_version = self._newest
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if self._folder is not None:
            (key,) = self._folder.glob("*.key")
            context.load_cert_chain(key.with_suffix(".pem") if key.stem != "ca" else self._folder / "ca.pem", key)
        return context


#: Peers that no platform accepts: made from the authority of the platform and another one; the error of OpenSSL, and
#: the reason in the log.
UNACCEPTABLE: dict[str, tuple[Callable[[Authority, Authority], Any], str, str]] = {
    "no certificate": (
        lambda own, other: Forger(None),
        "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "a certificate is required",
    ),
    "an expired certificate": (
        lambda own, other: Forger(own.issue("expired", since=-9)),
        "certificate has expired",
        "its certificate has expired",
    ),
    "a future certificate": (
        lambda own, other: Forger(own.issue("future", since=9)),
        "certificate is not yet valid",
        "its certificate is not valid yet",
    ),
    "a certificate of another authority": (
        lambda own, other: Forger(other.issue("here")),
        "verify failed",
        "its certificate is of another authority",
    ),
    "a self-signed certificate": (
        lambda own, other: Forger(other.folder),
        "self-signed certificate",
        "its certificate is of another authority",
    ),
    "TLS 1.2": (
        lambda own, other: Forger(own.issue("old"), ssl.TLSVersion.TLSv1_2),
        "UNSUPPORTED_PROTOCOL",
        "TLS 1.3 is required",
    ),
}
