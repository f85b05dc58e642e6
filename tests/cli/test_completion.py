"""A shell completes commands, options, paths and the names of what runs, by the protocol of the installed script."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import exop.remoting
from exop import Application, Platform
from exop.remoting.transport.rundir import run_directory
from tests.cli.shell import answer_of

#: Completes the line that it gets, as a shell does at the key: one candidate on each line.
PRESSED = 'source exop.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _exop; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture
def speeds():
    """A platform that runs `speeds`, with the nodes `source` and `output`."""
    app = Application("speeds")
    app.add("output", "stock:pass_on", item=app.add("source", "stock:count_up", to=10**9))
    with Platform(name="home", control=True) as platform:
        platform.apply(app.build().suspend("source"))
        yield platform


@pytest.fixture
def bash(tmp_path):
    """A bash that has read the script, and finds `exop`; gives the candidates for the last word of a command."""
    if (shell := shutil.which("bash")) is None:
        pytest.skip("bash is not installed")
    answer_of("--install-completion", "--shell", "bash", "--output", "exop.bash")
    command = tmp_path / "exop.sh"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m exop "$@"\n')
    command.chmod(0o755)

    def completed(*words: str) -> set[str]:
        pressed = [shell, "--norc", "-c", PRESSED, "bash", str(command), *words]
        done = subprocess.run(pressed, capture_output=True, text=True, timeout=60, check=True)
        assert done.stderr == ""
        return set(done.stdout.split())

    return completed


def offered(*words: str) -> set[str]:
    """The names that `exop` answers to the shell for the last word of a command."""
    return {line for line in answer_of("__complete", *words).splitlines() if line and line[0] != "\x1f"}


@pytest.mark.parametrize(
    "command", ["end", "describe", "configure", "replace", "item retry", "memento show", "metrics"]
)
def test_names_of_what_runs(speeds, command):
    """Applications and nodes where a command takes a node, applications alone where it takes an application."""
    nodes = set() if command in ("end", "metrics") else {"speeds.source", "speeds.output"}
    assert offered(*command.split(), "") == {"speeds", *nodes}


def test_slets_that_a_platform_knows(speeds):
    """The successor in `exop replace APP.NODE SLET`; an option before it does not count."""
    assert {"stock:count_up", "stock:pass_on"} < offered("replace", "--dry-run", "speeds.output", "")


def test_nothing_where_nothing_runs():
    """No error is printed into the command line of the user."""
    assert offered("replace", "") == offered("no such command", "") == offered("") == set()


def test_a_platform_that_does_not_answer(speeds, monkeypatch):
    """It costs its patience, and the names on the others are there."""
    monkeypatch.setattr(exop.remoting, "find_platforms", partial(exop.remoting.find_platforms, timeout=0.5))
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(run_directory() / "1.sock"))
        mute.listen()
        assert offered("end", "") == {"speeds"}


def test_bash_completes_what_runs_commands_options_and_paths(speeds, bash, counting: Path):
    """The script that is installed, carried out by the shell that it is for."""
    assert bash("configure", "speeds.o") == {"speeds.output"}
    assert bash("end", "") == {"speeds"}
    assert bash("re") == {"replace", "resume", "resolve", "rewire", "remove"}
    assert bash("item", "") >= {"list", "export", "retry"}
    assert "--dry-run" in bash("replace", "--d")
    assert bash("replace", "speeds.output", "stock:count") == {"stock:count_up"}
    assert bash("run", "./cou") == {"./counting"}


def test_neither_plugins_nor_engines_are_loaded():
    """A key press does not wait for the import of an engine."""
    code = (
        "import sys; from exop.cli import main; main(['__complete', 'end', '']); "
        "print({'pyspark', 'pyarrow', 'duckdb', 'exop_spark'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("set()", "")
