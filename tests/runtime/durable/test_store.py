"""The state directory: what is stored is there again; what cannot be used is refused, and nothing is changed."""

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from exop import Application
from exop.cli.commands.state import examine
from exop.errors import StateError
from exop.runtime.durable.store import Store
from exop.stock.slets import count_up, show
from tests.rig import PATIENCE


def mesh(name="numbers", **settings):
    """A small mesh."""
    app = Application(name)
    app.add("console", show, item=app.add("numbers", count_up, **settings))
    return app.build().at(3)


@pytest.fixture
def directory(tmp_path):
    """Where a state directory is made."""
    return tmp_path / "deep" / "state"


def test_applications_are_there_after_a_restart(directory):
    """Name, revision, topology and activity come back; the directory is made when it is missing."""
    store = Store(directory)
    store.save(mesh("b"), active=True)
    store.save(mesh("a"), active=False)
    store.remember_plugin("weather", Path("/somewhere/weather"))
    store.close()
    again = Store(directory)
    assert [(one.name, one.revision, one.topology, one.active) for one in again.applications()] == [
        ("a", 3, mesh("a").to_toml(), False),
        ("b", 3, mesh("b").to_toml(), True),
    ]
    assert again.plugins() == {"weather": Path("/somewhere/weather")}
    again.close()


def test_activity_can_be_changed_alone(directory):
    """An application that has finished is not started again by itself."""
    store = Store(directory)
    store.save(mesh(), active=True)
    store.set_active("numbers", active=False)
    assert not store.applications()[0].active
    store.close()


