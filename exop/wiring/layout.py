"""The assignment of drivers: where drivers would meet in one slet, they share a worker, or a queue is inserted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Literal, TypeAlias

from exop.errors import WiringError
from exop.runtime.component import Component
from exop.wiring.circuit import Circuit, Join, before_key, channel_of, edge_key, in_front_of, possible
from exop.wiring.loops import find_loops, inner_places

#: Who runs something: a source or an engine, by its node, or the worker of a queue, by the queue's name or place.
DriverKey: TypeAlias = tuple[Literal["source", "engine", "queue"], str]
#: So many slets (and channels that keep something) may call each other; each of them takes up to seven frames.
LONGEST_CHAIN = 100


@dataclass
class Layout:
    """The drivers of a circuit. Components are known by their nodes, so that a successor changes nothing in it.

    Attributes:
        inserted: The places where a queue is needed, and why.
        groups: For each queue (buffered channels by name, inserted ones by place), those that share its worker.
        runs: For each node and each channel that keeps something (`channel:name`), its drivers.
        depths: For each node, how many slets (and channels that keep something) call each other before it, and it.
        order: How far downstream each node is, and each channel (`channel:name`).
        queued: How far downstream each queue is.
        loops: The cycles, each as its nodes.
    """

    inserted: dict[str, str] = field(default_factory=dict)
    groups: dict[str, frozenset[str]] = field(default_factory=dict)
    runs: dict[str, set[DriverKey]] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)
    queued: dict[str, int] = field(default_factory=dict)
    loops: list[list[str]] = field(default_factory=list)

    def without(self, nodes: Collection[str], channels: Collection[str]) -> Layout:
        """The layout of what is in no connection with these nodes and channels."""

        def stays(place: str) -> bool:
            return channel_of(place) not in channels

        gone = {*nodes, *(f"channel:{name}" for name in channels)}
        return Layout(
            {place: reason for place, reason in self.inserted.items() if stays(place)},
            {queue: group for queue, group in self.groups.items() if stays(queue)},
            {place: keys for place, keys in self.runs.items() if place not in gone},
            {node: depth for node, depth in self.depths.items() if node not in nodes},
            {place: rank for place, rank in self.order.items() if place not in gone},
            {queue: rank for queue, rank in self.queued.items() if stays(queue)},
            [loop for loop in self.loops if loop[0] not in nodes],
        )

    def joined(self, other: Layout) -> Layout:
        """Both layouts: they have nothing to do with each other."""
        return Layout(
            self.inserted | other.inserted,
            self.groups | other.groups,
            self.runs | other.runs,
            self.depths | other.depths,
            self.order | other.order,
            self.queued | other.queued,
            [*self.loops, *other.loops],
        )


def lay_out(circuit: Circuit, standing: Mapping[str, str] | None = None) -> Layout:
    """Find the drivers; insert queues and let queues share workers until no two drivers meet.

    Queues of one cycle share a worker too, which drains first what is overfull. *standing* are the queues that were
    inserted before, with the reason: they stay as long as their place is there, since they may hold items.

    Raises:
        WiringError: slets that call each other in a circle, with no queue between them.
    """
    layout = Layout(loops=find_loops(circuit))
    still = set(possible(circuit)) if standing else set()
    layout.inserted |= {place: reason for place, reason in (standing or {}).items() if place in still}
    workers = _Workers()
    while not _Reach(circuit, layout, workers).complete():
        pass
    queues = _queues(circuit, layout)
    known = set(queues)
    for loop in layout.loops:
        workers.unite(known.intersection(inner_places(circuit, loop)))
    layout.groups = workers.groups(queues)
    layout.order = {place: index for index, place in enumerate(_downstream(circuit))}
    layout.queued = _queued(layout, queues)
    return layout


class _Workers:
    """Which queues share a worker, while that is found out: disjoint sets."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def of(self, queue: str) -> str:
        """The queue that stands for all that share the worker of this one."""
        while (above := self._above.get(queue, queue)) != queue:
            self._above[queue] = self._above.get(above, above)
            queue = above
        return queue

    def unite(self, queues: Iterable[str]) -> None:
        """Let these queues, and those that share a worker with one of them, share one."""
        found = [self.of(queue) for queue in queues]
        self._above |= dict.fromkeys(found[1:], found[0]) if found else {}

    def groups(self, queues: Iterable[str]) -> dict[str, frozenset[str]]:
        """For each queue, those with which it shares a worker."""
        together: dict[str, list[str]] = {}
        for queue in queues:
            together.setdefault(self.of(queue), []).append(queue)
        return {queue: group for group in map(frozenset, together.values()) for queue in group}


