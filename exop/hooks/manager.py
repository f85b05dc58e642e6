"""Finding plugins and asking them; a plugin that fails is reported by name and left out."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from exop.errors import PluginError
from exop.hooks import specs
from exop.logs import logger

GROUP = "exop"


@dataclass
class Plugins:
    """The plugins of one platform. There is no global manager: every platform, and every test, has its own.

    `broken` maps the name of each plugin that could not be loaded, or failed in a hook, to its error.
    """

    broken: dict[str, PluginError] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._manager = pluggy.PluginManager(specs.PROJECT)
        self._manager.add_hookspecs(specs)
        if "hooks" in os.environ.get("EXOP_TRACE", "").split(","):
            self._manager.trace.root.setwriter(sys.stderr.write)
            self._manager.enable_tracing()

    def discover(self) -> None:
        """Load every installed distribution that has an entry point in the group `exop`."""
        for entry in entry_points(group=GROUP):
            if self._manager.has_plugin(entry.name) or entry.name in self.broken:
                continue
            try:
                self.register(entry.name, entry.load())
            except Exception as problem:  # noqa: BLE001 (whatever a plugin raises, the platform goes on without it)
                self._report(entry.name, problem)

    def register(self, name: str, plugin: object) -> None:
        """Add one plugin: a module, or an object with `@hookimpl` methods.

        Raises:
            PluginError: the name is taken, or an implementation has a parameter that its hook does not offer.
        """
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
        except (ValueError, pluggy.PluginValidationError) as problem:
            if self._manager.get_plugin(name) is plugin:
                self._manager.unregister(plugin)
            raise PluginError(plugin=name, problem=str(problem)) from problem

    def load_folder(self, folder: Path) -> str:
        """Load a package folder (an application, a one-off plugin) under its folder's name, and return that name.

        Raises:
            PluginError: there is no package, or importing it failed (the cause tells why).
        """
        folder = folder.resolve()
        name = folder.name
        known = self._manager.get_plugin(name)
        if known is not None and folder in Path(getattr(known, "__file__", None) or "").resolve().parents:
            self.folders[name] = folder
            return name
        try:
            self.register(name, import_folder(folder))
        except PluginError:
            raise
        except Exception as problem:
            raise PluginError(plugin=name, problem=f"{type(problem).__name__}: {problem}") from problem
        self.folders[name] = folder
        return name

    def names(self) -> list[str]:
        """The plugins that are loaded."""
        return sorted(name for name, _ in self._manager.list_name_plugin())

    def ask(self, hook: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
        """Call one hook of every plugin, one plugin after the other; yields (plugin, answer).

        A plugin that raises is noted in `broken` and the others are asked all the same.
        """
        caller = getattr(self._manager.hook, hook)
        for implementation in list(caller.get_hookimpls()):
            wanted = {name: arguments[name] for name in implementation.argnames}
            try:
                answer = implementation.function(**wanted)
            except Exception as problem:  # noqa: BLE001 (as in discover)
                self._report(implementation.plugin_name, problem)
                continue
            yield implementation.plugin_name, answer

    def _report(self, name: str, problem: Exception) -> None:
        error = PluginError(plugin=name, problem=f"{type(problem).__name__}: {problem}")
        error.__cause__ = problem
        self.broken[name] = error
        logger("exop.plugins").warning("plugin left out", plugin=name, problem=str(error.problem))


def import_folder(folder: Path) -> ModuleType:
    """Import a package from a folder, under the dotted name that the folder has on the import path.

    `apps/linear_road` becomes `apps.linear_road` when its parent holds it as a part of the project in the working
    directory; a folder elsewhere is imported by its own name, its parent being put on the path.
    """
    if not folder.is_dir() or not (folder / "__init__.py").is_file():
        raise PluginError(plugin=folder.name, problem=f"{folder} is no package: it holds no __init__.py")
    here = Path.cwd().resolve()
    parts = folder.relative_to(here).parts if folder.is_relative_to(here) else (folder.name,)
    root = here if folder.is_relative_to(here) else folder.parent
    if not all(part.isidentifier() for part in parts):
        parts, root = (folder.name,), folder.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(".".join(parts))
