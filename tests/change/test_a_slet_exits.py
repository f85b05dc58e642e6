"""`sys.exit()` in user code beside the stream is a failure like any other: named, undone, and nothing ends."""

import sys
from collections.abc import Iterator
from typing import Any, Self

import pytest

from exop import Application, Memento, Platform, Slet, hookimpl, input_port, slet
from exop.errors import CheckpointError, ExopError, NotCommitted
from exop.hooks import Plugins
from tests.rig import eventually, threads_leave


class Count(Memento):
    """What the old one keeps."""

    count: int = 0


class Exiting(Memento):
    """What cannot be taken over."""

    count: int = 0

    @classmethod
    def upgrade(cls, old: Any) -> Self:
        """Leave."""
        sys.exit("upgrade")


@slet
def endless() -> Iterator[int]:
    """Emit numbers without end."""
    number = 0
    while True:
        number += 1
        yield number


@slet
def counted(x: int, state: Count) -> None:
    """The old one."""
    state.count += 1


@slet
def upgraded(x: int, state: Exiting) -> None:
    """Takes over nothing."""


class Made(Slet):
    """Leaves when it is made, or opened."""

    state: Count
    opened: bool = False

    def __post_init__(self) -> None:
        if not self.opened:
            sys.exit("made")

    def __enter__(self) -> Self:
        sys.exit("opened")

    @input_port
    def x(self, item: int) -> None:
        """Take."""


@pytest.mark.parametrize(
    ("successor", "settings"), [(upgraded, {}), (Made, {}), (Made, {"opened": True})], ids=["upgrade", "made", "opened"]
)
def test_a_successor_that_exits(successor, settings):
    """The change is refused, with what it said; the old one runs on."""
    app = Application("app")
    app.add("sink", counted, x=app.add("numbers", endless))
    with threads_leave(), Platform() as platform:
        mesh = platform.apply(app.build())
        old = platform.deployment("app").components["sink"]
        with pytest.raises(ExopError, match="SystemExit|made|opened"):
            platform.apply(mesh.replace("sink", successor, **settings))
        assert platform.deployment("app").components["sink"] is old
        before = old.state.count
        eventually(lambda: old.state.count > before)


class Sink(Slet):
    """Leaves during a checkpoint."""

    at: str = ""
    state: Count

    @input_port
    def x(self, item: int) -> None:
        """Take."""
        self.state.count += 1

    def prepare_checkpoint(self, number: int) -> None:
        """Called for each."""
        if self.at == "prepare" and number > 1:
            sys.exit("prepare")

    def commit_checkpoint(self, number: int) -> None:
        """Called for each."""
        if self.at == "commit" and number > 1:
            sys.exit("commit")


class Offered:
    """The slets."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """Both."""
        return [endless, Sink]


@pytest.mark.parametrize(("at", "error"), [("prepare", CheckpointError), ("commit", NotCommitted)])
def test_a_sink_that_exits_in_a_checkpoint(tmp_path, at, error):
    """The checkpoint fails, by name; the application runs on."""
    app = Application("app")
    app.durable(every=3600)
    app.add("sink", Sink, x=app.add("numbers", endless), at=at)
    plugins = Plugins()
    plugins.register("offered", Offered())
    with threads_leave(), Platform(state=tmp_path / "state", control=False, plugins=plugins) as platform:
        platform.apply(app.build())
        with pytest.raises(error, match=at):
            platform.checkpoint("app")
        assert platform.status("app")["state"] == "running"
        mesh = platform.mesh("app")
        platform.apply(mesh.replace("sink", Sink, at=""))
        platform.checkpoint("app")
