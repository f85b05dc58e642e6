"""A mesh: the slets, channels and connections of one application, as an immutable value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, Self, TypeVar, cast

from exop.errors import MeshError, UnknownName
from exop.model.meshes import conditional_updates as lines
from exop.model.meshes.conditional_updates import Line, inherited, own_channels, retyped, unread
from exop.model.meshes.nodes import Ends, Entries
from exop.model.slets.memento import Memento
from exop.model.slets.ports import PortType
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import DEAD, Policy, SletSpec, unfit_bounds
from exop.pictures.notebook import picture_of, size

T = TypeVar("T")
DIRECT = "direct"

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def checked_name(what: str, name: object) -> None:
    """Refuse a name that could not stand in an identifier (`application/node#1`, `node.port`) or in a topology file.

    Raises:
        MeshError: it is empty, or holds another sign than letters, digits, '-', '_' and '.'.
    """
    if not isinstance(name, str) or not name or not all(letter.isalnum() or letter in "-_." for letter in name):
        raise MeshError(f"{name!r} is no name for {what}; use letters, digits, '-', '_' and '.'")


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """A read-only copy; one that is read-only already is shared."""
    return mapping if type(mapping) is MappingProxyType else MappingProxyType(dict(mapping))


@dataclass(frozen=True)
class ChannelSpec:
    """A channel as it is asked for: its name, its kind and the kind's settings.

    `pending` are the settings that take effect at a point in the stream, one after the other; `close_windows` says of
    a change that is about to be made that it closes the open windows.
    """

    name: str
    kind: str = DIRECT
    settings: Mapping[str, Any] = field(default_factory=dict)
    pending: tuple[Line, ...] = ()
    close_windows: bool = False

    def __post_init__(self) -> None:
        checked_name("a channel", self.name)
        object.__setattr__(self, "settings", _frozen(self.settings))

    def with_settings(self, settings: Mapping[str, Any]) -> ChannelSpec:
        """The channel with these settings set; the others stay as they are."""
        return replace(self, settings={**self.settings, **settings})


@dataclass(frozen=True)
class Node:
    """One slet of a mesh: what runs there, how it is configured, and which channel each port is connected to.

    `settings` are complete; `given` names those that were set explicitly. The others have the slet's defaults, and a
    successor takes its own. A setting that differs from its default counts as given. `pending` are the settings that
    take effect at a point in the stream, one after the other. `taken` are the types of the inputs, where the ports of
    the slet depend on them and they are known; the mesh sets them. `slet` has the ports for these settings and types.
    The nodes of a `group` share the partitions of what they read.
    """

    name: str
    slet: SletSpec
    settings: Mapping[str, Any] = field(default_factory=dict)
    ports: Mapping[str, str] = field(default_factory=dict)
    host: str | None = None
    suspended: bool = False
    on_error: Policy | None = None
    lose_state: bool = False
    rebuild: Literal["log"] | None = None
    timeout: float | None = None
    dead_letters: int | None = None
    memento: Memento | None = None
    pending: tuple[Line, ...] = ()
    given: frozenset[str] = frozenset()
    taken: Mapping[str, PortType] = field(default_factory=lambda: _NONE)
    group: str | None = None

    def __post_init__(self) -> None:
        checked_name("a node", self.name)
        checked_name("a group", self.group or "none")
        problem = unfit_bounds(self.timeout, self.dead_letters)
        if problem is not None:
            raise MeshError(f"{self.name}: {problem}")
        object.__setattr__(self, "settings", _frozen(self.settings))
        object.__setattr__(self, "ports", _frozen(self.ports))
        spec = self.slet.setting_aside(DEAD in self.ports)
        if spec.sets_aside and spec.own_driver:
            raise MeshError(
                f"{self.name}: {spec.identity} pushes from threads of its own, and cannot push its dead letters "
                f"into a channel; give a number, dead_letters={spec.dead_letters}, and see `exop item list`"
            )
        object.__setattr__(self, "taken", self.taken if spec.derives else _NONE)
        spec = spec.specialised(self.name, self.settings, self.taken).connected(self.ports)
        object.__setattr__(self, "slet", spec.bound(self.taken))
        known = self.slet.settings
        given = {name for name, value in self.settings.items() if name in known and not known[name].is_default(value)}
        object.__setattr__(self, "given", frozenset(given | (self.given & self.settings.keys())))

    @property
    def policy(self) -> Policy:
        """The treatment of an item for which the slet raises."""
        return self.on_error or ("dead-letter" if self.slet.sets_aside else self.slet.on_error)

    @property
    def patience(self) -> float | None:
        """The seconds that an item may take before that is reported; `None`: without limit."""
        return (self.slet.timeout if self.timeout is None else self.timeout) or None

    @property
    def letters(self) -> int:
        """The maximum number of failed items that are kept, when they are set aside."""
        return self.slet.dead_letters if self.dead_letters is None else self.dead_letters

    def with_settings(self, settings: Mapping[str, Any]) -> Node:
        """The node with these settings set; the others stay as they are.

        Raises:
            UnknownName, SettingError: as `SletSpec.configured`.
        """
        complete = self.slet.configured(self.name, {**self.settings, **settings})
        return replace(self, settings=complete, given=self.given | settings.keys())

    def set_settings(self) -> dict[str, Any]:
        """The settings that were set explicitly, by name."""
        return {name: value for name, value in self.settings.items() if name in self.given}

    def private_settings(self) -> dict[str, Any]:
        """The settings as one running instance gets them: it may alter its copies, and never the mesh."""
        return {name: self.slet.settings[name].private(value) for name, value in self.settings.items()}

    def inputs(self) -> dict[str, str]:
        """The channel of each input port."""
        return {port.name: self.ports[port.name] for port in self.slet.inputs if port.name in self.ports}

    def outputs(self) -> dict[str, str]:
        """The channel of each output port."""
        return {port.name: self.ports[port.name] for port in self.slet.outputs if port.name in self.ports}


@dataclass(frozen=True, repr=False)
class Mesh:
    """An application as a value. Every edit returns a new mesh; nothing happens until it is applied.

    `revision` is the one the platform gave this mesh when it was read; 0 for a mesh that never ran. `durable` is the
    number of seconds between two checkpoints; `None`: none are taken.
    """

    name: str
    nodes: Mapping[str, Node] = field(default_factory=lambda: Entries({}))
    channels: Mapping[str, ChannelSpec] = field(default_factory=lambda: Entries({}))
    revision: int = 0
    durable: float | None = None

    def __post_init__(self) -> None:
        checked_name("an application", self.name)
        if self.durable is not None and not (type(self.durable) in (int, float) and 0 < self.durable < float("inf")):
            raise MeshError(
                f"{self.name}: a checkpoint cannot be taken every {self.durable!r} seconds; give a number > 0"
            )
        for section in ("nodes", "channels"):
            if not isinstance(found := getattr(self, section), Entries):
                object.__setattr__(self, section, Entries(dict(found)))

    def __repr__(self) -> str:
        revision = f" rev {self.revision}" if self.revision else ""
        return f"<Mesh {self.name}{revision}: {size(self)}>"

    def _repr_svg_(self) -> str:
        return picture_of(self)

    def node(self, name: str) -> Node:
        """The node called *name*; `UnknownName` if there is none."""
        return _known(f"the mesh {self.name!r}", "node", self.nodes, name)

    def channel(self, name: str) -> ChannelSpec:
        """The channel called *name*.

        Raises:
            UnknownName: there is none; the error names the known ones.
        """
        return _known(f"the mesh {self.name!r}", "channel", self.channels, name)

    def at(self, revision: int) -> Self:
        """The same mesh as revision *revision*."""
        return self if revision == self.revision else self.edited(revision=revision)

    def add(self, node: Node, *channels: ChannelSpec) -> Self:
        """Add a node, and the channels that it brings.

        Raises:
            MeshError: a name is taken.
            UnknownName: a port that the slet does not have, or a channel that is not there.
        """
        if node.name in self.nodes:
            raise MeshError(
                f"the mesh {self.name!r} has a node {node.name!r} already; choose another name, or replace it"
            )
        for channel in channels:
            if self.channels.get(channel.name, channel) != channel:
                raise MeshError(
                    f"the mesh {self.name!r} has another channel {channel.name!r} already; choose another name"
                )
        _known_ports(node.name, node.slet, node.ports)
        return self.edited(channels={channel.name: channel for channel in channels})._with(node)

    def remove(self, name: str) -> Self:
        """Remove a node, and the channels that have no connection left.

        Raises:
            UnknownName: there is no such node.
        """
        gone = self.node(name)
        return self.edited({name: None})._without_orphans(gone)

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
        """Put another slet in the node's place; it keeps the ports, and the settings that were set and it has too.

        All other settings stand at the successor's defaults. The successor takes over the state; with *lose_state* it
        starts with an empty one, also where it could take over the old one, and with `rebuild="log"` it makes its own
        out of all that the log has from which its input comes.

        Raises:
            UnknownName: no such node, a port that the successor does not have, a setting that it does not know.
            SettingError: a setting does not fit, or a new one has no default.
            SletError: *slet* is none.
            MeshError: an output that the slet had with its former settings is read, and it has it no more.
        """
        node = self.node(name)
        spec = spec_of(slet).setting_aside(node.slet.sets_aside)
        given = {key: value for key, value in node.set_settings().items() if key in spec.settings} | settings
        complete = spec.configured(name, given)
        spec = spec.specialised(name, complete, node.taken).connected(node.ports)
        leaves = unread(self, node, spec) if spec.specialises else ()
        for port in (port for port in node.ports if port not in leaves):
            _known_ports(f"{name}: the successor {spec.name}", spec, [port])
            if node.slet.ports[port].direction != spec.ports[port].direction:
                raise MeshError(
                    f"{name}: the port {port!r} leads {node.slet.ports[port].direction}, that of the successor "
                    f"{spec.name} leads {spec.ports[port].direction}; rename one of them"
                )
        if rebuild not in (None, "log"):
            raise MeshError(f"{name}: a state is not rebuilt from {rebuild!r}; say rebuild='log', or leave it out")
        said: dict[str, Any] = {"lose_state": lose_state, "rebuild": rebuild, "pending": inherited(node, spec)}
        said |= {"memento": None} if lose_state else {}
        return self.fitted(node, replace(node, slet=spec, settings=complete, given=frozenset(given), **said))

    def fitted(self, before: Node, after: Node) -> Self:
        """Put *after* in the place of *before*, where the ports depend on the settings.

        A new output gets a channel of its own; an output that is no more is disconnected.

        Raises:
            MeshError: a port that is no more is connected to something, or the channel of a new one exists.
        """
        if not after.slet.specialises:
            return self._with(after)
        gone, known = unread(self, before, after.slet), {**before.slet.ports, **after.ports}
        own = own_channels(self, before.name, [port.name for port in after.slet.outputs if port.name not in known])
        ports = {port: to for port, to in after.ports.items() if port not in gone} | own
        mesh = self.edited(channels={channel: ChannelSpec(channel) for channel in own.values()})
        return mesh._with(replace(after, ports=ports))._without_orphans(before)

    def move(self, name: str, to: str) -> Self:
        """Place a node on another host.

        Raises:
            UnknownName: there is no such node.
        """
        return self._with(replace(self.node(name), host=to))

    configure = lines.configure
    configure_channel = lines.configure_channel
    restore = lines.restore

    def suspend(self, name: str) -> Self:
        """Stop handing items to a node; they wait upstream."""
        return self._with(replace(self.node(name), suspended=True))

    def resume(self, name: str) -> Self:
        """Hand items to a suspended node again."""
        return self._with(replace(self.node(name), suspended=False))

    def rewire(self, name: str, /, **ports: str | ChannelSpec | None) -> Self:
        """Connect ports of a node to other channels: those of the mesh by name, new ones by their specification.

        `None` disconnects a port. A channel that this leaves without any connection goes.

        Raises:
            UnknownName: no such node, port or channel.
        """
        node = self.node(name)
        names = {port: to.name if isinstance(to, ChannelSpec) else to for port, to in ports.items()}
        slet = node.slet.setting_aside(node.slet.sets_aside or DEAD in names).connected([*node.ports, *names])
        _known_ports(name, slet, names)
        mesh = self.edited(channels={to.name: to for to in ports.values() if isinstance(to, ChannelSpec)})
        left = {port: to for port, to in {**node.ports, **names}.items() if to is not None}
        return mesh._with(replace(node, ports=left))._without_orphans(node)

    def producers(self, channel: str) -> list[tuple[Node, str]]:
        """The output ports connected to a channel."""
        return [(self.nodes[node], port) for node, port in self._ends.outputs.get(channel, ())]

    def consumers(self, channel: str) -> list[tuple[Node, str]]:
        """The input ports connected to a channel."""
        return [(self.nodes[node], port) for node, port in self._ends.inputs.get(channel, ())]

    def edited(
        self,
        nodes: Mapping[str, Node | None] = _NONE,
        channels: Mapping[str, ChannelSpec | None] = _NONE,
        *,
        alone: bool = False,
        **fields: Any,
    ) -> Self:
        """The mesh with these nodes and channels in the places of those of their names; `None` removes one.

        All edits are made by this. It shares what it does not change, so that a difference is found by identity. Slets
        whose ports depend on the types of their inputs get the ports that they have then, unless *alone*.

        Raises:
            MeshError: one of these slets refuses its settings or its inputs.
        """
        fields["nodes"] = cast("Entries[Node]", self.nodes).edited(nodes)
        fields["channels"] = cast("Entries[ChannelSpec]", self.channels).edited(channels)
        made = replace(self, **fields)
        if "_ends" in self.__dict__:
            made.__dict__["_ends"] = self._ends.after(made.nodes, {name: self.nodes.get(name) for name in nodes})
        found = {name for name, node in nodes.items() if node is not None and node.slet.derives}
        made.__dict__["special"] = self.special.difference(nodes).union(found)
        return made if alone or not made.special else cast("Self", retyped(made, self, nodes, channels))

    @cached_property
    def special(self) -> frozenset[str]:
        """The nodes whose ports depend on their settings and inputs; an edit hands them on."""
        return frozenset(name for name, node in self.nodes.items() if node.slet.derives)

    @cached_property
    def _ends(self) -> Ends:
        """The ports at each channel; an edit hands them on."""
        return Ends.of(self.nodes)

    def to_toml(self) -> str:
        """The mesh as a topology file."""
        from exop.model.meshes.topology import to_toml

        return to_toml(self)

    @staticmethod
    def from_toml(text: str, catalog: Mapping[str, SletSpec]) -> Mesh:
        """Read a topology file; *catalog* resolves the names of its slets (`platform.slets()` gives one)."""
        from exop.model.meshes.topology import from_toml

        return from_toml(text, catalog)

    def _with(self, node: Node) -> Self:
        """The mesh with *node* in the place of its name."""
        for port, channel in node.ports.items():
            _known(f"{node.name}.{port}: the mesh {self.name!r}", "channel", self.channels, channel)
        return self.edited({node.name: node})

    def _without_orphans(self, before: Node) -> Self:
        """Drop the channels of *before* that no port is connected to any more."""
        left = {to for to in before.ports.values() if to not in self._ends.outputs and to not in self._ends.inputs}
        return self.edited(channels=dict.fromkeys(left))


def _known(place: str, kind: str, known: Mapping[str, T], name: str) -> T:
    if name not in known:
        raise UnknownName(place=place, kind=kind, name=name, known=known)
    return known[name]


def _known_ports(place: str, slet: SletSpec, ports: Iterable[str]) -> None:
    for port in ports:
        if port not in slet.ports:
            raise UnknownName(place=place, kind="port", name=port, known=slet.port_names)
