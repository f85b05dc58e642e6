"""The driver of a component that runs behind another: it repeats the calls of its leader."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from exop.runtime.component import Component
from exop.runtime.drivers.base import Halted, acting_as, current_driver
from exop.runtime.drivers.source import ThreadDriver
from exop.runtime.entry import Entry, Unwind
from exop.runtime.ways import way_into
from exop.shown import described
from exop.wiring.shadow.taps import Call, FollowerTap, Leaving

#: Items that may wait for a follower.
CAPACITY = 4096
#: Items that may wait while the state of a successor is made; they are kept in memory.
MOST = 1_000_000
#: Items that may be left when a follower takes over: the stream stands still for those.
NEAR = 32
#: Seconds for which the leader waits at most for a follower that is CAPACITY items behind; then it is given up.
PATIENCE = 1.0
#: Seconds for which the leader waits at a time for one that catches up.
MOMENT = 0.02


class Follower(ThreadDriver):
    """Runs one component behind another, on copies of its items, in a thread of its own.

    Args:
        component: The component that runs behind; it is open, and has the state that it begins with.
        done: Called, in this driver, behind each call, with the outcome of it here.
        left: Takes the output of a component with a driver of its own.
        full: Asked at the limit: the reason not to wait for it any longer, or `None`.

    Attributes:
        problem: Why it cannot follow any more; it does nothing then.
        items: The number of items that it has processed.
        held: Seconds for which the leader had to wait.
        slowing: The leader waits for a moment, again and again, and may put half as many items as this one has
            processed meanwhile before it waits again: so this one catches up, and the stream goes on.
    """

    def __init__(
        self,
        component: Component,
        done: Callable[[Call, FollowerTap], None],
        left: Callable[[Leaving], None] | None,
        full: Callable[[], str | None],
    ) -> None:
        super().__init__(f"{component.application}.{component.node.name} (behind)")
        self.component = component
        self.calls: deque[Call] = deque()
        self.capacity = CAPACITY
        self.problem: str | None = None
        self.items = 0
        self.held = 0.0
        self.slowing = False
        self.news: Callable[[], object] = lambda: None
        self._put = self._allowed = 0
        self._done = done
        self._full = full
        self._wakes: list[Callable[[], None]] = []
        self._tap = FollowerTap(component, left)
        self._ways: dict[str, Entry] = {}

    def attach(self) -> None:
        """Compile the ways into the component: what it puts out ends here. Nothing is in flight in it."""
        component = self.component
        component.tap = self._tap
        component.bind(self._tap.outlets({}))
        self._ways = {port.name: way_into(component, port) for port in component.spec.inputs}

    def put(self, call: Call) -> None:
        """Hand over a call; called by the leader's driver, which waits when there is too much to do."""
        if self.problem is not None:
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

    def limit(self, capacity: int) -> None:
        """Let so many items wait from now on; beyond that the leader waits, for a short time."""
        self.slowing, self.capacity = False, capacity

    def give_up(self, problem: str) -> None:
        """Follow no more."""
        if self.problem is None:
            self.problem = problem
            self.calls.clear()
            self._let_on()
            self.news()

    def run(self) -> None:
        """Process the calls handed over until asked to leave."""
        while not (self.halting or self.retired):
            self.busy = True
            if self.attention:
                self.attend()
            if self.calls:
                self.do_next()
                self.busy = False
            else:
                self._done_for_now()
                self.doze(lambda: not self.calls)

    def do_rest(self) -> None:
        """Do all that waits, in the calling thread; this driver is parked."""
        with acting_as(self):
            while self.calls:
                self.do_next()

    def do_next(self) -> None:
        """Do the next call."""
        try:
            call = self.calls.popleft()
        except IndexError:  # it was given up meanwhile
            return
        tap = self._tap
        tap.begin()
        try:
            self._call(call)
            self._done(call, tap)
        except Halted:
            raise
        except (Exception, Unwind) as error:  # noqa: BLE001 (whatever it is, it is the follower's and not the stream's)
            self.give_up(f"it could not take item {call.item}: {described(error)}")
        self.items += call.rows
        if self._wakes and self.behind <= self.capacity // 2:
            self._let_on()

    def _call(self, call: Call) -> None:
        if call.port is None:
            return
        entry, payload = self._ways[call.port.name], call.payload
        if call.control:
            entry.control(payload)
        elif call.port.type.form == "item":
            entry.push(payload)
        else:
            entry.push_batch(payload)

    def _done_for_now(self) -> None:
        """Wake the threads that wait for the queue to be empty."""
        self.rest()
        self.news()

    def _wait_for_room(self) -> None:
        """In the leader's driver: wait until half of it is done, unless that one has to come to its safe point."""
        driver, problem = current_driver(), None if self.slowing else self._full()
        if problem is not None:
            self.give_up(problem)
        if driver is None or self.problem is not None:
            return

        def ready() -> Any:
            enough = NEAR if self.slowing else self.capacity // 2
            return self.behind <= enough or self.problem is not None or self.left or driver.hurried

        begin, done = time.perf_counter(), self.items
        self._wakes.append(driver.wake)
        driver.wait_for(ready, MOMENT if self.slowing else PATIENCE)
        self.held += time.perf_counter() - begin
        if self.slowing:
            self._allowed = self._put + max(1, (self.items - done) // 2)
        elif not ready():
            self.give_up(f"too slow: it was {self.behind} items behind, and did not catch up within {PATIENCE:g} s")

    def _let_on(self) -> None:
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()
