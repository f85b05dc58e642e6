"""A platform that is attacked over the network."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import msgpack

from exop.remoting import ControlClient
from exop.remoting.identity import Identity
from exop.remoting.transport.endpoints import Endpoint, dial
from tests.remoting.certificates import Authority
from tests.remoting.target import RawPeer, Target

PATIENCE = 60.0
GROWTH = 20.0
"""MiB that an attack may cost, at its peak."""


class Attacked(Target):
    """A platform under attack, in a process of its own, and the certificates of its peers."""

    authority: Authority
    other: Authority
    good: Identity
    evil: Identity
    others: dict[str, Identity]

    @classmethod
    def begin(cls, folder: Path, *more: Path) -> Attacked:
        """Start it with the identity `target`, and *more* arguments; make the identities `good` and `evil`."""
        authority = Authority(folder / "authority")
        attacked = cls.start(sys.executable, folder / "control.sock", authority.issue("target"), *more)
        assert isinstance(attacked, Attacked)
        attacked.authority, attacked.other = authority, Authority(folder / "other")
        attacked.good, attacked.evil = (Identity(authority.issue(name)) for name in ("good", "evil"))
        return attacked

    def client(self, identity: Identity, **given: Any) -> ControlClient:
        """A client by TLS."""
        return ControlClient(self.uris["tls"], identity=identity, timeout=PATIENCE, **given)

    def plain(self, scheme: str) -> RawPeer:
        """A bare TCP connection to a port, without any handshake."""
        address = ("127.0.0.1", Endpoint.parse(self.uris[scheme]).port)
        return RawPeer(Path(), dialled=socket.create_connection(address, PATIENCE))

    def connected(self, scheme: str, identity: Any = None) -> RawPeer:
        """A connection after the handshake of its transport: by default with the certificate of `good`."""
        sock, _ = dial(self.uris[scheme], PATIENCE, identity or self.good)
        return RawPeer(Path(), dialled=sock)

    def greeted(self, scheme: str, **fields: str) -> RawPeer:
        """A connection after the greeting."""
        peer = self.connected(scheme)
        assert msgpack.unpackb(peer.greet(platform="target", **fields))["type"] == "welcome"
        return peer
