"""The difference between two meshes, as a value: what a change consists of."""

from __future__ import annotations

from dataclasses import dataclass

from exop.model.mesh import ChannelSpec, Mesh, Node


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
        tuple((old_nodes[n], node) for n, node in new_nodes.items() if n in old_nodes and old_nodes[n] != node),
        tuple(channel for name, channel in new_channels.items() if name not in old_channels),
        tuple(channel for name, channel in old_channels.items() if name not in new_channels),
        tuple((old_channels[n], c) for n, c in new_channels.items() if n in old_channels and old_channels[n] != c),
    )
