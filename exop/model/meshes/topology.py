"""A mesh as a TOML topology file, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from exop.errors import MeshError, UnknownName
from exop.model.meshes.nodes import DIRECT, ChannelSpec, Graph, Node
from exop.model.slets.spec import POLICIES, SletSpec
from exop.model.types.conversion import to_toml_value
from exop.model.values.depth import read_toml
from exop.safe_repr import json_text

_NODE_KEYS: Final[dict[str, type]] = {
    **dict.fromkeys(("slet", "host", "group", "on_error"), str),
    "suspended": bool,
    "timeout": float,
    "dead_letters": int,
    "unset": list,
    "pending": list,
    **dict.fromkeys(("ports", "settings"), dict),
}
_LINE_KEYS: Final[dict[str, type]] = {"when": str, "settings": dict, "unset": list, "close_windows": bool}
#: The kinds of values, for messages.
_KINDS: Final[dict[type, str]] = {
    str: "text",
    bool: "true or false",
    dict: "a table",
    list: "a list",
    int: "a whole number",
    float: "a number",
}


def to_toml(mesh: Graph) -> str:
    """Write a mesh: one table per channel and per node, with the explicitly set settings.

    Raises:
        MeshError: TOML cannot hold a setting.
    """
    known: dict[str, str] = vars(mesh)  # a mesh never changes, and each of its checkpoints holds its text
    if "_toml" not in known:
        known["_toml"] = "\n".join(section_text(mesh, *section) for section in sections(mesh))
    return known["_toml"]


def sections(mesh: Graph) -> Iterator[tuple[str, str]]:
    """The tables of the topology file of a mesh, in order: kind and name of each."""
    yield "application", ""
    yield from (("channels", name) for name in mesh.channels)
    yield from (("nodes", name) for name in mesh.nodes)
    absent = (node.slet.identity for node in mesh.nodes.values() if not node.slet.is_here)
    yield from (("slets", identity) for identity in dict.fromkeys(absent))


def section_text(mesh: Graph, kind: str, name: str) -> str:
    """Write one of these tables.

    Raises:
        MeshError: TOML cannot hold a setting.
    """
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
        document[kind] = tomlkit.table(is_super_table=True)
        document[kind][name] = (
            _node_table(mesh, mesh.nodes[name]) if kind == "nodes" else _channel_table(mesh, mesh.channels[name])
        )
    return tomlkit.dumps(document)


class Topology(NamedTuple):
    """The content of a topology file; `updates` are calls of the edits of a mesh: method, name, keywords."""

    name: str
    durable: float | None
    channels: dict[str, ChannelSpec]
    nodes: list[Node]
    updates: list[tuple[str, str, dict[str, Any]]]


def read(text: str, catalog: Mapping[str, SletSpec]) -> Topology:
    """Read a topology file; see `Mesh.from_toml`."""
    try:
        document = read_toml(text)
    except ValueError as problem:
        raise MeshError(f"the topology is no TOML: {problem}") from None
    _known("the topology", "table", document, ("application", "channels", "nodes", "slets"))
    application = _table("application", document.get("application", {}))
    _known("[application]", "key", application, ("name", "durable"))
    name = application.get("name")
    if not isinstance(name, str):
        raise MeshError('the topology has no name; begin it with\n[application]\nname = "…"')
    declared = {key: _channel(key, table) for key, table in _tables(document, "channels")}
    catalog = {**catalog, **_described(document, catalog)}
    nodes = [_node(key, table, catalog) for key, table in _tables(document, "nodes")]
    # Outputs bring a direct channel of their own where none is declared, whatever the order of the tables.
    made = {to: ChannelSpec(to) for node in nodes for to in node.outputs().values() if to not in declared}
    return Topology(name, application.get("durable"), {**declared, **made}, nodes, [*_updates(document)])


def _described(document: Mapping[str, Any], catalog: Mapping[str, SletSpec]) -> dict[str, SletSpec]:
    """Read the descriptions in the file of slets that are not in the catalog."""
    found = {}
    for name, table in _tables(document, "slets"):
        text = _typed(f"[slets.{name!r}]", "described", table.get("described"), str)
        if name not in catalog:
            # Imported lazily: most files name slets that are here.
            from exop.model.slets.described import absent

            found[name] = absent(text.encode())
    return found


def _channel(name: str, table: Mapping[str, Any]) -> ChannelSpec:
    kind = _typed(f"[channels.{name}]", "kind", table.get("kind", DIRECT), str)
    settings = {option: value for option, value in table.items() if option not in ("kind", "unset", "pending")}
    return ChannelSpec(name, kind, settings | _unset(f"[channels.{name}]", table))


def _node(name: str, table: Mapping[str, Any], catalog: Mapping[str, SletSpec]) -> Node:
    place = f"[nodes.{name}]"
    _checked(place, table, _NODE_KEYS)
    identity = table.get("slet")
    if identity is None:
        raise MeshError(f'{place} names no slet; write slet = "plugin:name"')
    if identity not in catalog:
        raise UnknownName(place=f"{place}: the platform", kind="slet", name=identity, known=catalog)
    policy = table.get("on_error")
    if policy is not None and policy not in POLICIES:
        raise UnknownName(place=place, kind="policy", name=policy, known=POLICIES)
    ports = table.get("ports", {})
    for port, channel in [*ports.items()]:
        if isinstance(channel, dict):  # to.cars = "…"
            ports.pop(port)
            ports |= {f"{port}.{member}": to for member, to in channel.items()}
    for port, channel in ports.items():
        _typed(f"[nodes.{name}.ports]", port, channel, str)
    spec = catalog[identity]
    given = {**table.get("settings", {}), **_unset(place, table)}
    return Node(
        name,
        spec,
        spec.configured(name, given),
        ports,
        table.get("host"),
        table.get("suspended", False),
        policy,
        timeout=table.get("timeout"),
        dead_letters=table.get("dead_letters"),
        given=frozenset(given),
        group=table.get("group"),
    )


def _updates(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The pending conditional updates, each as a call of an edit of the mesh."""
    for section, configure in (("nodes", "configure"), ("channels", "configure_channel")):
        for name, table in _tables(document, section):
            place = f"[{section}.{name}]"
            for line in _typed(place, "pending", table.get("pending", []), list):
                found = _table(f"{section}.{name}.pending", line)
                _checked(f"{place}: pending", found, _LINE_KEYS)
                if "when" not in found:
                    raise MeshError(f'{place}: a pending update lacks its condition; write when = "…"')
                settings = {**found.get("settings", {}), **_unset(f"{place}: pending", found)}
                close = {"close_windows": True} if found.get("close_windows") else {}
                yield configure, name, {"when": found["when"], **close, **settings}


