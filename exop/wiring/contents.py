"""Converts the items of a bundle's classes that wait in an application when its slets get another version.

The new slets know the classes of their own version. So the items on their way to them, in channels and in flight, are
made into values of these classes while everything stands still.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from exop.errors import PlanError
from exop.model.handover import new_version
from exop.model.versions import Mover, NoVersion, package_of
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.source import SourceDriver
from exop.wiring.places import channel_at, port_at
from exop.wiring.plan import Plan

Undo = Callable[[], object]


def move_contents(deployment: Deployment, plan: Plan, drivers: Collection[Driver], undo: list[Undo]) -> None:
    """Move the items on their way to slets of a new version; *drivers* are parked. Each step adds its undo.

    Raises:
        PlanError: an item is of a class that the new version does not have.
    """
    nodes: dict[str, set[str]] = {}
    types: dict[str, list[Any]] = {}
    for step in plan.steps:
        if step.before is not None and step.after is not None and (package := new_version(step.before, step.after)):
            nodes.setdefault(package, set()).add(step.node)
            ports = (*step.before.slet.inputs, *step.after.slet.inputs)
            types.setdefault(package, []).extend(port.type.item for port in ports)
    for package, replaced in nodes.items():
        mover = Mover(package)
        if any(map(mover.concerns, types[package])):
            try:
                _Contents(deployment, plan, mover, replaced, undo).move(drivers)
            except NoVersion as problem:
                name = plan.after.name
                raise PlanError(f"an item that waits in {name} cannot be handed over: {problem}") from problem


class _Contents:
    """The items on their way to the slets of one bundle that are replaced, which are at *nodes*."""

    def __init__(
        self, deployment: Deployment, plan: Plan, mover: Mover, nodes: Collection[str], undo: list[Undo]
    ) -> None:
        self._deployment = deployment
        self._mesh = plan.after
        self._mover = mover
        self._nodes = nodes
        self._undo = undo
        self._bundle = (package_of(mover.after) or ("", ""))[1]
        self._channels = {name for name in self._mesh.channels if self._is_theirs(name)}

    def move(self, drivers: Collection[Driver]) -> None:
        deployment = self._deployment
        for name in self._channels & deployment.channels.keys():
            self._exchange(deployment.channels[name].exchange)
        for place, queue in deployment.inserted.items():
            if self._leads_to_them(f"queue {place}"):
                self._exchange(queue.exchange)
        fed = set()
        for component in deployment.components.values():
            if component.node.name in self._nodes:
                self._move_component(component)
            if not self._channels.isdisjoint(component.node.outputs().values()):
                fed.add(component.driver)
        self._exchange(partial(deployment.inlets.exchange, self._leads_to_them))
        for driver in drivers:
            if isinstance(driver, SourceDriver) and driver.hand is not None and driver in fed:
                self._undo.append(partial(setattr, driver, "hand", driver.hand))
                driver.hand = self._mover.move(driver.hand)

    def _exchange(self, exchange: Callable[[Callable[[Any], Any]], None]) -> None:
        """Move the items that something keeps; the undo puts the same objects back."""
        was: dict[int, tuple[Any, Any]] = {}

        def move(item: Any) -> Any:
            moved = self._mover.move(item)
            if moved is not item:
                was[id(moved)] = item, moved
            return moved

        self._undo.append(lambda: exchange(lambda item: was.get(id(item), (item,))[0]))
        exchange(move)

    def _move_component(self, component: Component) -> None:
        for port in component.pulled.values():
            self._exchange(port.exchange)
        kept = component.trouble.kept
        if kept is not None:
            self._undo.append(partial(setattr, component.trouble, "kept", kept))
            pulled = self._mover.move(dict(kept.pulled))
            component.trouble.kept = dataclasses.replace(kept, item=self._mover.move(kept.item), pulled=pulled)

    def _is_theirs(self, channel: str) -> bool:
        """Whether the consumers of a channel that are of the bundle are replaced, all of them."""
        slets = [(node.name, package_of(node.slet.factory.__module__)) for node, _ in self._mesh.consumers(channel)]
        found = [name for name, package in slets if package is not None and package[1] == self._bundle]
        return bool(found) and all(name in self._nodes for name in found)

    def _leads_to_them(self, place: str) -> bool:
        target = port_at(place)
        if not target:
            return channel_at(place) in self._channels
        name, _, port = target.rpartition(".")
        node = self._mesh.nodes.get(name)
        if node is not None and port in node.outputs():
            return node.outputs()[port] in self._channels
        return name in self._nodes
