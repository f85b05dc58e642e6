"""`Deployment`: a running application with its components, channels and drivers, from its opening to its end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from exop.errors import ComponentFailed, PlanError, counted, told
from exop.logs import logger
from exop.model.meshes.diff import Difference
from exop.model.meshes.mesh import Mesh, Node
from exop.model.reached import reached
from exop.model.slets.spec import Role
from exop.runtime.channels.base import Channel, ControlMerge
from exop.runtime.channels.log import LogChannel
from exop.runtime.channels.queue import Buffered
from exop.runtime.component import Component
from exop.runtime.conditional_updates import UpdateLog
from exop.runtime.dataflow.entry import Entry
from exop.runtime.dataflow.inlets import Inlets
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.source import EngineDriver, SourceDriver, ThreadDriver
from exop.runtime.drivers.worker import Worker
from exop.runtime.lifecycle import Event, State
from exop.runtime.supervision.budget import UserCall
from exop.runtime.supervision.interrupts import GLANCE, interrupted
from exop.runtime.supervision.watchdog import SAMPLER, Attended, Visibility, Watchdog
from exop.safe_repr import error_text

#: Seconds to wait for a worker that is no longer needed, by default.
LEAVING = 10.0
#: The number of slets that are opened at the same time.
OPENERS = 8
#: Seconds for which closing one slet may delay closing the slets downstream.
HOLDING = 0.5
#: The number of replaced slets whose errors remain in the status: the newest ones.
REPLACED = 100


class Deployment:
    """The running form of one mesh.

    Attributes:
        components: The components by node. It and `channels` are replaced, never changed: others read them.
        leaving: The channels that a change removes, from its staging to its commit: other hosts may only read them.
        inserted: The queues that the wiring has inserted between drivers, by id; `reasons` has the reason for each.
        entries: The compiled entry at each endpoint.
        merges: Merges the control items of several producers of a channel.
        joined: The channel to which each port, by `node.port`, and each group of ports is connected.
        lineage: The positions of all logs when each node began, if its input has come in the same way since then, so
            that it can be replayed; else what was before. Part of checkpoints, so plain values.
        windows: The window channels whose punctuations arrive through each channel.
        loops: Functions that detect the end of each cycle; drivers without items call them.
        retired: Folders of replaced engines, to which the last checkpoint may still refer.
        finished: Set when every component has ended, and the peers have acknowledged all that was sent to them.
        over: Called before `finished` is set, if all components have ended by themselves.
        changing: A lock that is held while the mesh is being changed, so that no checkpoint is taken meanwhile.
        parking: A lock that one thread at a time holds while drivers park; any thread may release it.
        replaced: The errors of components that were replaced or removed, by the component's id.
        defect: The error of a change that could not be undone any more.
        is_fragment: Whether other hosts run parts of the application: it has finished only when all of them have ended.
        begins: Whether a plan over several hosts begins it, whose outcome is not known.
        delivering: Every component has ended, and peers have not acknowledged all that was sent to them.
        awaits_rest: A cycle ends when it comes to rest, since all that feeds it has ended.
        last_change: The revision that the last change made, and the seconds of its pause.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.name = mesh, mesh.name
        self.components: dict[str, Component] = {}
        self._attended, self._placing = Attended(), threading.Lock()
        self.channels: dict[str, Channel] = {}
        self.leaving: list[Channel] = []
        self.inserted: dict[str, Buffered] = {}
        self.reasons: dict[str, str] = {}
        self.merges: dict[str, ControlMerge] = {}
        self.joined: dict[str | tuple[str, ...], str] = {}
        self.lineage: dict[str, Mapping[str, tuple[int, int]] | str] = {}
        self.windows: dict[str, set[str]] = {}
        self.workers: dict[str, Worker] = {}
        self.loops: list[Callable[[], Callable[[], None] | None]] = []
        self.retired: list[Path] = []
        self.finished = threading.Event()
        self.over: Callable[[], None] | None = None
        self.progress = threading.Condition()
        self.update_log = UpdateLog(self)
        self.entries: dict[str, Entry] = {}
        self.inlets = Inlets()
        self.started: float | None = None
        self.replaced: dict[str, dict[str, Any]] = {}
        self.defect: PlanError | None = None
        self.last_change: tuple[int, float] | None = None
        self.is_fragment = self.begins = self.delivering = self.awaits_rest = self._stopped = False
        self._watchdog, self._visibility = Watchdog(), Visibility()
        self._deadlocked: dict[Buffered, str] = {}
        self.changing = threading.RLock()
        self.parking = threading.Lock()

    def trace(self, after: Mesh, changes: Difference, arriving: Collection[str] = ()) -> None:
        """Update the lineages of the nodes by a change, in whose cut this is called; its new channels are in place.

        A slet that replaces another one has the same input. The slets that it pushes into get other items than before.
        """
        if not (logs := {name: one for name, one in self.channels.items() if isinstance(one, LogChannel)}):
            self.lineage = {}
            return
        found = {name: one for name, one in self.lineage.items() if name in after.nodes}
        until, runs = f"up to revision {self.mesh.revision}", self.started is not None
        for node in changes.added:
            pushed = (name for port, name in node.inputs().items() if runs and not node.slet.ports[port].pulled)
            replayed = {name for name in pushed if name in logs and logs[name].replays}
            begun = {name: (log.start, 0) if name in replayed else (*log.position,) for name, log in logs.items()}
            found[node.name] = "it came from another host" if node.name in arriving else _given(node) or begun
        for old, new in changes.changed:
            was, now = old.inputs(), new.inputs()
            moved = [port for port in was | now if was.get(port) != now.get(port)][:1]
            if other := _given(new) or "".join(f"its port {port} was on {was.get(port)!r}" for port in moved):
                found[new.name] = f"{other} {until}"
        left, done = dict(_altered(changes)), {node.name for node in changes.added}
        while left:
            channel, reason = left.popitem()
            for node, _ in after.consumers(channel) if channel not in logs else ():
                if node.name not in done:
                    done.add(node.name)
                    found[node.name] = f"{reason} {until}"
                    left |= dict.fromkeys(node.outputs().values(), reason)
        self.lineage = found

    def place(self, components: dict[str, Component], nodes: Iterable[str]) -> None:
        """Set the components of the application; only those of *nodes* differ from the previous ones."""
        with self._placing:
            self.components = components
            for node in nodes:
                if node in components:
                    self._attended.note(components[node])
                else:
                    self._attended.pop(node, None)
                    self._attended.open.discard(node)

    def component(self, node: str) -> Component:
        """Return the component of a node, or raise `UnknownName`."""
        self.mesh.node(node)
        return self.components[node]

    def drivers(self) -> list[Driver]:
        """Return all drivers, from upstream to downstream."""
        return sorted(self._drivers(), key=attrgetter("rank"))

    def _drivers(self) -> list[Driver]:
        attended = list(self._attended.values())
        own = [one.driver for one in attended if isinstance(one.driver, (SourceDriver, EngineDriver))]
        return [*self.workers.values(), *own, *(puller for one in attended for puller in one.pullers)]

    def open(self, seconds: float | None = None) -> None:
        """Open all slets, several at a time, each within *seconds*; return when all of them are ready.

        If one raises `ComponentFailed`, the others are still opened, and the caller stops the deployment. An interrupt
        gives up those that are being opened, and opens no more.
        """
        failed: list[BaseException] = []
        quick = [one for one in self.components.values() if not one.opens]
        slow = [one for one in self.components.values() if one.opens]
        queue = iter(slow)

        def open_all(components: Iterable[Component]) -> None:
            for component in components:
                try:
                    component.enter(seconds)
                except BaseException as error:  # noqa: BLE001 (it is raised when all others have opened or failed)
                    failed.append(error)

        openers: list[threading.Thread] = []
        with suppress(RuntimeError):  # the system has no more threads: those that have started open the other slets
            for number in range(min(OPENERS, len(slow))):
                opener = threading.Thread(target=open_all, args=(queue,), name=f"exop opener {number}", daemon=True)
                opener.start()
                openers.append(opener)
        open_all(quick if openers else chain(quick, queue))
        for opener in openers:
            while opener.is_alive():
                opener.join(GLANCE)
                if interrupted():  # an opener that has just taken a slet is met by the next turn
                    deque(queue, 0)
                    slow[0].user.abandon(self.name, "opening", "its application was interrupted")
        for error in failed:
            raise error

    @property
    def opens(self) -> bool:
        """Whether it does not run yet: slets open, or a plan that begins it on several hosts may still be refused."""
        return self.started is None or self.begins

    def opening_progress(self) -> dict[str, Any]:
        """Return how many slets are open, and for how many seconds each of the others has been opening."""
        now, components = time.monotonic(), self.components
        begun = [one.entered for one in components.values() if one.entered]
        opened = sum(one.status not in (State.CREATED, State.OPENING) for one in components.values())
        waiting = {name: round(now - one.entered, 1) for name, one in components.items() if one.status is State.OPENING}
        seconds = round(now - min(begun, default=now), 1)
        return {"seconds": seconds, "opened": opened, "total": len(components), "waiting": waiting}

    def start(self) -> None:
        """Start all drivers, the sources last. Raise `ComponentFailed` if an engine has failed."""
        _check(self.components.values(), "starting")
        self.started = time.monotonic()
        for component in self.components.values():
            component.on(Event.SUSPEND if component.node.suspended else Event.START)
            if component.over:
                component.on(Event.END)
        for channel in self.channels.values():
            channel.attach()
        for worker in self.workers.values():
            worker.start()
        for component in sorted(self.components.values(), key=lambda one: one.spec.role is Role.ALPHA):
            component.begin()
        SAMPLER.add(self._look)

    def end_sources(self, timeout: float = 0.0) -> bool:
        """Make every α-slet end its stream, where a restart may not; return whether all have, in *timeout* seconds."""
        sources = {one: one.driver for one in self.components.values() if one.spec.role is Role.ALPHA and one.driver}
        for driver in sources.values():
            driver.end(self.await_checkpoint)
        with self.progress:
            return self.progress.wait_for(lambda: all(one.has_ended for one in sources), timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every component has ended; return `False` if *timeout* seconds have passed before.

        Raises:
            ComponentFailed: a slet is suspended on an item, or an engine or driver has failed.
        """
        with self.progress:
            return self.progress.wait_for(self._ended, timeout)

    def all_ended(self) -> bool:
        """Return whether all components have ended, and peers have acknowledged all sent to them; raises as `wait`."""
        return self._ended() or not (self.at_work() or self.undelivered())

    def undelivered(self) -> dict[str, int]:
        """Return the number of events that peers have not acknowledged, by channel."""
        return {name: count for name, one in self.channels.items() if (count := one.unacknowledged)}

    def _ended(self) -> bool:
        """Return whether the application has finished; raise `ComponentFailed` if an error prevents that."""
        if self.finished.is_set():
            return True
        for name, crash in self.crashed():
            raise ComponentFailed(node=name, phase="running", problem=told(crash)) from crash
        _check(self.failures(), "running")
        for channel in (*self.channels.values(), *self.inserted.values()):
            if channel.trouble:
                raise ComponentFailed(node=channel.name, phase="running", problem=str(channel.trouble))
        return False

    def stop(self, timeout: float = 5.0) -> bool:
        """Halt all drivers and close all slets, upstream first; return whether all have ended in time."""
        self._stopped = True
        drivers = self.drivers()
        for driver in drivers:
            driver.halt()
        deadline = time.monotonic() + timeout
        threads = [driver for driver in drivers if isinstance(driver, ThreadDriver)]
        try:
            joined = [driver.join(max(0.0, deadline - time.monotonic())) for driver in threads]
        finally:  # the user may interrupt the wait
            made = [one for one in self.components.values() if one.status is not State.CREATED]
            closed = _close_all(made, deadline - time.monotonic())
        return closed and all(joined)

    def let_go(self, component: Component) -> None:
        """Release the drivers that wait for a replaced or removed component; its errors remain in the status."""
        component.let_go()
        metrics, successor = component.metrics, self.components.get(component.node.name)
        if successor is not None:
            successor.metrics.inherit(metrics)  # including the items that it had not sent, which are in flight now
        if metrics.errors:
            facts = {"node": component.node.name, "slet": component.spec.identity, "last_error": metrics.last_error}
            self.replaced[component.id] = {**facts, "errors": metrics.errors, "skipped": metrics.skipped}
            if len(self.replaced) > REPLACED:
                del self.replaced[next(iter(self.replaced))]

    def changed(self, component: Component) -> None:
        """Handle the new state of a component: the application, or a cycle, may have ended."""
        with self._placing:
            if self.components.get(component.node.name) is component:
                self._attended.note(component)
        self.check_finished()
        if component.status is State.ENDED:
            self.nudge()

    def nudge(self) -> None:
        """Make sleeping drivers check whether a cycle has ended, and waiting threads their conditions."""
        for driver in self._drivers() if self.loops else ():
            driver.wake()
        self.notify_waiting()

    def check_finished(self, *, everywhere: bool = False) -> None:
        """Set `finished` if every component has ended, and channels without consumers have stored all; wake who waits.

        What was sent to peers must be acknowledged, unless the home has found that all fragments have ended
        (*everywhere*): then, an outbox that was restored may hold what its peer has had, and acknowledges no more.
        """
        self.is_fragment = self.is_fragment and not everywhere
        ended = not (self.is_fragment or self.at_work())
        delivering = ended and not everywhere and bool(self.undelivered())
        if ended and not delivering:
            if self.over is not None and all(one.status is State.ENDED for one in self.components.values()):
                self.over()
            self.finished.set()
        self.delivering = delivering  # last: until it has finished, the state stays
        self.notify_waiting()

    def at_work(self) -> bool:
        """Whether a component has not ended, or a worker still moves items into a channel without consumers."""
        unread = [(one, one.worker) for one in self.inserted.values() if one.unread]
        return bool(self._attended.open) or any(worker and (one.entries or worker.busy) for one, worker in unread)

    def notify_waiting(self) -> None:
        """Wake the threads that wait for the application."""
        with self.progress:
            self.progress.notify_all()

    def failures(self) -> list[Component]:
        """Return the components that have failed: suspended on an item, or with a failed engine."""
        return [one for one in list(self._attended.values()) if one.status is State.FAILED]

    def crashed(self) -> list[tuple[str, BaseException]]:
        """Return the drivers that a defect has ended, and a change that it has cut short, with the errors."""
        ended = [(one.name, one.crash) for one in self._drivers() if isinstance(one, ThreadDriver)]
        return [(name, crash) for name, crash in (("a change", self.defect), *ended) if crash is not None]

    def await_checkpoint(self) -> None:
        """Let hosts and engines, which count, get no more until a checkpoint has what is changed now."""
        if self.mesh.durable is not None:
            ties: list[Any] = [one.tie for one in [*self.components.values()] if one.tie is not None]
            for place in [*self.channels.values(), *ties]:
                place.await_checkpoint()

    @contextmanager
    def decided(self, drivers: Iterable[Driver] = ()) -> Iterator[None]:
        """Keep a defect of a block that nothing undoes; a durable application stands still until it is restarted."""
        try:
            yield
        except BaseException as error:
            cure = "items on their way may be lost: to begin anew, remove the application and apply it again"
            if self.mesh.durable is not None:
                cure = "no item moves on, and no checkpoint is taken: restart the platform, which has the last one"
                for driver in (*self._drivers(), *drivers):
                    driver.halt()
            self.defect = self.defect or PlanError(f"{told(error)}; {cure}")
            self.notify_waiting()
            raise

    def settle_workers(self, timeout: float | None) -> None:
        """Start the workers that a change has added, and end those that have no queue left."""
        if self.started is None:
            return
        for key, worker in list(self.workers.items()):
            if worker.queues:
                worker.start()
            else:
                worker.retire()
                worker.join(LEAVING if timeout is None else timeout)
                del self.workers[key]

    def idle(self) -> Callable[[], None] | None:
        """Return a call that ends a cycle, if one has ended. Called by a driver without items."""
        if not (self._attended.open or self.finished.is_set()):  # this driver has moved the last items
            self.check_finished()
        return next((todo for loop in self.loops if (todo := loop()) is not None), None)

    def _look(self) -> bool:
        """Sample the drivers and slets; return whether to sample again."""
        attended, drivers = list(self._attended.values()), self._drivers()
        stopped = self._stopped or self.finished.is_set()
        for driver in [one for one in drivers if not (stopped or one.attention)]:
            driver.measure_next()
        # If no node has a timeout now, this clears earlier reports of slets that hang.
        self._watchdog.look(self.components, drivers if any(one.node.patience is not None for one in attended) else ())
        if not stopped:
            self._visibility.look(attended)
        self._look_for_deadlocks(() if stopped else drivers)
        if not (stopped or self._attended.open):  # a peer may have acknowledged the last events
            self.check_finished()
        if self.awaits_rest:
            self.awaits_rest = False
            self.nudge()
        return not stopped

    def silent(self, channel: Channel) -> list[str]:
        """Return the producers (`node.port`) of a channel that have neither ended nor sent a punctuation."""
        producers = [f"{node.name}.{port}" for node, port in self.mesh.producers(channel.name)]
        return merge.silent(producers) if (merge := self.merges.get(channel.name)) is not None else producers

    def _look_for_deadlocks(self, drivers: Iterable[Driver]) -> None:
        """Report deadlocks: a full queue whose consumer waits for a channel whose producer waits for this queue."""
        found: dict[Buffered, str] = {}
        for driver in drivers:
            if (queue := driver.waits_at) is None:
                continue
            if driver in (waiting := {*driver.waiting()}):  # since an engine has come to rest without a result
                queue.check_again(driver)
            if not (held := {one for one in waiting if one.held_by is not None}):
                continue  # the usual case: the queue is full for a moment
            for reader in [one for one in self.components.values() if not held.isdisjoint((one.driver, one.pusher))]:
                if names := ", ".join(repr(one.name) for one in reader.unfilled if driver in self._fillers(one)):
                    found[queue] = (
                        f"{reader.node.name} accepts no items until {names} is filled, whose producer waits for room "
                        f"in the queue {queue.name!r}, which holds {counted(queue.capacity, 'item')}: a deadlock. Put "
                        f"another queue before it, with room for all items until then, or fill {names} from "
                        f"another source"
                    )
        for queue in self._deadlocked | found:
            queue.trouble = found.get(queue)
        if found.keys() - self._deadlocked.keys():
            self.notify_waiting()
        self._deadlocked = found

    def _fillers(self, channel: Channel) -> set[Driver]:
        """Return the drivers without which the producers of a channel cannot end."""
        silent = self.silent(channel)
        ends = [node.name for node, port in self.mesh.producers(channel.name) if f"{node.name}.{port}" in silent]

        def before(name: str) -> list[str]:
            component = self.components.get(name)
            inputs = {} if component is None or component.spec.own_driver else component.node.inputs()
            return [node.name for to in inputs.values() for node, _ in self.mesh.producers(to)]

        components = filter(None, map(self.components.get, reached(ends, before)))
        return {driver for one in components for driver in (one.driver, one.pusher) if driver is not None}


def _given(node: Node) -> str:
    """Return how a node gets its state otherwise than by its input; or nothing."""
    return "its state was given" if node.memento is not None else "it lost another state" if node.lose_state else ""


def _altered(changes: Difference) -> Iterator[tuple[str, str]]:
    """Yield the channels that carry other items after a change, each with what was different before."""

    def form(node: Node) -> Any:
        return node.slet, dict(node.settings), dict(node.ports), node.policy, _given(node)

    nodes = [*changes.added, *changes.removed]
    nodes += [one for old, new in changes.changed if form(old) != form(new) for one in (old, new)]
    for node in nodes:
        for channel in node.outputs().values():
            yield channel, f"{node.name} pushed other items into {channel!r}"
    for old, new in changes.channels_changed:
        if dict(old.settings) != dict(new.settings) or new.close_windows:
            yield new.name, f"the {new.kind} {new.name!r} had other settings"


def _check(components: Iterable[Component], phase: str) -> None:
    """Raise the error of a component that has failed."""
    for component in components:
        if component.status is State.FAILED:
            problem = error_text(component.error) if component.error is not None else "the reason is not known"
            raise ComponentFailed(node=component.node.name, phase=phase, problem=problem) from component.error


def _close_all(components: Iterable[Component], timeout: float) -> bool:
    """Close components one after the other; return whether all have closed within *timeout* seconds.

    A `KeyboardInterrupt`, which the user may cause in the main thread, is raised when all are closed.
    """
    deadline = time.monotonic() + max(timeout, 0.2)  # a moment, even when the time for stopping has passed
    closing: list[tuple[Component, UserCall[None] | None]] = []
    interrupts: list[KeyboardInterrupt] = []
    for component in components:
        with _logging(component, interrupts):
            call = component.begin_exit()
            closing.append((component, call))
            if call is not None:
                call.wait(min(HOLDING, max(0.0, deadline - time.monotonic())))
    for component, call in closing:
        with _logging(component, interrupts):
            component.end_exit(call, max(0.0, deadline - time.monotonic()))
    for interrupt in interrupts:
        raise interrupt
    return all(call is None or call.over for _, call in closing)


@contextmanager
def _logging(component: Component, interrupts: list[KeyboardInterrupt]) -> Iterator[None]:
    """Log an error of the block, so that the other components are still closed."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (any error of the slet)
        component.error = error
        facts = {"node": component.node.name, "component": component.id, "error": error_text(error)}
        logger("exop.runtime").error("closing failed", **facts)
        interrupts.extend([error] if isinstance(error, KeyboardInterrupt) else [])
