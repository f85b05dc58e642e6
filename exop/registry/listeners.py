"""Subscriptions to changes of services, and trackers, indexed by the property values in their filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeAlias

from exop.model.filter import Filter, Term
from exop.model.properties import Scalar
from exop.registry.index import ServiceReference, keys_of

_number, _order = attrgetter("number"), attrgetter("order")
#: A callback of a tracker, called with a service.
Callback: TypeAlias = Callable[[ServiceReference], object]


class Change(Enum):
    """An event of a service, as seen by one filter."""

    ADDED = "added"
    MODIFIED = "modified"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """A service came to fit a filter, changed while it fitted, or ceased to fit.

    `service` is the newest snapshot (of a service that was unregistered: the last one), `before` the one of before a
    modification.
    """

    change: Change
    service: ServiceReference
    before: ServiceReference | None = None


class Subscription:
    """A listener and the filter it follows, until it is closed."""

    def __init__(
        self, wanted: Filter, callback: Callable[[ServiceEvent], object], close: Callable[[Subscription], None]
    ) -> None:
        #: The filter that is followed.
        self.filter = wanted
        self.number = -1
        self.open = True
        self.place: Term = ()
        self._callback = callback
        self._close = close

    def close(self) -> None:
        """Stop listening; what was not delivered yet is dropped. A second call does nothing."""
        self._close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def update(self, event: ServiceEvent) -> bool:
        """Record an event at once, under the registry's lock; return whether to queue it, too."""
        return True

    def closing_events(self) -> Iterable[ServiceEvent]:
        """Return the events to deliver when the subscription is closed; called under the registry's lock."""
        return ()

    def deliver(self, event: ServiceEvent) -> None:
        """Pass a queued event to the listener, in order, outside of all locks."""
        if self.open:
            self._callback(event)

    def announce(
        self,
        old: ServiceReference | None,
        new: ServiceReference | None,
        queue: Callable[[Subscription, ServiceEvent], None],
    ) -> None:
        """Record a change from *old* to *new*, and queue its event, if the change concerns this filter."""
        test = self.filter.test
        was = old is not None and test(old.properties)
        if new is not None and test(new.properties):
            event = ServiceEvent(Change.MODIFIED, new, old) if was else ServiceEvent(Change.ADDED, new)
        elif old is not None and was:
            event = ServiceEvent(Change.REMOVED, old if new is None else new, None if new is None else old)
        else:
            return
        if self.update(event):
            queue(self, event)


class ServiceTracker(Subscription):
    """The services that fit a filter, always current, from its creation until it is closed.

    The tracker itself shows the registry as it is: a service is there, for every thread, when `register()` returns. The
    callbacks get the same changes one after the other (see `delivery` for when): first `added` for the services already
    present; when the tracker is closed, `removed` for those that are left. Each service that was added is removed once.
    """

    def __init__(
        self,
        wanted: Filter,
        callbacks: Mapping[Change, Callback | None],
        close: Callable[[Subscription], None],
        lock: Lock,
    ) -> None:
        super().__init__(wanted, self.deliver, close)
        self._callbacks = callbacks
        self._lock = lock
        self._present: dict[int, ServiceReference] = {}
        self._sorted: tuple[ServiceReference, ...] | None = ()

    @property
    def references(self) -> tuple[ServiceReference, ...]:
        """The services that fit now, in order: by ranking, then by age."""
        found = self._sorted
        if found is None:
            with self._lock:
                found = self._sorted = tuple(sorted(self._present.values(), key=_order))
        return found

    @property
    def services(self) -> tuple[Any, ...]:
        """The service objects that fit now, in order."""
        return tuple(reference.service for reference in self.references)

    @property
    def first(self) -> ServiceReference | None:
        """The service that comes first; `None` while there is none."""
        return next(iter(self.references), None)

    def __len__(self) -> int:
        return len(self._present)

    def __iter__(self) -> Iterator[ServiceReference]:
        return iter(self.references)

    def __contains__(self, reference: object) -> bool:
        return isinstance(reference, ServiceReference) and self._present.get(reference.id) == reference

    def update(self, event: ServiceEvent) -> bool:
        """Keep the contents current."""
        if event.change is Change.REMOVED:
            del self._present[event.service.id]
        else:
            self._present[event.service.id] = event.service
        self._sorted = None
        return self._callbacks[event.change] is not None

    def closing_events(self) -> list[ServiceEvent]:
        """Remove the services that are left, and return their events."""
        left = sorted(self._present.values(), key=_order)
        self._present.clear()
        self._sorted = ()
        return [ServiceEvent(Change.REMOVED, reference) for reference in left]

    def deliver(self, event: ServiceEvent) -> None:
        """Call the callback of an event, also after the tracker was closed: an added service is always removed."""
        callback = self._callbacks[event.change]
        if callback is not None:
            callback(event.service)


class SubscriptionIndex:
    """All subscriptions, each under one equality of its filter; guarded by the registry's lock.

    A service without that value cannot fit, so a change is tested against few subscriptions: a hundred listeners for a
    hundred nodes cost little more than one.
    """

    def __init__(self) -> None:
        self._next = 0
        self._unconditional: dict[Subscription, None] = {}
        self._by_value: dict[str, dict[Scalar, dict[Subscription, None]]] = {}

    def add(self, subscription: Subscription) -> None:
        """Add a subscription under the equality of its filter that has the fewest others.

        Of several without any it takes the last: people write the general condition before the particular one.
        """
        subscription.number = self._next
        self._next += 1
        terms = subscription.filter.terms
        if not terms:
            self._unconditional[subscription] = None
            return
        subscription.place = min(reversed(terms), key=self._count)
        for name, key in subscription.place:
            self._by_value.setdefault(name, {}).setdefault(key, {})[subscription] = None

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription, if it is still there."""
        self._unconditional.pop(subscription, None)
        for name, key in subscription.place:
            by_value = self._by_value[name]
            del by_value[key][subscription]
            if not by_value[key]:
                del by_value[key]
            if not by_value:
                del self._by_value[name]
        subscription.place = ()

    def announce(
        self,
        old: ServiceReference | None,
        new: ServiceReference | None,
        queue: Callable[[Subscription, ServiceEvent], None],
    ) -> None:
        """Queue the events of a change for the subscriptions that it concerns, the oldest first."""
        for subscription in self._touched_by(old, new):
            subscription.announce(old, new, queue)

    def _touched_by(self, *references: ServiceReference | None) -> Iterable[Subscription]:
        if not self._by_value:
            return self._unconditional
        found = dict(self._unconditional)
        for reference in references:
            if reference is not None:
                properties = reference.properties
                for name, by_value in self._by_value.items():
                    if name in properties:
                        value = properties[name]
                        for key in (value,) if type(value) is str or type(value) is int else keys_of(value):
                            found.update(by_value.get(key, {}))
        return sorted(found, key=_number) if len(found) > 1 else found

    def _count(self, term: Term) -> int:
        return sum(len(self._by_value.get(name, {}).get(key, ())) for name, key in term)
