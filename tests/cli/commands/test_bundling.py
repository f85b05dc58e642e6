"""`exop bundle …`: from a skeleton to a started bundle and back, on a platform in another process."""

from __future__ import annotations

import gc
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Platform
from exop.bundle import modules
from tests.bundle.folders import started, write
from tests.cli.shell import answer_of, eventually, exop, facts, running


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The state directory of a platform that runs."""
    state = tmp_path / "state"
    with running("serve", "--state", state):
        eventually((state / "control.sock").exists)
        yield state


def test_a_bundle_is_made_installed_started_and_removed(state, tmp_path):
    """Each command tells what is so then, in words and as JSON."""
    folder = tmp_path / "speeds"
    assert (
        exop("bundle", "new", folder).stdout
        == f"speeds@0.1.0 in {folder}; next: exop bundle install {folder} --start\n"
    )
    assert exop("bundle", "list", "--state", state).stdout.startswith("no bundle is installed")
    assert exop("bundle", "install", folder, "--state", state).stdout == "speeds@0.1.0: resolved\n"
    assert facts("bundle", "start", "speeds", "--state", state)["state"] == "started"
    assert [one["slet"] for one in facts("slets", "add_up", "--state", state)] == ["speeds@0.1.0:add_up"]
    listed = exop("bundle", "list", "--state", state).stdout.splitlines()
    assert listed[1].split() == ["speeds@0.1.0", "started", "add_up", "-"]
    same = exop("bundle", "update", folder, "--state", state)
    assert same.returncode == 2
    assert "speeds@0.1.0 is started already: raise `version` in bundle.toml" in same.stderr
    manifest = folder / "bundle.toml"
    manifest.write_text(manifest.read_text().replace("0.1.0", "0.2.0"))
    updated = exop("bundle", "update", folder, "--state", state).stdout.splitlines()
    assert updated == ["speeds@0.2.0: started; replaced: no node runs a slet of it", "stopped: speeds@0.1.0"]
    assert facts("bundle", "stop", "speeds", "--state", state)["state"] == "resolved"
    assert exop("bundle", "uninstall", "speeds@0.1.0", "--state", state).stdout == "speeds@0.1.0: uninstalled\n"
    assert exop("bundle", "uninstall", "speeds", "--state", state).stdout == "speeds@0.2.0: uninstalled\n"
    refused = exop("bundle", "start", "speeds", "--state", state)
    assert refused.returncode == 2
    assert "has no bundle 'speeds'" in refused.stderr


def test_a_broken_bundle_is_told_by_file_and_line(state, tmp_path):
    """Exit code 2, one line; the list remembers why."""
    folder = tmp_path / "speeds"
    exop("bundle", "new", folder)
    (folder / "slets.py").write_text("\nimport nowhere\n")
    refused = exop("bundle", "install", folder, "--start", "--state", state)
    assert refused.returncode == 2
    assert f"exop: {folder}/slets.py:2: the code of the bundle speeds@0.1.0 could not be loaded" in refused.stderr
    assert "No module named 'nowhere'" in exop("bundle", "list", "--state", state).stdout


APPLICATION = """
import signal
from collections.abc import Iterator
from pathlib import Path
import threading
from exop import Application, Memento, hookimpl, slet
from exop.stock.slets import WriteLines

PACE = threading.Event()

class Position(Memento):
    number: int = 0

@slet
def numbers(position: Position) -> Iterator[int]:
    while True:
        position.number += 1
        yield position.number
        PACE.wait(0.01)

@slet
def tell(number: int) -> str:
    return f"first {number}"

def telling(*, output: Path) -> Application:
    app = Application("telling")
    app.durable(every=60)
    app.add("sink", WriteLines, item=app.add("tell", tell, number=app.add("numbers", numbers)), path=output)
    return app

@hookimpl
def register_builders():
    return [telling]
"""


def test_an_application_is_edited_while_it_runs(tmp_path):
    """Real saves: a good one, a broken one, a good one; every number comes once, in order. A lost state is told."""
    folder, output = tmp_path / "telling", tmp_path / "out.txt"
    folder.mkdir()
    source = folder / "__init__.py"
    source.write_text(APPLICATION)

    def lines() -> list[list[str]]:
        return [line.split() for line in output.read_text().splitlines()] if output.exists() else []

    def save(text: str) -> None:
        """As an editor does: beside, and renamed."""
        (folder / ".new").write_text(text)
        (folder / ".new").rename(source)

    (tmp_path / "where.toml").write_text(f'output = "{output}"\n')
    with running("dev", folder, "--params", tmp_path / "where.toml", "--quiet") as process:
        eventually(lines)
        save(APPLICATION.replace("first", "second"))
        eventually(lambda: lines()[-1][0] == "second")
        save(APPLICATION.replace("first", "third").replace("yield", "yield ("))
        assert process.stderr is not None
        told = ""
        while "runs on unchanged" not in told:
            told += process.stderr.readline()
        save(APPLICATION.replace("first", "fourth"))
        eventually(lambda: lines()[-1][0] == "fourth")
        found = lines()[:-1]  # the last one may be half written
        save(APPLICATION.replace("first", "fifth").replace('"numbers"', '"count"'))
        while "the state of numbers (Position) is lost" not in told:
            line = process.stderr.readline()
            assert line, told
            told += line
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert f"refused: {source}:" in told
    assert "  replace tell" in told
    assert [int(number) for _, number in found] == [*range(1, len(found) + 1)]
    assert "third" not in {word for word, _ in lines()}


@pytest.fixture(autouse=True)
def unloaded() -> Iterator[None]:
    """Commands in this process load bundles until their plugins are collected."""
    yield

    def gone() -> bool:
        gc.collect()  # threads that end may use them until then
        return not modules._loaded

    eventually(gone)


APPS = """
from exop import Application
from {package}.slets import add_up

