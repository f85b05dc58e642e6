"""Slets and channels as a mesh has them: configured, and connected by their ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

from exop.errors import MeshError, UnknownName, entry
from exop.model.meshes.entries import Entries
from exop.model.slets.memento import Memento
from exop.model.slets.ports import WINDOW, PortType
from exop.model.slets.slet import Slet
from exop.model.slets.spec import POLICIES, Policy, Setting, SletSpec, configured, copied, invalid_bounds

DIRECT: Final = "direct"
#: The prefix by which edits tell a channel from a node of the same name.
CHANNEL: Final = "channel:"
#: Another name for the home of an application.
HERE: Final = "local"
#: The kinds of the channels that a platform adds to a fragment: both halves of a connector, and a remote reader.
OUTBOX, INBOX, READER = "outbox", "inbox", "reader"
#: The kinds that items or contents enter from another host.
ENTERED: Final = (INBOX, READER)
#: The kinds of channels whose consumers receive the items as they are pushed.
_PASSING: Final = (DIRECT, "queue", "log", "latch", "table", OUTBOX, INBOX, READER)
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class ConditionalUpdate:
    """Settings that take effect at the first item for which a condition holds.

    Attributes:
        when: The condition, as text.
        settings: The new values; the other settings stay.
        close_windows: Whether a window channel then sends the contents of its open windows, and begins new ones.
    """

    when: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    close_windows: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    def __str__(self) -> str:
        changes = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        close = ", open windows closed" if self.close_windows else ""
        return f"{changes or 'nothing'}{close} when {self.when}"


def check_name(what: str, name: object) -> None:
    """Refuse a name that is invalid in identifiers (`application/node#1`, `node.port`) or topology files."""
    if not isinstance(name, str) or not name or not all(letter.isalnum() or letter in "-_." for letter in name):
        raise MeshError(f"{name!r} is no name for {what}; use letters, digits, '-', '_' and '.'")


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """A read-only copy; one that is read-only already is shared."""
    return mapping if type(mapping) is MappingProxyType else MappingProxyType(dict(mapping))


#: The settings of the connectors to a channel.
_CONNECTOR: Final = {
    setting.name: setting
    for setting in (
        Setting("mode", Literal["sync", "async", "offline"], "async"),
        Setting("ack", Literal["received", "done", "stable"] | None),
        Setting("capacity", int | None),
        Setting("cache", bool, False),
    )
}


@dataclass(frozen=True)
class ChannelSpec:
    """The declaration of a channel: its name, its kind and the settings of the kind.

    Attributes:
        pending: The conditional updates, in the order in which they take effect.
        close_windows: Whether changing to this specification closes the open windows.
        host: The host that has the channel and its content. `None`: a direct channel is where its producers are, if
            that is one host; any other channel is at home.
        connector: How ports on other hosts reach the channel: `mode`, `ack`, `capacity` and `cache`.
        type: The type of the items that come from another host; set in fragments only.
    """

    name: str
    kind: str = DIRECT
    settings: Mapping[str, Any] = field(default_factory=dict)
    pending: tuple[ConditionalUpdate, ...] = ()
    close_windows: bool = False
    host: str | None = None
    connector: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    type: PortType | None = field(default=None, compare=False)
    #: The same class may be here, or only its description: types are compared by their fingerprints.
    _type: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        check_name("a channel", self.name)
        check_name("a host", self.host or "none")
        object.__setattr__(self, "settings", _frozen(self.settings))
        if self.connector:
            given = configured(f"the channel {self.name!r}: connector", _CONNECTOR, self.connector)
            known = {name: given[name] for name in self.connector if given[name] is not None}
            object.__setattr__(self, "connector", _frozen(known))
        if self.type is not None:
            object.__setattr__(self, "_type", f"{self.type.form} {self.type.fingerprint} {self.type.punctuation}")

    def with_settings(self, settings: Mapping[str, Any]) -> ChannelSpec:
        """Return the channel with these settings changed."""
        return replace(self, settings={**self.settings, **settings})


class KindLike(Protocol):
    """The properties of a channel kind that the checks need."""

    kind: ClassVar[str]
    buffered: ClassVar[bool]
    pull_mode: ClassVar[Literal["take", "read"]]
    entered: ClassVar[bool]
    replaying: ClassVar[bool]

    @classmethod
    def carries(cls, pushed: PortType) -> PortType:
        """Return the type that consumers receive when *pushed* enters."""

    @classmethod
    def fields(cls, settings: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """Return the fields of items that the settings name, each with its setting."""

    @classmethod
    def partitions_of(cls, spec: ChannelSpec) -> tuple[str, int] | None:
        """Return the key field and the number of the partitions that groups share; `None` without any."""


@dataclass(frozen=True)
class Node:
    """One slet of a mesh: its code, its settings, and the channel of each connected port.

    Attributes:
        slet: The slet, with the ports for these settings and inputs.
        settings: All settings, completed with the defaults of the slet.
        ports: The channel of each connected port.
        pending: The conditional updates, in the order in which they take effect.
        given: The names of settings that were set explicitly, or differ from the default. A replacement takes its own
            defaults for all other settings.
        taken: The known types of the inputs, if the ports of the slet depend on them; set by the mesh.
        group: The group of nodes that share the partitions of their input channels.
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
    pending: tuple[ConditionalUpdate, ...] = ()
    given: frozenset[str] = frozenset()
    taken: Mapping[str, PortType] = field(default_factory=lambda: NOTHING)
    group: str | None = None

    def __post_init__(self) -> None:
        check_name("a node", self.name)
        check_name("a group", self.group or "none")
        check_name("a host", self.host or "none")
        if self.on_error not in (None, *POLICIES):
            raise UnknownName(place=self.name, kind="policy", name=self.on_error, known=POLICIES)
        if problem := invalid_bounds(self.timeout, self.dead_letters):
            raise MeshError(f"{self.name}: {problem}")
        object.__setattr__(self, "settings", _frozen(self.settings))
        object.__setattr__(self, "ports", _frozen(self.ports))
        object.__setattr__(self, "taken", self.taken if self.slet.derives else NOTHING)
        spec = self.slet.specialised(self.name, self.settings, self.taken).connected(self.ports, self.taken)
        if spec.sets_aside and spec.own_driver:
            raise MeshError(
                f"{self.name}: {spec.identity} pushes from its own threads, and cannot push its dead letters "
                f"into a channel; give a number, dead_letters={spec.dead_letters}, and see `exop item list`"
            )
        object.__setattr__(self, "slet", spec)
        known = self.slet.settings
        given = {name for name, value in self.settings.items() if name in known and not known[name].is_default(value)}
        object.__setattr__(self, "given", frozenset(given | (self.given & self.settings.keys())))

    @property
    def policy(self) -> Policy:
        """The policy for items for which the slet raises an exception."""
        return self.on_error or ("dead-letter" if self.slet.sets_aside else self.slet.on_error)

    @property
    def patience(self) -> float | None:
        """The seconds after which a call of the slet is reported; `None` for no limit."""
        return (self.slet.timeout if self.timeout is None else self.timeout) or None

    @property
    def letters(self) -> int:
        """The maximum number of failed items that are stored."""
        return self.slet.dead_letters if self.dead_letters is None else self.dead_letters

    def with_settings(self, settings: Mapping[str, Any]) -> Node:
        """Return the node with these settings changed.

        Raises:
            UnknownName, SettingError: as `SletSpec.configured`.
        """
        complete = self.slet.configured(self.name, {**self.settings, **settings})
        return replace(self, settings=complete, given=self.given | settings.keys())

    def set_settings(self) -> dict[str, Any]:
        """Return the explicitly set settings, by name."""
        return {name: value for name, value in self.settings.items() if name in self.given}

    def private_settings(self) -> dict[str, Any]:
        """Return copies of the settings for one instance. Settings of type `Any` are not copied."""
        known = self.slet.settings
        return {
            name: value if known[name].type in (Any, object) else copied(value) for name, value in self.settings.items()
        }

    def repeats(self) -> bool:
        """Whether the same results come in the same order again after a restart, as `Slet.repeats` says."""
        return bool(getattr(self.slet.factory, "repeats", Slet.repeats)(self.settings))

    def inputs(self) -> dict[str, str]:
        """Return the channel of each input port."""
        return {port.name: self.ports[port.name] for port in self.slet.inputs if port.name in self.ports}

    def outputs(self) -> dict[str, str]:
        """Return the channel of each output port."""
        return {port.name: self.ports[port.name] for port in self.slet.outputs if port.name in self.ports}


