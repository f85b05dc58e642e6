"""Resolves APP on the command line (a package folder, a Python or topology file, a builder), and its parameters.

A parameter of a builder is given as NAME=VALUE on the command line, by a TOML file (`--params`), or by the environment
variable EXOP_PARAM_NAME. The first of these counts, and of several files the last. Its annotation converts the value.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from exop.app import IMPORTED, Application
from exop.cli.options import Load, Params
from exop.cli.peers import bundles_here, is_local
from exop.errors import BuilderError, ExopError, PluginError, SettingError, UnknownName, entry, suggest
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.model.slets.signature import read_settings
from exop.model.slets.spec import SletSpec, configured, parse
from exop.model.values.depth import read_toml
from exop.runtime.catalog import Catalog, in_use, known_slets
from exop.safe_repr import RAISED, error_text

Builder = Callable[..., Any]
#: Lists bundles, as `Bundles.list` does.
Bundles = Callable[[], Sequence[Mapping[str, Any]]]
#: The prefix of environment variables with parameters; the parameter's name follows, unchanged or in capital letters.
VARIABLE: Final = "EXOP_PARAM_"
#: The largest size of a file in bytes, since reading a device may never end.
_LARGEST: Final = 16_000_000


@dataclass(frozen=True)
class Target:
    """The target to which APP refers, before it is built.

    Attributes:
        given: APP as given by the user.
        builders, slets: The application builders and the slets of a file or folder, by name.
        topology: The text of a topology file.
        ready: The application that a Python file defines.
        which: The name of the builder in `APP:BUILDER`.
    """

    given: str
    builders: Mapping[str, Builder] = field(default_factory=dict)
    slets: Mapping[str, SletSpec] = field(default_factory=dict)
    topology: str | None = None
    ready: Application | None = None
    which: str = ""

    def builder(self) -> Builder:
        """Return the builder that the user has named, or the only one.

        Raises:
            BuilderError: there is none, or there are several.
            UnknownName: there is none of that name.
        """
        if self.which:
            return entry(self.given, "builder", self.builders, self.which)
        if not self.builders and self.given.endswith(".py"):
            raise BuilderError(
                f"{self.given} describes no application: write `app = Application(…)`, or a function with keyword-only "
                f"parameters and the annotation `-> Application`"
            )
        if not self.builders:
            raise BuilderError(
                f"{self.given} offers no application builder: write a function with keyword-only parameters that "
                f"returns an Application, and return it from a @hookimpl register_builders(), or, in a bundle, name it "
                f'in bundle.toml: builders = ["slets:NAME"]'
            )
        if len(self.builders) > 1:
            names = ", ".join(f"{self.given}:{name}" for name in self.builders)
            several = f"{self.given} offers several application builders; name one of them: {names}"
            raise BuilderError(f"{several} (for `exop dev` by --builder)", kind="builder")
        return next(iter(self.builders.values()))


def known_plugins(folders: Iterable[Path] = ()) -> Catalog:
    """Return the catalog of the installed plugins, and of those in *folders* (`--load`).

    Raises:
        PluginError: one of the folders is no plugin. Errors of installed plugins are only reported.
    """
    plugins = Plugins()
    plugins.discover()
    for folder in folders:
        _load(folder, plugins)
    return known_slets(plugins)


def _load(folder: Path, plugins: Plugins) -> str:
    """Load a package folder or a bundle folder; return the name of the plugin."""
    if not (folder / "bundle.toml").is_file():
        return plugins.load_folder(folder)
    # Imported lazily: only bundles need archives and versions.
    from exop.bundle.modules import load_bundle

    return load_bundle(folder.resolve(), plugins)


def find_target(
    given: str, catalog: Catalog, running: Iterable[str] | None = None, bundles: Bundles = bundles_here
) -> Target:
    """Resolve APP; a folder, or a bundle that a platform of this host has started, is loaded into *catalog*.

    Pass the running applications as *running* where APP may also name one of them: the error then mentions them.
    *bundles* lists the bundles to which APP may refer by `BUNDLE:BUILDER`.

    Raises:
        BuilderError, UnknownName: *given* refers to no application.
        PluginError: the folder cannot be loaded.
    """
    path, which = Path(given), ""
    if not path.exists() and ":" in given:
        before, _, which = given.rpartition(":")
        path = Path(before)
    if path.is_dir():
        name = _load(path, catalog.plugins)
        catalog.gather()
        offered = catalog.builders().get(name, [])  # records a plugin that is broken
        if name in catalog.plugins.broken:
            raise catalog.plugins.broken[name]
        slets = {spec.name: spec for spec in catalog.slets.values() if spec.plugin == name}
        return Target(given, {one.__name__: one for one in offered}, slets, which=which)
    if path.is_file() and path.suffix == ".toml":
        return Target(given, topology=text_of(path))
    if path.is_file() and path.suffix == ".py":
        module = _imported(path)
        own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
        slets = {spec.name: spec for value in own if isinstance(spec := getattr(value, "__slet__", None), SletSpec)}
        ready = [value for value in vars(module).values() if isinstance(value, Application)]
        if len(ready) == 1 and not which:
            return Target(given, ready=ready[0], slets=slets)
        return Target(given, {one.__name__: one for one in own if _builds(one)}, slets, which=which)
    if path.is_file():
        raise BuilderError(f"{path} is neither a folder nor a .py or .toml file, so it describes no application")
    if is_local(given):
        raise BuilderError(f"{path} does not exist; {_near(path)}")
    return _installed(given, catalog, running, bundles)


def _imported(path: Path) -> ModuleType:
    """Import a file so that it can import other files in its folder."""
    path = path.resolve()
    # The module gets another name, so that a user's `queue.py` does not replace the standard library's.
    taken = path.stem in sys.modules or not path.stem.isidentifier() or path.stem in sys.stdlib_module_names
    name = f"exop_file_{path.stem}" if taken else path.stem
    if (found := importlib.util.spec_from_file_location(name, path)) is None or found.loader is None:
        raise BuilderError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(found)
    if str(path.parent) not in sys.path:
        # Appended, so that a `numbers.py` in the folder does not replace the standard library's either.
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    importing = IMPORTED.set(path.name)
    try:
        found.loader.exec_module(module)
    except ExopError:
        raise
    except RAISED as problem:
        del sys.modules[name]
        raise PluginError(what="file", plugin=path.name, problem=error_text(problem)) from problem
    finally:
        IMPORTED.reset(importing)
    return module


def _builds(value: Any) -> bool:
    """Whether *value* is a function annotated to return an application."""
    if callable(value) and not isinstance(value, type):
        with suppress(NameError, TypeError):
            return typing.get_type_hints(value).get("return") in (Application, Mesh)
    return False


def _installed(given: str, catalog: Catalog, running: Iterable[str] | None, bundles: Bundles) -> Target:
    offered = catalog.builders()
    plugin, colon, name = given.rpartition(":")
    builders = offered.get(plugin, []) if colon else [builder for some in offered.values() for builder in some]
    if found := {builder.__name__: builder for builder in builders if builder.__name__ == name}:
        return Target(given, found)
    if given in catalog.plugins.broken:
        raise catalog.plugins.broken[given]
    there = {row["bundle"]: row for row in bundles() if "name" in row}  # a broken one has none
    started = {key: row for key, row in there.items() if row["state"] == "started"}
    bundle, colon, name = given.partition(":")
    if (folder := _loaded(bundle, started, catalog.plugins)) is not None:
        return replace(find_target(f"{folder}{colon}{name}", catalog), given=given)
    if idle := [key for key, row in there.items() if bundle in (key, row["name"])]:
        raise BuilderError(f"the bundle {idle[-1]} is not started; `exop bundle start {idle[-1]}`, and repeat this")
    known = [*(builder.__name__ for builders in offered.values() for builder in builders), *started]
    problem = f"{given!r} is no folder, no file and no application builder of an installed plugin"
    if names := list(running or ()):
        problem += ", and no such application runs"
    elif running is not None:
        problem += ", and no application runs (start one with `exop run APP`, or by `exop serve` and `exop apply APP`)"
    known += [*names, *get_close_matches(given, _beside(Path()), n=1)]
    cure = suggest(given, known) if known else "name a package folder, a .py file or a .toml topology"
    raise BuilderError(f"{problem}; {cure}", problem=problem, known=known)


def _loaded(bundle: str, started: Mapping[str, Mapping[str, Any]], plugins: Plugins) -> Path | None:
    """Load the highest started version of a bundle, or `NAME@VERSION`; return its folder, `None` if there is none."""
    if (key := next((key for key, row in reversed([*started.items()]) if bundle in (key, row["name"])), None)) is None:
        return None
    for other in started[key]["imports_from"]:
        _loaded(other, started, plugins)
    if not (folder := Path(started[key]["folder"])).is_dir():
        raise BuilderError(f"the files of the bundle {key} are on another host; name a folder of it on this one")
    _load(folder, plugins)
    return folder


def text_of(path: Path) -> str:
    """Read a topology or parameter file; raise `BuilderError` if it cannot be read, or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise BuilderError(f"{path} cannot be read: it is larger than {_LARGEST:,} bytes")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise BuilderError(f"{path} cannot be read: {why}; name a file that is there, in UTF-8") from problem


