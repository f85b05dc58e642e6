"""Logs on disk in durable applications: checkpoints hold their offsets, and what they keep outlives the platform."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Memento, Platform, hookimpl, slet
from exop.errors import StateError, StoredStateError
from exop.hooks import Plugins
from exop.model.values.encoding import decode
from exop.runtime.log.disk import DiskLog
from exop.runtime.log.reader import LogReader
from tests.rig import eventually


class Sum(Memento):
    """What the first slet keeps."""

    total: int = 0


class Numbers(Memento):
    """What its successor keeps."""

    seen: list[int] = field(default_factory=list)


@slet
def add(item: int, state: Sum) -> int:
    """Add up."""
    state.total += item
    return item


@slet
def keep(item: int, numbers: Numbers) -> int:
    """Keep everything."""
    numbers.seen.append(item)
    return item


@hookimpl
def register_slets() -> list[Any]:
    """The slets by name, so that the next platform finds them."""
    return [add, keep]


@pytest.fixture
def feed(tmp_path):
    """A log from which the application reads: the test appends to it."""
    log = DiskLog(tmp_path / "feed")
    yield log
    log.close()


def platform(tmp_path: Path) -> Platform:
    """A platform in the state directory of the test, which knows the slets."""
    plugins = Plugins()
    plugins.register("logs", sys.modules[__name__])
    return Platform(state=tmp_path / "state", plugins=plugins, control=False)


def application(feed: DiskLog, tmp_path: Path) -> Application:
    """What is appended to the feed goes through a log in the state directory."""
    app = Application("logs")
    app.durable(every=60)
    kept = app.channel("kept", kind="log", keep="all")
    app.add("read", "stock:read_log", path=feed.folder, follow=True, out=kept)
    app.add("lines", "stock:write_lines", item=app.add("slet", add, item=kept), path=tmp_path / "lines")
    return app


def kept(running: Platform) -> Any:
    """The log channel."""
    return running.deployment("logs").channels["kept"]


def stored(running: Platform) -> dict[str, Any]:
    """What the checkpoint holds of the channel."""
    store = running._applications.store
    assert store is not None
    snapshot = store.checkpoints.read("logs")
    assert snapshot is not None
    found = decode(snapshot.parts["channel", "kept"])
    assert isinstance(found, dict)
    return found


def crash(running: Platform) -> None:
    """Leave it as a killed process would: no last checkpoint."""
    running._applications.checkpoints.stop("logs")


def test_a_checkpoint_holds_offsets_and_what_comes_again_is_not_appended_twice(tmp_path, feed):
    """The log was ahead of the checkpoint; its consumers get those items again, the log has them once."""
    with platform(tmp_path) as running:
        running.apply(application(feed, tmp_path).build())
        feed.append(list(range(100)))
        eventually(lambda: kept(running).end == 100)
        running.checkpoint("logs")
        assert stored(running) == {"began": 0, "end": 100, "marks": [0, 0], "start": 0}
        feed.append(list(range(100, 200)))
        eventually(lambda: kept(running).end == 200)
        crash(running)
    with platform(tmp_path) as running:
        eventually(lambda: kept(running).end == 200)
        feed.append([200])
        eventually(lambda: kept(running).end == 201)
        assert kept(running).replay(0) == list(range(201))
        running.end("logs")
        running.wait("logs")
    assert (tmp_path / "lines").read_text().split() == [str(number) for number in range(201)]


def test_a_successor_is_rebuilt_also_after_a_restart(tmp_path, feed):
    """The log reaches back to where the application began, in another process."""
    with platform(tmp_path) as running:
        running.apply(application(feed, tmp_path).build())
        feed.append(list(range(100)))
        eventually(lambda: kept(running).end == 100)
    with platform(tmp_path) as running:
        feed.append([100])
        eventually(lambda: kept(running).end == 101)
        mesh = running.mesh("logs").replace("slet", running.slets()["logs:keep"], rebuild="log")
        running.apply(mesh)
        state = running.deployment("logs").components["slet"].state
        assert isinstance(state, Numbers)
        assert state.seen == list(range(101))
        crash(running)
    with platform(tmp_path) as running:
        feed.append([101])
        eventually(lambda: kept(running).end == 102)
        running.end("logs")
        running.wait("logs")
        state = running.deployment("logs").components["slet"].state
        assert isinstance(state, Numbers)
        assert state.seen == list(range(102))


def test_a_log_that_is_gone_keeps_the_application_from_going_on(tmp_path, feed):
    """It does not begin in the middle: the checkpoint is kept, and the error says what is missing."""
    with platform(tmp_path) as running:
        running.apply(application(feed, tmp_path).build())
        feed.append([1, 2, 3])
        eventually(lambda: kept(running).end == 3)
    (segment,) = (tmp_path / "state" / "channels").rglob("*.log")
    segment.write_bytes(segment.read_bytes()[:-1])
    for _ in range(2):  # whoever opens it: its end is no torn tail
        with pytest.raises(StoredStateError, match=r"ends at row \d, and a checkpoint has counted the rows up to 3"):
            DiskLog(segment.parent)
    segment.unlink()
    with platform(tmp_path) as running:
        problem = running.failed_to_restart["logs"]
        assert isinstance(problem, StoredStateError)
        assert "it ends at row 0, and a checkpoint has counted the rows up to 3" in str(problem)
        running.remove("logs")


def test_a_log_whose_oldest_segment_is_gone_keeps_the_application_from_going_on(tmp_path, feed):
    """What was trimmed on purpose is not missed, also where the process died right behind that."""
    app = application(feed, tmp_path)
    app.channel("small", kind="log", keep="all", segment=200)
    app.add("more", "stock:read_log", path=feed.folder, follow=True, out="small")
    app.add("more-lines", "stock:write_lines", item="small", path=tmp_path / "more")
    with platform(tmp_path) as running:
        running.apply(app.build())
        for first in range(0, 1000, 100):
            feed.append(list(range(first, first + 100)))
        small = running.deployment("logs").channels["small"]
        eventually(lambda: small.end == 1000)
        running.checkpoint("logs")
        small.trim(300)
        assert small.start == 0
        running.checkpoint("logs")
        trimmed = small.start
        assert 0 < trimmed <= 300
        crash(running)
    with platform(tmp_path) as running:
        assert running.deployment("logs").channels["small"].start == trimmed
        crash(running)
    (oldest, *_) = sorted((tmp_path / "state" / "channels").rglob("small.channel/*.log"))
    oldest.unlink()
    with platform(tmp_path) as running:
        assert "nothing from 300 on has been given up" in str(running.failed_to_restart["logs"])


def test_a_log_of_an_ended_application_misses_its_oldest_segment(tmp_path, feed):
    """Also whoever reads it later is told; a log of which something was trimmed on purpose is whole."""
    app = application(feed, tmp_path)
    app.channel("small", kind="log", keep="all", segment=200)
    app.add("more", "stock:read_log", path=feed.folder, follow=True, out="small")
    with platform(tmp_path) as running:
        running.apply(app.build())
        for first in range(0, 1000, 100):
            feed.append(list(range(first, first + 100)))
        small = running.deployment("logs").channels["small"]
        eventually(lambda: small.end == 1000)
        small.trim(300)
        running.end("logs")
        running.wait("logs")
        trimmed = small.start
    (place,) = (tmp_path / "state" / "channels").rglob("small.channel")
    (oldest, *_) = sorted(place.glob("*.log"))
    with closing(DiskLog(place)) as log:
        assert log.start == trimmed > 0
    assert LogReader(place).start == trimmed
    oldest.unlink()
    with pytest.raises(StoredStateError, match="nothing from 300 on has been given up"):
        DiskLog(place)
    with pytest.raises(StoredStateError, match="nothing from 300 on has been given up"):
        _ = LogReader(place).start


def test_removing_the_application_removes_its_logs(tmp_path, feed):
    """What is in the state directory; what has a path of its own is the user's."""
    with platform(tmp_path) as running:
        running.apply(application(feed, tmp_path).build())
        assert list((tmp_path / "state" / "channels").rglob("*.log"))
        running.remove("logs")
        assert not list((tmp_path / "state" / "channels").rglob("*.log"))
    assert feed.folder.exists()


def test_a_checkpoint_is_taken_while_the_stream_waits_for_a_full_disk(tmp_path, feed, monkeypatch):
    """The item in hand is part of it; the stream goes on when there is room, also in another process."""
    monkeypatch.setattr("exop.runtime.channels.base.AGAIN", 0.01)
    with platform(tmp_path) as running:
        running.apply(application(feed, tmp_path).build())
        feed.append([0, 1])
        eventually(lambda: kept(running).end == 2)

        def full(*_: Any) -> int:
            raise StateError("No space left on device")

        monkeypatch.setattr(kept(running)._disk, "append", full)
        feed.append([2, 3])
        eventually(lambda: kept(running).trouble)
        running.checkpoint("logs")
        crash(running)
    with platform(tmp_path) as running:
        eventually(lambda: kept(running).end == 4)
        assert kept(running).replay(0) == [0, 1, 2, 3]
        running.end("logs")
        running.wait("logs")
    assert (tmp_path / "lines").read_text().split() == ["0", "1", "2", "3"]
