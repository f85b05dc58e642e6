"""Building up the state of a successor by replaying the log that its input comes from, while the old one works.

What is replayed is what the predecessor has taken, to the item: it stands behind the end of the log by what waits in
the queue between, and in flight at drivers. The last bit is replayed while everything is parked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain
from typing import Any

from exop.errors import ExopError, NotRebuildable
from exop.model.memento import Memento
from exop.model.mesh import Node
from exop.runtime.channels.log import LogChannel
from exop.runtime.component import Component
from exop.runtime.convert import weight
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import acting_as
from exop.runtime.interrupts import check_interrupt
from exop.runtime.metrics import ComponentMetrics
from exop.runtime.pause import Pause
from exop.runtime.ways import way_into
from exop.wiring.plan import Plan, Step

#: So many rows are replayed at a time.
LOT = 5000
#: So close does the replay come to the running stream: what is just between log and slet is known when all is parked.
CLOSE = 1000
#: A stream that is too fast stands for so many seconds at a time, and so many rows are replayed then at a time.
MOMENT, LITTLE = 0.002, 200


def check_rebuilds(plan: Plan, deployment: Deployment) -> None:
    """Refuse to rebuild what the log cannot give.

    Raises:
        NotRebuildable: the reason, and what can be done.
    """
    for step in plan.steps:
        if step.verb == "replace" and step.after is not None and step.after.rebuild is not None:
            _check_slet(step.after)
            _log_of(step, deployment)


def _check_slet(node: Node) -> None:
    spec = node.slet
    if spec.state is None:
        raise _refused(node, f"{spec.name} keeps no state", "leave rebuild out")
    if spec.iterated or spec.own_driver or not spec.inputs:
        raise _refused(node, f"{spec.name} drives itself", "replace it by a slet that items are pushed to")
    if spec.has_effects:
        problem = f"{spec.name} acts on something outside of the mesh, which would happen again for every item"
        raise _refused(node, problem, "mark it effects=False if it does not, or give its state an upgrade")
    if len(spec.inputs) > 1:
        problem = f"{spec.name} has several input ports, and the log does not know the order between them"
        raise _refused(node, problem, "give its state an upgrade, or say lose_state=True")
    if spec.inputs[0].type.punctuation:
        raise _refused(node, "its port takes punctuations, which a log does not keep", "give its state an upgrade")
    if node.suspended:
        raise _refused(node, "the node is suspended", "resume it first")


def _log_of(step: Step, deployment: Deployment) -> LogChannel:
    """The log from which the input of a node comes."""
    assert step.after is not None
    node = step.after
    name = node.ports[node.slet.inputs[0].name]
    channel = deployment.channels.get(name)
    if step.before is None or name not in step.before.inputs().values():
        raise _refused(node, f"its input is connected to {name!r} by this change", "make two changes of it")
    if not isinstance(channel, LogChannel):
        kind = channel.kind if channel is not None else "new"
        raise _refused(node, f"its input {name!r} is no log (it is {kind})", "give its state an upgrade")
    if channel.start > channel.began:
        problem = f"the log {name!r} begins with row {channel.start}, and the application began at {channel.began}"
        raise _refused(node, problem, "let the log keep more (keep='all') from the start, or say lose_state=True")
    return channel


@dataclass
class Rebuild:
    """One successor that is being built up.

    Attributes:
        position: The offset up to which it has replayed.
    """

    deployment: Deployment
    step: Step
    successor: Component
    _largest: int = 0

    def __post_init__(self) -> None:
        self.log = _log_of(self.step, self.deployment)
        self.position = self.log.began
        port = self.successor.spec.inputs[0]
        self._entry = way_into(self.successor, port)  # bound to nothing yet: what the slet emits is dropped
        self._place = f"{self.step.node}.{port.name}"
        self._queue = f"{self.log.name} -> {self._place}"

    def catch_up(self) -> None:
        """Replay while the old one works, until the end is near.

        A stream that is as fast as the replay is slowed down for that: it stands for moments.

        Raises:
            NotRebuildable: the slet fails in it.
            PlanError: a driver does not come to a safe point.
        """
        before = 2 * self._left()
        while 0 < (left := self._left()) <= 0.8 * before:
            self._replay(self._near())
            before = left
        while self._left() > 0:
            with Pause(self.deployment) as pause:
                pause.stop()
                until = time.perf_counter() + MOMENT
                while self._left() > 0 and time.perf_counter() < until:
                    self._replay(min(self.position + LITTLE, self._near()))

    def completed(self) -> Memento | None:
        """Replay the last bit, up to where the predecessor stands; everything is parked.

        Raises:
            NotRebuildable: the slet fails on it.
        """
        end = self.log.end - self._waiting()
        if end < self.position:
            problem = f"it has replayed {self.position} rows, and the old one stands at {end}"
            raise _refused(self._node, problem, "make the change once more")
        with acting_as(None):  # a slet that raises is refused here, and suspends no driver
            self._replay(end)
        self.successor.metrics = ComponentMetrics()
        return self.successor.state

    @property
    def _node(self) -> Node:
        return self.successor.node

    def _near(self) -> int:
        """So far may be replayed while the old one works: it has taken that for certain."""
        end = self.log.end  # before what waits is counted, which may grow meanwhile
        return max(self.position, end - self._waiting() - max(CLOSE, 2 * self._largest))

    def _left(self) -> int:
        return self._near() - self.position

    def _replay(self, end: int) -> None:
        while self.position < end:
            check_interrupt()
            till = min(end, self.position + LOT)
            try:
                for piece in self._together(self.log.pieces(self.position, till)):
                    self._entry.push_batch(piece)
            except ExopError as problem:
                raise _refused(self._node, str(problem), "repair the slet, or the log") from problem
            self.position = till

    def _together(self, pieces: list[Any]) -> list[Any]:
        """Items that came one by one are replayed together; what takes batches gets them as they came."""
        self._largest = max([self._largest, *map(weight, pieces)])
        if self.successor.spec.inputs[0].type.form != "item" or not all(type(piece) is list for piece in pieces):
            return pieces
        return [list(chain.from_iterable(pieces))]

    def _waiting(self) -> int:
        """Return the number of rows between the log and the slet: in a queue, and in the inlet."""
        queue = self.deployment.inserted.get(self._queue)
        rows = sum(_rows(kind, payload) for kind, payload in queue.capture()["entries"]) if queue is not None else 0
        return rows + sum(_rows(work.way, work.payload) for work in self.deployment.inlets.at(self._place))


def _rows(way: str, payload: object) -> int:
    """Count the items of an in-flight payload: an item, a batch, or a control item."""
    return 1 if way in ("push", "item") else weight(payload) if way in ("push_batch", "batch") else 0


def _refused(node: Node, problem: str, cure: str) -> NotRebuildable:
    return NotRebuildable(node=node.name, problem=problem, cure=cure)
