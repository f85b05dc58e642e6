"""A mesh as a TOML topology file, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from exop.errors import MeshError, entry
from exop.model.meshes.nodes import DIRECT, ChannelSpec, Graph, Node
from exop.model.slets.relay import RELAY
from exop.model.slets.spec import SletSpec
from exop.model.types.assignable import value_mismatch
from exop.model.types.conversion import to_toml_value
from exop.model.values.depth import read_toml
from exop.safe_repr import json_text

#: A call of a method of a mesh: the method, the name of a node or channel, and the keyword arguments.
Edit: TypeAlias = tuple[str, str, dict[str, Any]]
#: The fields of a node with keys of the same name.
_CARE: Final[dict[str, Any]] = {
    "host": str,
    "group": str,
    "suspended": bool,
    "on_error": str,
    "timeout": float,
    "dead_letters": int,
}
_PLACE: Final[dict[str, Any]] = {"unset": list[str], "pending": list[dict[str, Any]]}
_NODE: Final[dict[str, Any]] = {"slet": str, **_CARE, "ports": dict[str, str], "settings": dict[str, Any], **_PLACE}
_CHANNEL: Final[dict[str, Any]] = {"kind": str, "host": str, "type": str, "connector": dict[str, Any], **_PLACE}
_UPDATE: Final[dict[str, Any]] = {"when": str, "close_windows": bool, "settings": dict[str, Any], "unset": list[str]}


def sections(mesh: Graph) -> Iterator[tuple[str, str]]:
    """The tables of the topology file of a mesh, one per channel and per node, in order: kind and name of each."""
    yield "application", ""
    yield from (("channels", name) for name in mesh.channels)
    yield from (("nodes", name) for name in mesh.nodes)
    absent = (node.slet.identity for node in mesh.nodes.values() if not node.slet.is_here)
    yield from (("slets", identity) for identity in dict.fromkeys(absent))


def section_text(mesh: Graph, kind: str, name: str) -> str:
    """Write one of these tables, with the explicitly set settings."""
    # tomlkit is needed by writers alone.
    import tomlkit

    document = tomlkit.document()
    if kind == "slets":
        from exop.model.slets.described import describe

        # One line of JSON: TOML has no null.
        spec = next(node.slet for node in mesh.nodes.values() if node.slet.identity == name)
        document["slets"] = {name: {"described": json_text(describe(spec), indent=None)}}
    elif kind == "application":
        document["application"] = {"name": mesh.name} | ({} if mesh.durable is None else {"durable": mesh.durable})
    else:
        table = _node_table(mesh, mesh.nodes[name]) if kind == "nodes" else _channel_table(mesh, mesh.channels[name])
        document[kind] = tomlkit.table(is_super_table=True)
        document[kind][name] = table
    return tomlkit.dumps(document)


def name_in(text: str) -> str:
    """Return the name of the application in a topology file that may have mistakes; empty if it cannot be read."""
    try:
        return str(read_toml(text).get("application", {}).get("name", ""))
    except (ValueError, AttributeError):
        return ""


def read(text: str, catalog: Mapping[str, SletSpec]) -> tuple[dict[str, Any], list[Node], list[Edit]]:
    """Read a topology file: the fields of a mesh, its nodes, and its pending updates; see `Mesh.from_toml`."""
    try:
        document = read_toml(text)
    except ValueError as problem:
        raise MeshError(f"the topology is no TOML: {problem}") from None
    _check("the topology", document, dict.fromkeys(("application", "channels", "nodes", "slets"), Any), "table")
    application = _table("application", document.get("application", {}))
    _check("[application]", application, dict.fromkeys(("name", "durable"), Any))
    if not isinstance(name := application.get("name"), str):
        raise MeshError('the topology has no name; begin it with\n[application]\nname = "…"')
    declared = {key: _channel(key, table) for key, table in _tables(document, "channels")}
    catalog = {**catalog, **_described(document, catalog), RELAY.identity: RELAY}
    nodes = [_node(key, table, catalog) for key, table in _tables(document, "nodes")]
    # Outputs bring a direct channel of their own where none is declared, whatever the order of the tables.
    made = {to: ChannelSpec(to) for node in nodes for to in node.outputs().values() if to not in declared}
    fields = {"name": name, "channels": declared | made, "durable": application.get("durable")}
    return fields, nodes, [*_updates(document)]


def _described(document: Mapping[str, Any], catalog: Mapping[str, SletSpec]) -> dict[str, SletSpec]:
    """Read the descriptions in the file of slets that are not in the catalog."""
    found = {}
    for name, table in _tables(document, "slets"):
        _check(f"[slets.{name!r}]", {"described": None, **table}, {"described": str})
        if name not in catalog:
            # Imported lazily: most files name slets that are here.
            from exop.model.slets.described import absent

            found[name] = absent(table["described"].encode())
    return found


def _channel(name: str, table: Mapping[str, Any]) -> ChannelSpec:
    _check(f"[channels.{name}]", {key: value for key, value in table.items() if key in _CHANNEL}, _CHANNEL)
    settings = {option: value for option, value in table.items() if option not in _CHANNEL}
    given = {key: table[key] for key in ("host", "connector") if key in table}
    if "type" in table:
        # Imported lazily: only fragments have channels with a type.
        from exop.model.slets.described import read_type

        given["type"] = read_type(table["type"])
    return ChannelSpec(name, table.get("kind", DIRECT), settings | dict.fromkeys(table.get("unset", ())), **given)


def _node(name: str, table: Mapping[str, Any], catalog: Mapping[str, SletSpec]) -> Node:
    place, ports = f"[nodes.{name}]", table.get("ports", {})
    for port, channel in [*ports.items()] if isinstance(ports, dict) else ():
        if isinstance(channel, dict):  # to.cars = "…"
            ports.pop(port)
            ports |= {f"{port}.{member}": to for member, to in channel.items()}
    _check(place, table, _NODE)
    if (identity := table.get("slet")) is None:
        raise MeshError(f'{place} names no slet; write slet = "plugin:name"')
    spec = entry(f"{place}: the platform", "slet", catalog, identity)
    given = {**table.get("settings", {}), **dict.fromkeys(table.get("unset", ()))}
    care = {key: table[key] for key in _CARE if key in table}
    return Node(name, spec, spec.configured(name, given), ports, given=frozenset(given), **care)


def _updates(document: Mapping[str, Any]) -> Iterator[Edit]:
    """Yield the calls that make the pending conditional updates."""
    for section, configure in (("nodes", "configure"), ("channels", "configure_channel")):
        for name, table in _tables(document, section):
            for update in table.get("pending", ()):
                _check(f"[{section}.{name}]: pending", update, _UPDATE)
                if "when" not in update:
                    raise MeshError(f'[{section}.{name}]: a pending update lacks its condition; write when = "…"')
                settings = {**update.get("settings", {}), **dict.fromkeys(update.get("unset", ()))}
                close = {"close_windows": True} if update.get("close_windows") else {}
                yield configure, name, {"when": update["when"], **close, **settings}


def _tables(document: Mapping[str, Any], section: str) -> list[tuple[str, dict[str, Any]]]:
    found = _table(section, document.get(section, {}))
    return [(name, _table(f"{section}.{name}", table)) for name, table in found.items()]


def _table(section: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        kind = section.partition(".")[0]
        cure = f"write [{section}]" if kind == "application" else f"[{kind}] holds one table per name"
        raise MeshError(f"{section} is no table; {cure}")
    return found


def _check(place: str, table: Mapping[str, Any], types: Mapping[str, Any], kind: str = "key") -> None:
    """Refuse unknown keys, and values of the wrong type."""
    for key, value in table.items():
        if problem := value_mismatch(value, entry(place, kind, types, key), key):
            raise MeshError(f"{place}: {problem}")


def _channel_table(mesh: Graph, channel: ChannelSpec) -> dict[str, Any]:
    settings = _settings(mesh, channel.name, channel.settings)
    place: dict[str, Any] = {} if channel.host is None else {"host": channel.host}
    place |= {"connector": dict(channel.connector)} if channel.connector else {}
    if channel.type is not None:
        from exop.model.slets.described import type_text

        place["type"] = type_text(channel.type)
    return {"kind": channel.kind, **settings.pop("settings", {}), **settings, **place, **_pending(mesh, channel)}


def _node_table(mesh: Graph, node: Node) -> dict[str, Any]:
    care = {key: value for key in _CARE if (value := getattr(node, key)) is not None and value is not False}
    settings = _settings(mesh, node.name, node.set_settings())
    return {"slet": node.slet.identity, **care, "ports": dict(node.ports), **settings, **_pending(mesh, node)}


def _pending(mesh: Graph, there: Node | ChannelSpec) -> dict[str, Any]:
    lines = [
        {"when": line.when, **_settings(mesh, there.name, line.settings)}
        | ({"close_windows": True} if line.close_windows else {})
        for line in there.pending
    ]
    return {"pending": lines} if lines else {}


def _settings(mesh: Graph, place: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in types of TOML, and the names of those that are `None`; each only if not empty."""
    found = {
        key: to_toml_value(f"{mesh.name}: the setting {place}.{key}", value)
        for key, value in settings.items()
        if value is not None
    }
    unset = [key for key, value in settings.items() if value is None]
    return ({"settings": found} if found else {}) | ({"unset": unset} if unset else {})
