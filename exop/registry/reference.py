"""What is known of a service at one moment, and what happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from exop.errors import RegistryError
from exop.model.properties import INTERFACE, RANKING, SERVICE_ID, Value

#: Identifiers stay below this; see `order_of`.
_IDS: Final = 1 << 40


class ServiceReference:
    """A service with its properties as they were when it was looked up. Nothing in it ever changes.

    References are equal when they mean the same service, whatever its properties have become since. A reference keeps
    its service alive, as any Python object would; whoever has to know when the service goes follows it with a tracker.
    """

    __slots__ = ("id", "interfaces", "order", "properties", "service")

    def __init__(
        self, service_id: int, interfaces: tuple[str, ...], service: Any, properties: dict[str, Value]
    ) -> None:
        properties[INTERFACE] = interfaces
        properties[SERVICE_ID] = service_id
        #: The unique number of the service in its registry.
        self.id: Final = service_id
        #: The interfaces under which it is registered.
        self.interfaces: Final = interfaces
        #: Its properties, `service.id` and `interface` among them; read only.
        self.properties: Final[Mapping[str, Value]] = MappingProxyType(properties)
        #: The service itself.
        self.service: Final[Any] = service
        #: Its place in every list of services: by ranking (the higher first), then by age.
        self.order: Final = order_of(service_id, properties[RANKING]) if RANKING in properties else service_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServiceReference) and self.id == other.id and self.service is other.service

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<service {self.id} {', '.join(self.interfaces)} {dict(self.properties)}>"


class Change(Enum):
    """What happened to a service, seen by one filter."""

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


def order_of(service_id: int, ranking: object) -> int:
    """One number that sorts services by ranking, descending, and then by identifier.

    Raises:
        RegistryError: the ranking is no whole number.
    """
    if type(ranking) is not int:
        raise RegistryError(f"the property {RANKING!r} is {ranking!r}; a ranking is a whole number", property=RANKING)
    return service_id - ranking * _IDS


def id_of(order: int) -> int:
    """The identifier in an order number."""
    return order % _IDS
