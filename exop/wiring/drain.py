"""Draining before the cut, upstream first: a change removes channels and slets only when they are empty.

A queue that goes, or from which a port is moved away, is drained while those who push into it are parked already; a
slet with a driver of its own that leaves puts out what it was given. What cannot be emptied is a reason to refuse; the
input that an engine has not put out goes to its successor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from exop.errors import PlanError
from exop.logs import logger
from exop.model.items import CONTROL, EndOfStream
from exop.model.lifecycle import State
from exop.runtime.channels.queue import Buffered
from exop.runtime.component import Component
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.engine import EngineDriver
from exop.runtime.entry import Way, Work, items_of
from exop.runtime.failure import anchor
from exop.runtime.inlets import Inlets
from exop.runtime.pause import Pause
from exop.runtime.ports import DrivenOutput, way_of
from exop.shown import RAISED, described
from exop.wiring.circuit import Circuit, Join, before_key, channel_at, edge_key, port_at
from exop.wiring.region import Region

#: States in which a slet cannot work: items that wait for it are lost when it is removed.
HELPLESS = (State.FAILED, State.SUSPENDED)


@dataclass
class Drain:
    """Empties what has to be empty, upstream first, and closes the drivers upstream of it.

    Args:
        pause: Holds the drivers of the application.
        old: The components that leave.
        region: The connections before the change and after it, and where they differ.
        opened: Called with a component that leaves, as soon as it has stopped: its state is final then.
        undo: Where it is noted how to let those go on who were stopped.
    """

    pause: Pause
    old: Iterable[Component]
    region: Region
    opened: Callable[[Component], None]
    undo: list[Callable[[], object]]
    _stops: dict[int, list[Callable[[], None]]] = field(default_factory=dict)

    def stage(self) -> None:
        """Empty what has to be empty, upstream first; drivers are closed as far as that needs it.

        Raises:
            PlanError: something could not be emptied.
        """
        for component in self.old:
            if component.driver is not None:
                self._stops[id(component.driver)] = [partial(self._stop, component, component.driver)]
        todo: dict[int, tuple[Driver, list[tuple[Buffered, list[Join]]]]] = {}
        for queue, leaving in self._emptied():
            if queue.worker is not None:
                todo.setdefault(id(queue.worker), (queue.worker, []))[1].append((queue, leaving))
        for key, (worker, queues) in todo.items():
            self._stops.setdefault(key, []).insert(0, partial(self._drain, worker, queues))
        waiting: list[Driver] = []
        for driver in self.pause.drivers:
            for stop in self._stops.get(id(driver), ()):
                self.pause.close(waiting)
                self.pause.wait_parked()
                stop()
            waiting.append(driver)

    def _emptied(self) -> Iterator[tuple[Buffered, list[Join]]]:
        """The queues that have to be empty, each with the ports that leave it."""
        before, after = self.region.before.circuit, self.region.after.circuit
        stay = after.nodes
        for name in self.region.channels:
            joins = before.consumers.get(name, [])
            there = {join.name for join in after.consumers.get(name, ())}
            leaving = [join for join in joins if join.name not in there]
            moved = any(join.component.node.name in stay for join in leaving)
            gone = name not in after.channels
            channel = before.channels.get(name)
            if isinstance(channel, Buffered) and leaving and (gone or moved or not there):
                yield channel, leaving
            queue = self.pause.deployment.inserted.get(before_key(name))
            if queue is not None and gone:
                yield queue, leaving
            yield from self._behind(name, [join for join in leaving if join.component.node.name not in stay])

    def _behind(self, name: str, removed: list[Join]) -> Iterator[tuple[Buffered, list[Join]]]:
        for join in removed:
            queue = self.pause.deployment.inserted.get(edge_key(name, join))
            if queue is not None:
                yield queue, [join]

    def _drain(self, worker: Driver, queues: list[tuple[Buffered, list[Join]]]) -> None:
        """Wait until the worker of these queues has emptied them; those who push into them are parked.

        Other queues that it has may lead into these: it takes nothing from them meanwhile.
        """
        self.pause.close([worker])
        self.pause.wait_parked()
        kept = [(queue, leaving) for queue, leaving in queues if not (queue.left or _ended(leaving))]
        if any(queue.entries for queue, _ in kept):
            self._let_empty(worker, [queue for queue, _ in kept])
        for queue, leaving in kept:
            if queue.entries and not self._gone_with(leaving):
                names = ", ".join(join.name for join in leaving)
                why = worker.held_by or f"it was not emptied within {self.pause.timeout:g} s"
                raise PlanError(
                    f"the queue {queue.name!r} holds {queue.depth} items on their way to {names}, which would be lost "
                    f"({why}); repair or resume that first, or let the queue run empty"
                )

    def _let_empty(self, worker: Driver, queues: list[Buffered]) -> None:
        """Let a parked driver work on nothing but these queues, until they are empty or it can do no more.

        It waits for no room: who would make it may wait for a slet that is repaired after the change.
        """
        worker.only = tuple(queues)
        worker.draining = True
        worker.open()
        try:
            self.pause.watch(worker)
            worker.wake()
            self.pause.wait(lambda: worker.held_by is not None or not any(queue.entries for queue in queues))
        finally:
            worker.close()
            self.pause.wait_parked()
            worker.only = None
            worker.draining = False

    def _gone_with(self, leaving: list[Join]) -> bool:
        """Whether all that an item waits for is removed, and cannot work."""
        stay = self._staying()
        return all(one.component.status in HELPLESS and one.component.node.name not in stay for one in leaving)

    def _stop(self, component: Component, driver: Driver) -> None:
        """Stop a slet that drives itself, or is driven, and is to leave."""
        if component.spec.own_driver and component.status in (State.ACTIVE, State.SUSPENDED):
            self.undo.append(component.proceed)
            try:
                quiesce(self.pause, component, driver)
            except PlanError as problem:
                if component.tie is None or component.node.name not in self._staying():
                    raise
                # What it has not put out is known, and goes to its successor.
                log = logger("exop.wiring")
                log.warning("an engine does not come to rest", node=component.id, problem=str(problem))
            if component.tie is not None:  # its further output would have no reader
                component.tie.hold(self.pause.timeout)
        self.opened(component)

    def _staying(self) -> Collection[str]:
        return self.region.after.circuit.nodes


def _ended(leaving: Iterable[Join]) -> bool:
    """Whether the stream has ended at all that leave: they take nothing more."""
    return all(join.component.status is State.ENDED for join in leaving)


def check_ends(region: Region) -> None:
    """Refuse to push into a slet whose stream has ended: it has said so to everybody behind it.

    Raises:
        PlanError: a producer that goes on would be connected to it.
    """
    before, after = region.before.circuit, region.after.circuit
    for name in region.channels:
        joins = after.consumers.get(name, ())
        known = {join.name for join in before.consumers.get(name, ())}
        feeding = {join.name for join in before.producers.get(name, ())}
        for producer in after.producers.get(name, ()):
            for join in joins:
                fresh = join.name not in known or producer.name not in feeding
                if fresh and join.component.status is State.ENDED and producer.component.status is not State.ENDED:
                    raise PlanError(
                        f"the stream has ended at {join.name}: {producer.name} cannot be connected to it any more; "
                        f"connect it to another node"
                    )


def quiesce(pause: Pause, component: Component, driver: Driver, *, then_proceed: bool = False) -> None:
    """Let a slet with a driver of its own put out what it was given, in a thread of its own: nothing more comes in.

    With *then_proceed*, it goes on as soon as its driver does: it is not about to be replaced.

    Raises:
        PlanError: it does not in time, or waits for a slet that has to be repaired or resumed first.
    """

    def stuck() -> bool:
        """Whether it waits for a slet to be repaired or resumed, which cannot happen before the change is over."""
        helpless = [one for one in pause.deployment.components.values() if one.status in HELPLESS]
        return driver.held_by is not None and any(driver in (one.driver, one.pusher) for one in helpless)

    shut = component.status is State.SUSPENDED
    driver.draining = True
    if shut:
        driver.open()
    driver.wake()
    pause.watch(driver)
    put_out = component.stopping(then_proceed=then_proceed)
    call = component.user.begin(component, "putting out what it was given", put_out, news=pause.wake)
    try:
        pause.wait(lambda: call.over or stuck())
    finally:
        driver.draining = False
        if shut:
            driver.close()
    try:
        call.result(0.0)
    except RAISED as error:
        late = driver.held_by or f"not within {pause.timeout:g} s{call.whereabouts()}"
        why = late if call.abandoned else described(error)
        raise PlanError(f"{component.node.name} has not put out what it was given: {why}") from error


def check_inlets(inlets: Inlets, drivers: Collection[Driver], region: Region) -> None:
    """Refuse a change that removes the place where work of *drivers*, which are parked, waits.

    A node that cannot work itself takes what waits for it along, when it is removed.

    Raises:
        PlanError: an item would be lost.
    """
    before, after = region.before.circuit, region.after.circuit
    for driver, work in inlets.waiting(drivers):
        channel, port = channel_at(work.entry.place), port_at(work.entry.place)
        node = port.rpartition(".")[0]
        if channel and port:  # a window; its port may leave the channel only with its slet
            lost = node in after.nodes and all(join.name != port for join in after.consumers.get(channel, ()))
        elif channel:
            readers = before.consumers.get(channel, ())
            lost = channel not in after.channels and any(join.component.node.name in after.nodes for join in readers)
        else:
            vertex = before.nodes.get(node) if node not in after.nodes else None
            able = vertex is not None and vertex.component.status not in HELPLESS
            lost = able and not _leaves(before, port)
        if lost:
            raise PlanError(
                f"an item is on its way to {work.entry.place}, which would be removed, and cannot go on "
                f"({driver.held_by or driver.name}); repair or resume that first"
            )


def _leaves(circuit: Circuit, port: str) -> bool:
    """Whether a port is an output: what waits there goes to the places behind it."""
    node, _, name = port.rpartition(".")
    return any(output.name == name for output, _ in circuit.outputs(circuit.nodes[node].component))


def check_left(old: Iterable[Component], successors: Mapping[str, Component]) -> None:
    """Raise `PlanError` if the successor of an engine lacks a port whose input the engine has not put out."""
    for component in old:
        successor = successors.get(component.node.name)
        if component.tie is None or successor is None:
            continue
        ports = {port.name for port in successor.spec.inputs if not port.pulled}
        for port in component.spec.inputs:
            if port.name not in ports and next(component.tie.events(port.name), None) is not None:
                raise PlanError(
                    f"{component.node.name} was given items at {port.name!r} that it has not put out, and its "
                    f"successor has no such port; let it put them out first, or replace it by a slet with this port"
                )


def check_level(old: Iterable[Component], timeout: float) -> None:
    """Wait until no engine is ahead of its producers since a recovery, or raise `PlanError`; nothing is parked yet."""
    for component in old:
        if component.tie is not None and not component.tie.caught_up(timeout):
            raise PlanError(
                f"{component.node.name} is ahead of what is before it since the platform has recovered, and was not "
                f"caught up with within {timeout:g} s; repair what stands still before it, and try again"
            )


def put_out(component: Component) -> list[Work]:
    """Return the output of an engine that has not left yet; it puts out nothing more."""
    if component.tie is None:
        return []
    component.tie.retire()
    outputs = {id(output): output for output in component.outputs.values() if isinstance(output, DrivenOutput)}
    found = [(outputs.get(id(port)), payload) for port, payload in component.tie.surrender()]
    return [output.pending(_leaving(payload), payload) for output, payload in found if output is not None]


def take_over(component: Component, successor: Component, inlets: Inlets) -> None:
    """Give the input that an engine has not put out to its successor, before anything else."""
    if component.tie is None or not isinstance(component.driver, EngineDriver):
        return
    for port in component.spec.inputs:
        found = [payload for _, payload in component.tie.events(port.name)]
        if any(isinstance(payload, EndOfStream) for payload in found):  # it has not come there yet
            successor.ended.discard(port.name)
            successor.merge.take_back_end(port.name)
        place = next((one for one in successor.spec.inputs if one.name == port.name), None)
        if found and place is not None:
            entry = anchor(successor, place)
            work = [Work(entry, way_of(port, payload), payload) for payload in found]
            # Its predecessor has counted them.
            successor.metrics.tallies[place.name].returned += sum(items_of(one.way, one.payload) for one in work)
            inlets.post(work, first=True)


def _leaving(payload: object) -> Way:
    if isinstance(payload, CONTROL):
        return "control"
    return "push_batch" if isinstance(payload, list) or hasattr(payload, "num_rows") else "push"
