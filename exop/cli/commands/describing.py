"""`exop describe` and `exop slets`: show applications, nodes, builders and slets in detail, or list slets."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from exop.cli.options import HERE, Json, Load, Where
from exop.cli.peers import Found, find_application, is_local, running, runs, the_platform
from exop.cli.status_text import as_text
from exop.cli.text import answer
from exop.errors import UnknownName
from exop.model.filter import where
from exop.model.properties import APPLICATION, KIND, NODE

#: The treatment of an item for which a slet raises, by policy.
POLICIES: Final = {
    "suspend": "the item is kept and everything upstream waits; it is retried when the slet is resumed",
    "retry": "the item is retried three times, after 0.1, 0.2 and 0.4 s; then it is kept, as with suspend",
    "dead-letter": "the item is set aside with its traceback and memento, and the stream goes on",
    "skip": "the item is dropped and counted, and the stream goes on",
}
ATOMIC: Final = "a retry starts from the memento before the item (atomic)"
NOT_ATOMIC: Final = "a retry starts from the memento as the failed call left it (atomic=True would keep a copy)"


def describe(target: str, /, *, where: Where = HERE, load: Load = (), json: Json = False) -> int:
    """Describe a running application or node, a slet, or the content of a folder or file.

    Examples: `exop describe stock:count_up`, `exop describe app.average`

    Args:
        target: APP or APP.NODE on a running platform; PLUGIN:SLET; a package folder, a .py file (or FOLDER:NAME); the
            builder of an installed plugin; a .json file that `exop describe SLET --json` has printed.
    """
    if runs(target, where):
        with find_application(target, where) as found:
            facts = _node_facts(found) if found.node else _application_facts(found)
    else:
        facts = _offered(target, load)
    return answer(facts, lambda: "\n\n".join(as_text(facts)), json=json)


def slets(text: str = "", /, *, where: Where = HERE, load: Load = (), json: Json = False) -> int:
    """List the slets of the base library and the installed plugins, with ports, settings and purpose.

    With --on or --state, list the slets that a running platform knows, including those of started bundles.

    Example: `exop slets window`

    Args:
        text: List only slets with this text in their name or purpose.
    """
    if where.on or where.state:
        with the_platform(where) as platform:
            known = platform.slet_summaries()
    else:
        from exop.cli.loading import known_plugins
        from exop.model.slets.described import summary

        known = [summary(spec) for spec in known_plugins(load).slets.values()]
    wanted = text.lower()
    found = sorted(
        (one for one in known if wanted in f"{one['slet']} {one['doc']}".lower()), key=lambda one: one["slet"]
    )
    none = f"no slet has {text!r} in its name or purpose; `exop slets` lists all" if text else "no plugin offers a slet"
    return answer(found, lambda: "\n".join(map(_slet_lines, found)) or none, json=json)


def _slet_lines(one: Mapping[str, Any]) -> str:
    ports = [
        f"{one['direction']} {one['port']}: {one['type']}{' (pulled)' if one['pulled'] else ''}" for one in one["ports"]
    ]
    lines = (", ".join(ports), ", ".join(one["settings"]))
    return "\n".join([f"{one['slet']}  ({one['role']})  {one['doc']}", *(f"    {line}" for line in lines if line)])


def slet_facts(spec: Any) -> dict[str, Any]:
    """Return the facts of a slet that does not run."""
    from exop.model.slets.described import describe

    text = guarantee(spec.on_error, atomic=spec.atomic, state=spec.state is not None)
    return {**describe(spec), "guarantee": text, "here": spec.is_here}


def guarantee(policy: str, *, atomic: bool, state: bool) -> str:
    """Describe the guarantee for items for which the slet raises."""
    retried = policy in ("suspend", "retry")
    tail = (ATOMIC if atomic else NOT_ATOMIC) if state and retried else ""
    text = f"nothing of an item leaves before the slet has returned; if it raises, {POLICIES[policy]}"
    return f"{text}; {tail}" if tail else text


def builder_facts(name: str, builder: Any) -> dict[str, Any]:
    """Return the facts of an application builder."""
    from exop.model.slets.signature import read_settings

    settings = [
        {"setting": one.name, "text": str(one), "required": one.required} for one in read_settings(builder).values()
    ]
    return {"builder": name, "doc": inspect.getdoc(builder) or "", "settings": settings}


def _offered(target: str, load: Load) -> dict[str, Any]:
    """Return the facts of the slets and builders that *target* names."""
    from exop.cli.loading import find_target, known_plugins, slets_in

    catalog = known_plugins(load)
    if target in catalog.slets:
        return slet_facts(catalog.slets[target])
    plugin, colon, _ = target.rpartition(":")
    if colon and not is_local(target) and plugin in catalog.plugins.names():
        known = [*catalog.slets, *(f"{plugin}:{builder.__name__}" for builder in catalog.builders().get(plugin, []))]
        if target not in known:
            own = [name for name in known if name.startswith(f"{plugin}:")]
            raise UnknownName(place="this installation", kind="slet", name=target, known=own or known)
    if target.endswith(".json") and Path(target).is_file():
        from exop.model.slets.described import absent

        return slet_facts(absent(Path(target).read_bytes()))
    found = find_target(target, catalog, running())
    specs = slets_in(found, catalog)
    if found.which:
        if found.which in specs:
            return slet_facts(specs[found.which])
        return builder_facts(found.which, found.builder())
    return {
        "of": target,
        "builders": [builder_facts(name, builder) for name, builder in found.builders.items()],
        "slets": [slet_facts(spec) for spec in specs.values()],
    }


def _application_facts(found: Found) -> dict[str, Any]:
    return {"platform": found.platform.name, **found.platform.status(found.application)}


def _node_facts(found: Found) -> dict[str, Any]:
    """Return the facts of a running node: its status, and its ports with their types."""
    node = found.node_status()
    query = where({KIND: "port", APPLICATION: found.application, NODE: found.node})
    types = {one["properties"]["name"]: one["properties"]["item.type"] for one in found.platform.services(str(query))}
    ports = [
        {
            "port": port,
            "direction": "in" if port in node["inputs"] else "out",
            "type": types.get(port, ""),
            "channel": channel,
        }
        for port, channel in node["ports"].items()
    ]
    text = guarantee(node["policy"], atomic=node["atomic"], state=node["memento"] is not None)
    return {"node": f"{found.application}.{found.node}", **node, "ports": ports, "guarantee": text}
