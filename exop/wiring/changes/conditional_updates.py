"""Pending lines and changes of the mesh: lines that take effect meanwhile become part of the change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Final

from exop.errors import ExopError, StaleMesh
from exop.logs import logger
from exop.model.meshes.conditional_updates import Place, fired
from exop.model.meshes.mesh import Mesh, Node
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.wiring.changes.plan import Plan, make_plan
from exop.wiring.changes.successors import Undo
from exop.wiring.controller import WiringController
from exop.wiring.shadow.follower import Follower

#: Seconds that drivers may take to park so that superfluous guards are compiled out.
BRIEF: Final = 0.1


def caught_up(mesh: Mesh, since: int, deployment: Deployment) -> tuple[Mesh, Mesh]:
    """Return the mesh that runs, and an edited one with the lines that have taken effect since it was read.

    Raises `StaleMesh` if something else has happened meanwhile, or the edit removes or replaces what took effect.
    """
    running, firings = deployment.ledger.since(since)
    if not firings and firings is not None:
        return running, mesh
    stale = StaleMesh(application=mesh.name, revision=since, current=running.revision)
    if firings is None:
        raise stale
    for firing in firings:
        there = getattr(mesh, firing.section).get(firing.name)
        if there is None:
            continue
        if firing.line in there.pending:
            mesh = firing.on(mesh)
        # A successor that lacks what the line needs does without it: the plan has said so.
        elif not isinstance(there, Node) or there.slet == running.nodes[firing.name].slet:
            raise stale
    return running, mesh.at(running.revision)


def renewed(plan: Plan, deployment: Deployment) -> Plan:
    """Return a plan on top of the lines that have taken effect since it was made; raises as `caught_up`."""
    running, after = caught_up(plan.after, plan.before.revision, deployment)
    if running.revision == plan.before.revision:
        return plan
    made = make_plan(running, after)
    known = {(step.verb, step.node): step for step in plan.steps}
    # The rest of a step, above all how its state is handed over, still holds.
    steps = [
        replace(known.get((step.verb, step.node), step), before=step.before, after=step.after, text=step.text)
        for step in made.steps
    ]
    return replace(plan, before=made.before, after=after, steps=tuple(steps), changes=made.changes)


def pending_again(before: Mesh, after: Mesh) -> Mesh:
    """Return *after* with those lines pending again that were so in *before*, and took effect in between.

    A recovery goes back to *before*, from where they take effect again at their point in the stream.
    """

    def back(old: Mapping[str, Place], new: Mapping[str, Place]) -> dict[str, Place]:
        found = {}
        for name in old.keys() & new.keys():
            gone = [line for line in old[name].pending if line not in new[name].pending]
            if gone and reduce(fired, gone, old[name]) == new[name]:
                found[name] = old[name]
        return found

    return after.edited(back(before.nodes, after.nodes), back(before.channels, after.channels))


def remembered(component: Component) -> Undo:
    """Return an undo that restores the settings, state and trouble that a component has now."""
    node, status, error, trouble = component.node, component.status, component.error, component.trouble
    kept = trouble.kept

    def bring_back() -> None:
        component.error, trouble.kept = error, kept
        component.become(status)
        if node is not component.node:
            component.configure(node)

    return bring_back


def may_fire(deployment: Deployment, wiring: WiringController) -> list[Driver]:
    """Return the drivers that may bring pending lines into effect."""
    nodes, channels = deployment.ledger.watched(pending=True)
    return wiring.region(deployment, None, nodes, channels).drivers(deployment) if nodes or channels else []


def fired_beside(component: Component, since: int, deployment: Deployment) -> Node:
    """Return the node of a component beside the mesh, with the lines that took effect in the mesh since a revision."""
    node = component.node
    for firing in list(deployment.ledger.firings):
        here = firing.section == "nodes" and firing.name == node.name
        if here and firing.revision > since and firing.line in node.pending:
            node = firing.of(node)
    return node


def settle(deployment: Deployment, ready: Iterable[Follower], since: int, mesh: Mesh, undo: list[Undo]) -> Mesh:
    """Give components the settings that took effect while a change was prepared; nothing is in flight.

    Returns *mesh* with the lines of the followers that take over, which may have come less far than the mesh.
    """
    settled: dict[Component, Node] = {}
    for one in ready:
        settled[one.component] = node = fired_beside(one.component, one.since, deployment)
        there = replace(mesh.nodes[node.name], settings=node.settings, given=node.given, pending=node.pending)
        mesh = mesh.edited({node.name: there})
    for firing in deployment.ledger.since(since)[1] or ():
        component = deployment.components.get(firing.name) if firing.section == "nodes" else None
        if component is not None and component not in settled:
            settled[component] = mesh.nodes[firing.name]
    for component, node in settled.items():
        if component.node != node:
            undo.append(remembered(component))
            component.configure(node)
    return mesh


class Aftermath:
    """Stores the mesh, logs, and compiles the guard out when a line has taken effect: in a thread of its own."""

    def __init__(
        self, deployment: Deployment, wiring: WiringController, stored: Callable[[Deployment], object]
    ) -> None:
        self._deployment = deployment
        self._wiring = wiring
        self._stored = stored
        self._due = threading.Lock()  # held from the news until the work begins
        deployment.ledger.heard = self.heard
        if deployment.ledger.news:
            self.heard()

    def heard(self) -> None:
        """Start a thread that does the work, unless one is about to begin."""
        if self._due.acquire(blocking=False):
            threading.Thread(target=self._follow_up, name=f"exop {self._deployment.name} lines", daemon=True).start()

    def _follow_up(self) -> None:
        deployment = self._deployment
        self._due.release()
        self._stored(deployment)
        while deployment.ledger.news:
            event, facts = deployment.ledger.news.popleft()
            logger("exop.lines").info(event, **facts)
        with deployment.changing:
            if not deployment.finished.is_set():
                self._compile_out()

    def _compile_out(self) -> None:
        """Bind the places anew where no line is pending any more."""
        deployment = self._deployment
        nodes, channels = deployment.ledger.watched(pending=False)
        try:
            if nodes or channels:
                self._wiring.rebind(deployment, timeout=BRIEF, nodes=nodes, channels=channels)
        except ExopError as problem:  # a driver that does not park in time: the guard stays until the next change
            logger("exop.lines").debug("a guard stays", application=self._deployment.name, problem=str(problem))
