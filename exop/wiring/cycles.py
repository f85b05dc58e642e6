"""Which components stand in a cycle together."""

from __future__ import annotations

from collections.abc import Iterator

from exop.runtime.component import Component
from exop.wiring.circuit import Circuit
from exop.wiring.places import before_key, edge_key


def find_loops(circuit: Circuit) -> list[list[Component]]:
    """The sets of components that reach each other, those in no cycle left out.

    A slet that is fed by itself is a cycle too.
    """
    components = {component.id: component for component in circuit.components()}
    following = {name: [one.id for one in followers(circuit, one)] for name, one in components.items()}
    return [
        [one for name, one in components.items() if name in set(group)]
        for group in strongly_connected(following)
        if len(group) > 1 or group[0] in following[group[0]]
    ]


def followers(circuit: Circuit, component: Component) -> list[Component]:
    """The components into which the outputs of *component* lead."""
    return [join.component for _, channel in circuit.outputs(component) for join in circuit.consumers[channel]]


def inner_channels(circuit: Circuit, loop: list[Component]) -> list[str]:
    """The channels by which the members of a loop reach each other."""
    inside = {component.id for component in loop}
    return [
        name
        for name in circuit.channels
        if any(join.component.id in inside for join in circuit.producers[name])
        and any(join.component.id in inside for join in circuit.consumers[name])
    ]


def inner_places(circuit: Circuit, loop: list[Component]) -> Iterator[str]:
    """The queues that may stand inside a loop: its buffered channels, and the places of inserted ones."""
    inside = {component.id for component in loop}
    for name in inner_channels(circuit, loop):
        if circuit.channels[name].buffered:
            yield name
        yield before_key(name)
        yield from (edge_key(name, join) for join in circuit.consumers[name] if join.component.id in inside)


def strongly_connected(following: dict[str, list[str]]) -> Iterator[list[str]]:
    """The sets of nodes that reach each other (Tarjan's algorithm, without recursion)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
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
                    at = path.index(here)
                    group, path[at:] = path[at:], []
                    on_path.difference_update(group)
                    yield group
