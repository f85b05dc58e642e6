"""The service registry: services are registered with interfaces and properties, found by filter, and tracked."""

from exop.registry.index import ServiceReference
from exop.registry.listeners import Change, ServiceEvent, ServiceTracker, Subscription
from exop.registry.service_registry import Registration, ServiceRegistry

__all__ = ["Change", "Registration", "ServiceEvent", "ServiceReference"]
__all__ += ["ServiceRegistry", "ServiceTracker", "Subscription"]
