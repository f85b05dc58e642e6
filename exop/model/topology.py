"""A mesh as a TOML topology file, and back."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from exop.errors import MeshError, UnknownName
from exop.model.mesh import ChannelSpec, Mesh, Node
from exop.model.spec import SletSpec


def to_toml(mesh: Mesh) -> str:
    """Write a mesh: one table per channel and per node; settings that stand at their default are left out.

    Raises:
        MeshError: a setting that TOML cannot hold.
    """
    # tomlkit is needed by writers alone.
    import tomlkit

    document = tomlkit.document()
    document["application"] = {"name": mesh.name}
    channels = tomlkit.table(is_super_table=True)
    for channel in mesh.channels.values():
        channels[channel.name] = {"kind": channel.kind, **_plain(mesh, channel.name, channel.settings)}
    document["channels"] = channels
    nodes = tomlkit.table(is_super_table=True)
    for node in mesh.nodes.values():
        nodes[node.name] = _node_table(mesh, node)
    document["nodes"] = nodes
    return tomlkit.dumps(document)


def from_toml(text: str, catalog: Mapping[str, SletSpec]) -> Mesh:
    """Read a topology file; *catalog* maps the identity of each slet (`plugin:name`) to its specification.

    Raises:
        MeshError: the text is no TOML, or lacks a table.
        UnknownName, SettingError: as when the mesh is built in code.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise MeshError(f"the topology is no TOML: {problem}") from None
    name = document.get("application", {}).get("name")
    if not isinstance(name, str):
        raise MeshError('the topology has no name; begin it with\n[application]\nname = "…"')
    mesh = Mesh(name)
    channels = []
    for key, table in _tables(document, "channels").items():
        settings = {option: value for option, value in table.items() if option != "kind"}
        channels.append(ChannelSpec(key, table.get("kind", "direct"), settings))
    named = {channel.name for channel in channels}
    for key, table in _tables(document, "nodes").items():
        node = _node(key, table, catalog)
        extra = [ChannelSpec(channel) for channel in node.outputs().values() if channel not in named]
        channels += extra
        named.update(channel.name for channel in extra)
        mesh = Mesh(name, {**mesh.nodes, key: node})
    known = {channel.name: channel for channel in channels}
    for node in mesh.nodes.values():
        for port, channel in node.ports.items():
            if channel not in known:
                raise UnknownName(place=f"{node.name}.{port}: the topology", kind="channel", name=channel, known=known)
    return Mesh(name, mesh.nodes, known)


def _tables(document: Mapping[str, Any], section: str) -> dict[str, dict[str, Any]]:
    found = document.get(section, {})
    if not isinstance(found, dict) or not all(isinstance(table, dict) for table in found.values()):
        raise MeshError(f"[{section}] holds one table per name: [{section}.NAME]")
    return found


def _node(name: str, table: Mapping[str, Any], catalog: Mapping[str, SletSpec]) -> Node:
    for key in table:
        if key not in ("slet", "settings", "ports", "host", "suspended", "on_error"):
            known = ["slet", "settings", "ports", "host", "suspended", "on_error"]
            raise UnknownName(place=f"[nodes.{name}]", kind="key", name=key, known=known)
    identity = table.get("slet")
    if identity not in catalog:
        raise UnknownName(place=f"[nodes.{name}]: the platform", kind="slet", name=identity, known=catalog)
    spec = catalog[str(identity)]
    return Node(
        name,
        spec,
        spec.configured(name, table.get("settings", {})),
        table.get("ports", {}),
        table.get("host"),
        bool(table.get("suspended", False)),
        table.get("on_error"),
    )


def _node_table(mesh: Mesh, node: Node) -> dict[str, Any]:
    given = {
        key: value
        for key, value in node.settings.items()
        if node.slet.settings[key].required or value != node.slet.settings[key].default
    }
    table: dict[str, Any] = {"slet": node.slet.identity}
    if node.host:
        table["host"] = node.host
    if node.suspended:
        table["suspended"] = True
    if node.on_error:
        table["on_error"] = node.on_error
    table["ports"] = dict(node.ports)
    if given:
        table["settings"] = _plain(mesh, node.name, given)
    return table


def _plain(mesh: Mesh, place: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as TOML has them; `None` is what is not written."""
    return {key: _value(mesh, f"{place}.{key}", value) for key, value in settings.items() if value is not None}


def _value(mesh: Mesh, place: str, value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_value(mesh, place, one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _value(mesh, place, one) for key, one in value.items() if one is not None}
    raise MeshError(
        f"{mesh.name}: the setting {place} is a {type(value).__name__}, which a topology file cannot hold; "
        f"use numbers, text, lists and tables for settings that are stored"
    )
