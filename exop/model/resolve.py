"""Making a mesh independent of the process that built it: names by which any platform finds the code, full paths."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from exop.errors import MeshError
from exop.model.entries import touched
from exop.model.lines import Line
from exop.model.mesh import Mesh, Node
from exop.model.spec import SletSpec


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
    nodes = {name: _named(mesh.nodes[name], by_factory) for name in names}
    nameless = next((node for node in nodes.values() if node.slet.plugin is None), None)
    if nameless is not None and (durable or travels):
        raise MeshError(_refusal(nameless, travels=travels))
    mesh = mesh.edited({name: node for name, node in nodes.items() if node is not mesh.nodes[name]})
    return with_full_paths(mesh, Path.cwd(), running) if durable else mesh


def with_full_paths(mesh: Mesh, folder: Path, running: Mesh | None = None) -> Mesh:
    """Make relative paths in settings of nodes and channels absolute: they are meant from *folder*.

    Defaults stay, and so do values that *running*, the mesh that is being changed, has already.
    """
    old_nodes, old_channels = (running.nodes, running.channels) if running is not None else ({}, {})

    def full(settings: Mapping[str, Any], keep: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value if name in keep and keep[name] == value else _full(value, folder)
            for name, value in settings.items()
        }

    nodes, channels = {}, {}
    for name in touched(old_nodes, mesh.nodes):
        node, old = mesh.nodes[name], old_nodes.get(name)
        settings = {**node.settings, **full(node.set_settings(), old.settings if old is not None else {})}
        pending = _full_lines(node.pending, folder, old.pending if old is not None else ())
        nodes[name] = dataclasses.replace(node, settings=settings, pending=pending)
    for name in touched(old_channels, mesh.channels):
        channel, before = mesh.channels[name], old_channels.get(name)
        settings = full(channel.settings, before.settings if before is not None else {})
        pending = _full_lines(channel.pending, folder, before.pending if before is not None else ())
        channels[name] = dataclasses.replace(channel, settings=settings, pending=pending)
    return mesh.edited(nodes, channels)


def _full_lines(lines: tuple[Line, ...], folder: Path, keep: tuple[Line, ...]) -> tuple[Line, ...]:
    return tuple(
        line if line in keep else dataclasses.replace(line, settings=_full(dict(line.settings), folder))
        for line in lines
    )


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


def _named(node: Node, by_factory: Mapping[Callable[..., Any], SletSpec]) -> Node:
    known = by_factory.get(node.slet.factory)
    return node if known is None or node.slet.plugin else dataclasses.replace(node, slet=known)
