"""The difference between two meshes, and the marks of a mesh that are valid for one change only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar

from exop.errors import entry
from exop.model.meshes.entries import missing, touched
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
from exop.model.slets.ports import WINDOW

T = TypeVar("T")


@dataclass(frozen=True)
class Difference:
    """The changes from one mesh to another."""

    added: tuple[Node, ...] = ()
    removed: tuple[Node, ...] = ()
    changed: tuple[tuple[Node, Node], ...] = ()
    channels_added: tuple[ChannelSpec, ...] = ()
    channels_removed: tuple[ChannelSpec, ...] = ()
    channels_changed: tuple[tuple[ChannelSpec, ChannelSpec], ...] = ()

    def __bool__(self) -> bool:
        return any(vars(self).values())

    @property
    def retyped(self) -> tuple[Node, ...]:
        """The nodes that keep their slet, and take items of other types, or of another version of a class."""
        pairs = [(old, new) for old, new in self.changed if old.slet.factory is new.slet.factory]
        return tuple(new for old, new in pairs if old.taken != new.taken)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The new and the changed nodes, as they are afterwards."""
        return *self.added, *(after for _, after in self.changed)

    @property
    def channels(self) -> tuple[ChannelSpec, ...]:
        """The new and the changed channels, as they are afterwards."""
        return *self.channels_added, *(after for _, after in self.channels_changed)

    @property
    def reconnects(self) -> bool:
        """Whether connections or hosts change, and not only settings, or slets for others of equal shape."""
        moved = any(old.host != new.host for old, new in self.channels_changed)
        if moved or self.added or self.removed or self.channels_added or self.channels_removed:
            return True
        return any(
            dict(old.ports) != dict(new.ports) or old.slet.shape != new.slet.shape or old.host != new.host
            for old, new in self.changed
        )


@dataclass(frozen=True)
class SettingChange:
    """A change of a setting of a node, and its reason.

    Attributes:
        why: `set`: it is set explicitly; `default`: it is not, and takes the default of the new slet; `dropped`: the
            new slet has no such setting.
        new: The old slet has no such setting.
    """

    name: str
    before: Any
    after: Any
    why: Literal["set", "default", "dropped"]
    slet: str
    new: bool = False

    def __str__(self) -> str:
        if self.why == "dropped":
            return f"{self.name}: {self.before!r}, dropped: {self.slet} has no such setting"
        default = f"the default of {self.slet}" if self.why == "default" else ""
        if self.new:
            return f"{self.name}: {self.after!r} ({', '.join(filter(None, ('new', default)))})"
        if self.before != self.after:
            return f"{self.name}: {self.before!r} → {self.after!r}{f' ({default})' if default else ''}"
        return f"{self.name}: {self.after!r}, {'follows the default' if default else 'set'} from now on"


def setting_changes(old: Node, new: Node) -> tuple[SettingChange, ...]:
    """The settings that differ between two versions of a node, in value or in being set explicitly."""
    found = []
    for name in [*new.settings, *(name for name in old.settings if name not in new.settings)]:
        before, after = old.settings.get(name), new.settings.get(name)
        if name not in new.settings:
            found.append(SettingChange(name, before, None, "dropped", new.slet.name))
        elif name not in old.settings or before != after or (name in old.given) != (name in new.given):
            why: Literal["set", "default"] = "set" if name in new.given else "default"
            found.append(SettingChange(name, before, after, why, new.slet.name, new=name not in old.settings))
    return tuple(found)


def armed_text(old: Node | ChannelSpec, new: Node | ChannelSpec) -> str:
    """Describe the settings that are newly pending, and those that no longer are."""
    added = [f"pending: {line}" for line in new.pending if line not in old.pending]
    gone = [f"no longer pending: {line}" for line in old.pending if line not in new.pending]
    return "; ".join([*added, *gone]) or "pending in another order"


