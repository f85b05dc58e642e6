"""Making a mesh independent of the process that built it: names by which any platform finds the code, full paths."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from exop.errors import MeshError
from exop.model.meshes.entries import touched
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
from exop.model.slets.spec import SletSpec

T = TypeVar("T", Node, ChannelSpec)


def resolved(
    mesh: Mesh,
    slets: Mapping[str, SletSpec],
    *,
    durable: bool = False,
    travels: bool = False,
    running: Mesh | None = None,
) -> Mesh:
    """Replace slets that a plugin has registered by their registered form.

    Args:
        mesh: The mesh as it was built.
        slets: What the platform knows, by identity.
        durable: The mesh is to be restarted by itself, perhaps from another working directory: every slet needs a
            name, and paths are made absolute.
        travels: The mesh is sent to another process: the same.
        running: The mesh that runs: what it shares with the other one is independent already.

    Raises:
        MeshError: *durable* or *travels*, and a slet stands in no plugin (a script, a notebook).
    """
    by_factory = {spec.factory: spec for spec in slets.values()}
    names = mesh.nodes if running is None else touched(running.nodes, mesh.nodes)
    nodes: dict[str, Node | None] = {}
    for name in names:
        node = mesh.nodes[name]
        known = None if node.slet.plugin else by_factory.get(node.slet.factory)
        if known is not None:
            node = nodes[name] = dataclasses.replace(node, slet=known)
        if node.slet.plugin is None and (durable or travels):
            raise MeshError(_refusal(node, travels=travels))
    mesh = mesh.edited(nodes)
    return with_full_paths(mesh, Path.cwd(), running) if durable else mesh


def with_full_paths(mesh: Mesh, folder: Path, running: Mesh | None = None) -> Mesh:
    """Make relative paths in settings of nodes and channels absolute: they are meant from *folder*.

    Defaults stay, and so do values that *running*, the mesh that is being changed, has already.
    """
    nodes = _each(folder, running.nodes if running is not None else {}, mesh.nodes)
    channels = _each(folder, running.channels if running is not None else {}, mesh.channels)
    return mesh.edited(nodes, channels)


def _each(folder: Path, before: Mapping[str, T], after: Mapping[str, T]) -> dict[str, T]:
    """The nodes or channels that differ, with full paths where they do not have the values of before."""
    found = {}
    for name in touched(before, after):
        there, old = after[name], before.get(name)
        keep, lines = ({}, ()) if old is None else (old.settings, old.pending)
        given = there.set_settings() if isinstance(there, Node) else there.settings
        full = {name: _full(value, folder) for name, value in given.items() if name not in keep or keep[name] != value}
        pending = tuple(
            line if line in lines else dataclasses.replace(line, settings=_full(dict(line.settings), folder))
            for line in there.pending
        )
        found[name] = dataclasses.replace(there, settings={**there.settings, **full}, pending=pending)
    return found


def _full(value: Any, folder: Path) -> Any:
    """A value with the relative paths in it made absolute."""
    if isinstance(value, Path):
        return folder / value
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_full(one, folder) for one in value)
    if type(value) is dict:
        return {key: _full(one, folder) for key, one in value.items()}
    return value


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
