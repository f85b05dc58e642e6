"""Resolution of APP on the command line: a package folder, a Python file, a topology file, a builder of a plugin."""

from __future__ import annotations

import importlib.util
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from exop.app import Application
from exop.cli.peers import is_local
from exop.errors import BuilderError, ExopError, PluginError, UnknownName, suggest
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.model.slets.spec import SletSpec
from exop.runtime.catalog import Catalog
from exop.safe_repr import RAISED, described

Builder = Callable[..., Any]


@dataclass(frozen=True)
class Target:
    """The target of APP, found but not built yet.

    Attributes:
        given: APP as it was written.
        builders: Its application builders, by name.
        topology: The text of a topology file.
        ready: An application that stands in a Python file.
        which: The builder asked for, where there may be several (`APP:BUILDER`).
        module, folder: Where it was found: an imported file, a package folder.
    """

    given: str
    builders: Mapping[str, Builder] = field(default_factory=dict)
    topology: str | None = None
    ready: Application | None = None
    which: str = ""
    module: ModuleType | None = None
    folder: Path | None = None

    def builder(self) -> Builder:
        """The one builder that is meant.

        Raises:
            BuilderError: there is none, or there are several.
            UnknownName: none of that name.
        """
        if self.which:
            if self.which not in self.builders:
                raise UnknownName(place=self.given, kind="builder", name=self.which, known=self.builders)
            return self.builders[self.which]
        if not self.builders and self.module is not None:
            raise BuilderError(
                f"{self.given} describes no application: write `app = Application(…)`, or a function with keyword-only "
                f"parameters and the annotation `-> Application`"
            )
        if not self.builders:
            raise BuilderError(
                f"{self.given} offers no application builder: write a function with keyword-only parameters that "
                f"returns an Application, and return it from a @hookimpl register_builders()"
            )
        if len(self.builders) > 1:
            names = ", ".join(f"{self.given}:{name}" for name in self.builders)
            raise BuilderError(f"{self.given} offers several application builders; name one of them: {names}")
        return next(iter(self.builders.values()))


def known_plugins(folders: Iterable[Path] = ()) -> Catalog:
    """Return the contents of the installed plugins, and of those in *folders* (`--load`).

    Raises:
        PluginError: one of the folders is no plugin. An installed one that is broken is only reported.
    """
    plugins = Plugins()
    plugins.discover()
    for folder in folders:
        plugins.load_folder(folder)
    catalog = Catalog(plugins)
    catalog.gather()
    return catalog


def find_target(given: str, catalog: Catalog, running: Iterable[str] | None = None) -> Target:
    """Find out what APP means; a folder is loaded as a plugin into *catalog*.

    Pass the applications that run as *running* where APP may also name one of them: the error then mentions them.

    Raises:
        BuilderError, UnknownName: there is no such thing.
        PluginError: it is there, and cannot be loaded.
    """
    path, which = Path(given), ""
    if not path.exists() and ":" in given:
        before, _, which = given.rpartition(":")
        path = Path(before)
    if path.is_dir():
        return Target(given, _folder_builders(path, catalog), which=which, folder=path.resolve())
    if path.is_file() and path.suffix == ".toml":
        return Target(given, topology=text_of(path))
    if path.is_file() and path.suffix == ".py":
        return _in_file(given, _imported(path), which)
    if path.is_file():
        raise BuilderError(f"{path} is neither a folder nor a .py or .toml file, so it describes no application")
    if is_local(given):
        raise BuilderError(f"{path} does not exist; {_near(path)}")
    return _installed(given, catalog, running)


def slets_in(target: Target, catalog: Catalog) -> dict[str, SletSpec]:
    """The slets of a folder or file, by name."""
    if target.module is not None:
        found = [getattr(value, "__slet__", None) for value in vars(target.module).values()]
        own = target.module.__name__
        return {spec.name: spec for spec in found if isinstance(spec, SletSpec) and spec.factory.__module__ == own}
    folder = next((name for name, path in catalog.plugins.folders.items() if path == target.folder), None)
    return {spec.name: spec for spec in catalog.slets.values() if folder is not None and spec.plugin == folder}


def _folder_builders(path: Path, catalog: Catalog) -> dict[str, Builder]:
    name = catalog.plugins.load_folder(path)
    catalog.gather()
    found = catalog.builders().get(name, [])
    broken = catalog.plugins.broken.get(name)
    if broken is not None:
        raise broken
    return {builder.__name__: builder for builder in found}


def _in_file(given: str, module: ModuleType, which: str) -> Target:
    ready = [value for value in vars(module).values() if isinstance(value, Application)]
    if len(ready) == 1 and not which:
        return Target(given, ready=ready[0], module=module)
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    builders = {value.__name__: value for value in own if _builds(value)}
    return Target(given, builders, which=which, module=module)


def _imported(path: Path) -> ModuleType:
    """Import a file, so that it finds its neighbours."""
    path = path.resolve()
    # A name of its own: `queue.py` of the user must not stand in for Python's.
    taken = path.stem in sys.modules or not path.stem.isidentifier() or path.stem in sys.stdlib_module_names
    name = f"exop_file_{path.stem}" if taken else path.stem
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise BuilderError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(found)
    if str(path.parent) not in sys.path:
        # At the end: a neighbour called `numbers.py` must not stand in for Python's either.
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except ExopError:
        raise
    except RAISED as problem:
        del sys.modules[name]
        raise PluginError(plugin=path.name, problem=described(problem)) from problem
    return module


def _builds(value: Any) -> bool:
    """Whether *value* is a function that says that it returns an application."""
    if not callable(value) or isinstance(value, type):
        return False
    try:
        return typing.get_type_hints(value).get("return") in (Application, Mesh)
    except (NameError, TypeError):
        return False


def _installed(given: str, catalog: Catalog, running: Iterable[str] | None) -> Target:
    offered = catalog.builders()
    plugin, colon, name = given.rpartition(":")
    if not colon:
        found = {b.__name__: b for builders in offered.values() for b in builders if b.__name__ == given}
    else:
        found = {b.__name__: b for b in offered.get(plugin, []) if b.__name__ == name}
    if found:
        return Target(given, found)
    if given in catalog.plugins.broken:
        raise catalog.plugins.broken[given]
    known = [builder.__name__ for builders in offered.values() for builder in builders]
    problem = f"{given!r} is no folder, no file and no application builder of an installed plugin"
    names = list(running or ())
    if names:
        problem += ", and no such application runs"
    elif running is not None:
        problem += ", and no application runs (start one with `exop run APP`, or by `exop serve` and `exop apply APP`)"
    raise BuilderError(f"{problem}; {suggest(given, known + names, 'builder')}")


#: Bytes of a file that is read whole; a device has no end.
_LARGEST: Final = 16_000_000


def text_of(path: Path) -> str:
    """The text of a file that the user has named.

    Raises:
        BuilderError: it cannot be read, or is larger than any topology or file of parameters.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise BuilderError(f"{path} cannot be read: it is larger than {_LARGEST:,} bytes")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BuilderError(f"{path} cannot be read: {problem}") from problem


def _near(path: Path) -> str:
    """The cure for a path that does not exist: the most similar one beside it, if there is one."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    beside = [one.name for one in path.parent.iterdir() if one.is_dir() or one.suffix in (".py", ".toml")]
    near = get_close_matches(path.name, beside, n=1)
    if near:
        return f"did you mean {path.with_name(near[0])}?"
    return "name a package folder, a .py file or a .toml topology"
