"""Changes of settings: at once, or pending until a point in the stream (the control lines of Borealis)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from exop.errors import MeshError, SettingError, UnknownName
from exop.model.meshes.condition import Names, read_condition
from exop.model.slets.memento import Memento, check_memento
from exop.model.slets.ports import OUT, WINDOW, PortType

if TYPE_CHECKING:
    from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
    from exop.model.slets.spec import SletSpec

Place = TypeVar("Place", "Node", "ChannelSpec")

#: How a condition on a channel calls what comes.
ITEM = "item"
#: The kinds of types that say nothing of an item.
_OPEN = ("any", "open", "variable")
#: The kinds of channels whose consumers take what is pushed, of the same type.
_PASSING: Final = ("direct", "queue", "log", "latch", "table")


@dataclass(frozen=True)
class Line:
    """Settings that take effect at the first item for which a condition holds.

    Attributes:
        when: The condition, as text.
        settings: What is set then; the other settings stay.
        close_windows: Of a window channel: what is in the open windows then is sent, and they begin anew.
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


def node_names(place: str, spec: SletSpec, types: Mapping[str, PortType] = MappingProxyType({})) -> Names:
    """Return the names allowed in a condition on a node: the ports into which items are pushed, and the settings.

    A port of which nothing is declared has the one of *types*, which are those of the items that come.

    Raises:
        MeshError: the platform does not push into the slet.
    """
    pushed = [port for port in spec.inputs if not port.pulled]
    named = {port.name: port.type for port in pushed if not port.member}
    if spec.own_driver or not named:
        why = "pulls its items" if spec.inputs else "has no input port"
        why = "drives itself" if spec.own_driver else "takes its items by a family of ports" if pushed else why
        raise MeshError(
            f"{place}: {spec.name} {why}, so there is no item at which its settings could change; configure it "
            f"without `when`, or set a condition on a slet that items are pushed into"
        )
    known = {name: types.get(name, one) if one.items.kind in _OPEN else one for name, one in named.items()}
    return Names(place, known, tuple(spec.settings), punctuation=len(pushed) == 1)


def item_names(channel: str, carried: PortType) -> Names:
    """Return the names allowed in a condition on a channel: the channel itself or `item`, and `punctuation`."""
    names = [ITEM, channel] if channel.isidentifier() else [ITEM]
    return Names(channel, dict.fromkeys(names, carried))


def line_for(
    node: Node, when: str, settings: Mapping[str, Any], types: Mapping[str, PortType] = MappingProxyType({})
) -> Line:
    """A new line for a node, checked; *types* are those of the items that come.

    Raises:
        ConditionError: *when* is no condition on its items.
        UnknownName, SettingError: the settings do not fit.
        MeshError: nothing is to change, or the slet is none into which items are pushed.
    """
    if not settings:
        raise MeshError(f"{node.name}: nothing is to change when {when}; name a setting, {node.name}(…, NAME=VALUE)")
    condition = read_condition(when, node_names(node.name, node.slet, types))
    after = node.with_settings(settings)
    if after.slet.ports.keys() != node.slet.ports.keys():
        raise MeshError(
            f"{node.name}: with these settings {node.slet.name} has other ports, which cannot come or go at a point in "
            f"the stream; configure it without `when`"
        )
    return Line(condition.text, {name: after.settings[name] for name in settings})


def inherited(node: Node, spec: SletSpec) -> tuple[Line, ...]:
    """The lines of a node that hold for a successor *spec* too: it has the ports, fields and settings they name."""
    kept = []
    for line in node.pending:
        try:
            known = {name: value for name, value in node.set_settings().items() if name in spec.settings}
            known = spec.configured(node.name, known)
            kept.append(line_for(replace(node, slet=spec, settings=known), line.when, line.settings))
        except (MeshError, UnknownName, SettingError):
            continue
    return tuple(kept)


def without(there: Place, line: Line) -> Place:
    """The node or channel without the first of its pending lines that is *line*."""
    at = there.pending.index(line)
    return replace(there, pending=there.pending[:at] + there.pending[at + 1 :])


def fired(there: Place, line: Line) -> Place:
    """The node or channel of which a pending line has taken effect: what it sets counts as set."""
    return without(there, line).with_settings(line.settings)


def configure(
    mesh: Mesh, name: str, /, *, when: str | None = None, close_windows: bool = False, **settings: Any
) -> Mesh:
    """Change settings of a node, or of a channel that has the name.

    With *when*, a condition on the items (`"report.time >= 3600"`), they take effect exactly at the first item for
    which it holds, behind the lines that are pending already. Without it they take effect now, and what was
    pending is cancelled.

    Raises:
        UnknownName: no such node, or no such setting.
        SettingError: a value does not fit.
        ConditionError: *when* is no condition on the node's items.
        MeshError: a port that the slet has no more with these settings is connected to something.
    """
    if name not in mesh.nodes and name in mesh.channels:
        return configure_channel(mesh, name, when=when, close_windows=close_windows, **settings)
    node = mesh.node(name)
    if close_windows:
        raise MeshError(f"{name} is a slet, which has no open windows; configure the window channel before it")
    if when is not None:
        line = line_for(node, when, settings, types_into(mesh, node))
        return mesh.edited({name: replace(node, pending=(*node.pending, line))})
    return mesh.fitted(node, replace(node.with_settings(settings), pending=()))


