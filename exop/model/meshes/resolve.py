"""Making a mesh independent of the process that built it: registered names of slets, absolute paths."""

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
    """Replace slets by their registered form.

    Args:
        mesh: The mesh as it was built.
        slets: The slets that the platform knows, by identity.
        durable: The mesh will be restarted, perhaps from another working directory: every slet needs a registered name,
            and paths are made absolute.
        travels: The mesh is sent to another process; requires the same.
        running: The running mesh: entries that both share are resolved already.
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
    """Make relative paths in settings of nodes and channels absolute, from *folder*.

    Defaults, and values equal to those in the *running* mesh, are unchanged.
    """
    nodes = _each(folder, running.nodes if running is not None else {}, mesh.nodes)
    channels = _each(folder, running.channels if running is not None else {}, mesh.channels)
    return mesh.edited(nodes, channels)


def _each(folder: Path, before: Mapping[str, T], after: Mapping[str, T]) -> dict[str, T]:
    """The nodes or channels that differ, with absolute paths in new values."""
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
    """A value with absolute paths."""
    if isinstance(value, Path):
        return folder / value
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_full(one, folder) for one in value)
    if type(value) is dict:
        return {key: _full(one, folder) for key, one in value.items()}
    return value


def _refusal(node: Node, *, travels: bool) -> str:
    what = f"{node.name}: the slet {node.slet.name!r} of {node.slet.factory.__module__} is in no plugin"
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
    """The command that creates a bundle of an embedded slet, from its file if there is one."""
    name = re.sub(r"[^a-z0-9]+", "-", slet.name.lower()).strip("-")
    named = name if name[:1].isalpha() else f"slet-{name}".rstrip("-")
    module = sys.modules.get(slet.factory.__module__)
    code = getattr(inspect.unwrap(slet.factory), "__code__", None)
    file = code.co_filename if code is not None else getattr(module, "__file__", None)
    # The code of a notebook or an interpreter has no file, but a name such as "<stdin>".
    return f"exop bundle new {named}" + (f" --from {shlex.quote(file)}" if file and file.endswith(".py") else "")
