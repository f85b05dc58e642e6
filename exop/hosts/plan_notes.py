"""The notes of a plan over several hosts: what happens at each of them, and how much travels between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from exop.hosts.moves.transfer import Moves, Transfer
from exop.model.meshes.diff import channel_text
from exop.model.meshes.fragments import REMOTE, Placement, fragments
from exop.model.meshes.mesh import Mesh
from exop.model.slets.relay import RELAY
from exop.wiring.changes.executor import COMMITS, closed_sinks
from exop.wiring.changes.plan import Plan, lost_state, make_plan

if TYPE_CHECKING:
    from exop.wiring.changes.arrivals import MoveCost

#: Returns what it costs to move a node of a host; or why that is not known, as text.
Cost: TypeAlias = "Callable[[str, str], MoveCost | str]"


def outline(placement: Placement) -> dict[str, Mesh]:
    """Return the fragments of a mesh as plans show and compare them: the epochs of all connectors are alike."""
    mesh, epochs = placement.mesh, dict.fromkeys(placement.connectors, 0)
    return fragments(mesh, placement.home, epochs, placement.kinds) if mesh.nodes else {}


def notes_by_host(moves: Moves, cost: Cost) -> Iterator[str]:
    """Describe the steps, connectors and moves at each host, and name the hosts that a change does not touch."""
    before, after = moves.before, moves.after
    old, new = outline(before), outline(after)
    nothing, untouched = Mesh(after.mesh.name), list[str]()
    for host in sorted({*old, *new}):
        plan, moved = make_plan(old.get(host, nothing), new.get(host, nothing)), moves.hosts.get(host, Transfer())
        if lines := [*_moves(moves, moved, host, cost), *_steps(plan, moved), *_connectors(before, after, host)]:
            yield f"on {host}{' (home)' if host == after.home else ''}:"
            yield from (f"    {line}" for line in lines)
        else:
            untouched.append(host)
    if untouched:
        yield f"not touched: {', '.join(untouched)}"


def warnings_of(placement: Placement) -> Iterator[str]:
    """Warn of what a placement makes slow, or never end."""
    yield from cycles_over_hosts(placement)
    yield from slow_connectors(placement)


def cycles_over_hosts(placement: Placement) -> Iterator[str]:
    """Warn of each cycle over hosts: no host sees the end of it, and connectors do not exceed their capacity."""
    mesh = placement.mesh
    following = {
        name: {taker.name: None for to in node.outputs().values() for taker, _ in mesh.consumers(to)}
        for name, node in mesh.nodes.items()
    }
    told = set[frozenset[str]]()
    for name, behind in following.items():
        for other in (one for one in behind if placement.of(mesh.nodes[one]) != placement.of(mesh.nodes[name])):
            paths = {other: [other]}
            for one in (left := [other]):
                fresh = [taker for taker in following[one] if taker not in paths]
                paths |= {taker: [*paths[one], taker] for taker in fresh}
                left += fresh
            if name in paths and not told & {cycle := frozenset(paths[name])}:
                told.add(cycle)
                hosts = ", ".join(sorted({placement.of(mesh.nodes[one]) for one in cycle}))
                yield (
                    f"the cycle {' → '.join([name, *paths[name]])} is on several hosts ({hosts}): it does not end by "
                    f"itself when its sources have ended, and stands still when its connectors are full; place it on "
                    f'one host, or let its channels spill to disk, connector={{"mode": "offline"}}'
                )


def slow_connectors(placement: Placement) -> Iterator[str]:
    """Warn of each connector of a durable application that is as slow as the checkpoints."""
    every = placement.mesh.durable
    for one in placement.connectors.values() if every is not None else ():
        given = {"ack": "stable", "mode": "async", "capacity": 1024, **placement.mesh.channels[one.channel].connector}
        if given["ack"] != "stable":
            continue
        if given["mode"] == "sync":
            why, cure = "in the mode 'sync', each item waits until a checkpoint has it", '{"mode": "async"}'
        elif given["mode"] == "async" and given["capacity"] < 1024:
            why, cure = f"at most {given['capacity']} items wait until a checkpoint has them", '{"capacity": 1024}'
        elif reason := placement.varies(one):
            why = f"{reason}, so that an item is sent when a checkpoint has it"
            cure = '{"ack": "done"}, with which a crash of a host may lose, double or replace items'
        else:
            continue
        yield (
            f"{one.channel!r} is slow from {one.source} to {one.target}, with a checkpoint every {every:g} s: {why}; "
            f"give the channel connector={cure}"
        )


def _moves(moves: Moves, moved: Transfer, host: str, cost: Cost) -> Iterator[str]:
    """Describe the nodes and channels that leave a host, with the bytes that travel, and those that arrive."""
    for name, target in moved.departing.items():
        if moves.before.mesh.node(name).slet.memento is None:
            yield f"{name} leaves for {target}; it keeps no state"
        elif (after := moves.after.mesh.node(name)).lose_state or after.memento is not None:
            yield f"{name} leaves for {target}, without its state"
        else:
            yield f"{name} leaves for {target}, with its state: {_cost_text(cost(host, name))}"
    yield from (f"{name} arrives from {source}" for name, source in moved.arriving.items())
    yield from (f"the channel {name} leaves for {target}, with its content" for name, target in moved.contents.items())
    yield from (f"the channel {name} arrives from {source}" for name, source in moved.restored.items())


def _cost_text(found: MoveCost | str) -> str:
    if isinstance(found, str):
        return f"of unknown size ({found})"
    parts = ((found["ahead"], "ahead"), (found["cut"], "in the cut"))
    sizes = [f"{_bytes_text(size)} {when}" for size, when in parts if size]
    stop = found["seconds"]
    told = f"{stop:.1f} s" if stop >= 1 else f"{round(stop * 1e3, -1):.0f} ms"
    told = f"{' and '.join(sizes)}; its stream stops for about {told}"
    return f"{told}: the field {found['whole']!r} is one piece" if found["whole"] and stop > 0.1 else told


def _bytes_text(size: int) -> str:
    if size < 10_000:
        return f"{size:,} bytes"
    return f"{size / 1e3:.0f} KB" if size < 1e6 else f"{size / 1e6:.3g} MB" if size < 1e9 else f"{size / 1e9:.3g} GB"


def _steps(plan: Plan, moved: Transfer) -> Iterator[str]:
    """Describe the steps of the fragment of one host; relays, and nodes that move, stand in other lines."""
    for step in plan.steps:
        is_relay = any(node is not None and node.slet == RELAY for node in (step.before, step.after))
        if not (is_relay or step.node in moved.departing or step.node in moved.arriving):
            yield f"{step.verb} {step.node}: {step.text}"
            yield from lost_state(plan, step)
    if plan.before.durable is not None:
        made = {name: one.slet.factory for name, one in plan.before.nodes.items() if name not in moved.departing}
        yield from (f"{one} {COMMITS}" for one in closed_sinks(plan, made))
    yield from (channel_text(old, new) for old, new in plan.changes.channels_changed if new.kind not in REMOTE)


def _connectors(before: Placement, after: Placement, host: str) -> Iterator[str]:
    """Describe the connectors that are made, and those that are removed, at a host."""
    for verb, one, other in (("connect", after, before), ("disconnect", before, after)):
        for key, connector in one.connectors.items():
            if other.connectors.get(key) != connector and host in (connector.source, connector.target):
                way = f"to {connector.target}" if host == connector.source else f"from {connector.source}"
                yield f"{verb} the channel {connector.channel} {way}"
