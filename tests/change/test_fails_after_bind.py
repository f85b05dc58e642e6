"""A change fails when everything is bound, before it is decided: every item is still where it was."""

from typing import Any

import pytest

from exop import Application
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.slets.slet import spec_of
from exop.wiring.changes import change as changing
from tests.change.tools import Tap, changed, count_to, finish, whole, writing
from tests.rig import eventually


@pytest.fixture
def refused(platform, monkeypatch):
    """Applies an edit that fails behind the bind, and is undone."""

    def fail(name: str) -> None:
        if name == "rebind-after":
            raise RuntimeError("refused behind the bind")

    def refuse(edit: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(changing, "failpoint", fail)
            with pytest.raises(RuntimeError, match="behind the bind"):
                changed(platform, "app", edit)

    return refuse


def test_a_window_whose_port_was_to_leave_keeps_its_items(platform, refused):
    """The window goes on with what it held."""
    seen: list[list[int]] = []
    tap = Tap()
    app = Application("app")
    window = app.channel("w", kind="window", count=3)
    app.add("s", tap.source(), out=window)
    app.add("j", writing(seen), x=window)
    app.add("k", writing([]), x=window)
    platform.apply(app.build())
    tap.let(2)
    channel = platform.deployment("app").channels["w"]
    eventually(lambda: channel.metrics()["items"] == 4, "two items in each window")
    refused(lambda mesh: mesh.add(Node("t", spec_of(count_to), {}, {"out": "e"}), ChannelSpec("e")).rewire("j", x="e"))
    tap.let(1)
    tap.shut()
    finish(platform, "app")
    assert seen == [[1, 2, 3]]


def test_a_port_that_was_to_leave_a_latch_is_given_nothing_twice(platform, refused):
    """It has never left, so it is no newcomer when the change is undone."""
    seen: list[int] = []
    tap = Tap()
    app = Application("app")
    latch = app.channel("l", kind="latch")
    app.add("s", tap.source(), out=latch)
    app.add("j", writing(seen), x=latch)
    platform.apply(app.build())
    tap.let(2)
    eventually(lambda: seen == [1, 2], "two items")
    refused(lambda mesh: mesh.rewire("s", out=ChannelSpec("e")).rewire("j", x="e"))
    tap.let(1)
    tap.shut()
    finish(platform, "app")
    whole(seen, 3)
