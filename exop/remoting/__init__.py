"""Talking to other processes: the control connection of a running platform.

A platform serves a table of operations; a client calls them. Both ends by one hardened profile of rpyc, described in
docs/explanation/control.md. Nothing here imports rpyc or msgspec before a connection is made or an operation defined.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exop.remoting.client import ControlClient
    from exop.remoting.codec import NoRequest, Request
    from exop.remoting.declare import Operation, operation, operations
    from exop.remoting.finding import RunningPlatform, find_platforms
    from exop.remoting.limits import Limits
    from exop.remoting.paging import Page, PageRequest, page
    from exop.remoting.rundir import control_address
    from exop.remoting.service import ControlServer

_HOMES = {
    "ControlClient": "client",
    "ControlServer": "service",
    "Limits": "limits",
    "NoRequest": "codec",
    "Operation": "declare",
    "Page": "paging",
    "PageRequest": "paging",
    "Request": "codec",
    "RunningPlatform": "finding",
    "control_address": "rundir",
    "find_platforms": "finding",
    "operation": "declare",
    "operations": "declare",
    "page": "paging",
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
