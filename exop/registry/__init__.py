"""The service registry: services under interfaces with properties, found by filter, followed by trackers."""

from exop.registry.listeners import Subscription
from exop.registry.lookup import Lookup
from exop.registry.reference import Change, ServiceEvent, ServiceReference
from exop.registry.service_registry import Registration, ServiceRegistry
from exop.registry.tracker import ServiceTracker

__all__ = [
    "Change",
    "Lookup",
    "Registration",
    "ServiceEvent",
    "ServiceReference",
    "ServiceRegistry",
    "ServiceTracker",
    "Subscription",
]