def test_a_platform_that_was_killed_does_not_keep_its_directory(directory):
    """The lock is the process's: it goes with it, whatever stands in the file."""
    code = (
        "import os, sys; from pathlib import Path; from exop.runtime.durable.store import Store;"
        "Store(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(directory)], check=False, timeout=60)
    assert (directory / "lock").read_text()
    Store(directory).close()


def contents(directory):
    """Every file of a directory, as bytes."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}


def test_somebody_elses_database_is_refused(directory):
    """A database of other tables is none of ours: nothing is added to it."""
    directory.mkdir(parents=True)
    database = sqlite3.connect(directory / "platform.sqlite")
    database.execute("CREATE TABLE recipes (name TEXT)")
    database.commit()
    database.close()
    with pytest.raises(StateError, match="no state of ExoP"):
        Store(directory)
    database = sqlite3.connect(directory / "platform.sqlite")
    assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("recipes",)]
    database.close()


def test_a_closed_directory_is_free_though_a_child_lives_on(directory):
    """A child that was forked holds every file that was open then."""
    store = Store(directory)
    kept = os.dup(store._lock.number)
    store.close()
    Store(directory).close()
    os.close(kept)


@pytest.mark.parametrize("place", ["/proc/exop/state", "/dev/null/state"])
def test_where_no_directory_can_be_made_the_error_says_so(place):
    """One line: the place, the reason, the cure."""
    with pytest.raises(StateError, match=r"cannot be used: .*; give another one, --state DIR"):
        Store(Path(place))


def test_a_file_in_the_way_is_named(tmp_path):
    """A state directory that is a file."""
    (tmp_path / "state").write_text("")
    with pytest.raises(StateError, match=rf"{tmp_path}/state cannot be used"):
        Store(tmp_path / "state")


def test_several_threads_may_write(directory):
    """Appliers and drivers note things at the same time; every one of them is there."""
    store = Store(directory)
    for number in range(8):
        store.save(mesh(f"app{number}"), active=True)
    broken = []

    def toggle(number):
        try:
            for turn in range(25):
                store.set_active(f"app{number}", active=turn % 2 == 0)
            store.set_active(f"app{number}", active=False)
        except Exception as error:  # noqa: BLE001 (shown below)
            broken.append(error)

    threads = [threading.Thread(target=toggle, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not broken
    assert not any(one.active for one in store.applications())
    store.close()


def test_the_last_mesh_is_stored_though_an_earlier_one_is_tried_again_meanwhile(directory, monkeypatch):
    """A change of another application writes what could not be written before."""
    store = Store(directory)
    store.save(mesh(), active=True)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "update", Mock(side_effect=StateError("full")))
        assert str(store.note(mesh().at(4))) == "full"
    update, newer = Store.update, threading.Thread(target=store.note, args=[mesh().at(5)])

    def late(self, *meshes):
        if newer.ident is None:
            newer.start()
            newer.join(0.05)  # it waits for its turn
        update(self, *meshes)

    monkeypatch.setattr(Store, "update", late)
    assert store.note(mesh("other")) is None
    newer.join(PATIENCE)
    assert [(one.name, one.revision) for one in store.applications()] == [("numbers", 5)]
    store.close()


def test_a_directory_is_the_owners_alone(directory):
    """What is stored may hold what others are not to see."""
    Store(directory).close()
    assert directory.stat().st_mode & 0o077 == 0
    assert {path.name: path.stat().st_mode & 0o077 for path in directory.iterdir()} == {
        "lock": 0,
        "generation": 0,
        "platform.sqlite": 0,
    }


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_directory_that_others_may_write_to_is_refused(directory, mode):
    """A row in it decides which code runs: the error names the directory and the cure, and changes nothing."""
    Store(directory).close()
    before = contents(directory)
    directory.chmod(mode)
    with pytest.raises(StateError, match=rf"other users .* may write to {directory}, .*chmod -R go-w {directory}"):
        Store(directory)
    assert contents(directory) == before
    directory.chmod(0o755)
    Store(directory).close()


@pytest.mark.parametrize("name", ["platform.sqlite", "bundles"])
def test_a_file_that_others_may_write_to_is_refused_where_they_can_reach_it(directory, name):
    """Within a directory that only its owner may enter, modes do not count: the umask was generous then."""
    Store(directory).close()
    (directory / name).touch()
    (directory / name).chmod(0o664)
    Store(directory).close()
    (directory / name).touch()
    (directory / name).chmod(0o664)
    directory.chmod(0o755)
    with pytest.raises(StateError, match=rf"may write to {directory}/{name}, .*chmod -R go-w {directory}"):
        Store(directory)


@pytest.mark.parametrize("name", ["", "platform.sqlite", "generation", "engines"])
@pytest.mark.parametrize("linked", [False, True])
def test_what_belongs_to_another_user_is_refused(directory, monkeypatch, name, linked):
    """The directory, or what is read of it, also by a link of one's own: the error names it and both users."""
    Store(directory).close()
    (directory / "engines").mkdir(mode=0o700)
    place = directory
    if linked:
        place = directory.with_name("link")
        place.symlink_to(directory)
    found = Path.stat

    def foreign(path, *, follow_symlinks=True):
        known = found(path, follow_symlinks=follow_symlinks)
        meant = follow_symlinks and path == place / name
        return os.stat_result((*known[:4], 4711, *known[5:])) if meant else known

    monkeypatch.setattr(Path, "stat", foreign)
    with pytest.raises(StateError, match=rf"{name} belongs to the user with the id 4711, .*as the user {os.geteuid()}"):
        Store(place)


@pytest.mark.parametrize("name", ["generation", "platform.sqlite", "lock"])
def test_a_pipe_in_the_way_is_refused(directory, name):
    """Opening it would wait for ever: it is named instead, by a start and by `exop state check`."""
    directory.mkdir(parents=True)
    os.mkfifo(directory / name)
    with pytest.raises(StateError, match=rf"state/{name} is neither a file nor a folder.*move it away"):
        Store(directory)
    with pytest.raises(StateError, match=rf"state/{name} is no file.*move it away"):
        examine(directory)


def test_the_lock_cannot_be_taken_by_who_may_only_read(directory):
    """The file is its owner's alone, also where the release before has made it readable for all."""
    Store(directory).close()
    (directory / "lock").chmod(0o644)
    store = Store(directory)
    assert (directory / "lock").stat().st_mode & 0o077 == 0
    store.close()