def channel_text(old: ChannelSpec, new: ChannelSpec) -> str:
    """Describe how a channel changes."""
    pairs = [(name, old.settings.get(name), new.settings.get(name)) for name in {**new.settings, **old.settings}]
    parts = [f"{name}: {before!r} → {after!r}" for name, before, after in pairs if before != after]
    if new.kind == WINDOW and (parts or new.close_windows):
        parts.append("the open windows are closed" if new.close_windows else "the open windows run to their end")
    parts += [armed_text(old, new)] * (old.pending != new.pending)
    if dict(old.connector) != dict(new.connector):
        parts.append(f"connectors: {dict(old.connector)} → {dict(new.connector)}")
    texts = [f"move the channel {new.name}: {old.host or 'home'} → {new.host or 'home'}"] * (old.host != new.host)
    texts += [f"configure the channel {new.name}: {'; '.join(parts)}"] * bool(parts)
    return "; ".join(texts) or f"configure the channel {new.name}: the type of its items"


def difference(before: Mesh | None, after: Mesh | None) -> Difference:
    """Return the changes from *before* to *after*; `None` is an application that does not exist."""
    old_nodes, new_nodes = (mesh.nodes if mesh else {} for mesh in (before, after))
    old_channels, new_channels = (mesh.channels if mesh else {} for mesh in (before, after))
    return Difference(*_difference(old_nodes, new_nodes), *_difference(old_channels, new_channels))


def _difference(
    before: Mapping[str, T], after: Mapping[str, T]
) -> tuple[tuple[T, ...], tuple[T, ...], tuple[tuple[T, T], ...]]:
    """The added, removed and changed entries; the latter sorted by name, so equal in both directions."""
    names = touched(before, after)
    added = [name for name in names if name not in before]
    common = sorted(name for name in names if name in before)
    changed = tuple((before[name], after[name]) for name in common if before[name] != after[name])
    return tuple(after[name] for name in added), tuple(before[name] for name in missing(before, after)), changed


#: The fields of nodes and of channels that are marks, with the values of unmarked ones; topology files do not contain
#: them.
MARKS: Final[Mapping[type, Mapping[str, Any]]] = {
    Node: {"lose_state": False, "memento": None, "rebuild": None},
    ChannelSpec: {"close_windows": False},
}
#: The prefix of the name of a channel in the marks of a mesh.
_CHANNEL: Final = "channel "


def marks_of(mesh: Mesh) -> dict[str, dict[str, Any]]:
    """The marks of a mesh by node; those of channels under `channel NAME`."""
    places: dict[str, Node | ChannelSpec] = {_CHANNEL + name: channel for name, channel in mesh.channels.items()}
    return {name: found for name, there in {**mesh.nodes, **places}.items() if (found := marks_on(there))}


def marks_on(there: Node | ChannelSpec) -> dict[str, Any]:
    """The marks of a node or channel."""
    return {mark: found for mark, plain in MARKS[type(there)].items() if (found := getattr(there, mark)) != plain}


def marked(mesh: Mesh, name: str, marks: Mapping[str, Any]) -> Mesh:
    """The mesh with these marks on a node, or on a channel, by its name in `marks_of`."""
    channel = name.removeprefix(_CHANNEL)
    there: Node | ChannelSpec = mesh.node(name) if channel == name else mesh.channel(channel)
    for mark in marks:
        entry(name, "mark", MARKS[type(there)], mark)
    after = replace(there, **marks)
    return mesh.edited({name: after}) if isinstance(after, Node) else mesh.edited(channels={channel: after})


def without_marks(mesh: Mesh, changes: Difference | None = None) -> Mesh:
    """The mesh without any marks, as it runs after a change; with *changes*, only what they contain can have marks."""
    changes = difference(None, mesh) if changes is None else changes
    plain = {one.name: replace(one, **MARKS[Node]) for one in changes.nodes if marks_on(one)}
    plain_channels = {one.name: replace(one, **MARKS[ChannelSpec]) for one in changes.channels if marks_on(one)}
    return mesh.edited(plain, plain_channels) if plain or plain_channels else mesh
