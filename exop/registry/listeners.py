"""Subscriptions to changes of services, and trackers, indexed by the property values in their filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from exop.model.filter import Filter, Term
from exop.model.properties import Scalar
from exop.registry.index import ServiceReference, keys_of

if TYPE_CHECKING:
    from exop.registry.service_registry import ServiceRegistry


#: A callback: of a tracker, called with a service; of a listener, called with an event.
Callback: TypeAlias = Callable[[Any], object]


class Change(Enum):
    """The kind of an event, from the view of one filter."""

    ADDED = "added"
    MODIFIED = "modified"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """A service began to match a filter, was modified while it matched, or ceased to match.

    `service` is the newest snapshot, or the last one if the service was unregistered; `before` is that before.
    """

    change: Change
    service: ServiceReference
    before: ServiceReference | None = None


class Subscription:
    """A listener and its filter, until the subscription is closed."""

    def __init__(self, registry: ServiceRegistry, wanted: Filter, callbacks: Mapping[Change, Callback]) -> None:
        #: The filter that selects the services.
        self.filter = wanted
        #: The callbacks by the kinds of the events for which there is one.
        self.callbacks = callbacks
        self.number = -1
        self.open = True
        self.place: Term = ()
        self._registry = registry

    def close(self) -> None:
        """Stop listening, and drop the events that are not delivered yet. A second call does nothing."""
        self._registry._close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def deliver(self, event: ServiceEvent) -> None:
        """Pass a queued event to the listener. Called in the order of the events, without a lock."""
        if self.open:
            self.callbacks[event.change](event)

    def announce(self, old: ServiceReference | None, new: ServiceReference | None) -> None:
        """Queue the event of a change from *old* to *new*, if this filter matches either and there is a callback."""
        test = self.filter.test
        was = old is not None and test(old.properties)
        if new is not None and test(new.properties):
            event = ServiceEvent(Change.MODIFIED, new, old) if was else ServiceEvent(Change.ADDED, new)
        elif old is not None and was:
            event = ServiceEvent(Change.REMOVED, old if new is None else new, None if new is None else old)
        else:
            return
        if event.change in self.callbacks:
            self._registry._delivery.queue(self.deliver, event)


class ServiceTracker(Subscription):
    """The services that match a filter, always current, until the tracker is closed.

    The tracker always agrees with the registry: when `register()` returns, every thread sees the service. The callbacks
    are called for the same changes, one after the other, by the thread that `delivery` describes: at first `added` for
    the services that are already registered, and when the tracker is closed, `removed` for the remaining ones. Each
    call of `added` is followed by exactly one call of `removed`.
    """

    @property
    def references(self) -> tuple[ServiceReference, ...]:
        """The services that match now, ordered by ranking, then by age."""
        return tuple(self._registry.find(None, self.filter)) if self.open else ()

    @property
    def first(self) -> ServiceReference | None:
        """The first of the matching services; `None` while there is none."""
        return next(iter(self.references), None)

    def __len__(self) -> int:
        return len(self.references)

    def __iter__(self) -> Iterator[ServiceReference]:
        return iter(self.references)

    def deliver(self, event: ServiceEvent) -> None:
        """Call the callback of an event, also after the tracker was closed: each `added` is followed by `removed`."""
        self.callbacks[event.change](event.service)


class SubscriptionIndex:
    """All subscriptions, each stored under one equality of its filter; callers hold the registry's lock.

    A service without this value cannot match, so that a change is tested against few subscriptions: a hundred listeners
    for a hundred nodes cost little more than one.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._unconditional: dict[Subscription, None] = {}
        self._by_value: dict[str, dict[Scalar, dict[Subscription, None]]] = {}

    def add(self, subscription: Subscription) -> None:
        """Add a subscription under the equality of its filter that has the fewest subscriptions.

        Of several equalities without any, the last is chosen, because filters usually begin with the most general one.
        """
        subscription.number = next(self._numbers)
        if not (terms := subscription.filter.terms):
            self._unconditional[subscription] = None
            return
        subscription.place = min(reversed(terms), key=self._count)
        for name, key in subscription.place:
            self._by_value.setdefault(name, {}).setdefault(key, {})[subscription] = None

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription, if it is still stored."""
        self._unconditional.pop(subscription, None)
        for name, key in subscription.place:
            by_value = self._by_value[name]
            del by_value[key][subscription]
            if not by_value[key]:
                del by_value[key]
            if not by_value:
                del self._by_value[name]
        subscription.place = ()

    def announce(self, old: ServiceReference | None, new: ServiceReference | None) -> None:
        """Queue the events of a change for the subscriptions whose filters match, the oldest first."""
        found = dict(self._unconditional)
        for reference in filter(None, (old, new)) if self._by_value else ():
            for name, by_value in self._by_value.items():
                if (value := reference.properties.get(name)) is not None:
                    for key in (value,) if type(value) is str or type(value) is int else keys_of(value):
                        found.update(by_value.get(key, {}))
        for subscription in sorted(found, key=attrgetter("number")):
            subscription.announce(old, new)

    def _count(self, term: Term) -> int:
        return sum(len(self._by_value.get(name, {}).get(key, ())) for name, key in term)
