"""`Checkpointer`: takes the checkpoints of one application, periodically, on request, and at its end.

A slet participates by any of these methods. The stream is paused during the first two, and runs during the others:

    flush()                      emit buffered output
    prepare_checkpoint(number)   all items so far belong to this checkpoint; a retry after a failure has the same number
    sync()                       force to disk the output that the memento counts as written
    commit_checkpoint(number)    the checkpoint is committed: emit the output that belongs to it

Channels with files participate by `sync` and `committed`.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from exop.errors import CheckpointError, ComponentFailed, ExopError, NotCommitted, told
from exop.logs import logger
from exop.model.meshes.mesh import Mesh
from exop.runtime.channels.base import Channel
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.durable.engine_journal import DiskJournal
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.durable.snapshot import CAPTURING, Cut, Snapshot, capture, engine_positions
from exop.runtime.durable.store import Checkpoints
from exop.runtime.lifecycle import State
from exop.runtime.pause import Pause
from exop.runtime.supervision.budget import Owner, UserCall, UserCalls
from exop.safe_repr import RAISED, error_text, message

#: Seconds for an explicit `checkpoint()` to park every driver, and for each call of a slet.
PATIENCE = 10.0
#: Seconds for a periodic checkpoint to park every driver.
BRIEF = 1.0
#: Seconds for `commit_checkpoint` of all slets.
COMMITTING = 30.0
#: Seconds after which a source that has not parked counts as slow.
QUICK = 0.01
_PHASES: Final = {"prepare_checkpoint": "preparing a checkpoint", "sync": "bringing its output to the disk"}
_COMMITTING: Final = "committing a checkpoint"

Hold: TypeAlias = Callable[[Deployment, Component, Exception], None]
#: The calls that commit a checkpoint, each with its owner.
Commits: TypeAlias = list[tuple[Owner, UserCall[Any]]]


@dataclasses.dataclass
class Figures:
    """The metrics of an application's checkpoints, which `status` shows; *failing*: since the last success."""

    taken: int = 0
    failed: int = 0
    bytes: int = 0
    written_bytes: int = 0
    pause_ms: float = 0.0
    write_ms: float = 0.0
    failing: int = 0
    trouble: str | None = None


@dataclasses.dataclass(frozen=True)
class Unwritten:
    """A checkpoint that is not written yet; only the one before refers to the folders of *retired* engines."""

    number: int
    mesh: Mesh
    snapshot: Snapshot
    retired: list[Path]


