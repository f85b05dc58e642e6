"""Which nodes stand in a cycle together."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import TypeVar

from exop.runtime.component import Component
from exop.wiring.circuit import Circuit
from exop.wiring.places import before_key, edge_key

Name = TypeVar("Name", bound=Hashable)


def find_loops(circuit: Circuit) -> list[list[str]]:
    """The sets of nodes that reach each other, those in no cycle left out.

    A slet that is fed by itself is a cycle too.
    """
    following = {name: _followers(circuit, vertex.component) for name, vertex in circuit.nodes.items()}
    return [
        sorted(group, key=lambda name: circuit.nodes[name].rank)
        for group in strongly_connected(following)
        if len(group) > 1 or group[0] in following[group[0]]
    ]


def _followers(circuit: Circuit, component: Component) -> list[str]:
    """The nodes into which the outputs of *component* lead."""
    return [
        join.component.node.name for _, channel in circuit.outputs(component) for join in circuit.consumers[channel]
    ]


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


def strongly_connected(following: dict[Name, list[Name]]) -> Iterator[list[Name]]:
    """The sets of nodes that reach each other (Tarjan's algorithm, without recursion)."""
    number: dict[Name, int] = {}
    lowest: dict[Name, int] = {}
    path: list[Name] = []
    on_path: set[Name] = set()
    for start in following:
        if start in number:
            continue
        stack = [(start, iter(following[start]))]
        number[start] = lowest[start] = len(number)
        path.append(start)
        on_path.add(start)
        while stack:
            here, rest = stack[-1]
            for child in rest:
                if child not in number:
                    number[child] = lowest[child] = len(number)
                    path.append(child)
                    on_path.add(child)
                    stack.append((child, iter(following[child])))
                    break
                if child in on_path:
                    lowest[here] = min(lowest[here], number[child])
            else:
                stack.pop()
                if stack:
                    above = stack[-1][0]
                    lowest[above] = min(lowest[above], lowest[here])
                if lowest[here] == number[here]:
                    group = [path.pop()]
                    while group[-1] != here:
                        group.append(path.pop())
                    on_path.difference_update(group)
                    yield group
