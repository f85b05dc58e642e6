"""A mesh: the slets, channels and connections of one application, as an immutable value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, cast

from exop.errors import ExpressionError, MeshError, UnknownName
from exop.model.meshes import topology
from exop.model.meshes.conditional_updates import channel_condition, conditional_update, inherited
from exop.model.meshes.entries import Entries
from exop.model.meshes.nodes import NOTHING, ChannelSpec, ConditionalUpdate, Graph, Node, check_channels, check_ports
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, PortType
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from exop.pictures.notebook import picture_of, size

__all__ = ["ChannelSpec", "Mesh", "Node"]


@dataclass(frozen=True, repr=False)
class Mesh(Graph):
    """An application as an immutable value. Every edit returns a new mesh, which takes effect when it is applied."""

    _repr_svg_ = picture_of

    def __repr__(self) -> str:
        revision = f" rev {self.revision}" if self.revision else ""
        return f"<Mesh {self.name}{revision}: {size(self)}>"

    def at(self, revision: int) -> Self:
        """Return the same mesh with another *revision*."""
        return self if revision == self.revision else self.edited(revision=revision)

    def add(self, node: Node, *channels: ChannelSpec) -> Self:
        """Add a node, and the channels to which the node is connected.

        Raises:
            MeshError: a name is taken.
            UnknownName: the slet has no such port, or the mesh no such channel.
        """
        if node.name in self.nodes:
            cure = "choose another name, or replace it"
            raise MeshError(f"the mesh {self.name!r} has a node {node.name!r} already; {cure}")
        check_ports(node.name, node.slet, node.ports)
        return self._declaring(channels)._with(node)

    def add_slet(
        self, name: str, spec: SletSpec, ports: Mapping[str, str], settings: Mapping[str, Any], **care: Any
    ) -> Self:
        """Add a node with the slet *spec* and the given *settings*; each other output gets a channel of its own.

        *care* are further fields of the node, such as `host` and `group`.

        Raises:
            MeshError: a name is taken, or an input is connected to nothing.
            UnknownName, SettingError: as `SletSpec.configured`; or the mesh has no such channel.
        """
        complete = spec.configured(name, settings, beside_ports=True)
        check_inputs(self, name, spec, ports)
        fresh = [port.name for port in spec.outputs if port.name not in ports and name not in self.nodes]
        own = self.own_channels(name, fresh)
        node = Node(name, spec, complete, {**ports, **own}, given=frozenset(settings), **care)
        return self.add(node, *map(ChannelSpec, own.values()))

    def remove(self, name: str) -> Self:
        """Remove a node, and the channels that lose their last connection.

        Raises:
            UnknownName: there is no such node.
        """
        return self.edited({name: None})._without_orphans(self.node(name))

    def replace(
        self,
        name: str,
        slet: Any,
        /,
        *,
        lose_state: bool = False,
        rebuild: Literal["log"] | None = None,
        **settings: Any,
    ) -> Self:
        """Replace the slet of a node; the connections and the explicitly set settings do not change.

        Explicitly set settings that the new slet lacks are dropped; all other settings take the defaults of the new
        slet. The new slet takes over the state. With *lose_state*, the new slet starts with an empty state, even if it
        could take over the old state; with `rebuild="log"`, the state is rebuilt from the log upstream.

        Raises:
            UnknownName: the mesh has no such node, or the new slet lacks a port or a setting.
            SettingError: the value of a setting is invalid, or a new setting without a default is not given.
            SletError: *slet* is not a slet.
            MeshError: a port reads from an output that exists only with the old settings.
        """
        node = self.node(name)
        spec = spec_of(slet)
        given = {key: value for key, value in node.set_settings().items() if key in spec.settings} | settings
        complete = spec.configured(name, given)
        spec = spec.specialised(name, complete, node.taken).connected(node.ports)
        leaves = self._unread(node, spec) if spec.specialises else ()
        for port in (port for port in node.ports if port not in leaves):
            check_ports(f"{name}: the successor {spec.name}", spec, [port])
            if node.slet.ports[port].direction != spec.ports[port].direction:
                raise MeshError(
                    f"{name}: the port {port!r} is an {node.slet.ports[port].direction}put, but an "
                    f"{spec.ports[port].direction}put of the successor {spec.name}; rename one of them"
                )
        if rebuild not in (None, "log"):
            raise MeshError(f"{name}: a state is not rebuilt from {rebuild!r}; say rebuild='log', or leave it out")
        marks: dict[str, Any] = {"lose_state": lose_state, "rebuild": rebuild, "pending": inherited(node, spec)}
        marks |= {"memento": None} if lose_state else {}
        return self.fitted(node, replace(node, slet=spec, settings=complete, given=frozenset(given), **marks))

    def fitted(self, before: Node, after: Node) -> Self:
        """Replace the node *before* by *after*, whose ports may depend on its settings.

        A channel is created for each new output; an output that no longer exists is disconnected.
        """
        if not after.slet.specialises:
            return self._with(after)
        gone, known = self._unread(before, after.slet), {**before.slet.ports, **after.ports}
        own = self.own_channels(before.name, [port.name for port in after.slet.outputs if port.name not in known])
        ports = {port: to for port, to in after.ports.items() if port not in gone} | own
        mesh = self.edited(channels={channel: ChannelSpec(channel) for channel in own.values()})
        return mesh._with(replace(after, ports=ports))._without_orphans(before)

    def move(self, name: str, to: str | None, *, channel: bool = False, lose_state: bool = False) -> Self:
        """Place a node, or a channel with its content, on the host *to*; `None` is the home of the application.

        A name that both a node and a channel have refers to the node, or with *channel* to the channel. With
        *lose_state*, the node starts with an empty state there; it keeps its state if it is there already.

        Raises:
            UnknownName: there is no such node or channel.
        """
        if (there := (not channel and self.nodes.get(name)) or self.channels.get(name)) is None:
            kind, known = ("channel", []) if channel else ("node or channel", [*self.nodes])
            raise UnknownName(place=f"the mesh {self.name!r}", kind=kind, name=name, known=[*known, *self.channels])
        if isinstance(there, Node):
            marks: dict[str, Any] = {"lose_state": True, "memento": None} if lose_state and there.host != to else {}
            return self._with(replace(there, host=to, **marks))
        return self.edited(channels={name: replace(there, host=to)})

    def at_home(self, home: str, running: Mapping[str, Node] = NOTHING) -> Self:
        """Return the mesh without the name of its *home*: what names no host is there.

        A node that is there as one of the *running* ones already does not move, and keeps its state.
        """
        if home not in self.hosts:
            return self
        there = {name: node.slet for name, node in running.items() if node.host is None}
        nodes = {
            name: replace(one, host=None, lose_state=one.lose_state and there.get(name) != one.slet)
            for name, one in self.nodes.items()
            if one.host == home
        }
        channels = {name: replace(one, host=None) for name, one in self.channels.items() if one.host == home}
        return self.edited(nodes, channels)

    def configure(self, name: str, /, *, when: str | None = None, close_windows: bool = False, **settings: Any) -> Self:
        """Change settings of a node, or its policy `on_error`, or settings of a channel of this name.

        With a condition *when* (`"report.time >= 3600"`), the settings take effect at the first item for which the
        condition holds, after all pending updates. Without *when*, they take effect now, and cancel these.

        Raises:
            UnknownName: the mesh has no such node or channel, or the node no such setting. Settings of a channel are
                checked when the change is planned.
            SettingError: the value of a setting is invalid.
            ExpressionError: *when* is not a valid condition on the items of the node.
            MeshError: a connected port does not exist with these settings.
        """
        if name not in self.nodes and name in self.channels:
            return self.configure_channel(name, when=when, close_windows=close_windows, **settings)
        node = self.node(name)
        if close_windows:
            raise MeshError(f"{name} is a slet, which has no open windows; configure the window channel before it")
        if when is not None:
            update = conditional_update(node, when, settings, self.types_into(node))
            return self.edited({name: replace(node, pending=(*node.pending, update))})
        policy = settings.pop("on_error", node.on_error)
        return self.fitted(node, replace(node.with_settings(settings), pending=(), on_error=policy))

    def configure_channel(
        self, name: str, /, *, when: str | None = None, close_windows: bool = False, **settings: Any
    ) -> Self:
        """Change settings of a channel, immediately or at the first item that meets *when* (`"item.time >= 3600"`).

        Open windows of a window channel are completed with the old settings. With *close_windows*, the open windows are
        closed and emitted at this item, and new windows begin.

        Raises:
            UnknownName: no such channel.
            ExpressionError: *when* is not a valid condition on the items of the channel.
        """
        channel = self.channel(name)
        if when is None:
            now = replace(channel.with_settings(settings), pending=(), close_windows=close_windows)
            return self.edited(channels={name: now})
        if not settings and not close_windows:
            raise MeshError(f"{name}: nothing is to change when {when}; name a setting")
        text = channel_condition(channel, when, self.pushed(name) or PortType())
        update = ConditionalUpdate(text, settings, close_windows)
        return self.edited(channels={name: replace(channel, pending=(*channel.pending, update))})

    def restore(self, name: str, memento: Memento, /) -> Self:
        """Replace the state of a node: a new instance of the slet starts with a copy of *memento*.

        Raises:
            UnknownName: there is no such node.
            MeshError: the slet has no memento, or a memento of another class.
            StoredStateError: a value is not of the type of its field.
        """
        node = self.node(name)
        node.slet.check_memento(f"{self.name}.{name}", memento)
        return self.edited({name: replace(node, memento=memento.copied())})

    def suspend(self, name: str) -> Self:
        """Suspend a node: its items wait upstream."""
        return self._with(replace(self.node(name), suspended=True))

    def resume(self, name: str) -> Self:
        """Resume a suspended node."""
        return self._with(replace(self.node(name), suspended=False))

    def rewire(self, name: str, /, **ports: str | ChannelSpec | None) -> Self:
        """Connect ports of a node to other channels, which are given by name or, for new channels, by specification.

        `None` disconnects a port. Channels that lose their last connection are removed.

        Raises:
            UnknownName: no such node, port or channel.
            MeshError: the name of a new channel is taken.
        """
        node = self.node(name)
        names = {port: to.name if isinstance(to, ChannelSpec) else to for port, to in ports.items()}
        check_ports(name, node.slet.connected([*node.ports, *names]), names)
        mesh = self._declaring([to for to in ports.values() if isinstance(to, ChannelSpec)])
        left = {port: to for port, to in {**node.ports, **names}.items() if to is not None}
        return mesh._with(replace(node, ports=left))._without_orphans(node)

    def edited(
        self,
        nodes: Mapping[str, Node | None] = NOTHING,
        channels: Mapping[str, ChannelSpec | None] = NOTHING,
        *,
        alone: bool = False,
        **fields: Any,
    ) -> Self:
        """Return the mesh with these nodes and channels, by name; `None` removes a node or channel.

        All edits use this method. Unchanged entries are shared, so that differences can be found by identity. Ports
        that depend on the types of inputs are updated, unless *alone* is true.
        """
        fields["nodes"] = cast("Entries[Node]", self.nodes).edited(nodes)
        fields["channels"] = cast("Entries[ChannelSpec]", self.channels).edited(channels)
        made = replace(self, **fields)
        if "_ends" in self.__dict__:
            made.__dict__["_ends"] = self._ends.after(made.nodes, {name: self.nodes.get(name) for name in nodes})
        gone = [*map(self.nodes.get, nodes), *map(self.channels.get, channels)]
        come = [*nodes.values(), *channels.values()]
        left = self.hosts - Counter(one.host for one in gone if one is not None)
        made.__dict__["hosts"] = left + Counter(one.host for one in come if one is not None)
        found = {name for name, node in nodes.items() if node is not None and node.slet.derives}
        made.__dict__["special"] = self.special.difference(nodes).union(found)
        return made if alone or not made.special else made._retyped(self, nodes, channels)

    def own_channels(self, node: str, ports: Iterable[str]) -> dict[str, str]:
        """Return the names of new channels for unconnected outputs of a node, by port."""
        found = {port: node if port == OUT else f"{node}.{port}" for port in ports}
        for port in (port for port, channel in found.items() if channel in self.channels):
            cure = f"rename the node, or name a channel for its output {port!r}"
            raise MeshError(f"{self.name} has a channel {found[port]!r} already; {cure}")
        return found

    def _unread(self, before: Node, spec: SletSpec) -> tuple[str, ...]:
        """Return the connected ports of a node that *spec* lacks: unread outputs; any others are refused."""
        gone = tuple(port for port in before.ports if port not in spec.ports)
        for port in gone:
            channel, cure = before.ports[port], "remove what it feeds, or connect it elsewhere, first"
            readers = ", ".join(f"{node.name}.{end}" for node, end in self.consumers(channel))
            ends = f"feeds {readers} through {channel!r}" if readers else ""
            if before.slet.ports[port].direction == "in":
                ends, cure = f"takes from the channel {channel!r}", f"remove {before.name}, and add it again"
            if ends:
                raise MeshError(
                    f"{before.name}.{port} {ends}, and with the new settings {spec.name} has no such port "
                    f"(it has {', '.join(spec.ports)}); {cure}"
                )
        return gone

    def _retyped(self, before: Mesh, nodes: Iterable[str], channels: Iterable[str]) -> Self:
        """Update the ports that depend on the types of inputs, after an edit of these nodes and channels."""
        found, edits = {*nodes}, [node for one in (before, self) for name in nodes if (node := one.nodes.get(name))]
        ends = {*channels, *(to for node in edits for to in node.outputs().values())}
        mesh = self
        for _ in range(len(self.special) + 1):
            found |= {node.name for channel in ends for node, _ in mesh.consumers(channel)}
            edited: dict[str, Node | None] = {}
            for node in (mesh.nodes[name] for name in sorted(found & self.special)):
                types = mesh.types_into(node)
                if types != node.taken or any(one.origin != node.taken[port].origin for port, one in types.items()):
                    edited[node.name] = replace(node, taken=types)
            if not edited:
                return mesh
            mesh, found = mesh.edited(edited, alone=True), set()
            ends = {to for name in edited for to in mesh.nodes[name].outputs().values()}
        names = ", ".join(edited)
        raise MeshError(f"the types of {names} depend on each other along a cycle, and never settle; declare one")

    def to_toml(self) -> str:
        """Return the mesh as the content of a topology file."""
        return self._toml

    @cached_property
    def _toml(self) -> str:
        """The text, which each checkpoint holds."""
        return "\n".join(topology.section_text(self, *section) for section in topology.sections(self))

    @classmethod
    def from_toml(cls, text: str, catalog: Mapping[str, SletSpec], refused: list[str] | None = None) -> Self:
        """Read a topology file.

        Args:
            text: The content of the file.
            catalog: The slets by identity (`plugin:name`), as returned by `platform.slets()`. A slet that the catalog
                lacks is represented by its description in the file.
            refused: Receives the reasons why pending updates are left out: those whose conditions are not valid. If it
                is `None`, such a condition is an error.

        Raises:
            MeshError: *text* is not valid TOML, lacks a table, or contains a value of the wrong type.
            StoredStateError: the description of a slet is damaged.
            UnknownName, SettingError: as when the mesh is built in code.
        """
        fields, nodes, updates = topology.read(text, catalog)
        mesh = cls(**fields)
        for node in nodes:
            mesh = mesh.add(node)
        # Last: the conditions name ports, whose types are known by now.
        for configure, name, settings in updates:
            try:
                mesh = getattr(mesh, configure)(name, **settings)
            except ExpressionError as problem:
                if refused is None:
                    raise
                refused.append(f"the pending update of {name} is refused: {problem}")
        return mesh

    def _declaring(self, channels: Iterable[ChannelSpec]) -> Self:
        """The mesh with new *channels*; those that it has may be named again as they are."""
        for channel in channels:
            if self.channels.get(channel.name, channel) != channel:
                cure = "choose another name"
                raise MeshError(f"the mesh {self.name!r} has another channel {channel.name!r} already; {cure}")
        return self.edited(channels={channel.name: channel for channel in channels})

    def _with(self, node: Node) -> Self:
        """The mesh with *node* instead of that of its name."""
        check_channels(self, node)
        return self.edited({node.name: node})

    def _without_orphans(self, before: Node) -> Self:
        """Remove the channels of *before* that have no connection left."""
        left = {to for to in before.ports.values() if to not in self._ends.outputs and to not in self._ends.inputs}
        return self.edited(channels=dict.fromkeys(left))


def check_inputs(mesh: Mesh, name: str, spec: SletSpec, ports: Mapping[str, str]) -> None:
    """Refuse an input of the node *name* that is connected to nothing."""
    for port in (one.name for one in spec.inputs if one.name not in ports):
        channels = ", ".join(mesh.channels) or "no channel yet"
        raise MeshError(f"{name}.{port} is connected to nothing; give {port}=CHANNEL ({channels})")
