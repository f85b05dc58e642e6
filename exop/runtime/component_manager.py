"""`ComponentManager`: creates components and channels, and registers them as services (paper §4.2)."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from exop.errors import ComponentFailed, ExopError, SettingError, entry
from exop.model import properties as names
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.slets.ports import PortSpec
from exop.registry import Registration, ServiceRegistry
from exop.runtime.channels.base import Channel, channel_settings
from exop.runtime.channels.wire import Wires
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.durable.engine_journal import EngineFolders
from exop.runtime.lifecycle import Event
from exop.runtime.supervision.budget import OPENING, Owner, UserCalls
from exop.runtime.supervision.failure_policy import handle_source_failure, omit
from exop.safe_repr import RAISED, error_text

SLET, CHANNEL, INPUT_PORT, OUTPUT_PORT = "Slet", "Channel", "InputPort", "OutputPort"

#: The origin of the queues that the wiring has inserted.
WIRING = "wiring"
#: The key of the registration of a component or channel itself, next to those of its ports.
_WHOLE = ""


class ComponentManager:
    """Creates and destroys the components and channels of one platform, and registers them and their ports as services.

    `exop services` shows their properties. The WiringController follows the `connected-to` properties of the ports.

    Attributes:
        opening: The applications that are being opened, or wait for their turn, by name.
        home: The folder in the state directory for files of channels; `None` without one.
        call_peer: Calls an operation of another platform.
        wires: The connections to other platforms; channels get them before they are opened.
    """

    def __init__(self, registry: ServiceRegistry, host: str) -> None:
        self._registry = registry
        self._host = host
        self._numbers = itertools.count(1)
        self._services: dict[str, dict[str, Registration]] = {}
        self.kinds: dict[str, type[Channel]] = {}
        self.opening: dict[str, Deployment] = {}
        self.user = UserCalls()
        self.engines: EngineFolders | None = None
        self.home: Path | None = None
        self.wires: Wires = {}
        self.call_peer: Callable[..., Any] = lambda peer, *_, **__: entry(f"the platform {host!r}", "peer", {}, peer)

    def create(
        self,
        application: str,
        node: Node,
        changed: Callable[[Component], None],
        *,
        durable: bool = False,
        timeout: float | None = None,
    ) -> Component:
        """Make an instance of a node's slet, and register it with its ports, neither open nor connected.

        *changed* is called after every change of its state. Raise `ComponentFailed` if the slet's own code raises, or
        does not return within *timeout* seconds.
        """
        identity = f"{application}/{node.name}#{next(self._numbers)}"
        on_change, engines = partial(self._changed, changed), self.engines if durable else None
        try:
            component = Component(identity, application, node, on_change, engines, self.user, timeout)
        except ExopError:
            raise
        except RAISED as error:
            raise ComponentFailed(node=node.name, phase="being made", problem=error_text(error)) from error
        if isinstance(component.driver, SourceDriver):
            component.driver.broken = partial(handle_source_failure, component, component.driver)
        if component.tie is not None:
            component.tie.omit = partial(omit, component)
        if component.instance is not None:
            component.instance.checkpointed = durable
        spec = node.slet
        facts: dict[str, Any] = {
            names.KIND: "slet",
            names.NAME: node.name,
            names.NODE: node.name,
            names.SLET: spec.identity,
            names.ROLE: str(spec.role),
            names.ORIGIN: spec.plugin or "embedded",
            names.VERSION: (spec.plugin or "").partition("@")[2] or None,
            **_state_of(component),
        }
        self._services[identity] = {_WHOLE: self._register(SLET, component, application, identity, facts)}
        for port in (*spec.inputs, *spec.outputs):
            self._register_port(component, port)
        return component

    def _register_port(self, component: Component, port: PortSpec) -> None:
        facts = {
            names.KIND: "port",
            names.NAME: port.name,
            names.NODE: component.node.name,
            names.PORT: f"{component.node.name}.{port.name}",
            names.DIRECTION: port.direction,
            names.ITEM_TYPE: str(port.type),
        }
        interface, service = INPUT_PORT if port.direction == "in" else OUTPUT_PORT, (component, port.name)
        services = self._services[component.id]
        services[port.name] = self._register(interface, service, component.application, component.id, facts)

    def _register(
        self, interface: str | tuple[str, ...], service: object, application: str, owner: str, facts: Mapping[str, Any]
    ) -> Registration:
        """Register a service of an application with those of the given properties that are not `None`."""
        common = {names.APPLICATION: application, names.HOST: self._host, names.INSTANCE: owner}
        found = {name: value for name, value in facts.items() if value is not None}
        return self._registry.register(interface, service, common | found)

    def create_channel(self, application: str, spec: ChannelSpec, *, durable: bool, timeout: float | None) -> Channel:
        """Make, open and register a channel; `ComponentFailed` if one that is not built in does not open in time."""
        late = ExitStack()

        def make() -> Channel:
            channel = make_channel(self.kinds, spec)
            channel.wires, channel.call_peer = self.wires, self.call_peer
            channel.application, channel.kinds = application, self.kinds
            channel.home = self.channel_home(application, spec.name)
            channel.open()
            channel.take_part(on=durable)
            late.callback(channel.close)
            return channel

        if (kind := self.kinds.get(spec.kind)) is None or kind.__module__.startswith("exop."):
            channel = make()
        else:
            owner = Owner(application, spec.name, channel_id(application, spec.name))
            channel = self.user.run(owner, "opening", make, OPENING if timeout is None else timeout, late.close)
        self._register_channel(application, channel)
        return channel

    def channel_home(self, application: str, name: str) -> Path | None:
        """Return the folder for the files of a channel."""
        return (folder := self._folder(application)) and folder / f"{name}.channel"

    def adopt_channel(self, application: str, channel: Channel) -> None:
        """Register a channel that the wiring has inserted, unless it is registered already."""
        if channel_id(application, channel.name) not in self._services:
            self._register_channel(application, channel, WIRING)

    def connect(self, component: Component, ports: Mapping[str, str | None]) -> None:
        """Set `connected-to` of these ports to channels of the application, by name; `None` disconnects a port."""
        for port, channel in ports.items():
            target = None if channel is None else channel_id(component.application, channel)
            self._services[component.id][port].update({names.CONNECTED_TO: target})

    def destroy(self, component: Component) -> None:
        """Unregister a component, which has stopped."""
        component.on(Event.DESTROY)
        component.metrics.disconnect()
        self._unregister(component.id)

    def destroy_channel(self, application: str, channel: Channel) -> None:
        """Close and unregister a channel."""
        self._unregister(channel_id(application, channel.name))
        channel.close()

    def _unregister(self, identifier: str) -> None:
        for registration in self._services.pop(identifier, {}).values():
            registration.unregister()

    def forget(self, application: str) -> None:
        """Remove the files of an application's channels, which are destroyed, from the state directory."""
        if (folder := self._folder(application)) is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, application: str) -> Path | None:
        return self.home and self.home / f"{application}.application"  # a name alone might be ".."

    def _register_channel(self, application: str, channel: Channel, origin: str | None = None) -> None:
        identifier = channel_id(application, channel.name)
        properties = {
            names.KIND: "channel",
            names.NAME: channel.name,
            names.CHANNEL_KIND: channel.kind,
            names.ORIGIN: origin,
            names.CAPACITY: getattr(channel, "capacity", None),
        }
        registration = self._register((CHANNEL, "In", "Out"), channel, application, identifier, properties)
        self._services[identifier] = {_WHOLE: registration}

    def _changed(self, changed: Callable[[Component], None], component: Component) -> None:
        if services := self._services.get(component.id):
            hangs = component.trouble.hang is not None
            more = {names.HANGS: hangs} if hangs or names.HANGS in services[_WHOLE].reference.properties else {}
            services[_WHOLE].update(_state_of(component) | more)
        changed(component)


