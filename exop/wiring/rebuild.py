"""Rebuilds the state of a successor from the log of its input, while the predecessor works.

It replays exactly the items that the predecessor has taken: all but those in the queue between, and in flight. The last
of them are replayed in the cut, while what pushes into the log, and the predecessor, stand still.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import Final

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

#: The number of rows to replay at a time.
LOT: Final = 5000
#: The replay stops so many rows before the end of the log: which of them were taken is known in the cut.
CLOSE: Final = 1000
#: A stream that is too fast is stopped for so many seconds at a time; so many rows are replayed at a time then.
MOMENT: Final = 0.002
LITTLE: Final = 200


def check_rebuilds(plan: Plan, deployment: Deployment) -> None:
    """Raise `NotRebuildable` for a state that the log cannot give."""
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
    """Return the log from which the input of a node comes."""
    node = step.after
    assert node is not None
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


class Rebuild:
    """The rebuilding of one successor; `position` is the offset up to which it has replayed."""

    def __init__(self, deployment: Deployment, step: Step, successor: Component) -> None:
        self.log = _log_of(step, deployment)
        self.position = self.log.began
        port = successor.spec.inputs[0]
        self._deployment = deployment
        self._successor = successor
        self._single = port.type.form == "item"
        self._entry = way_into(successor, port)  # bound to nothing yet: what the slet emits is dropped
        self._place = f"{step.node}.{port.name}"
        self._largest = 0

    def catch_up(self) -> None:
        """Replay until the end is near; a stream that is as fast as the replay is stopped for moments."""
        before = 2 * self._left()
        while 0 < (left := self._left()) <= 0.8 * before:
            self._replay(self._near())
            before = left
        while self._left() > 0:
            with Pause(self._deployment) as pause:
                pause.stop()
                until = time.perf_counter() + MOMENT
                while self._left() > 0 and time.perf_counter() < until:
                    self._replay(min(self.position + LITTLE, self._near()))

    def completed(self) -> Memento | None:
        """Replay the last items, up to where the predecessor stands, which is parked."""
        end = self.log.end - self._waiting()
        if end < self.position:
            problem = f"it has replayed {self.position} rows, and the old one stands at {end}"
            raise _refused(self._successor.node, problem, "make the change once more")
        with acting_as(None):  # a slet that raises is refused here, and suspends no driver
            self._replay(end)
        self._successor.metrics = ComponentMetrics()
        return self._successor.state

    def _near(self) -> int:
        """The offset up to which the predecessor has certainly taken everything."""
        end = self.log.end  # before the items that wait are counted, which may become more meanwhile
        return max(self.position, end - self._waiting() - max(CLOSE, 2 * self._largest))

    def _left(self) -> int:
        return self._near() - self.position

    def _replay(self, end: int) -> None:
        while self.position < end:
            check_interrupt()
            till = min(end, self.position + LOT)
            try:
                pieces = self.log.pieces(self.position, till)
                self._largest = max([self._largest, *map(weight, pieces)])
                if self._single and all(type(piece) is list for piece in pieces):
                    pieces = [list(chain.from_iterable(pieces))]  # single items are replayed together
                for piece in pieces:
                    self._entry.push_batch(piece)
            except ExopError as problem:
                raise _refused(self._successor.node, str(problem), "repair the slet, or the log") from problem
            self.position = till

    def _waiting(self) -> int:
        """Return the number of rows between the log and the slet: in a queue, and in the inlet."""
        queue = self._deployment.inserted.get(f"{self.log.name} -> {self._place}")
        entries = queue.capture()["entries"] if queue is not None else []
        found = [*entries, *((work.way, work.payload) for work in self._deployment.inlets.at(self._place))]
        batches = sum(weight(payload) for way, payload in found if way in ("push_batch", "batch"))
        return batches + sum(way in ("push", "item") for way, _ in found)


def _refused(node: Node, problem: str, cure: str) -> NotRebuildable:
    return NotRebuildable(node=node.name, problem=problem, cure=cure)
