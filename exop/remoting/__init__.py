"""The control connection of a running platform: other processes call its operations.

A platform serves a table of operations, and a client calls them. Both use one hardened profile of rpyc, described in
docs/explanation/control.md. A server imports rpyc and msgspec when the first peer connects.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exop.remoting.transport.client import ControlClient
    from exop.remoting.transport.codec import NoRequest, Page, PageRequest, Request, page
    from exop.remoting.transport.limits import Limits
    from exop.remoting.transport.operation import Operation, operation, operations
    from exop.remoting.transport.rundir import RunningPlatform, control_address, find_platforms
    from exop.remoting.transport.server import ControlServer

__all__ = ["ControlClient", "ControlServer", "Limits", "NoRequest", "Operation", "Page", "PageRequest", "Request"]
__all__ += ["RunningPlatform", "control_address", "find_platforms", "operation", "operations", "page"]

#: The modules of the public names, first those that import neither rpyc nor msgspec.
_MODULES = ("limits", "operation", "rundir", "server", "codec", "client")


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        if hasattr(found := import_module(f"exop.remoting.transport.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module 'exop.remoting' has no attribute {name!r}")
