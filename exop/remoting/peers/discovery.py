"""Discovery of platforms on the local network by zeroconf (multicast DNS): announcing one, and finding the others.

An announcement is a hint that anyone can forge. `RemotingService.discover` therefore connects to each platform that it
finds, and reports those that it cannot use with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from exop.errors import AddressUnusable
from exop.remoting.transport.handshake import Hello

SERVICE: Final = "_exop._tcp.local."
#: The schemes of addresses that can be announced.
SCHEMES: Final = ("tls", "tcp")
#: The number of announcements that are examined.
MOST: Final = 64


class Announcement(NamedTuple):
    """A platform that announces itself: its name, address and release."""

    name: str
    uri: str
    exop: str


def announce(name: str, uri: str) -> Callable[[], None]:
    """Announce the platform *name* at the listening address *uri*; return the function that withdraws it.

    Raises:
        AddressUnusable: an address of this scheme cannot be announced, or the network does not permit multicast.
    """
    zeroconf, parts = _library(), urlsplit(uri)
    if parts.scheme not in SCHEMES or parts.port is None:
        cure = "listen at tls://HOST:PORT"
        raise AddressUnusable(address=uri, problem="it cannot be reached from another host", cure=cure)
    host = parts.hostname or ""
    hosts = zeroconf.get_all_addresses() if host in ("", "0.0.0.0", "::") else [host]
    texts = {"name": name, "scheme": parts.scheme, "exop": Hello().exop}
    label = name.encode()[:63].decode(errors="ignore")  # the longest one of DNS
    info = zeroconf.ServiceInfo(
        SERVICE, f"{label}.{SERVICE}", parts.port, properties=texts, parsed_addresses=hosts, server=f"{label}.local."
    )
    network = _network(zeroconf, [host] if host in ("127.0.0.1", "localhost", "::1") else None)
    network.register_service(info, allow_name_change=True, cooperating_responders=True)
    withdraw: Callable[[], None] = network.close
    return withdraw


def announcements(seconds: float, interfaces: Sequence[str] | None = None) -> list[Announcement]:
    """Listen for *seconds* on the *interfaces*, by default on all, and return the announced platforms by name.

    Raises:
        AddressUnusable: the network does not permit multicast.
    """
    library, found = _library(), dict[str, Announcement]()

    def changed(zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        info = zeroconf.get_service_info(service_type, name, timeout=500) if len(found) < MOST else None
        if info is not None and (announcement := _read(info)) is not None:
            found[name] = announcement

    with closing(_network(library, interfaces)) as network:
        browser = library.ServiceBrowser(network, SERVICE, handlers=[changed])
        time.sleep(seconds)
        browser.cancel()
    return sorted(found.values())


def _read(info: Any) -> Announcement | None:
    """Read an announcement; `None` if it is none of a platform."""
    texts = {key: (value or "")[:100] for key, value in info.decoded_properties.items()}
    if not (addresses := info.parsed_addresses()) or texts.get("scheme") not in SCHEMES or not texts.get("name"):
        return None
    host = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    return Announcement(texts["name"], f"{texts['scheme']}://{host}:{info.port}", texts.get("exop", ""))


def _network(zeroconf: Any, interfaces: Sequence[str] | None) -> Any:
    try:
        return zeroconf.Zeroconf(**({} if interfaces is None else {"interfaces": list(interfaces)}))
    except OSError as problem:
        reason = f"multicast is not possible ({problem.strerror or problem})"
        raise AddressUnusable(address=SERVICE, problem=reason, cure="connect with `exop connect URI`") from None


def _library() -> Any:
    """The library, imported lazily: an optional dependency.

    Raises:
        AddressUnusable: it is not installed.
    """
    try:
        import zeroconf
    except ImportError:
        cure = "run `pip install 'exop[discovery]'`"
        raise AddressUnusable(address=SERVICE, problem="discovery needs zeroconf", cure=cure) from None
    return zeroconf
