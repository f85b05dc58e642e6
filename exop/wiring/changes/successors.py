"""The components that a change adds and replaces: made, opened, given a state, closed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, TypeVar

from exop.errors import ComponentFailed, NotStorable, PlanError
from exop.logs import logger
from exop.model.slets.handover import HandOver
from exop.model.slets.memento import Memento
from exop.model.slets.relay import RELAY
from exop.runtime.channels.base import Channel
from exop.runtime.component import Component
from exop.runtime.component_manager import ComponentManager
from exop.runtime.dataflow.entry import InFlight
from exop.runtime.dataflow.inlets import Inlets
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.source import EngineDriver, SourceDriver
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.lifecycle import Event, State
from exop.runtime.pause import PATIENCE, Pause
from exop.runtime.supervision.budget import UserCall
from exop.runtime.supervision.interrupts import check_interrupt
from exop.safe_repr import RAISED, add_note, error_text, message
from exop.wiring.changes.channels import Undo
from exop.wiring.changes.drain import sent_for, unsent_output
from exop.wiring.changes.plan import Plan, Step
from exop.wiring.changes.rebuild import Rebuild

T = TypeVar("T")

#: The least number of seconds that a hand-over may take in the cut, however short it was when it was tried.
LONGER: Final = 1.0


@dataclass
class Successors:
    """The slets that a plan adds to a deployment; `undo` collects the steps that discard them again.

    `ready` has the followers that take over, `states` the states that successors got before the cut, `rebuilds` the
    states that are made out of a log, `arriving` the nodes that come from another host, and `departing` those that go
    to one. `closed` has the old slets that were closed in the cut, since their successors cannot be open beside them.
    """

    deployment: Deployment
    manager: ComponentManager
    plan: Plan
    undo: list[Undo]
    ready: Mapping[str, Component] = field(default_factory=dict)
    made: dict[str, Component] = field(default_factory=dict)
    channels: dict[str, Channel] = field(default_factory=dict)
    states: dict[str, Memento | None] = field(default_factory=dict)
    rebuilds: dict[str, Rebuild] = field(default_factory=dict)
    arriving: Collection[str] = ()
    departing: Collection[str] = ()
    closed: list[Component] = field(default_factory=list)

    @cached_property
    def exchanged(self) -> tuple[set[str], set[str]]:
        """The nodes whose old slets close in the cut, and those whose new slets open in it, after that.

        A source that drives itself may begin at once, at the position of its memento, and opens there, too.
        """
        gone, come = self.plan.exchanged(self.departing, self.arriving)
        fresh = [one for one in self.plan.steps if one.verb == "replace" or one.node in self.arriving]
        slets = [(step.node, step.after.slet) for step in fresh if step.after is not None]
        come |= {node for node, slet in slets if slet.own_driver and not slet.inputs and slet.state is not None}
        return gone - self.ready.keys(), come - self.ready.keys()

    def create_channels(self) -> None:
        """Make the new channels; the caller holds the turn of the application."""
        name, durable = self.deployment.name, self.plan.after.durable is not None
        for spec in self.plan.changes.channels_added:
            channel = self.manager.create_channel(name, spec, durable=durable, timeout=self.plan.timeout)
            self.channels[spec.name] = channel
            self.undo.append(partial(self.manager.destroy_channel, name, channel))
            if durable:
                channel.begin_anew()

    def create(self) -> None:
        """Make the new components."""
        name, durable = self.deployment.name, self.plan.after.durable is not None
        self.made |= self.ready
        for step in self.plan.steps:
            if step.verb in ("add", "replace") and step.after is not None and step.node not in self.made:
                changed, timeout = self.deployment.changed, self.plan.timeout
                made = self.manager.create(name, step.after, changed, durable=durable, timeout=timeout)
                self.made[step.node] = made
                made.read_natively(self.deployment.channels, self.deployment.components.get(step.node))
                if step.state is not None and step.state.inside and made.tie is not None:
                    made.tie.inherits = self.deployment.components[step.node].instance
                if step.node in self.arriving and made.tie is not None and not step.after.lose_state:
                    made.tie.inherits = b""  # it comes with the state
                self.undo.append(partial(discard, self.deployment, self.manager, made))
                if isinstance(made.driver, EngineDriver):
                    self.undo.append(made.driver.halt)  # first: a push of its own thread waits for its driver to open

    def open(self) -> None:
        """Open the components that may open while the old ones work."""
        for step in self.plan.steps:
            if step.node in self.made.keys() - self.ready - self.exchanged[1]:
                check_interrupt()
                enter_beside(self.made[step.node], self.plan.timeout)
                if step.after is not None and step.after.rebuild is not None:
                    rebuild = self.rebuilds[step.node] = Rebuild(self.deployment, self.made[step.node])
                    self.undo.append(rebuild.close)
                    rebuild.catch_up()

    def inherit(self, pause: Pause, old: Component) -> None:
        """Let the successor of an engine that has stopped take over the state inside it."""
        step = next(one for one in self.plan.steps if one.node == old.node.name)
        if step.state is None or old.driver is None or not step.state.inside:
            return
        pause.close([old.driver])
        pause.wait_parked()
        successor = self.made[step.node]
        inherit = partial(successor.instance.inherit, old.instance)
        try:
            successor.user.run(successor, "taking over", inherit, self.plan.patience)
        except RAISED as error:
            problem = f"it cannot go on with the state inside {old.spec.name}: {message(error) or error_text(error)}"
            raise ComponentFailed(node=step.node, phase="taking over", problem=problem) from error

    def exchange(self, old: Mapping[str, Component], undo: list[Undo]) -> None:
        """Close the *old* slets that cannot be open beside the new ones, and open these; all else has succeeded."""
        gone, come = self.exchanged
        for one in [one for node, one in old.items() if node in gone and not one.closed]:
            undo.append(partial(one.fail_until_resumed, PlanError("it was closed for its successor")))
            self.closed.append(one)
            one.over = one.has_ended
            one.close_early(self.plan.patience)
            failpoint("exclusive-closed")
        for step in self.plan.steps:
            if step.node in come and step.verb in ("add", "replace"):
                enter_beside(self.made[step.node], self.plan.patience if step.exclusive else self.plan.timeout)
                self._start(self.made[step.node])

    def succeed(self, step: Step, predecessor: Component | None) -> Component:
        """Put a successor in the place of its predecessor, with its state and position in the stream."""
        successor, late = self.made[step.node], step.node in self.exchanged[1]
        if predecessor is not None and step.state is not None:
            try:
                predecessor.flush(self.plan.patience)  # the memento counts buffered output as sent
            except ComponentFailed as error:
                if step.after is None or not step.after.lose_state:
                    raise
                problem = "buffered output is lost with the state"
                logger("exop.wiring").warning(problem, node=predecessor.id, error=str(error))
            if step.node in self.rebuilds:
                self.states[step.node] = self.rebuilds[step.node].completed(self.plan.patience)
            failpoint("memento-before")
            if step.node not in self.states:
                took, most = self.plan.took.get(step.node), self.plan.patience
                seconds = most if took is None else min(most, max(LONGER, 10 * took))
                # If one that opens late fails, the old one goes on, and must not see its changes of the state.
                self.states[step.node] = taken(step.state, successor, predecessor.state, seconds, copy=late)
            successor.succeed(predecessor, self.states[step.node])
            if successor.driver is not None and predecessor.driver is not None:  # it waits for room, too
                successor.driver.overfilled = [*predecessor.driver.overfilled]
            failpoint("memento-after")
        if predecessor is not None and predecessor.has_ended:  # its stream is over for any slet there
            successor.over = True
            if isinstance(successor.driver, SourceDriver):
                successor.driver.over = True  # it only processes the items in flight
        if not late:
            self._start(successor)
        return successor

    def _start(self, successor: Component) -> None:
        """Let a slet that is open and in its place take items; the stream of its node may be over."""
        begin = Event.SUSPEND if successor.node.suspended else Event.START
        if successor.allows(begin):  # a follower is active already
            successor.on(begin)
        if successor.over and successor.allows(Event.END):
            successor.on(Event.END)


def enter_beside(component: Component, seconds: float | None) -> None:
    """Open a slet; if an old one that is open may be in its way, the error names the cure."""
    try:
        component.enter(seconds)
    except ComponentFailed as error:
        in_use = r"already in use|\bbusy\b|temporarily unavailable|File exists|\block(ed)?\b"  # as systems write it
        if re.search(in_use, error.problem) and not component.spec.exclusive:
            cls = f"class {component.spec.factory.__name__}(…, exclusive=True)"
            add_note(error, f"if the old slet has it, write `{cls}`: then that closes before the new one opens")
        raise


def taken(
    way: HandOver,
    successor: Component,
    state: Memento | None,
    seconds: float,
    *,
    copy: bool = False,
    interruptible: bool = False,
) -> Memento | None:
    """Return the state with which a successor begins, made within so many seconds; with *copy* from a copy."""

    def take() -> Memento | None:
        return way.take(state.copied() if copy and state is not None else state)

    if way.calls is None and not copy:
        return take()
    return successor.user.run(successor, "taking over the state", take, seconds, interruptible=interruptible)


def capture(deployment: Deployment, node: str, timeout: float = PATIENCE) -> Memento:
    """Return a copy of a node's memento as it is between two items; also of one that is suspended on an item."""
    with deployment.changing:
        deployment.mesh.node(node).slet.memento_class(f"{deployment.name}.{node}")
        component = deployment.components[node]
        made = between_items(deployment, component, timeout, lambda: copied(component, timeout))
    return made()


