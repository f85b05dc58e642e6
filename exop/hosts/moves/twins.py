"""Followers of leaders on other hosts: successors on trial before a move, and predecessors that a move keeps.

On the host of the leader, a feeder records its calls like any follower, and sends them; on the other host, a `Twin`
repeats them, and answers with the outcomes. When the feeder's host is cut, the twin has processed all calls: it is the
node from the commit on, with the state that it has. A stream that is faster than the twin is slowed down to its pace;
it does not wait for a twin that stands still.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from exop.errors import ExopError, PlanError, told
from exop.hosts.moves.ahead import Ahead
from exop.model.meshes.shadow import Shadow
from exop.model.slets.memento import Memento
from exop.model.slets.spec import Role
from exop.model.slets.stored_memento import declared_by, load_memento
from exop.model.values.classes import Declared
from exop.model.values.depth import AROUND, DEPTH
from exop.model.values.encoding import decode, encode
from exop.remoting.api.hosting import What
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.ports import BufferedOutput
from exop.safe_repr import RAISED, safe_repr
from exop.wiring.changes.arrivals import adopt_foreign, dumped
from exop.wiring.changes.channels import Undo
from exop.wiring.changes.plan import Step
from exop.wiring.controller import WiringController
from exop.wiring.shadow.comparison import Comparison, Deviation, same
from exop.wiring.shadow.follower import CAPACITY, Follower, Standby, set_progress
from exop.wiring.shadow.taps import Fault, FollowerTap, SletCall
from exop.wiring.shadow.trial import Trial

#: Seconds without progress after which the leader does not wait for its twin: during the trial, and before the cut.
STILL, LAST = 0.1, 1.0
#: Seconds that the host of a twin waits for outcomes before it answers, and that its answer may take.
MOMENT: Final = 0.02
ANSWER: Final = 5.0


@dataclass(frozen=True)
class Place:
    """A twin, as the host of its leader knows it; *plan* is the one that has made it."""

    application: str
    node: str
    host: str
    plan: str
    ahead: Ahead

    def ask(
        self, what: What, content: Any = None, declared: Declared | None = None, seconds: float | None = None
    ) -> Any:
        """Ask the host of the twin, and return its answer; *declared* are the classes that may be in there.

        Raises:
            ExopError: the host cannot be reached, or has no such twin within *seconds* (those of `ahead` by default).
        """
        data = self.packed(content)
        until = time.monotonic() + (self.ahead.seconds if seconds is None else seconds)
        named = {"application": self.application, "node": self.node, "plan": self.plan}
        while not (found := self.ahead.links()[self.host].call("follow", ANSWER, **named, what=what, content=data)):
            if what == "end" or time.monotonic() > until or self.ahead.over.wait(0.05):
                raise PlanError(f"{self.host} has no follower of {self.application}.{self.node}")
        return self.unpacked(bytes(found), declared or Declared())

    def packed(self, content: Any) -> bytes:
        """Encode a value for the host; large ones go beside the message."""
        self.ahead.inside = 0
        return encode(self.ahead.send(self.host, encode(content, levels=DEPTH + AROUND)))

    def unpacked(self, data: bytes, declared: Declared) -> Any:
        """Return the value that `packed` has encoded."""
        content = self.ahead.receive(self.host, decode(data, declared=Declared()))
        return decode(content, levels=DEPTH + AROUND, declared=declared)


class Twin(Standby):
    """A component that follows a leader on another host: a successor on trial, or a predecessor that is kept."""

    is_remote = True

    def __init__(
        self,
        component: Component,
        place: Place,
        there: dict[tuple[str, str], Twin],
        over: Callable[[Standby], None] = lambda _: None,
    ) -> None:
        super().__init__(component, component, over)
        self.place, self._there = place, there
        self._declared = Declared(*(port.type.items for port in component.spec.inputs))
        self._tap = FollowerTap(component, self._left)
        self._begin: Callable[[], None] = lambda: None
        self._outputs: list[Any] = []
        self._outcomes: deque[Any] = deque()
        self._given = self._done = 0
        self._begun = threading.Event()
        there[place.application, place.node] = self

    def check(self) -> None:
        """Refuse if it has not followed to the last item."""
        if self.lost is not None:
            raise PlanError(f"the follower of {self.component.node.name} cannot take over: {self.lost}")

    def answer(self, what: What, content: bytes) -> bytes:
        """Answer the feeder; in the thread of a connection."""
        reply: Any = None
        if what == "begin":
            if not self.alive and self.lost is None:
                self._begin = partial(self._make_state, *self.place.unpacked(content, Declared()))
                self.start()
            if not self._begun.wait(MOMENT):
                return b""
            self.check()
        elif what == "feed":
            for item, port, payload, rows, control in self.place.unpacked(content, self._declared):
                self._given += 1
                self.put(SletCall(item, self.component.spec.ports[port], payload, rows=rows, control=control))
            with self._news:
                self._news.wait_for(lambda: self._done == self._given or self.lost is not None, MOMENT)
            reply = [self.lost, [self._outcomes.popleft() for _ in range(len(self._outcomes))]]
        elif what == "state":
            reply = dumped(self.component.state, self.name)
        else:
            threading.Thread(target=self._over, args=(self,), name=f"exop {self.name} ends", daemon=True).start()
        return self.place.packed(reply)

    def done(self, call: SletCall, error: Fault | None, took: float) -> None:
        """Store the outcome for the feeder, which compares it."""
        outputs, self._outputs = self._outputs, []
        with self._news:
            self._done += 1
            self._outcomes.append([took, error and [*error], outputs])
            self._news.notify_all()

    def run(self) -> None:
        """Make the state, and process the calls."""
        try:
            self._begin()
        except RAISED as error:
            self.give_up(told(error))
        self._begun.set()
        super().run()

    def take_over(self, undo: list[Undo]) -> Memento | None:
        """Become the node, with the unsent output and the figures of the leader, which have arrived."""
        component = self.component
        outputs = [(one, list(one.pushed)) for one in component.outputs.values() if isinstance(one, BufferedOutput)]
        arrived, state = component.metrics, super().take_over(undo)
        for output, pending in outputs:
            output.pushed[:] = pending
        component.metrics.resume(arrived)
        return state

    def leave(self, deployment: Deployment, wiring: WiringController) -> str:
        """Stop following, and close the component unless it has taken its leader's place."""
        if self._there.get(key := (self.place.application, self.place.node)) is self:
            del self._there[key]
        return super().leave(deployment, wiring)

    def _make_state(self, late: bytes, state: bytes, merge: Any, ended: list[str]) -> None:
        component, place = self.component, self.place
        node, kind = component.node, component.spec.memento
        place.ahead.await_parts(place.host, node.name, kind)
        place.ahead.add(node.name, kind, late)
        what = f"the memento of {place.application}.{node.name}, which comes from another host"
        adopt_foreign(component, node, state, what, place.ahead.parts[node.name])
        set_progress(component, merge, ended)
        self.attach()
        component.begin()

    def _left(self, _: int, port: str, payload: Any, whole: bool) -> None:
        self._outputs.append([port, payload, whole])


