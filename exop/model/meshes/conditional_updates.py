"""Changes of settings that are pending until a point in the stream (the control lines of Borealis)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from exop.errors import MeshError, SettingError, UnknownName
from exop.model.meshes.condition import Names, read_condition
from exop.model.meshes.nodes import ChannelSpec, Line, Node
from exop.model.slets.ports import PortType
from exop.model.slets.spec import SletSpec

Place = TypeVar("Place", Node, ChannelSpec)

#: How a condition on a channel calls what comes.
ITEM = "item"
#: The kinds of types that say nothing of an item.
_OPEN = ("any", "open", "variable")


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
