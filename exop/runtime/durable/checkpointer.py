"""Takes the checkpoints of one application: every so many seconds, when asked, and a last one at its end.

A slet may take part with any of these methods; all but `flush` and `prepare_checkpoint` are called while the stream
runs:

    flush()                      hand on what is buffered; everything stands still
    prepare_checkpoint(number)   what came up to now belongs to this checkpoint; everything stands still; the number
                                 is that of the call before until a checkpoint was committed, then the next one
    sync()                       bring to the disk what the memento counts as written
    commit_checkpoint(number)    the checkpoint is there: put out what belongs to it

Channels that keep files take part with `sync` and `committed`.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeAlias

from exop.errors import CheckpointError, ComponentFailed, ExopError, NotCommitted
from exop.logs import logger
from exop.model.meshes.mesh import Mesh
from exop.runtime.channels.base import Channel
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.pause import Pause
from exop.runtime.drivers.source import SourceDriver, ThreadDriver
from exop.runtime.durable.engine_journal import DiskJournal
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.durable.snapshot import CAPTURING, Snapshot, capture, ties
from exop.runtime.durable.store import Checkpoints
from exop.runtime.supervision.budget import Owner, UserCall, UserCalls
from exop.safe_repr import RAISED, described, message

#: Seconds for an explicit `checkpoint()` to find every driver at a safe point, and for each call of a slet.
PATIENCE = 10.0
#: Seconds for a periodic one to find every driver at a safe point.
BRIEF = 1.0
#: Seconds for `commit_checkpoint` of all slets.
COMMITTING = 30.0
#: A source that has not yielded after so many seconds is a slow one.
QUICK = 0.01
_PHASES: Final = {"prepare_checkpoint": "preparing a checkpoint", "sync": "bringing its output to the disk"}

Hold: TypeAlias = Callable[[Deployment, Component, Exception], None]


@dataclasses.dataclass
class Figures:
    """The figures of an application's checkpoints, as `status` shows them."""

    taken: int = 0
    failed: int = 0
    bytes: int = 0
    written_bytes: int = 0
    pause_ms: float = 0.0
    write_ms: float = 0.0
    trouble: str | None = None


