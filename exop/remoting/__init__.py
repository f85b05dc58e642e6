"""The control connection of a running platform: other processes call its operations.

A platform serves a table of operations, and a client calls them. Both use one hardened profile of rpyc, described in
docs/explanation/control.md. Neither rpyc nor msgspec is imported before a connection is made or an operation defined.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exop.remoting.transport.client import ControlClient, RunningPlatform, find_platforms
    from exop.remoting.transport.codec import NoRequest, Page, PageRequest, Request, page
    from exop.remoting.transport.limits import Limits
    from exop.remoting.transport.operation import Operation, operation, operations
    from exop.remoting.transport.rundir import control_address
    from exop.remoting.transport.server import ControlServer

_HOMES = {
    "ControlClient": "transport.client",
    "ControlServer": "transport.server",
    "Limits": "transport.limits",
    "NoRequest": "transport.codec",
    "Operation": "transport.operation",
    "Page": "transport.codec",
    "PageRequest": "transport.codec",
    "Request": "transport.codec",
    "RunningPlatform": "transport.client",
    "control_address": "transport.rundir",
    "find_platforms": "transport.client",
    "operation": "transport.operation",
    "operations": "transport.operation",
    "page": "transport.codec",
}

__all__ = [
    "ControlClient",
    "ControlServer",
    "Limits",
    "NoRequest",
    "Operation",
    "Page",
    "PageRequest",
    "Request",
    "RunningPlatform",
    "control_address",
    "find_platforms",
    "operation",
    "operations",
    "page",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"exop.remoting.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'exop.remoting' has no attribute {name!r}")
