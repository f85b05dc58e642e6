"""The ports at each channel of a mesh: read from its nodes once, and derived from edit to edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from exop.model.mesh import Node

#: The ports at each channel, as (node, port).
Ports: TypeAlias = dict[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Ends:
    """The output and the input ports at each channel, in the order of the nodes; channels without any are left out."""

    outputs: Ports
    inputs: Ports

    @staticmethod
    def of(nodes: Mapping[str, Node]) -> Ends:
        """Read them from all nodes."""
        found: tuple[dict[str, list[tuple[str, str]]], ...] = ({}, {})
        for node in nodes.values():
            for ends, ports in zip(found, _ports(node), strict=True):
                for port, channel in ports.items():
                    ends.setdefault(channel, []).append((node.name, port))
        return Ends(*({channel: tuple(ports) for channel, ports in ends.items()} for ends in found))

    def after(self, nodes: Mapping[str, Node], before: Mapping[str, Node | None]) -> Ends:
        """Derive those of *nodes* after an edit; *before* has the nodes in the places that were edited."""
        changed = [(name, old, nodes.get(name)) for name, old in before.items()]
        changed = [(name, old, new) for name, old, new in changed if _ports(old) != _ports(new)]
        if not changed:
            return self
        moved = any(old is not None and new is not None for _, old, new in changed)
        place = dict(zip(nodes, count(), strict=False)) if moved else {}  # what is added stands behind the others
        outputs, inputs = self.outputs.copy(), self.inputs.copy()
        for name, old, new in changed:
            for ends, gone, come in zip((outputs, inputs), _ports(old), _ports(new), strict=True):
                for channel in {*gone.values(), *come.values()}:
                    others = [end for end in ends.pop(channel, ()) if end[0] != name]
                    mine = [(name, port) for port, to in come.items() if to == channel]
                    if others or mine:
                        found = [*others, *mine]
                        ends[channel] = tuple(sorted(found, key=lambda end: place[end[0]]) if moved else found)
        return Ends(outputs, inputs)


def _ports(node: Node | None) -> tuple[dict[str, str], dict[str, str]]:
    """The channels of the output and of the input ports of a node."""
    return ({}, {}) if node is None else (node.outputs(), node.inputs())