def between_items(deployment: Deployment, component: Component, timeout: float, action: Callable[[], T]) -> T:
    """Run *action* while a component's drivers are parked, which may take *timeout* s, or else raise `PlanError`."""
    outside = [component.driver] if isinstance(component.driver, SourceDriver) else []
    running = (component.driver, component.pusher, *component.pullers)
    drivers = dict.fromkeys(driver for driver in running if driver is not None)
    found: list[T] = []
    with Pause(deployment, timeout, drivers=drivers, outside=outside) as pause:
        pause.close()
        pause.run(lambda: found.append(action()))
    return found[0]


def copied(component: Component, timeout: float, *, exactly: bool = False) -> Callable[[], Memento]:
    """Copy a component's memento while its drivers are parked; returns a function that makes a memento of the copy.

    Unless it is copied *exactly*, it is as a checkpoint would restore it: an object in two fields becomes two.
    """
    # Imported lazily: only this needs the encoding.
    from exop.model.values.classes import filled
    from exop.model.values.encoding import decode, encode, fields_of

    state = component.state
    assert state is not None, f"{component.id} has no memento"  # a slet with a memento always has one
    kind = type(state)
    # A bytearray would be decoded as another type.
    deep = exactly or any("bytearray" in str(one.type) for one in dataclasses.fields(kind))  # type: ignore[arg-type]

    def look() -> bytes | Memento:
        """Encode it, which takes a tenth of the time of a deep copy."""
        component.flush()
        try:
            return state.copied() if deep else encode(fields_of(state))
        except NotStorable:
            return state.copied()

    found = component.user.run(component, "taking the memento", look, timeout)
    return lambda: found if isinstance(found, Memento) else filled(kind, decode(found))


