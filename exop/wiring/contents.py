"""Items of a bundle's classes that wait in an application, converted when its slets get another version.

The new slets know the classes of their own version. So what is on its way to them, in channels and in flight at
drivers, is made into values of these classes while everything stands still.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from exop.errors import PlanError
from exop.model.handover import new_version
from exop.model.mesh import Mesh
from exop.model.versions import Mover, NoVersion, package_of
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.source import SourceDriver
from exop.wiring.places import channel_at, port_at
from exop.wiring.plan import Plan

Undo = Callable[[], object]


def move_contents(deployment: Deployment, plan: Plan, drivers: Collection[Driver], undo: list[Undo]) -> None:
    """Move what is on its way to slets of a new version; *drivers* are parked. What is done leaves its undoing.

    Raises:
        PlanError: an item is of a class that the new version does not have.
    """
    nodes: dict[str, set[str]] = {}
    types: dict[str, list[Any]] = {}
    for step in plan.steps:
        if step.before is None or step.after is None or (package := new_version(step.before, step.after)) is None:
            continue
        nodes.setdefault(package, set()).add(step.node)
        types.setdefault(package, []).extend(
            port.type.item for port in (*step.before.slet.inputs, *step.after.slet.inputs)
        )
    for package, replaced in nodes.items():
        if any(map(Mover(package).concerns, types[package])):
            _Contents(deployment, plan.after, package, replaced, drivers, undo).move()


@dataclasses.dataclass
class _Contents:
    deployment: Deployment
    after: Mesh
    package: str
    nodes: set[str]
    drivers: Collection[Driver]
    undo: list[Undo]

    def __post_init__(self) -> None:
        self._mover = Mover(self.package)
        self._channels = {name for name in self.after.channels if self._is_theirs(name)}

    def move(self) -> None:
        """Move all of it; what was moved is put back by the undoing."""
        try:
            for name in self._channels:
                if name in self.deployment.channels:
                    self._exchange(self.deployment.channels[name].exchange)
            for place, queue in self.deployment.inserted.items():
                if self._leads_to_them(f"queue {place}"):
                    self._exchange(queue.exchange)
            for component in self.deployment.components.values():
                if component.node.name in self.nodes:
                    self._of_component(component)
            self._exchange(partial(self.deployment.inlets.exchange, self._leads_to_them))
            for driver in self.drivers:
                if isinstance(driver, SourceDriver) and driver.hand is not None and self._feeds_them(driver):
                    self.undo.append(partial(setattr, driver, "hand", driver.hand))
                    driver.hand = self._mover.move(driver.hand)
        except NoVersion as problem:
            raise PlanError(f"an item that waits in {self.after.name} cannot be handed over: {problem}") from problem

    def _exchange(self, exchange: Callable[[Callable[[Any], Any]], None]) -> None:
        """Move what something keeps, and remember what it was."""
        was: dict[int, tuple[Any, Any]] = {}

        def move(item: Any) -> Any:
            moved = self._mover.move(item)
            if moved is not item:
                was[id(moved)] = item, moved
            return moved

        self.undo.append(lambda: exchange(lambda item: was.get(id(item), (item,))[0]))
        exchange(move)

    def _of_component(self, component: Component) -> None:
        for port in component.pulled.values():
            self._exchange(port.exchange)
        kept = component.trouble.kept
        if kept is not None:
            self.undo.append(partial(setattr, component.trouble, "kept", kept))
            pulled = self._mover.move(dict(kept.pulled))
            component.trouble.kept = dataclasses.replace(kept, item=self._mover.move(kept.item), pulled=pulled)

    def _feeds_them(self, driver: Driver) -> bool:
        nodes = [one.node for one in self.deployment.components.values() if one.driver is driver]
        return any(channel in self._channels for node in nodes for channel in node.outputs().values())

    def _is_theirs(self, channel: str) -> bool:
        """Whether those of the bundle who take from a channel are replaced, all of them."""
        found = [node for node, _ in self.after.consumers(channel) if self._is_of_bundle(node.slet.factory.__module__)]
        return bool(found) and all(node.name in self.nodes for node in found)

    def _is_of_bundle(self, module: str) -> bool:
        one, other = package_of(module), package_of(self.package)
        return one is not None and other is not None and one[1] == other[1]

    def _leads_to_them(self, place: str) -> bool:
        target = port_at(place)
        if not target:
            return channel_at(place) in self._channels
        name, _, port = target.rpartition(".")
        node = self.after.nodes.get(name)
        if node is not None and port in node.outputs():
            return node.outputs()[port] in self._channels
        return name in self.nodes
