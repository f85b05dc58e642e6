"""One generation of a folder that is being edited: loaded beside the one before, with unchanged definitions reused."""

from __future__ import annotations
import __future__

import ast
import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from exop.bundle.closure import Fingerprints
from exop.bundle.manifest import MANIFEST, Manifest
from exop.bundle.modules import Namespace, Sources, import_module, load, load_offers, unload
from exop.bundle.skeleton import name_from
from exop.bundle.store import checked_archive
from exop.errors import BundleError
from exop.model.values.classes import package_name
from exop.remoting.api.folder_archive import files_of
from exop.safe_repr import RAISED

#: Starts the bundles that a manifest requires; returns their packages by the names under which they are imported.
Wire = Callable[[Manifest], Mapping[str, str]]
_FEATURES = {name: getattr(__future__, name).compiler_flag for name in __future__.all_feature_names}


@dataclasses.dataclass(frozen=True)
class Generation:
    """The slets and builders of a folder as it was loaded: *plugin* has the hooks, all generations have one *name*."""

    name: str
    namespace: Namespace
    plugin: Any

    def modules(self) -> list[str]:
        """The modules that were imported so far, relative to the folder."""
        begin = f"{self.namespace.name}."
        return sorted(one.removeprefix(begin) for one in list(sys.modules) if one.startswith(begin))


def load_generation(folder: Path, number: int, before: Generation | None, wire: Wire) -> Generation:
    """Import a folder; definitions that have not changed since *before* are taken over from it."""
    files = {str(path): (folder / path).read_bytes() for path in files_of(folder)}
    modules = {path: content for path, content in files.items() if path.endswith(".py")}
    manifest: Manifest | None = None
    wires: Mapping[str, str] = {}
    if MANIFEST in files:
        manifest = checked_archive(files, str(folder)).manifest
        name, package, wires = manifest.key, manifest.package, wire(manifest)
    elif "__init__.py" in files:
        name, package = folder.name, name_from(folder.name).replace("-", "_")
    else:
        problem = f"cannot be developed: {folder} has neither a {MANIFEST} nor an __init__.py"
        cure = "make it a package with a @hookimpl register_builders(), or `exop bundle new`"
        raise BundleError(bundle=folder.name, problem=problem, cure=cure)
    # The number is part of the digest: each generation has a package of its own, even with the sources of another.
    digest = sha256(repr((number, sorted(modules.items()))).encode()).hexdigest()
    own = package_name(package, f"0+dev.{number}")
    aliases = {**dict.fromkeys((*_names(folder), package), own), **wires}
    namespace = Namespace(own, Sources(folder, modules, digest), aliases, tuple(sorted(wires.values())))
    if before is not None:
        namespace.execute = Reuse(namespace, before.namespace).execute
    known = before.modules() if before is not None else []
    namespace = load(namespace, name)
    try:
        plugin = load_offers(manifest, namespace) if manifest is not None else import_module(name, namespace, "")
        for module in known:  # a mistake in any module that was imported before counts
            if namespace.sources.find(module) is not None:
                import_module(name, namespace, module)
    except BaseException:
        unload(namespace)
        raise
    return Generation(name, namespace, plugin)


def _names(folder: Path) -> tuple[str, str]:
    """The names by which the modules of a package import each other: from the working directory, and on its own."""
    here = Path.cwd().resolve()
    return ".".join(folder.relative_to(here).parts) if folder.is_relative_to(here) else folder.name, folder.name


class Reuse:
    """Executes the modules of a namespace statement by statement, and takes over unchanged results from another one.

    A class that was not edited stays the same class, for `isinstance` and for its mementos; a slet that was not edited
    stays the same function, and is not replaced; objects that a module makes when it is imported are not made twice.
    """

    def __init__(self, namespace: Namespace, before: Namespace) -> None:
        self._namespace = namespace
        self._before = before
        self._new = _fingerprints(namespace)
        self._old = _fingerprints(before)

    def execute(self, module: ModuleType, source: bytes, file: str) -> None:
        """Execute the statements of a module that have changed, and those that need them."""
        name = module.__name__[len(self._namespace.name) + 1 :]
        tree = ast.parse(source, file)
        module.__doc__ = ast.get_docstring(tree, clean=False)
        known = self._module_before(name)
        old = (
            {self._old.of(name, statement) for statement in self._old.statements(name)} if known is not None else set()
        )
        flags = _flags(tree)
        for statement in self._new.statements(name):
            if known is not None and self._new.of(name, statement) in old and statement.binds <= vars(known).keys():
                vars(module).update({each: vars(known)[each] for each in statement.binds})
            else:
                code = compile(ast.Module([statement.node], []), file, "exec", flags=flags, dont_inherit=True)
                exec(code, vars(module))

    def _module_before(self, name: str) -> ModuleType | None:
        """The module of this name in the namespace before, imported now if it was not yet."""
        if self._before.sources.find(name) is None:
            return None
        try:
            return importlib.import_module(f"{self._before.name}.{name}" if name else self._before.name)
        except RAISED:
            return None


def _fingerprints(namespace: Namespace) -> Fingerprints:
    """The fingerprints of the sources of a namespace."""

    def resolve(name: str) -> str | None:
        target = namespace.resolve(name)
        if target is None or not f"{target}.".startswith(f"{namespace.name}."):
            return None
        return target[len(namespace.name) + 1 :]

    return Fingerprints(namespace.sources, resolve)


def _flags(tree: ast.Module) -> int:
    """The compiler flags of the `from __future__ import …` of a module."""
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= _FEATURES.get(alias.name, 0)
    return flags
