"""The checkpoints of the applications of one platform: who takes them, from before the first item to the last one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from exop.errors import CheckpointError, ComponentFailed, NotStorable, PlanError, StateError
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.durable import parties
from exop.wiring.controller import WiringController

if TYPE_CHECKING:
    from exop.runtime.durable.checkpointer import Checkpointer
    from exop.runtime.store import Store

#: Seconds that an application has for its last checkpoint, and to leave, when the platform is closed.
LEAVING = 5.0
#: What a checkpoint may fail with: it is noted by the checkpointer, and shown by the status.
UNTAKEN = (CheckpointError, ComponentFailed, NotStorable, StateError)


class Durability:
    """Starts and stops the checkpointers of durable applications.

    Attributes:
        store: Where checkpoints are kept; `None` without a state directory.
        takers: The checkpointers, by application.
    """

    def __init__(self, wiring: WiringController) -> None:
        self._wiring = wiring
        self.store: Store | None = None
        self.takers: dict[str, Checkpointer] = {}

    def names(self) -> list[str]:
        """The applications of which checkpoints are taken."""
        return list(self.takers)

    def begin(self, deployment: Deployment) -> None:
        """Take a checkpoint of what is open, and does not move yet: whatever happens then, it begins there again."""
        self.tell(deployment)
        taker = self._made(deployment)
        if taker is not None:
            with suppress(*UNTAKEN):
                taker.begin()

    def tell(self, deployment: Deployment) -> None:
        """Let the slets know whether there are checkpoints to put out with."""
        on = self.store is not None and deployment.mesh.durable is not None
        for component in deployment.components.values():
            parties.tell(component, on=on)
        for channel in deployment.channels.values():
            channel.take_part(on=on)

    def start(self, deployment: Deployment) -> None:
        """Take checkpoints from now on, if the application is durable."""
        taker = self._made(deployment)
        if taker is not None:
            taker.start()

    def take(self, deployment: Deployment) -> None:
        """Take one now; it is written when this returns.

        Raises:
            CheckpointError: the application is not durable, or a driver does not come to a safe point.
            NotStorable, StateError: it cannot be stored, or not be written; the one before it stands.
        """
        taker = self.takers.get(deployment.name)
        if taker is None:
            cure = "build it with app.durable(every=…)"
            raise CheckpointError(application=deployment.name, problem="it is not durable", cure=cure)
        taker.take()

    def status(self, application: str) -> dict[str, Any] | None:
        """The figures of an application's checkpoints; `None` if it is not durable."""
        taker = self.takers.get(application)
        return taker.status() if taker is not None else None

    def changed(self, deployment: Deployment) -> None:
        """A change of a durable application is in a checkpoint when it is reported as made.

        Where that fails the change is made all the same: the next checkpoint has it, and until then a crash leads back
        to the mesh before it.
        """
        name = deployment.name
        if deployment.mesh.durable is not None or name in self.takers:
            self.tell(deployment)
        if deployment.mesh.durable is None:
            if name in self.takers:
                self.stop(name)
            if self.store is not None:
                self.store.checkpoints.discard(name)
            return
        if name not in self.takers:
            self.start(deployment)
        with suppress(*UNTAKEN):
            self.takers[name].take()

    def end_is_stored(self, application: str) -> bool:
        """A durable application is over when its last checkpoint is: what sinks have buffered is out then."""
        taker = self.takers.get(application)
        try:
            if taker is not None:
                taker.take()
        except UNTAKEN:  # the next platform goes on at its end
            return False
        return True

    def last(self, application: str, seconds: float) -> None:
        """Take the last one of an application, within so many seconds, and let nothing move after it."""
        taker = self.takers[application]
        self.stop(application)
        with suppress(*UNTAKEN):  # the one before it stands, and the log says why
            taker.take(seconds, last=True)

    def give_up(self, deployment: Deployment, seconds: float) -> None:
        """The application is removed: what its sinks hold back for a checkpoint is put out by a last one."""
        if deployment.name in self.takers and parties.puts_out(deployment):
            self.last(deployment.name, seconds)
        self.stop(deployment.name)

    def stop(self, application: str) -> None:
        """Take no more."""
        taker = self.takers.pop(application, None)
        if taker is not None:
            taker.stop()

    def _made(self, deployment: Deployment) -> Checkpointer | None:
        if self.store is None or deployment.mesh.durable is None:
            return None
        # The encoding is paid for by those who are durable.
        from exop.runtime.durable.checkpointer import Checkpointer

        known = self.takers.get(deployment.name)
        if known is None:
            known = self.takers[deployment.name] = Checkpointer(deployment, self.store.checkpoints, self._hold)
        return known

    def _hold(self, deployment: Deployment, component: Component, error: Exception) -> None:
        """Let nothing into a slet whose call was given up, until it is replaced or resumed."""
        if deployment.components.get(component.node.name) is component:
            try:
                self._wiring.settle(deployment, lambda: component.stick(error))
            except PlanError:  # a driver does not park now: it is let in until the wiring is bound the next time
                component.stick(error)