def sums(*, to: int = 3) -> Application:
    app = Application("sums")
    sum = app.add("sum", add_up, number=app.add("n", "stock:count_up", to=to))
    app.add("show", "stock:show", item=sum)
    return app
"""


def with_builder(folder: Path, package: str = "speeds") -> Path:
    """The bundle `speeds`, whose builder uses a slet of its own, or one of the bundle *package*, which it requires."""
    exop("bundle", "new", folder)
    manifest = folder / "bundle.toml"
    offers = f'builders = ["apps:sums"]\n\n[requires]\nbundles = {[package] if package != "speeds" else []}'
    manifest.write_text(manifest.read_text().replace("[requires]", offers))
    (folder / "apps.py").write_text(APPS.format(package=package))
    return folder


def test_the_folder_of_a_bundle_is_what_every_command_takes(tmp_path):
    """Its builder builds, and its slets have the names that a platform gives them."""
    folder = with_builder(tmp_path / "speeds")
    for app in (folder, f"{folder}:sums"):
        assert "speeds@0.1.0:add_up" in answer_of("check", app)
        assert "speeds@0.1.0:add_up" in answer_of("mesh", app)
        assert answer_of("run", app, "to=2", "-q") == "0\n1\n"
    described = facts("describe", folder)
    assert [one["builder"] for one in described["builders"]] == ["sums"]
    assert [one["slet"] for one in described["slets"]] == ["speeds@0.1.0:add_up"]
    assert facts("describe", f"{folder}:sums")["builder"] == "sums"
    assert "has no builder 'sms'; did you mean 'sums'?" in answer_of("check", f"{folder}:sms", code=2)


def test_a_bundle_that_another_one_requires_is_loaded_as_the_error_says(tmp_path):
    """With `--load`; a run with a state directory installs both, so that the next one goes on with them."""
    exop("bundle", "new", tmp_path / "digits")
    folder, state = with_builder(tmp_path / "sums", "digits"), tmp_path / "state"
    refused = answer_of("check", folder, code=2)
    assert "lacks the bundle digits (`--load FOLDER` of one that fits" in refused
    load = ("--load", tmp_path / "digits")
    assert "digits@0.1.0:add_up" in answer_of("check", folder, *load)
    for _ in range(2):
        assert answer_of("run", folder, *load, "--state", state, "-q") == "0\n1\n3\n"
    with Platform(state=state) as platform:
        assert platform.bundles.states() == {"digits@0.1.0": "started", "sums@0.1.0": "started"}


def test_the_builder_of_a_started_bundle(state, tmp_path):
    """By its name, with or without version; one that is not started is named with what to do."""
    folder = with_builder(tmp_path / "speeds")
    refused = answer_of("apply", folder, "--state", state, code=2)
    assert "has no slet 'speeds@0.1.0:add_up'" in refused
    assert "(`exop bundle install FOLDER --start`)" in refused
    exop("bundle", "install", folder, "--start", "--state", state)
    assert answer_of("apply", folder, "--state", state).startswith("sums runs on")
    for app in ("speeds", "speeds:sums", "speeds@0.1.0:sums"):
        assert "deploy it" in answer_of("plan", app, "to=4", "--state", state)
        assert answer_of("apply", app, "--state", state).startswith("sums runs on")
        assert "speeds@0.1.0:add_up" in answer_of("check", app)
        assert "speeds@0.1.0:add_up" in answer_of("mesh", app)
    assert facts("describe", "speeds@0.1.0:sums")["builder"] == "sums"
    assert "did you mean 'speeds@0.1.0'?" in answer_of("check", "speeds@0.1:sums", code=2)


def test_an_update_warns_where_a_table_lacks_the_new_field(tmp_path):
    """The warning names the column; when it is added as the warning says, the stream goes on."""
    rows = """
import time
from collections.abc import Iterator
from dataclasses import dataclass
from exop import Memento, slet

class At(Memento):
    n: int = 0

@dataclass
class Row:
    a: int
    FIELD

@slet
def rows(at: At) -> Iterator[Row]:
    while True:
        at.n += 1
        yield Row(at.n)
        time.sleep(0.001)
"""
    manifest = 'name = "ticks"\nversion = "{}"\nslets = ["slets:rows"]\n'
    base = tmp_path / "base"

    def bundle(version: str, field: str) -> Path:
        files = {"bundle.toml": manifest.format(version), "slets.py": rows.replace("FIELD", field)}
        return write(tmp_path / version, files)

    def rows_of(query: str) -> list[Any]:
        with closing(sqlite3.connect(base, timeout=60)) as database:
            return database.execute(query).fetchall()

    with Platform() as platform:
        started(platform, bundle("1.0", ""))
        app = Application("app", plugins=platform.plugins)
        passed = app.add("passed", "stock:pass_on", item=app.add("rows", "ticks@1.0:rows"))
        app.add("db", "stock:write_sqlite", item=passed, path=base, lot=1)
        platform.apply(app.build())
        sink = platform.deployment("app").components["db"]
        eventually(lambda: rows_of("SELECT 1 FROM sqlite_master"))
        facts = platform.bundles.update(bundle("1.1", "b: int = 2"))
        assert facts["replaced"] == ["app.rows"]
        (warning,) = facts["warnings"]
        assert warning.startswith(
            f"warning: db: the table items of {base} has no column b; it has a; add what it lacks"
        )
        eventually(lambda: sink.error)
        rows_of(warning.split("`")[1])
        platform.resume("app", "db")
        eventually(lambda: rows_of("SELECT 1 FROM items WHERE b = 2"))
        assert sink.error is None
