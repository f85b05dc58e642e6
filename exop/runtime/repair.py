"""What a person does about failed items: looks at them, takes them out as values, has them tried again."""

from __future__ import annotations

from exop.errors import NoSuchItem, PlanError
from exop.model.lifecycle import State
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.failure import again
from exop.runtime.pause import Pause
from exop.runtime.trouble import FailedItem, kept_item
from exop.runtime.unwind import Work


def kept(deployment: Deployment, node: str) -> FailedItem | None:
    """The item that a node is suspended on; `None` if it is not.

    Raises:
        UnknownName: there is no such node.
    """
    return kept_item(_component(deployment, node))


def dead_letters(deployment: Deployment, node: str) -> list[FailedItem]:
    """The items of a node that were set aside, the oldest first.

    Raises:
        UnknownName: there is no such node.
    """
    return list(_component(deployment, node).trouble.dead)


def failed_item(deployment: Deployment, node: str, dead_letter: int | None = None) -> FailedItem:
    """The kept item of a node, or a dead letter by its number (1 is the oldest).

    Raises:
        UnknownName: there is no such node.
        NoSuchItem: it has no such item.
    """
    place = f"{deployment.name}.{node}"
    if dead_letter is None:
        found = kept(deployment, node)
        if found is None:
            number = len(dead_letters(deployment, node))
            cure = f"it has {number} dead letters" if number else "nothing of it has failed"
            raise NoSuchItem(node=place, what="kept item", cure=cure)
        return found
    letters = dead_letters(deployment, node)
    if not 1 <= dead_letter <= len(letters):
        cure = f"give a number from 1 to {len(letters)}" if letters else "none was set aside"
        raise NoSuchItem(node=place, what=f"dead letter {dead_letter}", cure=cure)
    return letters[dead_letter - 1]


def retry_dead_letters(deployment: Deployment, node: str) -> int:
    """Have all dead letters of a node tried again, in their order; one that fails again meets the policy again.

    They enter the node behind what is under way, by the driver that runs it, at its next safe point. Returns how many.

    Raises:
        UnknownName: there is no such node.
        PlanError: the stream has ended there, or a driver does not come to its safe point; nothing has happened.
    """
    component = _component(deployment, node)
    with deployment.changing, Pause(deployment) as pause:
        pause.stop()
        if component.left:
            component = _component(deployment, node)
        runner, dead = component.runner, component.trouble.dead
        if not dead:
            return 0
        if runner is None or component.status not in (State.ACTIVE, State.SUSPENDED, State.FAILED):
            raise PlanError(
                f"the stream of {deployment.name}.{node} has ended: nothing more can leave there; take its "
                f"{len(dead)} dead letters out by `exop item export`, or run the application once more"
            )
        letters = dead.take()
        work: list[Work] = []
        for letter in letters:
            port = component.spec.ports.get(letter.port)
            if port is not None and port.direction == "out":  # the channel behind it had refused the item
                there = deployment.places[f"channel {component.node.ports[port.name]}"]
                work.append(Work(there, "push", letter.item))
            elif port is not None:
                work.append(again(component, port, letter.item))
            else:  # of a slet that pulls: it finds them when it pulls the next time
                for name, items in letter.item.items():
                    component.pulled[name].taken.extend(items)
        deployment.inlets.post(work)
    return len(letters)


def _component(deployment: Deployment, node: str) -> Component:
    deployment.mesh.node(node)
    return deployment.components[node]
