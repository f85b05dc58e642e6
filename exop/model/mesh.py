"""A mesh: the slets, channels and connections of one application, as an immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from exop.errors import MeshError, UnknownName
from exop.model.slet import spec_of
from exop.model.spec import Policy, SletSpec

DIRECT = "direct"


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


@dataclass(frozen=True)
class ChannelSpec:
    """A channel as it is asked for: its name, its kind and the kind's settings."""

    name: str
    kind: str = DIRECT
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", _frozen(self.settings))


@dataclass(frozen=True)
class Node:
    """One slet of a mesh: what runs there, how it is configured, and which channel each port is connected to."""

    name: str
    slet: SletSpec
    settings: Mapping[str, Any] = field(default_factory=dict)
    ports: Mapping[str, str] = field(default_factory=dict)
    host: str | None = None
    suspended: bool = False
    on_error: Policy | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", _frozen(self.settings))
        object.__setattr__(self, "ports", _frozen(self.ports))

    @property
    def policy(self) -> Policy:
        """What happens to an item for which the slet raises."""
        return self.on_error or self.slet.on_error

    def inputs(self) -> dict[str, str]:
        """The channel of each input port."""
        return {port.name: self.ports[port.name] for port in self.slet.inputs if port.name in self.ports}

    def outputs(self) -> dict[str, str]:
        """The channel of each output port."""
        return {port.name: self.ports[port.name] for port in self.slet.outputs if port.name in self.ports}


@dataclass(frozen=True)
class Mesh:
    """An application as a value. Every edit returns a new mesh; nothing happens until it is applied.

    `revision` is the one the platform gave this mesh when it was read; 0 for a mesh that never ran.
    """

    name: str
    nodes: Mapping[str, Node] = field(default_factory=dict)
    channels: Mapping[str, ChannelSpec] = field(default_factory=dict)
    revision: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", _frozen(self.nodes))
        object.__setattr__(self, "channels", _frozen(self.channels))

    def node(self, name: str) -> Node:
        """The node called *name*.

        Raises:
            UnknownName: there is none; the error names the known ones.
        """
        if name not in self.nodes:
            raise UnknownName(place=f"the mesh {self.name!r}", kind="node", name=name, known=self.nodes)
        return self.nodes[name]

    def at(self, revision: int) -> Self:
        """The same mesh as revision *revision*."""
        return replace(self, revision=revision)

    def add(self, node: Node, *channels: ChannelSpec) -> Self:
        """Add a node, and the channels that it brings."""
        if node.name in self.nodes:
            raise MeshError(
                f"the mesh {self.name!r} has a node {node.name!r} already; choose another name, or replace it"
            )
        known = dict(self.channels) | {channel.name: channel for channel in channels}
        for port, channel in node.ports.items():
            if channel not in known:
                place = f"{node.name}.{port}: the mesh {self.name!r}"
                raise UnknownName(place=place, kind="channel", name=channel, known=known)
        return replace(self, nodes={**self.nodes, node.name: node}, channels=known)

    def remove(self, name: str) -> Self:
        """Remove a node, and the channels that nobody is connected to any more."""
        gone = self.node(name)
        nodes = {key: node for key, node in self.nodes.items() if key != name}
        used = {channel for node in nodes.values() for channel in node.ports.values()}
        channels = {
            key: channel for key, channel in self.channels.items() if key in used or key not in gone.ports.values()
        }
        return replace(self, nodes=nodes, channels=channels)

    def replace(self, name: str, slet: Any, **settings: Any) -> Self:
        """Put another slet in the node's place; it keeps the ports, and the settings that the successor has too."""
        node, spec = self.node(name), spec_of(slet)
        for port in node.ports:
            if port not in spec.ports:
                raise UnknownName(place=f"{name}: the successor {spec.name}", kind="port", name=port, known=spec.ports)
        kept = {key: value for key, value in node.settings.items() if key in spec.settings}
        complete = spec.configured(name, {**kept, **settings})
        return self._with(replace(node, slet=spec, settings=complete))

    def configure(self, name: str, **settings: Any) -> Self:
        """Change settings of a node."""
        node = self.node(name)
        return self._with(replace(node, settings=node.slet.configured(name, {**node.settings, **settings})))

    def move(self, name: str, to: str) -> Self:
        """Place a node on another host."""
        return self._with(replace(self.node(name), host=to))

    def suspend(self, name: str) -> Self:
        """Stop handing items to a node; they wait upstream."""
        return self._with(replace(self.node(name), suspended=True))

    def resume(self, name: str) -> Self:
        """Hand items to a suspended node again."""
        return self._with(replace(self.node(name), suspended=False))

    def rewire(self, name: str, **ports: str) -> Self:
        """Connect ports of a node to other channels of the mesh."""
        node = self.node(name)
        for port, channel in ports.items():
            if port not in node.slet.ports:
                raise UnknownName(place=name, kind="port", name=port, known=node.slet.ports)
            if channel not in self.channels:
                raise UnknownName(place=f"the mesh {self.name!r}", kind="channel", name=channel, known=self.channels)
        return self._with(replace(node, ports={**node.ports, **ports}))

    def producers(self, channel: str) -> list[tuple[Node, str]]:
        """The output ports connected to a channel."""
        return [(node, port) for node in self.nodes.values() for port, to in node.outputs().items() if to == channel]

    def consumers(self, channel: str) -> list[tuple[Node, str]]:
        """The input ports connected to a channel."""
        return [(node, port) for node in self.nodes.values() for port, to in node.inputs().items() if to == channel]

    def to_toml(self) -> str:
        """The mesh as a topology file."""
        from exop.model.topology import to_toml

        return to_toml(self)

    @staticmethod
    def from_toml(text: str, catalog: Mapping[str, SletSpec]) -> Mesh:
        """Read a topology file; *catalog* resolves the names of its slets (`platform.slets()` gives one)."""
        from exop.model.topology import from_toml

        return from_toml(text, catalog)

    def _with(self, node: Node) -> Self:
        return replace(self, nodes={**self.nodes, node.name: node})
