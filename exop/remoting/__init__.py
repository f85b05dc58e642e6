"""Talking to other processes: the control connection of a running platform.

A platform serves a table of operations; a client calls them. Both ends by one hardened profile of rpyc, described in
docs/explanation/control.md. Nothing here imports rpyc or msgspec before a connection is made or an operation defined.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exop.remoting.api.discovery import RunningPlatform, find_platforms
    from exop.remoting.api.rundir import control_address
    from exop.remoting.transport.client import ControlClient
    from exop.remoting.transport.codec import NoRequest, Request
    from exop.remoting.transport.limits import Limits
    from exop.remoting.transport.operation import Operation, operation, operations
    from exop.remoting.transport.paging import Page, PageRequest, page
    from exop.remoting.transport.server import ControlServer

_HOMES = {
    "ControlClient": "transport.client",
    "ControlServer": "transport.server",
    "Limits": "transport.limits",
    "NoRequest": "transport.codec",
    "Operation": "transport.operation",
    "Page": "transport.paging",
    "PageRequest": "transport.paging",
    "Request": "transport.codec",
    "RunningPlatform": "api.discovery",
    "control_address": "api.rundir",
    "find_platforms": "api.discovery",
    "operation": "transport.operation",
    "operations": "transport.operation",
    "page": "transport.paging",
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
