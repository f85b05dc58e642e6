"""Discovery: an announced platform is found on the local network until it withdraws."""

import os
import socket
import struct

import pytest

from exop import __version__
from exop.errors import AddressUnusable
from exop.remoting.peers.discovery import Announcement, announce, announcements
from tests.rig import eventually

LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module")
def multicast() -> None:
    """Skip where a multicast message does not come back to its sender."""
    pytest.importorskip("zeroconf")
    group = ("224.0.0.252", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(("", 0))
            member = struct.pack("4s4s", socket.inet_aton(group[0]), socket.inet_aton(LOOPBACK))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
            sock.settimeout(2)
            sock.sendto(b"?", (group[0], sock.getsockname()[1]))
            sock.recv(1)
        except OSError as problem:
            pytest.skip(f"multicast is not possible here: {problem}")


def found(name: str) -> list[Announcement]:
    """What is announced under a name on loopback."""
    return [one for one in announcements(2.5, [LOOPBACK]) if one.name == name]


@pytest.mark.usefixtures("multicast")
def test_an_announced_platform_is_found_until_it_withdraws():
    """The announcement has the name, the address and the release; afterwards it is gone."""
    name = f"a.b {os.getpid()}"  # other processes of this host are found, too
    withdraw = announce(name, uri := "tcp://127.0.0.1:7701")
    try:
        eventually(lambda: [(one.uri, one.exop) for one in found(name)] == [(uri, __version__)], "the announcement")
    finally:
        withdraw()
    eventually(lambda: found(name) == [], "the end of the announcement")


@pytest.mark.parametrize("uri", ["inproc:a", "unix:/run/a.sock", "tls://localhost"])
def test_an_address_of_this_host_alone_cannot_be_announced(uri):
    """Only addresses with a host and a port lead other hosts here; the error has the cure."""
    pytest.importorskip("zeroconf")
    with pytest.raises(AddressUnusable, match="listen at tls://HOST:PORT"):
        announce("a", uri)
