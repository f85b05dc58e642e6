"""Services and their properties. A look-up examines the smallest set that an equality of its filter selects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from exop.errors import RegistryError, ServiceGone
from exop.model.filter import Term
from exop.model.properties import INTERFACE, RANKING, SERVICE_ID, Scalar, Value, text_of

#: Identifiers are below this limit; see `ServiceReference.order`.
_IDS: Final = 1 << 40


class ServiceReference:
    """An immutable snapshot of a service: its properties as they were at the look-up.

    References to the same service are equal, even if the properties differ. A reference prevents the garbage collection
    of its service; use a tracker to learn when a service is unregistered.
    """

    __slots__ = ("id", "interfaces", "order", "properties", "service")

    def __init__(
        self, service_id: int, interfaces: tuple[str, ...], service: Any, properties: dict[str, Value]
    ) -> None:
        properties[INTERFACE] = interfaces
        properties[SERVICE_ID] = service_id
        #: The unique number of the service in its registry.
        self.id: Final = service_id
        #: The interfaces under which the service is registered.
        self.interfaces: Final = interfaces
        #: The properties of the service, with `service.id` and `interface`; read-only.
        self.properties: Final[Mapping[str, Value]] = MappingProxyType(properties)
        #: The service itself.
        self.service: Final[Any] = service
        if type(ranking := properties.get(RANKING, 0)) is not int:
            problem = f"the property {RANKING!r} is {ranking!r}; a ranking is a whole number"
            raise RegistryError(problem, property=RANKING)
        #: The sort key in lists: by ranking (the highest first), then by identifier, which is its remainder by `_IDS`.
        self.order: Final = service_id - ranking * _IDS if ranking else service_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServiceReference) and self.id == other.id and self.service is other.service

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<service {self.id} {', '.join(self.interfaces)} {dict(self.properties)}>"


#: The order numbers of the services that have one value; a plain number if only one service has it, as for most.
Posting: TypeAlias = int | dict[int, None]


class ServiceIndex:
    """All services of a registry; callers hold the registry's lock."""

    def __init__(self) -> None:
        self._references: dict[int, ServiceReference] = {}
        self._postings: dict[str, dict[Scalar, Posting]] = {}

    def __len__(self) -> int:
        return len(self._references)

    def get(self, service_id: int) -> ServiceReference:
        """Return the newest snapshot of a service; raises `ServiceGone` if it is not registered."""
        if (reference := self._references.get(service_id)) is None:
            raise ServiceGone(service=service_id)
        return reference

    def add(
        self, service_id: int, interfaces: tuple[str, ...], service: Any, properties: dict[str, Value]
    ) -> ServiceReference:
        """Add a new service."""
        reference = ServiceReference(service_id, interfaces, service, properties)
        self._references[service_id] = reference
        self._post(reference.properties.items(), reference.order)
        return reference

    def pop(self, service_id: int) -> ServiceReference | None:
        """Remove a service; return its last snapshot, or `None` if the service is not registered."""
        if (reference := self._references.pop(service_id, None)) is not None:
            self._withdraw(reference.properties.items(), reference.order)
        return reference

    def modify(
        self, service_id: int, removed: Collection[str], properties: Mapping[str, Value]
    ) -> tuple[ServiceReference, ServiceReference]:
        """Change properties of a service; return the old and the new snapshot. Raises as `get`.

        Only changed values are indexed again.
        """
        old = self.get(service_id)
        kept = {name: value for name, value in old.properties.items() if name not in removed}
        new = ServiceReference(old.id, old.interfaces, old.service, {**kept, **properties})
        self._references[new.id] = new
        before, after = old.properties, new.properties
        moved = old.order != new.order
        gone = [(name, value) for name, value in before.items() if moved or after.get(name) is not value]
        come = [(name, value) for name, value in after.items() if moved or before.get(name) is not value]
        self._withdraw(gone, old.order)
        self._post(come, new.order)
        return old, new

    def candidates(self, terms: Sequence[Term]) -> Iterable[ServiceReference]:
        """Return, in order, the services that may match a filter with these *terms*."""
        by_name = self._postings
        smallest: list[Posting] = []
        size = -1
        for term in terms:
            found: list[Posting] = []
            found_size = 0
            for name, key in term:
                if (posting := by_name[name].get(key) if name in by_name else None) is not None:
                    found.append(posting)
                    found_size += 1 if isinstance(posting, int) else len(posting)
            if size < 0 or found_size < size:
                smallest, size = found, found_size
        if size < 0:
            return sorted(self._references.values(), key=attrgetter("order"))
        # Quick: mostly in order already, since identifiers ascend. A service that has several of the values, which are
        # alternatives, is listed once.
        numbers: dict[int, None] = {}
        for posting in smallest:
            numbers |= {posting: None} if isinstance(posting, int) else posting
        return (self._references[number % _IDS] for number in sorted(numbers))

    def _post(self, properties: Iterable[tuple[str, Value]], order: int) -> None:
        for name, value in properties:
            postings = self._postings.setdefault(name, {})
            for key in (value,) if type(value) is str or type(value) is int else keys_of(value):
                if isinstance(posting := postings.setdefault(key, order), dict):
                    posting[order] = None
                elif posting != order:
                    postings[key] = {posting: None, order: None}

    def _withdraw(self, properties: Iterable[tuple[str, Value]], order: int) -> None:
        for name, value in properties:
            postings = self._postings.get(name, {})  # none if all services with the property have an empty list there
            for key in (value,) if type(value) is str or type(value) is int else keys_of(value):
                if isinstance(posting := postings[key], dict):
                    del posting[order]
                if isinstance(posting, int) or not posting:
                    del postings[key]
            if not postings:
                self._postings.pop(name, None)


def keys_of(value: Value) -> Iterable[Scalar]:
    """Return the keys of a property value: one for each element of a list; of a Boolean its text, since `True == 1`."""
    values = value if isinstance(value, tuple) else (value,)
    if len(values) == 1 and values[0].__class__ is str:
        return values
    return {text_of(one) if one is True or one is False else one for one in values}
