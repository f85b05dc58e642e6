"""Marks on nodes and channels that hold for the next change alone, and are dropped when it is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from exop.errors import UnknownName
from exop.model.mesh import ChannelSpec, Mesh, Node

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
    nodes: dict[str, Node | None] = {}
    channels: dict[str, ChannelSpec | None] = {}
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
    return mesh.edited(nodes, channels)


def without_marks(mesh: Mesh) -> Mesh:
    """The mesh as it runs after a change."""
    return unmarked(mesh, mesh.nodes, mesh.channels)


def unmarked(mesh: Mesh, nodes: Iterable[str], channels: Iterable[str]) -> Mesh:
    """The mesh without the marks of these nodes and channels."""
    plain: dict[str, Any] = dict.fromkeys(CHANNEL_MARKS, False)
    return mesh.edited(
        {name: dataclasses.replace(mesh.nodes[name], **_UNMARKED) for name in nodes},
        {name: dataclasses.replace(mesh.channels[name], **plain) for name in channels},
    )
