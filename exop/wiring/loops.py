"""Where a cycle ends: when everything outside of it has ended and nothing moves inside any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator

from exop.model.items import EndOfStream
from exop.model.lifecycle import State
from exop.runtime.channels.queue import Buffered
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver, current_driver
from exop.wiring.circuit import Circuit, Join, before_key, edge_key


class EndOfLoop:
    """Watches one cycle; a driver that has nothing to do calls it, and does what it returns.

    The stream inside a cycle never ends by itself: each member waits for the one before it. Once all that feeds the
    cycle has ended and nothing moves inside, the end of the stream is sent into its queues in the name of those who
    push into them. What slets of the cycle emit at that end does not go round once more.
    """

    def __init__(self, deployment: Deployment, circuit: Circuit, loop: tuple[str, ...]) -> None:
        self._deployment = deployment
        self.loop = loop
        self._members = members = [circuit.nodes[name].component for name in loop]
        inside = set(loop)
        feeding = [(channel, join) for member in members for channel, join in circuit.inputs(member)]
        self._feeders = {
            join.component
            for channel, _ in feeding
            for join in circuit.producers[channel]
            if join.component.node.name not in inside
        }
        self.nodes = {*loop, *(feeder.node.name for feeder in self._feeders)}
        self._places = {*inner_places(circuit, loop)}
        for channel, join in feeding:
            self._places |= {channel, before_key(channel), edge_key(channel, join)}
        self._cut = [*_where_to_cut(circuit, loop)]
        self._turn = threading.Lock()
        self._done = False

    def __call__(self) -> Callable[[], None] | None:
        """What is to be done now, if the cycle has come to its end."""
        with self._turn:
            if self._done or any(feeder.status is not State.ENDED for feeder in self._feeders):
                return None
            if all(member.status is State.ENDED for member in self._members) or not self._quiet():
                return None
        return self._end

    def _quiet(self) -> bool:
        """Nothing waits, and nobody has anything in hand: seen twice, with nothing taken in between."""
        queues = [*self._queues()]
        drivers = {id(one): one for one in self._drivers() if one is not current_driver()}.values()
        before = [queue.cursor for queue in queues]
        if any(queue.entries for queue in queues) or any(driver.busy or driver.filled for driver in drivers):
            return False
        if any(feeder.runner is not None and feeder.runner.filled for feeder in self._feeders):
            return False
        return before == [queue.cursor for queue in queues] and not any(q.entries for q in queues)

    def _queues(self) -> Iterator[Buffered]:
        for place in self._places:
            found = self._deployment.inserted.get(place) or self._deployment.channels.get(place)
            if isinstance(found, Buffered):
                yield found

    def _drivers(self) -> Iterator[Driver]:
        for member in self._members:
            yield from (driver for driver in (member.driver, member.runner) if driver is not None)

    def _end(self) -> None:
        """Send the end, once; the driver that was to do so may have been taken off its thread before."""
        with self._turn:
            done, self._done = self._done, True
        if done:
            return
        for join in self._cut:
            join.component.to[join.port.name].control(EndOfStream())


def _where_to_cut(circuit: Circuit, loop: tuple[str, ...]) -> Iterator[Join]:
    """The outputs that push into the queues of a cycle; an engine says itself when it has ended."""
    inside = set(loop)
    for name in inner_channels(circuit, inside):
        producers = [join for join in circuit.producers[name] if join.component.node.name in inside]
        if circuit.channels[name].buffered and not any(join.component.spec.own_driver for join in producers):
            yield from producers


def find_loops(circuit: Circuit, order: Iterable[str]) -> list[list[str]]:
    """The cycles, each as the nodes that reach each other (Kosaraju's algorithm).

    *order* has all nodes and channels from upstream to downstream. A slet that feeds itself is a cycle, too.
    """
    loops, seen = [], set[str]()
    for place in order:
        group, todo = list[str](), [place]
        while todo:
            if (one := todo.pop()) not in seen:
                seen.add(one)
                group.append(one)
                todo += circuit.upstream(one)
        if len(group) > 1:
            members = [one for one in group if one in circuit.nodes]
            loops.append(sorted(members, key=lambda name: circuit.nodes[name].rank))
    return loops


def inner_channels(circuit: Circuit, loop: Collection[str]) -> list[str]:
    """The channels by which the members of a loop reach each other."""
    leaving = (circuit.outputs(circuit.nodes[name].component) for name in loop)
    found = dict.fromkeys(channel for outputs in leaving for _, channel in outputs)
    return [name for name in found if any(join.component.node.name in loop for join in circuit.consumers[name])]


def inner_places(circuit: Circuit, loop: Collection[str]) -> Iterator[str]:
    """The queues that may stand inside a loop: its buffered channels, and the places of inserted ones."""
    inside = set(loop)
    for name in inner_channels(circuit, inside):
        if circuit.channels[name].buffered:
            yield name
        yield before_key(name)
        yield from (edge_key(name, join) for join in circuit.consumers[name] if join.component.node.name in inside)
