"""The items in flight during a change: drained before the cut, upstream first, or handed over to the successors.

A change removes channels and slets only when they are empty, and is refused if something cannot be emptied; input that
an engine has not processed goes to its successor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Any

from exop.errors import PlanError, counted, told
from exop.logs import logger
from exop.model.items import EndOfStream
from exop.model.meshes.mesh import Mesh, Node
from exop.model.slets.ports import node_at
from exop.model.slets.relay import RELAY
from exop.model.types.description import type_of
from exop.model.values.classes import Mover, NoVersion, package_of, renewed_packages, used_packages
from exop.model.values.columns import is_columns
from exop.runtime.channels.queue import Buffered
from exop.runtime.channels.table import LatchChannel
from exop.runtime.component import Component
from exop.runtime.dataflow.entry import NOWHERE, InFlight, Method, count_items, method_for, placeholder
from exop.runtime.dataflow.inlets import Inlets
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.source import EngineDriver, SourceDriver
from exop.runtime.durable.engine_journal import DiskJournal
from exop.runtime.lifecycle import State
from exop.runtime.pause import Pause
from exop.runtime.ports import DrivenOutput
from exop.safe_repr import RAISED
from exop.wiring.changes.channels import Undo, restoring
from exop.wiring.changes.plan import Plan
from exop.wiring.graph import ids
from exop.wiring.graph.execution_plan import Wiring
from exop.wiring.graph.region import Region
from exop.wiring.graph.wiring_graph import Edge, WiringGraph


@dataclass
class Drain:
    """Empties the queues and components that go, upstream first, and closes the drivers upstream of them.

    `undo` lets the `old` components go on. The contents of `handed_over` go elsewhere, and are not processed here. The
    nodes `departing` go to another host, with what waits in front of their ports, but not in front of a channel.
    """

    pause: Pause
    old: Iterable[Component]
    region: Region
    undo: list[Callable[[], object]]
    handed_over: Collection[str] = ()
    departing: Collection[str] = ()

    def stage(self) -> None:
        """Empty everything with as few drivers closed as possible; raise `PlanError` if that is impossible.

        A worker may drain queues of several streams, and sources may begin between these: a queue is emptied when all
        drivers upstream of the queue itself are closed.
        """
        before = self.region.before
        emptied = [pair for pair in self._emptied() if pair[0].name not in self.handed_over]
        steps: list[tuple[float, Driver, Callable[[], None] | None]] = []
        for queue, leaving in emptied:
            if (worker := queue.worker) is not None:
                rank = before.ranks.get(queue.name, worker.rank)
                steps.append((max(rank, worker.rank), worker, partial(self._drain, worker, [(queue, leaving)])))
        leaving_drivers = [(one, one.driver) for one in self.old if one.driver is not None]
        steps += [(driver.rank, driver, partial(self._stop, one, driver)) for one, driver in leaving_drivers]
        steps += [(driver.rank, driver, None) for driver in self.pause.drivers]
        waiting: list[Driver] = []
        for _, driver, stop in sorted(steps, key=lambda step: step[0]):
            if stop is not None and driver in self.pause.drivers:
                self.pause.close(waiting)
                self.pause.wait_parked()
                stop()
            waiting.append(driver)
        for _ in emptied[1:]:  # a queue that was emptied later may have filled another
            for worker in {queue.worker for queue, _ in emptied if queue.entries}:
                if worker is not None and worker in self.pause.drivers:
                    self._drain(worker, [one for one in emptied if one[0].worker is worker])

    def _emptied(self) -> Iterator[tuple[Buffered, list[Edge]]]:
        """The queues that have to be empty, each with the ports that leave it."""
        before, after, inserted = self.region.before.graph, self.region.after.graph, self.pause.deployment.inserted
        for name in self.region.channels:
            there = {edge.name for edge in after.consumers.get(name, ())}
            leaving = [edge for edge in before.consumers.get(name, ()) if edge.name not in there]
            removed = [edge for edge in leaving if edge.node not in after.nodes]
            gone, channel = name not in after.channels, before.channels.get(name)
            if isinstance(channel, Buffered) and leaving and (gone or len(removed) < len(leaving) or not there):
                yield channel, leaving
            portless = [edge for edge in leaving if not _has_port(after, edge)]
            queues = {edge.queue(name): [edge] for edge in dict.fromkeys([*portless, *self.region.regrouped[name]])}
            queues |= {ids.input_queue(name): leaving} if gone else {}
            yield from ((inserted[queue], ports) for queue, ports in queues.items() if queue in inserted)
        for component in self.old:  # what a port has taken is not in the queue any more
            vertex = before.nodes.get(component.node.name)
            for edge in (edge for _, edge in (vertex.inputs if vertex is not None else ()) if edge.port.pulled):
                if (queue := component.pulled[edge.port.name].queue) is not None and not _has_port(after, edge):
                    yield queue, [edge]

    def _drain(self, worker: Driver, queues: list[tuple[Buffered, list[Edge]]]) -> None:
        """Let the worker of these queues empty them; the drivers that push into them are parked.

        It takes nothing from its other queues, which may lead into these.
        """
        self.pause.close([worker])
        self.pause.wait_parked()
        ended = (all(edge.component.has_ended for edge in leaving) for _, leaving in queues)
        kept = [pair for pair, over in zip(queues, ended, strict=True) if not (pair[0].left or over)]
        if any(self._filled(*one) for one in kept):
            self._let_empty(worker, kept)
        there, shared = self.region.after.graph.nodes, [*chain.from_iterable(self.region.regrouped.values())]
        for queue, leaving in kept:
            stay = any(edge.node in there or edge in shared for edge in leaving)
            inputs = {ids.input_queue(edge.component.node.ports[edge.port.name]) for edge in leaving}
            stay |= queue.name in inputs and any(edge.node in self.departing for edge in leaving)
            if self._filled(queue, leaving) and (stay or not all(edge.component.blocked for edge in leaving)):
                names = ", ".join(edge.name for edge in leaving)
                why = worker.held_by or f"it was not emptied within {self.pause.timeout:g} s"
                raise PlanError(
                    f"the queue {queue.name!r} holds {counted(queue.depth, 'item')} on the way to {names}, which "
                    f"would be lost ({why}); repair or resume that first, or let the queue run empty"
                )

    def _let_empty(self, worker: Driver, queues: list[tuple[Buffered, list[Edge]]]) -> None:
        """Let a parked driver work on these queues alone, until they are empty or it can do no more.

        It does not wait for room: the driver that makes room may wait for a slet that is repaired after the change.
        """

        def can(queue: Buffered, leaving: Iterable[Edge]) -> bool:  # a suspended slet takes nothing
            return bool(queue.entries) or not all(edge.component.blocked for edge in self._unfinished(leaving))

        worker.only, worker.draining = tuple(queue for queue, _ in queues), True
        worker.open()
        try:
            worker.wake()
            self.pause.wait(lambda: worker.held_by is not None or not any(can(*one) for one in queues))
        finally:
            worker.close()
            try:
                self.pause.wait_parked()
            finally:
                worker.only, worker.draining = None, False

    def _filled(self, queue: Buffered, leaving: Iterable[Edge]) -> bool:
        """Whether a queue, or a port that pulls from it and goes, holds items that its slet has not taken."""
        return bool(queue.entries) or any(self._unfinished(leaving))

    def _unfinished(self, leaving: Iterable[Edge]) -> Iterator[Edge]:
        """Yield the ports that go, and hold items that they have pulled; a slet that departs takes these along."""
        after = self.region.after.graph
        gone = (one for one in leaving if one.port.pulled and one.node not in self.departing)
        yield from (one for one in gone if one.component.pulled[one.port.name].unfinished and not _has_port(after, one))

    def _stop(self, component: Component, driver: Driver) -> None:
        """Stop a slet that leaves, and is iterated or drives itself."""
        tie, runs = component.tie, component.status in (State.ACTIVE, State.SUSPENDED)
        if component.spec.own_driver and runs:
            self.undo.append(component.proceed)
            try:
                quiesce(self.pause, component, driver)
            except PlanError as problem:
                there = self.region.after.graph.nodes.get(component.node.name)
                if tie is None or there is None:
                    raise
                if component.state is not None and not there.component.node.lose_state:
                    raise  # its memento is that of before
                # The input that it has not processed is known, and goes to its successor.
                logger("exop.wiring").warning(
                    "an engine has not finished before its replacement", node=component.id, problem=str(problem)
                )
        if tie is not None:  # its further output would have no reader, also if it has failed, and goes on
            self.undo.append(tie.release)
            if tie.hold(self.pause.timeout if runs or tie.place is not None else 0.0) and runs:
                tie.settle(self.pause.timeout)

    def check_inlets(self, leaves: Callable[[str], bool]) -> None:
        """Raise `PlanError` if the change removes an endpoint where work of the drivers, which are parked, waits.

        Only a node that cannot take items is removed with the work that waits for it. What waits at an endpoint that
        *leaves* for another host goes along.
        """
        before, after = self.region.before.graph, self.region.after.graph
        sharing = {edge.name for edges in self.region.regrouped.values() for edge in edges}
        reasons = dict[Driver, str]()
        for driver, work in self.pause.deployment.inlets.waiting(self.pause.drivers):
            why = reasons.setdefault(driver, work.wait.where if work.wait else driver.held_by or driver.name)
            channel, port = ids.channel_of_endpoint(work.entry.endpoint), ids.port_of_endpoint(work.entry.endpoint)
            node, end = node_at(port, before.nodes)
            if channel and port:  # a window; its port may leave the channel only with its slet
                lost = node in after.nodes and all(edge.name != port for edge in after.consumers.get(channel, ()))
            elif channel:
                readers = before.consumers.get(channel, ())
                lost = channel not in after.channels and any(edge.node in after.nodes for edge in readers)
            else:  # work at an output goes to the endpoints behind it
                stays = node in after.nodes
                one = before.nodes[node].component if node in before.nodes and not stays else None
                now = after.nodes[node].component.spec.ports.get(end) if stays else None
                lost = stays and now is None  # a member of a family goes
                lost |= one is not None and one.spec.ports[end].direction == "in" and not one.blocked
                if now is not None and now.pulled:  # it takes from its queue
                    raise PlanError(
                        f"an item waits in front of {port} ({why}), and the successor of {node} pulls its items from "
                        f"a queue; repair or resume {node} first, in a change of its own, and replace it then"
                    )
            if port in sharing:
                raise PlanError(
                    f"an item waits in front of {port}, and partitions of {node} move to other slets of its group "
                    f"({why}); repair or resume that first"
                )
            if lost and not leaves(work.entry.endpoint):
                raise PlanError(
                    f"an item is on its way to {work.entry.endpoint}, which would be removed, and cannot go on "
                    f"({why}); repair or resume that first"
                )

    def check_engine_ports(self, successors: Mapping[str, Component]) -> None:
        """Raise `PlanError` if the successor of an engine lacks a port with input that the engine has not processed."""
        for component in self.old:
            if component.tie is None or (successor := successors.get(component.node.name)) is None:
                continue
            ports = {port.name for port in successor.spec.inputs if not port.pulled}
            for port in component.spec.inputs:
                if port.name not in ports and next(component.tie.events(port.name), None) is not None:
                    raise PlanError(
                        f"{component.node.name} has not processed all its input at {port.name!r}, and its successor "
                        f"has no such port; let it finish first, or replace it by a slet with this port"
                    )


def _has_port(graph: WiringGraph, edge: Edge) -> bool:
    """Whether the node of a port is there and has it: a member of a port family may go alone."""
    vertex = graph.nodes.get(edge.node)
    return vertex is not None and edge.port.name in vertex.component.spec.ports


def check_ends(region: Region, continued: Collection[str], *, adopted: bool) -> None:
    """Raise `PlanError` if a producer would be connected to a slet that has forwarded the end of its stream.

    Ports in *continued* were connected before, over hosts, and all if the application is *adopted*: what has ended by
    now gets nothing more.
    """
    before, after = region.before.graph, region.after.graph
    for name in region.channels:
        known = {edge.name for _, edge in before.edges((name,))}
        sent = {one.component.has_ended for one in before.producers.get(name, ())} == {True}
        stored = isinstance(after.channels.get(name), LatchChannel)  # a table has no end
        going = [one for one in after.producers.get(name, ()) if not one.component.has_ended]
        for producer, edge in product(going, after.consumers.get(name, ())):
            new, stays = producer.name not in known, edge.name in known
            over = edge.component.has_ended and (new or not stays)
            # A port that comes from another channel begins another stream, unless its slet has ended. A relay may stand
            # for a producer that has ended and moves to another host.
            begins = new and stays and not stored and producer.component.spec != RELAY
            if edge.component.has_ended and (adopted or {producer.name, edge.name} <= {*continued, *known}):
                continue
            if over or (begins and (sent or edge.port.name in edge.component.ended)):
                raise PlanError(
                    f"the stream has ended at {edge.name}: {producer.name} cannot be connected to it any more; "
                    f"connect it to another node"
                )


def quiesce(pause: Pause, component: Component, driver: Driver, *, then_proceed: bool = False) -> None:
    """Let a slet with a driver of its own process all its input, in a separate thread; no more input comes.

    With *then_proceed*, it goes on as soon as its driver does: it is not replaced.
    """

    def stuck() -> bool:
        """Whether it waits for a slet that can be repaired or resumed only after the change."""
        blocked = [one for one in pause.deployment.components.values() if one.blocked]
        return driver.held_by is not None and any(driver in (one.driver, one.pusher) for one in blocked)

    shut = component.status is State.SUSPENDED
    driver.draining = True
    if shut:
        driver.open()
    driver.wake()
    pause.watch(driver)
    call = component.user.begin(component, "quiescing", component.stopping(then_proceed=then_proceed), news=pause.wake)
    try:
        pause.wait(lambda: call.over or stuck())
    finally:
        driver.draining = False
        if shut:
            driver.close()
    try:
        call.result(0.0)
    except RAISED as error:
        held = driver.held_by and f"{driver.held_by}; repair or resume that first"
        late = held or f"not within {pause.timeout:g} s{call.whereabouts()}"
        why = late if call.abandoned else told(error)
        raise PlanError(f"{component.node.name} has not quiesced: {why}") from error


def unsent_output(component: Component) -> list[InFlight]:
    """Retire an engine, and return its output that is not sent."""
    if component.tie is None:
        return []
    component.tie.retire()
    outputs = {id(output): output for output in component.outputs.values() if isinstance(output, DrivenOutput)}
    return [
        outputs[id(port)].pending(_method(payload), payload)
        for port, payload in component.tie.take_in_flight()
        if id(port) in outputs
    ]


def _method(payload: Any) -> Method:
    return method_for(payload, whole=isinstance(payload, list) or is_columns(payload))


def sent_for(component: Component, successor: Component | None, work: InFlight) -> InFlight:
    """Let an item of an old component leave by the port of this name of its successor, if there is one."""
    port = next((name for name, entry in component.to.items() if entry is work.entry), "")
    there = successor.to.get(port) if successor is not None and work.entry is not NOWHERE else None
    return replace(work, entry=there or work.entry)


def peek_unsent(component: Component, successor: Component | None) -> list[InFlight]:
    """Return the output that an old slet has not sent, and leave it there."""
    outputs = component.buffered if component.aside is None else (*component.buffered, component.aside)
    found = [InFlight(one.entry, method, payload) for one in outputs for method, payload in one.pushed]
    if isinstance(component.driver, SourceDriver):
        found += component.driver.in_flight()
    if isinstance(component.tie, DiskJournal):
        found += [InFlight(component.to[port], _method(one), one) for port, one in component.tie.in_flight()]
    return [sent_for(component, successor, work) for work in found]


def unprocessed(component: Component, successor: Component) -> Iterator[tuple[str, bool, list[InFlight]]]:
    """Yield the input that a slet has not processed, by port of its successor, and whether it goes first; it stays.

    This is input that a port has pulled, if that of the successor does not pull, or that is inside an engine; and an
    end that the slet has not passed on, if its successor does that when it comes.
    """
    tie = component.tie if isinstance(component.driver, EngineDriver) else None
    again = component.driver is not None and successor.driver is None and not component.has_ended
    for port in (one for one in successor.spec.inputs if one.name in component.spec.ports):
        name, pulled = port.name, None if port.pulled else component.pulled.get(port.name)
        found = [*pulled.taken] if pulled is not None else [one for _, one in tie.events(name)] if tie else []
        over = name in component.ended if pulled is None else pulled.ended
        if again and over and not any(isinstance(one, EndOfStream) for one in found[-1:]):
            found.append(EndOfStream())
        if any(isinstance(one, EndOfStream) for one in found[-1:]):  # it has not come there yet
            successor.ended.discard(name)
            successor.merge.take_back_end(name)
        if tie is not None and (channel := tie.native.get(name)) is not None:
            since = tie.committed.positions[name]
            if successor.tie is not None and name in successor.tie.native:
                successor.tie.begin_reading(name, since)
            else:
                found = [*channel.rows(since), *found]
        if found or pulled is not None:
            entry, whole = successor.port_placeholder(port), component.spec.ports[name].type.form != "item"
            work = [(method_for(one, whole=whole and pulled is None), one) for one in found]
            # Its predecessor has counted them; a port that pulls counts a batch as one.
            items = (method != "control" if pulled is not None else count_items(method, one) for method, one in work)
            successor.metrics.tallies[name].returned = sum(items)
            yield name, pulled is None, [InFlight(entry, *one) for one in work]


def hand_over_input(component: Component, successor: Component, inlets: Inlets, wiring: Wiring) -> None:
    """Give the input that a slet has not processed to its successor, behind its output and before further input."""
    for port, first, work in unprocessed(component, successor):
        inlets.post(work, first=first)
        if not first:
            component.pulled[port].taken.clear()
            rest, entry = component.pulled[port].take_in_flight(), placeholder(f"{successor.node.name}.{port}")
            inlets.post([InFlight(entry, method, payload) for method, payload in rest])
    if component.driver is not None and successor.driver is None and successor.pusher is not None:
        # One driver has both: the output that was posted, and the input.
        inlets.put_in_order(wiring.depth, successor.pusher)


def move_contents(deployment: Deployment, plan: Plan, drivers: Collection[Driver], undo: list[Undo]) -> None:
    """Turn the items on their way to slets of a new version into its classes, while *drivers* are parked.

    So are those on their way to slets that now take items of other types, and those in the states of these slets.
    """
    nodes: dict[str, set[str]] = {}
    types: dict[str, list[Any]] = {}
    retyped = {node.name for node in plan.changes.retyped}
    passing = set[str]()  # the packages of which items pass, also where no slet of these runs
    for node in plan.changes.retyped:
        passing |= _packages(node) - _packages(plan.before.nodes[node.name])
    for step in plan.steps:
        if step.before is None or step.after is None:
            continue
        old, new = step.before.slet, step.after.slet
        for package in renewed_packages(old.factory, new.factory):
            nodes.setdefault(package, set()).add(step.node)
            types.setdefault(package, []).extend(port.type.item for port in (*old.inputs, *new.inputs))
    for package in nodes.keys() | passing:
        mover, concerned = Mover(package), nodes.get(package, set()) | retyped
        if package in passing or any(map(mover.concerns, types[package])):
            try:
                _Contents(deployment, plan.after, mover, concerned, retyped, undo).move(drivers)
            except NoVersion as problem:
                name = plan.after.name
                raise PlanError(f"an item that waits in {name} cannot be handed over: {problem}") from problem


def _packages(node: Node) -> set[str]:
    """The packages of bundles, each of one version, to which the classes of the items belong that a node takes."""
    names = (one.identity.partition(":")[0] for port in node.taken.values() for one in port.items.reached())
    return {package[0] for package in map(package_of, names) if package is not None}


@dataclass
class _Contents:
    """The items on their way to *nodes*: slets that use one bundle and are replaced, and *retyped* ones, which stay."""

    deployment: Deployment
    mesh: Mesh
    mover: Mover
    nodes: Collection[str]
    retyped: Collection[str]
    undo: list[Undo]

    def __post_init__(self) -> None:
        bundle = (package_of(self.mover.after) or ("", ""))[1]
        self._channels = set[str]()  # those that have consumers that use the bundle, all of which are replaced
        for name in self.mesh.channels:
            slets = [node for node, _ in self.mesh.consumers(name)]
            found = {one.name for one in slets if one.name in self.retyped or bundle in used_packages(one.slet.factory)}
            if found and found <= set(self.nodes):
                self._channels.add(name)

    def move(self, drivers: Collection[Driver]) -> None:
        deployment = self.deployment
        for name in self._channels & deployment.channels.keys():
            self._exchange(deployment.channels[name].exchange)
        for name, queue in deployment.inserted.items():
            if self._leads_to_them(f"queue {name}"):
                self._exchange(queue.exchange)
        fed = set()
        for component in deployment.components.values():
            if component.node.name in self.nodes:
                for port in component.pulled.values():
                    self._exchange(port.exchange)
                if (kept := component.trouble.kept) is not None:
                    self.undo += restoring(component.trouble, "kept")
                    component.trouble.kept = replace(kept, item=self.mover.move(kept.item))
            if component.node.name in self.retyped and (state := component.state) is not None:
                for name, field in type_of(type(state)).fields.items():
                    if self.mover.concerns(field.type):  # others may be large
                        self.undo.append(partial(setattr, state, name, value := getattr(state, name)))
                        setattr(state, name, self.mover.move(value))
            if not self._channels.isdisjoint(component.node.outputs().values()):
                fed.add(component.driver)
        self._exchange(partial(deployment.inlets.exchange, self._leads_to_them, drivers))
        for driver in drivers:
            if isinstance(driver, SourceDriver) and driver.yielded is not None and driver in fed:
                self.undo += restoring(driver, "yielded")
                driver.yielded = self.mover.move(driver.yielded)

    def _exchange(self, exchange: Callable[[Callable[[Any], Any]], None]) -> None:
        """Move the items of one keeper; the undo puts the same objects back."""
        was: dict[int, tuple[Any, Any]] = {}

        def move(item: Any) -> Any:
            if (moved := self.mover.move(item)) is not item:
                was[id(moved)] = item, moved
            return moved

        self.undo.append(lambda: exchange(lambda item: was.get(id(item), (item,))[0]))
        exchange(move)

    def _leads_to_them(self, endpoint: str) -> bool:
        if not (target := ids.port_of_endpoint(endpoint)):
            return ids.channel_of_endpoint(endpoint) in self._channels
        name, port = node_at(target, self.mesh.nodes)
        if (node := self.mesh.nodes.get(name)) is not None and port in node.outputs():
            return node.outputs()[port] in self._channels
        return name in self.nodes