class Checkpointer:
    """Takes checkpoints of one deployment; a thread of its own does so as often as the mesh says.

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
        self._number = 0
        self._owners: dict[str, Owner] = {}
        self._rendered: tuple[Mesh | None, str] = (None, "")
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take_all, name=f"exop {deployment.name} checkpoints", daemon=True)

    def start(self) -> None:
        """Take checkpoints periodically from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more of them."""
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
        seconds = min(patience, COMMITTING) if last else COMMITTING
        self._carry_out(partial(self._captured, patience, last=last), patience if last else PATIENCE, seconds)

    def begin(self) -> None:
        """Take the first one, before anything moves."""
        self._carry_out(self._prepared, PATIENCE, COMMITTING)

    def status(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {"every_s": self._deployment.mesh.durable, **dataclasses.asdict(self.figures)}

    def puts_out(self) -> bool:
        """Whether a slet writes output with checkpoints."""
        return any(True for _ in self._hooks("commit_checkpoint"))

    def _carry_out(self, captured: Callable[[int], Snapshot], patience: float, committing: float) -> None:
        """Capture, write, commit: wait for so many seconds for the one before, and for slets to commit."""
        deployment, figures = self._deployment, self.figures
        with self._alone(patience):
            with deployment.changing:
                failpoint("checkpoint-begin")
                retired = list(deployment.retired)
                number = self._number = self._number or self._checkpoints.number(deployment.name) + 1
                with self._noted():
                    self._check_free()
                    snapshot = captured(number)
                    failpoint("checkpoint-released")
                    self._sync()
                    begin = time.perf_counter()
                    figures.written_bytes = self._checkpoints.write(snapshot)
                    self._number += 1
                    figures.write_ms = _milliseconds(begin)
                    figures.taken += 1
                    figures.bytes = sum(map(len, snapshot.parts.values()))
                with self._noted(failed=False):
                    tied = self._tied()
                    for name, held in ties(snapshot).items() if tied else ():
                        tied[name].trim_output(held)
                    for folder in retired:  # only the checkpoint before this one has named it
                        shutil.rmtree(folder, ignore_errors=True)
                        deployment.retired.remove(folder)
                    begun = self._commit(number)
            with self._noted(failed=False):  # others may change the application meanwhile
                self._committed(begun, committing)
            self._note(None)

    @contextmanager
    def _alone(self, patience: float) -> Iterator[None]:
        """Wait for so many seconds until no other checkpoint is taken, but not for one that is being committed."""
        end = time.monotonic() + patience
        while not self._turn.acquire(timeout=BRIEF):
            calls = [(one.node.name, one.committing) for one in self._deployment.components.values()]
            committing = [name for name, call in calls if call is not None and not call.over]
            if committing or time.monotonic() >= end:
                waits = f", and {committing[0]} commits it" if committing else ""
                raise self._refused(f"another one is being taken{waits}", "the next one is taken when that is over")
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _noted(self, *, failed: bool = True) -> Iterator[None]:
        """Note an error of the block; a slet whose call had to be given up lets nothing in any more."""
        try:
            yield
        except ExopError as problem:
            self.figures.failed += failed
            self._note(str(problem))
            for call in self._given_up():
                if call.phase != CAPTURING and isinstance(call.component, Component) and not call.component.stuck:
                    self._hold(self._deployment, call.component, problem)
            raise

    def _note(self, trouble: str | None) -> None:
        """Log trouble when it begins, and when it is over; not with every checkpoint."""
        before, self.figures.trouble = self.figures.trouble, trouble
        if trouble != before:
            log = logger("exop.checkpoints").bind(application=self._deployment.name)
            if trouble is not None:
                log.warning("no checkpoint was taken", problem=trouble)
            else:
                log.info("checkpoints are taken again")

    def _given_up(self) -> list[UserCall[Any]]:
        """The calls of slets and channels that were given up and have not returned."""
        return self._user().abandoned(*self._deployment.components.values(), *self._owners.values())

    def _check_free(self) -> None:
        """Refuse to take a checkpoint while a slet is in a call of an earlier one: nothing stands still for it."""
        for call in self._given_up():
            node = call.component.title
            problem = f"{node} holds it up: {call.phase} was given up, and has not returned for {call.seconds:.0f} s"
            raise self._refused(problem + call.whereabouts(), f"replace {node}, or end what it waits for")

    def _captured(self, patience: float, number: int, *, last: bool) -> Snapshot:
        """Hold every driver where its in-flight items are known, upstream first, and capture everything."""
        deployment = self._deployment
        self._topology()  # while the stream runs
        drivers = deployment.drivers()
        sources = [driver for driver in drivers if isinstance(driver, SourceDriver)]
        with Pause(deployment, patience, drivers=drivers, outside=sources, refused=self._refused) as pause:
            for source in sources[:-1]:  # a slow one is waited for first, while everything else goes on
                pause.close([source])
                if pause.wait(pause.parked, QUICK):
                    pause.open(source)
                else:
                    pause.wait_parked()
            pause.stop()
            for driver in drivers:
                if isinstance(driver, ThreadDriver) and driver.crash is not None:
                    problem = f"the driver {driver.name} has crashed: {described(driver.crash)}"
                    raise self._refused(problem, "restart it from the last one")
                if driver.held_by is not None and not driver.filled and driver not in sources:
                    raise self._refused(driver.held_by, "repair that first")
            begin = time.perf_counter()
            snapshot = self._prepared(number)
            self.figures.pause_ms = _milliseconds(begin)
            failpoint("checkpoint-captured")
            for driver in drivers if last else ():
                driver.halt()
        return snapshot

    def _prepared(self, number: int) -> Snapshot:
        """Prepare and capture; everything stands still."""
        deployment = self._deployment

        def work() -> Snapshot:
            self._call("prepare_checkpoint", number)
            return capture(deployment, self._topology(), self._owner)

        component = next(iter(deployment.components.values()), None)
        return work() if component is None else component.user.run(component, CAPTURING, work, PATIENCE)

    def _topology(self) -> str:
        """The topology of the mesh: rendered when the mesh is another one, by an edit or a line that took effect."""
        mesh = self._deployment.mesh
        if mesh is not self._rendered[0]:
            self._rendered = mesh, mesh.to_toml()
        return self._rendered[1]

    def _sync(self) -> None:
        """Bring to the disk what was captured as written."""
        self._call("sync")
        for tie in self._tied().values():
            tie.sync()
        for channel in self._kept("sync"):
            self._run(channel, _PHASES["sync"], channel.sync)

    def _commit(self, number: int) -> list[Component]:
        """Begin to commit a checkpoint; return the slets that put out what belongs to it."""
        begun = []
        for component, hook in self._hooks("commit_checkpoint"):
            work = partial(hook, number)
            component.committing = component.user.begin(component, "committing a checkpoint", work)
            begun.append(component)
        phase, kept = "committing a checkpoint", self._kept("committed")
        self._each({one.name: partial(self._run, one, phase, one.committed) for one in kept})
        return begun

    def _committed(self, begun: list[Component], seconds: float) -> None:
        """Wait for so many seconds until slets have put out what belongs to a checkpoint."""
        end = time.monotonic() + seconds

        def wait_for(component: Component) -> None:
            if component.committing is not None:
                component.committing.result(max(0.0, end - time.monotonic()))

        try:
            self._each({component.node.name: partial(wait_for, component) for component in begun})
        finally:
            for component in begun:
                component.committing = None
        failpoint("checkpoint-put-out")

    def _each(self, works: Mapping[str, Callable[[], object]]) -> None:
        """Let all participants commit, by their names; raise the last error of theirs."""
        failed: NotCommitted | None = None
        for name, work in works.items():
            try:
                work()
            except RAISED as problem:
                text = message(problem) or described(problem)
                failed = NotCommitted(application=self._deployment.name, node=name, problem=text)
                failed.__cause__ = problem
        if failed is not None:
            raise failed

    def _tied(self) -> dict[str, DiskJournal]:
        components = self._deployment.components.items()
        return {name: one.tie for name, one in components if isinstance(one.tie, DiskJournal)}

    def _run(self, channel: Channel, phase: str, work: Callable[[], None]) -> None:
        """Call code of a channel within a time, as that of a slet."""
        self._user().run(self._owner(channel), phase, work, PATIENCE)

    def _owner(self, channel: Channel) -> Owner:
        name = self._deployment.name
        return self._owners.setdefault(channel.name, Owner(name, channel.name, f"{name}/{channel.name}"))

    def _user(self) -> UserCalls:
        components = self._deployment.components.values()
        return next(one.user for one in components) if components else UserCalls()

    def _kept(self, name: str) -> list[Channel]:
        """The channels whose kind defines this method."""
        channels = self._deployment.channels.values()
        return [one for one in channels if getattr(type(one), name) is not getattr(Channel, name)]

    def _call(self, name: str, *given: Any) -> None:
        for component, hook in self._hooks(name):
            try:
                component.user.run(component, _PHASES[name], partial(hook, *given), PATIENCE)
            except ComponentFailed:
                raise
            except RAISED as problem:
                told = f"{component.node.name}.{name}() raised {described(problem)}"
                raise self._refused(told, "repair that first") from problem

    def _hooks(self, name: str) -> Iterator[tuple[Component, Callable[..., Any]]]:
        for component in self._deployment.components.values():
            hook = getattr(component.instance, name, None)
            if callable(hook):
                yield component, hook

    def _take_all(self) -> None:
        deployment = self._deployment
        over = False
        while not over:
            every = deployment.mesh.durable or BRIEF
            with deployment.progress:
                deployment.progress.wait_for(lambda: self._stop.is_set() or deployment.finished.is_set(), every)
            if self._stop.is_set():
                return
            over = deployment.finished.is_set()
            with suppress(ExopError):  # it is noted
                self.take(BRIEF)

    def _refused(self, problem: str, cure: str) -> CheckpointError:
        return CheckpointError(application=self._deployment.name, problem=problem, cure=cure)


def _milliseconds(begin: float) -> float:
    return round((time.perf_counter() - begin) * 1e3, 3)
