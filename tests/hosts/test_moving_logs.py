"""A log on disk moves between hosts with its files: every row under its offset, in the folder of the new host."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exop import Application
from exop.errors import PlanError, StateError
from exop.hosts.moves.handing import Handing
from exop.runtime.channels.log import LogChannel
from exop.runtime.log import copying, disk
from exop.runtime.log.memory import flat
from exop.wiring.changes.change import Change
from exop.wiring.changes.executor import Changes
from tests.change.tools import plain, whole
from tests.hosts.moving import APP, Hosts, hosts
from tests.hosts.test_absent_hosts import RELEASED, released
from tests.rig import PATIENCE, eventually

KINDS = {"log": {"keep": "all"}, "partitioned_log": {"keep": "all", "by": "real", "partitions": 3}}


class Logged:
    """Numbers pass a log of small segments on one of two hosts, into a sink at the home."""

    def __init__(self, there: Hosts, state: Path, kind: str, durable: float | None, settings: dict[str, Any]) -> None:
        self.there, self.state = there, state
        app = Application(APP)
        if durable is not None:
            app.durable(every=durable)
        log = app.channel("kept", kind, **{"segment": 2000} | KINDS[kind] | settings)
        app.add("passes", plain, x=app.add("source", released), out=log)
        app.add("sink", there.sink, x=log)
        RELEASED[0] = 0
        there.home.apply(app.build())
        self.let(200)

    def let(self, more: int) -> None:
        """Let numbers through."""
        RELEASED[0] += more
        eventually(lambda: len(self.there.seen) == RELEASED[0])
        whole([*self.there.seen])

    @property
    def host(self) -> Any:
        """The platform that has the log."""
        return self.there.platforms[self.there.home.mesh(APP).place_of("kept") or "h1"]

    @property
    def log(self) -> Any:
        """The channel."""
        return self.host.deployment(APP).channels["kept"]

    def move(self, host: str, **how: Any) -> None:
        """Move the log; it has all rows that the sink has seen, each once."""
        before = self.there.home.mesh(APP)
        self.there.home.apply(before.move("kept", to=host), **how)
        text = f"move the channel kept: {before.channels['kept'].host or 'home'} → {host.replace('h1', 'home')}"
        assert self.there.home.history(APP)[-1]["steps"] == [text]
        self.check()

    def check(self) -> None:
        """Compare the content with what came through."""
        self.let(100)
        kept = self.log.replay(0) if self.log.kind == "log" else sorted(flat(self.log.rows(dict.fromkeys("012", 0))))
        assert kept == self.there.seen

    def files(self, host: str) -> list[Path]:
        """The files of the log at a host; while a platform removes folders, `glob` would fail."""
        found = (Path(at, name) for at, _, names in os.walk(self.state / host / "channels") for name in names)
        return [file for file in found if file.suffix == ".log"]


@contextmanager
def logged(state: Path, kind: str = "log", durable: float | None = None, **settings: Any) -> Iterator[Logged]:
    """A log on disk, of platforms with state directories."""
    with hosts("h1", "h2", slets=(released,), state=state) as there:
        yield Logged(there, state, kind, durable, settings)


@pytest.mark.parametrize("durable", [None, 0.05])
@pytest.mark.parametrize("kind", KINDS)
def test_a_log_on_disk_moves_and_comes_back(kind: str, durable: float | None, tmp_path: Path):
    """Nothing of it stays where it was, and it is forced to disk where it is; checkpoints go on."""
    with logged(tmp_path, kind, durable) as one:
        for host in ("h2", "h1", "h2"):
            one.move(host)
            if durable is not None:
                one.host.checkpoint(APP)
            assert [name for name in ("h1", "h2") if one.files(name)] == [host]
            assert not [*(tmp_path / host).glob(f"channels/**/*{copying._COPY}")]


def test_a_log_that_has_come_back_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It comes back while the change in which it has left still closes what that has replaced."""
    back, close, release, released_here = threading.Event(), Changes.close, Handing.release, list[str]()

    def late(self: Changes, change: Change) -> None:
        assert not change.removed or back.wait(PATIENCE)
        close(self, change)

    def noted(self: Handing) -> None:
        release(self)
        released_here.append(self.host)

    monkeypatch.setattr(Changes, "close", late)
    monkeypatch.setattr(Handing, "release", noted)
    with logged(tmp_path) as one:
        one.move("h2")
        one.move("h1")
        back.set()
        eventually(lambda: sorted(released_here) == ["h1", "h1", "h2", "h2"], "both changes are over")
        assert one.files("h1")
        one.move("h2")


