"""The checkpointers of a platform: which applications are durable, and when they take their checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from exop.errors import CheckpointError, ExopError, LastCheckpointFailed, NotCommitted, counted
from exop.logs import logger
from exop.runtime.deployment import Deployment

if TYPE_CHECKING:
    from exop.model.meshes.mesh import Mesh
    from exop.runtime.durable.checkpointer import Checkpointer, Hold
    from exop.runtime.durable.store import Store

#: What helps when the last checkpoint of an application has failed.
KEPT: Final = "repair that, and wait again or start again with this state directory, which keeps the application"


@contextmanager
def last_checkpoint(application: str, left: Callable[[], dict[str, int]], *, removed: bool = False) -> Iterator[None]:
    """Raise `LastCheckpointFailed` for an error of the block; *left* returns the items that sinks have not written."""
    try:
        yield
    except ExopError as error:
        found = left()
        if removed and not found and not isinstance(error, NotCommitted):  # a slet that hangs goes with the application
            logger("exop.checkpoints").warning("no last checkpoint", application=application, problem=str(error))
            return
        facts = {
            "outcome": "is removed" if removed else "has finished",
            "problem": error.facts["problem"] if isinstance(error, CheckpointError) else str(error),
            "unwritten": ", ".join(f"{counted(held, 'item')} of {node}" for node, held in found.items()) or "its state",
            "cure": "only its sources can emit these items again" if removed else KEPT,
        }
        raise LastCheckpointFailed(application=application, **facts) from error


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
        if (taker := self.taker(deployment)) is not None:
            with suppress(ExopError):
                taker.begin()

    def tell(self, deployment: Deployment, after: Mesh | None = None) -> None:
        """Set whether slets and channels take part in checkpoints, also if they only do so *after* a change."""
        on = self.store is not None and _durable(deployment, after)
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
        if (taker := self.taker(deployment)) is not None:
            self.tell(deployment)
            taker.start()
            with suppress(ExopError):  # the log and the status show it
                taker.take()
        elif deployment.mesh.durable is None and self.store is not None:
            if deployment.name in self.takers:
                self.tell(deployment)
                self.stop(deployment.name)
            self.store.checkpoints.discard(deployment.name)

    def store_end(self, application: str) -> None:
        """Take the checkpoint of the end, at which sinks emit their buffered items.

        Raises:
            LastCheckpointFailed: the next platform goes on at the checkpoint before.
        """
        if (taker := self.takers.get(application)) is not None and not taker.complete:
            with last_checkpoint(application, taker.unwritten):
                taker.take()

    def last(self, deployment: Deployment, seconds: float, *, removed: bool = False) -> None:
        """Take the last checkpoint of an application within so many seconds, or log that it failed; no item moves then.

        One that is *removed* takes none: its sinks emit what they hold back.

        Raises:
            LastCheckpointFailed: the sinks of a removed application cannot emit these.
        """
        with self._lock:
            self._over.add(deployment)
            taker = self.takers.pop(deployment.name, None)
        if taker is None:
            return
        taker.stop()
        if removed:
            with last_checkpoint(deployment.name, taker.unwritten, removed=True):
                taker.put_out(seconds)
            return
        try:
            taker.take(seconds, last=True)
        except ExopError:
            problem = "the last checkpoint failed; the next start goes on from the one before"
            logger("exop.checkpoints").error(problem, application=deployment.name)

    def stop(self, application: str) -> None:
        """Stop taking checkpoints of an application."""
        if (taker := self.takers.pop(application, None)) is not None:
            taker.stop()

    def taker(self, deployment: Deployment, after: Mesh | None = None) -> Checkpointer | None:
        """The checkpointer of an application that is durable, or is so *after* a change; `None` if it is closed."""
        if self.store is None or not _durable(deployment, after):
            return None
        # Imported lazily: only durable applications need the encoding.
        from exop.runtime.durable.checkpointer import Checkpointer

        with self._lock:
            if (known := self.takers.get(deployment.name)) is None and deployment not in self._over:
                known = self.takers[deployment.name] = Checkpointer(deployment, self.store.checkpoints, self._hold)
        return known


def _durable(deployment: Deployment, after: Mesh | None) -> bool:
    return any(mesh is not None and mesh.durable is not None for mesh in (deployment.mesh, after))
