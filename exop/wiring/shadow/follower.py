"""Followers: components that repeat the calls of a leader on copies of its items, and may take its place."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from exop.errors import ComponentFailed, PlanError, counted
from exop.model.items import Punctuation
from exop.model.meshes.mesh import Node
from exop.model.slets.memento import Memento
from exop.runtime.channels.base import ControlMerge
from exop.runtime.compiler import compile_entry
from exop.runtime.component import Component
from exop.runtime.dataflow.entry import Entry, Unwind
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Halted, acting_as, current_driver
from exop.runtime.drivers.source import ThreadDriver
from exop.runtime.lifecycle import State
from exop.runtime.pause import Pause
from exop.runtime.supervision.failure_state import DeadLetters
from exop.safe_repr import RAISED, error_text
from exop.wiring.changes.channels import Undo, restoring
from exop.wiring.changes.drain import quiesce
from exop.wiring.changes.successors import discard
from exop.wiring.controller import WiringController
from exop.wiring.shadow.comparison import SIDES, Comparison
from exop.wiring.shadow.taps import Fault, FollowerTap, LeaderTap, SletCall
from exop.wiring.sharing import copies_freely, independent

#: The maximum number of items that wait for a follower.
CAPACITY = 4096
#: The maximum number of items that are left when a follower takes over: the stream stands still for those.
NEAR: Final = 32
#: Seconds for which the leader waits for a follower that lags by CAPACITY items; after that it stops following.
PATIENCE = 1.0
#: Seconds that a stopped follower may take to return from its slet before it is closed.
LEAVING = 3.0


class Follower(ThreadDriver):
    """Runs one component as the follower of another one, in a thread of its own.

    Attributes:
        lost: The reason why it has stopped following.
        items: The number of processed items.
        held: Seconds for which the leader had to wait.
        throttling: The leader waits for a moment at a time, and then puts half as many items as were processed
            meanwhile, so that this one catches up while the stream goes on.
        on_progress: Called when no calls are left, or following has stopped.
        near: The number of items behind its leader at which it may take over.
        patience: Seconds within which it has to come so near.
        since: The revision of the mesh when it was attached: later conditional updates apply to it, too.
        seconds: The time limit for its last items when it takes over.
    """

    near = NEAR
    patience = PATIENCE

    def __init__(
        self, leader: Component, component: Component, compared: Comparison | None = None, *, copies: bool = True
    ) -> None:
        super().__init__(f"{component.application}.{component.node.name} (follower)")
        self.leader = leader
        self.component = component
        self.calls: deque[SletCall] = deque()
        self.capacity = CAPACITY
        self.lost: str | None = None
        self.items = self.since = 0
        self.held = self.seconds = 0.0
        self.throttling = False
        self.on_progress: Callable[[], object] = lambda: None
        self._put = self._allowed = 0
        self._news = threading.Condition()
        self._seen, self._moved = -1, 0.0  # the number of processed items, and the time of its last change
        self._wakes: list[Callable[[], None]] = []
        self._entries: dict[str, Entry] = {}
        old, new = (partial(compared.add_output, side) if compared else None for side in SIDES)
        self.tap = LeaderTap(leader, self.put, old, self._copied if copies else lambda item: item)
        self._tap = FollowerTap(component, new)

    def done(self, call: SletCall, error: Fault | None, took: float) -> None:
        """Handle the outcome of a call: the follower has lost an item if it raised and the leader did not."""
        if error is not None and call.error is None and not self.component.omits(call.payload):
            self.give_up(f"it raised {error.kind} for item {call.item}: {error.message}")

    def check(self) -> None:
        """Refuse to take over if it is not fit for that; all calls of the leader are processed."""

    def unsent(self) -> list[tuple[str, Punctuation]]:
        """Return the punctuations, by port, that this one has dropped and the leader has not sent yet."""
        return []

    def attach(self) -> None:
        """Compile the entries of the component, whose outputs are dropped; nothing is in flight in it."""
        component = self.component
        component.taps = (self._tap,)
        component.bind(self._tap.outlets({}))
        self._entries = {port.name: compile_entry(component, port) for port in component.spec.inputs}

    def put(self, call: SletCall) -> None:
        """Hand over a call in the leader's driver, which waits if the follower lags too much."""
        if self.lost is not None:
            return
        self.calls.append(call)
        self._put += call.rows
        if self.sleeping:
            self.wake()
        if self.lag >= self.capacity or (self.throttling and self._put >= self._allowed):
            self._wait_for_room()

    @property
    def lag(self) -> int:
        """The number of items that wait."""
        return self._put - self.items

    def too_slow(self) -> str:
        """Return the reason to stop following when PATIENCE is over."""
        return f"too slow: it was {counted(self.lag, 'item')} behind, and did not catch up within {self.patience:g} s"

    def limit(self, capacity: int) -> None:
        """Let this number of items wait from now on; beyond it the leader waits for a short time."""
        self.throttling, self.capacity = False, capacity

    def give_up(self, problem: str) -> None:
        """Stop following."""
        if self.lost is None:
            self.lost = problem
            self.calls.clear()
            self._release_leader()
            self.on_progress()
            with self._news:
                self._news.notify_all()

    def stop(self) -> None:
        """Stop following and leave; the leader's tap is without effect from now on."""
        self.tap.open = False
        self.give_up("it was stopped")
        self.halt()
        self.join(LEAVING)

    def leave(self, deployment: Deployment, wiring: WiringController) -> str:
        """Stop following, and close the component unless it has taken its leader's place; return what went wrong."""
        self.stop()
        self.detach(deployment, wiring)
        try:
            if deployment.components.get(self.component.node.name) is not self.component:
                discard(deployment, wiring.manager, self.component)
        except Exception as error:  # noqa: BLE001 (whatever a slet does when it closes)
            return error_text(error)
        return ""

    def detach(self, deployment: Deployment, wiring: WiringController) -> None:
        """Take the tap off the leader, if it is in place."""
        leader, running = self.leader, deployment.components
        if running.get(leader.node.name) is leader and not deployment.finished.is_set() and self.tap in leader.taps:
            engines = [leader] if leader.spec.own_driver else []
            # If a driver does not park now, the tap goes when the wiring is bound the next time.
            with suppress(PlanError), deployment.changing:
                wiring.rebind(deployment, self.tap.detach, engines, nodes=[leader.node.name])
            self.tap.detach()

    def run(self) -> None:
        """Process the calls handed over until asked to leave."""
        while not (self.halting or self.retired):
            self.busy = True
            if self.attention:
                self.attend()
            if self.calls:
                self._do_next()
                self.busy = False
            else:
                self.rest()
                self.on_progress()
                self.doze(lambda: not self.calls)

    def come_to_rest(self, pause: Pause) -> None:
        """Process what is left, put out everything, and park, while the other drivers are being parked."""
        component, self.seconds = self.component, pause.timeout
        if component.spec.own_driver and component.driver is not None:
            pause.wait_parked()
            pause.watch(self)
            pause.wait(lambda: self.lost is not None or not (self.calls or self.busy))
            quiesce(pause, component, component.driver, then_proceed=True)
            pause.close([component.driver])
        pause.close([self])

    def take_over(self, undo: list[Undo]) -> Memento | None:
        """Process the last items and get ready for the leader's place; everything is parked. Returns the state."""
        component = self.component

        def rest() -> None:
            with acting_as(self):
                while self.calls:
                    self._do_next()

        if self.calls:
            try:
                component.user.run(component, "catching up", rest, self.seconds)
            except ComponentFailed as error:
                self.give_up(error.problem)
                raise
        undo += [self.attach, partial(component.become, component.status), *_progress(component)]
        undo += [*restoring(component, "node", "updates"), partial(setattr, component, "muted", False)]
        self.check()
        component.flush()
        component.taps, component.left = (), False
        component.reset_metrics()  # calls of a follower do not count
        return component.state

    def _do_next(self) -> None:
        try:
            call = self.calls.popleft()
        except IndexError:  # following stopped meanwhile
            return
        self._tap.begin(call.item)
        try:
            method = "control" if call.control else "push" if call.port.type.form == "item" else "push_batch"
            getattr(self._entries[call.port.name], method)(call.payload)
            self.done(call, Fault.of(self._tap.error), self._tap.took)
        except Halted:
            raise
        except (Exception, Unwind) as error:  # noqa: BLE001 (any failure is the follower's and not the stream's)
            self.give_up(f"it could not take item {call.item}: {error_text(error)}")
        self.items += call.rows
        if self._wakes and self.lag <= self.capacity // 2:
            self._release_leader()

    def _wait_for_room(self) -> None:
        """Wait, in the leader's driver, until half of the capacity is free, or only for a moment if it is throttled."""
        if self.throttling:
            self._wait(NEAR, 0.02, still=PATIENCE)
            self._allowed = self._put + max(1, (self.items - self._seen) // 2)
        elif not self._wait(self.capacity // 2, PATIENCE):
            self.give_up(self.too_slow())

    def _wait(self, lag: int, seconds: float, *, still: float = math.inf) -> bool:
        """Let the leader's driver wait until no more items lag, unless it has to park; return whether that is so.

        It does not wait for a follower that has processed no item for *still* seconds: that hangs.
        """
        driver, now = current_driver(), time.monotonic()
        if self.items != self._seen:
            self._seen, self._moved = self.items, now
        if driver is None or self.lost is not None or now - self._moved >= still:
            return True

        def ready() -> bool:
            return self.lag <= lag or self.lost is not None or self.left or driver.ignores_capacity

        self._wakes.append(driver.wake)
        driver.wait_for(ready, seconds)
        self.held += time.monotonic() - now
        return ready()

    def _release_leader(self) -> None:
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    def _copied(self, value: object) -> object:
        leader = self.leader
        if self.lost is not None:
            return value
        try:
            if copies_freely(value):
                return independent(value)
            # The stream stands still meanwhile: within a second.
            return leader.user.run(leader, "copying an item", partial(independent, value), 1.0)
        except RAISED as error:  # the stream goes on without the copy
            cure = "if no slet alters the items that it gets or has put out, say Shadow(copy=False)"
            self.give_up(f"an item cannot be copied ({error_text(error)}); {cure}")
            return value


class Standby(Follower):
    """A predecessor that runs on as the follower of its successor.

    *over* is called in a thread of its own when the standby's time is up, or it has stopped following.
    """

    #: Whether another host has the leader, and reports this one.
    is_remote = False
    #: The node that it becomes, if that is known before it takes over.
    after: Node | None = None

    def __init__(self, predecessor: Component, successor: Component, over: Callable[[Standby], None]) -> None:
        super().__init__(successor, predecessor)
        self.until = 0.0
        self._over = over
        self._ended = threading.Event()

    @classmethod
    def beside(
        cls,
        predecessor: Component | None,
        successor: Component,
        undo: list[Undo],
        *,
        shares: bool,
        seconds: float,
        over: Callable[[Standby], None],
    ) -> Standby:
        """Make a standby on the host of its successor, while everything is parked.

        If it *shares* its state with the successor, it continues with a copy, made within so many *seconds*.
        """
        assert predecessor is not None
        check_standby(predecessor)
        made = cls(predecessor, successor, over)
        # Its taps: perhaps that of its own standby.
        undo += [*_progress(predecessor), *restoring(predecessor, "taps"), made.tap.detach]
        set_progress(predecessor, predecessor.merge.capture(), predecessor.ended)
        predecessor.trouble.dead = DeadLetters()
        if shares and predecessor.state is not None:
            copy = predecessor.state.copied
            predecessor.adopt(predecessor.user.run(predecessor, "taking the memento", copy, seconds))
        made.tap.attach()
        made.attach()
        return made

    @property
    def node(self) -> Node:
        """The node with which it takes over: its own settings, connected and suspended as the successor is."""
        now = self.after or self.leader.node
        return replace(self.component.node, ports=now.ports, suspended=now.suspended)

    def run_on(self, seconds: float) -> None:
        """Run on for *seconds*."""

        def wait() -> None:
            self._ended.wait(seconds)
            self._over(self)

        self.until = time.time() + seconds
        self.component.proceed()  # it has put out everything in order to be replaced
        self.start()
        threading.Thread(target=wait, name=f"exop {self.name} until", daemon=True).start()

    def give_up(self, problem: str) -> None:
        """Stop following."""
        super().give_up(problem)
        self._ended.set()

    def take_over(self, undo: list[Undo]) -> Memento | None:
        """Come back to the successor's connections, suspended if the successor is."""
        state = super().take_over(undo)
        self.component.node = self.node
        return state

    def check(self) -> None:
        """Refuse if it has not followed to the last item."""
        if self.lost is not None or self.component.status is not State.ACTIVE:
            why = self.lost or f"it is {self.component.status}"
            raise PlanError(f"the predecessor of {self.node.name} cannot take over again: {why}; replace it back")

    def plain(self) -> dict[str, Any]:
        """Return its status as plain data."""
        return {
            "slet": self.component.spec.identity,
            "until": time.strftime("%H:%M:%S", time.localtime(self.until)),
            "left_s": round(max(0.0, self.until - time.time()), 1),
            "behind": self.lag,
            "items": self.items,
            "problem": self.lost,
        }


@dataclass
class Followers:
    """The followers that a change concerns, by node.

    Attributes:
        ready: Followers that take their leaders' places, with states of their own, instead of newly made successors.
        keep: Makes a standby of the predecessor of a node, for the nodes whose predecessors are kept; the predecessor
            is given if it is on this host.
        kept: The standbys that were made.
        staying: The nodes that go on at another host, and whose components here are kept.
    """

    ready: Mapping[str, Follower] = field(default_factory=dict)
    keep: Mapping[str, Callable[[Component | None, Component, list[Undo]], Standby]] = field(default_factory=dict)
    kept: dict[str, Standby] = field(default_factory=dict)
    staying: Collection[str] = ()

    def keeps(self, node: str) -> bool:
        """Whether the component that a node has had is not closed."""
        return node in self.keep or node in self.staying


def check_standby(component: Component) -> None:
    """Raise `PlanError` if a component cannot run on as a standby."""
    if component.status is not State.ACTIVE:
        raise PlanError(
            f"{component.node.name} is {component.status}: it cannot run on as a standby; make the change without "
            f"keeping it"
        )


def set_progress(component: Component, merge: Mapping[str, Any], ended: Iterable[str]) -> None:
    """Set how far the inputs of a component have come: its captured merge, and the ports whose stream has ended."""
    component.merge = ControlMerge()
    component.merge.restore(merge)
    component.ended = set(ended)
    component.expect()


def _progress(component: Component) -> list[Undo]:
    """Return the undo that restores the progress and the dead letters that a component has now."""
    return [*restoring(component, "merge", "ended"), *restoring(component.trouble, "dead")]
