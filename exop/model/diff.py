"""The difference between two meshes, as a value: what a change consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from exop.model.mesh import ChannelSpec, Mesh, Node

T = TypeVar("T")


@dataclass(frozen=True)
class Difference:
    """What leads from one mesh to another. `flip()` leads back: a rollback is the same change on the flipped value."""

    added: tuple[Node, ...] = ()
    removed: tuple[Node, ...] = ()
    changed: tuple[tuple[Node, Node], ...] = ()
    channels_added: tuple[ChannelSpec, ...] = ()
    channels_removed: tuple[ChannelSpec, ...] = ()
    channels_changed: tuple[tuple[ChannelSpec, ChannelSpec], ...] = ()

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def flip(self) -> Difference:
        """The way back."""
        return Difference(
            self.removed,
            self.added,
            tuple((after, before) for before, after in self.changed),
            self.channels_removed,
            self.channels_added,
            tuple((after, before) for before, after in self.channels_changed),
        )


def difference(before: Mesh | None, after: Mesh | None) -> Difference:
    """What leads from *before* to *after*; `None` stands for an application that is not there."""
    old_nodes, new_nodes = (dict(mesh.nodes) if mesh else {} for mesh in (before, after))
    old_channels, new_channels = (dict(mesh.channels) if mesh else {} for mesh in (before, after))
    return Difference(
        tuple(node for name, node in new_nodes.items() if name not in old_nodes),
        tuple(node for name, node in old_nodes.items() if name not in new_nodes),
        _changed(old_nodes, new_nodes),
        tuple(channel for name, channel in new_channels.items() if name not in old_channels),
        tuple(channel for name, channel in old_channels.items() if name not in new_channels),
        _changed(old_channels, new_channels),
    )


def _changed(before: Mapping[str, T], after: Mapping[str, T]) -> tuple[tuple[T, T], ...]:
    """What is there before and after but differs, by name: the same order in both directions."""
    return tuple(
        (before[name], after[name]) for name in sorted(before.keys() & after.keys()) if before[name] != after[name]
    )
