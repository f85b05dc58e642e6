"""The checkpointers of a platform: which applications are durable, and when they take their checkpoints."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from exop.errors import ExopError
from exop.runtime.deployment import Deployment
from exop.runtime.pause import PATIENCE

if TYPE_CHECKING:
    from exop.runtime.durable.checkpointer import Checkpointer, Hold
    from exop.runtime.durable.store import Store


class Durability:
    """Starts and stops the checkpointers (`takers`) of durable applications; `store` is `None` without a directory."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.store: Store | None = None
        self.takers: dict[str, Checkpointer] = {}
        self._over = WeakSet[Deployment]()
        self._lock = threading.Lock()

    def begin(self, deployment: Deployment) -> None:
        """Take the first checkpoint, when everything is open and no item moves yet."""
        self.tell(deployment)
        if (taker := self.taker(deployment)) is not None:
            with suppress(ExopError):
                taker.begin()

    def tell(self, deployment: Deployment) -> None:
        """Set whether slets and channels take part in checkpoints."""
        on = self.store is not None and deployment.mesh.durable is not None
        for component in deployment.components.values():
            if component.instance is not None:
                component.instance.checkpointed = on
        for channel in deployment.channels.values():
            channel.take_part(on=on)

    def start(self, deployment: Deployment) -> None:
        """Take checkpoints periodically from now on, if the application is durable."""
        if (taker := self.taker(deployment)) is not None:
            taker.start()

    def changed(self, deployment: Deployment) -> None:
        """Take a checkpoint of a changed application, or stop taking checkpoints if it is no longer durable.

        If the checkpoint fails, the next one has the change; a restart before that makes the change again.
        """
        name = deployment.name
        if deployment.mesh.durable is not None:
            self.tell(deployment)
            self.start(deployment)
            self._take(self.takers.get(name))
        else:
            if name in self.takers:
                self.tell(deployment)
                self.stop(name)
            if self.store is not None:
                self.store.checkpoints.discard(name)

    def end_is_stored(self, application: str) -> bool:
        """Take the checkpoint of the end, at which sinks emit their buffered items; `False` if that fails."""
        return self._take(self.takers.get(application))  # if it fails, the next platform goes on at its end

    def last(self, deployment: Deployment, seconds: float, *, removed: bool = False) -> None:
        """Take the last checkpoint of an application within so many seconds; no item moves after it.

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
        """Stop taking checkpoints of an application."""
        if (taker := self.takers.pop(application, None)) is not None:
            taker.stop()

    @staticmethod
    def _take(taker: Checkpointer | None, seconds: float = PATIENCE, *, last: bool = False) -> bool:
        """Take a checkpoint, if there is a checkpointer; `False` if that fails, which the log and the status show."""
        with suppress(ExopError):
            if taker is not None:
                taker.take(seconds, last=last)
            return True
        return False

    def taker(self, deployment: Deployment) -> Checkpointer | None:
        """The checkpointer of a durable application; `None` also if it is removed or closed."""
        if self.store is None or deployment.mesh.durable is None:
            return None
        # Imported lazily: only durable applications need the encoding.
        from exop.runtime.durable.checkpointer import Checkpointer

        with self._lock:
            known = self.takers.get(deployment.name)
            if known is None and deployment not in self._over:
                known = self.takers[deployment.name] = Checkpointer(deployment, self.store.checkpoints, self._hold)
        return known
