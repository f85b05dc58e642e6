"""What a mesh says of the next change alone: marks on nodes and channels, forgotten when the change is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from exop.errors import UnknownName
from exop.model.mesh import Mesh, Node

#: The fields of `Node` that are marks: they are no part of what runs, and no topology file has them.
MARKS: Final = ("lose_state", "memento", "rebuild")

#: The same of `ChannelSpec`, and what stands before the name of a channel where marks are sent.
CHANNEL_MARKS: Final = ("close_windows",)
CHANNEL: Final = "channel "

_UNMARKED: Final[dict[str, Any]] = {
    field.name: field.default for field in dataclasses.fields(Node) if field.name in MARKS
}


def marks_of(mesh: Mesh) -> dict[str, dict[str, Any]]:
    """The marks that were made, by node; those of channels under `channel NAME`."""
    found = {
        name: {mark: getattr(node, mark) for mark in MARKS if getattr(node, mark) != _UNMARKED[mark]}
        for name, node in mesh.nodes.items()
    }
    found |= {
        CHANNEL + name: {mark: True for mark in CHANNEL_MARKS if getattr(channel, mark)}
        for name, channel in mesh.channels.items()
    }
    return {name: marks for name, marks in found.items() if marks}


def marked(mesh: Mesh, marks: Mapping[str, Mapping[str, Any]]) -> Mesh:
    """The mesh with these marks on its nodes and channels.

    Raises:
        UnknownName: one of them is not there, or has no such mark.
    """
    nodes, channels = dict(mesh.nodes), dict(mesh.channels)
    for name, given in marks.items():
        known = CHANNEL_MARKS if name.startswith(CHANNEL) else MARKS
        for mark in given:
            if mark not in known:
                raise UnknownName(place=name, kind="mark", name=mark, known=known)
        if name.startswith(CHANNEL):
            channel = mesh.channel(name.removeprefix(CHANNEL))
            channels[channel.name] = dataclasses.replace(channel, **given)
        else:
            nodes[name] = dataclasses.replace(mesh.node(name), **given)
    return dataclasses.replace(mesh, nodes=nodes, channels=channels)


def without_marks(mesh: Mesh) -> Mesh:
    """The mesh as it runs after a change."""
    nodes = {name: dataclasses.replace(node, **_UNMARKED) for name, node in mesh.nodes.items()}
    plain: dict[str, Any] = dict.fromkeys(CHANNEL_MARKS, False)
    channels = {name: dataclasses.replace(channel, **plain) for name, channel in mesh.channels.items()}
    return dataclasses.replace(mesh, nodes=nodes, channels=channels)
