"""Conditional updates and changes of the mesh: updates that take effect meanwhile become part of the change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from exop.errors import ExopError, StaleMesh
from exop.logs import logger
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import Node
from exop.runtime.component import Component
from exop.runtime.conditional_updates import AppliedUpdate
from exop.runtime.deployment import Deployment
from exop.runtime.history import History
from exop.wiring.changes.channels import Undo, restoring
from exop.wiring.changes.plan import Plan, make_plan
from exop.wiring.controller import WiringController
from exop.wiring.shadow.follower import Follower


class Updates(Protocol):
    """The mesh of an application, and its conditional updates that have taken effect: `UpdateLog`, and at a home."""

    def since(self, revision: int) -> tuple[Mesh, list[AppliedUpdate] | None]:
        """Return the mesh that runs, and the updates since a revision; `None` if there were other changes."""


def caught_up(mesh: Mesh, since: int, log: Updates, *, replaced: bool = False) -> tuple[Mesh, Mesh]:
    """Return the mesh that runs, and an edited one with the updates that have taken effect since it was read.

    With *replaced*, the edit replaces those that it lacks; otherwise it is outdated.
    """
    running, updates = log.since(since)
    if not updates and updates is not None:
        return running, mesh
    stale = StaleMesh(application=mesh.name, revision=since, current=running.revision)
    if updates is None:
        raise stale
    for one in updates:
        if (place := one.place(mesh)) is None:
            continue
        if one.update in place.pending:
            mesh = one.to_mesh(mesh)
        # A successor that lacks what the update needs does without it: the plan has said so.
        elif not replaced and (not isinstance(place, Node) or place.slet == running.nodes[one.name].slet):
            raise stale
    return running, mesh.at(running.revision)


def renewed(plan: Plan, log: Updates) -> Plan:
    """Return a plan on top of the updates that have taken effect since it was made; raises as `caught_up`."""
    running, after = caught_up(plan.after, plan.before.revision, log)
    if running.revision == plan.before.revision:
        return plan
    made = make_plan(running, after)
    # How a state is handed over still holds.
    known = {(step.verb, step.node): step.state for step in plan.steps}
    steps = [replace(step, state=known.get((step.verb, step.node), step.state)) for step in made.steps]
    return replace(plan, before=made.before, after=after, steps=tuple(steps), changes=made.changes)


def remembered(component: Component) -> list[Undo]:
    """Return the undo that restores the settings, state and trouble that a component has now."""
    node = component.node

    def configure_back() -> None:
        if node is not component.node:
            component.configure(node)

    found: list[Undo] = [configure_back, partial(component.become, component.status)]
    return [*found, *restoring(component, "error", "stuck", "waiting"), *restoring(component.trouble, "kept")]


def followed_updates(component: Component, since: int, deployment: Deployment) -> Node:
    """Return the node of a follower with the updates that took effect in the mesh since a revision."""
    node = component.node
    for one in list(deployment.update_log.applied):
        if one.section == "nodes" and one.name == node.name and one.revision > since and one.update in node.pending:
            node = one.to_place(node)
    return node


def settle_updates(deployment: Deployment, ready: Iterable[Follower], since: int, mesh: Mesh, undo: list[Undo]) -> Mesh:
    """Give components the settings that took effect while a change was prepared; nothing is in flight.

    Returns *mesh* with the updates of the followers that take over, which may have come less far than the mesh.
    """
    settled: dict[Component, Node] = {}
    log = deployment.update_log
    undo += restoring(log, "applied")
    for one in ready:
        if (updates := one.component.updates) is not None:
            log.applied = log.as_in(updates, one.since)
        settled[one.component] = node = followed_updates(one.component, one.since, deployment)
        there = replace(mesh.nodes[node.name], settings=node.settings, given=node.given, pending=node.pending)
        mesh = mesh.edited({node.name: there})
    for update in log.since(since)[1] or ():
        component = deployment.components.get(update.name) if update.section == "nodes" else None
        if component is not None and component not in settled:
            settled[component] = mesh.nodes[update.name]
    for component, node in settled.items():
        if component.node != node:
            undo += remembered(component)
            component.configure(node)
    return mesh


def follow_updates(
    deployment: Deployment, wiring: WiringController, stored: Callable[[Deployment], object], history: History
) -> None:
    """When updates have taken effect, tell, store the mesh, and compile the triggers out, in a thread of its own."""
    due, news = threading.Lock(), deployment.update_log.news  # the lock is held from the news until the work begins

    def begin() -> None:
        if due.acquire(blocking=False):
            threading.Thread(target=work, name=f"exop {deployment.name} updates", daemon=True).start()

    def work() -> None:
        due.release()
        if deployment.mesh.durable is None:  # otherwise the stored mesh has them pending
            stored(deployment)
        while news:
            event, facts = news.popleft()
            logger("exop.updates").info(event, **facts)
            if "update" in facts:
                history.noted(deployment.name, event.removeprefix("a "), node=facts["place"], steps=[facts["update"]])
        with deployment.changing:
            nodes, channels = deployment.update_log.places(pending=False)
            if deployment.finished.is_set() or not (nodes or channels):
                return
            try:
                wiring.rebind(deployment, timeout=0.1, nodes=nodes, channels=channels)
            except ExopError as problem:  # a driver does not park in time: the trigger stays until the next change
                logger("exop.updates").debug("a trigger stays", application=deployment.name, problem=str(problem))

    deployment.update_log.on_news = begin
    if news:
        begin()