def _near(path: Path) -> str:
    """Return the hint for a path that does not exist: the most similar name in the folder, if there is one."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    near = get_close_matches(path.name, _beside(path.parent), n=1)
    cure = "name a package folder, a .py file or a .toml topology"
    return f"did you mean {path.with_name(near[0])}?" if near else cure


def _beside(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir() if one.is_dir() or one.suffix in (".py", ".toml")]


class Given(NamedTuple):
    """The value of a parameter, and the file or variable that sets it; empty for the command line."""

    value: Any
    place: str = ""


def load_mesh(
    app: str, parameters: Sequence[str], files: Params, folders: Load, running: Iterable[str] | None = None
) -> tuple[Mesh, Catalog, Target]:
    """Build the mesh of APP with the installed plugins and those in *folders*; return it with catalog and target."""
    catalog = known_plugins(folders)
    target = find_target(app, catalog, running)
    return build(target, parameters, catalog, files), catalog, target


def build(target: Target, parameters: Sequence[str], catalog: Catalog, files: Sequence[Path] = ()) -> Mesh:
    """Build the mesh; *parameters* are NAME=VALUE for the builder, and *files* contain further ones.

    Raises:
        MeshError, BuilderError: the mesh or a parameter is wrong.
    """
    if target.topology is None and target.ready is None:
        with in_use(catalog):
            builder = target.builder()
            return call(builder, gather(parameters, files, list(read_settings(builder))))
    refuse_parameters(target, parameters, files)
    return target.ready.build() if target.ready is not None else Mesh.from_toml(target.topology or "", catalog.slets)


def refuse_parameters(target: Target, parameters: Sequence[str], files: Sequence[Path] = ()) -> None:
    """Raise `BuilderError` if parameters are given for an application that has no builder."""
    given = [f"{name} by {one.place}" if one.place else name for name, one in gather(parameters, files, ()).items()]
    if given:
        cure = "edit the file, or write a builder: a function with keyword-only parameters"
        raise BuilderError(f"{target.given} takes no parameters (it was given {', '.join(given)}); {cure}")


def gather(parameters: Sequence[str], files: Sequence[Path], known: Sequence[str]) -> dict[str, Given]:
    """Collect the parameters from the environment, *files*, and the command line.

    *known* are the names of the builder's parameters, to recognize variables in capital letters.

    Raises:
        BuilderError: a file cannot be read, or a word is not NAME=VALUE.
    """
    found: dict[str, Given] = {}
    in_capitals = {name.upper(): name for name in known}
    for variable, value in sorted(os.environ.items()):
        if variable.startswith(VARIABLE):
            name = variable.removeprefix(VARIABLE)
            # In lowercase, so that the error can suggest the most similar known name.
            parameter = name if name in known else in_capitals.get(name, name.lower())
            found[parameter] = Given(value, f"the environment variable {variable}")
    for file in files:
        try:
            values = read_toml(text_of(file))
        except ValueError as problem:
            raise BuilderError(
                f"{file} is no TOML file with parameters (NAME = VALUE, one a line): {problem}"
            ) from None
        found |= {name: Given(value, f"{file}, key {name!r}") for name, value in values.items()}
    return found | {name: Given(value) for name, value in parse(parameters).items()}


def call(builder: Builder, given: Mapping[str, Given]) -> Mesh:
    """Call an application builder with parameters, which its annotations convert."""
    name, settings = builder.__name__, read_settings(builder)
    try:
        for key in given:
            entry(f"the builder {name}", "parameter", settings, key)
        if missing := [one.name for one in settings.values() if one.required and one.name not in given]:
            known = ", ".join(map(str, settings.values()))
            needs = " ".join(f"{one}=…" for one in missing)
            raise BuilderError(f"the builder {name} needs {needs}; its parameters: {known}", kind="parameter")
        values = configured(f"the builder {name}", settings, {key: one.value for key, one in given.items()})
    except (UnknownName, SettingError) as error:
        error.facts["kind"] = "parameter"
        if (wrong := given.get(str(error.facts.get("setting", error.facts.get("name"))))) is not None and wrong.place:
            error.add_note(f"it is given by {wrong.place}")
        raise
    try:
        made = builder(**values)
    except (ExopError, KeyboardInterrupt):
        raise
    except Exception as problem:
        raise BuilderError(f"the builder {name} failed: {error_text(problem)}") from problem
    if isinstance(made, (Mesh, Application)):
        return made if isinstance(made, Mesh) else made.build()
    raise BuilderError(f"the builder {name} returned {type(made).__name__}; it must return an Application")
