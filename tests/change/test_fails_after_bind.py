"""A change fails when everything is bound, before it is decided: every item is still where it was."""

from functools import partial
from typing import Any

import pytest

from exop import Application, Slet, input_port, slet
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.slets.slet import spec_of
from tests.change.tools import Tap, count_to, finish, refused_after_bind, whole, writing
from tests.rig import Two, eventually


@slet
def shifting(x: int, *, by: int = 0) -> int:
    """Add a setting."""
    return x + by


@pytest.fixture
def refused(platform, monkeypatch):
    """Applies an edit that fails behind the bind, and is undone."""
    return partial(refused_after_bind, platform, monkeypatch)


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


class Three(Two):
    """One port more."""

    @input_port
    def more(self, item: Any) -> Any:
        """Pass on."""
        return item


class One(Slet):
    """One port less."""

    @input_port
    def left(self, item: Any) -> Any:
        """Pass on."""
        return item


@pytest.mark.parametrize(
    "edit",
    [
        lambda mesh: mesh.replace("two", Three).rewire("two", more="r"),
        lambda mesh: mesh.rewire("two", right=None).replace("two", One),
    ],
)
def test_a_slet_whose_successor_was_to_have_other_ports_still_ends_with_its_own(platform, refused, edit):
    """Neither does it wait for the end at a port that it does not have, nor does it end before its last port."""
    left, right = Tap(), Tap()
    app = Application("app")
    app.add("two", Two, left=app.add("l", left.source()), right=app.add("r", right.source()))
    platform.apply(app.build())
    components = platform.deployment("app").components
    refused(edit)
    left.shut()
    eventually(lambda: components["l"].status == "ended")  # it has passed its end on before
    assert components["two"].status == "active"
    right.shut()
    finish(platform, "app")


def test_a_slet_that_waits_for_a_resume_still_does(platform, refused):
    """The change would have let it go on; the change back holds it again, and lets no item in."""
    seen: list[int] = []
    tap = Tap()
    app = Application("app")
    app.add("b", shifting, x=app.add("a", tap.source()))
    app.add("c", writing(seen), x=app.output("b", "out"))
    platform.apply(app.build())
    b = platform.deployment("app").components["b"]
    platform.wiring.rebind(platform.deployment("app"), lambda: b.fail_until_resumed(OSError("a flush")), nodes=["b"])
    refused(lambda mesh: mesh.configure("b", by=1))
    assert (b.status, b.stuck, b.shut) == ("failed", True, True)
    tap.let(2)
    eventually(lambda: platform.deployment("app").inlets.at("b.x"))
    platform.resume("app", "b")
    tap.shut()
    finish(platform, "app")
    whole(seen, 2)
