"""The new components of a change: made, opened, given the state of those that they follow, or given up again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from exop.errors import ComponentFailed, NotStorable
from exop.logs import logger
from exop.model.fields import memento_of
from exop.model.handover import HandOver
from exop.model.lifecycle import Event, State
from exop.model.memento import Memento
from exop.runtime.budget import UserCall
from exop.runtime.channel import Channel
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.engine import EngineDriver
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.entry import Work
from exop.runtime.inlets import Inlets
from exop.runtime.interrupts import check_interrupt
from exop.runtime.manager import ComponentManager
from exop.runtime.opening import HOLDING
from exop.runtime.pause import PATIENCE, Pause
from exop.shown import RAISED, described, message
from exop.wiring.plan import Plan, Step
from exop.wiring.rebuild import Rebuild

if TYPE_CHECKING:
    from exop.wiring.shadow.behind import Behind, Keeping

Undo = Callable[[], object]

#: Seconds that a hand-over may take at least in the cut, however short it was when it was tried.
LONGER: Final = 1.0


class Companions:
    """The companions that a change has to do with, by node; there are none unless somebody says so.

    Attributes:
        ready: Those who take a place, with a state of their own, instead of a successor that is newly made.
        keepers: What lets a predecessor run on.
    """

    def __init__(self) -> None:
        self.ready: dict[str, Behind] = {}
        self.keepers: dict[str, Keeping] = {}

    def components(self) -> dict[str, Component]:
        """The components that take a place."""
        return {node: companion.component for node, companion in self.ready.items()}

    def come_to_rest(self, pause: Pause) -> None:
        """Everything is being parked: so are they."""
        for companion in self.ready.values():
            companion.come_to_rest(pause)

    def take_over(self, undo: list[Callable[[], object]]) -> dict[str, Memento | None]:
        """They take over: the state of each; *undo* is told how to take that back.

        Raises:
            PlanError: one is not fit for it.
        """
        return {node: companion.take_over(undo) for node, companion in self.ready.items()}

    def keep(self, predecessor: Component | None, successor: Component, undo: list[Callable[[], object]]) -> None:
        """Let a predecessor run on, if it is to; the successor has its state already."""
        keeper = self.keepers.get(successor.node.name)
        if keeper is not None and predecessor is not None:
            keeper.keep(predecessor, successor, undo)

    def tell(self, inlets: Inlets) -> None:
        """Everything is bound, and parked: put out the punctuations that neither has sent."""
        for companion in self.ready.values():
            to = companion.component.to
            inlets.post(Work(to[port], "control", mark) for port, mark in companion.owed() if port in to)

    def stays(self, component: Component) -> bool:
        """A component that is replaced is not closed."""
        return component.node.name in self.keepers


@dataclass
class Successors:
    """The slets that a plan adds to a deployment.

    Attributes:
        undo: Where it is noted how to give up what was made.
        beside: Those of them that stand ready already, and who runs on behind them.
        made: The new components, by node.
        channels: The new channels, by name.
        states: What those that open late were given already.
        rebuilds: Those that make their state out of a log.
    """

    deployment: Deployment
    manager: ComponentManager
    plan: Plan
    undo: list[Undo]
    beside: Companions = field(default_factory=Companions)
    made: dict[str, Component] = field(default_factory=dict)
    channels: dict[str, Channel] = field(default_factory=dict)
    states: dict[str, Memento | None] = field(default_factory=dict)
    rebuilds: dict[str, Rebuild] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.timeout = self.plan.patience

    def create_channels(self) -> None:
        """Make the channels that are new; others may not change the application meanwhile.

        Raises:
            ExopError: one could not be made.
        """
        name, durable = self.deployment.name, self.plan.after.durable is not None
        for spec in self.plan.changes.channels_added:
            channel = self.channels[spec.name] = self.manager.create_channel(name, spec, durable=durable)
            self.undo.append(lambda channel=channel: self.manager.destroy_channel(name, channel))  # type: ignore[misc]
            if durable:
                channel.begin_anew()

    def create(self) -> None:
        """Make the components that are new.

        Raises:
            ExopError: one could not be made.
        """
        name, durable = self.deployment.name, self.plan.after.durable is not None
        self.made |= self.beside.components()
        for step in self.plan.steps:
            if step.verb in ("add", "replace") and step.after is not None and step.node not in self.made:
                changed, timeout = self.deployment.changed, self.plan.timeout
                made = self.manager.create(name, step.after, changed, durable=durable, timeout=timeout)
                self.made[step.node] = made
                if step.state is not None and step.state.inside and made.tie is not None:
                    made.tie.inherits = self.deployment.components[step.node].instance
                self.undo.append(partial(self._abandon, made))

    def open(self) -> None:
        """Open what may be opened while the old works.

        Raises:
            ComponentFailed: one could not be opened.
        """
        for step in self.plan.steps:
            if step.node in self.made.keys() - self.beside.ready and not _opens_late(step):
                check_interrupt()
                self.made[step.node].enter(self.plan.timeout)
                if step.after is not None and step.after.rebuild is not None:
                    rebuild = self.rebuilds[step.node] = Rebuild(self.deployment, step, self.made[step.node])
                    rebuild.catch_up()

    def open_late(self, pause: Pause, old: Component) -> None:
        """Open a source that drives itself where its predecessor has stopped: it may begin at once; engines inherit."""
        step = next(one for one in self.plan.steps if one.node == old.node.name)
        inside = step.state is not None and step.state.inside
        if not (_opens_late(step) or inside) or step.state is None or old.driver is None:
            return
        pause.close([old.driver])
        pause.wait_parked()
        successor = self.made[step.node]
        if inside:
            _inherit(successor, old, self.timeout)
            return
        # It may begin at once, in a thread of its own: what it notes must not be seen by the old one, which goes on
        # if the change is given up.
        state = self.states[step.node] = taken(step.state, successor, old.state, self._budget(step), copy=True)
        if state is not None:
            successor.adopt(state)
        successor.enter(self.plan.timeout)

    def succeed(self, step: Step, predecessor: Component | None) -> Component:
        """Let a successor stand where its predecessor stood, with its state and place in the stream."""
        successor = self.made[step.node]
        if predecessor is not None and step.state is not None:
            needed = not (step.after is not None and step.after.lose_state)
            _flush(predecessor, self.timeout, needed=needed)
            if step.node in self.rebuilds:
                self.states[step.node] = self.rebuilds[step.node].completed()
            late = step.node in self.states
            failpoint("memento-before")
            if not late:
                self.states[step.node] = taken(step.state, successor, predecessor.state, self._budget(step))
            state = self.states[step.node]
            successor.succeed(predecessor, state)
            failpoint("memento-after")
        begin = Event.SUSPEND if successor.node.suspended else Event.START
        if successor.allows(begin):  # one that has run on behind works already
            successor.on(begin)
        if predecessor is not None and predecessor.status is State.ENDED:  # its stream is over for any slet there
            successor.on(Event.END)
            successor.over = True
            if isinstance(successor.driver, SourceDriver):
                successor.driver.over = True  # it does the work in flight, and does not begin again
        return successor

    def _budget(self, step: Step) -> float:
        """Return the seconds that a hand-over may take in the cut: not much more than it took on a copy."""
        took = self.plan.took.get(step.node)
        return self.timeout if took is None else min(self.timeout, max(LONGER, 10 * took))

    def _abandon(self, component: Component) -> None:
        """Discard a successor that was never let go: a push of its own thread waits at the closed door."""
        if isinstance(component.driver, EngineDriver):
            component.driver.halt()
        discard(self.deployment, self.manager, component)


def taken(
    way: HandOver, successor: Component, state: Memento | None, seconds: float, *, copy: bool = False
) -> Memento | None:
    """Return what a successor begins with, made within so many seconds; with *copy* it shares nothing with *state*.

    Raises:
        MementoError: it cannot take the state.
        ComponentFailed: the user's code that makes it has not returned in time.
    """

    def take() -> Memento | None:
        return way.take(state.copied() if copy and state is not None else state)

    if way.calls is None and not copy:
        return take()
    return successor.user.run(successor, "taking over the state", take, seconds)


def _flush(predecessor: Component, seconds: float, *, needed: bool) -> None:
    """Flush buffered output, which its memento counts as sent; a state that is lost anyway does not need it."""
    try:
        predecessor.flush(seconds)
    except ComponentFailed as error:
        if needed:
            raise
        logger("exop.wiring").warning("what was buffered is lost with the state", node=predecessor.id, error=str(error))


def _inherit(successor: Component, old: Component, seconds: float) -> None:
    """Let an engine go on with what is inside of its predecessor, which has put out what it was given."""
    try:
        successor.user.run(successor, "taking over", partial(successor.instance.inherit, old.instance), seconds)
    except RAISED as error:
        problem = f"it cannot go on with the state inside of {old.spec.name}: {message(error) or described(error)}"
        raise ComponentFailed(node=successor.node.name, phase="taking over", problem=problem) from error


def _opens_late(step: Step) -> bool:
    """A source that drives itself begins with its memento: it is opened when its predecessor has stopped."""
    spec = step.after.slet if step.after is not None else None
    return (
        step.verb == "replace" and spec is not None and spec.own_driver and not spec.inputs and spec.state is not None
    )


def capture(deployment: Deployment, node: str, timeout: float = PATIENCE) -> Memento:
    """Return a copy of a node's memento as it is between two items; also of one that is suspended on an item.

    Raises:
        UnknownName: there is no such node.
        MeshError: its slet keeps no memento.
        PlanError: a driver did not come to a safe point in time.
    """
    memento_of(f"{deployment.name}.{node}", deployment.mesh.node(node).slet)
    found: list[Callable[[], Memento]] = []
    with deployment.changing:
        component = deployment.components[node]
        outside = [component.driver] if isinstance(component.driver, SourceDriver) else []
        running = (component.driver, component.pusher, *component.pullers)
        drivers = dict.fromkeys(driver for driver in running if driver is not None)
        with Pause(deployment, timeout, drivers=drivers, outside=outside) as pause:
            pause.close()
            pause.run(lambda: found.append(copied(component, timeout)))
    return found[0]()


def copied(component: Component, timeout: float) -> Callable[[], Memento]:
    """Copy a component's memento while everything stands still; returns what makes a memento of that, later.

    It is what a checkpoint would bring back: an object to which two fields refer becomes two.

    Raises:
        ComponentFailed: the slet has not flushed in time.
    """
    # Imported lazily: only this needs the encoding.
    from exop.model.decoding import decode, filled
    from exop.model.encoding import encode, fields_of

    state = component.state
    if state is None:  # a memento of a slet that keeps one is always there
        raise AssertionError(f"{component.id} has no memento")
    kind = type(state)
    # What the encoding would bring back as something else is copied.
    altered = any("bytearray" in str(one.type) for one in dataclasses.fields(kind))  # type: ignore[arg-type]

    def look() -> bytes | Memento:
        """Take a tenth of the time of a deep copy, during which the stream stands still."""
        component.flush()
        try:
            return state.copied() if altered else encode(fields_of(state))
        except NotStorable:
            return state.copied()

    found = component.user.run(component, "taking the memento", look, timeout)

    def made() -> Memento:
        if isinstance(found, Memento):
            return found
        memento: Memento = filled(kind, decode(found))
        return memento

    return made


def discard(
    deployment: Deployment, manager: ComponentManager, component: Component, closing: UserCall[None] | None = None
) -> None:
    """Close a component that is used no more, if *closing* has not begun that, and take it out of the registry.

    Raises:
        ComponentFailed: it has not closed in time; it is out of the registry all the same.
    """
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


class Leavers:
    """The old slets of a change that is made: they begin to close, and those that are quick are closed at once."""

    def __init__(self, deployment: Deployment, manager: ComponentManager, components: Iterable[Component]) -> None:
        self._deployment = deployment
        self._manager = manager
        self._closing = [(one, one.begin_exit()) for one in components]
        self._discard([one for one in self._closing if _within(one[1], time.monotonic() + HOLDING)])

    def close(self, seconds: float) -> None:
        """Wait for the others, for so many seconds; then they are given up."""
        until = time.monotonic() + seconds
        for _, call in self._closing:
            _within(call, until)
        self._discard(self._closing.copy())

    def _discard(self, closed: list[tuple[Component, UserCall[None] | None]]) -> None:
        for component, call in closed:
            self._closing.remove((component, call))
            try:
                discard(self._deployment, self._manager, component, call)
            except Exception as error:  # noqa: BLE001 (whatever a slet does when it closes: the change is made)
                report(component, described(error))


def _within(call: UserCall[None] | None, until: float) -> bool:
    return call is None or call.wait(max(0.0, until - time.monotonic()))


def report(component: Component, problem: str) -> None:
    """Log that an old slet does not leave."""
    logger("exop.wiring").error("the change is made, but the old slet does not leave", node=component.id, error=problem)