def configure_channel(
    mesh: Mesh, name: str, /, *, when: str | None = None, close_windows: bool = False, **settings: Any
) -> Mesh:
    """Change settings of a channel, at once or *when* a condition on its items (`"item.time >= 3600"`) holds.

    The open windows of a window channel run to their end as they are; with *close_windows* what is in them leaves
    at that point, and the new ones begin there.

    Raises:
        UnknownName: no such channel.
        ConditionError: *when* is no condition on the channel's items.
    """
    channel = mesh.channel(name)
    if when is None:
        now = replace(channel.with_settings(settings), pending=(), close_windows=close_windows)
        return mesh.edited(channels={name: now})
    if not settings and not close_windows:
        raise MeshError(f"{name}: nothing is to change when {when}; name a setting")
    condition = read_condition(when, item_names(name, pushed(mesh, name) or PortType()))
    line = Line(condition.text, settings, close_windows)
    return mesh.edited(channels={name: replace(channel, pending=(*channel.pending, line))})


def restore(mesh: Mesh, name: str, memento: Memento, /) -> Mesh:
    """Give a node another state; the slet is exchanged for one like it, which begins with a copy of *memento*.

    Raises:
        UnknownName: there is no such node.
        MeshError: its slet keeps no memento, or one of another class.
        StoredStateError: a value in it is not of its field's type.
    """
    node = mesh.node(name)
    check_memento(f"{mesh.name}.{name}", node.slet, memento)
    return mesh.edited({name: replace(node, memento=memento.copied())})


def own_channels(mesh: Mesh, node: str, ports: Iterable[str]) -> dict[str, str]:
    """Return the names of new channels for outputs of a node for which none are given, by port."""
    found = {port: node if port == OUT else f"{node}.{port}" for port in ports}
    for port in (port for port, channel in found.items() if channel in mesh.channels):
        cure = f"call the node otherwise, or name a channel for its output {port!r}"
        raise MeshError(f"{mesh.name} has a channel {found[port]!r} already; {cure}")
    return found


def unread(mesh: Mesh, before: Node, spec: SletSpec) -> tuple[str, ...]:
    """Return the connected ports of a node that *spec* lacks: outputs that nothing reads; others are refused."""
    gone = tuple(port for port in before.ports if port not in spec.ports)
    for port in gone:
        channel, cure = before.ports[port], "remove what it feeds, or connect it elsewhere, first"
        readers = ", ".join(f"{node.name}.{end}" for node, end in mesh.consumers(channel))
        ends = f"feeds {readers} through {channel!r}" if readers else ""
        if before.slet.ports[port].direction == "in":
            ends, cure = f"takes from the channel {channel!r}", f"remove {before.name}, and add it again"
        if ends:
            known = ", ".join(spec.ports)
            raise MeshError(
                f"{before.name}.{port} {ends}, and with the new settings {spec.name} has no such port "
                f"(it has {known}); {cure}"
            )
    return gone


def pushed(mesh: Mesh, channel: str) -> PortType | None:
    """The type that the producers of a channel push; `None` if it is not known, or there are several."""
    found = [(node.slet.ports[port].type, f"{node.name}.{port}") for node, port in mesh.producers(channel)]
    if not found or any(one != found[0][0] for one, _ in found):
        return None
    return replace(found[0][0], origin=", ".join(origin for _, origin in found))


def types_into(mesh: Mesh, node: Node) -> dict[str, PortType]:
    """The types of the items that come to the inputs of a node, as far as they are known; `Any` in a family."""
    found = {}
    for port, to in node.inputs().items():
        channel = mesh.channels.get(to)
        known = channel is not None and channel.kind in (*_PASSING, WINDOW)
        if channel is not None and known and (sent := pushed(mesh, to)) is not None:
            whole = channel.kind in _PASSING or node.slet.ports[port].pulled
            found[port] = sent if whole else sent.windowed
        elif node.slet.ports[port].member:
            found[port] = PortType()
    return found


def retyped(mesh: Mesh, before: Mesh, nodes: Iterable[str], channels: Iterable[str]) -> Mesh:
    """The mesh with the ports that its slets have with the types of their inputs, after an edit of these names."""
    found, edits = {*nodes}, [node for one in (before, mesh) for name in nodes if (node := one.nodes.get(name))]
    ends = {*channels, *(to for node in edits for to in node.outputs().values())}
    for _ in range(len(mesh.special) + 1):
        found |= {node.name for channel in ends for node, _ in mesh.consumers(channel)}
        edited: dict[str, Node | None] = {}
        for node in (mesh.nodes[name] for name in sorted(found & mesh.special)):
            types = types_into(mesh, node)
            if _with_origins(types) != _with_origins(node.taken):
                edited[node.name] = replace(node, taken=types)
        if not edited:
            return mesh
        mesh, found = mesh.edited(edited, alone=True), set()
        ends = {to for name in edited for to in mesh.nodes[name].outputs().values()}
    names = ", ".join(edited)
    raise MeshError(f"the types of {names} depend on each other along a cycle, and never settle; declare one")


def _with_origins(types: Mapping[str, PortType]) -> dict[str, tuple[PortType, str]]:
    return {port: (one, one.origin) for port, one in types.items()}
