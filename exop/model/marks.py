"""What a mesh says of the next change alone: marks on its nodes, which are forgotten when the change is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from exop.model.mesh import Mesh, Node

#: The fields of `Node` that are marks: they are no part of what runs, and no topology file has them.
MARKS: Final = ("lose_state", "memento")

_UNMARKED: Final[dict[str, Any]] = {
    field.name: field.default for field in dataclasses.fields(Node) if field.name in MARKS
}


def marks_of(mesh: Mesh) -> dict[str, dict[str, Any]]:
    """The marks that were made, by node."""
    found = {
        name: {mark: getattr(node, mark) for mark in MARKS if getattr(node, mark) != _UNMARKED[mark]}
        for name, node in mesh.nodes.items()
    }
    return {name: marks for name, marks in found.items() if marks}


def marked(mesh: Mesh, marks: Mapping[str, Mapping[str, Any]]) -> Mesh:
    """The mesh with these marks on its nodes.

    Raises:
        UnknownName: one of the nodes is not there.
    """
    nodes = {name: dataclasses.replace(mesh.node(name), **given) for name, given in marks.items()}
    return dataclasses.replace(mesh, nodes={**mesh.nodes, **nodes})


def without_marks(mesh: Mesh) -> Mesh:
    """The mesh as it runs after a change."""
    nodes = {name: dataclasses.replace(node, **_UNMARKED) for name, node in mesh.nodes.items()}
    return dataclasses.replace(mesh, nodes=nodes)
