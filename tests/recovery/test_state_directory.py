"""A state directory that is full, damaged, newer, or in use: a clear error, nothing destroyed, the stream goes on."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench.cases import state_at_rest
from exop import Application, Memento, Platform, hookimpl, slet
from exop.cli import main
from exop.errors import StateError, StoredStateError
from exop.hooks import Plugins
from exop.logs import set_up
from exop.model.meshes.mesh import Mesh
from exop.runtime.durable.store import Checkpoints
from exop.wiring.applications import Applications
from exop.wiring.changes.plan import Plan
from tests.rig import eventually


class Position(Memento):
    """How far the source has come."""

    number: int = 0


class Sent(Memento, version=2):
    """What the sink has seen."""

    items: list[int] = field(default_factory=list)
    ballast: list[int] = field(default_factory=list)


@slet
def numbers(position: Position, *, step: int = 1) -> Iterator[int | None]:
    """Emit numbers without end."""
    while True:
        position.number += step
        yield position.number


#: How far the source below may come.
ALLOWED = [0]


@slet
def allowed(position: Position) -> Iterator[int | None]:
    """Emit the numbers that are allowed."""
    while True:
        if position.number < ALLOWED[0]:
            position.number += 1
            yield position.number
        else:
            yield None


@slet
def passes(x: int, *, add: int = 0) -> int:
    """Pass on."""
    return x + add


@slet
def last(x: int, sent: Sent) -> None:
    """Keep the last number."""
    sent.items[:] = [x]


class Offered:
    """The slets, as a plugin offers them."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [numbers, allowed, passes, last]


def platform(state: Path) -> Platform:
    """A platform that finds the slets."""
    plugins = Plugins()
    plugins.register("test", Offered())
    return Platform(state=state, control=False, plugins=plugins)


def app(*, durable: float | None = None) -> Application:
    """A small application without end."""
    made = Application("app")
    if durable is not None:
        made.durable(every=durable)
    made.add("last", last, x=made.add("passes", passes, x=made.add("numbers", numbers)))
    return made


def grows(running: Platform) -> None:
    """Wait until the stream has gone on."""
    component = running.deployment("app").components["last"]

    def now() -> int:
        items = component.state.items  # type: ignore[union-attr]
        return items[0] if items else 0

    before = now()
    eventually(lambda: now() > before, "the stream")


def full(running: Platform, *, yes: bool = True) -> None:
    """Let the databases have no room for another page, or all there is."""
    store = running._applications.store
    assert store is not None
    store.database.connection.execute(f"PRAGMA max_page_count = {1 if yes else 1 << 30}")


def without_history(directory: Path) -> dict[str, Any]:
    """The content of a state directory: its files, and the rows of its database but for the history."""
    with closing(sqlite3.connect(directory / "platform.sqlite")) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in names if name != "history"}
    return {**contents(directory), "platform.sqlite": rows}


def contents(directory: Path) -> dict[str, bytes]:
    """Every file, as bytes."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("file", ["platform.sqlite", "generation"])
@pytest.mark.parametrize(
    "damage", ["one byte", "garbage", "cut off", "overwritten", "a directory", "newer", "empty", "gone"]
)
def test_a_file_that_cannot_be_used_is_left_as_it_is(tmp_path: Path, file: str, damage: str) -> None:
    """The error names the file and says what to do; it is byte for byte what it was, and the lock is free again."""
    with platform(tmp_path) as running:
        running.apply(app(durable=1000.0).build())
        grows(running)
        running.checkpoint("app")
    path = tmp_path / ("platform.sqlite" if damage == "newer" else file)
    whole = path.read_bytes()
    if damage in ("a directory", "gone"):
        path.unlink()
        if damage == "a directory":
            path.mkdir()
    elif damage == "newer":
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("UPDATE platform SET version = version + 1")
    else:
        made = {"one byte": b"S", "garbage": os.urandom(4096), "cut off": whole[: len(whole) // 2], "empty": b""}
        path.write_bytes(made.get(damage, whole[: len(whole) // 2] + b"\xff" * (len(whole) // 2)))
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(StateError, match=rf"{path.name}.* nothing was changed; "):
            platform(tmp_path).start()
    assert contents(tmp_path) == before
    if path.is_dir():
        path.rmdir()
    path.write_bytes(whole)
    with platform(tmp_path) as running:
        assert not running.failed_to_restart
        grows(running)


def test_the_command_line_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, no traceback."""
    (tmp_path / "platform.sqlite").write_bytes(b"S")
    assert main(["serve", "--state", str(tmp_path)]) == 2
    told = capsys.readouterr().err.strip()
    assert "nothing was changed; restore the whole state directory from one copy, or move it away" in told
    assert "\n" not in told


def test_an_application_that_cannot_be_stored_is_not_deployed(tmp_path: Path) -> None:
    """A clear error, and nothing has happened; with room, it is."""
    with platform(tmp_path) as running:
        mesh = app().build()
        full(running)
        running._applications.store.database.connection.execute(
            "CREATE TRIGGER x BEFORE INSERT ON applications BEGIN SELECT RAISE(ABORT, 'full'); END"
        )  # type: ignore[union-attr]
        with pytest.raises(StateError, match="could not be written"):
            running.apply(mesh)
        assert running.applications() == []
        running._applications.store.database.connection.execute("DROP TRIGGER x")  # type: ignore[union-attr]
        running.apply(mesh)
        grows(running)


