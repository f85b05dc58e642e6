"""Following the services that fit a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock
from typing import Any, TypeAlias

from exop.model.filter import Filter
from exop.registry.listeners import Subscription
from exop.registry.reference import Change, ServiceEvent, ServiceReference

#: What a tracker calls with a service.
Callback: TypeAlias = Callable[[ServiceReference], object]

_order = attrgetter("order")


@dataclass(frozen=True)
class Callbacks:
    """What a tracker calls when a service comes to fit, changes while it fits, ceases to fit."""

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
