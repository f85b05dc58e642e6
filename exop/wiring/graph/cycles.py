"""Cycles: which there are, and when they end: after all that feeds them, as soon as nothing moves inside any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator

from exop.model.items import EndOfStream
from exop.runtime.channels.queue import Buffered
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import current_driver
from exop.runtime.lifecycle import State
from exop.wiring.graph.wiring_graph import Edge, WiringGraph, edge_queue, input_queue


class EndOfCycle:
    """Watches one cycle; a driver that has nothing to do calls it, and calls what it returns.

    Each member of a cycle waits for the end of the one before it. Once all that feeds the cycle has ended and nothing
    moves inside, the end is sent into its queues, and what its slets emit then does not go round once more.
    """

    def __init__(self, deployment: Deployment, graph: WiringGraph, loop: tuple[str, ...]) -> None:
        self._deployment = deployment
        self.loop = loop
        self._members = members = [graph.nodes[name].component for name in loop]
        feeding = [(channel, edge) for member in members for channel, edge in graph.nodes[member.node.name].inputs]
        producers = (edge.component for channel, _ in feeding for edge in graph.producers[channel])
        self._feeders = {one for one in producers if one.node.name not in loop}
        self._places = {*inner_places(graph, loop)}
        for channel, edge in feeding:
            self._places |= {channel, input_queue(channel), edge_queue(channel, edge)}
        self.touched = {*loop, *(feeder.node.name for feeder in self._feeders), *(channel for channel, _ in feeding)}
        self._cut = [*_where_to_cut(graph, loop)]
        self._turn = threading.Lock()
        self._done = False

    def __call__(self) -> Callable[[], None] | None:
        """Return what ends the cycle, if it has come to its end."""
        with self._turn:
            if self._done or any(feeder.status is not State.ENDED for feeder in self._feeders):
                return None
            if all(member.status is State.ENDED for member in self._members) or not self._quiet():
                return None
        return self._end

    def _quiet(self) -> bool:
        """Whether nothing waits and no driver is busy: seen twice, with nothing taken in between."""
        named = (self._deployment.inserted.get(place) or self._deployment.channels.get(place) for place in self._places)
        queues = [one for one in named if isinstance(one, Buffered)]
        drivers = {
            driver for member in self._members for driver in (member.driver, member.runner) if driver is not None
        }
        before = [queue.cursor for queue in queues]
        if any(queue.entries for queue in queues):
            return False
        if any(driver.busy or driver.filled for driver in drivers - {current_driver()}):
            return False
        if any(feeder.runner is not None and feeder.runner.filled for feeder in self._feeders):
            return False
        return before == [queue.cursor for queue in queues] and not any(queue.entries for queue in queues)

    def _end(self) -> None:
        """Send the end, once; a driver that was taken off its thread before leaves that to another one."""
        with self._turn:
            done, self._done = self._done, True
        if done:
            return
        for edge in self._cut:
            edge.component.to[edge.port.name].control(EndOfStream())


def _where_to_cut(graph: WiringGraph, loop: Collection[str]) -> Iterator[Edge]:
    """The outputs that push into the queues of a cycle; an engine sends its end itself."""
    for name in _inner_channels(graph, loop):
        producers = [edge for edge in graph.producers[name] if edge.component.node.name in loop]
        if graph.channels[name].buffered and not any(edge.component.spec.own_driver for edge in producers):
            yield from producers


def find_cycles(graph: WiringGraph, order: Iterable[str]) -> list[list[str]]:
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
                todo += graph.upstream(one)
        if len(group) > 1:
            members = [one for one in group if one in graph.nodes]
            loops.append(sorted(members, key=lambda name: graph.nodes[name].rank))
    return loops


def _inner_channels(graph: WiringGraph, loop: Collection[str]) -> list[str]:
    """The channels by which the members of a loop reach each other."""
    found = dict.fromkeys(name for node in loop for name, _ in graph.nodes[node].outputs)
    return [name for name in found if any(edge.component.node.name in loop for edge in graph.consumers[name])]


def inner_places(graph: WiringGraph, loop: Collection[str]) -> Iterator[str]:
    """The places inside a loop where queues may stand, and its buffered channels."""
    for name in _inner_channels(graph, loop):
        yield from (name, input_queue(name)) if graph.channels[name].buffered else (input_queue(name),)
        yield from (edge_queue(name, edge) for edge in graph.consumers[name] if edge.component.node.name in loop)
