"""A folder as it was at one moment while it is developed: its modules, beside those of the moments before."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from exop.bundle.archive import checked
from exop.bundle.code import import_module, load_offers
from exop.bundle.manifest import MANIFEST, Manifest
from exop.bundle.modules import Namespace, Sources, load, unload
from exop.bundle.reuse import Reuse
from exop.bundle.skeleton import name_from
from exop.errors import BundleError
from exop.model.values.versions import package_name
from exop.remoting.api.folder_archive import files_of

Wire = Callable[[Manifest], Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Generation:
    """What a folder offers, as it was when it was loaded.

    Attributes:
        name: What its slets are called after: the same for all generations.
        plugin: The object, or the package, with its hooks.
    """

    name: str
    namespace: Namespace
    plugin: Any

    def modules(self) -> list[str]:
        """The modules that were imported so far, relative to the folder."""
        begin = f"{self.namespace.name}."
        return sorted(one.removeprefix(begin) for one in list(sys.modules) if one.startswith(begin))


def load_generation(folder: Path, number: int, before: Generation | None, wire: Wire) -> Generation:
    """Import a folder; what has not changed since *before* is taken over from it.

    *wire* starts the bundles that it requires, and gives their packages by the names under which they are imported.

    Raises:
        BundleError: it is neither a bundle nor a package with hooks.
        BundleBroken: a module raised; nothing of it stays loaded.
        RequirementMissing: what it requires is not there.
    """
    files = {str(path): (folder / path).read_bytes() for path in files_of(folder)}
    modules = {path: content for path, content in files.items() if path.endswith(".py")}
    manifest: Manifest | None = None
    wires: Mapping[str, str] = {}
    if MANIFEST in files:
        manifest = checked(files, str(folder)).manifest
        name, package, wires = manifest.key, manifest.package, wire(manifest)
    elif "__init__.py" in files:
        name, package = folder.name, name_from(folder.name).replace("-", "_")
    else:
        problem = f"cannot be developed: {folder} has neither a {MANIFEST} nor an __init__.py"
        cure = "make it a package with a @hookimpl register_builders(), or `exop bundle new`"
        raise BundleError(bundle=folder.name, problem=problem, cure=cure)
    # The sources may be those of an earlier generation again: each has a package of its own all the same.
    digest = sha256(repr((number, sorted(modules.items()))).encode()).hexdigest()
    own = package_name(package, f"0+dev.{number}")
    aliases = {**dict.fromkeys((*_names(folder), package), own), **wires}
    namespace = Namespace(own, Sources(folder, modules, digest), aliases, tuple(sorted(wires.values())))
    if before is not None:
        namespace.execute = Reuse(namespace, before.namespace).execute
    known = before.modules() if before is not None else []
    return Generation(name, *_imported(name, load(namespace, name), manifest, known))


def unload_generation(generation: Generation) -> None:
    """Take a generation that is not used out of Python."""
    unload(generation.namespace)


def _imported(
    name: str, namespace: Namespace, manifest: Manifest | None, known: Iterable[str]
) -> tuple[Namespace, Any]:
    """Import what is offered, and whatever was imported before: a mistake in what nobody asks for now is one, too."""
    try:
        plugin = load_offers(manifest, namespace) if manifest is not None else import_module(name, namespace, "")
        for module in known:
            if namespace.sources.find(module) is not None:
                import_module(name, namespace, module)
        return namespace, plugin
    except BaseException:
        unload(namespace)
        raise


def _names(folder: Path) -> tuple[str, str]:
    """The names by which the modules of a package import each other: as it stands below the working directory, too."""
    here = Path.cwd().resolve()
    return ".".join(folder.relative_to(here).parts) if folder.is_relative_to(here) else folder.name, folder.name
