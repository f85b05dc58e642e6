"""Components that run behind others: they repeat the others' calls, and can take their places."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from exop.errors import ComponentFailed
from exop.model.items import Punctuation
from exop.model.slets.memento import Memento
from exop.runtime.channels.base import ControlMerge
from exop.runtime.component import Component
from exop.runtime.dataflow.compiler import way_into
from exop.runtime.dataflow.entry import Entry, Unwind
from exop.runtime.drivers.base import Halted, acting_as, current_driver
from exop.runtime.drivers.pause import Pause
from exop.runtime.drivers.source import ThreadDriver
from exop.runtime.metrics import ComponentMetrics
from exop.safe_repr import RAISED, class_of, described, message
from exop.wiring.changes.drain import quiesce
from exop.wiring.shadow.comparison import SIDES, Comparison
from exop.wiring.shadow.taps import Call, FollowerTap, LeaderTap
from exop.wiring.sharing import copies_freely, independent

if TYPE_CHECKING:
    from exop.wiring.shadow.standby import Standby

Undo = Callable[[], object]

#: Items that may wait for a follower.
CAPACITY = 4096
#: Items that may be left when a follower takes over: the stream stands still for those.
NEAR: Final = 32
#: Seconds for which the leader waits at most for a follower that is CAPACITY items behind; then it is given up.
PATIENCE = 1.0
#: Seconds that the copy of an item may take: the stream stands still meanwhile.
COPYING: Final = 1.0
#: Seconds for which the leader waits at a time for one that catches up.
MOMENT: Final = 0.02
#: Seconds that a follower that is given up may take to leave its slet; after that it is closed all the same.
LEAVING = 3.0


class Follower(ThreadDriver):
    """Runs one component behind another, on copies of its items, in a thread of its own; it may take its place.

    Attributes:
        lost: The reason why it cannot follow any more; it does nothing then.
        items, held: The number of items that it has processed; seconds for which the leader had to wait.
        slowing: The leader waits for a moment at a time, and then puts half as many items as this one has processed
            meanwhile: so this one catches up, and the stream goes on.
        news: Called when there is nothing to do, or it is lost.
        since: The revision of the mesh when it was tied: lines that took effect later concern it, too.
        seconds: The time for its last items when it takes over.
    """

    def __init__(
        self, leader: Component, component: Component, compared: Comparison | None = None, *, copies: bool = True
    ) -> None:
        super().__init__(f"{component.application}.{component.node.name} (behind)")
        self.leader = leader
        self.component = component
        self.calls: deque[Call] = deque()
        self.capacity = CAPACITY
        self.lost: str | None = None
        self.items = self.since = 0
        self.held = self.seconds = 0.0
        self.slowing = False
        self.news: Callable[[], object] = lambda: None
        self._put = self._allowed = 0
        self._seen, self._moved = -1, 0.0  # the items that were done, and since when no more are
        self._wakes: list[Callable[[], None]] = []
        self._ways: dict[str, Entry] = {}
        old, new = (partial(compared.put_out, side) if compared else None for side in SIDES)
        self.tap = LeaderTap(leader, self.put, old, self._copied if copies else lambda one: one)
        self._tap = FollowerTap(component, new)

    def done(self, call: Call, tap: FollowerTap) -> None:
        """Look at a call that it has done: it has lost an item if it raised where its leader did not."""
        if tap.error is not None and call.error is None and self.component.node.policy not in ("skip", "dead-letter"):
            self.give_up(f"it raised {class_of(tap.error)} for item {call.item}: {message(tap.error)}")

    def full(self) -> str | None:
        """Return the reason not to wait for it where it is as far behind as it may be."""
        return None

    def check(self) -> None:
        """Refuse to take over if it is not fit for that; it has done all that its leader has."""

    def owed(self) -> list[tuple[str, Punctuation]]:
        """Return the punctuations, by port, that the leader has not sent yet, and that this one has dropped."""
        return []

    def attach(self) -> None:
        """Compile the ways into the component: its outputs are dropped. Nothing is in flight in it."""
        component = self.component
        component.tap = self._tap
        component.bind(self._tap.outlets({}))
        self._ways = {port.name: way_into(component, port) for port in component.spec.inputs}

    def put(self, call: Call) -> None:
        """Hand over a call; called by the leader's driver, which waits when there is too much to do."""
        if self.lost is not None:
            return
        self.calls.append(call)
        self._put += call.rows
        if self.sleeping:
            self.wake()
        if self.behind >= self.capacity or (self.slowing and self._put >= self._allowed):
            self._wait_for_room()

    @property
    def behind(self) -> int:
        """The number of items that wait."""
        return self._put - self.items

    def too_slow(self) -> str:
        """Return the reason to give it up when PATIENCE is over."""
        return f"too slow: it was {self.behind} items behind, and did not catch up within {PATIENCE:g} s"

    def limit(self, capacity: int) -> None:
        """Let so many items wait from now on; beyond that the leader waits, for a short time."""
        self.slowing, self.capacity = False, capacity

    def give_up(self, problem: str) -> None:
        """Follow no more."""
        if self.lost is None:
            self.lost = problem
            self.calls.clear()
            self._let_on()
            self.news()

    def stop(self) -> None:
        """Follow no more, and leave; the leader's tap is without effect from now on."""
        self.tap.open = False
        self.give_up("it was stopped")
        self.halt()
        self.join(LEAVING)

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
                self.news()
                self.doze(lambda: not self.calls)

    def come_to_rest(self, pause: Pause) -> None:
        """Catch up, put out everything, and park, while the others are being parked."""
        component, self.seconds = self.component, pause.timeout
        if component.spec.own_driver and component.driver is not None:
            pause.wait_parked()
            pause.watch(self)
            pause.wait(lambda: self.lost is not None or not (self.calls or self.busy))
            quiesce(pause, component, component.driver, then_proceed=True)
            pause.close([component.driver])
        pause.close([self])

    def take_over(self, undo: list[Undo]) -> Memento | None:
        """Do what is left, and be ready for the leader's place; returns the state. Everything is parked."""
        if self.calls:
            self._do_rest()
        component, node, status = self.component, self.component.node, self.component.status
        merge, ended, dead = component.merge, component.ended, component.trouble.dead

        def back() -> None:
            component.merge, component.ended, component.trouble.dead = merge, ended, dead
            component.muted, component.node = False, node
            component.become(status)
            self.attach()

        undo.append(back)
        self.check()
        component.flush()
        component.tap, component.left = None, False
        component.metrics = ComponentMetrics()  # calls beside the mesh do not count
        return component.state

    def _do_rest(self) -> None:
        def rest() -> None:
            with acting_as(self):
                while self.calls:
                    self._do_next()

        try:
            self.component.user.run(self.component, "catching up", rest, self.seconds)
        except ComponentFailed as error:
            self.give_up(error.problem)
            raise

    def _do_next(self) -> None:
        try:
            call = self.calls.popleft()
        except IndexError:  # it was given up meanwhile
            return
        self._tap.begin(call.item)
        try:
            way = "control" if call.control else "push" if call.port.type.form == "item" else "push_batch"
            getattr(self._ways[call.port.name], way)(call.payload)
            self.done(call, self._tap)
        except Halted:
            raise
        except (Exception, Unwind) as error:  # noqa: BLE001 (whatever it is, it is the follower's and not the stream's)
            self.give_up(f"it could not take item {call.item}: {described(error)}")
        self.items += call.rows
        if self._wakes and self.behind <= self.capacity // 2:
            self._let_on()

    def _wait_for_room(self) -> None:
        """Wait, in the leader's driver, until half of it is done, unless that one has to come to its safe point.

        One that is catching up and has done no item for PATIENCE hangs in it: the leader runs at its own pace then.
        """
        driver, now = current_driver(), time.monotonic()
        if self.items != self._seen:
            self._seen, self._moved = self.items, now
        problem = self.full() if self.behind >= self.capacity else None
        if problem is not None:
            self.give_up(problem)
        if driver is None or self.lost is not None or (self.slowing and now - self._moved >= PATIENCE):
            return

        def ready() -> bool:
            enough = NEAR if self.slowing else self.capacity // 2
            return self.behind <= enough or self.lost is not None or self.left or driver.hurried

        self._wakes.append(driver.wake)
        driver.wait_for(ready, MOMENT if self.slowing else PATIENCE)
        self.held += time.monotonic() - now
        if self.slowing:
            self._allowed = self._put + max(1, (self.items - self._seen) // 2)
        elif not ready():
            self.give_up(self.too_slow())

    def _let_on(self) -> None:
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
            return leader.user.run(leader, "copying an item", partial(independent, value), COPYING)
        except RAISED as error:  # an item that cannot be copied: the stream goes on without the copy
            self.give_up(
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


@dataclass
class Companions:
    """The components beside the mesh that a change concerns, by node.

    Those that are `ready` take a place, with a state of their own, instead of a successor that is newly made. `keeps`
    ties predecessors that run on to their successors; they are `kept` then.
    """

    ready: Mapping[str, Follower] = field(default_factory=dict)
    keeps: Mapping[str, Callable[[Component, Component, list[Undo]], Standby]] = field(default_factory=dict)
    kept: dict[str, Standby] = field(default_factory=dict)
