"""Giving the slets of a mesh the names under which any platform can resolve their code."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any

from exop.errors import MeshError
from exop.model.mesh import Mesh, Node
from exop.model.spec import SletSpec


def resolved(mesh: Mesh, slets: Mapping[str, SletSpec], *, durable: bool = False, travels: bool = False) -> Mesh:
    """Replace slets that a plugin has registered by their registered form.

    Args:
        mesh: The mesh as it was built.
        slets: What the platform knows, by identity.
        durable: The mesh is to be restarted by itself: every slet needs a name.
        travels: The mesh is sent to another process: the same.

    Raises:
        MeshError: *durable* or *travels*, and a slet stands in no plugin (a script, a notebook).
    """
    by_factory = {spec.factory: spec for spec in slets.values()}
    nodes = {name: _named(node, by_factory) for name, node in mesh.nodes.items()}
    nameless = next((node for node in nodes.values() if node.slet.plugin is None), None)
    if nameless is not None and (durable or travels):
        raise MeshError(_refusal(nameless, travels=travels))
    return dataclasses.replace(mesh, nodes=nodes)


def _refusal(node: Node, *, travels: bool) -> str:
    what = f"{node.name}: the slet {node.slet.name!r} of {node.slet.factory.__module__} stands in no plugin"
    bundle = f"make a bundle of it: `{bundle_line(node.slet)}`"
    if travels:
        return (
            f"{what}, and code does not travel by itself; {bundle}, which `exop bundle install` brings to the other "
            f"platform; or put it into a package with a @hookimpl register_slets() that the other platform loads "
            f"(`exop serve --load FOLDER`)"
        )
    return (
        f"{what} and no bundle, so a platform with a state directory could not find its code again; {bundle}; or offer "
        f"it by a @hookimpl register_slets() in a package; or run without a state directory"
    )


def bundle_line(slet: SletSpec) -> str:
    """The command that makes a bundle of an embedded slet: of its file, where it stands in one."""
    name = re.sub(r"[^a-z0-9]+", "-", slet.name.lower()).strip("-")
    code = getattr(inspect.unwrap(slet.factory), "__code__", None)
    module = sys.modules.get(slet.factory.__module__)
    file = code.co_filename if code is not None else getattr(module, "__file__", None)
    named = name if name[:1].isalpha() else f"slet-{name}".rstrip("-")
    # A notebook's cell and an interpreter's line say "<stdin>", or the like: there is no file to take it from.
    return f"exop bundle new {named}" + (f" --from {shlex.quote(file)}" if file and file.endswith(".py") else "")


def _named(node: Node, by_factory: Mapping[Callable[..., Any], SletSpec]) -> Node:
    known = by_factory.get(node.slet.factory)
    return node if known is None or node.slet.plugin else dataclasses.replace(node, slet=known)
