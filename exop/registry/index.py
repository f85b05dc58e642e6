"""Services and their properties. A look-up examines the smallest set that an equality of its filter selects."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from exop.errors import RegistryError, ServiceGone
from exop.model.filter import Term
from exop.model.properties import INTERFACE, RANKING, SERVICE_ID, Scalar, Value, text_of

#: Identifiers are below this limit; see `order_of`.
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
        #: The sort key in every list of services: by ranking (the highest first), then by age.
        self.order: Final = order_of(service_id, properties[RANKING]) if RANKING in properties else service_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServiceReference) and self.id == other.id and self.service is other.service

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<service {self.id} {', '.join(self.interfaces)} {dict(self.properties)}>"


def order_of(service_id: int, ranking: object) -> int:
    """Return a number that sorts services by ranking, descending, and then by identifier.

    Raises:
        RegistryError: the ranking is not a whole number.
    """
    if type(ranking) is not int:
        raise RegistryError(f"the property {RANKING!r} is {ranking!r}; a ranking is a whole number", property=RANKING)
    return service_id - ranking * _IDS


def id_of(order: int) -> int:
    """Return the identifier that an order number contains."""
    return order % _IDS


class OrderedSet:
    """Numbers in ascending order, stored in short sorted lists.

    Removing a number from the middle of one long sorted list would move megabytes. With lists of at most `LONGEST`
    numbers, an addition or removal takes about a microsecond, for ten numbers as for a million.
    """

    LONGEST: Final = 1024

    __slots__ = ("_chunks", "_size", "_starts")

    def __init__(self, *numbers: int) -> None:
        self._chunks: list[list[int]] = [sorted(numbers)]
        #: The lower limits of the second and later lists: above all numbers of the list before, not above any within.
        self._starts: list[int] = []
        self._size = len(numbers)

    def add(self, number: int) -> None:
        """Add a number that is not in the set."""
        chunk = self._chunks[-1]
        if chunk and number > chunk[-1] and len(chunk) < self.LONGEST:  # the usual case: numbers are added in order
            chunk.append(number)
            self._size += 1
            return
        place = bisect_right(self._starts, number)
        chunk = self._chunks[place]
        if not chunk or number > chunk[-1]:
            chunk.append(number)
        else:
            insort(chunk, number)
        self._size += 1
        if len(chunk) > self.LONGEST:
            # numbers are mostly added in order: the left part remains nearly full, the right one has room to grow
            cut = self.LONGEST * 7 // 8
            self._chunks[place : place + 1] = [chunk[:cut], chunk[cut:]]
            self._starts.insert(place, chunk[cut])

    def remove(self, number: int) -> int:
        """Remove a number that is in the set; return how many remain."""
        chunk = self._chunks[-1]
        self._size -= 1
        if len(chunk) > 1 and number == chunk[-1]:  # the newest is removed first
            chunk.pop()
            return self._size
        place = bisect_right(self._starts, number)
        chunk = self._chunks[place]
        if number == chunk[-1]:
            chunk.pop()
        else:
            del chunk[bisect_left(chunk, number)]
        if not chunk and len(self._chunks) > 1:
            del self._chunks[place]
            del self._starts[max(place - 1, 0)]
        return self._size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._chunks)


#: The order numbers of the services that have one value; a plain number if only one service has it, as for most.
Posting: TypeAlias = int | OrderedSet

_order = attrgetter("order")


class ServiceIndex:
    """All services of a registry; callers hold the registry's lock."""

    def __init__(self) -> None:
        self._references: dict[int, ServiceReference] = {}
        self._postings: dict[str, dict[Scalar, Posting]] = {}

    def __len__(self) -> int:
        return len(self._references)

    def get(self, service_id: int) -> ServiceReference:
        """Return the newest snapshot of a service.

        Raises:
            ServiceGone: no such service is registered.
        """
        try:
            return self._references[service_id]
        except KeyError:
            raise ServiceGone(service=service_id) from None

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
        reference = self._references.pop(service_id, None)
        if reference is not None:
            self._withdraw(reference.properties.items(), reference.order)
        return reference

    def modify(
        self, service_id: int, removed: Collection[str], properties: Mapping[str, Value]
    ) -> tuple[ServiceReference, ServiceReference]:
        """Change properties of a service; return the old and the new snapshot. Only changed values are indexed again.

        Raises:
            ServiceGone: no such service is registered.
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
                posting = by_name[name].get(key) if name in by_name else None
                if posting is not None:
                    found.append(posting)
                    found_size += 1 if isinstance(posting, int) else len(posting)
            if not found:
                return ()
            if size < 0 or found_size < size:
                smallest, size = found, found_size
        if size < 0:
            return sorted(self._references.values(), key=_order)
        return self._in_order(smallest)

    def _in_order(self, postings: list[Posting]) -> Iterable[ServiceReference]:
        references = self._references
        if len(postings) == 1:
            (posting,) = postings
            if isinstance(posting, int):
                return (references[id_of(posting)],)
            numbers: Iterable[int] = posting
        else:  # alternatives: a service that has several of the values is listed once
            numbers = sorted(
                {number for posting in postings for number in ((posting,) if isinstance(posting, int) else posting)}
            )
        return (references[id_of(number)] for number in numbers)

    def _post(self, properties: Iterable[tuple[str, Value]], order: int) -> None:
        by_name = self._postings
        for name, value in properties:
            postings = by_name.get(name)
            if postings is None:
                postings = by_name[name] = {}
            for key in (value,) if type(value) is str or type(value) is int else keys_of(value):
                posting = postings.setdefault(key, order)
                if isinstance(posting, OrderedSet):
                    posting.add(order)
                elif posting != order:
                    postings[key] = OrderedSet(posting, order)

    def _withdraw(self, properties: Iterable[tuple[str, Value]], order: int) -> None:
        by_name = self._postings
        for name, value in properties:
            postings = by_name.get(name)
            if postings is None:  # every service that has the property has an empty list as its value
                continue
            for key in (value,) if type(value) is str or type(value) is int else keys_of(value):
                posting = postings[key]
                if isinstance(posting, int) or not posting.remove(order):
                    del postings[key]
            if not postings:
                del by_name[name]


def keys_of(value: Value) -> Iterable[Scalar]:
    """Return the keys under which a property value is indexed: one for each element of a list."""
    if isinstance(value, tuple):
        return value if len(value) == 1 and value[0].__class__ is str else {index_key(element) for element in value}
    return (index_key(value),)


def index_key(value: Scalar) -> Scalar:
    """Return the key under which *value* is indexed; a string for a Boolean, because `True == 1`."""
    return text_of(value) if value is True or value is False else value
