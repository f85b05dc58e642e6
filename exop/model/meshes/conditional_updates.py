"""Conditional updates: settings that take effect at the first item for which a condition holds.

A condition is an expression on the items of one port. The idea: the control lines of Borealis.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from exop.errors import MeshError, SettingError, UnknownName
from exop.model.meshes.nodes import NOTHING, ChannelSpec, ConditionalUpdate, Node
from exop.model.slets.ports import PortType
from exop.model.slets.spec import SletSpec

if TYPE_CHECKING:
    from exop.model.expressions.expression import Expression
    from exop.model.expressions.reader import Names

Place = TypeVar("Place", Node, ChannelSpec)

#: The name of an item in a condition on a channel.
ITEM: Final = "item"
#: The name of the time of a punctuation in a condition.
PUNCTUATION: Final = "punctuation"
_TIME: Final = {PUNCTUATION: PortType()}
#: The kinds of types that do not describe an item.
_OPEN: Final = ("any", "open", "variable")


def node_names(place: str, spec: SletSpec, types: Mapping[str, PortType] = NOTHING) -> Names:
    """Return the names allowed in a condition on a node: the ports into which items are pushed, and the settings.

    A port without a declared type has that of *types*, the types of the items that come.
    """
    # Imported lazily, as below: most meshes have no conditions.
    from exop.model.expressions.reader import Names

    pushed = [port for port in spec.inputs if not port.pulled]
    named = {port.name: port.type for port in pushed if not port.member}
    if spec.own_driver or not named:
        why = "pulls its items" if spec.inputs else "has no input port"
        why = "drives itself" if spec.own_driver else "takes its items by a family of ports" if pushed else why
        cure = "configure it without `when`, or set a condition on a slet that items are pushed into"
        raise MeshError(f"{place}: {spec.name} {why}, so there is no item at which its settings could change; {cure}")
    known = {name: types.get(name, one) if one.items.kind in _OPEN else one for name, one in named.items()}
    return Names(place, known | (_TIME if len(pushed) == 1 else {}), tuple(spec.settings))


def item_names(channel: str, carried: PortType) -> Names:
    """Return the names allowed in a condition on a channel: the channel itself or `item`, and `punctuation`."""
    from exop.model.expressions.reader import Names

    names = [ITEM, channel] if channel.isidentifier() else [ITEM]
    return Names(channel, dict.fromkeys(names, carried) | _TIME)


def next_condition(place: Node | ChannelSpec, carried: PortType) -> Expression:
    """Return the condition of the first pending update of a node, or of a channel, the items of which are *carried*."""
    names = node_names(place.name, place.slet) if isinstance(place, Node) else item_names(place.name, carried)
    return _condition(place.pending[0].when, names)


def _condition(when: str, names: Names) -> Expression:
    from exop.model.expressions.expression import read_condition

    return read_condition(when, names)


def channel_condition(channel: ChannelSpec, when: str, carried: PortType) -> str:
    """Return the text of a checked condition on a channel, the items of which are *carried*."""
    return _condition(when, item_names(channel.name, carried)).text


def conditional_update(
    node: Node, when: str, settings: Mapping[str, Any], types: Mapping[str, PortType] = NOTHING
) -> ConditionalUpdate:
    """Return a checked update for a node; *types* are those of the items that come."""
    if not settings:
        raise MeshError(f"{node.name}: nothing is to change when {when}; name a setting, {node.name}(…, NAME=VALUE)")
    condition = _condition(when, node_names(node.name, node.slet, types))
    if (after := node.with_settings(settings)).slet.ports.keys() != node.slet.ports.keys():
        raise MeshError(
            f"{node.name}: with these settings {node.slet.name} has other ports, which cannot come or go at a point in "
            f"the stream; configure it without `when`"
        )
    return ConditionalUpdate(condition.text, {name: after.settings[name] for name in settings})


def inherited(node: Node, spec: SletSpec) -> tuple[ConditionalUpdate, ...]:
    """Return the pending updates of a node for a successor *spec* that has the ports, fields and settings they name."""
    kept: list[ConditionalUpdate] = []
    for update in node.pending:
        with suppress(MeshError, UnknownName, SettingError):
            known = {name: value for name, value in node.set_settings().items() if name in spec.settings}
            successor = replace(node, slet=spec, settings=spec.configured(node.name, known))
            kept.append(conditional_update(successor, update.when, update.settings))
    return tuple(kept)


def without(place: Place, update: ConditionalUpdate) -> Place:
    """Return the node or channel without the first of its pending updates that equals *update*."""
    at = place.pending.index(update)
    return replace(place, pending=place.pending[:at] + place.pending[at + 1 :])


def applied(place: Place, update: ConditionalUpdate) -> Place:
    """Return the node or channel after a pending update has taken effect: its settings count as set."""
    return without(place, update).with_settings(update.settings)


def _settings_read(place: Node | ChannelSpec, update: ConditionalUpdate) -> set[str]:
    return {*next_condition(replace(place, pending=(update,)), PortType()).settings}


def still_pending(stored: Place, before: Place, after: Place) -> Place:
    """Return *after*, an edited *before*, with those updates pending that have taken effect in *before*.

    *stored* has these pending. One holds as in *after* if *after* lacks what it needs, or if the edit has changed a
    setting that it sets or reads, or that another such update sets.
    """
    taken: list[ConditionalUpdate] = [*stored.pending[: len(stored.pending) - len(before.pending)]]
    known = {*before.settings, *after.settings}
    edited = {name for name in known if before.settings.get(name) != after.settings.get(name)}
    if isinstance(after, Node):
        unfit = (one for one in taken if not inherited(replace(after, pending=(one,)), after.slet))
        edited |= {name for one in unfit for name in one.settings}
    named = {one.when: _settings_read(stored, one) for one in taken}
    while gone := [one for one in taken if edited & (one.settings.keys() | named[one.when])]:
        edited |= {name for one in gone for name in one.settings}
        taken = [one for one in taken if one not in gone]
    back = {name for one in taken for name in one.settings}
    settings = {name: value for name, value in after.settings.items() if name not in back}
    settings |= {name: stored.settings[name] for name in back & stored.settings.keys()}
    given: dict[str, Any] = {"given": (after.given - back) | (stored.given & back)} if isinstance(after, Node) else {}
    return replace(after, settings=settings, pending=(*taken, *after.pending), **given)