def refusing(running: Platform, *, yes: bool) -> None:
    """Let the store refuse every change, as a full or read-only disk does."""
    store = running._applications.store
    assert store is not None
    store.database.connection.execute(f"PRAGMA query_only = {int(yes)}")


def test_a_change_that_cannot_be_stored_is_made_all_the_same(tmp_path: Path) -> None:
    """The error says that it runs; it is stored with the next change, or when the platform is closed."""
    with platform(tmp_path) as running:
        running.apply(app().build())
        refusing(running, yes=True)
        with pytest.raises(
            StateError, match=r"app: the change is made and runs, but it is not stored .*readonly.*make room"
        ):
            running.apply(running.mesh("app").configure("passes", add=1000))
        assert running.mesh("app").node("passes").settings["add"] == 1000
        assert running.mesh("app").revision == 2
        assert [one["to"] for one in running.history("app")] == [1, 2], "the history has it at once"
        grows(running)
        refusing(running, yes=False)
    with platform(tmp_path) as running:
        assert running.mesh("app").node("passes").settings["add"] == 1000
        *stored, started = running.history("app")
        assert [(one["number"], one["to"]) for one in stored] == [(1, 1), (2, 2)]
        assert (started["number"], started["what"]) == (3, "start")


def test_a_stored_change_replaces_an_update_that_takes_effect_again_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting for which an update was pending at the checkpoint is that of the later change after a crash, too."""
    ALLOWED[:] = [5]
    with platform(tmp_path / "before") as running:
        made = Application("app")
        made.durable(every=3600)
        made.add("last", last, x=made.add("passes", passes, x=made.add("allowed", allowed)))
        running.apply(made.build().configure("passes", add=1, when="x == 8"))
        eventually(lambda: running.memento("app", "last").items == [5], "all that is allowed")
        running.checkpoint("app")
        ALLOWED[:] = [20]
        eventually(lambda: running.memento("app", "last").items == [21], "the update took effect")
        with mock.patch.object(Checkpoints, "write", side_effect=StateError("no room")):
            running.apply(running.mesh("app").configure("passes", add=9))
            with state_at_rest(running):
                shutil.copytree(tmp_path / "before", tmp_path / "after")
    real = Applications.plan

    def late(self: Applications, mesh: Mesh) -> Plan:
        eventually(lambda: self.get("app").components["last"].state.items == [21], "the update took effect again")
        return real(self, mesh)

    monkeypatch.setattr(Applications, "plan", late)
    with platform(tmp_path / "after") as running:
        assert not running.failed_to_restart
        assert running.mesh("app").node("passes").settings == {"add": 9}
        ALLOWED[:] = [30]
        eventually(lambda: running.memento("app", "last").items == [39], "with the setting of the change")


def test_refused_calls_displace_no_entry_that_waits_for_the_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the disk is full, an operation refused several times has one entry that waits, and one log line."""
    set_up()
    with platform(tmp_path) as running:
        running.apply(app().build())
        refusing(running, yes=True)
        for _ in range(3):
            running._applications.history.counted("app", "end", "too low")
        assert running._applications.store is not None
        assert len(running._applications.store._entries) == 1
        (line,) = [one for one in capsys.readouterr().err.splitlines() if "not stored" in one]
        assert all(told in line for told in ("application=app", str(tmp_path), "make room there"))
        refusing(running, yes=False)
        running._applications.history.counted("app", "end", "too low")
        running._applications.history.counted("app", "end", "too low")
        found = [(one["number"], one["outcome"], one.get("count")) for one in running.history("app")]
        assert found == [(1, "done", None), (2, "refused", 2)]


def test_an_application_that_cannot_be_forgotten_runs_on(tmp_path: Path) -> None:
    """Removing it is refused as a whole; later it is removed."""
    with platform(tmp_path) as running:
        running.apply(app(durable=1000.0).build())
        refusing(running, yes=True)
        with pytest.raises(StateError, match="could not be written"):
            running.remove("app")
        grows(running)
        refusing(running, yes=False)
        running.checkpoint("app")
        assert running.remove("app")
    with platform(tmp_path) as running:
        assert running.applications() == []


def test_an_end_that_cannot_be_stored_is_no_failure(tmp_path: Path) -> None:
    """What has finished has finished: `wait` says so, and the log tells the rest."""
    with platform(tmp_path) as running:
        running.apply(app().build())
        grows(running)
        refusing(running, yes=True)
        running.end("app")
        assert running.wait("app", 60)
        refusing(running, yes=False)


def test_a_memento_of_a_newer_version_in_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application is not started, its checkpoint is kept as it is, and goes on with the code that wrote it.

    The history says that it was tried.
    """
    with platform(tmp_path) as running:
        running.apply(app(durable=1000.0).build())
        grows(running)
    before = without_history(tmp_path)
    with monkeypatch.context() as older:
        older.setattr(Sent, "__memento_version__", 1)
        with platform(tmp_path) as running:
            problem = running.failed_to_restart["app"]
            assert isinstance(problem, StoredStateError)
            assert "of version 2 of Sent, the code here knows 1; nothing was changed; install the newer" in str(problem)
            with pytest.raises(StateError, match="is kept, because it could not be restored"):
                running.apply(app(durable=1000.0).build())
            assert [one["outcome"][:16] for one in running.history("app")[1:]] == [
                "StoredStateError",
                "StateError: the ",
            ]
        assert without_history(tmp_path) == before
    with platform(tmp_path) as running:
        assert not running.failed_to_restart
        grows(running)
