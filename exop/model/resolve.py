"""Giving the slets of a mesh the names under which any platform can resolve their code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from exop.errors import MeshError
from exop.model.mesh import Mesh, Node
from exop.model.spec import SletSpec


def resolved(mesh: Mesh, slets: Mapping[str, SletSpec], *, durable: bool) -> Mesh:
    """Replace slets that a plugin has registered by their registered form.

    Args:
        mesh: The mesh as it was built.
        slets: What the platform knows, by identity.
        durable: The mesh is to be restarted by itself: every slet needs a name.

    Raises:
        MeshError: *durable*, and a slet stands in no plugin (a script, a notebook).
    """
    by_factory = {spec.factory: spec for spec in slets.values()}
    nodes = {name: _named(node, by_factory) for name, node in mesh.nodes.items()}
    if durable:
        for node in nodes.values():
            if node.slet.plugin is None:
                raise MeshError(
                    f"{node.name}: the slet {node.slet.name!r} of {node.slet.factory.__module__} stands in no plugin, "
                    f"so a platform with a state directory could not find its code again; offer it by a @hookimpl "
                    f"register_slets() in a package and run that (`exop run FOLDER`), or run without a state directory"
                )
    return dataclasses.replace(mesh, nodes=nodes)


def _named(node: Node, by_factory: Mapping[Callable[..., Any], SletSpec]) -> Node:
    known = by_factory.get(node.slet.factory)
    return node if known is None or node.slet.plugin else dataclasses.replace(node, slet=known)
