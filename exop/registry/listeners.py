"""Subscriptions to changes of services, indexed by the property values that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from types import TracebackType
from typing import Self

from exop.model.filter import Filter, Term
from exop.model.properties import Scalar
from exop.registry.index import keys_of
from exop.registry.reference import Change, ServiceEvent, ServiceReference

_number = attrgetter("number")


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

    def touched_by(self, *references: ServiceReference | None) -> Iterable[Subscription]:
        """The subscriptions that may care about a change of a service, the oldest first."""
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
