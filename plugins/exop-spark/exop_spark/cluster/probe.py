"""The task that reports the versions of a worker. Pickled by value, so that it needs the standard library only."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

#: The libraries that a task needs. The versions of Python are compared by Spark.
NEEDED = ("pyspark", "pyarrow", "pandas")


def versions(_: object) -> dict[str, str]:
    """Return the path of the interpreter, and the version of each library; an empty text for a missing one."""
    found = {"python": sys.executable}
    for name in NEEDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def difference(here: dict[str, str], there: dict[str, str]) -> str:
    """Return why a worker cannot run the tasks, or an empty text. Only the version of Spark has to be the same."""
    missing = [name for name in NEEDED if not there[name]]
    if missing:
        return f"{there['python']} there has no {', '.join(missing)}"
    if there["pyspark"] != here["pyspark"]:
        return f"{there['python']} there has pyspark {there['pyspark']}, here it is {here['pyspark']}"
    return ""
