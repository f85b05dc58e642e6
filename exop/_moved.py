"""The old names of moved modules: each can be imported for one more release, with a `DeprecationWarning`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from warnings import warn

#: The new name of each module, and the public module from which plugins import its names.
MOVED = {
    "exop.model.memento": ("exop.model.slets.memento", "exop"),
    "exop.model.mesh": ("exop.model.meshes.mesh", "exop"),
    "exop.model.ports": ("exop.model.slets.ports", "exop.plugin"),
    "exop.model.slet": ("exop.model.slets.slet", "exop.plugin"),
    "exop.model.spec": ("exop.model.slets.spec", "exop.plugin"),
    "exop.remoting.platform": ("exop.remoting.api.connecting", "exop"),
    "exop.runtime.channel": ("exop.runtime.channels.base", "exop.plugin"),
    "exop.runtime.convert": ("exop.runtime.dataflow.batches", "exop.plugin"),
    "exop.runtime.entry": ("exop.runtime.dataflow.entry", "exop.plugin"),
}


class _Moved:
    """The finder and loader of these modules."""

    @classmethod
    def find_spec(cls, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls) if name in MOVED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(_spec: ModuleSpec) -> None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        home, public = MOVED[module.__name__]
        warn(f"{module.__name__} has moved: import its public names from {public}", DeprecationWarning, stacklevel=2)
        module.__dict__.update({k: v for k, v in vars(import_module(home)).items() if not k.startswith("__")})


sys.meta_path.append(_Moved)
