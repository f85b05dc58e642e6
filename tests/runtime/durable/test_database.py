"""The database of a state directory: the newest state or one before it is taken, all else refused; migration."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from exop import Application
from exop.errors import StateError, StoredStateError
from exop.runtime.durable import database as module
from exop.runtime.durable import store as stores
from exop.runtime.durable.database import accept, build
from exop.runtime.durable.snapshot import Snapshot
from exop.runtime.durable.store import Store
from exop.stock.slets import count_up, show


def snapshot(name: str = "app", content: bytes = b"content") -> Snapshot:
    """A checkpoint with one part."""
    return Snapshot(name, 1, "topology", {"place": "why"}, {("memento", "node"): content})


def save(store: Store, name: str = "app") -> None:
    """Store a small application."""
    app = Application(name)
    app.add("console", show, item=app.add("numbers", count_up))
    store.save(app.build().at(1), active=True)


def part(store: Store, name: str = "app") -> bytes | None:
    """What the checkpoint of an application holds."""
    found = store.checkpoints.read(name)
    return found.parts["memento", "node"] if found is not None else None


def contents(directory: Path) -> dict[str, bytes]:
    """Every file, as bytes."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_at(monkeypatch: pytest.MonkeyPatch, store: Store, name: str, copy: Path) -> None:
    """Write a checkpoint, and keep the directory as it is at a failpoint of that."""

    def reached(point: str) -> None:
        if point == name:
            shutil.copytree(store.directory, copy)

    with monkeypatch.context() as patched:
        for place in (module, stores):
            patched.setattr(place, "failpoint", reached)
        store.checkpoints.write(snapshot(content=b"newest"))


@pytest.fixture
def store(tmp_path):
    """A directory with an application and a checkpoint of it."""
    with closing(Store(tmp_path / "state")) as found:
        save(found)
        found.checkpoints.write(snapshot())
        yield found


@pytest.mark.parametrize(
    ("name", "expected"),
    [("checkpoint-writing", b"content"), ("generation-written", b"content"), ("generation-committed", b"newest")],
)
def test_killed_in_a_transaction_it_has_all_of_it_or_nothing(store, tmp_path, monkeypatch, name, expected):
    """Before the commit the state before is taken, behind it the new one; each time the next transaction is whole."""
    copy = tmp_path / "copy"
    killed_at(monkeypatch, store, name, copy)
    with closing(Store(copy)) as again:
        assert part(again) == expected
        again.checkpoints.write(snapshot(content=b"later"))
    with closing(Store(copy)) as again:
        assert part(again) == b"later"


def test_a_transaction_that_was_committed_and_is_gone_is_missed(store, tmp_path):
    """A log that has lost its last frame, or itself, is the state before: the generation file tells it."""
    for count in range(3):
        store.checkpoints.write(snapshot(content=b"%d" % count))
    for damage in ("damaged", "truncated", "lost"):
        copy = tmp_path / damage
        shutil.copytree(store.directory, copy)
        log = copy / "platform.sqlite-wal"
        whole = log.read_bytes()
        bad = whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:] if damage == "damaged" else whole[:-1]
        log.write_bytes(bad)
        if damage == "lost":
            log.unlink()
        before = contents(copy)
        for _ in range(2):
            with pytest.raises(StateError, match=r"generation \d+ was committed here.*exop state accept"):
                Store(copy)
        assert contents(copy) == before
    accept(tmp_path / "truncated")
    with closing(Store(tmp_path / "truncated")) as again:
        assert part(again) == b"1"


