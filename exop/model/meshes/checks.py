"""Preparation of a mesh before it runs: its checks, and its resolution: registered names of slets, absolute paths.

A resolved mesh is independent of the process that built it.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeVar

from exop.errors import MeshError, WiringError, entry
from exop.model.meshes.diff import Difference, difference
from exop.model.meshes.entries import touched
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node, check_inputs
from exop.model.meshes.nodes import ENTERED, INBOX, OUTBOX, KindLike, check_channels, check_ports
from exop.model.reached import reached
from exop.model.slets.ports import WINDOW, PortSpec, PortType, mismatch
from exop.model.slets.spec import Absent, SletSpec
from exop.safe_repr import RAISED, message

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
        if (known := None if node.slet.plugin else by_factory.get(node.slet.factory)) is not None:
            node = nodes[name] = replace(node, slet=known)
        if node.slet.plugin is None and (durable or travels):
            raise MeshError(_refusal(node, travels=travels), slet=node.slet.name)
    mesh = mesh.edited(nodes)
    return with_full_paths(mesh, Path.cwd(), running) if durable else mesh


def with_full_paths(mesh: Mesh, folder: Path, running: Mesh | None = None) -> Mesh:
    """Make relative paths in settings of nodes and channels absolute, from *folder*.

    Defaults, and values equal to those in the *running* mesh, are unchanged.
    """
    nodes = _each(folder, running.nodes if running is not None else {}, mesh.nodes)
    return mesh.edited(nodes, _each(folder, running.channels if running is not None else {}, mesh.channels))


def _each(folder: Path, before: Mapping[str, T], after: Mapping[str, T]) -> dict[str, T]:
    """The nodes or channels that differ, with absolute paths in new values."""
    found = {}
    for name in touched(before, after):
        there, old = after[name], before.get(name)
        keep, lines = ({}, ()) if old is None else (old.settings, old.pending)
        given = there.set_settings() if isinstance(there, Node) else there.settings
        full = {name: _full(value, folder) for name, value in given.items() if name not in keep or keep[name] != value}
        pending = tuple(
            line if line in lines else replace(line, settings=_full(dict(line.settings), folder))
            for line in there.pending
        )
        found[name] = replace(there, settings={**there.settings, **full}, pending=pending)
    return found


def _full(value: Any, folder: Path) -> Any:
    """A value with absolute paths."""
    if isinstance(value, Path):
        return folder / value
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_full(one, folder) for one in value)
    return {key: _full(one, folder) for key, one in value.items()} if type(value) is dict else value


def _refusal(node: Node, *, travels: bool) -> str:
    what = f"{node.name}: the slet {node.slet.name!r} of {node.slet.factory.__module__} is in no plugin"
    line = bundle_line(node.slet)
    written = "" if "--from" in line else ", and write it and a builder of the application there"
    bundle, name = f"make a bundle of it: `{line}`{written}", line.split()[3]
    if travels:
        return (
            f"{what}, and code does not travel by itself; {bundle}, `exop bundle install {name} --start`; then `exop "
            f"apply {name}` deploys its application; or put it into a package with a @hookimpl register_slets() that "
            f"the other platform loads (`exop serve --load FOLDER`)"
        )
    return (
        f"{what} and no bundle, so a platform with a state directory could not find its code again; {bundle}, and run "
        f"that (`exop run {name}`); or offer it by a @hookimpl register_slets() in a package that the platform loads, "
        f"`platform.load(FOLDER)` or --load FOLDER; or run it without a state directory (and without app.durable())"
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


def check(
    mesh: Mesh, kinds: Mapping[str, type[KindLike]], changes: Difference | None = None, *, home: str = "home"
) -> None:
    """Refuse a mesh that cannot run; *kinds* are the known channel kinds.

    With *changes*, made to a running mesh, only what they affect is checked. *home* is the host of nodes and channels
    that name no other one. Between hosts, items wait in a connector, as in a queue.
    """
    if not mesh.nodes:
        raise MeshError(f"the application {mesh.name!r} has no slet; add one with app.add(name, slet)")
    changes = difference(None, mesh) if changes is None else changes
    nodes, new = _beside(mesh, changes), {node.name for node in changes.nodes}
    for node in nodes:
        _check_ports(mesh, node, kinds, changes)
    fresh = {channel.name for channel in changes.channels}
    for channel in changes.channels:
        entry(f"the channel {channel.name!r}: the platform", "kind", kinds, channel.kind)
        check_join(mesh, channel.name, kinds)
    for group in dict.fromkeys(node.group for node in nodes if node.group is not None):
        check_group(mesh, group, kinds, alike=mesh.revision == 0)
    for name in {to: None for node in changes.nodes for to in node.ports.values() if to not in fresh}:
        check_join(mesh, name, kinds, new)
    for part in parts(mesh, kinds, home) if changes.reconnects else ():
        _check_loops(part, kinds, new & part.nodes.keys())


def parts(mesh: Mesh, kinds: Mapping[str, type[KindLike]], home: str = "home") -> Iterable[Mesh]:
    """Return the fragments of a mesh that spans hosts, or the mesh itself."""
    if not mesh.spans(home):
        return [mesh]
    # Imported lazily: most applications are on one host.
    from exop.model.meshes.fragments import fragments

    return fragments(mesh, home, kinds=kinds).values()


def _check_loops(mesh: Mesh, kinds: Mapping[str, type[KindLike]], nodes: Collection[str]) -> None:
    """Refuse slets that would call themselves endlessly, or wait for themselves; only at *nodes* and downstream.

    A port that pulls ends the chain of calls: it takes from a queue, or reads what the channel keeps.
    """
    buffered = frozenset(name for name, kind in kinds.items() if kind.buffered) | {OUTBOX, INBOX}

    def called(name: str) -> Iterator[str]:
        for to in mesh.nodes[name].outputs().values():
            ends = mesh.consumers(to) if mesh.channels[to].kind not in buffered else ()
            yield from (node.name for node, port in ends if not node.slet.ports[port].pulled)

    try:
        TopologicalSorter({name: called(name) for name in reached(nodes, called)}).prepare()
    except CycleError as found:
        path = " -> ".join(reversed(found.args[1]))
        cure = "join two of its slets through app.channel(name, kind='queue')"
        raise WiringError(f"the cycle {path} contains no queue: it would call itself endlessly; {cure}") from None
    _check_filling(mesh, kinds, nodes)


def _beside(mesh: Mesh, changes: Difference) -> Iterable[Node]:
    """The nodes that changes affect: changed ones, and those that lose a channel or a producer."""
    if not changes.reconnects:
        return changes.nodes
    before = [*changes.removed, *(old for old, _ in changes.changed)]
    left = {channel for node in before for channel in node.ports.values()}
    left.update(channel.name for channel in changes.channels_removed)
    ends = [*(mesh.producers(name) for name in left), *(mesh.consumers(name) for name in left)]
    return {node.name: node for node in (*changes.nodes, *(node for found in ends for node, _ in found))}.values()


def check_durable(mesh: Mesh, *, has_state: bool, nodes: Iterable[Node] | None = None) -> None:
    """Refuse a durable mesh that cannot take checkpoints; *nodes* limits the check.

    Raises:
        MeshError: the platform has no state directory, or a slet drives itself without a `Tie`, which knows its items.
    """
    if mesh.durable is None:
        return
    if not has_state:
        raise MeshError(
            f"the application {mesh.name!r} is durable, and this platform has no state directory to keep its "
            f"checkpoints; give one, Platform(state=…) or --state DIR, and load its package by `platform.load(FOLDER)` "
            f"or --load FOLDER; or leave out app.durable()"
        )
    for node in mesh.nodes.values() if nodes is None else nodes:
        if node.slet.own_driver and (node.slet.tie is None or any(port.pulled for port in node.slet.inputs)):
            raise MeshError(
                f"the application {mesh.name!r} is durable, and {node.name} ({node.slet.identity}) pushes from threads "
                f"of its own, so checkpoints would miss its in-flight items; give it a Tie (and no port that it "
                f"pulls), leave out app.durable(), or take a slet that the platform drives"
            )


def check_join(
    mesh: Mesh, channel: str, kinds: Mapping[str, type[KindLike]], nodes: Collection[str] | None = None
) -> None:
    """Compare the types of all ports at a channel; with *nodes*, those of these nodes with all others."""
    spec, among = mesh.channels[channel], mesh.nodes if nodes is None else nodes
    kind = kinds[spec.kind]
    ends = [(node.name, f"{node.name}.{port}", node.slet.ports[port].type) for node, port in mesh.producers(channel)]
    if spec.type is not None:
        for name, _, pushed in ends:
            if reason := mismatch(pushed, spec.type):
                raise WiringError(
                    f"{spec.type.origin or name} sends through {channel!r} what the home does not expect: {reason}; "
                    f"load the same release of its slet here and at the home"
                )
        ends.append(("", spec.type.origin or "another host", spec.type))
    for producer, end, pushed in ends:
        for setting, name in kind.fields(spec.settings) if producer in among else ():
            replace(pushed, origin=end).check_field(f"the channel {channel!r} ({spec.kind})", setting, name)
        for consumer, port in mesh.consumers(channel):
            new = producer in among or consumer.name in among
            decoded = producer in mesh.nodes and mesh.nodes[producer].host != consumer.host
            if new and (reason := join_mismatch(kind, pushed, consumer.slet.ports[port], decoded=decoded)):
                problem = f"{end} cannot feed {consumer.name}.{port} through {channel!r}: {reason}"
                raise WiringError(f"{problem}; put a slet that converts between them")


def check_group(mesh: Mesh, group: str, kinds: Mapping[str, type[KindLike]], *, alike: bool = True) -> None:
    """Refuse nodes of a group that cannot share partitions; with *alike*, also different slets and settings."""
    first, *others = members = [node for node in mesh.nodes.values() if node.group == group]
    for node in members:
        if not (ports := shared_ports(mesh, node, kinds)):
            read = next(iter(node.inputs().values()), "NAME")
            raise MeshError(
                f"{node.name} is in the group {group!r}, and reads no partitioned channel: name the field that assigns "
                f"an item to a partition, app.channel({read!r}, by='…', partitions=256), or leave out group={group!r}"
            )
        if pulled := [port for port in ports if node.slet.ports[port].pulled]:
            raise WiringError(
                f"{node.name}.{pulled[0]} pulls its items, and {node.name} is in the group {group!r}, to which they "
                f"are pushed; take a slet with an input to which items are pushed, or leave out group={group!r}"
            )
    parts = {first.ports[port]: partitions for port, (_, partitions) in shared_ports(mesh, first, kinds).items()}
    if len({*parts.values()}) > 1:
        found, most = ", ".join(f"{name} ({number})" for name, number in parts.items()), max(parts.values())
        raise MeshError(
            f"the group {group!r} shares channels with different numbers of partitions: {found}, so that a key would "
            f"have several owners; give them equal numbers, for example app.channel(NAME, by='…', partitions={most}); "
            f"a channel that runs keeps its number: connect the group to a new one"
        )
    for node in others:
        known, channels = ({port: one.ports[port] for port in shared_ports(mesh, one, kinds)} for one in (first, node))
        if known != channels:
            raise MeshError(
                f"{first.name} and {node.name} are in the group {group!r}, and share different channels "
                f"({known}, {channels}); connect them alike, or give them groups of their own"
            )
        if alike and (node.slet, dict(node.settings)) != (first.slet, dict(first.settings)):
            raise MeshError(
                f"{first.name} and {node.name} are in the group {group!r}, and are different slets, or have different "
                f"settings; a group begins with equal members, which may be replaced one by one"
            )


def shared_ports(mesh: Mesh, node: Node, kinds: Mapping[str, type[KindLike]]) -> dict[str, tuple[str, int]]:
    """The inputs by which a node in a group shares partitions, each with the key field and the number of these."""
    specs = ((port, mesh.channels[to]) for port, to in node.inputs().items())
    found = ((port, kinds[spec.kind].partitions_of(spec)) for port, spec in specs if spec.kind in kinds)
    return {port: partitions for port, partitions in found if partitions is not None}


def join_mismatch(kind: type[KindLike], pushed: PortType, taken: PortSpec, *, decoded: bool = False) -> str | None:
    """Return why items *pushed* into a channel of this kind cannot enter a port, or `None`; *decoded* as `mismatch`.

    A port that pulls from a window reads its items, not windows.
    """
    carried = pushed if taken.pulled and kind.kind == WINDOW else kind.carries(pushed)
    return mismatch(carried, taken.type, decoded=decoded)


def sinks_that_refuse(mesh: Mesh, before: Mesh) -> Iterator[str]:
    """Yield a warning for each sink that refuses its items by its `deep_check`, or, on another host, gets others."""
    for name, node in mesh.nodes.items():
        check = getattr(node.slet.factory, "deep_check", None)
        if check is None or node.slet.outputs or node.slet.tie:  # no engine is started for this
            continue
        if node.host is not None:
            into = [part.types_into(part.nodes[name]) for part in (before, mesh) if name in part.nodes]
            if len({tuple(one.fingerprint for one in types.values()) for types in into}) > 1:
                yield f"warning: {name}: its items change; look on {node.host} whether it takes them"
        else:
            try:
                check(dict(node.settings), mesh.types_into(node))
            except RAISED as problem:
                yield f"warning: {name}: {message(problem)}"


def _check_filling(mesh: Mesh, kinds: Mapping[str, type[KindLike]], nodes: Iterable[str]) -> None:
    """Refuse a slet that waits for a channel, at *nodes* or downstream, which its own driver has to fill."""
    below = reached(
        nodes, lambda node: (end.name for to in mesh.nodes[node].outputs().values() for end, _ in mesh.consumers(to))
    )
    channels = dict.fromkeys(to for node in below for to in mesh.nodes[node].ports.values())
    first = sorted(name for name in channels if mesh.channels[name].settings.get("fill_first"))
    drivers = _drivers(mesh, kinds) if first else {}
    for name in first:
        fillers = reached(
            (node.name for node, _ in mesh.producers(name)),
            lambda node: (one.name for to in mesh.nodes[node].inputs().values() for one, _ in mesh.producers(to)),
        )
        filling = {driver for node in fillers for driver in drivers[node]}
        for reader, port in mesh.consumers(name):
            pulls = reader.slet.ports[port].pulled and kinds[mesh.channels[name].kind].pull_mode == "read"
            if pulls and (both := drivers[reader.name] & filling):
                raise WiringError(
                    f"{reader.name} waits until {name!r} is filled (fill_first), and {min(both)} drives both: it would "
                    f"wait for itself; put a queue in front of {reader.name}, app.channel(name, kind='queue'), which "
                    f"holds the items in the meantime, or fill {name!r} from another source"
                )


def _drivers(mesh: Mesh, kinds: Mapping[str, type[KindLike]]) -> dict[str, set[str]]:
    """The sources, engines and queues that drive each node; queues that meet in a node share one worker."""
    found = {name: _drivers_of(mesh, kinds, name) for name in mesh.nodes}
    queues = {name: {one for one in drivers if one not in mesh.nodes} for name, drivers in found.items()}
    for shared in queues.values():
        if len(shared) > 1:
            for drivers in filter(shared.intersection, found.values()):
                drivers.update(shared)
    return found


def _drivers_of(mesh: Mesh, kinds: Mapping[str, type[KindLike]], name: str) -> set[str]:
    drivers = set[str]()

    def callers(one: str) -> Iterator[str]:
        if (node := mesh.nodes[one]).slet.iterated or node.slet.own_driver:
            drivers.add(one)
            if node.slet.iterated or one != name:
                return
        for port, channel in node.inputs().items():
            if kinds[mesh.channels[channel].kind].buffered:
                drivers.add(f"the queue {channel!r}")
            elif not node.slet.ports[port].pulled:
                yield from (producer.name for producer, _ in mesh.producers(channel))

    for _ in reached([name], callers):
        pass
    return drivers


def _check_ports(mesh: Mesh, node: Node, kinds: Mapping[str, type[KindLike]], changes: Difference) -> None:
    if isinstance(node.slet.factory, Absent):
        raise MeshError(f"{node.name} cannot run here: {node.slet.factory.refusal}")
    check_ports(node.name, node.slet, node.ports)
    check_channels(mesh, node)
    check_inputs(mesh, node.name, node.slet, node.ports)
    _check_families(mesh, node)
    for spec in node.slet.inputs:
        kind = mesh.channels[to := node.ports[spec.name]].kind
        entered = kind in ENTERED or kind not in kinds or kinds[kind].entered  # an unknown kind is refused as such
        if not mesh.producers(to) and not entered:
            raise MeshError(_unfed(mesh, node, spec, kinds, changes))


def _unfed(mesh: Mesh, node: Node, port: PortSpec, kinds: Mapping[str, type[KindLike]], changes: Difference) -> str:
    """Say that a port reads a channel into which no node pushes, or none any more after *changes*; and the cure."""
    place, to = f"{node.name}.{port.name}", node.ports[port.name]
    why = f"{place} reads the channel {to!r}, into which nothing is pushed"
    if gone := [node for node in changes.removed if to in node.outputs().values()]:
        specs = (spec for name in gone[0].inputs().values() if (spec := mesh.channels.get(name)) is not None)
        known = ((one.name, kinds.get(one.kind), mesh.pushed(one.name)) for one in specs)
        fit = [one for one, kind, pushed in known if kind and pushed and not join_mismatch(kind, pushed, port)]
        other = fit[0] if len(fit) == 1 else "CHANNEL"
        return (
            f"{why} without {gone[0].name}: first connect the port to another channel, `exop rewire "
            f"{mesh.name}.{node.name} {port.name}={other}`, or remove {node.name}; then remove {gone[0].name}"
        )
    now = {was: new.ports.get(port) for old, new in changes.changed for port, was in old.outputs().items()}.get(to)
    first = f"connect it in the same change as well, {place}={now}; or " if now else ""
    return (
        f"{why}: {first}give it as an output, app.add(…, out={to}); of a running mesh in the same change, `exop rewire "
        f"{mesh.name}.NODE OUT={to} {place}={to}`, or by a topology file, `exop apply FILE.toml`"
    )


def _check_families(mesh: Mesh, node: Node) -> None:
    """Refuse a family of inputs without members, and a node with the name of a family."""
    head, _, tail = node.name.rpartition(".")
    taken = {f"{node.name}.{one.family}" for one in node.slet.families} & mesh.nodes.keys()
    if head in mesh.nodes and tail in (one.family for one in mesh.nodes[head].slet.families):
        taken.add(node.name)
    for name in taken:
        owner = name.rpartition(".")[0]
        raise MeshError(f"{name}.* are ports of {owner}, and there is also a node {name!r}; rename it")
    for family in node.slet.families if not node.slet.inputs else ():
        if family.direction == "in":
            raise MeshError(
                f"{node.name}.{family.name} has no connected ports, and there is no other input: connect one or more, "
                f"app.add({node.name!r}, …, {family.family}={{NAME: channel}})"
            )
