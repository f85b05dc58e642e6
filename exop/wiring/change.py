"""Changing a running application: open → park, upstream first → hand over → bind → release → close the old.

Everything that can take long or fail is done before anything is parked. Every step leaves its undoing; a failure before
the release undoes them all in reverse, and the old mesh runs on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from exop.errors import ComponentFailed, ExopError, PlanError
from exop.model.lifecycle import Event, State
from exop.runtime.channel import Channel
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver, ThreadDriver
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.manager import ComponentManager
from exop.wiring.controller import Wiring, WiringController
from exop.wiring.plan import Plan, Step

#: How long drivers may take to come to their safe points, in seconds.
DRAIN_TIMEOUT = 10.0

Undo = Callable[[], object]


@dataclass
class Change:
    """One plan that is being carried out on one deployment; used once."""

    deployment: Deployment
    manager: ComponentManager
    wiring: WiringController
    plan: Plan
    timeout: float = DRAIN_TIMEOUT
    paused: float = 0.0
    _undo: list[Undo] = field(default_factory=list)
    _successors: dict[str, Component] = field(default_factory=dict)
    _channels: dict[str, Channel] = field(default_factory=dict)
    _removed: dict[str, Channel] = field(default_factory=dict)

    def carry_out(self) -> None:
        """Do it.

        Raises:
            PlanError: it could not be done; everything is as it was.
        """
        old = [self.deployment.components[s.node] for s in self.plan.steps if s.verb in ("replace", "remove")]
        try:
            self._prepare()
            before = self.wiring.survey(self.deployment)
            self._connect()
            after = self.wiring.survey(self.deployment)
            with self._parked(old):
                begin = time.perf_counter()
                try:
                    self._commit(old, before, after)
                except BaseException as error:
                    self._take_back(error)  # before anybody moves again
                    raise
                self.paused = time.perf_counter() - begin
        except BaseException as error:
            self._take_back(error)
            self.deployment.settle_workers(self.timeout)
            raise
        self._finish(old)

    def _prepare(self) -> None:
        """Make and open what is new, while the old works."""
        for spec in self.plan.changes.channels_added:
            channel = self._channels[spec.name] = self.manager.create_channel(self.deployment.name, spec)
            self._undo.append(lambda channel=channel: self.manager.destroy_channel(self.deployment.name, channel))  # type: ignore[misc]
        for step in self.plan.steps:
            if step.verb in ("add", "replace") and step.after is not None:
                made = self.manager.create(self.deployment.name, step.after, self.deployment.changed)
                self._successors[step.node] = made
                self._undo.append(lambda made=made: self._discard(made))  # type: ignore[misc]
        for node, component in self._successors.items():
            try:
                component.enter()
            except Exception as error:
                raise ComponentFailed(node=node, phase="opening", problem=str(error) or repr(error)) from error

    def _connect(self) -> None:
        """Set `connected-to` of the ports to what is to be; nothing is bound by that yet."""
        for step in self.plan.steps:
            current = self.deployment.components.get(step.node)
            if step.verb in ("replace", "remove", "rewire") and current is not None and step.before is not None:
                for port, channel in step.before.ports.items():
                    self.wiring.disconnect(current, port)
                    self._undo.append(lambda c=current, p=port, to=channel: self.wiring.connect(c, p, to))  # type: ignore[misc]
            target = self._successors.get(step.node, current)
            if step.verb in ("replace", "add", "rewire") and step.after is not None and target is not None:
                for port, channel in step.after.ports.items():
                    self.wiring.connect(target, port, channel)
                    self._undo.append(lambda c=target, p=port: self.wiring.disconnect(c, p))  # type: ignore[misc]

    @contextmanager
    def _parked(self, old: list[Component]) -> Iterator[None]:
        """Park everything, upstream first; an engine that leaves puts out what it has before what follows parks."""
        leaving = {id(component.driver): component for component in old if component.spec.own_driver}
        closed: list[Driver] = []
        try:
            for driver in self.deployment.drivers():
                if id(driver) in leaving:
                    leaving[id(driver)].quiesce()
                driver.close()
                closed.append(driver)
                if not driver.wait_parked(self.timeout):
                    raise PlanError(f"{driver.name} did not come to its safe point within {self.timeout:g} s")
            for component in old:
                if isinstance(component.driver, SourceDriver) and not component.driver.wait_yielded(self.timeout):
                    raise PlanError(
                        f"{component.node.name} did not yield within {self.timeout:g} s, so its position is not known; "
                        f"a source that waits should yield None from time to time"
                    )
            yield
        finally:
            for driver in reversed(closed):
                driver.open()

    def _commit(self, old: list[Component], before: Wiring, after: Wiring) -> None:
        """Hand over and bind; nothing is in flight."""
        components = self.deployment.components
        self._undo.append(lambda: self.wiring.bind(self.deployment, before))
        for step in self.plan.steps:
            self._commit_step(step)
        self.deployment.channels.update(self._channels)
        for spec in self.plan.changes.channels_removed:
            channel = self._removed[spec.name] = self.deployment.channels.pop(spec.name)
            self._undo.append(lambda channel=channel: self.deployment.channels.update({channel.name: channel}))  # type: ignore[misc]
            held = getattr(channel, "depth", 0)
            if held:
                raise PlanError(
                    f"the channel {spec.name!r} holds {held} items, which would be lost; let it drain first"
                )
        self.deployment.components = {name: components[name] for name in self.plan.after.nodes}
        self._undo.append(lambda: setattr(self.deployment, "components", components))
        self.wiring.bind(self.deployment, after)
        for component in old:
            if isinstance(component.driver, SourceDriver):
                component.driver.follow(self.deployment.places)

    def _commit_step(self, step: Step) -> None:
        components = self.deployment.components
        current = components.get(step.node)
        successor = self._successors.get(step.node)
        if successor is not None:
            if current is not None and step.state is not None:
                successor.succeed(current, step.state.take(current.state))
            components[step.node] = successor
            self._undo.append(lambda: self._put_back(step.node, current))
            successor.on(Event.SUSPEND if successor.node.suspended else Event.START)
        elif current is not None and step.after is not None and step.before is not None:
            self._undo.append(lambda: self.manager.configure(current, step.before))  # type: ignore[arg-type]
            self.manager.configure(current, step.after)
            if step.verb == "suspend":
                self.manager.suspend(current)
                self._undo.append(lambda: self.manager.resume(current))
            elif step.verb == "resume" and Event.RESUME in current.lifecycle.allowed():
                current.on(Event.RESUME)

    def _put_back(self, node: str, component: Component | None) -> None:
        if component is None:
            self.deployment.components.pop(node, None)
        else:
            self.deployment.components[node] = component

    def _finish(self, old: list[Component]) -> None:
        """The new runs: let go of the old, and of those who waited for what was repaired."""
        for component in old:
            if isinstance(component.driver, ThreadDriver):
                component.driver.retire()
                if not component.driver.join(self.timeout):
                    raise PlanError(f"the change is made, but {component.driver.name} does not leave its thread")
        for step in self.plan.steps:
            current = self.deployment.components.get(step.node)
            if current is not None and step.verb in ("configure", "resume", "adjust"):
                current.resume()
        for component in old:
            component.let_go()
        for component in self._successors.values():
            component.begin()
        self.deployment.settle_workers(self.timeout)
        for component in old:
            self._discard(component)
        for spec in self.plan.changes.channels_removed:
            self.manager.destroy_channel(self.deployment.name, self._removed[spec.name])
        self.deployment.mesh = self.plan.after
        self.deployment.check_finished()

    def _take_back(self, error: BaseException) -> None:
        """Undo in reverse; an undoing that fails is noted on the error and the others are done."""
        while self._undo:
            try:
                self._undo.pop()()
            except ExopError as problem:
                error.add_note(f"and while it was undone: {problem}")

    def _discard(self, component: Component) -> None:
        if component.status not in (State.CREATED, State.STOPPED):
            self.manager.stop(component)
        self.manager.destroy(component)