@pytest.mark.parametrize("name", ["platform.sqlite", "platform.sqlite-wal", "generation"])
@pytest.mark.parametrize("folded", [True, False])
def test_an_older_copy_of_one_file_is_never_taken_for_the_newest(store, tmp_path, name, folded):
    """Each file alone is whole: the generation, the digests and the checksums tell where they are not of one time."""
    save(store, "other")
    store.checkpoints.write(snapshot("other", b"x" * 300_000))
    store.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    shutil.copytree(store.directory, tmp_path / "older")
    store.checkpoints.write(snapshot("other", b"y" * 300_000))
    if folded:
        store.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    store.checkpoints.write(snapshot(content=b"last"))
    copy = tmp_path / "mixed"
    shutil.copytree(store.directory, copy)
    shutil.copy(tmp_path / "older" / name, copy / name)
    told = ""
    try:
        with closing(Store(copy)) as again:
            assert part(again) == b"last"
            assert part(again, "other") == b"y" * 300_000
    except StateError as problem:
        told = str(problem)
    assert "nothing was changed" in told or (name == "platform.sqlite" and not folded)


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_a_database_that_is_gone_is_no_new_one(tmp_path, damage):
    """The generation file remembers that there was one, also one without any application."""
    Store(tmp_path).close()
    path = tmp_path / "platform.sqlite"
    path.unlink()
    if damage == "empty":
        path.touch()
    with pytest.raises(StateError, match=r"the generation 1 was committed here, and the database is missing or empty"):
        Store(tmp_path)


def test_killed_while_it_is_made_it_is_made_anew(tmp_path, monkeypatch):
    """A first start that died before its database was in its place leaves nothing that keeps the next from starting."""
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            Store(tmp_path)
    with closing(Store(tmp_path)) as store:
        save(store)


def test_a_start_changes_no_mode_of_the_database(tmp_path):
    """Killed while it did, it would leave a rollback journal, which keeps everybody who only reads from reading."""
    build(tmp_path)
    journaled = (tmp_path / "platform.sqlite").read_bytes()[18:20]
    assert journaled == b"\2\2", "the file says that it has a log of its changes, not a rollback journal"
    with closing(Store(tmp_path)):
        assert (tmp_path / "platform.sqlite").read_bytes()[18:20] == journaled


def test_rows_that_do_not_fit_to_their_digest_keep_their_application_down(store):
    """The other applications are usable; the damaged one is not changed until it is forgotten."""
    save(store, "other")
    store.close()
    with closing(sqlite3.connect(store.database.path, isolation_level=None)) as database:
        database.execute("UPDATE applications SET active = 0 WHERE name = 'app'")
    for _ in range(2):
        with closing(Store(store.directory)) as again:
            assert [one.active for one in again.applications()] == [True, True]
            again.set_active("other", active=True)
            with pytest.raises(StoredStateError, match=r"'app' is damaged.*exop remove app"):
                again.checkpoints.read("app")
            with pytest.raises(StateError, match=r"'app' is damaged"):
                save(again)
    with closing(Store(store.directory)) as again:
        again.forget("app")
    with closing(Store(store.directory)) as again:
        assert [one.name for one in again.applications()] == ["other"]
        save(again)


def test_plugins_are_under_the_digest_of_all(store):
    """A folder from which code is loaded is not taken from a damaged row."""
    store.remember_plugin("weather", Path("/a"))
    store.close()
    with closing(sqlite3.connect(store.database.path, isolation_level=None)) as database:
        database.execute("UPDATE plugins SET folder = '/b'")
    with pytest.raises(StateError, match="its rows do not fit to their digest"):
        Store(store.directory)


def test_a_section_that_was_altered_keeps_its_application_down(store):
    """The digest of an application covers each table of its topology."""
    save(store)
    store.close()
    with closing(sqlite3.connect(store.database.path, isolation_level=None)) as database:
        database.execute("UPDATE sections SET content = replace(content, 'to', 'ot') WHERE kind = 'nodes'")
    with closing(Store(store.directory)) as again:
        assert again.database.damaged.keys() == {"app"}


def test_a_full_disk_gets_the_room_of_the_write_ahead_log_back(store):
    """A transaction that finds no room leaves the next one the room of all transactions before it."""
    log = store.database.path.with_name(f"{stores.FILE}-wal")
    for number in range(5):
        store.checkpoints.write(snapshot(content=b"%d" % number))
    grown = log.stat().st_size
    assert grown > 0
    store.database.connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StateError, match="full"):
        store.checkpoints.write(snapshot(content=b"x" * 10_000_000))
    assert log.stat().st_size == 0
    assert part(store) == b"4"
