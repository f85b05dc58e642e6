"""The WiringController: connects ports by their property, follows them, refuses what does not fit."""

from collections.abc import Iterator

import pytest

from exop import Application, slet
from exop.errors import WiringError
from exop.stock.slets import count_up
from tests.rig import PATIENCE, collector, same


@slet
def texts(item: str) -> str:
    """Take texts."""
    return item


@slet
def words() -> Iterator[str]:
    """Emit nothing."""
    yield from ()


@slet
def numbers(item: int) -> int:
    """Take numbers."""
    return item


def chain(name="chain"):
    """Numbers → same → sink."""
    app = Application(name)
    app.add("sink", collector([]), item=app.add("same", same, item=app.add("numbers", count_up, to=3)))
    return app


def connected(rig, node, port):
    """What a port's property says."""
    (found,) = rig.registry.find(None, f"(&(kind=port)(node={node})(name={port}))")
    return found.properties.get("connected-to")


def test_a_port_names_its_channel_in_its_property(rig):
    """The indirection of the paper: from port to channel by `connected-to`, found in the registry."""
    rig.deploy(chain())
    assert connected(rig, "same", "item") == "chain/numbers"
    assert connected(rig, "same", "out") == "chain/same"
    assert rig.registry.find("Channel", "(instance=chain/numbers)")


def test_a_port_has_one_target(rig):
    """Connecting it elsewhere takes the place of what was there; disconnecting leaves nothing."""
    deployment = rig.deploy(chain())
    sink = deployment.components["sink"]
    rig.manager.connect(sink, {"item": "numbers"})
    assert connected(rig, "sink", "item") == "chain/numbers"
    rig.manager.connect(sink, {"item": None})
    assert connected(rig, "sink", "item") is None


def test_a_connection_that_is_set_in_the_registry_is_followed(rig):
    """The graph shows it at once; it is bound by the next binding."""
    deployment = rig.deploy(chain())
    rig.manager.connect(deployment.components["sink"], {"item": "numbers"})
    (edge,) = [one for one in rig.wiring.graph("chain").consumers["numbers"] if one.name == "sink.item"]
    assert edge.component is deployment.components["sink"]
    assert rig.wiring.graph("other").channels == {}
    rig.wiring.rebind(deployment, timeout=PATIENCE)
    assert deployment.joined["sink.item"] == "numbers"


def test_types_that_do_not_fit_are_refused_and_nothing_is_bound(rig):
    """Both ends are compared when they are joined, at run time too; the old connections go on."""
    seen = []
    app = Application("types")
    app.add("numbers", count_up)
    app.add("texts", texts, item=app.add("words", words))
    app.add("sink", collector(seen), item=app.output("numbers"))
    deployment = rig.deploy(app)
    rig.manager.connect(deployment.components["texts"], {"item": "numbers"})
    with pytest.raises(WiringError, match=r"texts\.item through 'numbers': items are int, expected str"):
        rig.wiring.rebind(deployment, timeout=PATIENCE)
    deployment.end_sources()
    rig.manager.connect(deployment.components["texts"], {"item": "words"})
    rig.wiring.rebind(deployment, timeout=PATIENCE)
    assert deployment.wait(PATIENCE)
    assert seen == list(range(len(seen)))


def test_a_direct_cycle_made_at_run_time_is_refused(rig):
    """Rule 5 holds for connections that are changed too."""
    app = Application("cycle")
    start = app.channel("start", kind="queue")
    app.add("numbers", count_up, out=start)
    app.add("a", numbers, item=start)
    app.add("b", numbers, item=app.output("a"))
    deployment = rig.deploy(app)
    rig.manager.connect(deployment.components["a"], {"item": "b"})
    with pytest.raises(WiringError, match="contains no queue"):
        rig.wiring.rebind(deployment, timeout=PATIENCE)
    rig.manager.connect(deployment.components["a"], {"item": "start"})
    rig.wiring.rebind(deployment, timeout=PATIENCE)


def test_taken_away_nothing_is_left_in_the_registry(rig):
    """Components, ports, channels and inserted queues are unregistered."""
    before = len(rig.registry)
    app = Application("gone")
    joined = app.channel("joined")
    app.add("a", count_up, out=joined)
    app.add("b", count_up, out=joined)
    app.add("sink", collector([]), item=joined)
    deployment = rig.deploy(app)
    assert len(rig.registry) > before
    rig.undeploy(deployment)
    assert len(rig.registry) == before
