"""Who may have to wait for room at whose queue: drivers that could wait for each other would wait for ever.

Back-pressure makes a driver wait until another one has drained a queue. Queues of one cycle, and queues on one path of
which the first and the last share a worker, would make workers wait in a circle; so they share one worker, which never
waits for itself. A slet that pulls has a driver of its own, which shares nothing: it exceeds the capacity instead, by
what it makes of the items that it had taken, and the worker drains what is overfull first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from exop.wiring.circuit import Circuit, Join
from exop.wiring.cycles import strongly_connected
from exop.wiring.places import before_key, edge_key

if TYPE_CHECKING:
    from exop.wiring.layout import DriverKey

#: Who drains a queue: the slet that pulls from it, or the worker of a group of queues (named after its first).
Owner: TypeAlias = tuple[str, str]


@dataclass
class Waits:
    """The drivers of a circuit, and whose queues each of them pushes into.

    Args:
        circuit: What is connected.
        inserted: The places where queues are inserted.
        groups: For each queue that a worker drains, those that share its worker.
        runs: For each component, by its node, the drivers that run it.
    """

    circuit: Circuit
    inserted: dict[str, str]
    groups: Mapping[str, frozenset[str]]
    runs: dict[str, set[DriverKey]]
    into: dict[Owner, dict[Owner, set[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        leaders = {group: min(group) for group in self.groups.values()}
        self._leader = {queue: leaders[group] for queue, group in self.groups.items()}
        self._circles: list[list[Owner]] | None = None
        for pusher, queue, puller in self._pushes():
            owner = self._owner(queue, puller)
            for one in {self._of(key) for key in pusher} - {owner}:
                self.into.setdefault(one, {}).setdefault(owner, set()).add(queue)
                self.into.setdefault(owner, {})

    def circles(self) -> list[list[Owner]]:
        """The sets of drivers that could wait for each other."""
        if self._circles is None:
            following = {one: list(others) for one, others in self.into.items()}
            self._circles = [found for found in strongly_connected(following) if len(found) > 1]
        return self._circles

    def to_unite(self) -> list[set[str]]:
        """The queues of each circle: one worker is to drain them."""
        leaders = [{name for kind, name in circle if kind == "queue"} for circle in self.circles()]
        return [set[str]().union(*(self.groups[one] for one in found)) for found in leaders if len(found) > 1]

    def spilling(self) -> Iterator[tuple[str, str]]:
        """The queues that a slet with a driver of its own may overfill, each with the node of that slet."""
        for circle in self.circles():
            for one in circle:
                if one[0] != "queue":
                    for other in circle:
                        yield from ((queue, one[1]) for queue in self.into[one].get(other, ()))

    def _pushes(self) -> Iterator[tuple[set[DriverKey], str, Join | None]]:
        """Who pushes into each queue, and which port pulls from it, if one does."""
        for name, channel in self.circuit.channels.items():
            pushers = {key for join in self.circuit.producers[name] for key in self._runners(join)}
            joins = self.circuit.consumers[name]
            if before_key(name) in self.inserted:
                yield pushers, before_key(name), None
                pushers = {("queue", before_key(name))}
            if channel.buffered:
                alone = joins[0] if len(joins) == 1 and joins[0].port.pulled else None
                yield pushers, name, alone
                if alone is not None:
                    continue
                pushers = {("queue", name)}
            for join in joins:
                if edge_key(name, join) in self.inserted:
                    yield pushers, edge_key(name, join), join if join.port.pulled else None

    def _runners(self, join: Join) -> set[DriverKey]:
        component = join.component
        if component.spec.own_driver:
            return {("engine", component.node.name)}
        return self.runs.get(component.node.name, set())

    def _owner(self, queue: str, puller: Join | None) -> Owner:
        if puller is None:
            return "queue", self._leader.get(queue, queue)
        component = puller.component
        return ("engine" if component.spec.own_driver else "source"), component.node.name

    def _of(self, key: DriverKey) -> Owner:
        kind, name = key
        return (kind, self._leader.get(name, name)) if kind == "queue" else key
