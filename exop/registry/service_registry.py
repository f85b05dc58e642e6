"""The service registry: services are registered with interfaces and properties, found by filter, and tracked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

from exop.errors import RegistryError
from exop.model.filter import ANYTHING, And, Filter, as_filter, where
from exop.model.properties import INTERFACE, SERVICE_ID, Given, freeze
from exop.registry.delivery import Delivery
from exop.registry.index import ServiceIndex, ServiceReference
from exop.registry.listeners import Callback, Change, ServiceEvent, ServiceTracker, Subscription, SubscriptionIndex


class ServiceRegistry:
    """Registers, modifies, unregisters, finds and tracks services, which have interfaces and properties.

    An interface is one more condition of a look-up: `find("Channel", "(host=h1)")` means
    `(&(interface=Channel)(host=h1))`. A query is a `Filter`, a filter as a string, or `None` for all services; an
    invalid string raises `FilterSyntaxError`.

    Thread-safe: one lock guards a change and the order of its events; look-ups hold the same lock while they read the
    index. Listeners are called without the lock (see `delivery`).

    >>> registry = ServiceRegistry()
    >>> jams = registry.register("Slet", object(), {"node": "jams", "role": "pi"})
    >>> with registry.track("Slet", "(role=pi)") as found:
    ...     averages = registry.register("Slet", object(), {"node": "averages", "role": "pi"})
    ...     [reference.properties["node"] for reference in found]
    ['jams', 'averages']
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._services = ServiceIndex()
        self._subscriptions = SubscriptionIndex()
        self._delivery = Delivery()
        self._last_id = 0

    def register(
        self, interfaces: str | Iterable[str], service: Any, properties: Mapping[str, Given] | None = None
    ) -> Registration:
        """Register *service* under one or more interfaces; look-ups and trackers return it at once.

        Raises:
            RegistryError: no interface is given, a property is not a plain value, or the registry itself sets it.
        """
        if not (names := (interfaces,) if isinstance(interfaces, str) else tuple(interfaces)) or not all(names):
            raise RegistryError("a service needs at least one interface, and an interface is a name")
        frozen = freeze(properties) if properties else {}
        _refuse_reserved(frozen)
        with self._lock:
            self._last_id += 1
            reference = self._services.add(self._last_id, names, service, frozen)
            self._subscriptions.announce(None, reference)
        return Registration(self, reference.id)

    def get(self, service_id: int) -> ServiceReference:
        """Return the service with this identifier.

        Raises:
            ServiceGone: no such service is registered.
        """
        with self._lock:
            return self._services.get(service_id)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until the events of all previous changes are delivered to listeners; return whether they are.

        Another thread calls the listeners, so a method that changes the registry returns without waiting for them.

        Raises:
            RegistryError: a listener calls this method, and would wait for itself.
        """
        return self._delivery.settle(timeout)

    def hanging(self) -> list[dict[str, Any]]:
        """Return the listeners that hang as plain data: filter, seconds, number of waiting events, and stack."""
        return self._delivery.hanging()

    def __len__(self) -> int:
        return len(self._services)

    def find(self, interface: str | None = None, query: Filter | str | None = None) -> list[ServiceReference]:
        """Return the matching services, ordered by ranking (the highest first), then by age."""
        wanted = _wanted(interface, query)
        test = wanted.test
        with self._lock:
            return [found for found in self._services.candidates(wanted.terms) if test(found.properties)]

    def track(
        self,
        interface: str | None = None,
        query: Filter | str | None = None,
        *,
        added: Callback | None = None,
        modified: Callback | None = None,
        removed: Callback | None = None,
    ) -> ServiceTracker:
        """Track the matching services until the tracker is closed or its `with` block ends.

        `added` is first called for the services that are already registered, in order; see `ServiceTracker`.

            with registry.track("Channel", "(channel.kind=queue)", added=connect, removed=disconnect) as queues:
                queues.first        # the one with the highest ranking, or None
        """
        wanted = _wanted(interface, query)
        given = {Change.ADDED: added, Change.MODIFIED: modified, Change.REMOVED: removed}
        callbacks = {change: callback for change, callback in given.items() if callback is not None}
        tracker = ServiceTracker(self, wanted, callbacks)
        with self._lock:
            for reference in self._services.candidates(wanted.terms):
                tracker.announce(None, reference)
            self._subscriptions.add(tracker)
        return tracker

    def listen(self, query: Filter | str | None, callback: Callable[[ServiceEvent], object]) -> Subscription:
        """Call *callback* with every event of the matching services until the returned subscription is closed."""
        subscription = Subscription(self, as_filter(query), dict.fromkeys(Change, callback))
        with self._lock:
            self._subscriptions.add(subscription)
        return subscription

    def _close(self, subscription: Subscription) -> None:
        with self._lock:
            if not subscription.open:
                return
            subscription.open = False
            self._subscriptions.remove(subscription)
            if isinstance(subscription, ServiceTracker):
                for reference in self._services.candidates(subscription.filter.terms):
                    subscription.announce(reference, None)

    def _modify(self, service_id: int, changes: Mapping[str, Given | None]) -> ServiceReference:
        removed = {name for name, value in changes.items() if value is None}
        frozen = freeze({name: value for name, value in changes.items() if value is not None})
        _refuse_reserved(changes)
        with self._lock:
            old, new = self._services.modify(service_id, removed, frozen)
            self._subscriptions.announce(old, new)
        return new

    def _unregister(self, service_id: int) -> bool:
        with self._lock:
            if (reference := self._services.pop(service_id)) is not None:
                self._subscriptions.announce(reference, None)
        return reference is not None


@dataclass(slots=True, eq=False)
class Registration:
    """The handle of a registered service: the only way to modify or unregister it."""

    _registry: ServiceRegistry
    #: The identifier of the service.
    id: int

    @property
    def reference(self) -> ServiceReference:
        """The current snapshot of the service.

        Raises:
            ServiceGone: the service was unregistered.
        """
        return self._registry.get(self.id)

    def update(self, properties: Mapping[str, Given | None]) -> ServiceReference:
        """Set these properties, and remove those whose value is `None`; the others remain unchanged.

        Raises:
            ServiceGone: the service was unregistered.
            RegistryError: a property is not a plain value, or the registry itself sets it.
        """
        return self._registry._modify(self.id, properties)

    def unregister(self) -> bool:
        """Unregister the service; return whether it was still registered. A second call does nothing."""
        return self._registry._unregister(self.id)


def _refuse_reserved(properties: Mapping[str, object]) -> None:
    if INTERFACE in properties or SERVICE_ID in properties:
        name = INTERFACE if INTERFACE in properties else SERVICE_ID
        raise RegistryError(f"the property {name!r} is set by the registry; omit it", property=name)


@lru_cache(maxsize=4096)
def _wanted(interface: str | None, query: Filter | str | None) -> Filter:
    """Return one filter for an interface and a query; cached, so that repeated look-ups compile it once."""
    if interface is None:
        return as_filter(query)
    if interface.startswith("("):
        raise RegistryError(f"{interface!r} is a filter, not an interface: find(None, {interface!r})")
    condition, rest = where({INTERFACE: interface}), as_filter(query)
    return condition if rest is ANYTHING else And((condition, rest))
