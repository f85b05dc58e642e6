"""The assignment of drivers: where drivers would meet in one slet, a queue is put between (design §5 rule 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from exop.runtime.component import Component
from exop.wiring.chains import split_chains
from exop.wiring.circuit import Circuit
from exop.wiring.cycles import find_loops, inner_places
from exop.wiring.places import before_key, edge_key, in_front_of, possible
from exop.wiring.reach import DriverKey, reach
from exop.wiring.waits import Waits

__all__ = ["Layout", "before_key", "edge_key", "lay_out"]


@dataclass
class Layout:
    """The drivers of a circuit.

    Attributes:
        inserted: The places where a queue is needed, and why.
        groups: Sets of queues (buffered channels by name, inserted ones by place) that share a worker.
        runs: For each component (by id) and each channel that keeps something (`channel:name`), its drivers.
        order: How far downstream each queue is, and each component.
        loops: The cycles, each as its members.
        spills: Queues that a slet with a driver of its own overfills, rather than wait in a circle; with its id.
    """

    inserted: dict[str, str] = field(default_factory=dict)
    groups: list[set[str]] = field(default_factory=list)
    runs: dict[str, set[DriverKey]] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)
    loops: list[list[Component]] = field(default_factory=list)
    spills: set[tuple[str, str]] = field(default_factory=set)


def lay_out(circuit: Circuit, standing: Mapping[str, str] | None = None) -> Layout:
    """Find the drivers; insert queues and let queues share workers until no two drivers meet.

    Queues of one cycle share a worker too: two workers that each wait for room at the other's queue would wait for
    ever. *standing* are the queues that were inserted before, with the reason: they stay as long as their place is
    there, since they may hold items.

    Raises:
        WiringError: a cycle without a queue.
    """
    layout = Layout(loops=find_loops(circuit))
    still = set(possible(circuit))
    layout.inserted |= {place: reason for place, reason in (standing or {}).items() if place in still}
    split_chains(circuit, layout.inserted)
    places = _downstream_order(circuit)
    while True:
        _unite_loops(circuit, layout)
        layout.runs = reach(circuit, layout.inserted)
        conflict = next((place for place in places if _drivers_apart(layout, place)), None)
        if conflict is None:
            break
        _part(circuit, layout, conflict)
    known = {queue for group in layout.groups for queue in group}
    queues = _queues(circuit, layout)
    layout.groups += [{queue} for queue in queues if queue not in known]
    for together in Waits(circuit, layout.inserted, layout.groups, layout.runs).to_unite():
        _unite(layout, together)
    layout.spills = {*Waits(circuit, layout.inserted, layout.groups, layout.runs).spilling()}
    rank = layout.order = {place: index for index, place in enumerate(places)}
    for queue in queues:
        # One that leads into further queues only runs no place: it is as far downstream as its channel.
        channel = f"channel:{queue.removeprefix('-> ').partition(' -> ')[0]}"
        run = (rank[place] for place, keys in layout.runs.items() if ("queue", queue) in keys)
        layout.order[queue] = min(run, default=rank[channel])
    return layout


def _queues(circuit: Circuit, layout: Layout) -> list[str]:
    """The queues that a worker drains."""
    buffered = [name for name, channel in circuit.channels.items() if channel.buffered]
    return [*(name for name in buffered if not _pulled_alone(circuit, name)), *layout.inserted]


def _pulled_alone(circuit: Circuit, channel: str) -> bool:
    """A buffered channel whose only consumer pulls is drained by that consumer."""
    joins = circuit.consumers[channel]
    return len(joins) == 1 and joins[0].port.pulled


def _unite_loops(circuit: Circuit, layout: Layout) -> None:
    queues = set(_queues(circuit, layout))
    for loop in layout.loops:
        inside = queues.intersection(inner_places(circuit, loop))
        if inside:
            _unite(layout, inside)


def _drivers_apart(layout: Layout, place: str) -> bool:
    """Two drivers, or two groups of queues, meet here."""
    keys = layout.runs.get(place, set())
    owners = {frozenset(_group(layout, key[1])) if key[0] == "queue" else key for key in keys}
    return len(owners) > 1


def _group(layout: Layout, queue: str) -> set[str]:
    return next((group for group in layout.groups if queue in group), {queue})


def _part(circuit: Circuit, layout: Layout, place: str) -> None:
    """Resolve one meeting: queues share their worker; in front of anything else stands a queue."""
    keys = layout.runs[place]
    if all(kind == "queue" for kind, _ in keys):
        _unite(layout, {name for _, name in keys})
        return
    names = ", ".join(sorted(f"{kind} {name}" for kind, name in keys))
    if place.startswith("channel:"):
        channel = place.removeprefix("channel:")
        layout.inserted[before_key(channel)] = f"several drivers push into {channel}: {names}"
        return
    component = next(one for one in circuit.components() if one.id == place)
    fresh = set()
    for channel, join in circuit.inputs(component):
        if not (circuit.channels[channel].buffered or join.port.pulled):
            fresh.add(in_front_of(circuit, channel, join))
    for queue in fresh:
        layout.inserted.setdefault(queue, f"several drivers meet in {component.node.name}: {names}")
    _unite(layout, fresh)


def _unite(layout: Layout, queues: set[str]) -> None:
    together = set(queues)
    apart = []
    for group in layout.groups:
        if group & together:
            together |= group
        else:
            apart.append(group)
    layout.groups = [*apart, together]


def _downstream_order(circuit: Circuit) -> list[str]:
    """Components and channels from upstream to downstream (back edges of cycles are ignored)."""
    order: list[str] = []
    seen: set[str] = set()

    def children(place: str) -> Iterator[str]:
        if place.startswith("channel:"):
            yield from (join.component.id for join in circuit.consumers[place.removeprefix("channel:")])
        else:
            component = by_id[place]
            yield from (f"channel:{channel}" for _, channel in circuit.outputs(component))

    by_id = {component.id: component for component in circuit.components()}
    sources = [c.id for c in by_id.values() if not c.spec.inputs]
    for root in [*sources, *by_id]:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, children(root))]
        while stack:
            place, rest = stack[-1]
            child = next((one for one in rest if one not in seen), None)
            if child is None:
                order.append(place)
                stack.pop()
            else:
                seen.add(child)
                stack.append((child, children(child)))
    return order[::-1]
