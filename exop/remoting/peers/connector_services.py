"""The services of remote connectors: each is in the registry while its peer can be reached (paper §4.3).

A smart connector (of the mode `offline`, or a reader with a `cache`) works without its peer, so its service stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from exop.model import properties as names
from exop.registry import Registration, ServiceReference, ServiceRegistry
from exop.runtime.channels.connector import LOST

CONNECTOR: Final = "Connector"
#: The direction of the items, by the channel kind of the half of a connector on this platform.
DIRECTIONS: Final = {"outbox": "out", "inbox": "in", "reader": "in"}


class ConnectorServices:
    """Registers and unregisters the services of connectors as their peers are *connected*, by name, or lost."""

    def __init__(self, registry: ServiceRegistry, connected: Callable[[str], bool]) -> None:
        self._registry = registry
        self._connected = connected
        self._lock = threading.Lock()
        self._registered: dict[ServiceReference, Registration | None] = {}
        kinds = "".join(f"({names.CHANNEL_KIND}={kind})" for kind in DIRECTIONS)
        self._tracker = registry.track("Channel", f"(|{kinds})", added=self._added, removed=self._removed)

    def refresh(self) -> None:
        """Register and unregister services after a peer has connected or was lost."""
        with self._lock:
            for channel in self._registered:
                self._follow(channel)

    def lost(self) -> dict[str, str]:
        """The connectors whose outbox here has lost its state or that of its inbox, by key, each with the cure."""
        with self._lock:
            halves: list[Any] = [channel.service for channel in self._registered]
        return {half.key: half.trouble for half in halves if getattr(half, "state", "") == LOST}

    def close(self) -> None:
        """Unregister all services."""
        self._tracker.close()
        self._registry.settle()

    def _added(self, channel: ServiceReference) -> None:
        with self._lock:
            self._registered[channel] = None
            self._follow(channel)

    def _removed(self, channel: ServiceReference) -> None:
        with self._lock:
            if (registration := self._registered.pop(channel)) is not None:
                registration.unregister()

    def _follow(self, channel: ServiceReference) -> None:
        half: Any = channel.service
        settings, of = half.asked.settings, channel.properties
        registration = self._registered[channel]
        smart = settings.get("mode") == "offline" or settings.get("cache")
        if not (smart or self._connected(settings["peer"])):
            if registration is not None:
                registration.unregister()
                self._registered[channel] = None
        elif registration is None:
            properties = {
                names.KIND: "connector",
                names.NAME: settings.get("key", half.asked.name),
                names.HOST: of[names.HOST],
                names.APPLICATION: of[names.APPLICATION],
                names.PEER: settings["peer"],
                names.DIRECTION: DIRECTIONS[str(of[names.CHANNEL_KIND])],
                names.CONNECTED_TO: of[names.INSTANCE],
            }
            self._registered[channel] = self._registry.register(CONNECTOR, half, properties)