def test_what_comes_while_a_log_is_copied_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Rows of the last file, and further files; not those that are trimmed; in parts smaller than a row."""
    monkeypatch.setattr(disk, "PART", 200)
    with logged(tmp_path, segment=500) as one:
        log, ahead = one.log, Handing.copy_ahead

        def more(self: Handing) -> None:
            ahead(self)
            if self.transfer.contents:
                one.let(100)
                log.trim(50)

        monkeypatch.setattr(Handing, "copy_ahead", more)
        one.there.home.apply(one.there.home.mesh(APP).move("kept", to="h2"))
        one.let(10)
        assert 0 < one.log.start <= 50
        assert one.log.replay(one.log.start) == one.there.seen[one.log.start :]


def test_a_log_that_is_cut_is_copied_again(tmp_path: Path):
    """A recovery may remove rows which the copy has."""
    log = disk.DiskLog(tmp_path / "log")
    for number in range(10):
        log.append([number])
    copying.write(tmp_path / "copy", log.parts(""))
    log.cut(5)
    log.append(["other"])
    copying.write(tmp_path / "copy", log.parts(""), log.files)
    assert flat(disk.DiskLog(tmp_path / "copy").events(0, 6)) == [0, 1, 2, 3, 4, "other"]


@pytest.mark.parametrize("name", ["../x.log", "/x.log", "lock", f"{0:020d}.log.copy", f"other/{0:020d}.log"])
def test_a_peer_names_only_files_of_a_log(name: str, tmp_path: Path):
    """Nothing is written elsewhere."""
    with pytest.raises(StateError, match="is no name of a file of a log"):
        copying.write(tmp_path / "copy", [(name, 0, b"x")])
    assert not [*tmp_path.glob("**/*")]


def test_a_full_disk_at_the_target_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The log goes on where it is, and the copy is removed; with room, the same change is made."""

    def full(number: int) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with logged(tmp_path) as one:
        with monkeypatch.context() as patch:
            patch.setattr(copying, "os", SimpleNamespace(fsync=full))
            with pytest.raises(PlanError, match=r"h2.*a log cannot be copied to .*No space left.*make room there"):
                one.move("h2")
        eventually(lambda: not one.files("h2"))
        one.check()
        one.move("h2")


def test_a_plan_that_is_aborted_in_the_cut_leaves_the_log_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The copy is complete by then, and is removed; the next attempt begins a new one."""

    def broken(log: LogChannel, *, on: bool) -> None:
        if log.end > 100:
            raise StateError("planted")

    with logged(tmp_path, durable=0.05) as one:
        with monkeypatch.context() as patch:
            patch.setattr(LogChannel, "take_part", broken)
            with pytest.raises(PlanError, match="planted"):
                one.move("h2")
        eventually(lambda: not one.files("h2"))
        one.check()
        one.move("h2")


def test_the_folder_of_another_log_is_refused(tmp_path: Path):
    """A setting gives the same folder at all hosts, which are on one machine here."""
    with logged(tmp_path, path=tmp_path / "at") as one:
        with pytest.raises(PlanError, match="there is another log in .*at; move this folder away, unless a platform"):
            one.move("h2")
        one.check()


def test_a_platform_without_a_state_directory_takes_no_log_from_disk_until_it_has_one(tmp_path: Path):
    """The cure of the refusal: the platform is started with a state directory, and the same change is made."""
    with hosts("h1", slets=(released,), state=tmp_path) as there:
        one = Logged(there, tmp_path, "log", None, {})
        there._state = None
        with there.platform("h2") as bare:
            there.platforms["h2"] = bare
            there.connect()
            eventually(lambda: there.home.remoting.peers["h2"].connected)
            with pytest.raises(PlanError, match="without a state directory; start that with --state"):
                one.move("h2")
            one.check()
        there._state = tmp_path
        with there.platform("h2") as filed:
            there.platforms["h2"] = filed
            eventually(lambda: there.home.remoting.peers["h2"].connected)
            one.move("h2")
            assert one.files("h2")
