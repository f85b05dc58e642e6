"""Services of remote connectors: present while the peer can be reached; those of smart connectors stay."""

import pytest

from exop.model.meshes.mesh import ChannelSpec
from exop.registry import Registration, ServiceRegistry
from exop.remoting.peers.service import ConnectorServices


class Half:
    """A channel with the settings of a half of a remote connector."""

    def __init__(self, kind, **settings):
        self.asked = ChannelSpec("numbers", kind, {"peer": "b", "key": "app/numbers/a>b", **settings})


def registered(registry: ServiceRegistry, half: Half) -> Registration:
    """Register a channel, as the component manager does."""
    kind, properties = half.asked.kind, {"host": "a", "application": "app", "instance": "app/numbers.to.b"}
    return registry.register("Channel", half, {"channel.kind": kind, **properties})


@pytest.fixture
def reached() -> set[str]:
    """The peers that can be reached."""
    return {"b"}


@pytest.fixture
def registry() -> ServiceRegistry:
    """An empty registry."""
    return ServiceRegistry()


@pytest.fixture
def services(registry, reached):
    """The services of the connectors."""
    found = ConnectorServices(registry, reached.__contains__)
    yield found
    found.close()
    assert registry.find("Connector") == []


@pytest.mark.usefixtures("services")
@pytest.mark.parametrize(("kind", "direction"), [("outbox", "out"), ("inbox", "in"), ("reader", "in")])
def test_a_connector_is_a_service_until_its_channel_is_removed(registry, kind, direction):
    """Its properties name the application, the peer, the direction and the channel."""
    channel = registered(registry, Half(kind))
    registry.settle()
    (service,) = registry.find("Connector", f"(&(application=app)(peer=b)(direction={direction}))")
    assert service.properties["connected-to"] == "app/numbers.to.b"
    channel.unregister()
    registry.settle()
    assert registry.find("Connector") == []


def test_other_channels_are_no_connectors(registry, services):
    """A queue has no service as a connector."""
    registered(registry, Half("queue"))
    registry.settle()
    services.refresh()
    assert registry.find("Connector") == []


@pytest.mark.parametrize(
    ("half", "stays"),
    [
        (Half("outbox", mode="async"), False),
        (Half("outbox", mode="sync"), False),
        (Half("outbox", mode="offline"), True),
        (Half("reader", cache=False), False),
        (Half("reader", cache=True), True),
    ],
)
def test_the_peer_is_lost(registry, services, reached, half, stays):
    """The service leaves the registry, unless the connector is a smart one; it returns with the peer."""
    registered(registry, half)
    registry.settle()
    reached.clear()
    services.refresh()
    assert bool(registry.find("Connector")) is stays
    reached.add("b")
    services.refresh()
    assert len(registry.find("Connector")) == 1