def _tables(document: Mapping[str, Any], section: str) -> list[tuple[str, dict[str, Any]]]:
    found = _table(section, document.get(section, {}))
    return [(name, _table(f"{section}.{name}", table)) for name, table in found.items()]


def _table(section: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        cure = (
            f"write [{section}]" if section == "application" else f"[{section.split('.')[0]}] holds one table per name"
        )
        raise MeshError(f"{section} is no table; {cure}")
    return found


def _known(place: str, kind: str, table: Iterable[str], known: Iterable[str]) -> None:
    for name in table:
        if name not in known:
            raise UnknownName(place=place, kind=kind, name=name, known=known)


def _typed(place: str, key: str, value: Any, wanted: type) -> Any:
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        kind = _KINDS[wanted]
        raise MeshError(f"{place}: {key} = {value!r} is no {kind.removeprefix('a ')}; write {kind}")
    return value


def _checked(place: str, table: Mapping[str, Any], keys: Mapping[str, type]) -> None:
    _known(place, "key", table, keys)
    for key, wanted in keys.items():
        if key in table:
            _typed(place, key, table[key], wanted)


def _unset(place: str, table: Mapping[str, Any]) -> dict[str, None]:
    """Settings that are `None` are listed by name, since TOML has no null."""
    return dict.fromkeys(
        _typed(place, "unset", name, str) for name in _typed(place, "unset", table.get("unset", []), list)
    )


def _channel_table(mesh: Graph, channel: ChannelSpec) -> dict[str, Any]:
    settings = _settings(mesh, channel.name, channel.settings)
    return {"kind": channel.kind, **settings.pop("settings", {}), **settings, **_pending(mesh, channel)}


def _node_table(mesh: Graph, node: Node) -> dict[str, Any]:
    keys = ("host", "group", "suspended", "on_error", "timeout", "dead_letters")
    found = {key: getattr(node, key) for key in keys}
    care = {key: value for key, value in found.items() if value is not None and value is not False}
    settings = _settings(mesh, node.name, node.set_settings())
    # What holds tables stands behind what is none.
    unset = {"unset": settings.pop("unset")} if "unset" in settings else {}
    return {"slet": node.slet.identity, **care, **unset, "ports": dict(node.ports), **settings, **_pending(mesh, node)}


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