class Feeder(Follower):
    """The part of a follower that is on the host of its leader: sends the calls, and takes the outcomes."""

    near = 1024
    patience = ANSWER
    place: Place

    def feed(self, place: Place, compared: Comparison | None = None) -> None:
        """Set the twin that gets the calls; its outputs are *compared*, if given."""
        self.place, self._compared = place, compared
        self.seconds, self.capacity, self._still = place.ahead.seconds, CAPACITY, STILL
        self._declared = Declared(*(port.type.items for port in self.leader.spec.outputs))
        self._open: deque[SletCall] = deque()  # sent and not answered
        self._given = self._answered = 0

    def put(self, call: SletCall) -> None:
        """Hand over a call in the leader's driver."""
        if self.lost is None:
            self._given += 1
            super().put(call)

    def limit(self, capacity: int) -> None:
        """Let about this number of items wait from now on."""
        self.throttling, self.capacity, self._still = False, max(capacity, self.near), LAST

    def settle(self) -> None:
        """Wait until the twin has processed everything; raise `PlanError` if it may not take over."""
        with self._news:
            done = self._news.wait_for(lambda: self.lost is not None or self._answered == self._given, self.seconds)
        if not done:
            self.give_up(f"{self.place.host} has not processed the last items within {self.seconds:g} s")
        self.check()

    def leave(self, deployment: Deployment, wiring: WiringController) -> str:
        """Stop following; the other host closes the twin, unless it is the node there."""
        self.stop()
        self.detach(deployment, wiring)
        return ""

    def _wait_for_room(self) -> None:
        """Slow the leader down to the pace of the twin, unless that stands still."""
        if self.lag >= 100_000:  # they are kept in memory
            self.give_up(f"too slow: {self.place.host} is {self.lag} items behind")
        self._wait(self.capacity // 2, MOMENT, still=self._still)

    def _do_next(self) -> None:
        """Send the calls that wait, and take outcomes until all have come or further calls wait."""
        while self.lost is None and not self.halting:
            calls: list[SletCall] = []
            with suppress(IndexError):  # no more calls, or following has stopped meanwhile
                while len(self._open) + len(calls) < 512:  # those of one message, and those not answered
                    calls.append(self.calls.popleft())
            try:
                self._exchange(calls)
            except RAISED as problem:  # of the other host, or of the encoding of an item
                self.give_up(f"{self.place.host}: {told(problem)}")
            if self.calls or not self._open:
                return

    def _exchange(self, calls: list[SletCall]) -> None:
        self._open.extend(calls)
        content = [[one.item, one.port.name, one.payload, one.rows, one.control] for one in calls]
        lost, outcomes = self.place.ask("feed", content, self._declared)
        for took, error, outputs in outcomes:
            call = self._open.popleft()
            if self._compared is not None:
                for port, payload, whole in outputs:
                    self._compared.add_output("new", call.item, port, payload, whole)
            self.items += call.rows  # first: the report of a trial that ends with it counts it
            self.done(call, error and Fault(*error), took)
        if self._wakes and self.lag <= self.capacity // 2:
            self._release_leader()
        with self._news:
            self._answered += len(outcomes)
            self._news.notify_all()
        if lost is not None:
            self.give_up(f"{self.place.host}: {lost}")


class RemoteTrial(Feeder, Trial):
    """A trial of a node that moves: its successor is a twin on the other host."""

    def __init__(self, step: Step, old: Component, shadow: Shadow | None, place: Place) -> None:
        Trial.__init__(self, step, old, old, shadow)
        self.feed(place, self.comparison)
        self.diverted = True  # the successor takes over on the other host

    def begin_following(self, seconds: float) -> None:
        """Take the state within *seconds*, and record the items that come from now on; everything is parked."""
        old, place = self.leader, self.place

        def look() -> tuple[bytes, bytes]:
            old.flush()
            late, parts = place.ahead.rest(place.node, old.state)
            return late, dumped(old.state, self.name, parts)

        state = old.user.run(old, "taking the memento", look, seconds)
        self._opening = [*state, old.merge.capture(), sorted(old.ended)]
        self.tap.attach()

    def make_state(self) -> None:
        """Send the state, and begin with the items that have come since."""
        self.place.ask("begin", self._opening, seconds=60.0)  # the twin is opened, and makes its state
        del self._opening
        self._begun = time.monotonic()
        self.start()

    def _compare(self, *, last: bool = False) -> None:
        """Compare the outputs so far; the *last* time all that are left, and the mementos of sinks."""
        super()._compare(last=last)
        old, kind = self.leader, self.leader.spec.memento
        if last and kind is not None and old.spec.role is Role.OMEGA and not self.comparison.found:
            state = load_memento(self.place.ask("state"), kind, self.name, declared=declared_by(kind))
            if not same(old.state, state):
                texts = (safe_repr(one, 200) for one in (old.state, state))
                self.comparison.note(Deviation("memento", self.items, "memento", *texts))


class RemoteStandby(Feeder, Standby):
    """The feeder of a predecessor that runs on where its node has been before a move."""

    def __init__(self, leader: Component, undo: list[Undo], place: Place, over: Callable[[Standby], None]) -> None:
        Standby.__init__(self, leader, leader, over)
        self.feed(place)
        undo.append(self.tap.detach)
        self.tap.attach()

    def leave(self, deployment: Deployment, wiring: WiringController) -> str:
        """Stop following, and let the other host close the predecessor, unless it is the node again."""
        super().leave(deployment, wiring)
        with suppress(ExopError):  # it ends by itself when its time is up
            self.place.ask("end")
        return ""
