"""What runs beside the mesh: components that stand ready to take a place, and those that run on behind a successor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from exop.logs import logger
from exop.model.lifecycle import State
from exop.model.memento import Memento
from exop.runtime.budget import UserCall
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.engine import EngineDriver
from exop.runtime.entry import Work
from exop.runtime.inlets import Inlets
from exop.runtime.manager import ComponentManager
from exop.runtime.opening import HOLDING
from exop.runtime.pause import Pause
from exop.shown import described

if TYPE_CHECKING:
    from exop.wiring.shadow.behind import Behind, Keeping


class Companions:
    """The companions that a change has to do with, by node; there are none unless somebody says so.

    Attributes:
        ready: Those who take a place, with a state of their own, instead of a successor that is newly made.
        keepers: What lets a predecessor run on.
    """

    def __init__(self) -> None:
        self.ready: dict[str, Behind] = {}
        self.keepers: dict[str, Keeping] = {}

    def components(self) -> dict[str, Component]:
        """The components that take a place."""
        return {node: companion.component for node, companion in self.ready.items()}

    def come_to_rest(self, pause: Pause) -> None:
        """Everything is being parked: so are they."""
        for companion in self.ready.values():
            companion.come_to_rest(pause)

    def take_over(self, undo: list[Callable[[], object]]) -> dict[str, Memento | None]:
        """They take over: the state of each; *undo* is told how to take that back.

        Raises:
            PlanError: one is not fit for it.
        """
        return {node: companion.take_over(undo) for node, companion in self.ready.items()}

    def keep(self, predecessor: Component | None, successor: Component, undo: list[Callable[[], object]]) -> None:
        """Let a predecessor run on, if it is to; the successor has its state already."""
        keeper = self.keepers.get(successor.node.name)
        if keeper is not None and predecessor is not None:
            keeper.keep(predecessor, successor, undo)

    def tell(self, inlets: Inlets) -> None:
        """Everything is bound, and parked: put out the punctuations that neither has sent."""
        for companion in self.ready.values():
            to = companion.component.to
            inlets.post(Work(to[port], "control", mark) for port, mark in companion.owed() if port in to)

    def stays(self, component: Component) -> bool:
        """A component that is replaced is not closed."""
        return component.node.name in self.keepers


def discard(
    deployment: Deployment, manager: ComponentManager, component: Component, closing: UserCall[None] | None = None
) -> None:
    """Close a component that is used no more, if *closing* has not begun that, and take it out of the registry.

    Raises:
        ComponentFailed: it has not closed in time; it is out of the registry all the same.
    """
    try:
        if closing is not None:
            component.end_exit(closing, 0.0)
        elif component.status is not State.CREATED:
            component.exit()
    finally:
        if isinstance(component.driver, EngineDriver):
            component.driver.halt()
        manager.destroy(component)
        if component.tie is not None and component.tie.place is not None:
            deployment.retired.append(component.tie.place)


class Leavers:
    """The old slets of a change that is made: they begin to close, and those that are quick are closed at once."""

    def __init__(self, deployment: Deployment, manager: ComponentManager, components: Iterable[Component]) -> None:
        self._deployment = deployment
        self._manager = manager
        self._closing = [(one, one.begin_exit()) for one in components]
        self._discard([one for one in self._closing if _within(one[1], time.monotonic() + HOLDING)])

    def close(self, seconds: float) -> None:
        """Wait for the others, for so many seconds; then they are given up."""
        until = time.monotonic() + seconds
        for _, call in self._closing:
            _within(call, until)
        self._discard(self._closing.copy())

    def _discard(self, closed: list[tuple[Component, UserCall[None] | None]]) -> None:
        for component, call in closed:
            self._closing.remove((component, call))
            try:
                discard(self._deployment, self._manager, component, call)
            except Exception as error:  # noqa: BLE001 (whatever a slet does when it closes: the change is made)
                report(component, described(error))


def _within(call: UserCall[None] | None, until: float) -> bool:
    return call is None or call.wait(max(0.0, until - time.monotonic()))


def report(component: Component, problem: str) -> None:
    """Log that an old slet does not leave."""
    logger("exop.wiring").error("the change is made, but the old slet does not leave", node=component.id, error=problem)
