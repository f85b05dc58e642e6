"""The checkpoints of the applications of one platform: when they are taken, from before the first item to the end."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from exop.errors import CheckpointError, ComponentFailed, NotStorable, PlanError, StateError
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.pause import PATIENCE
from exop.wiring.controller import WiringController

if TYPE_CHECKING:
    from exop.runtime.durable.checkpointer import Checkpointer
    from exop.runtime.durable.store import Store

#: Seconds that an application has for its last checkpoint, and to leave, when the platform is closed.
LEAVING = 5.0
#: The errors of a checkpoint that is not taken: the checkpointer notes them, and the status shows them.
UNTAKEN = (CheckpointError, ComponentFailed, NotStorable, StateError)


class Durability:
    """Starts and stops the checkpointers (`takers`) of durable applications; `store` is `None` without a directory."""

    def __init__(self, wiring: WiringController) -> None:
        self._wiring = wiring
        self.store: Store | None = None
        self.takers: dict[str, Checkpointer] = {}
        self._over = WeakSet[Deployment]()
        self._lock = threading.Lock()

    def begin(self, deployment: Deployment) -> None:
        """Take the first checkpoint, when everything is open and nothing moves yet."""
        self.tell(deployment)
        if (taker := self._taker(deployment)) is not None:
            with suppress(*UNTAKEN):
                taker.begin()

    def tell(self, deployment: Deployment) -> None:
        """Tell slets and channels whether checkpoints are taken."""
        on = self.store is not None and deployment.mesh.durable is not None
        for component in deployment.components.values():
            if component.instance is not None:
                component.instance.checkpointed = on
        for channel in deployment.channels.values():
            channel.take_part(on=on)

    def start(self, deployment: Deployment) -> None:
        """Take checkpoints periodically from now on, if the application is durable."""
        if (taker := self._taker(deployment)) is not None:
            taker.start()

    def take(self, deployment: Deployment) -> None:
        """Take a checkpoint now, which is written when this returns; `Platform.checkpoint` tells the errors."""
        if (taker := self.takers.get(deployment.name)) is None:
            cure = "build it with app.durable(every=…)"
            raise CheckpointError(application=deployment.name, problem="it is not durable", cure=cure)
        taker.take()

    def changed(self, deployment: Deployment) -> None:
        """Take a checkpoint of a changed application, or take no more if it is not durable any more.

        If a checkpoint fails, the next one has the change; a restart before that makes the change once more.
        """
        name = deployment.name
        if deployment.mesh.durable is not None:
            self.tell(deployment)
            if name not in self.takers:
                self.start(deployment)
            self._take(self.takers.get(name))
        else:
            if name in self.takers:
                self.tell(deployment)
                self.stop(name)
            if self.store is not None:
                self.store.checkpoints.discard(name)

    def end_is_stored(self, application: str) -> bool:
        """Take the checkpoint of the end, with which sinks put out what they have buffered; `False` if that fails."""
        return self._take(self.takers.get(application))  # if it fails, the next platform goes on at its end

    def last(self, deployment: Deployment, seconds: float, *, removed: bool = False) -> None:
        """Take the last checkpoint of an application, within so many seconds, and no more; nothing moves after it.

        One that is *removed* needs it only for the items that its sinks hold back.
        """
        with self._lock:
            self._over.add(deployment)
            taker = self.takers.pop(deployment.name, None)
        if taker is not None:
            taker.stop()
            if not removed or taker.has_sinks():
                self._take(taker, seconds, last=True)

    def stop(self, application: str) -> None:
        """Take no more checkpoints of an application."""
        if (taker := self.takers.pop(application, None)) is not None:
            taker.stop()

    @staticmethod
    def _take(taker: Checkpointer | None, seconds: float = PATIENCE, *, last: bool = False) -> bool:
        """Take a checkpoint, if there is a checkpointer; `False` if that fails, which the log and the status show."""
        with suppress(*UNTAKEN):
            if taker is not None:
                taker.take(seconds, last=last)
            return True
        return False

    def _taker(self, deployment: Deployment) -> Checkpointer | None:
        """The checkpointer of a durable application; `None` also for one that is removed or closed meanwhile."""
        if self.store is None or deployment.mesh.durable is None:
            return None
        # Imported lazily: only durable applications need the encoding.
        from exop.runtime.durable.checkpointer import Checkpointer

        with self._lock:
            known = self.takers.get(deployment.name)
            if known is None and deployment not in self._over:
                known = self.takers[deployment.name] = Checkpointer(deployment, self.store.checkpoints, self._hold)
        return known

    def _hold(self, deployment: Deployment, component: Component, error: Exception) -> None:
        """Suspend a slet whose call was abandoned, until it is replaced or resumed."""
        with deployment.changing:  # what is to be bound must not change meanwhile
            if deployment.components.get(component.node.name) is component:
                try:
                    self._wiring.rebind(
                        deployment, lambda: component.fail_until_resumed(error), nodes=[component.node.name]
                    )
                except PlanError:  # a driver does not park now: items enter until the wiring is bound the next time
                    component.fail_until_resumed(error)
