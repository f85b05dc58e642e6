"""A worker reports its versions. Pickled by value: standard library only."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

#: What a task needs. Spark compares the versions of Python itself.
NEEDED = ("pyspark", "pyarrow", "pandas")


def versions(_: object) -> dict[str, str]:
    """Return the interpreter, and the version of each library that a task needs; empty for one that is missing."""
    found = {"python": sys.executable}
    for name in NEEDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def difference(here: dict[str, str], there: dict[str, str]) -> str:
    """Say what keeps a worker from doing the work; nothing if nothing does. Only Spark has to be the same."""
    missing = [name for name in NEEDED if not there[name]]
    if missing:
        return f"{there['python']} there has no {', '.join(missing)}"
    if there["pyspark"] != here["pyspark"]:
        return f"{there['python']} there has pyspark {there['pyspark']}, here it is {here['pyspark']}"
    return ""
