"""The assignment of drivers: where drivers would meet in one slet, they share a worker, or a queue is inserted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Final, Literal, TypeAlias, TypeVar

from exop.errors import WiringError
from exop.runtime.component import Component
from exop.runtime.tied import DurableTie
from exop.wiring.circuit import Circuit, Join, before_key, channel_key, channel_of, edge_key, in_front_of, possible
from exop.wiring.loops import find_loops, inner_places

#: Who runs something: a source or an engine, by its node, or the worker of a queue, by the queue's name or place.
DriverKey: TypeAlias = tuple[Literal["source", "engine", "queue"], str]
#: So many slets (and channels that keep something) may call each other; each of them takes up to seven frames.
LONGEST_CHAIN: Final = 100

Value = TypeVar("Value")


@dataclass
class Layout:
    """The drivers of a circuit. It names components by their nodes, so a successor changes nothing in it.

    Attributes:
        inserted: The places where a queue is needed, and why.
        groups: For each queue (buffered channels by name, inserted ones by place), those that share its worker.
        runs: The drivers of each node, and of each channel that keeps something (`channel:name`).
        depths: For each node, the length of the longest chain of direct calls that ends in it.
        order: How far downstream each node and each channel (`channel:name`) is.
        queued: How far downstream each queue is.
        loops: The nodes of each cycle.
    """

    inserted: dict[str, str] = field(default_factory=dict)
    groups: dict[str, frozenset[str]] = field(default_factory=dict)
    runs: dict[str, set[DriverKey]] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)
    queued: dict[str, int] = field(default_factory=dict)
    loops: list[list[str]] = field(default_factory=list)

    def patched(self, nodes: Collection[str], channels: Collection[str], part: Layout) -> Layout:
        """The same with *part* in place of these nodes and channels; nothing else is connected with either."""
        gone = {*nodes, *map(channel_key, channels)}
        emptied = {queue for queue in self.queued if channel_of(queue) in channels}

        def kept(before: Mapping[str, Value], fresh: Mapping[str, Value], gone: set[str] = emptied) -> dict[str, Value]:
            return {**{place: one for place, one in before.items() if place not in gone}, **fresh}

        return Layout(
            kept(self.inserted, part.inserted),
            kept(self.groups, part.groups),
            kept(self.runs, part.runs, gone),
            kept(self.depths, part.depths, gone),
            kept(self.order, part.order, gone),
            kept(self.queued, part.queued),
            [*(loop for loop in self.loops if loop[0] not in gone), *part.loops],
        )


def lay_out(circuit: Circuit, standing: Mapping[str, str] | None = None) -> Layout:
    """Find the drivers; insert queues and let queues share workers until no two drivers meet.

    Queues of one cycle share a worker too, which drains first what is overfull. *standing* has the queues that were
    inserted before, with the reason: they may hold items, and stay while their place is there. Raises `WiringError`
    for slets that call each other in a circle, with no queue between them.
    """
    places = circuit.ordered()
    still = set(possible(circuit)) if standing else set()
    inserted = {place: reason for place, reason in (standing or {}).items() if place in still}
    layout = Layout(inserted, loops=find_loops(circuit, places))
    workers = _Workers()
    while not _Reach(circuit, layout, workers).complete():
        pass
    queues = _queues(circuit, layout)
    known = set(queues)
    for loop in layout.loops:
        workers.unite(known.intersection(inner_places(circuit, loop)))
    layout.groups = workers.groups(queues)
    layout.order = {place: index for index, place in enumerate(places)}
    layout.queued = _queued(layout, queues)
    return layout


class _Workers:
    """The queues that share a worker, as disjoint sets."""

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
        self._above |= dict.fromkeys(found[1:], found[0] if found else "")

    def groups(self, queues: Iterable[str]) -> dict[str, frozenset[str]]:
        """Return for each queue all that share its worker."""
        together: dict[str, list[str]] = {}
        for queue in queues:
            together.setdefault(self.of(queue), []).append(queue)
        return {queue: group for group in map(frozenset, together.values()) for queue in group}


class _Reach:
    """One walk downstream: it comes to a slet after all of its callers, and separates drivers that meet in it.

    A walk is not complete if it inserts a queue in front of a channel of which it has passed some readers already.
    """

    def __init__(self, circuit: Circuit, layout: Layout, workers: _Workers) -> None:
        self._circuit, self._layout, self._workers = circuit, layout, workers
        self._inserted = layout.inserted
        self._behind: dict[str, set[DriverKey]] = {}
        self._late = False

    def complete(self) -> bool:
        """Note the drivers of each place, and insert the queues that this takes; `False`: walk again."""
        self._layout.runs = {}
        for component in _in_order(self._circuit, self._inserted):
            fed = [(name, join) for name, join in self._circuit.inputs(component) if not join.port.pulled]
            self._split_chain(component, fed)
            keys = self._keys(component, fed)
            if self._apart(keys):
                for name, join in fed if any(kind != "queue" for kind, _ in keys) else ():
                    if not self._circuit.channels[name].buffered:
                        self._insert(name, join, f"several drivers meet in {component.node.name}: {_named(keys)}")
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
                above = int(self._circuit.channels[name].serial)
                if before_key(name) not in self._inserted:
                    above += sent_at(self._circuit, self._layout, name)
                if above >= LONGEST_CHAIN:
                    self._insert(name, join, f"the direct chain is {LONGEST_CHAIN} slets long")
                else:
                    deep = max(deep, above)
        self._layout.depths[component.node.name] = deep + 1

    def _keys(self, component: Component, fed: list[tuple[str, Join]]) -> set[DriverKey]:
        """The drivers of a component."""
        keys: set[DriverKey] = set()
        if component.spec.iterated and not component.spec.own_driver:
            keys.add(("source", component.node.name))
        for name, join in fed:
            place = edge_key(name, join)
            keys |= {("queue", place)} if place in self._inserted else self._runs_behind(name)
        return keys

    def _runs_behind(self, name: str) -> set[DriverKey]:
        """The drivers of the slets behind a channel."""
        channel = self._circuit.channels[name]
        if channel.buffered:
            return {("queue", name)}
        if name not in self._behind:
            before: set[DriverKey] = {("queue", before_key(name))}
            keys = before if before_key(name) in self._inserted else _pushers(self._circuit, self._layout, name)
            if channel.serial and self._apart(keys):
                if all(kind == "queue" for kind, _ in keys):
                    self._workers.unite(queue for _, queue in keys)
                else:
                    self._inserted[before_key(name)] = f"several drivers push into {name}: {_named(keys)}"
                    keys = before
            if channel.serial:
                self._layout.runs[channel_key(name)] = keys
            self._behind[name] = keys
        return self._behind[name]

    def _apart(self, keys: set[DriverKey]) -> bool:
        """Whether two drivers meet: queues that share a worker have one."""
        owners = {(kind, self._workers.of(name) if kind == "queue" else name) for kind, name in keys}
        return len(owners) > 1


def _pushers(circuit: Circuit, layout: Layout, channel: str) -> set[DriverKey]:
    """The drivers that push into a channel."""
    found: set[DriverKey] = set()
    for component in (join.component for join in circuit.producers[channel]):
        spec, node = component.spec, component.node.name
        own: set[DriverKey] = {("engine" if spec.own_driver else "source", node)}
        found |= own if spec.own_driver or spec.iterated else layout.runs.get(node, set())
    return found


def sent_at(circuit: Circuit, layout: Layout, channel: str) -> int:
    """How many calls stand above what is pushed into a channel."""
    pushers = (join.component for join in circuit.producers[channel])
    found = [1 if one.spec.own_driver or one.spec.iterated else layout.depths[one.node.name] for one in pushers]
    return max(found, default=0)


def _named(keys: set[DriverKey]) -> str:
    return ", ".join(sorted(f"{kind} {name}" for kind, name in keys))


def _in_order(circuit: Circuit, inserted: Mapping[str, str]) -> list[Component]:
    """The components, each behind its callers."""
    callers = {
        node: [caller for name in circuit.direct(node, inserted) for caller in circuit.callers(name, inserted)]
        for node in circuit.nodes
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
    pulled = {name for name, joins in circuit.consumers.items() if [join.port.pulled for join in joins] == [True]}
    buffered = (name for name, channel in circuit.channels.items() if channel.buffered)
    return [*(name for name in buffered if name not in pulled), *layout.inserted]


def _queued(layout: Layout, queues: Iterable[str]) -> dict[str, int]:
    """How far downstream each queue is: where the first slet is that its worker runs for it."""
    order, first = layout.order, dict[str, int]()
    for place in sorted(layout.runs, key=order.__getitem__, reverse=True):
        first |= {queue: order[place] for kind, queue in layout.runs[place] if kind == "queue"}
    # A queue that leads into further queues only is as far downstream as its channel.
    return {queue: first[queue] if queue in first else order[channel_key(channel_of(queue))] for queue in queues}


def check_order(circuit: Circuit, layout: Layout, components: Iterable[Component]) -> None:
    """Raise `WiringError` if the streams of several threads merge before an engine of a durable application.

    An engine recognizes items that are sent again after a crash by their number: if the order of the merge is another
    one then, it would lose some items, and take others twice.
    """
    for component in components:
        if isinstance(component.tie, DurableTie):
            place = _merge(circuit, layout, component)
            if place is not None:
                raise WiringError(
                    f"{component.node.name} commits by itself, and recognizes what is sent again after a crash by its "
                    f"number; but several threads meet at {place} before it, in an order that is another one each "
                    f"time; put the engine before that, one for each stream, or leave out app.durable()"
                )


def _merge(circuit: Circuit, layout: Layout, engine: Component) -> str | None:
    """Return where, before an engine, streams of several drivers meet."""
    todo, seen = [engine], {engine.id}
    while todo:
        component = todo.pop()
        fed, iterated = circuit.inputs(component), component.spec.iterated
        if len(fed if iterated else layout.runs.get(component.node.name, ())) > 1:
            return component.node.name
        for name, _ in fed:
            if len(_pushers(circuit, layout, name)) > 1:
                return f"the channel {name!r}"
            producers = [join.component for join in circuit.producers[name]]
            # The output of an engine comes from its log, always in the same order; sources begin a stream.
            fresh = {one.id: one for one in producers if not one.spec.own_driver and one.id not in seen}
            seen |= fresh.keys()
            todo += fresh.values()
    return None
