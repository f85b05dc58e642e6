"""The code of bundles: the package of each version, `exop_bundles.NAME_vVERSION`, and the slets that it offers.

All modules of a process share `sys.modules`, so the table of loaded packages is not per platform: it has their sources
and the number of platforms that use each.
"""

from __future__ import annotations

import builtins
import importlib
import linecache
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import FileLoader, MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from exop.bundle.manifest import Manifest, Offer, best, missing_requirements
from exop.bundle.store import Archive, read_archive
from exop.errors import BundleBroken, BundleError, ExopError, RequirementMissing, suggest
from exop.hooks import Plugins, hookimpl
from exop.model.slets.slet import spec_of
from exop.model.values import classes as named
from exop.model.values.classes import ROOT
from exop.remoting.api.folder_archive import archive_of
from exop.runtime.channels.base import Channel
from exop.safe_repr import RAISED, class_of, frames_of, message

_lock = threading.RLock()
_loaded: Final[dict[str, Namespace]] = {}


@dataclass
class Namespace:
    """The package of one version of a bundle, while it is loaded.

    Attributes:
        files: The modules of the folder as they were when it was read; later changes of the folder have no effect.
        digest: Tells the content of the folder from any other.
        aliases: The packages by the names in absolute imports: its own, and those of the bundles that it requires.
        execute: Executes the source of a module, instead of the usual execution as a whole.
    """

    name: str
    folder: Path
    files: Mapping[str, bytes]
    digest: str
    aliases: Mapping[str, str]
    users: int = 1
    execute: Callable[[ModuleType, bytes, str], None] | None = None

    def find(self, module: str) -> tuple[str, bool] | None:
        """The file of a module (`""`: of the package itself), and whether it is a package; `None` if there is none.

        A folder with modules is a package also without the file.
        """
        path = module.replace(".", "/")
        if (inside := f"{path}/__init__.py" if path else "__init__.py") in self.files:
            return inside, True
        if path and f"{path}.py" in self.files:
            return f"{path}.py", False
        return (inside, True) if not path or any(file.startswith(f"{path}/") for file in self.files) else None

    def resolve(self, name: str) -> str | None:
        """Return the full name of the module that code of this bundle imports as *name*, or `None` if the module is in
        no bundle or in the standard library.

        Search order: the standard library (result `None`), the bundle's own folder, then the packages in `aliases`.
        """
        if (head := name.partition(".")[0]) in sys.stdlib_module_names:
            return None
        if self.find(head) is not None:
            return f"{self.name}.{name}"
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            if (target := self.aliases.get(".".join(parts[:length]))) is not None:
                return ".".join([target, *parts[length:]])
        return None

    def imported(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 (Python's names)
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """The `__import__` of the modules of this bundle."""
        if (target := self.resolve(name) if level == 0 else None) is None:
            return __import__(name, globals, locals, fromlist or (), level)
        if fromlist:
            return __import__(target, globals, locals, fromlist, 0)
        return self._head(name, importlib.import_module(target))

    def _head(self, name: str, found: ModuleType) -> ModuleType:
        """The module `a` that `import a.b` binds; if it belongs to no bundle, a copy of it with the bundle's `b`."""
        head, *inner = name.split(".")
        if (own := self.resolve(head)) is not None:
            return sys.modules[own]
        while inner:
            outer = ModuleType(".".join([head, *inner[:-1]]))
            if len(inner) == 1 and head in sys.modules:
                outer.__dict__.update(vars(sys.modules[head]))
            setattr(outer, inner.pop(), found)
            found = outer
        return found


class _Loader(FileLoader, SourceLoader):  # type: ignore[misc]  # as the standard library does
    """Executes the source that was read when the bundle was loaded; the files, also compiled ones, may have changed."""

    def __init__(self, fullname: str, path: str, source: bytes, namespace: Namespace) -> None:
        super().__init__(fullname, path)
        self._source = source
        self._namespace = namespace

    def get_data(self, path: str) -> bytes:
        return self._source

    def exec_module(self, module: ModuleType) -> None:
        # The bundle also resolves imports inside of functions: they look up `__import__` here.
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._namespace.imported}
        if self._namespace.execute is not None:
            self._namespace.execute(module, self._source, self.path)
        else:
            super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the modules of loaded bundles; on `sys.meta_path` while any is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        head, _, rest = fullname.partition(".")
        if head != ROOT:
            return None
        if not rest:
            return ModuleSpec(ROOT, None, is_package=True)
        package, _, module = rest.partition(".")
        found = namespace.find(module) if (namespace := _loaded.get(f"{ROOT}.{package}")) is not None else None
        if namespace is None or found is None:
            # No other finder may find it: a file that was added later is not part of the loaded bundle.
            raise ModuleNotFoundError(f"no bundle that is loaded has the module {fullname!r}", name=fullname)
        file, is_package = found
        inside = [str(namespace.folder / module.replace(".", "/"))] if is_package else None
        place = str(namespace.folder / file)
        loader = _Loader(fullname, place, namespace.files.get(file, b""), namespace)
        return spec_from_file_location(fullname, place, loader=loader, submodule_search_locations=inside)


_finder: Final = _Finder()


def load(namespace: Namespace, bundle: str) -> Namespace:
    """Make the modules of a bundle importable; return the loaded namespace.

    Platforms of one process share the modules of the same version with the same sources.
    """
    with _lock:
        if (known := _loaded.get(namespace.name)) is not None:
            if known.digest != namespace.digest or known.aliases != namespace.aliases:
                problem = "is loaded in this process with other sources or imports, by another platform"
                raise BundleError(bundle=bundle, problem=problem, cure="give this one another version")
            known.users += 1
            return known
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        _loaded[namespace.name] = namespace
        named.imported[namespace.name] = set(namespace.aliases.values())
        named.forget()
        return namespace


def unload(namespace: Namespace) -> None:
    """Remove the modules of a bundle from Python, unless another platform of the process uses them."""
    with _lock:
        namespace.users -= 1
        if namespace.users > 0:
            return
        _loaded.pop(namespace.name, None)
        named.imported.pop(namespace.name, None)
        for name in [one for one in list(sys.modules) if one == namespace.name or one.startswith(f"{namespace.name}.")]:
            # First, since other platforms store values meanwhile.
            named.note_unloaded(name, getattr(sys.modules[name], "__dict__", {}))
            del sys.modules[name]
        if (root := sys.modules.get(ROOT)) is not None:
            vars(root).pop(namespace.name.rpartition(".")[2], None)
        if not _loaded:
            sys.modules.pop(ROOT, None)
            sys.meta_path.remove(_finder)
        for file in [one for one in list(linecache.cache) if one.startswith(f"{namespace.folder}/")]:
            linecache.cache.pop(file, None)
        named.forget()


@dataclass(frozen=True)
class Code:
    """The plugin of a started bundle: the slets, channels and builders that its manifest names."""

    namespace: Namespace
    slets: tuple[Any, ...] = ()
    channels: tuple[type[Channel], ...] = ()
    builders: tuple[Callable[..., Any], ...] = ()

    register_slets = hookimpl(lambda self: list(self.slets))
    register_channels = hookimpl(lambda self: list(self.channels))
    register_builders = hookimpl(lambda self: list(self.builders))


def load_bundle(folder: Path, plugins: Plugins) -> str:
    """Load the bundle in a folder as a plugin without a platform, and return its `name@version`.

    It may import from bundles whose folders were loaded before. It is unloaded when *plugins* is no longer used.

    Raises:
        ArchiveRefused, BundleError, RequirementMissing, BundleBroken: as `Bundles.install` and `Bundles.start`.
    """
    archive = read_archive(archive_of(folder), str(folder))
    manifest = archive.manifest
    if plugins.folders.get(manifest.key) == folder:
        return manifest.key
    others = [read_archive(archive_of(one), key).manifest for key, one in plugins.folders.items() if "@" in key]
    bring = "`--load FOLDER` of one that fits; those that a platform has started are not used here"
    if lacking := missing_requirements(manifest, others, bring):
        raise RequirementMissing(bundle=manifest.key, missing=lacking)
    code = load_code(archive, folder, filter(None, (best(needed, others) for needed in manifest.needed)))
    weakref.finalize(plugins, unload, code.namespace)
    plugins.register(manifest.key, code)
    plugins.folders[manifest.key] = folder
    return manifest.key


def load_code(archive: Archive, folder: Path, required: Iterable[Manifest]) -> Code:
    """Import what a bundle offers; its modules may import from the *required* bundles."""
    manifest = archive.manifest
    modules = {path: content for path, content in archive.files.items() if path.endswith(".py")}
    aliases = {one.package: one.code_package for one in (manifest, *required)}
    namespace = load(Namespace(manifest.code_package, folder, modules, archive.digest, aliases), manifest.key)
    try:
        return load_offers(manifest, namespace)
    except BaseException:
        unload(namespace)
        raise


def load_offers(manifest: Manifest, namespace: Namespace) -> Code:
    """Import the attributes that a manifest names from a loaded namespace."""
    slets: dict[str, Any] = {}
    for offer in manifest.slets:
        slet = _find(manifest, namespace, offer)
        try:
            name = spec_of(slet).name
        except ExopError as problem:
            raise _broken(manifest, namespace, offer, str(problem)) from problem
        if name in slets:
            raise _broken(manifest, namespace, offer, f"two slets are called {name!r}; give one another name=")
        slets[name] = slet
    channels = []
    for offer in manifest.channels:
        if not (isinstance(channel := _find(manifest, namespace, offer), type) and issubclass(channel, Channel)):
            raise _broken(manifest, namespace, offer, f"{offer.attribute} is no sub-class of exop.Channel")
        channels.append(channel)
    builders = [_find(manifest, namespace, offer) for offer in manifest.builders]
    return Code(namespace, tuple(slets.values()), tuple(channels), tuple(builders))


def import_module(bundle: str, namespace: Namespace, module: str) -> ModuleType:
    """Import one module of a bundle (`""`: the package itself)."""
    try:
        return importlib.import_module(f"{namespace.name}.{module}" if module else namespace.name)
    except RAISED as problem:
        file, line = place_of(problem, namespace.folder)
        text = problem.msg if isinstance(problem, SyntaxError) else message(problem)
        text = text if isinstance(problem, ExopError) else f"{class_of(problem)}: {text}"
        raise BundleBroken(bundle=bundle, file=file, line=line, problem=text) from problem


def place_of(error: BaseException, folder: Path) -> tuple[str, int]:
    """The innermost line of an error's traceback in *folder*; the folder itself if there is none."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(folder):
        return error.filename, error.lineno or 1
    places = ((frame.filename, frame.lineno or 1) for frame in reversed(frames_of(error)))
    return next((place for place in places if Path(place[0]).is_relative_to(folder)), (str(folder), 1))


def _find(manifest: Manifest, namespace: Namespace, offer: Offer) -> Any:
    """Return the attribute of a module that a manifest names."""
    if not hasattr(module := import_module(manifest.key, namespace, offer.module), offer.attribute):
        known = [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]
        problem = f"{offer.module} has no {offer.attribute!r}; {suggest(offer.attribute, known)}"
        raise _broken(manifest, namespace, offer, problem)
    return getattr(module, offer.attribute)


def _broken(manifest: Manifest, namespace: Namespace, offer: Offer, problem: str) -> BundleBroken:
    module = import_module(manifest.key, namespace, offer.module)
    code = getattr(getattr(module, offer.attribute, None), "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code is not None else (module.__file__, 1)
    return BundleBroken(bundle=manifest.key, file=str(file), line=line, problem=problem)
