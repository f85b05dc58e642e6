"""A component that runs behind another one, and a predecessor that does so for a while and can take over again."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from exop.errors import ComponentFailed, PlanError
from exop.model.items import Punctuation
from exop.model.lifecycle import State
from exop.model.memento import Memento
from exop.model.mesh import Mesh
from exop.runtime.channel import ControlMerge
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.metrics import ComponentMetrics
from exop.runtime.pause import PATIENCE, Pause
from exop.runtime.trouble import DeadLetters
from exop.shown import RAISED, class_of, described, message
from exop.wiring.controller import WiringController
from exop.wiring.drain import quiesce
from exop.wiring.shadow.follower import Follower
from exop.wiring.shadow.taps import Call, FollowerTap, LeaderTap, Leaving, taps_of, with_tap, without_tap
from exop.wiring.sharing import independent

#: How long a follower that is given up may take to leave its slet, in seconds; it is closed all the same then.
LEAVING = 3.0


class Behind:
    """Ties a follower to a leader, and lets it take the leader's place when everything is parked.

    Args:
        leader: The one in the mesh.
        component: The one behind it.
        compared: What leaves is wanted: it is going to be compared.
        copies: Items that may be altered are copied.

    Attributes:
        since: The revision of the mesh on which it was tied: lines that took effect later concern it, too.
        seconds: The time that it has for its last items when it takes over.
    """

    def __init__(self, leader: Component, component: Component, *, compared: bool, copies: bool = True) -> None:
        self.leader = leader
        self.component = component
        self.since, self.seconds = 0, PATIENCE
        left = self.leader_left if compared else None
        self.follower = Follower(component, self.done, self.left if compared else None, self.full)
        self.tap = LeaderTap(leader, self.follower.put, left, self._copied if copies else lambda value: value)

    def done(self, call: Call, tap: FollowerTap) -> None:
        """The follower has done a call."""

    def leader_left(self, leaving: Leaving) -> None:
        """Something has left a leader that drives itself."""

    def left(self, leaving: Leaving) -> None:
        """Something would have left a follower that drives itself."""

    def full(self) -> str | None:
        """The follower is as far behind as it may be: why not to wait for it."""
        return None

    def come_to_rest(self, pause: Pause) -> None:
        """Everything is being parked: catch up, put out everything, and park too."""
        component, follower, self.seconds = self.component, self.follower, pause.timeout
        if component.spec.own_driver and component.driver is not None:
            pause.wait_parked()
            pause.watch(follower)
            pause.wait(lambda: follower.problem is not None or not (follower.calls or follower.busy))
            quiesce(pause, component, component.driver, then_proceed=True)
            pause.close([component.driver])
        pause.close([follower])

    def take_over(self, undo: list[Callable[[], object]]) -> Memento | None:
        """Do what is left; then the leader's place is its own. *undo* gets what takes that back.

        Raises:
            PlanError: it could not follow.
            ComponentFailed: its slet hangs in one of the last items.
        """
        if self.follower.calls:
            self._do_rest()
        component, node, status = self.component, self.component.node, self.component.status
        as_before = _remembered(component)

        def back() -> None:
            as_before()
            component.muted, component.node = False, node
            component.become(status)
            self.follower.attach()

        undo.append(back)
        self.check()
        component.flush()
        component.tap, component.left = None, False
        component.metrics = ComponentMetrics()  # what it did beside the mesh is none of its figures
        return component.state

    def _do_rest(self) -> None:
        component, follower = self.component, self.follower
        try:
            component.user.run(component, "catching up", follower.do_rest, self.seconds)
        except ComponentFailed as error:
            follower.give_up(error.problem)
            raise

    def check(self) -> None:
        """Look whether it is fit to take over; it has done all that its leader has.

        Raises:
            PlanError: it is not.
        """

    def owed(self) -> list[tuple[str, Punctuation]]:
        """The punctuations, by port, that the leader has not sent yet, and that were dropped from this one."""
        return []

    def stop(self) -> None:
        """Follow no more; the leader's tap is without effect from now on."""
        self.tap.open = False
        self.follower.give_up("it was stopped")
        self.follower.halt()
        self.follower.join(LEAVING)

    def _copied(self, value: object) -> object:
        try:
            return independent(value)
        except RAISED as error:  # an item that cannot be copied: the stream goes on without the copy
            self.follower.give_up(
                f"an item cannot be copied ({described(error)}); "
                f"if no slet alters the items that it gets or has put out, say Shadow(copy=False)"
            )
            return value


def _remembered(component: Component) -> Callable[[], None]:
    """Return what gives a component back its merge, the inputs that have ended, and its dead letters of now."""
    merge, ended, dead = component.merge, component.ended, component.trouble.dead

    def back() -> None:
        component.merge, component.ended, component.trouble.dead = merge, ended, dead

    return back


def as_far(component: Component, leader: Component) -> None:
    """Let a component know how far its leader's inputs have come, without sharing anything with it."""
    component.merge = ControlMerge()
    component.merge.restore(leader.merge.capture())
    component.ended = set(leader.ended)
    component.expect()


