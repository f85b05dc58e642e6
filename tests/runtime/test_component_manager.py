"""The ComponentManager: makes components and channels, and offers them as services."""

import threading
from typing import Any

import pytest

from exop import InputPort, Memento, OutputPort, Slet, input_port, slet
from exop.errors import ComponentFailed, LifecycleError, MeshError, SettingError, UnknownName
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.slets.slet import spec_of
from exop.registry import ServiceRegistry
from exop.runtime.channels import BUILT_IN
from exop.runtime.channels.base import Channel
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.component_manager import CHANNEL, INPUT_PORT, OUTPUT_PORT, SLET, ComponentManager, make_channel
from exop.runtime.dataflow.entry import fan_out
from exop.runtime.lifecycle import Event, State


class Sum(Memento):
    """A state."""

    total: int = 0


@slet
def add(item: int, state: Sum, *, step: int = 1) -> int:
    """Add up."""
    state.total += item * step
    return state.total


@pytest.fixture
def registry():
    """A registry."""
    return ServiceRegistry()


@pytest.fixture
def manager(registry):
    """A manager of built-in kinds."""
    made = ComponentManager(registry, "here")
    made.kinds = {kind.kind: kind for kind in BUILT_IN}
    return made


def node(name="adder", **settings):
    """A node of `add`."""
    return Node(name, spec_of(add), {"step": 1, **settings}, {"item": "in", "out": "out"})


def created(manager, name="adder", **settings):
    """A component without listeners."""
    return manager.create("app", node(name, **settings), lambda _: None)


def test_every_instance_has_its_own_id_and_state(manager):
    """Many instances of one slet live side by side, also of one node, and share nothing."""
    one, other = created(manager), created(manager)
    assert one.id != other.id
    assert one.calls["item"](5) == 5
    assert other.calls["item"](7) == 7
    assert (one.state.total, other.state.total) == (5, 7)


def test_a_component_is_a_service_with_its_properties(manager, registry):
    """The registry shows each slet with its host, role and state."""
    component = created(manager)
    (found,) = registry.find(SLET, "(node=adder)")
    assert found.service is component
    properties = dict(found.properties)
    expected = {"kind": "slet", "application": "app", "node": "adder", "host": "here", "role": "pi", "state": "created"}
    assert expected.items() <= properties.items()
    assert properties["instance"] == component.id
    assert properties["origin"] == "embedded"


def test_ports_are_services_too(manager, registry):
    """Each port with its direction and type; `connected-to` is set when they are connected."""
    created(manager)
    (into,) = registry.find(INPUT_PORT, "(node=adder)")
    (out,) = registry.find(OUTPUT_PORT, "(node=adder)")
    assert (into.properties["port"], into.properties["direction"]) == ("adder.item", "in")
    assert (out.properties["port"], out.properties["item.type"]) == ("adder.out", "int")
    assert "connected-to" not in into.properties


def test_the_state_property_follows_the_life_cycle(manager, registry):
    """From created to destroyed, every change is seen; a slet that has nothing to open is ready at once."""
    told = []
    component = manager.create("app", node(), lambda one: told.append(str(one.status)))

    def state():
        return registry.find(SLET, "(node=adder)")[0].properties["state"]

    component.enter()
    assert state() == "ready"
    component.on("start")
    assert state() == "active"
    component.on(Event.SUSPEND)
    assert state() == "suspended"
    component.resume()
    assert state() == "active"
    component.failed(ValueError("broken"))
    assert state() == "failed"
    assert isinstance(component.error, ValueError)
    component.resume()
    assert (state(), component.error) == ("active", None)
    component.exit()
    assert state() == "stopped"
    manager.destroy(component)
    assert told == [
        *("ready", "active", "suspended", "active", "failed", "active", "stopped", "destroyed"),
    ]
    assert not registry.find(None, "(node=adder)")


def test_what_runs_cannot_be_destroyed(manager):
    """It has to be stopped first; the error says what is possible."""
    component = created(manager)
    component.enter()
    with pytest.raises(LifecycleError, match=r"app\.adder is ready: it cannot destroy"):
        manager.destroy(component)


def test_configuring_changes_the_settings_and_keeps_the_state(manager):
    """A running component takes new values; its memento stays."""
    component = created(manager)
    component.calls["item"](5)
    component.configure(node(step=10))
    assert component.calls["item"](5) == 55


def test_a_class_is_configured_on_its_instance(manager):
    """Settings of a class are its attributes."""

    class Scale(Slet):
        factor: int = 1

        @input_port
        def item(self, item: int) -> int:
            """Scale."""
            return item * self.factor

    made = Node("scale", spec_of(Scale), {"factor": 2})
    component = manager.create("app", made, lambda _: None)
    assert component.calls["item"](3) == 6
    component.configure(Node("scale", spec_of(Scale), {"factor": 5}))
    assert component.calls["item"](3) == 15