class _Reach:
    """One walk downstream: it reaches a slet after all of its callers, and separates drivers that meet in it.

    A walk is not complete when a queue was inserted in front of a channel of which something was run already.
    """

    def __init__(self, circuit: Circuit, layout: Layout, workers: _Workers) -> None:
        self._circuit, self._layout, self._workers = circuit, layout, workers
        self._inserted = layout.inserted
        self._behind: dict[str, set[DriverKey]] = {}
        self._late = False

    def complete(self) -> bool:
        """Note who runs what, and insert the queues that this takes; `False`: do it again."""
        self._layout.runs = {}
        for component in _in_order(self._circuit, self._inserted):
            fed = [(name, join) for name, join in self._circuit.inputs(component) if not join.port.pulled]
            self._split_chain(component, fed)
            keys = self._keys(component, fed)
            if self._apart(keys):
                self._part(component, fed, keys)
                keys = self._keys(component, fed)
                self._workers.unite(queue for _, queue in keys)
            self._layout.runs[component.node.name] = keys
            if self._late:
                return False
        for name in self._circuit.channels:
            self._runs_behind(name)
        return True

    def _insert(self, name: str, join: Join, reason: str) -> None:
        """Put a queue between a channel and a port."""
        place = in_front_of(self._circuit, name, join)
        if place not in self._inserted:
            self._inserted[place] = reason
            if place == before_key(name):
                self._behind.pop(name, None)
                self._late = len(self._circuit.consumers[name]) > 1

    def _split_chain(self, component: Component, fed: list[tuple[str, Join]]) -> None:
        """Put a queue where a chain of direct calls is too long, long before Python's recursion limit."""
        deep = 0
        for name, join in fed:
            if not self._circuit.channels[name].buffered and edge_key(name, join) not in self._inserted:
                above = self._depth(name)
                if above >= LONGEST_CHAIN:
                    self._insert(name, join, f"the direct chain is {LONGEST_CHAIN} slets long")
                else:
                    deep = max(deep, above)
        self._layout.depths[component.node.name] = deep + 1

    def _depth(self, name: str) -> int:
        """How many calls stand above what a channel delivers to."""
        own = int(self._circuit.channels[name].serial)
        return own if before_key(name) in self._inserted else own + sent_at(self._circuit, self._layout, name)

    def _keys(self, component: Component, fed: list[tuple[str, Join]]) -> set[DriverKey]:
        """Who runs a component."""
        keys: set[DriverKey] = set()
        if component.spec.iterated and not component.spec.own_driver:
            keys.add(("source", component.node.name))
        for name, join in fed:
            place = edge_key(name, join)
            keys |= {("queue", place)} if place in self._inserted else self._runs_behind(name)
        return keys

    def _runs_behind(self, name: str) -> set[DriverKey]:
        """Who runs what stands behind a channel."""
        channel = self._circuit.channels[name]
        if channel.buffered:
            return {("queue", name)}
        if name not in self._behind:
            before: set[DriverKey] = {("queue", before_key(name))}
            keys = before if before_key(name) in self._inserted else self._pushers(name)
            if channel.serial and self._apart(keys):
                if all(kind == "queue" for kind, _ in keys):
                    self._workers.unite(queue for _, queue in keys)
                else:
                    self._inserted[before_key(name)] = f"several drivers push into {name}: {_named(keys)}"
                    keys = before
            if channel.serial:
                self._layout.runs[f"channel:{name}"] = keys
            self._behind[name] = keys
        return self._behind[name]

    def _pushers(self, name: str) -> set[DriverKey]:
        found = (drivers_of(self._layout, join.component) for join in self._circuit.producers[name])
        return set[DriverKey]().union(*found)

    def _apart(self, keys: set[DriverKey]) -> bool:
        """Whether two drivers meet: queues that share a worker have one."""
        owners = {(kind, self._workers.of(name) if kind == "queue" else name) for kind, name in keys}
        return len(owners) > 1

    def _part(self, component: Component, fed: list[tuple[str, Join]], keys: set[DriverKey]) -> None:
        """Resolve one meeting: queues share their worker; in front of anything else stands a queue."""
        if all(kind == "queue" for kind, _ in keys):
            return
        for name, join in fed:
            if not self._circuit.channels[name].buffered:
                self._insert(name, join, f"several drivers meet in {component.node.name}: {_named(keys)}")


def drivers_of(layout: Layout, component: Component) -> set[DriverKey]:
    """The drivers that push what a component puts out."""
    if component.spec.own_driver:
        return {("engine", component.node.name)}
    if component.spec.iterated:
        return {("source", component.node.name)}
    return layout.runs.get(component.node.name, set())