#: The ports at each channel, as (node, port).
Ports: TypeAlias = dict[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Ends:
    """The output and input ports at each connected channel, in the order of the nodes."""

    outputs: Ports = field(default_factory=dict)
    inputs: Ports = field(default_factory=dict)

    def after(self, nodes: Mapping[str, Node], before: Mapping[str, Node | None]) -> Ends:
        """Update the ports after an edit of *nodes*; *before* are the former nodes in the edited places."""
        changed = [(name, old, nodes.get(name)) for name, old in before.items()]
        if not (changed := [(name, old, new) for name, old, new in changed if _ports(old) != _ports(new)]):
            return self
        moved = any(old is not None and new is not None for _, old, new in changed)
        place = dict(zip(nodes, count(), strict=False)) if moved else {}  # new nodes are behind the others
        outputs, inputs = self.outputs.copy(), self.inputs.copy()
        for name, old, new in changed:
            for ends, gone, come in zip((outputs, inputs), _ports(old), _ports(new), strict=True):
                for channel in {*gone.values(), *come.values()}:
                    others = [end for end in ends.pop(channel, ()) if end[0] != name]
                    if found := [*others, *((name, port) for port, to in come.items() if to == channel)]:
                        ends[channel] = tuple(sorted(found, key=lambda end: place[end[0]]) if moved else found)
        return Ends(outputs, inputs)


def _ports(node: Node | None) -> tuple[dict[str, str], dict[str, str]]:
    """The channels of the output and of the input ports of a node."""
    return ({}, {}) if node is None else (node.outputs(), node.inputs())


@dataclass(frozen=True, repr=False)
class Graph:
    """The nodes, channels and connections of an application: the content of a mesh, without its edits.

    `revision` is the number that the platform gave this mesh; 0 if it never ran. `durable` is the number of seconds
    between two checkpoints; `None` for none.
    """

    name: str
    nodes: Mapping[str, Node] = field(default_factory=lambda: Entries({}))
    channels: Mapping[str, ChannelSpec] = field(default_factory=lambda: Entries({}))
    revision: int = 0
    durable: float | None = None

    def __post_init__(self) -> None:
        check_name("an application", self.name)
        if self.durable is not None and not (type(self.durable) in (int, float) and 0 < self.durable < float("inf")):
            cure = "give a number > 0"
            raise MeshError(f"{self.name}: a checkpoint cannot be taken every {self.durable!r} seconds; {cure}")
        for section in ("nodes", "channels"):
            if not isinstance(found := getattr(self, section), Entries):
                object.__setattr__(self, section, Entries(dict(found)))

    def node(self, name: str) -> Node:
        """Return the node called *name*.

        Raises:
            UnknownName: there is none.
        """
        return entry(f"the mesh {self.name!r}", "node", self.nodes, name)

    def channel(self, name: str) -> ChannelSpec:
        """Return the channel called *name*.

        Raises:
            UnknownName: there is none.
        """
        return entry(f"the mesh {self.name!r}", "channel", self.channels, name)

    def producers(self, channel: str) -> list[tuple[Node, str]]:
        """Return the output ports that are connected to a channel."""
        return [(self.nodes[node], port) for node, port in self._ends.outputs.get(channel, ())]

    def consumers(self, channel: str) -> list[tuple[Node, str]]:
        """Return the input ports that are connected to a channel."""
        return [(self.nodes[node], port) for node, port in self._ends.inputs.get(channel, ())]

    def place_of(self, channel: str) -> str | None:
        """Return the host of a channel; `None` is the home. A direct channel is where all its producers are."""
        if (found := self.channels[channel]).host is None and found.kind == DIRECT:
            hosts = {node.host for node, _ in self.producers(channel)}
            return hosts.pop() if len(hosts) == 1 else None
        return found.host

    @cached_property
    def hosts(self) -> Counter[str | None]:
        """The number of nodes and channels on each host; `None` is the home. An edit updates them."""
        found = Counter(node.host for node in self.nodes.values())
        return found + Counter(channel.host for channel in self.channels.values())

    def spans(self, home: str) -> bool:
        """Whether a node or channel is on a host other than *home*."""
        return not self.hosts.keys() <= {None, HERE, home}

    def pushed(self, channel: str) -> PortType | None:
        """Return the type of the items pushed into a channel, or `None` if the type is unknown or not unique."""
        if (there := self.channels.get(channel)) is not None and there.type is not None:
            return None if there.type.items.kind == "any" else there.type
        sent = [(node.slet.ports[port].type, f"{node.name}.{port}") for node, port in self.producers(channel)]
        found = [one for one in sent if not one[0].bare] or sent
        if not found or any(one != found[0][0] for one, _ in found):
            return None
        return replace(found[0][0], origin=", ".join(origin for _, origin in found))

    def types_into(self, node: Node) -> dict[str, PortType]:
        """Return the known types of the items that arrive at the inputs of a node; `Any` for ports of a family."""
        found = {}
        for port, to in node.inputs().items():
            channel = self.channels.get(to)
            known = channel is not None and channel.kind in (*_PASSING, WINDOW)
            if channel is not None and known and (sent := self.pushed(to)) is not None:
                found[port] = sent if channel.kind in _PASSING or node.slet.ports[port].pulled else sent.windowed
            elif node.slet.ports[port].member:
                found[port] = PortType()
        return found

    @cached_property
    def special(self) -> frozenset[str]:
        """The nodes whose ports depend on their settings or inputs; an edit updates them."""
        return frozenset(name for name, node in self.nodes.items() if node.slet.derives)

    @cached_property
    def _ends(self) -> Ends:
        """The ports at each channel; an edit updates them."""
        return Ends().after(self.nodes, dict.fromkeys(self.nodes))


def check_ports(place: str, slet: SletSpec, ports: Iterable[str]) -> None:
    """Refuse names of ports that the slet does not have."""
    for port in ports:
        if port not in slet.ports:
            raise UnknownName(place=place, kind="port", name=port, known=slet.port_names)


def check_channels(mesh: Graph, node: Node) -> None:
    """Refuse a node that is connected to a channel which does not exist."""
    for port, channel in node.ports.items():
        entry(f"{node.name}.{port}: the mesh {mesh.name!r}", "channel", mesh.channels, channel)
