"""The service registry: the services, their interfaces and their properties."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from types import TracebackType
from typing import Any, Self

from exop.errors import RegistryError
from exop.model.filter import Filter
from exop.model.properties import INTERFACE, SERVICE_ID, Given, freeze
from exop.registry.delivery import Delivery
from exop.registry.index import ServiceIndex, ServiceReference
from exop.registry.listeners import Callbacks, ServiceEvent, ServiceTracker, Subscription, SubscriptionIndex
from exop.registry.lookup import Lookup


class ServiceRegistry(Lookup):
    """Services under interfaces with properties: registered, modified, unregistered, found, followed.

    Safe under threads: a change is made, and its events are put in order, under one lock; look-ups take the same lock
    for as long as they walk what the index gives them. Listeners are called outside of it (see `delivery`).

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
        """Offer *service* under one or more interfaces; who asks or listens sees it at once.

        Raises:
            RegistryError: no interface, a property that is no plain value, or one that the registry sets itself.
        """
        names = (interfaces,) if isinstance(interfaces, str) else tuple(interfaces)
        if not names or not all(names):
            raise RegistryError("a service is registered under at least one interface, and each has a name")
        frozen = freeze(properties) if properties else {}
        _refuse_reserved(frozen)
        with self._lock:
            self._last_id += 1
            reference = self._services.add(self._last_id, names, service, frozen)
            self._subscriptions.announce(None, reference, self._delivery.queue)
        return Registration(self, reference.id)

    def get(self, service_id: int) -> ServiceReference:
        """Return the service with this identifier.

        Raises:
            ServiceGone: there is no such service, or not any more.
        """
        with self._lock:
            return self._services.get(service_id)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until every change made so far has been delivered to listeners; return whether it has.

        Listeners are called by a thread of their own: a change returns without waiting for them.

        Raises:
            RegistryError: called by a listener, which would wait for itself.
        """
        return self._delivery.settle(timeout)

    def hanging(self) -> list[dict[str, Any]]:
        """Return the listeners that hang, as plain data: filter, seconds, events that they miss, and stack."""
        return self._delivery.hanging()

    def __len__(self) -> int:
        return len(self._services)

    def _find(self, wanted: Filter) -> list[ServiceReference]:
        test = wanted.test
        with self._lock:
            return [found for found in self._services.candidates(wanted.terms) if test(found.properties)]

    def _find_one(self, wanted: Filter) -> ServiceReference | None:
        test = wanted.test
        with self._lock:
            for found in self._services.candidates(wanted.terms):
                if test(found.properties):
                    return found
        return None

    def _track(self, wanted: Filter, callbacks: Callbacks) -> ServiceTracker:
        tracker = ServiceTracker(wanted, callbacks, self._close, self._lock)
        with self._lock:
            for reference in self._services.candidates(wanted.terms):
                tracker.take(None, reference, self._delivery.queue)
            self._subscriptions.add(tracker)
        return tracker

    def _listen(self, wanted: Filter, callback: Callable[[ServiceEvent], object]) -> Subscription:
        subscription = Subscription(wanted, callback, self._close)
        with self._lock:
            self._subscriptions.add(subscription)
        return subscription

    def _close(self, subscription: Subscription) -> None:
        with self._lock:
            if not subscription.open:
                return
            subscription.open = False
            self._subscriptions.remove(subscription)
            for event in subscription.farewell():
                self._delivery.queue(subscription, event)

    def _modify(self, service_id: int, changes: Mapping[str, Given | None]) -> ServiceReference:
        removed = {name for name, value in changes.items() if value is None}
        frozen = freeze({name: value for name, value in changes.items() if value is not None})
        _refuse_reserved(changes)
        with self._lock:
            old, new = self._services.modify(service_id, removed, frozen)
            self._subscriptions.announce(old, new, self._delivery.queue)
        return new

    def _unregister(self, service_id: int) -> bool:
        with self._lock:
            reference = self._services.pop(service_id)
            if reference is not None:
                self._subscriptions.announce(reference, None, self._delivery.queue)
        return reference is not None


class Registration:
    """The handle of a registered service: the only way to modify or unregister it.

    As a context manager it unregisters the service at the end of the block.
    """

    __slots__ = ("_registry", "id")

    def __init__(self, registry: ServiceRegistry, service_id: int) -> None:
        self._registry = registry
        #: The identifier of the service.
        self.id = service_id

    @property
    def reference(self) -> ServiceReference:
        """The service as it is now.

        Raises:
            ServiceGone: it was unregistered.
        """
        return self._registry.get(self.id)

    def update(self, properties: Mapping[str, Given | None]) -> ServiceReference:
        """Set these properties and keep the others; one that is set to `None` is removed.

        Raises:
            ServiceGone: the service was unregistered.
            RegistryError: a property is no plain value, or one that the registry sets itself.
        """
        return self._registry._modify(self.id, properties)

    def unregister(self) -> bool:
        """Take the service out; return whether it was still there. A second call does nothing."""
        return self._registry._unregister(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.unregister()


def _refuse_reserved(properties: Mapping[str, object]) -> None:
    if INTERFACE in properties or SERVICE_ID in properties:
        name = INTERFACE if INTERFACE in properties else SERVICE_ID
        raise RegistryError(f"the property {name!r} is set by the registry; leave it out", property=name)