def sent_at(circuit: Circuit, layout: Layout, channel: str) -> int:
    """How many calls stand above what is pushed into a channel."""
    found = (join.component for join in circuit.producers[channel])
    return max(
        (1 if one.spec.own_driver or one.spec.iterated else layout.depths[one.node.name] for one in found), default=0
    )


def _named(keys: set[DriverKey]) -> str:
    return ", ".join(sorted(f"{kind} {name}" for kind, name in keys))


def _in_order(circuit: Circuit, inserted: Mapping[str, str]) -> list[Component]:
    """The components, each one behind those that call it."""
    callers = {
        node: [
            join.component.node.name
            for name, fed in circuit.inputs(vertex.component)
            if not (circuit.channels[name].buffered or fed.port.pulled or edge_key(name, fed) in inserted)
            and before_key(name) not in inserted
            for join in circuit.producers[name]
        ]
        for node, vertex in circuit.nodes.items()
    }
    try:
        return [circuit.nodes[found].component for found in TopologicalSorter(callers).static_order()]
    except CycleError as problem:
        raise WiringError(
            f"the cycle {' -> '.join(problem.args[1])} contains no queue: it would call itself without end; "
            f"join two of its slets through a channel of the kind 'queue'"
        ) from None


def _queues(circuit: Circuit, layout: Layout) -> list[str]:
    """The queues that a worker drains; a buffered channel whose only consumer pulls is drained by that one."""
    buffered = [name for name, channel in circuit.channels.items() if channel.buffered]
    alone = {name for name in buffered if [join.port.pulled for join in circuit.consumers[name]] == [True]}
    return [*(name for name in buffered if name not in alone), *layout.inserted]


def _queued(layout: Layout, queues: Iterable[str]) -> dict[str, int]:
    """How far downstream each queue is: where the first slet is that its worker runs for it."""
    order, first = layout.order, dict[str, int]()
    for place, keys in layout.runs.items():
        for kind, queue in keys:
            if kind == "queue":
                first[queue] = min(order[place], first.get(queue, order[place]))
    # One that leads into further queues only runs no place: it is as far downstream as its channel.
    return {queue: first[queue] if queue in first else order[f"channel:{channel_of(queue)}"] for queue in queues}


def _downstream(circuit: Circuit) -> list[str]:
    """Components and channels from upstream to downstream (back edges of cycles are ignored)."""
    order: list[str] = []
    seen: set[str] = set()

    def children(place: str) -> Iterator[str]:
        if place.startswith("channel:"):
            yield from (join.component.node.name for join in circuit.consumers[place.removeprefix("channel:")])
        else:
            yield from (f"channel:{channel}" for _, channel in circuit.outputs(circuit.nodes[place].component))

    sources = [name for name, vertex in circuit.nodes.items() if not vertex.component.spec.inputs]
    channels = (f"channel:{name}" for name in circuit.channels)  # one into which nothing is pushed
    for root in (*sources, *circuit.nodes, *channels):
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


def check_order(circuit: Circuit, layout: Layout, components: Iterable[Component]) -> None:
    """Refuse to give to an engine in a durable application what streams of several threads are merged into.

    An engine recognizes by its number what is sent again after a crash. Merged otherwise the second time, some items
    would be lost in it, and some doubled.

    Raises:
        WiringError: several threads meet before an engine.
    """
    for component in components:
        if component.tie is not None and component.tie.durable:
            place = _merge(circuit, layout, component)
            if place is not None:
                raise WiringError(
                    f"{component.node.name} commits by itself, and recognizes what is sent again after a crash by its "
                    f"number; but several threads meet at {place} before it, in an order that is another one each "
                    f"time; put the engine before that, one for each stream, or leave out app.durable()"
                )


def _merge(circuit: Circuit, layout: Layout, engine: Component) -> str | None:
    """Where, before an engine, streams of several drivers meet; `None`: nowhere."""
    todo, seen = [engine], {engine.id}
    while todo:
        component = todo.pop()
        if len(layout.runs.get(component.node.name, ())) > 1 and not component.spec.iterated:
            return component.node.name
        fed = circuit.inputs(component)
        if component.spec.iterated and len(fed) > 1:
            return component.node.name
        for name, _ in fed:
            producers = [join.component for join in circuit.producers[name]]
            if len(set[DriverKey]().union(*(drivers_of(layout, one) for one in producers))) > 1:
                return f"the channel {name!r}"
            for one in producers:
                # What an engine puts out comes from its log, always in the same order; sources begin a stream.
                if not one.spec.own_driver and one.id not in seen:
                    seen.add(one.id)
                    todo.append(one)
    return None
