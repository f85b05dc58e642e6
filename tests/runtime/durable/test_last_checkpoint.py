"""An application whose last checkpoint fails has not succeeded: `wait`, report and status say what is missing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from unittest import mock

import pytest

from exop import Application, Memento, Platform, hookimpl, slet
from exop.cli.commands.monitoring import not_running
from exop.cli.status_text import attention_lines
from exop.errors import LastCheckpointFailed, StateError
from exop.hooks import Plugins
from exop.report import run_report
from exop.runtime.durable.checkpointer import Checkpointer
from exop.runtime.durable.store import Checkpoints
from exop.stock.sinks import WriteSqlite
from tests.rig import PATIENCE, eventually

LAST = 50
#: The number up to which the source may emit.
ALLOWED = [LAST]


class Position(Memento):
    """How far the source has come."""

    number: int = 0


@slet
def numbers(position: Position) -> Iterator[int | None]:
    """Emit 1, 2, 3, … as far as that is allowed."""
    while position.number < LAST:
        if position.number < ALLOWED[0]:
            position.number += 1
            yield position.number
        else:
            yield None


class Offered:
    """What the platform finds by name."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """The slets."""
        return [numbers]


@pytest.fixture
def opened(tmp_path):
    """Open a platform on the same state directory each time."""

    def open_it() -> Platform:
        plugins = Plugins()
        plugins.discover()
        plugins.register("tests.last", Offered())
        return Platform(state=tmp_path / "state", control=False, plugins=plugins)

    return open_it


def application(folder, every: float = 3600) -> Application:
    """Numbers into a table."""
    app = Application("app")
    app.durable(every=every)
    app.add("rows", "stock:write_sqlite", item=app.add("numbers", numbers), path=folder / "rows.sqlite")
    return app


def test_wait_raises_until_the_end_is_stored(tmp_path, opened):
    """The error names what is not written; when the cause is gone, the same call stores it; so does another start."""
    full = mock.patch.object(Checkpoints, "write", side_effect=StateError("no room"))
    with opened() as platform, full:
        platform.apply(application(tmp_path).build())
        with pytest.raises(LastCheckpointFailed, match=f"no room; not written: {LAST} items of rows; repair that"):
            platform.wait("app", timeout=20)
        status = platform.status("app")
        assert run_report(status, "failed")["unwritten"] == {"rows": LAST}
        assert any(f"not written: {LAST} items of rows" in line for line in attention_lines(status))
        assert any("no checkpoints: no room" in line for line in not_running(platform.status()))
        platform.close()
    with opened() as platform:
        assert "app" in platform.applications(), "it is not over, and goes on"
        assert platform.wait("app", timeout=20)
        assert "unwritten" not in platform.status("app")["checkpoints"]
        assert list(not_running(platform.status())) == []
    with opened() as platform:
        assert platform.applications() == []


@pytest.mark.parametrize(
    ("fails", "error"),
    [((Checkpoints, "write"), StateError("no room")), ((WriteSqlite, "commit_checkpoint"), OSError("no room"))],
    ids=["the store", "the sink"],
)
@pytest.mark.parametrize("written", [0, 20])
def test_a_platform_that_is_started_again_knows_what_is_not_written(
    tmp_path, opened, monkeypatch, fails, error, written
):
    """Whether the checkpoints fail, or a sink that has them: what it had written before counts as such."""
    monkeypatch.setattr(f"{__name__}.ALLOWED", allowed := [written])
    with opened() as platform:
        platform.apply(application(tmp_path).build())
        sink = platform.deployment("app").components["rows"]
        eventually(lambda: sink.metrics.items_in() == written)
        platform.checkpoint("app")
    with mock.patch.object(*fails, side_effect=error):
        for _ in range(3):
            with opened() as platform:
                allowed[0] = LAST
                with pytest.raises(
                    LastCheckpointFailed, match=f"no room; not written: {LAST - written} items of rows;"
                ):
                    platform.wait("app", timeout=20)
    with opened() as platform:
        assert platform.wait("app", timeout=20)
    with closing(sqlite3.connect(tmp_path / "rows.sqlite")) as database:
        assert database.execute("SELECT count(*) FROM items").fetchall() == [(LAST,)]


def test_one_failure_is_not_yet_a_trouble_of_health(tmp_path, opened):
    """A checkpoint that waits for a slow source may fail once; `ps` shows it, and the probe does not fail."""
    with opened() as platform:
        platform.apply(application(tmp_path).build())
        eventually(lambda: platform.status("app")["state"] == "finished", "the end")
        platform.wait("app", timeout=20)
        taker = platform._applications.checkpoints.takers["app"]
        taker._thread.join(PATIENCE)  # it takes one at the end of the application, too
        with mock.patch.object(Checkpoints, "write", side_effect=StateError("no room")):
            for times in (1, 2):
                with pytest.raises(StateError):
                    taker.take()
                assert len(list(not_running(platform.status()))) == times - 1


def test_a_removal_counts_only_what_the_sinks_that_failed_have_not_written(tmp_path, opened):
    """A sink that writes all that it holds when the application is removed has lost nothing."""
    app = Application("app")
    app.durable(every=3600)
    source = app.add("numbers", numbers)
    app.add("rows", "stock:write_sqlite", item=source, path=tmp_path / "rows.sqlite")
    app.add("others", "stock:write_sqlite", item=source, path=tmp_path / "others.sqlite")
    untaken = mock.patch.object(Checkpointer, "take")  # not that of the end, either
    with opened() as platform, untaken:
        platform.apply(app.build())
        eventually(lambda: platform.status("app")["state"] == "finished", "the end")
        sink = platform._applications.get("app").components["others"].instance
        full = mock.patch.object(sink, "commit_checkpoint", side_effect=OSError("no room"))
        with full, pytest.raises(LastCheckpointFailed, match=f"no room; not written: {LAST} items of others;"):
            platform.remove("app")
    with closing(sqlite3.connect(tmp_path / "rows.sqlite")) as database:
        assert database.execute("SELECT count(*) FROM items").fetchall() == [(LAST,)]