def discard(
    deployment: Deployment, manager: ComponentManager, component: Component, closing: UserCall[None] | None = None
) -> None:
    """Close a component that is no longer used, unless *closing* has begun that; unregister it even if that fails."""
    ends = component.node.slet == RELAY and component.node.name not in deployment.mesh.nodes  # no user removes it
    if ends and (dead := component.trouble.dead):
        facts = {"node": component.name, "items": len(dead), "first": dead[0].summary()["item"]}
        logger("exop.wiring").error("a connector ends, and what it has set aside is dropped", **facts)
    try:
        if closing is not None:
            component.end_exit(closing, 0.0)
        elif component.status is not State.CREATED:
            component.exit()
    finally:
        if isinstance(component.driver, EngineDriver):
            component.driver.halt()
        manager.destroy(component)
        if component.tie is not None and component.tie.place is not None:
            deployment.retired.append(component.tie.place)


def retire(component: Component, successor: Component | None, inlets: Inlets, *, stays: bool, departs: bool) -> None:
    """End the drivers of an old slet, unless it *stays*; what it has not sent leaves by the ports of its successor.

    If it *departs*, its output goes with it.
    """
    if (driver := component.driver) is None:
        return

    def send(work: InFlight) -> None:
        inlets.post([sent_for(component, successor, work)])

    # What a slet that closes pushes comes behind what it has pushed before.
    with driver.turn if isinstance(driver, EngineDriver) and driver.retired else nullcontext():
        unsent = [*component.take_in_flight(), *([] if stays else unsent_output(component))]
        if isinstance(driver, EngineDriver):
            driver.heir = send
        if successor is not None and successor.driver is not None and driver.ending:
            successor.driver.ending = True
        for one in () if stays else (driver, *component.pullers):
            one.retire()
        for work in () if departs else unsent:
            send(work)
