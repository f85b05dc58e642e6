"""ExoP virtualizes the operators of stream processing: any of them can be replaced while the stream runs.

The names below are the public API; each is imported when it is first used, so `import exop` costs next to nothing.
"""

from importlib import import_module

TYPE_CHECKING = False  # `typing` takes half of the time before the command line can catch Ctrl-C
if TYPE_CHECKING:
    from typing import Any

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
    from exop.remoting.api.connecting import connect
    from exop.runtime.channels.base import Channel

__version__ = "0.1.0"

#: The public names by their modules, which are imported when a name is first used.
_MODULES = {
    "exop.app": ("Application",),
    "exop.errors": ("ExopError",),
    "exop.hooks": ("hookimpl",),
    "exop.model.items": ("Batch", "DeadLetter", "EndOfStream", "Punctuation"),
    "exop.model.meshes.mesh": ("ChannelSpec", "Mesh", "Node"),
    "exop.model.meshes.partitions": ("Keyed",),
    "exop.model.meshes.shadow": ("Shadow",),
    "exop.model.slets.memento": ("Memento",),
    "exop.model.slets.ports": ("InputPort", "InputPorts", "OutputPort", "OutputPorts"),
    "exop.model.slets.slet": ("Slet", "input_port", "slet"),
    "exop.model.slets.tie": ("Committed", "Tie"),
    "exop.platform": ("Platform",),
    "exop.registry": ("ServiceRegistry",),
    "exop.remoting.api.connecting": ("connect",),
    "exop.runtime.channels.base": ("Channel",),
}

__all__ = ["Application", "Batch", "Channel", "ChannelSpec", "Committed", "DeadLetter", "EndOfStream", "ExopError"]
__all__ += ["InputPort", "InputPorts", "Keyed", "Memento", "Mesh", "Node", "OutputPort", "OutputPorts", "Platform"]
__all__ += ["Punctuation", "ServiceRegistry", "Shadow", "Slet", "Tie", "connect", "hookimpl", "input_port", "slet"]


def __getattr__(name: str) -> "Any":
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module 'exop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
