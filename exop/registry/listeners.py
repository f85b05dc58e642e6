"""Subscriptions to changes of services, and trackers, indexed by the property values that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
#: What a tracker calls with a service.
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

    def note(self, event: ServiceEvent) -> bool:
        """Take notice of an event at once, under the registry's lock; tell whether to queue it, too."""
        return True

    def farewell(self) -> Iterable[ServiceEvent]:
        """Return the events to deliver when the subscription is closed; called under the registry's lock."""
        return ()

    def tell(self, event: ServiceEvent) -> None:
        """Hand a queued event to the listener, in order, outside of all locks."""
        if self.open:
            self._callback(event)

    def take(
        self,
        old: ServiceReference | None,
        new: ServiceReference | None,
        queue: Callable[[Subscription, ServiceEvent], None],
    ) -> None:
        """Take notice of a change, and queue its event, if the change concerns this filter."""
        event = self.seen(old, new)
        if event is not None and self.note(event):
            queue(self, event)

    def seen(self, old: ServiceReference | None, new: ServiceReference | None) -> ServiceEvent | None:
        """Return the event that a change from *old* to *new* is for this filter; `None` if it does not concern it."""
        test = self.filter.test
        was = old is not None and test(old.properties)
        now = new is not None and test(new.properties)
        if new is not None and now:
            return ServiceEvent(Change.MODIFIED, new, old) if was else ServiceEvent(Change.ADDED, new)
        if old is not None and was:
            return ServiceEvent(Change.REMOVED, old if new is None else new, None if new is None else old)
        return None


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a tracker: a service comes to fit, changes while it fits, ceases to fit."""

    added: Callback | None = None
    modified: Callback | None = None
    removed: Callback | None = None


class ServiceTracker(Subscription):
    """The services that fit a filter, always current, from its creation until it is closed.

    The tracker itself shows the registry as it is: what `register()` has taken in is there when it returns, in every
    thread. The callbacks tell the same story one event after the other, starting with the services already present
    (see `delivery` for when) and ending, when the tracker is closed, with `removed` for those that are left: each
    service that was added is removed once.
    """

    def __init__(self, wanted: Filter, callbacks: Callbacks, close: Callable[[Subscription], None], lock: Lock) -> None:
        super().__init__(wanted, self._call, close)
        self._callbacks = {
            Change.ADDED: callbacks.added,
            Change.MODIFIED: callbacks.modified,
            Change.REMOVED: callbacks.removed,
        }
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

    def note(self, event: ServiceEvent) -> bool:
        """Keep the contents current."""
        if event.change is Change.REMOVED:
            del self._present[event.service.id]
        else:
            self._present[event.service.id] = event.service
        self._sorted = None
        return self._callbacks[event.change] is not None

    def farewell(self) -> list[ServiceEvent]:
        """Let go of the services that are left."""
        left = sorted(self._present.values(), key=_order)
        self._present.clear()
        self._sorted = ()
        return [ServiceEvent(Change.REMOVED, reference) for reference in left]

    def tell(self, event: ServiceEvent) -> None:
        """Call the callback of an event, also after the tracker was closed: what was added is removed."""
        self._call(event)

    def _call(self, event: ServiceEvent) -> None:
        callback = self._callbacks[event.change]
        if callback is not None:
            callback(event.service)


class SubscriptionIndex:
    """All subscriptions, each under one equality of its filter; guarded by the registry's lock.

    A service that lacks that value cannot fit, so a change only meets the subscriptions that may care: a hundred
    listeners for a hundred nodes cost little more than one.
    """

    def __init__(self) -> None:
        self._next = 0
        self._everything: dict[Subscription, None] = {}
        self._asking: dict[str, dict[Scalar, dict[Subscription, None]]] = {}

    def add(self, subscription: Subscription) -> None:
        """Take in a subscription, under the equality that the fewest others are under.

        Of several that nobody is under it is the last: people write the general before the particular.
        """
        subscription.number = self._next
        self._next += 1
        terms = subscription.filter.terms
        if not terms:
            self._everything[subscription] = None
            return
        subscription.place = min(reversed(terms), key=self._crowd)
        for name, key in subscription.place:
            self._asking.setdefault(name, {}).setdefault(key, {})[subscription] = None

    def remove(self, subscription: Subscription) -> None:
        """Drop a subscription, if it is still there."""
        self._everything.pop(subscription, None)
        for name, key in subscription.place:
            asking = self._asking[name]
            del asking[key][subscription]
            if not asking[key]:
                del asking[key]
            if not asking:
                del self._asking[name]
        subscription.place = ()

    def announce(
        self,
        old: ServiceReference | None,
        new: ServiceReference | None,
        queue: Callable[[Subscription, ServiceEvent], None],
    ) -> None:
        """Queue the events of a change for the subscriptions that it concerns, the oldest first."""
        for subscription in self._touched_by(old, new):
            subscription.take(old, new, queue)

    def _touched_by(self, *references: ServiceReference | None) -> Iterable[Subscription]:
        if not self._asking:
            return self._everything
        found = dict(self._everything)
        for reference in references:
            if reference is not None:
                properties = reference.properties
                for name, asking in self._asking.items():
                    if name in properties:
                        value = properties[name]
                        for key in (value,) if type(value) is str or type(value) is int else keys_of(value):
                            found.update(asking.get(key, {}))
        return sorted(found, key=_number) if len(found) > 1 else found

    def _crowd(self, term: Term) -> int:
        return sum(len(self._asking.get(name, {}).get(key, ())) for name, key in term)
