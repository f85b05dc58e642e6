"""The manager of plugins finds and loads them, and calls their hooks; a plugin that fails is reported and ignored."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from exop.errors import PluginError, suggest
from exop.hooks import specs
from exop.logs import logger
from exop.safe_repr import RAISED, error_text, safe_repr


@dataclass
class Plugins:
    """The plugins of one platform. There is no global manager: every platform, and every test, has its own instance.

    `broken` maps the name of each plugin that could not be loaded, or failed in a hook, to its error. With `hooks` in
    the environment variable `EXOP_TRACE`, every call of a hook is shown on stderr.
    """

    broken: dict[str, PluginError] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._manager = pluggy.PluginManager(specs.PROJECT)
        self._manager.add_hookspecs(specs)
        self._entries: dict[str, EntryPoint] = {}
        self._traced = "hooks" in os.environ.get("EXOP_TRACE", "").split(",")

    def discover(self) -> None:
        """Load every installed distribution that has an entry point in the group `exop`."""
        for entry in entry_points(group="exop"):
            if (known := self._entries.setdefault(entry.name, entry)) is entry:
                try:
                    if not self._manager.has_plugin(entry.name):
                        self.register(entry.name, entry.load())
                except RAISED as problem:  # no error of a plugin may stop the platform
                    self.note(entry.name, problem)
            elif known.value != entry.value:
                taken = f"the name is used by {known.value!r} already; rename one of the two plugins"
                if (name := f"{entry.name} ({entry.value})") not in self.broken:
                    self.note(name, PluginError(plugin=name, problem=taken))

    def register(self, name: str, plugin: object) -> None:
        """Add one plugin: a module, or an object with `@hookimpl` methods.

        Raises:
            PluginError: the name is in use, or an implementation matches no hook; the plugin was not added.
        """
        if self._manager.has_plugin(name):
            raise PluginError(plugin=name, problem="another plugin has this name")
        self._check(name, plugin)
        try:
            self._manager.register(plugin, name)
        except (ValueError, pluggy.PluginValidationError) as problem:
            raise PluginError(plugin=name, problem=" ".join(str(problem).split())) from problem

    def unregister(self, name: str) -> None:
        """Unregister one plugin, if it is registered: its hooks are no longer called."""
        if self._manager.has_plugin(name):
            self._manager.unregister(name=name)
        self.broken.pop(name, None)

    def load_folder(self, folder: Path) -> str:
        """Load a package folder (an application, a one-off plugin) under the folder's name; return this name.

        Raises:
            PluginError: there is no package, or its import failed (see the cause).
        """
        folder = folder.resolve()
        # An installed plugin is named after its entry point.
        name = next((name for name, plugin in self._manager.list_name_plugin() if _home(plugin) == folder), None)
        if name is None:
            name = folder.name
            try:
                self.register(name, import_folder(folder))
            except PluginError:
                raise
            except RAISED as problem:
                raise PluginError(plugin=name, problem=error_text(problem)) from problem
        self.folders[name] = folder
        return name

    def names(self) -> list[str]:
        """Return the names of the loaded plugins."""
        return sorted(name for name, _ in self._manager.list_name_plugin())

    def ask(self, hook: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
        """Call one hook of every plugin, one plugin after the other; yield (plugin, result).

        A plugin that raises is recorded in `broken`; the hooks of the others are still called.
        """
        caller = getattr(self._manager.hook, hook)
        for implementation in list(caller.get_hookimpls()):
            wanted = {name: arguments[name] for name in implementation.argnames}
            begin = time.perf_counter()
            try:
                answer = implementation.function(**wanted)
            except RAISED as problem:  # the hooks of the other plugins are still called
                self._trace(hook, implementation.plugin_name, problem, begin)
                self.note(implementation.plugin_name, problem)
            else:
                self._trace(hook, implementation.plugin_name, answer, begin)
                yield implementation.plugin_name, answer

    def note(self, name: str, problem: BaseException) -> None:
        """Record that a plugin is broken, and log it."""
        error = problem
        if not isinstance(error, PluginError):
            error = PluginError(plugin=name, problem=error_text(problem))
            error.__cause__ = problem
        self.broken[name] = error
        logger("exop.plugins").warning("plugin left out", plugin=name, problem=str(error.problem))

    def _check(self, name: str, plugin: object) -> None:
        """Check, before anything is registered, that every implementation matches a hook.

        Raises:
            PluginError: one does not; the error names the known hooks, or parameters, and the most similar one.
        """
        for attribute in dir(plugin):
            if (options := self._manager.parse_hookimpl_opts(plugin, attribute)) is None:
                continue
            if not hasattr(self._manager.hook, hook := options["specname"] or attribute):
                problem = f"there is no hook {hook!r}; {suggest(hook, vars(self._manager.hook), 'hook')}"
                raise PluginError(plugin=name, problem=problem)
            if options["wrapper"] or options["hookwrapper"]:
                problem = f"{hook} is a hook wrapper, which ExoP does not call; return a result instead"
                raise PluginError(plugin=name, problem=problem)
            known = inspect.signature(getattr(specs, hook)).parameters
            for parameter in inspect.signature(getattr(plugin, attribute)).parameters.values():
                if parameter.default is parameter.empty and parameter.name not in known:
                    near = suggest(parameter.name, known, "parameter")
                    raise PluginError(plugin=name, problem=f"{hook} has no parameter {parameter.name!r}; {near}")

    def _trace(self, hook: str, plugin: str, answer: object, begin: float) -> None:
        if self._traced:
            took = (time.perf_counter() - begin) * 1e3
            shown = f"{len(answer)} given" if isinstance(answer, (list, tuple, dict)) else safe_repr(answer)
            print(f"exop hook {hook} [{plugin}] -> {shown} ({took:.1f} ms)", file=sys.stderr)  # noqa: T201


def import_folder(folder: Path) -> ModuleType:
    """Import a package from a folder, under the dotted name that the folder has on the import path.

    `apps/linear_road` below the working directory becomes `apps.linear_road`; any other folder is imported under its
    own name, and its parent is added to the import path.

    Raises:
        PluginError: the folder is no package, or another module has the same name.
    """
    folder = folder.resolve()
    if not (folder / "__init__.py").is_file():
        inside = sorted(one.parent for one in folder.glob("*/__init__.py") if one.parent.name != "tests")
        cure = f"; did you mean {' or '.join(map(str, inside[:3]))}?" if inside else ""
        lacks = "it holds no __init__.py" if folder.is_dir() else "it is no folder"
        raise PluginError(plugin=folder.name, problem=f"{folder} is no package: {lacks}{cure}")
    root = Path.cwd().resolve()
    parts = folder.relative_to(root).parts if folder.is_relative_to(root) else ()
    if not parts or not all(part.isidentifier() for part in parts):
        parts, root = (folder.name,), folder.parent
    if "." in folder.name:
        raise PluginError(plugin=folder.name, problem="no module can have a dot in its name; rename the folder")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module = importlib.import_module(".".join(parts))
    if (home := getattr(module, "__file__", None)) is None or Path(home).resolve().parent != folder:
        problem = f"Python knows another module {'.'.join(parts)!r} ({home or 'built in'})"
        cure = f"rename the folder {folder}, or uninstall the other one"
        raise PluginError(plugin=folder.name, problem=f"{problem}; {cure}")
    return module


def _home(plugin: Any) -> Path | None:
    """The package folder of a plugin; `None` for a plugin that is a single file or an object."""
    file = getattr(plugin, "__file__", None)
    home = Path(file).resolve().parent if file else None
    return home if home is not None and (home / "__init__.py").is_file() else None
