"""Asking a registry: what the whole registry and a narrowed one have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache

from exop.errors import RegistryError
from exop.model.filter import ANYTHING, And, Filter, Not, as_filter, where
from exop.model.properties import INTERFACE
from exop.registry.index import ServiceReference
from exop.registry.listeners import Callback, Callbacks, ServiceEvent, ServiceTracker, Subscription


class Lookup(ABC):
    """A set of services that can be asked and followed.

    An interface is one more condition: `find("Channel", "(host=h1)")` means `(&(interface=Channel)(host=h1))`.
    A query is a `Filter`, its text, or `None` for everything.

    Every method that takes text raises `FilterSyntaxError` for one that is no filter.
    """

    def find(self, interface: str | None = None, query: Filter | str | None = None) -> list[ServiceReference]:
        """Return the services that fit, by ranking (the higher first), then by age."""
        return self._find(wanted(interface, query))

    def find_one(self, interface: str | None = None, query: Filter | str | None = None) -> ServiceReference | None:
        """Return the first of the services that fit, or `None`."""
        return self._find_one(wanted(interface, query))

    def track(
        self,
        interface: str | None = None,
        query: Filter | str | None = None,
        *,
        added: Callback | None = None,
        modified: Callback | None = None,
        removed: Callback | None = None,
    ) -> ServiceTracker:
        """Follow the services that fit, from now on and until the tracker is closed (or its `with` block ends).

        Callbacks are told what is present first, in order; see `ServiceTracker`.

            with registry.track("Channel", "(channel.kind=queue)", added=connect, removed=disconnect) as queues:
                queues.first        # the highest ranking one now, or None
        """
        return self._track(wanted(interface, query), Callbacks(added, modified, removed))

    def listen(self, query: Filter | str | None, callback: Callable[[ServiceEvent], object]) -> Subscription:
        """Call *callback* with every event of the services that fit, from now on and until the result is closed."""
        return self._listen(wanted(None, query), callback)

    def with_(self, query: Filter | str) -> Narrowed:
        """The same services, but only those that fit: what a test, a sandbox or a peer may see."""
        return Narrowed(self, as_filter(query))

    def without(self, query: Filter | str) -> Narrowed:
        """The same services, but only those that do not fit."""
        return Narrowed(self, Not(as_filter(query)))

    @abstractmethod
    def _find(self, wanted: Filter) -> list[ServiceReference]: ...

    @abstractmethod
    def _find_one(self, wanted: Filter) -> ServiceReference | None: ...

    @abstractmethod
    def _track(self, wanted: Filter, callbacks: Callbacks) -> ServiceTracker: ...

    @abstractmethod
    def _listen(self, wanted: Filter, callback: Callable[[ServiceEvent], object]) -> Subscription: ...


class Narrowed(Lookup):
    """A registry of which only a part can be seen, and nothing can be registered in."""

    def __init__(self, base: Lookup, visible: Filter) -> None:
        self._base = base
        self._visible = visible

    def _find(self, wanted: Filter) -> list[ServiceReference]:
        return self._base._find(both(self._visible, wanted))

    def _find_one(self, wanted: Filter) -> ServiceReference | None:
        return self._base._find_one(both(self._visible, wanted))

    def _track(self, wanted: Filter, callbacks: Callbacks) -> ServiceTracker:
        return self._base._track(both(self._visible, wanted), callbacks)

    def _listen(self, wanted: Filter, callback: Callable[[ServiceEvent], object]) -> Subscription:
        return self._base._listen(both(self._visible, wanted), callback)


@lru_cache(maxsize=4096)
def wanted(interface: str | None, query: Filter | str | None) -> Filter:
    """One filter of an interface and a query; kept, so that a look-up made again finds it compiled."""
    if interface is None:
        return as_filter(query)
    if interface.startswith("("):
        raise RegistryError(f"{interface!r} is a filter, not an interface: find(None, {interface!r})")
    return both(where({INTERFACE: interface}), as_filter(query))


@lru_cache(maxsize=4096)
def both(first: Filter, second: Filter) -> Filter:
    """A filter for what fits two filters; kept like that of `wanted`."""
    if second is ANYTHING:
        return first
    return second if first is ANYTHING else And((first, second))
