"""A component that runs behind another one: the common part of a trial and of a kept predecessor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from exop.errors import PlanError
from exop.model.items import Punctuation
from exop.model.memento import Memento
from exop.runtime.channel import ControlMerge
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.metrics import ComponentMetrics
from exop.runtime.pause import Pause
from exop.runtime.tap import independent
from exop.shown import RAISED, described
from exop.wiring.controller import WiringController
from exop.wiring.drain import quiesce
from exop.wiring.shadow.calls import Call, Leaving
from exop.wiring.shadow.follower import Follower
from exop.wiring.shadow.taps import FollowerTap, LeaderTap, listens, with_tap, without_tap

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
    """

    def __init__(self, leader: Component, component: Component, *, compared: bool, copies: bool = True) -> None:
        self.leader = leader
        self.component = component
        self.since = 0
        left = self.leader_left if compared else None
        self.follower = Follower(component, self.done, self.left if compared else None, self.full)
        self.tap = LeaderTap(leader, self.follower.put, left, self._copied if copies else lambda value: value)
        self._before: Callable[[], None] = lambda: None

    def done(self, call: Call, tap: FollowerTap) -> None:
        """The follower has done a call."""

    def leader_left(self, leaving: Leaving) -> None:
        """Something has left a leader that drives itself."""

    def left(self, leaving: Leaving) -> None:
        """Something would have left a follower that drives itself."""

    def full(self) -> str | None:
        """The follower is as far behind as it may be: why not to wait for it."""
        return None

    def tie(self) -> None:
        """Let the follower be handed what the leader takes, from now on; everything is parked."""
        self.leader.tap = with_tap(self.leader.tap, self.tap)
        self.follower.attach()

    def come_to_rest(self, pause: Pause) -> None:
        """Everything is being parked: catch up, put out everything, and park too."""
        component, follower = self.component, self.follower
        if component.spec.own_driver and component.driver is not None:
            pause.wait_parked()
            pause.watch(follower)
            pause.wait(lambda: follower.problem is not None or not (follower.calls or follower.busy))
            quiesce(pause, component, component.driver, then_proceed=True)
            pause.close([component.driver])
        pause.close([follower])

    def take_over(self) -> Memento | None:
        """Do what is left; then the leader's place is its own.

        Raises:
            PlanError: it could not follow.
        """
        self.follower.do_rest()
        component, node, lifecycle = self.component, self.component.node, self.component.lifecycle
        merge, ended, dead = component.merge, component.ended, component.trouble.dead

        def back() -> None:
            component.merge, component.ended, component.trouble.dead = merge, ended, dead
            component.muted, component.node = False, node
            component.become(lifecycle)
            self.follower.attach()

        self._before = back
        self.check()
        component.flush()
        component.tap, component.left = None, False
        component.metrics = ComponentMetrics()  # what it did beside the mesh is none of its figures
        return component.state

    def check(self) -> None:
        """Look whether it is fit to take over; it has done all that its leader has.

        Raises:
            PlanError: it is not.
        """

    def owed(self) -> list[tuple[str, Punctuation]]:
        """The punctuations, by port, that the leader has not sent yet, and that were dropped from this one."""
        return []

    def step_back(self) -> None:
        """It does not take over after all."""
        self._before()

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
    if deployment.finished.is_set() or not stays or not listens(leader.tap, behind.tap):
        return
    # Where a driver does not park now, the tap goes when the wiring is bound the next time.
    with suppress(PlanError), deployment.changing:
        wiring.settle(deployment, without)
    without()
