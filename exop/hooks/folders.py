"""Importing a package from a folder: an application, or a plugin that is not installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from exop.errors import PluginError


def import_folder(folder: Path) -> ModuleType:
    """Import a package from a folder, under the dotted name that the folder has on the import path.

    `apps/linear_road` becomes `apps.linear_road` when it stands below the working directory; a folder elsewhere is
    imported by its own name, its parent being put on the path.

    Raises:
        PluginError: the folder is no package, or another module has its name.
    """
    folder = folder.resolve()
    if not (folder / "__init__.py").is_file():
        inside = sorted(one.parent for one in folder.glob("*/__init__.py") if one.parent.name != "tests")
        cure = f"; did you mean {' or '.join(map(str, inside[:3]))}?" if inside else ""
        raise PluginError(plugin=folder.name, problem=f"{folder} is no package: it holds no __init__.py{cure}")
    here = Path.cwd().resolve()
    parts = folder.relative_to(here).parts if folder.is_relative_to(here) else ()
    root = here
    if not parts or not all(part.isidentifier() for part in parts):
        parts, root = (folder.name,), folder.parent
    if "." in folder.name:
        raise PluginError(plugin=folder.name, problem="no module can have a dot in its name; rename the folder")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module = importlib.import_module(".".join(parts))
    home = getattr(module, "__file__", None)
    if home is None or Path(home).resolve().parent != folder:
        problem = (
            f"Python knows another module {'.'.join(parts)!r} ({home or 'built in'}); rename the folder {folder}, or "
            f"uninstall the other one"
        )
        raise PluginError(plugin=folder.name, problem=problem)
    return module