class Checkpointer:
    """Takes checkpoints of one deployment, in its own thread, at the interval that the mesh specifies.

    *hold* blocks the input of a slet that has exceeded the time of a call. `complete`: the end of the application is
    stored, and its sinks have written everything.
    """

    def __init__(self, deployment: Deployment, checkpoints: Checkpoints, hold: Hold | None = None) -> None:
        self.figures = Figures()
        self._deployment = deployment
        self._checkpoints = checkpoints
        self._hold: Hold = hold or (lambda _, component, error: component.fail_until_resumed(error))
        self._number = 0
        self._captured_of = dict[Component, int]()
        self._came, self._empty = WeakKeyDictionary[Component, int](), WeakKeyDictionary[Component, int]()
        self._owners: dict[str, Owner] = {}
        self._late: dict[Component, Exception] = {}
        self._rendered = deployment.mesh, ""
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._ended = self.complete = False
        self._thread = threading.Thread(target=self._take_all, name=f"exop {deployment.name} checkpoints", daemon=True)

    def start(self) -> None:
        """Take checkpoints periodically from now on."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Stop taking checkpoints periodically."""
        self._stop.set()
        self._deployment.notify_waiting()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)

    def end(self) -> None:
        """Take no checkpoint after the caller's: a restart begins with that of a cut, if the change is committed."""
        self._ended = True
        self._stop.set()
        self._deployment.notify_waiting()

    def take(self, patience: float = PATIENCE, *, last: bool = False) -> None:
        """Take a checkpoint now, and return when it is written. If *last*, all drivers stop after it."""
        seconds = min(patience, COMMITTING) if last else COMMITTING
        self._carry_out(partial(self._captured, patience, last=last), patience if last else PATIENCE, seconds)

    def begin(self) -> None:
        """Take the first checkpoint, before any item moves."""
        self._carry_out(self._prepared, PATIENCE, COMMITTING)

    def prepare(self, mesh: Mesh | None = None, cut: Cut | None = None) -> Unwritten:
        """Capture the application during a change, which has parked all drivers; by default as it is before the change.

        *mesh* is the one after the change; for the *cut* see `capture`.
        """
        with self._noted():
            self._check_drivers(self._deployment.drivers())
            return self._taken(partial(self._prepared, mesh=mesh, cut=cut))

    def write(self, unwritten: Unwritten) -> None:
        """Write a prepared checkpoint as the last one, since the change is committed."""
        self._committed(self._written(unwritten), PATIENCE)
        self._note(None)

    def settle(self, sinks: Collection[Component], seconds: float) -> None:
        """Take a checkpoint during a change, which has parked all drivers and closes *sinks*: they commit it first."""
        begun = self._written(self.prepare())
        try:
            self._committed([one for one in begun if one[0] in sinks], seconds)
        finally:
            with suppress(NotCommitted):  # others try again with the next one
                self._committed([one for one in begun if one[0] not in sinks], seconds)

    def put_out(self, patience: float) -> None:
        """Let the sinks of a removed application emit what they hold without a checkpoint; all drivers stop."""
        deployment, number = self._deployment, self._number or self._checkpoints.number(self._deployment.name) + 1
        if not any(True for _ in self._hooks("commit_checkpoint")):
            return
        with self.reserved(patience), deployment.changing, Pause(deployment, patience, refused=self._refused) as pause:
            pause.stop()
            for driver in pause.drivers:
                driver.halt()

            def put_out() -> None:
                self._prepare_sinks(number)
                self._committed(self._begin_commits(number), patience)

            with self._noted(failed=False), ExitStack() as last:  # a slet that cannot flush keeps no sink from it
                last.callback(put_out)
                for component in reversed(deployment.components.values()):
                    last.callback(component.flush, patience)

    def unwritten(self) -> dict[str, int]:
        """Return the number of items that each sink has received since the last checkpoint that it has committed."""
        sinks = {one.node.name: one.metrics for one, _ in self._hooks("commit_checkpoint")}
        return {name: items for name, one in sinks.items() if (items := one.items_in() - one.put_out) > 0}

    def may_hold(self, sink: Component) -> bool:
        """Whether a sink may hold output: unless this instance has committed all that it has ever received."""
        by_itself = not sink.node.ports or sink.tie is not None or sink.spec.own_driver
        return by_itself or self._empty.get(sink) != sink.metrics.items_in()

    def status(self) -> dict[str, Any]:
        """Return the metrics of the checkpoints as plain data."""
        left = {"unwritten": self.unwritten()} if self.figures.trouble is not None else {}
        return {"every_s": self._deployment.mesh.durable, **dataclasses.asdict(self.figures), **left}

    def _carry_out(self, captured: Callable[[int], Snapshot], patience: float, committing: float) -> None:
        """Capture, write, commit; wait up to *patience* s for the previous checkpoint, *committing* s for the slets."""
        with self.reserved(patience):
            if self._ended:
                raise self._refused("the outcome of a change is not known", "a restart asks for it")
            with self._deployment.changing:
                failpoint("checkpoint-begin")
                over = self._deployment.finished.is_set()
                with self._noted():
                    taken = self._taken(captured)
                begun = self._written(taken)
            self._committed(begun, committing)  # others may change the application meanwhile
            self._note(None)
            self.complete = over

    def _taken(self, captured: Callable[[int], Snapshot]) -> Unwritten:
        """Capture the application; all output that belongs to the checkpoint is on the disk then."""
        retired = list(self._deployment.retired)
        number = self._number = self._number or self._checkpoints.number(self._deployment.name) + 1
        self._check_free()
        snapshot = captured(number)
        failpoint("checkpoint-released")
        self._call("sync")
        for journal in self._journals().values():
            journal.sync()
        for channel in self._kept("sync"):
            self._user().run(self._owners[channel.name], _PHASES["sync"], channel.sync, PATIENCE)
        return Unwritten(number, self._rendered[0], snapshot, retired)

    def _written(self, taken: Unwritten) -> Commits:
        """Write a checkpoint and start to commit it; return the calls."""
        deployment, figures, snapshot = self._deployment, self.figures, taken.snapshot
        with self._noted():
            begin = time.perf_counter()
            figures.written_bytes = self._checkpoints.write(snapshot)
            deployment.update_log.stored = taken.mesh
            self._number += 1
            figures.write_ms = round((time.perf_counter() - begin) * 1e3, 3)
            figures.taken += 1
            figures.bytes = sum(map(len, snapshot.parts.values()))
        with self._noted(failed=False):
            for folder in taken.retired:  # only the previous checkpoint refers to it
                shutil.rmtree(folder, ignore_errors=True)
                deployment.retired.remove(folder)
            return self._commit(taken)

    @contextmanager
    def reserved(self, patience: float = PATIENCE) -> Iterator[None]:
        """Let only the caller take checkpoints during the block, by `prepare` and `write`.

        Wait up to *patience* seconds for another checkpoint, but not while that checkpoint is being committed. At the
        end, when drivers are parked no more, slets that have exceeded the time of a call are blocked.
        """
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
            try:
                while self._late:
                    self._hold(self._deployment, *self._late.popitem())
            finally:
                self._turn.release()

    @contextmanager
    def _noted(self, *, failed: bool = True) -> Iterator[None]:
        """Record an error of the block, and the slets that have exceeded the time limit of a call."""
        try:
            yield
        except RAISED as error:
            problem = error if isinstance(error, ExopError) else self._refused(error_text(error), "")
            self.figures.failed += failed
            self.figures.failing += 1
            self._note(str(problem))
            for call in self._given_up():
                if call.phase != CAPTURING and isinstance(call.component, Component) and not call.component.stuck:
                    self._late[call.component] = problem
            raise problem from (error.__cause__ if problem is error else error)

    def _note(self, trouble: str | None) -> None:
        """Log a problem when it begins and ends, not for every checkpoint."""
        before, self.figures.trouble = self.figures.trouble, trouble
        self.figures.failing *= trouble is not None
        if trouble != before:
            log = logger("exop.checkpoints").bind(application=self._deployment.name)
            if trouble is not None:
                log.warning("a checkpoint failed", problem=trouble)
            else:
                log.info("checkpoints are taken again")

    def _given_up(self) -> list[UserCall[Any]]:
        """Return the abandoned calls of slets and channels that have not returned."""
        return self._user().abandoned(*self._deployment.components.values(), *self._owners.values())

    def _check_free(self) -> None:
        """Refuse a checkpoint while a slet is in an abandoned call of an earlier one, which may change the state."""
        for call in self._given_up():
            node = call.component.title
            problem = f"{node} holds it up: {call.phase} was given up, and has not returned for {call.seconds:.0f} s"
            cure = f"replace {node}, or release the resource for which it waits"
            raise self._refused(problem + call.whereabouts(), cure)

    def _captured(self, patience: float, number: int, *, last: bool) -> Snapshot:
        """Park every driver where its in-flight items are known, upstream first, and capture the deployment."""
        deployment = self._deployment
        self._topology(deployment.mesh)  # while the stream runs
        drivers = deployment.drivers()
        sources = [driver for driver in drivers if isinstance(driver, SourceDriver)]
        with Pause(deployment, patience, drivers=drivers, outside=sources, refused=self._refused) as pause:
            for source in sources[:-1]:  # wait for a slow source first, while all others run
                pause.close([source])
                if pause.wait(pause.parked, QUICK):
                    pause.open(source)
                else:
                    pause.wait_parked()
            pause.stop()
            self._check_drivers(drivers)
            begin = time.perf_counter()
            snapshot = self._prepared(number)
            self.figures.pause_ms = round((time.perf_counter() - begin) * 1e3, 3)
            failpoint("checkpoint-captured")
            for driver in drivers if last else ():
                driver.halt()
        return snapshot

    def _check_drivers(self, drivers: Iterable[Driver]) -> None:
        """Refuse a checkpoint if the in-flight items of a driver, which is parked, are not known."""
        for name, crash in self._deployment.crashed():
            raise self._refused(f"{name} has crashed: {told(crash)}", "restart the platform: it has the last one")
        for driver in drivers:
            if driver.held_by is not None and not driver.filled and not isinstance(driver, SourceDriver):
                raise self._refused(driver.held_by, "repair that first")

    def _prepared(self, number: int, mesh: Mesh | None = None, cut: Cut | None = None) -> Snapshot:
        """Prepare and capture, while the stream is paused; *mesh* and *cut* as for `prepare`."""
        deployment, name, known = self._deployment, self._deployment.name, self._owners
        first: Owner = next(iter(deployment.components.values()), Owner(name, name, name))
        carry_out = partial(self._user().run, first, CAPTURING, seconds=PATIENCE)
        carry_out(self._flush)  # first: what the slets emit belongs to this checkpoint, too
        self._prepare_sinks(number)
        self._owners = {one: known.get(one) or Owner(name, one, f"{name}/{one}") for one in deployment.channels}
        topology = self._topology(mesh := mesh or deployment.mesh)
        return carry_out(partial(capture, deployment, topology, mesh.revision, self._owners, cut))

    def _flush(self) -> None:
        for component in self._deployment.components.values():
            component.flush()

    def _prepare_sinks(self, number: int) -> None:
        """Let the sinks prepare to commit, and note how many items they have received until then."""
        self._call("prepare_checkpoint", number)
        for one, _ in self._hooks("commit_checkpoint"):  # who has not committed the last one may not commit this one
            last, self._came[one] = self._came.get(one, one.metrics.recovered["items_in"]), one.metrics.items_in()
            one.metrics.expected = self._came[one] if one.metrics.put_out >= last else one.metrics.put_out
        self._captured_of = {one: items for one, items in self._came.items() if one.status is State.ACTIVE}

    def _topology(self, mesh: Mesh) -> str:
        """Return the topology of a mesh, rendered again if it is another one than the last time."""
        if mesh is not self._rendered[0] or not self._rendered[1]:
            self._rendered = mesh, mesh.to_toml()
        return self._rendered[1]

    def _commit(self, taken: Unwritten) -> Commits:
        """Start to commit a checkpoint; the calls of channels are over at the end, since a change may remove them.

        So are those of journals; an error of one withholds the checkpoint from no other.
        """
        begun = self._begin_commits(taken.number)
        last = [(self._owners[channel.name], channel.committed) for channel in self._kept("committed")]
        journals, components = self._journals(), self._deployment.components
        for name, held in engine_positions(taken.snapshot).items() if journals else ():
            last.append((components[name], partial(journals[name].trim_output, held)))
        for owner, work in last:
            begun.append((owner, call := self._user().begin(owner, _COMMITTING, work)))
            if not call.wait(PATIENCE):
                call.abandon()
        return begun

    def _begin_commits(self, number: int) -> Commits:
        """Start to commit the prepared checkpoint in all slets that are not in an abandoned call."""
        begun: Commits = []
        busy = {call.component for call in self._given_up()}
        for component, hook in [one for one in self._hooks("commit_checkpoint") if one[0] not in busy]:
            component.committing = component.user.begin(component, _COMMITTING, partial(hook, number))
            begun.append((component, component.committing))
        return begun

    def _committed(self, begun: Commits, seconds: float) -> None:
        """Wait up to *seconds* until all slets have emitted their output; note and raise the last error of a call."""
        end = time.monotonic() + seconds
        failed: NotCommitted | None = None
        for owner, call in begun:
            try:
                call.result(max(0.0, end - time.monotonic()))
                if isinstance(owner, Component) and owner in self._came:
                    owner.metrics.put_out = self._came[owner]
                self._empty |= {one: items for one, items in self._captured_of.items() if owner is one}
            except RAISED as problem:
                text = message(problem) or error_text(problem)
                failed = NotCommitted(application=self._deployment.name, node=owner.title, problem=text)
                failed.__cause__ = problem
            finally:
                if isinstance(owner, Component):
                    owner.committing = None
        with self._noted(failed=False):
            if failed is not None:
                raise failed
        failpoint("checkpoint-put-out")

    def _journals(self) -> dict[str, DiskJournal]:
        return {name: one.tie for name, one in self._deployment.components.items() if isinstance(one.tie, DiskJournal)}

    def _user(self) -> UserCalls:
        return next((one.user for one in self._deployment.components.values()), UserCalls())

    def _kept(self, name: str) -> list[Channel]:
        """Return the channels whose kind defines this method."""
        channels = self._deployment.channels.values()
        return [one for one in channels if getattr(type(one), name) is not getattr(Channel, name)]

    def _call(self, name: str, *given: Any) -> None:
        for component, hook in self._hooks(name):
            try:
                component.user.run(component, _PHASES[name], partial(hook, *given), PATIENCE)
            except ComponentFailed:
                raise
            except RAISED as problem:
                told = f"{component.node.name}.{name}() raised {error_text(problem)}"
                raise self._refused(told, "repair that first") from problem

    def _hooks(self, name: str) -> Iterator[tuple[Component, Callable[..., Any]]]:
        for component in self._deployment.components.values():
            if callable(hook := getattr(component.instance, name, None)) and not component.closed:
                yield component, hook

    def _take_all(self) -> None:
        deployment = self._deployment
        over, ended = False, None

        def due() -> bool:  # at the end of a fragment, other hosts wait until a checkpoint has what they have sent
            ends = deployment.is_fragment and deployment.mesh is not ended and not deployment.at_work()
            return ends or self._stop.is_set() or deployment.finished.is_set()

        while not over:
            with deployment.progress:
                deployment.progress.wait_for(due, deployment.mesh.durable or BRIEF)
            if self._stop.is_set():
                return
            over = deployment.finished.is_set()
            ended = None if deployment.at_work() else deployment.mesh
            with suppress(ExopError):  # `_noted` has logged it
                self.take(BRIEF)

    def _refused(self, problem: str, cure: str) -> CheckpointError:
        cure = cure or "it is tried again with the next one"
        return CheckpointError(application=self._deployment.name, problem=problem, cure=cure)
