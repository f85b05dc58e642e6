"""A change fails when everything is bound, before it is decided: every item is still where it was."""

from typing import Any

import pytest

from exop import Application, Slet, input_port, slet
from exop.model.mesh import ChannelSpec, Mesh, Node
from exop.model.slet import spec_of
from exop.wiring import change as changing
from tests.change.tools import Tap, changed, count_to, finish, plain, suspended, whole, writing
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


def test_items_wait_in_an_inserted_queue_that_goes_with_its_port(platform, refused):
    """The queue still holds them, and they come in order."""
    seen: list[int] = []
    app = Application("app")
    channel = app.channel("c")
    app.add("s", count_to, to=300, out=channel)
    app.add("t", count_to, to=300, step=-1, out=channel)
    app.add("j", writing(seen), x=channel)
    platform.apply(app.build().suspend("j"))
    queue = next(iter(platform.deployment("app").inserted.values()))
    eventually(lambda: queue.depth > 500, "what both sources send")

    def edit(mesh: Mesh) -> Mesh:
        return mesh.rewire("s", out=ChannelSpec("e")).rewire("t", out="e").rewire("j", x="e")

    refused(edit)
    platform.resume("app", "j")
    finish(platform, "app")
    whole([x for x in seen if x > 0], 300)
    whole([-x for x in seen if x < 0], 300)


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


def test_items_behind_a_suspended_slet_stay_with_their_worker(platform, refused):
    """The worker that was to leave keeps what it has in hand: it alone runs the slet to which that goes."""
    broken, seen = [True], []

    @slet
    def picky(x: int) -> int:
        if broken and x == 20:
            raise ValueError("not yet")
        seen.append(x)
        return x

    class Joining(Slet):
        @input_port
        def left(self, x: int) -> None:
            """Take the one stream."""

        @input_port
        def right(self, x: int) -> None:
            """Take the other one."""

    app = Application("app")
    first, second = app.channel("q", kind="queue"), app.channel("r", kind="queue")
    app.add("s", count_to, to=100, out=first)
    app.add("p", picky, x=first)
    app.add("t", count_to, to=100, out=second)
    app.add("j", plain, x=second)
    platform.apply(app.build())
    suspended(platform, "app", "p")
    deployment = platform.deployment("app")

    def held():
        workers = deployment.workers.values()
        return {worker.name: worker.queues for worker in workers}, deployment.inlets.waiting()

    eventually(deployment.inlets.waiting)
    before = held()
    refused(lambda mesh: mesh.add(Node("m", spec_of(Joining), {}, {"left": "p", "right": "j"})))
    assert held() == before
    assert len(before[1]) == 1
    broken.clear()
    platform.resume("app", "p")
    finish(platform, "app")
    whole(seen, 100)