def _state_of(component: Component) -> dict[str, Any]:
    return {names.STATE: str(component.status), names.PENDING: [str(line) for line in component.node.pending] or None}


def channel_id(application: str, name: str) -> str:
    """Return the identifier of a channel: the value of a port's `connected-to`."""
    return f"{application}/{name}"


def make_channel(kinds: Mapping[str, type[Channel]], spec: ChannelSpec) -> Channel:
    """Make a channel of a known kind; its settings are the keyword-only parameters of the kind's class.

    Raises:
        UnknownName, SettingError: the kind or a setting does not exist, or a value does not match its type.
        MeshError: the kind refuses the combination.
    """
    cls = entry(f"the channel {spec.name!r}: the platform", "kind", kinds, spec.kind)
    settings = channel_settings(cls, spec)
    try:
        channel = cls(spec.name, **settings)
    except (TypeError, ValueError) as problem:
        place = f"the channel {spec.name!r} ({spec.kind})"
        raise SettingError(place=place, setting=", ".join(spec.settings) or "…", problem=str(problem)) from problem
    channel.asked = spec
    return channel


def converted(kinds: Mapping[str, type[Channel]], spec: ChannelSpec) -> ChannelSpec:
    """Return a channel with the settings that are given converted; raises as `make_channel`."""
    complete = channel_settings(type(make_channel(kinds, spec)), spec)
    return replace(spec, settings={name: complete[name] for name in spec.settings})