def test_a_class_gets_its_ports_and_its_memento(manager):
    """Fields for outputs, pulled inputs and the state are injected."""

    class Full(Slet):
        state: Sum
        more: OutputPort[int]
        table: InputPort[Any]
        size: int = 3

        @input_port
        def item(self, item: int) -> int:
            """Use all of them."""
            self.state.total += item
            self.more.push(self.size)
            return self.state.total + len(self.table.pull())

    component = manager.create("app", Node("full", spec_of(Full), {"size": 3}), lambda _: None)
    assert component.calls["item"](4) == 4
    assert component.instance.state is component.state


def test_opening_and_closing_enter_and_leave_the_slet(manager):
    """A slet that cannot be opened is not closed; one that is open is closed once."""
    story = []

    class Device(Slet):
        works: bool = True

        def __enter__(self) -> "Device":
            story.append("enter")
            if not self.works:
                raise OSError("no device")
            return self

        def __exit__(self, *exc: object) -> None:
            story.append("exit")

        @input_port
        def item(self, item: int) -> None:
            """Take."""

    component = manager.create("app", Node("device", spec_of(Device), {"works": True}), lambda _: None)
    component.enter()
    component.exit()
    component.exit()
    assert story == ["enter", "exit"]
    broken = manager.create("app", Node("broken", spec_of(Device), {"works": False}), lambda _: None)
    with pytest.raises(ComponentFailed, match="no device"):
        broken.enter()
    broken.exit()
    assert story == ["enter", "exit", "enter"]
    assert broken.status is State.STOPPED


def test_channels_are_services_and_can_be_destroyed(manager, registry):
    """A channel is offered under its interfaces with kind and capacity, and taken out when it is closed."""
    channel = manager.create_channel("app", ChannelSpec("q", "queue", {"capacity": 7}), durable=False, timeout=None)
    (found,) = registry.find(CHANNEL, "(name=q)")
    assert (found.properties["channel.kind"], found.properties["capacity"]) == ("queue", 7)
    assert registry.find("In", "(name=q)")
    manager.destroy_channel("app", channel)
    assert not registry.find(None, "(name=q)")


def test_a_channel_that_cannot_be_opened_leaves_nothing_behind(manager, registry):
    """Opening comes before it is offered; closing that fails does not keep it in the registry."""

    class Broken(Channel):
        kind = "broken"

        def open(self) -> None:
            raise OSError("no disk")

        def entry(self, outlets):
            """Pass on."""
            return fan_out([outlet.entry for outlet in outlets])

    class Sticky(Broken):
        kind = "sticky"

        def open(self) -> None:
            """Open."""

        def close(self) -> None:
            raise OSError("busy")

    manager.kinds = {"broken": Broken, "sticky": Sticky}
    with pytest.raises(OSError, match="no disk"):
        manager.create_channel("app", ChannelSpec("c", "broken"), durable=False, timeout=None)
    assert not registry.find(None, "(name=c)")
    channel = manager.create_channel("app", ChannelSpec("s", "sticky"), durable=False, timeout=None)
    with pytest.raises(OSError, match="busy"):
        manager.destroy_channel("app", channel)
    assert not registry.find(None, "(name=s)")


def test_a_channel_that_hangs_while_it_opens_is_given_up(manager, registry):
    """A kind from elsewhere has a time to open; one that opens after it is closed again, and never offered."""
    go_on, closed = threading.Event(), threading.Event()

    class Hanging(QueueChannel):
        kind = "hanging"

        def open(self) -> None:
            go_on.wait()

        def close(self) -> None:
            closed.set()

    manager.kinds = {"hanging": Hanging}
    with pytest.raises(ComponentFailed, match="h failed while opening: it has not returned within"):
        manager.create_channel("app", ChannelSpec("h", "hanging"), durable=False, timeout=0.01)
    assert not registry.find(None, "(name=h)")
    assert not closed.is_set()
    go_on.set()
    assert closed.wait(60)


def test_an_inserted_queue_is_offered_once_and_marked(manager, registry):
    """An inserted queue is registered with its origin; doing so twice changes nothing."""
    queue = QueueChannel("a -> b.item")
    manager.adopt_channel("app", queue)
    manager.adopt_channel("app", queue)
    (found,) = registry.find(CHANNEL, "(origin=wiring)")
    assert found.service is queue


@pytest.mark.parametrize(
    ("kind", "settings", "error", "message"),
    [
        ("quue", {}, UnknownName, "did you mean 'queue'"),
        ("queue", {"capcity": 3}, UnknownName, "did you mean 'capacity'"),
        ("queue", {"capacity": "many"}, SettingError, "capacity"),
        ("queue", {"capacity": 0}, MeshError, "at least 1"),
        ("table", {}, (SettingError, MeshError), "key"),
    ],
)
def test_mistakes_in_a_channel_are_told_with_the_known_names(manager, kind, settings, error, message):
    """An unknown kind, an unknown setting, a value that does not fit."""
    with pytest.raises(error, match=message):
        make_channel(manager.kinds, ChannelSpec("c", kind, settings))