def untie(deployment: Deployment, wiring: WiringController, behind: Behind) -> None:
    """Take the tap of a leader that stays out of its ways; it is without effect already."""
    leader = behind.leader

    def without() -> None:
        leader.tap = without_tap(leader.tap, behind.tap)

    stays = deployment.components.get(leader.node.name) is leader
    if deployment.finished.is_set() or not stays or behind.tap not in taps_of(leader.tap):
        return
    # Where a driver does not park now, the tap goes when the wiring is bound the next time.
    with suppress(PlanError), deployment.changing:
        wiring.settle(deployment, without, nodes=[leader.node.name])
    without()


class Kept(Behind):
    """A predecessor behind its successor: it gets the same items, and what it puts out ends there.

    Args:
        predecessor: The one that was replaced.
        successor: The one in its place.
        over: Called, in a thread of its own, when its time is up, or it cannot follow any more.
    """

    def __init__(self, predecessor: Component, successor: Component, over: Callable[[Kept], None]) -> None:
        super().__init__(successor, predecessor, compared=False)
        self.node = predecessor.node
        self.until = 0.0
        self._over = over
        self._timer: threading.Timer | None = None
        self._ending = threading.Lock()

    def start(self, seconds: float) -> None:
        """Everything goes on: so does it, for so many seconds."""
        self.until = time.time() + seconds
        self.component.proceed()  # it has put out everything, to be replaced
        self.follower.news = self._look
        self.follower.start()
        self._call_over(seconds)
        self._look()

    def done(self, call: Call, tap: FollowerTap) -> None:
        """One that raises where its successor did not has lost an item: it cannot go on in its place."""
        if tap.error is not None and call.error is None and self.node.policy not in ("skip", "dead-letter"):
            error = tap.error
            self.follower.give_up(f"it raised {class_of(error)} for an item that its successor took: {message(error)}")

    def take_over(self, undo: list[Callable[[], object]]) -> Memento | None:
        """Come back to where the successor is connected now, and as it is suspended."""
        state = super().take_over(undo)
        now = self.leader.node
        here = self.component.node  # settings that took effect in the successor did so here, too
        self.component.node = dataclasses.replace(here, ports=now.ports, suspended=now.suspended)
        return state

    def check(self) -> None:
        """Look whether it has followed to the last item.

        Raises:
            PlanError: it has not.
        """
        if self.follower.problem is not None or self.component.status is not State.ACTIVE:
            why = self.follower.problem or f"it is {self.component.status}"
            raise PlanError(f"the predecessor of {self.node.name} cannot take over again: {why}; replace it back")

    def back(self, mesh: Mesh) -> Mesh:
        """The mesh with the predecessor in its place again; where it is connected is as it is now."""
        now = mesh.node(self.node.name)
        # Its settings may have changed meanwhile, at a point in the stream.
        node = dataclasses.replace(self.component.node, ports=now.ports, suspended=now.suspended, lose_state=True)
        return dataclasses.replace(mesh, nodes={**mesh.nodes, node.name: node})

    def end(self) -> None:
        """Run no more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.stop()

    def plain(self) -> dict[str, Any]:
        """Return its status as plain data."""
        return {
            "slet": self.node.slet.identity,
            "until": time.strftime("%H:%M:%S", time.localtime(self.until)),
            "left_s": round(max(0.0, self.until - time.time()), 1),
            "behind": self.follower.behind,
            "items": self.follower.items,
            "problem": self.follower.problem,
        }

    def _look(self) -> None:
        """Close the follower soon if it cannot follow any more: in another thread, which may wait."""
        if self.follower.problem is not None and self._timer is not None:
            self._call_over(0.0)

    def _call_over(self, seconds: float) -> None:
        with self._ending:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(seconds, self._over, (self,))
            self._timer.name = f"exop {self.follower.name} until"
            self._timer.daemon = True
            self._timer.start()


class Keeping:
    """Ties one predecessor to its successor, in the middle of a change that is being made.

    Attributes:
        kept: The two together.
        shares: The successor gets the predecessor's state, by reference perhaps: the predecessor gets a copy.
        seconds: The time that the copy may take.
    """

    def __init__(self, over: Callable[[Kept], None], *, shares: bool, seconds: float = PATIENCE) -> None:
        self.kept: Kept | None = None
        self.shares, self.seconds = shares, seconds
        self._over = over

    def keep(self, predecessor: Component, successor: Component, undo: list[Callable[[], object]]) -> None:
        """Give the predecessor a state of its own, and put it behind the successor; everything is parked."""
        if predecessor.status is not State.ACTIVE:
            problem = f"{predecessor.node.name} is {predecessor.status}: it cannot run on behind its successor"
            raise PlanError(f"{problem}; make the change without keeping it")
        as_before = _remembered(predecessor)

        def drop() -> None:
            as_before()
            predecessor.tap = None
            if self.kept is not None:
                successor.tap = without_tap(successor.tap, self.kept.tap)

        undo.append(drop)
        as_far(predecessor, predecessor)
        predecessor.trouble.dead = DeadLetters()
        if self.shares and predecessor.state is not None:
            copy = predecessor.state.copied
            predecessor.adopt(predecessor.user.run(predecessor, "taking the memento", copy, self.seconds))
        self.kept = Kept(predecessor, successor, self._over)
        successor.tap = with_tap(successor.tap, self.kept.tap)
        self.kept.follower.attach()
