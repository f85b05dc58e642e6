"""The WiringController: connects ports by their property, follows them."""

from exop import Application
from exop.stock.slets import count_up
from tests.rig import PATIENCE, collector, same


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
