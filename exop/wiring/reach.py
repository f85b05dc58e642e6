"""Where each driver gets to: what it runs from where it pushes until the next queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from exop.runtime.component import Component
from exop.wiring.circuit import Circuit
from exop.wiring.places import before_key, edge_key

DriverKey = tuple[Literal["source", "engine", "queue"], str]


def reach(circuit: Circuit, inserted: Mapping[str, str]) -> dict[str, set[DriverKey]]:
    """Follow every driver; returns, for each component and each channel that keeps something, who runs it."""
    walk = _Walk(circuit, inserted)
    walk.start()
    while walk.todo:
        channel, key, queued = walk.todo.pop()
        walk.into(channel, key, queued=queued)
    return walk.runs


class _Walk:
    """A walk over the circuit with a list of what is still to be followed, so that long chains need no deep stack."""

    def __init__(self, circuit: Circuit, inserted: Mapping[str, str]) -> None:
        self.circuit, self.inserted = circuit, inserted
        self.runs: dict[str, set[DriverKey]] = {}
        self.todo: list[tuple[str, DriverKey, bool]] = []

    def start(self) -> None:
        """Begin at the slets that drive themselves or are iterated, and at the queues."""
        for component in self.circuit.components():
            if component.spec.own_driver:
                self.runs.setdefault(component.id, set())
                self._leave(component, ("engine", component.id))
            elif component.spec.iterated:
                self._note(component.id, ("source", component.id))
                self._leave(component, ("source", component.id))
        for name, channel in self.circuit.channels.items():
            if channel.buffered:
                self._deliver(name, ("queue", name))
            if before_key(name) in self.inserted:
                self.todo.append((name, ("queue", before_key(name)), True))
            for join in self.circuit.consumers[name]:
                place = edge_key(name, join)
                if place in self.inserted and not join.port.pulled:
                    self._enter(join.component, ("queue", place))

    def into(self, name: str, key: DriverKey, *, queued: bool) -> None:
        """Push into a channel, as *key*; *queued* when the queue in front of it has been passed."""
        channel = self.circuit.channels[name]
        if channel.buffered or (before_key(name) in self.inserted and not queued):
            return
        if not channel.serial or self._note(f"channel:{name}", key):
            self._deliver(name, key)

    def _deliver(self, name: str, key: DriverKey) -> None:
        for join in self.circuit.consumers[name]:
            if not (join.port.pulled or edge_key(name, join) in self.inserted):
                self._enter(join.component, key)

    def _enter(self, component: Component, key: DriverKey) -> None:
        if self._note(component.id, key) and not component.spec.own_driver:
            self._leave(component, key)

    def _leave(self, component: Component, key: DriverKey) -> None:
        self.todo += [(channel, key, False) for _, channel in self.circuit.outputs(component)]

    def _note(self, place: str, key: DriverKey) -> bool:
        """Note that *key* runs *place*; tells whether that is new."""
        keys = self.runs.setdefault(place, set())
        if key in keys:
            return False
        keys.add(key)
        return True
