"""ExoP: virtualizes stream processing.

The names below are the public API; each is imported when it is first used, so that `import exop` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import exop._moved  # noqa: F401 - the old names of modules

if TYPE_CHECKING:
    from exop.app import Application
    from exop.errors import ExopError
    from exop.hooks import hookimpl
    from exop.model.items import Batch, DeadLetter, EndOfStream, Punctuation
    from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
    from exop.model.meshes.partitions import Keyed
    from exop.model.meshes.shadow import Shadow
    from exop.model.slets.memento import Memento
    from exop.model.slets.ports import InputPort, InputPorts, OutputPort, OutputPorts
    from exop.model.slets.slet import Slet, input_port, slet
    from exop.model.slets.tie import Committed, Tie
    from exop.platform import Platform
    from exop.registry import ServiceRegistry
    from exop.remoting.api.remote_platform import connect
    from exop.runtime.channels.base import Channel

__version__ = "0.1.0"

_HOMES = {
    "Application": "exop.app",
    "Batch": "exop.model.items",
    "Channel": "exop.runtime.channels.base",
    "ChannelSpec": "exop.model.meshes.mesh",
    "Committed": "exop.model.slets.tie",
    "DeadLetter": "exop.model.items",
    "EndOfStream": "exop.model.items",
    "ExopError": "exop.errors",
    "InputPort": "exop.model.slets.ports",
    "InputPorts": "exop.model.slets.ports",
    "Keyed": "exop.model.meshes.partitions",
    "Memento": "exop.model.slets.memento",
    "Mesh": "exop.model.meshes.mesh",
    "Node": "exop.model.meshes.mesh",
    "OutputPort": "exop.model.slets.ports",
    "OutputPorts": "exop.model.slets.ports",
    "Platform": "exop.platform",
    "Punctuation": "exop.model.items",
    "ServiceRegistry": "exop.registry",
    "Shadow": "exop.model.meshes.shadow",
    "Slet": "exop.model.slets.slet",
    "Tie": "exop.model.slets.tie",
    "connect": "exop.remoting.api.remote_platform",
    "hookimpl": "exop.hooks",
    "input_port": "exop.model.slets.slet",
    "slet": "exop.model.slets.slet",
}

__all__ = [
    "Application",
    "Batch",
    "Channel",
    "ChannelSpec",
    "Committed",
    "DeadLetter",
    "EndOfStream",
    "ExopError",
    "InputPort",
    "InputPorts",
    "Keyed",
    "Memento",
    "Mesh",
    "Node",
    "OutputPort",
    "OutputPorts",
    "Platform",
    "Punctuation",
    "ServiceRegistry",
    "Shadow",
    "Slet",
    "Tie",
    "connect",
    "hookimpl",
    "input_port",
    "slet",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'exop' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
