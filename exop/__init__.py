"""ExoP: virtualizes stream processing.

The names below are the public API; each is imported when it is first used, so that `import exop` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exop.app import Application
    from exop.errors import ExopError
    from exop.hooks import hookimpl
    from exop.model.items import Batch, DeadLetter, EndOfStream, Punctuation
    from exop.model.memento import Memento
    from exop.model.mesh import Mesh
    from exop.model.partitions import Keyed
    from exop.model.ports import InputPort, InputPorts, OutputPort, OutputPorts
    from exop.model.shadow import Shadow
    from exop.model.slet import Slet, input_port, slet
    from exop.model.tie import Committed, Tie
    from exop.platform import Platform
    from exop.registry import ServiceRegistry
    from exop.remoting.platform import connect
    from exop.runtime.channel import Channel

__version__ = "0.1.0"

_HOMES = {
    "Application": "exop.app",
    "Batch": "exop.model.items",
    "Channel": "exop.runtime.channel",
    "Committed": "exop.model.tie",
    "DeadLetter": "exop.model.items",
    "EndOfStream": "exop.model.items",
    "ExopError": "exop.errors",
    "InputPort": "exop.model.ports",
    "InputPorts": "exop.model.ports",
    "Keyed": "exop.model.partitions",
    "Memento": "exop.model.memento",
    "Mesh": "exop.model.mesh",
    "OutputPort": "exop.model.ports",
    "OutputPorts": "exop.model.ports",
    "Platform": "exop.platform",
    "Punctuation": "exop.model.items",
    "ServiceRegistry": "exop.registry",
    "Shadow": "exop.model.shadow",
    "Slet": "exop.model.slet",
    "Tie": "exop.model.tie",
    "connect": "exop.remoting.platform",
    "hookimpl": "exop.hooks",
    "input_port": "exop.model.slet",
    "slet": "exop.model.slet",
}

__all__ = [
    "Application",
    "Batch",
    "Channel",
    "Committed",
    "DeadLetter",
    "EndOfStream",
    "ExopError",
    "InputPort",
    "InputPorts",
    "Keyed",
    "Memento",
    "Mesh",
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
