"""Loading an edited folder next to the running code: unchanged parts are not executed again, but taken over.

So a class that was not edited stays the same class, for `isinstance` as for the state that is of it; a slet that was
not edited stays the same function, and is not replaced; and what a module has made when it was imported is not made
twice.
"""

from __future__ import annotations
import __future__

import ast
import importlib
from types import ModuleType

from exop.bundle.closure import Part
from exop.bundle.fingerprint import Fingerprints
from exop.bundle.modules import Namespace
from exop.safe_repr import RAISED

_FEATURES = {name: getattr(__future__, name).compiler_flag for name in __future__.all_feature_names}


class Reuse:
    """Executes the modules of a namespace, statement by statement, with those of the namespace before it.

    Args:
        before: What was loaded before; its modules stay loaded.
    """

    def __init__(self, namespace: Namespace, before: Namespace) -> None:
        self._namespace = namespace
        self._before = before
        self._new = fingerprints(namespace)
        self._old = fingerprints(before)

    def execute(self, module: ModuleType, source: bytes, file: str) -> None:
        """Execute a module: the statements that have changed, and those that need them."""
        name = module.__name__[len(self._namespace.name) + 1 :]
        tree = ast.parse(source, file)
        module.__doc__ = ast.get_docstring(tree, clean=False)
        known = self._module_before(name)
        old = {self._old.of(name, part) for part in self._old.parts(name)} if known is not None else set()
        flags = _flags(tree)
        for part in self._new.parts(name):
            if known is not None and self._new.of(name, part) in old and _has(known, part):
                vars(module).update({each: vars(known)[each] for each in part.binds})
            else:
                code = compile(ast.Module([part.node], []), file, "exec", flags=flags, dont_inherit=True)
                exec(code, vars(module))

    def _module_before(self, name: str) -> ModuleType | None:
        """Return the previous module of this name, imported now if no code has imported it before."""
        if self._before.sources.find(name) is None:
            return None
        try:
            return importlib.import_module(f"{self._before.name}.{name}" if name else self._before.name)
        except RAISED:
            return None


def fingerprints(namespace: Namespace) -> Fingerprints:
    """The fingerprints of a namespace's sources."""

    def resolve(name: str) -> str | None:
        target = namespace.resolve(name)
        if target is None or not f"{target}.".startswith(f"{namespace.name}."):
            return None
        return target[len(namespace.name) + 1 :]

    return Fingerprints(namespace.sources, resolve)


def _has(module: ModuleType, part: Part) -> bool:
    return all(name in vars(module) for name in part.binds)


def _flags(tree: ast.Module) -> int:
    """Return the compiler flags that a module's `from __future__ import …` sets for each of its statements."""
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= _FEATURES.get(alias.name, 0)
    return flags
