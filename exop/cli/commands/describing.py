"""`exop describe`: what a slet, a builder, a running application or one of its nodes is, in detail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from exop.cli.options import HERE, Json, Load, Where
from exop.cli.peers import Found, find_application, is_local, running, runs
from exop.cli.report import DONE
from exop.cli.text import print_json
from exop.errors import BuilderError, UnknownName
from exop.safe_repr import clean

#: The treatment of an item for which a slet raises, by policy.
POLICIES: Final = {
    "suspend": "the item is kept and everything upstream waits; it is tried again when the slet is resumed",
    "retry": "the item is tried again three times, after 0.1, 0.2 and 0.4 s; then it is kept, as with suspend",
    "dead-letter": "the item is set aside with its traceback and memento, and the stream goes on",
    "skip": "the item is dropped and counted, and the stream goes on",
}
#: The parts of a status that run beside a node: a successor on trial, a predecessor that is kept.
BESIDE: Final = ("shadow", "kept")
ATOMIC: Final = "a further try starts from the memento of before the item (atomic)"
NOT_ATOMIC: Final = "a further try starts from the memento as the failed call left it (atomic=True would keep a copy)"


def describe(target: str, /, *, where: Where = HERE, load: Load = (), json: Json = False) -> int:
    """Describe a running application or node, a slet, or what a folder or file offers.

    Args:
        target: APP or APP.NODE of a running platform; PLUGIN:SLET; a package folder, a .py file (or FOLDER:NAME); the
            builder of an installed plugin; a .json file that `exop describe SLET --json` has printed.
    """
    if runs(target, where):
        with find_application(target, where) as found:
            facts = _node_facts(found) if found.node else _application_facts(found)
    else:
        facts = _offered(target, load)
    if json:
        print_json(facts)
        return DONE
    from exop.cli.commands.description import as_text

    print(clean("\n\n".join(as_text(facts))))
    return DONE


def slet_facts(spec: Any) -> dict[str, Any]:
    """Return the facts of a slet that does not run."""
    from exop.model.slets.described import describe

    text = guarantee(spec.on_error, atomic=spec.atomic, state=spec.state is not None)
    return {**describe(spec), "guarantee": text, "here": spec.is_here}


def guarantee(policy: str, *, atomic: bool, state: bool) -> str:
    """Describe the guarantee for an item for which the slet raises."""
    tried_again = policy in ("suspend", "retry")
    tail = (ATOMIC if atomic else NOT_ATOMIC) if state and tried_again else ""
    text = f"nothing of an item leaves before the slet has returned; if it raises, {POLICIES[policy]}"
    return f"{text}; {tail}" if tail else text


def builder_facts(name: str, builder: Any) -> dict[str, Any]:
    """Return the facts of an application builder."""
    import inspect

    from exop.model.slets.signature import read_settings

    settings = [
        {"setting": one.name, "text": str(one), "required": one.required} for one in read_settings(builder).values()
    ]
    return {"builder": name, "doc": inspect.getdoc(builder) or "", "settings": settings}


def _offered(target: str, load: Load) -> dict[str, Any]:
    """The slets and builders that *target* names."""
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
    slets = slets_in(found, catalog)
    if found.which:
        if found.which in slets:
            return slet_facts(slets[found.which])
        return builder_facts(found.which, found.builder())
    return {
        "of": target,
        "builders": [builder_facts(name, builder) for name, builder in found.builders.items()],
        "slets": [slet_facts(spec) for spec in slets.values()],
    }


def _application_facts(found: Found) -> dict[str, Any]:
    return {"platform": found.platform.name, **found.platform.status(found.application)}


def _node_facts(found: Found) -> dict[str, Any]:
    """A running node: its figures, and its ports with their types."""
    status = found.platform.status(found.application)
    nodes = status["nodes"]
    check_no_channel(found, status)
    if found.node not in nodes:
        raise UnknownName(place=f"the application {found.application!r}", kind="node", name=found.node, known=nodes)
    node = nodes[found.node]
    query = f"(&(kind=port)(application={_escaped(found.application)})(node={_escaped(found.node)}))"
    types = {one["properties"]["name"]: one["properties"]["item.type"] for one in found.platform.services(query)}
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
    beside = {what: {found.node: status[what][found.node]} for what in BESIDE if found.node in status.get(what, {})}
    place = f"{found.application}.{found.node}"
    return {"node": place, **node, "ports": ports, "guarantee": text, "beside": beside}


def check_no_channel(found: Found, status: Mapping[str, Any]) -> None:
    """Tell who names a channel, where a node is wanted, what can be done with a channel.

    Raises:
        BuilderError: it is one.
    """
    name, application = found.node, found.application
    if name in status["channels"] and name not in status["nodes"]:
        raise BuilderError(
            f"{name!r} is a channel of {application}, not a node; `exop describe {application}` shows its figures, "
            f"`exop mesh {application}` who is connected to it, and `exop configure {application}.{name} NAME=VALUE` "
            f"gives it other settings, if it has the kind for it (a window)"
        )


def _escaped(text: str) -> str:
    """A value as a filter has it (RFC 4515)."""
    return "".join(f"\\{ord(letter):02x}" if letter in "\\*()\0" else letter for letter in text)
