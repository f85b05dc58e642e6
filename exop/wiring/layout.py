"""Which driver runs what: where drivers would meet in one slet, a queue is put between (design §5 rule 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from exop.runtime.component import Component
from exop.wiring.circuit import Circuit, Join

#: A direct chain is split by a queue after so many slets, long before Python's recursion limit.
LONGEST_CHAIN = 150

DriverKey = tuple[Literal["source", "engine", "queue"], str]


def edge_key(channel: str, join: Join) -> str:
    """The place of a queue between a channel and one port."""
    return f"{channel} -> {join.name}"


def before_key(channel: str) -> str:
    """The place of a queue in front of a channel."""
    return f"-> {channel}"


@dataclass
class Layout:
    """The drivers of a circuit.

    Attributes:
        inserted: The places where a queue is needed, and why.
        groups: Sets of queues (buffered channels by name, inserted ones by place) that share a worker.
        runs: For each component (by id) and each channel that keeps something (`channel:name`), its drivers.
        order: How far downstream each queue is.
    """

    inserted: dict[str, str] = field(default_factory=dict)
    groups: list[set[str]] = field(default_factory=list)
    runs: dict[str, set[DriverKey]] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)


def lay_out(circuit: Circuit) -> Layout:
    """Find the drivers; insert queues and let queues share workers until no two drivers meet."""
    layout = Layout()
    places = _downstream_order(circuit)
    while True:
        layout.runs = {}
        _Reach(circuit, layout).follow_all()
        conflict = next((place for place in places if _drivers_apart(layout, place)), None)
        if conflict is None:
            break
        _part(circuit, layout, conflict)
    known = {queue for group in layout.groups for queue in group}
    for queue in _queues(circuit, layout):
        if queue not in known:
            layout.groups.append({queue})
    rank = {place: index for index, place in enumerate(places)}
    for queue in _queues(circuit, layout):
        layout.order[queue] = min((rank[p] for p, keys in layout.runs.items() if ("queue", queue) in keys), default=0)
    return layout


def _queues(circuit: Circuit, layout: Layout) -> list[str]:
    buffered = [name for name, channel in circuit.channels.items() if channel.buffered]
    taken = {name for name in buffered if _pulled_alone(circuit, name)}
    return [*(name for name in buffered if name not in taken), *layout.inserted]


def _pulled_alone(circuit: Circuit, channel: str) -> bool:
    """A buffered channel whose only consumer pulls is drained by that consumer."""
    joins = circuit.consumers[channel]
    return len(joins) == 1 and joins[0].port.pulled


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
            layout.inserted[edge_key(channel, join)] = f"several drivers meet in {component.node.name}: {names}"
            fresh.add(edge_key(channel, join))
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


class _Reach:
    """Follows each driver from where it pushes as far as it runs things."""

    def __init__(self, circuit: Circuit, layout: Layout) -> None:
        self.circuit, self.layout = circuit, layout

    def follow_all(self) -> None:
        for component in self.circuit.components():
            if component.spec.own_driver or component.spec.iterated:
                kind: Literal["engine", "source"] = "engine" if component.spec.own_driver else "source"
                self._note(component.id, (kind, component.id) if kind == "source" else None)
                self._leave(component, (kind, component.id), 0)
        for name, channel in self.circuit.channels.items():
            if channel.buffered:
                self._deliver(name, ("queue", name), 0)
        for name in list(self.circuit.channels):
            key = before_key(name)
            if key in self.layout.inserted:
                self._into_channel(name, ("queue", key), 0, queued=True)
            for join in self.circuit.consumers[name]:
                place = edge_key(name, join)
                if place in self.layout.inserted:
                    self._enter(join.component, ("queue", place), 0)

    def _note(self, place: str, key: DriverKey | None) -> bool:
        """Note that *key* runs *place*; tells whether that is new."""
        keys = self.layout.runs.setdefault(place, set())
        new = key is not None and key not in keys
        if key is not None:
            keys.add(key)
        return new

    def _leave(self, component: Component, key: DriverKey, depth: int) -> None:
        for _, channel in self.circuit.outputs(component):
            self._into_channel(channel, key, depth)

    def _into_channel(self, name: str, key: DriverKey, depth: int, *, queued: bool = False) -> None:
        if before_key(name) in self.layout.inserted and not queued:
            return
        channel = self.circuit.channels[name]
        if channel.serial and not channel.buffered and not self._note(f"channel:{name}", key):
            return
        if not channel.buffered:
            self._deliver(name, key, depth)

    def _deliver(self, name: str, key: DriverKey, depth: int) -> None:
        for join in self.circuit.consumers[name]:
            place = edge_key(name, join)
            if place in self.layout.inserted or join.port.pulled:
                continue
            if depth >= LONGEST_CHAIN:
                self.layout.inserted[place] = f"the direct chain is {LONGEST_CHAIN} slets long"
                continue
            self._enter(join.component, key, depth + 1)

    def _enter(self, component: Component, key: DriverKey, depth: int) -> None:
        if self._note(component.id, key) and not component.spec.own_driver:
            self._leave(component, key, depth)


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
