"""Takes the checkpoints of one application: every so many seconds, when asked, and a last one at its end."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from exop.errors import CheckpointError, ExopError
from exop.logs import logger
from exop.runtime.budget import UserCall
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.durable.checkpoints import Checkpoints
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.durable.parties import commit, committed, given_up, prepare, sync
from exop.runtime.durable.recovery import ties
from exop.runtime.durable.snapshot import CAPTURING, Snapshot, capture
from exop.runtime.pause import Pause
from exop.shown import described

#: Seconds for an explicit `checkpoint()` to find every driver at a safe point.
PATIENCE = 10.0
#: The same for one that is taken by itself.
BRIEF = 1.0
#: Seconds that slets have to put out what belongs to a checkpoint.
COMMITTING = 30.0

Hold: TypeAlias = Callable[[Deployment, Component, Exception], None]
#: A source that has not yielded after so many seconds is a slow one.
QUICK = 0.01


@dataclass
class Figures:
    """The figures of an application's checkpoints: shown by `status`."""

    taken: int = 0
    failed: int = 0
    bytes: int = 0
    written: int = 0
    pause_ms: float = 0.0
    write_ms: float = 0.0
    trouble: str | None = None


class Checkpointer:
    """A thread that takes checkpoints of one deployment, as often as its mesh says.

    Args:
        deployment: The application.
        checkpoints: Where they are written.
        hold: Lets nothing into a slet any more, one of whose calls had to be given up.
    """

    def __init__(self, deployment: Deployment, checkpoints: Checkpoints, hold: Hold | None = None) -> None:
        self.figures = Figures()
        self._deployment = deployment
        self._checkpoints = checkpoints
        self._hold: Hold = hold or (lambda _, component, error: component.stick(error))
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"exop {deployment.name} checkpoints", daemon=True)

    def start(self) -> None:
        """Take the first one now, and go on."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more."""
        self._stop.set()
        self._deployment.tell()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)

    def take(self, patience: float = PATIENCE, *, last: bool = False) -> None:
        """Take a checkpoint now; it is written when this returns. With *last*, nothing moves any more after it.

        Raises:
            CheckpointError: a driver did not come to a safe point within *patience* seconds.
            NotStorable: something is of a type that cannot be stored.
            StateError: it could not be written.
            NotCommitted: it is written, and a sink could not put out what belongs to it.
        """
        with self._alone(patience if last else PATIENCE):
            with self._deployment.changing:
                failpoint("checkpoint-begin")
                retired = list(self._deployment.retired)
                number = self._checkpoints.number(self._deployment.name) + 1
                with self._noted():
                    self._check_free()
                    snapshot = self._captured(number, patience, last=last)
                    failpoint("checkpoint-released")
                    self._write(snapshot)
                with self._noted(failed=False):
                    begun = self._commit(number, snapshot, retired)
            with self._noted(failed=False):  # others may change the application meanwhile
                committed(self._deployment, begun, min(patience, COMMITTING) if last else COMMITTING)
            self._note(None)

    def begin(self) -> None:
        """Take the first one, before anything moves.

        Raises:
            NotStorable: something is of a type that cannot be stored.
            CheckpointError, StateError: it could not be taken, or written.
        """
        with self._turn:
            number = self._checkpoints.number(self._deployment.name) + 1
            with self._noted():
                snapshot = self._prepared(number, self._deployment.mesh.to_toml())
                self._write(snapshot)
            with self._noted(failed=False):
                committed(self._deployment, self._commit(number, snapshot, []), COMMITTING)
            self._note(None)

    @contextmanager
    def _alone(self, patience: float) -> Iterator[None]:
        """Wait for so many seconds until no other checkpoint is taken, but not for one that is being committed."""
        end = time.monotonic() + patience
        while not self._turn.acquire(timeout=BRIEF):
            committing = [one for one in self._deployment.components.values() if one.committing is not None]
            if committing or time.monotonic() >= end:
                waits = f", and {committing[0].node.name} commits it" if committing else ""
                problem = f"another one is being taken{waits}"
                raise _refused(self._deployment.name, problem, "the next one is taken when that is over")
        try:
            yield
        finally:
            self._turn.release()

    def _check_free(self) -> None:
        """Refuse to take a checkpoint while a slet is in a call of an earlier one: nothing stands still for it."""
        for call in given_up(self._deployment):
            node = call.component.node.name
            problem = f"{node} holds it up: {call.phase} was given up, and has not returned for {call.seconds:.0f} s"
            cure = f"replace {node}, or end what it waits for"
            raise _refused(self._deployment.name, problem + call.whereabouts(), cure)

    @contextmanager
    def _noted(self, *, failed: bool = True) -> Iterator[None]:
        """Note an error of the block; a slet whose call had to be given up lets nothing in any more."""
        try:
            yield
        except ExopError as problem:
            self.figures.failed += failed
            self._note(str(problem))
            for call in given_up(self._deployment):
                if call.phase != CAPTURING and isinstance(call.component, Component) and not call.component.stuck:
                    self._hold(self._deployment, call.component, problem)
            raise

    def _prepared(self, number: int, topology: str) -> Snapshot:
        """Prepare and capture; everything stands still."""
        deployment = self._deployment

        def work() -> Snapshot:
            prepare(deployment, number)
            return capture(deployment, topology)

        component = next(iter(deployment.components.values()), None)
        return work() if component is None else component.user.run(component, CAPTURING, work, PATIENCE)

    def status(self) -> dict[str, Any]:
        """The figures, as plain data."""
        found = self.figures
        return {
            "every_s": self._deployment.mesh.durable,
            "taken": found.taken,
            "failed": found.failed,
            "bytes": found.bytes,
            "written_bytes": found.written,
            "pause_ms": round(found.pause_ms, 3),
            "write_ms": round(found.write_ms, 3),
            "trouble": found.trouble,
        }

    def _write(self, snapshot: Snapshot) -> None:
        sync(self._deployment)
        begin = time.perf_counter()
        self.figures.written = self._checkpoints.write(snapshot)
        self.figures.write_ms = (time.perf_counter() - begin) * 1e3
        self.figures.taken += 1
        self.figures.bytes = snapshot.size

    def _commit(self, number: int, snapshot: Snapshot, retired: list[Path]) -> list[tuple[Component, UserCall[Any]]]:
        """Let the sinks put out what belongs to the checkpoint, and go what only the one before it had."""
        self._confirm(snapshot, retired)
        return commit(self._deployment, number)

    def _captured(self, number: int, patience: float, *, last: bool) -> Snapshot:
        deployment = self._deployment
        mesh = deployment.mesh
        topology = mesh.to_toml()
        with self._still(patience):
            begin = time.perf_counter()
            if deployment.mesh is not mesh:  # a line took effect meanwhile: the mementos are of behind that
                topology = deployment.mesh.to_toml()
            snapshot = self._prepared(number, topology)
            self.figures.pause_ms = (time.perf_counter() - begin) * 1e3
            failpoint("checkpoint-captured")
            if last:
                for driver in deployment.drivers():
                    driver.halt()
        return snapshot

    @contextmanager
    def _still(self, patience: float) -> Iterator[None]:
        """Hold every driver where its in-flight items are known, while the block runs; upstream stands still first."""
        deployment = self._deployment
        refused = partial(_refused, deployment.name)
        sources = [driver for driver in deployment.drivers() if isinstance(driver, SourceDriver)]
        with Pause(deployment, patience, outside=sources, refused=refused) as pause:
            for source in sources:  # a slow one is waited for first, while everything else goes on
                pause.close([source])
                if not pause.wait(pause.parked, QUICK):
                    pause.wait_parked()
                elif source is not sources[-1]:
                    pause.open(source)
            pause.stop()
            for driver in deployment.drivers():
                if driver.held_by is not None and not driver.filled and driver not in sources:
                    raise refused(driver.held_by, "repair that first")
            for crashed, crash in deployment.crashed():
                raise refused(f"the driver {crashed} has crashed: {described(crash)}", "restart it from the last one")
            yield

    def _confirm(self, snapshot: Snapshot, retired: list[Path]) -> None:
        """It is committed: let go of what only the checkpoint before it had."""
        tied = {name: one.tie for name, one in self._deployment.components.items() if one.tie is not None}
        for name, held in ties(snapshot).items() if tied else ():
            tied[name].confirmed(held)
        for folder in retired:
            shutil.rmtree(folder, ignore_errors=True)
            self._deployment.retired.remove(folder)

    def _run(self) -> None:
        deployment = self._deployment
        while not self._stop.is_set():
            over = deployment.finished.is_set()
            try:
                self.take(BRIEF)
            except ExopError:
                if over:
                    return
            else:
                if over:
                    return
            self._pause()

    def _pause(self) -> None:
        deployment = self._deployment
        every = deployment.mesh.durable or BRIEF
        with deployment.progress:
            deployment.progress.wait_for(lambda: self._stop.is_set() or deployment.finished.is_set(), every)

    def _note(self, trouble: str | None) -> None:
        """Log trouble when it begins, and when it is over; not with every checkpoint."""
        before, self.figures.trouble = self.figures.trouble, trouble
        if trouble == before:
            return
        log = logger("exop.checkpoints").bind(application=self._deployment.name)
        if trouble is not None:
            log.warning("no checkpoint was taken", problem=trouble)
        else:
            log.info("checkpoints are taken again")


def _refused(application: str, problem: str, cure: str) -> CheckpointError:
    return CheckpointError(application=application, problem=problem, cure=cure)
