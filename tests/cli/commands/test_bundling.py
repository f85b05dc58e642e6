"""`exop bundle …`: from a skeleton to a started bundle and back, on a platform in another process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import eventually, exop, facts, running


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
