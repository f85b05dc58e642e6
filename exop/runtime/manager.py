"""The ComponentManager: creates components and channels, and offers them as services with properties (paper §4.2)."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exop.errors import ComponentFailed, ExopError, MeshError, SettingError, UnknownName
from exop.model import properties as names
from exop.model.lifecycle import Event
from exop.model.mesh import ChannelSpec, Node
from exop.model.ports import PortSpec
from exop.registry import Registration, ServiceRegistry
from exop.runtime.budget import CLOSING, UserCalls
from exop.runtime.channel import Channel, channel_settings
from exop.runtime.component import Component
from exop.runtime.metrics import disconnect
from exop.runtime.tied.live import EnginePlaces
from exop.shown import RAISED, described

if TYPE_CHECKING:
    from exop.runtime.deployment import Deployment

SLET, CHANNEL, INPUT_PORT, OUTPUT_PORT = "Slet", "Channel", "InputPort", "OutputPort"

#: The origin of the queues that the wiring has inserted.
WIRING = "wiring"


@dataclass(frozen=True)
class LivePort:
    """What is registered for a port: the component that has it, and what it is."""

    component: Component
    spec: PortSpec


class ComponentManager:
    """Creates, configures, starts, suspends, resumes, stops and destroys the components of one platform.

    Every component, port and channel is a service with properties; `exop services` shows them. A port's `connected-to`
    property is set by the WiringController.

    Attributes:
        kinds: The channel kinds there are.
        opening: The applications that are being opened, or wait for their turn, by name.
        user: The calls of the slets' own code that are under way.
        home: Where channels keep files of their own, in the state directory; `None` without one.
    """

    def __init__(self, registry: ServiceRegistry, host: str) -> None:
        self._registry = registry
        self._host = host
        self._numbers = itertools.count(1)
        self._services: dict[str, list[Registration]] = {}
        self._ports: dict[tuple[str, str], Registration] = {}
        self.kinds: dict[str, type[Channel]] = {}
        self.opening: dict[str, Deployment] = {}
        self.user = UserCalls()
        self.engines: EnginePlaces | None = None
        self.home: Path | None = None

    def create(
        self,
        application: str,
        node: Node,
        changed: Callable[[Component], None],
        *,
        durable: bool = False,
        timeout: float | None = None,
    ) -> Component:
        """Make an instance of a node's slet and register it with its ports; it is neither open nor connected.

        *changed* is called after every change of its state. *durable*: it is part of a durable application.

        Raises:
            ComponentFailed: the slet's own code raised, or has not returned within *timeout* seconds.
        """

        def on_change(one: Component) -> None:
            self._changed(one)
            changed(one)

        engines, identity = self.engines if durable else None, f"{application}/{node.name}#{next(self._numbers)}"
        try:
            component = Component(identity, application, node, on_change, engines, self.user, timeout)
        except ExopError:
            raise
        except RAISED as error:
            raise ComponentFailed(node=node.name, phase="being made", problem=described(error)) from error
        if component.instance is not None:
            component.instance.checkpointed = durable
        common = {names.APPLICATION: application, names.NODE: node.name, names.HOST: self._host}
        spec = node.slet
        whole = self._registry.register(
            SLET,
            component,
            common
            | {
                names.KIND: "slet",
                names.NAME: node.name,
                names.INSTANCE: component.id,
                names.SLET: spec.identity,
                names.ROLE: str(spec.role),
                names.STATE: str(component.status),
                names.ORIGIN: spec.plugin or "embedded",
            }
            | ({names.VERSION: version} if (version := (spec.plugin or "").partition("@")[2]) else {})
            | ({names.PENDING: [str(line) for line in node.pending]} if node.pending else {}),
        )
        self._services[component.id] = [whole]
        for port in (*spec.inputs, *spec.outputs):
            self._register_port(component, port, common)
        return component

    def _register_port(self, component: Component, port: PortSpec, common: Mapping[str, Any]) -> None:
        registration = self._registry.register(
            INPUT_PORT if port.direction == "in" else OUTPUT_PORT,
            LivePort(component, port),
            {
                **common,
                names.KIND: "port",
                names.NAME: port.name,
                names.PORT: f"{component.node.name}.{port.name}",
                names.INSTANCE: component.id,
                names.DIRECTION: port.direction,
                names.ITEM_TYPE: str(port.type),
            },
        )
        self._services[component.id].append(registration)
        self._ports[component.id, port.name] = registration

    def create_channel(self, application: str, spec: ChannelSpec, *, durable: bool = False) -> Channel:
        """Make a channel and register it. *durable*: it is part of a durable application.

        Raises:
            UnknownName: no such kind, or a setting that the kind does not have.
            SettingError: a setting does not fit.
        """
        channel = make_channel(self.kinds, spec)
        if self.home is not None:
            channel.home = self._folder(self.home, application) / f"{spec.name}.channel"
        channel.open()
        channel.take_part(on=durable)
        self._register_channel(application, channel)
        return channel

    def adopt_channel(self, application: str, channel: Channel) -> None:
        """Register a channel that the wiring has put between two drivers, unless it is."""
        if channel_id(application, channel.name) not in self._services:
            self._register_channel(application, channel, inserted=True)

    def port(self, component: Component, port: str) -> Registration:
        """The registration of one port: where its `connected-to` is set."""
        return self._ports[component.id, port]

    def configure(self, component: Component, node: Node) -> None:
        """Give a component new settings; nothing may be in flight in it."""
        component.configure(node)

    def suspend(self, component: Component) -> None:
        """Let nothing into a component; items wait upstream."""
        component.on(Event.SUSPEND)

    def resume(self, component: Component) -> None:
        """Let items in again, the kept one first."""
        component.resume()

    def stop(self, component: Component, seconds: float = CLOSING) -> None:
        """Close a component within so many seconds. It can be destroyed then, whether it has closed or not.

        Raises:
            ComponentFailed: it has not closed in time.
        """
        component.exit(seconds)

    def destroy(self, component: Component) -> None:
        """Take a stopped component out of the registry.

        Raises:
            LifecycleError: it still runs.
        """
        component.on(Event.DESTROY)
        disconnect(component)
        for registration in self._services.pop(component.id, ()):
            registration.unregister()
        for port in component.spec.ports:
            self._ports.pop((component.id, port), None)

    def destroy_channel(self, application: str, channel: Channel) -> None:
        """Close a channel and take it out of the registry."""
        for registration in self._services.pop(channel_id(application, channel.name), ()):
            registration.unregister()
        channel.close()

    def forget(self, application: str) -> None:
        """Remove what the channels of an application have kept in the state directory; they are destroyed."""
        if self.home is not None:
            shutil.rmtree(self._folder(self.home, application), ignore_errors=True)

    def _folder(self, home: Path, application: str) -> Path:
        # A name alone might be "..".
        return home / f"{application}.application"

    def _register_channel(self, application: str, channel: Channel, *, inserted: bool = False) -> None:
        identifier = channel_id(application, channel.name)
        properties: dict[str, Any] = {
            names.KIND: "channel",
            names.NAME: channel.name,
            names.APPLICATION: application,
            names.HOST: self._host,
            names.INSTANCE: identifier,
            names.CHANNEL_KIND: channel.kind,
        }
        if inserted:
            properties[names.ORIGIN] = WIRING
        capacity = getattr(channel, "capacity", None)
        if capacity is not None:
            properties[names.CAPACITY] = capacity
        self._services[identifier] = [self._registry.register((CHANNEL, "In", "Out"), channel, properties)]

    def _changed(self, component: Component) -> None:
        registrations = self._services.get(component.id)
        if registrations:
            hangs = component.trouble.hang is not None
            more = {names.HANGS: hangs} if hangs or component.trouble.hung else {}
            pending = [str(line) for line in component.node.pending] or None
            registrations[0].update({names.STATE: str(component.status), names.PENDING: pending, **more})


def channel_id(application: str, name: str) -> str:
    """The identifier of a channel: what a port's `connected-to` names."""
    return f"{application}/{name}"


def make_channel(kinds: Mapping[str, type[Channel]], spec: ChannelSpec) -> Channel:
    """Make a channel of a known kind; its settings are the keyword-only parameters of the kind's class.

    Raises:
        UnknownName: no such kind, or no such setting.
        SettingError: a setting does not fit its type.
        MeshError: the kind refuses the combination.
    """
    if spec.kind not in kinds:
        raise UnknownName(place=f"the channel {spec.name!r}: the platform", kind="kind", name=spec.kind, known=kinds)
    cls = kinds[spec.kind]
    settings = channel_settings(cls, spec)
    try:
        return cls(spec.name, **settings)
    except MeshError:
        raise
    except (TypeError, ValueError) as problem:
        place = f"the channel {spec.name!r} ({spec.kind})"
        raise SettingError(place=place, setting=", ".join(spec.settings) or "…", problem=str(problem)) from problem
