"""The pending lines of a component: a driver gives it its new settings between two items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from exop.model.condition import Condition
from exop.model.lines import Line, condition_of, fired, without
from exop.model.ports import PortSpec
from exop.runtime.entry import Entry
from exop.runtime.ledger import Firing, Ledger
from exop.runtime.lines import Watch
from exop.shown import RAISED, described

if TYPE_CHECKING:
    from exop.runtime.component import Component

#: Compiles the way into a port without a guard.
Compiled = Callable[["Component", PortSpec], Entry]


class NodeWatch(Watch):
    """Looks at what comes into one component, and configures it."""

    def __init__(self, component: Component, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._component = component
        self._compiled: dict[str, tuple[PortSpec, Compiled]] = {}

    def guard(self, port: PortSpec, inner: Entry, compiled: Compiled) -> Entry:
        """Put a guard in front of the way into a port; *compiled* makes that way anew, with new settings."""
        self._compiled[port.name] = port, compiled
        return self.behind(port.name, inner, port.type)

    @property
    def name(self) -> str:
        """The node."""
        return self._component.node.name

    @property
    def pending(self) -> tuple[Line, ...]:
        """The settings pending at the node now."""
        return self._component.node.pending

    def condition(self, line: Line) -> Condition:
        """Read with what the slet has."""
        return condition_of(self._component.node, line)

    def settings(self) -> Mapping[str, Any]:
        """The settings of the node."""
        return self._component.node.settings

    def take_effect(self, line: Line) -> None:
        """Configure the component; a slet that refuses the settings goes on with those that it has."""
        component = self._component
        before = component.node
        rest = without(before.pending, line)
        dropped = False
        try:
            component.configure(fired(before, line))
        except RAISED as error:  # whatever a property of the slet raises: the item is not lost by it
            dropped = True
            self.ledger.tell("a slet refused its settings", place=self.name, line=str(line), problem=described(error))
            with suppress(*RAISED):
                component.configure(replace(before, pending=rest))
            component.node = replace(before, pending=rest)
        for key, guard in self.guards.items():
            port, compiled = self._compiled[key]
            guard.inner = compiled(component, port)
        if self.ledger.counts(component):
            self.ledger.note(Firing("nodes", self.name, line, dropped))
        component.announce()
