"""A stand-in for a mesh, whose names and connections need not be valid."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

Ports = Mapping[str, str]


def sketch(name: str, nodes: Mapping[str, tuple[str, str, Ports, Ports]], kinds: Mapping[str, str]) -> Any:
    """A mesh of *nodes*, each with role, slet, and the channels of its inputs and outputs; *kinds* are of channels."""
    made = [_node(one, *facts) for one, facts in nodes.items()]

    def ends(direction: str, channel: str) -> list[tuple[Any, str]]:
        return [(node, port) for node in made for port, to in getattr(node, direction)().items() if to == channel]

    return SimpleNamespace(
        name=name,
        nodes={node.name: node for node in made},
        channels={one: SimpleNamespace(kind=kind, settings={}) for one, kind in kinds.items()},
        producers=lambda channel: ends("outputs", channel),
        consumers=lambda channel: ends("inputs", channel),
        place_of=lambda _: None,
    )


def _node(name: str, role: str, slet: str, inputs: Ports, outputs: Ports) -> Any:
    code = SimpleNamespace(role=role, identity=slet)
    return SimpleNamespace(name=name, slet=code, inputs=lambda: inputs, outputs=lambda: outputs, group=None, host=None)
