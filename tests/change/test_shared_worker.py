"""A queue that goes shares its worker with queues of other streams: all that push into it park before it is emptied."""

import pytest

from exop import Application
from exop.model.meshes.mesh import ChannelSpec, Mesh
from tests.change.tools import Tap, changed, endless, finish, grows, plain, whole, writing


@pytest.mark.parametrize("kind", ["direct", "queue"])
def test_a_queue_goes_whose_worker_begins_further_upstream_than_its_source(platform, kind):
    """The worker drains the queue of another stream too, which is farther upstream than the source of this one."""
    seen: list[int] = []
    app, quiet = Application("app"), Tap()
    first, second = app.channel("first", kind="queue"), app.channel("second", kind="queue")
    merged = app.channel("merged")
    app.add("a", endless, out=first)
    app.add("b", quiet.source(), out=second)
    for node, channel in (("c", first), ("d", second)):
        app.add(node, plain, x=channel, out=merged)
    app.add("end", writing([]), x=merged)
    app.add("sink", writing(seen), x=first)
    platform.apply(app.build())
    channels = platform.deployment("app").channels
    assert channels["first"].worker is channels["second"].worker
    for number in range(10):
        name = f"other{number}"

        def edit(mesh: Mesh, name: str = name, kind: str = kind if number % 2 == 0 else "queue") -> Mesh:
            return mesh.rewire("a", out=ChannelSpec(name, kind)).rewire("c", x=name).rewire("sink", x=name)

        grows(seen, 50)
        changed(platform, "app", edit)
    quiet.shut()
    platform.end("app")
    finish(platform, "app")
    whole(seen)


def test_a_queue_goes_that_has_the_name_of_its_source(platform):
    """Nodes and queues have names of their own: the source parks before its queue is emptied."""
    seen: list[int] = []
    app = Application("app")
    app.add("sink", writing(seen), x=app.add("a", endless, out=app.channel("a", kind="queue", capacity=1)))
    platform.apply(app.build())
    for number in range(10):
        name = "a" if number % 2 else "other"

        def edit(mesh: Mesh, name: str = name) -> Mesh:
            return mesh.rewire("a", out=ChannelSpec(name, "queue", {"capacity": 1})).rewire("sink", x=name)

        grows(seen, 50)
        changed(platform, "app", edit)
    platform.end("app")
    finish(platform, "app")
    whole(seen)
