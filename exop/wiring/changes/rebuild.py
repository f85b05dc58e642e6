"""Rebuilding the state of a successor from the log of its input, while the predecessor works.

Exactly the events that the predecessor has processed are replayed: all but those that wait between the log and the slet
or are in flight. If windows or other slets are between the log and the slet, fresh copies of them process the events of
the log. The last events are replayed in the cut, while everything that pushes into the log stands still.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from typing import Any, Final

from exop.errors import ExopError, NotRebuildable
from exop.model.items import CONTROL
from exop.model.meshes.mesh import Node
from exop.model.slets.memento import Memento
from exop.model.slets.ports import node_at
from exop.runtime.channels.base import Outlet, channel_settings
from exop.runtime.channels.log import LogChannel
from exop.runtime.channels.queue import Buffered, Waiting
from exop.runtime.channels.window import WindowChannel, timed_by
from exop.runtime.compiler import compile_entry
from exop.runtime.component import Component
from exop.runtime.dataflow.batches import cut, weight
from exop.runtime.dataflow.entry import Entry, Method, count_items
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import acting_as
from exop.runtime.log.memory import Position
from exop.runtime.pause import Pause
from exop.runtime.supervision.interrupts import check_interrupt
from exop.safe_repr import error_text
from exop.wiring.changes.plan import Plan
from exop.wiring.graph import ids
from exop.wiring.shadow.comparison import same

#: The number of rows to replay at a time.
BATCH: Final = 5000
#: The number of rows before the end of the log at which the replay stops: the cut shows which of them were processed.
MARGIN: Final = 1000
#: Seconds for which a stream that is too fast is stopped at a time, and the number of rows to replay at a time then.
MOMENT: Final = 0.002
SMALL_BATCH: Final = 200
#: The cure if the log cannot give the state.
OTHERWISE: Final = "give the state an upgrade, or say lose_state=True"


@dataclass(frozen=True)
class Hop:
    """A channel on the path from the log to a port: between the output port *source* and the input port *to*."""

    channel: str
    source: str
    to: str


def check_rebuilds(plan: Plan, deployment: Deployment) -> None:
    """Raise `NotRebuildable` if the log cannot give the state of a successor."""
    for step in plan.steps:
        node = step.after
        if node is None or node.rebuild is None:
            continue
        spec = node.slet
        if step.before is None:
            raise _refused(node, "it replaces no slet", "leave rebuild out")
        if spec.state is None and spec.tie is None:
            raise _refused(node, f"{spec.name} keeps no state", "leave rebuild out")
        if spec.iterated or (spec.own_driver and spec.tie is None) or not spec.inputs:
            raise _refused(node, f"{spec.name} drives itself", "replace it by a slet that items are pushed to")
        if spec.has_effects:
            problem = f"{spec.name} acts on something outside of the mesh, which would happen again for every item"
            raise _refused(node, problem, "mark it effects=False if it does not, or give its state an upgrade")
        if node.suspended:
            raise _refused(node, "the node is suspended", "resume it first")
        if node.group is not None:
            problem = f"the log has the items of all members of the group {node.group!r}"
            raise _refused(node, problem, OTHERWISE)
        _log_of(node, deployment)


def _log_of(node: Node, deployment: Deployment) -> tuple[LogChannel, list[list[Hop]], Position]:
    """Return the log of the inputs of a node, the path to each of its ports in the log's order, and where it began."""
    paths = [_path_to(node, deployment, port) for port in node.inputs()]
    names = sorted({path[0].channel for path in paths})
    if len(names) > 1:
        problem = f"its inputs come from several logs ({', '.join(names)}), which do not keep the order between them"
        raise _refused(node, problem, f"let both streams pass one log, from which its ports are fed, or {OTHERWISE}")
    log = deployment.channels[names[0]]
    assert isinstance(log, LogChannel)
    if len(paths) > 1:
        paths.sort(key=lambda path: log.order.index(path[0].to))
        passed = [hop.to for path in paths for hop in path]
        queues = [one for one in deployment.inserted if one.rpartition(" -> ")[2] in passed]
        queues += [hop.channel for path in paths for hop in path if deployment.channels[hop.channel].buffered]
        if queues or len({*passed}) < len(passed):
            by = f"by way of the queue {queues[0]!r}" if queues else "by one slet, without an order between them"
            cure = f"connect each to the log by slets of its own, without queues, or {OTHERWISE}"
            raise _refused(node, f"several of its ports are fed {by}", cure)
    since = _since(node, deployment, log.name, paths)
    if log.start > since.offset:
        problem = f"the log {log.name!r} begins with row {log.start}, and {node.name} began at {since.offset}"
        raise _refused(node, problem, "let the log keep more (keep='all') from the start, or say lose_state=True")
    return log, paths, since


def _since(node: Node, deployment: Deployment, log: str, paths: Iterable[list[Hop]]) -> Position:
    """Return the position in the log from which on all input of a node has come from it, by these paths."""
    between = [node_at(hop.source, deployment.mesh.nodes)[0] for path in paths for hop in path[1:]]
    begun = dict[str, tuple[int, int]]()
    for name in (node.name, *between):
        trace = deployment.lineage.get(name, {})
        if isinstance(trace, str) or log not in trace or begun.setdefault(log, trace[log]) != trace[log]:
            before = trace if isinstance(trace, str) else f"it began earlier than {node.name if log in trace else log}"
            raise _refused(node, f"the log {log!r} does not give all that {name} has processed: {before}", OTHERWISE)
        if dead := deployment.components[name].trouble.dead:
            problem = f"{name} has set aside {len(dead)} items as dead letters, which the log would give it"
            cure = f"retry them first (exop item retry {deployment.name}.{name}), or {OTHERWISE}"
            raise _refused(node, problem, cure)
    return Position(*begun[log])


def _path_to(node: Node, deployment: Deployment, port: str) -> list[Hop]:
    """Return the path from a log to a port of the node; the slets on it must depend on nothing but their one input."""
    mesh, name, to, hops = deployment.mesh, node.ports[port], f"{node.name}.{port}", list[Hop]()
    if name not in mesh.nodes[node.name].inputs().values():
        raise _refused(node, f"its input is connected to {name!r} by this change", "make two changes of it")
    if node.slet.ports[port].pulled:
        raise _refused(node, f"it reads {name!r} as it was at the time", OTHERWISE)
    while not isinstance(channel := deployment.channels[name], LogChannel):
        producers, kind = mesh.producers(name), channel.kind
        if kind not in ("direct", "queue", "window") or len(producers) != 1 or channel.live:
            fed = kind if len(producers) == 1 else f"{kind}, fed by {len(producers)} slets"
            raise _refused(node, f"its input {name!r} is no log (it is {fed})", OTHERWISE)
        before, out = producers[0]
        if isinstance(channel, WindowChannel) and channel.unpunctuated and timed_by(channel) is not None:
            problem = f"the window {name!r} is by time, and no punctuations come from {before.name}"
            raise _refused(node, problem, f"put a stock:watermark behind {before.name}, or {OTHERWISE}")
        taken, spec = before.inputs(), before.slet
        pulled = any(spec.ports[port].pulled for port in taken)
        if spec.iterated or spec.own_driver or spec.has_effects or len(taken) != 1 or pulled:
            problem = f"its input {name!r} is no log (it is {kind}), and {before.name} before it cannot be replayed"
            raise _refused(node, problem, f"put a log behind {before.name}, or {OTHERWISE}")
        hops.insert(0, Hop(name, f"{before.name}.{out}", to))
        ((port, name),) = taken.items()
        to = f"{before.name}.{port}"
        if any(hop.to == to for hop in hops):
            raise _refused(node, f"its input {name!r} is part of a cycle without a log", OTHERWISE)
    return [Hop(name, "", to), *hops]


@dataclass
class ReplayBuffer:
    """Holds back the replayed events that wait, in the running application, at the same place of the path."""

    _deployment: Deployment
    _to: Entry
    _places: list[str]
    _queues: list[str]
    _inside: Callable[[], int] = int
    _events: deque[tuple[Method, Any]] = field(default_factory=deque)
    count: int = 0

    def __post_init__(self) -> None:
        self.entry = Entry(*(partial(self._put, method) for method in ("push", "push_batch", "control")))

    def put(self, payload: Any) -> None:
        """Take a payload of the log."""
        if isinstance(payload, CONTROL):
            self._put("control", payload)
        elif isinstance(payload, list) and len(payload) == 1:
            self._put("push", payload[0])
        else:
            self._put("push_batch", payload)

    def pass_on(self, kept: int) -> bool:
        """Pass on all but the last *kept* events; return whether that many are left."""
        while self.count > kept:
            self.pass_one(kept)
        return self.count == kept

    def fits(self, kept: int) -> bool:
        """Whether the next payload as a whole is before the last *kept* events."""
        return self.count > kept and (count_items(*self._events[0]) or 1) <= self.count - kept

    def pass_one(self, kept: int) -> None:
        """Pass on the next payload, or the part of it that is before the last *kept* events."""
        method, payload = self._events.popleft()
        size, most = count_items(method, payload) or 1, self.count - kept
        if size > most:
            self._events.appendleft((method, cut(payload, most, size)))
            payload, size = cut(payload, 0, most), most
        self.count -= size
        getattr(self._to, method)(payload)

    def waiting(self) -> int:
        """Return the number of events that wait at this place in the running application."""
        found: list[Waiting] = []
        for name in self._queues:
            queue = self._deployment.inserted.get(name, self._deployment.channels.get(name))
            found += queue.capture()["entries"] if isinstance(queue, Buffered) else ()
        for place in self._places:
            found += ((work.method, work.payload) for work in self._deployment.inlets.at(place))
        waiting = sum(weight(payload) if method == "push_batch" else 1 for method, payload in found)
        return waiting + self._inside()

    def _put(self, method: Method, payload: Any) -> None:
        size = 1 if method == "control" else count_items(method, payload)
        if size:
            self._events.append((method, payload))
            self.count += size


class Rebuild:
    """The rebuilding of one successor.

    Attributes:
        channels: The log, and the channels between it and the slet: nothing is pushed into them in the cut.
        position: The position up to which it has read the log.
    """

    def __init__(self, deployment: Deployment, successor: Component) -> None:
        self.log, self._paths, self.position = _log_of(successor.node, deployment)
        self.channels = {hop.channel for path in self._paths for hop in path}
        self._deployment = deployment
        self._successor = successor
        self._copies: list[Component] = []
        self._stages = [self._built(path) for path in self._paths]  # the buffers of each path, from the log on
        form = successor.spec.ports[node_at(self._paths[0][-1].to, deployment.mesh.nodes)[1]].type.form
        # Single items are replayed together.
        self._merges = len(self._paths) == len(self._stages[0]) == 1 and form == "item"
        self._largest = 0
        if successor.tie is not None:
            successor.tie.replaying = True

    def catch_up(self) -> None:
        """Replay until the end is near; a stream that is as fast as the replay is stopped for short times."""
        before, (left, end, kept) = math.inf, self._near()
        while 0 < left <= 0.8 * before:
            self._replay(end, kept)
            before, (left, end, kept) = left, self._near()
        while left > 0:
            with Pause(self._deployment) as pause:
                pause.stop()
                until = time.perf_counter() + MOMENT
                while left > 0 and time.perf_counter() < until:
                    self._replay(end, kept, most=SMALL_BATCH)
                    left, end, kept = self._near()
        self._settle(None)

    def completed(self, timeout: float) -> Memento | None:
        """Replay the last events that the predecessor has processed, and return the state; everything is parked.

        An engine may take *timeout* seconds to process them.
        """
        waiting = [[stage.waiting() for stage in stages] for stages in self._stages]
        with acting_as(None):  # a slet that raises is refused here, and suspends no driver
            self._replay(self.log.position, max(found[0] for found in waiting), waiting)
        self._check_copies()
        # A conditional update may have taken effect meanwhile.
        _since(self._successor.node, self._deployment, self.log.name, self._paths)
        self._settle(timeout)
        if self._successor.tie is not None:
            self._successor.tie.replaying = False
        self.close()
        self._successor.reset_metrics()
        return self._successor.state

    def close(self) -> None:
        """Close the copies of slets."""
        while self._copies:
            self._copies.pop().exit()

    def _settle(self, timeout: float | None) -> None:
        """Wait until a successor with threads of its own has processed what was replayed."""
        successor = self._successor
        if successor.tie is not None:
            successor.user.run(successor, "processing the log", successor.instance.quiesce, timeout)
            successor.instance.proceed()

    def _unprocessed(self, port: str) -> int:
        """Return the number of events that have arrived at a port of an engine, and that its successor will get."""
        predecessor = self._deployment.components[self._successor.node.name]
        if predecessor.tie is None:
            return 0
        return predecessor.tie.arrived(port) - predecessor.tie.committed.inputs.get(port, 0)

    def _built(self, path: list[Hop]) -> list[ReplayBuffer]:
        """Make the copies on a path to the successor, the last one first; return the buffers in front of them."""
        nodes = self._deployment.mesh.nodes
        node, port = node_at(path[-1].to, nodes)
        end = compile_entry(self._successor, self._successor.spec.ports[port])  # what the slet emits is dropped
        entry = Entry(end.push, end.push_batch, end.show)
        stages: list[ReplayBuffer] = []
        for hop in reversed(path):
            channel, edge = self._deployment.channels[hop.channel], f"{hop.channel} -> {hop.to}"
            front, queues = list[str](), list[str]()
            inside = partial(self._unprocessed, port) if hop is path[-1] else int
            if hop.source:
                window = f"window {hop.channel} | {hop.to}"
                front = [hop.source, f"channel {hop.channel}", ids.channel_endpoint(hop.channel), window]
                queues = [hop.channel, ids.input_queue(hop.channel)]
            if isinstance(channel, WindowChannel):
                stages.insert(0, ReplayBuffer(self._deployment, entry, [hop.to], [edge], inside))
                fresh = type(channel)(channel.name, **channel_settings(type(channel), channel.asked))
                into = fresh.entry([Outlet(hop.to, stages[0].entry)])
                stages.insert(0, ReplayBuffer(self._deployment, into, front, queues))
            else:
                stages.insert(0, ReplayBuffer(self._deployment, entry, [*front, hop.to], [*queues, edge], inside))
            if hop.source:
                node, port = node_at(hop.source, nodes)
                entry = self._copied(self._deployment.components[node], port, path, stages[0].entry)
        return stages

    def _copied(self, component: Component, out: str, path: list[Hop], to: Entry) -> Entry:
        """Return the entry of a fresh copy of a slet."""
        node = component.node
        copy = Component(f"{component.id} (copy)", component.application, node, lambda _: None, None, component.user)
        self._copies.append(copy)
        copy.enter()
        copy.bind({out: to})
        ends = (node_at(hop.to, self._deployment.mesh.nodes) for hop in path)
        (port,) = (port for name, port in ends if name == node.name)
        return compile_entry(copy, copy.spec.ports[port])

    def _check_copies(self) -> None:
        """Refuse the state if a slet on the path gives other items for the same ones: its copy has another state."""
        node = self._successor.node
        for copy in self._copies:
            if not same(copy.state, self._deployment.components[copy.node.name].state):
                problem = f"{copy.node.name}, between the log and the slet, has another state than the log gives it now"
                raise _refused(node, problem, OTHERWISE)

    def _near(self) -> tuple[int, Position, int]:
        """Return the number of events to replay, the end of the log, and the number of events to keep before it."""
        end = self.log.position  # read before the waiting events are counted, of which more may come meanwhile
        kept = max(stages[0].waiting() for stages in self._stages) + max(MARGIN, 2 * self._largest)
        return end.offset - self.position.offset + self._stages[0][0].count - kept, end, kept

    def _replay(
        self, end: Position, kept: int, waiting: list[list[int]] | None = None, most: int | None = None
    ) -> None:
        """Replay up to *end* (or *most* rows) all but *kept* events; in the cut all but those *waiting*."""
        try:
            while True:
                check_interrupt()
                till = end  # several ports must not get a batch in two parts
                if len(self._stages) == 1:
                    till = min(end, Position(self.position.offset + (most or BATCH)))
                events = self.log.events(self.position, till)
                rows = (weight(payload) for payload in events if not isinstance(payload, CONTROL))
                self._largest = max(self._largest, *rows, 0)
                for payload in _merged(events) if self._merges else events:
                    for stages in self._stages:
                        stages[0].put(payload)
                self.position = till
                whole = self._pass_on(max(0, kept - (end.offset - till.offset)), waiting if till == end else None)
                if till == end or most:
                    break
        except Exception as error:
            problem = str(error) if isinstance(error, ExopError) else error_text(error)
            raise _refused(self._successor.node, problem, "repair the slet, or the log") from error
        if waiting is not None and not whole:
            problem = "some of its inputs have come farther than others, or less far than the replayed events"
            raise _refused(self._successor.node, problem, "make the change once more")

    def _pass_on(self, kept: int, waiting: list[list[int]] | None) -> bool:
        """Pass on what the predecessor has certainly processed; return whether only *waiting* events are left."""
        if len(self._stages) == 1:
            kept_by = waiting[0] if waiting else [kept, *(stage.waiting() + MARGIN for stage in self._stages[0][1:])]
            found = [stage.pass_on(count) for stage, count in zip(self._stages[0], kept_by, strict=True)]
            return all(found)
        if waiting is not None and any(found[0] != kept or any(found[1:]) for found in waiting):
            return False
        while self._stages[0][0].fits(kept):  # each payload goes to the end of its path before the next path gets it
            for stages in self._stages:
                stages[0].pass_one(kept)
                for stage in stages[1:]:
                    stage.pass_on(0)
        return self._stages[0][0].count == kept


def _merged(events: Iterable[Any]) -> Iterator[Any]:
    """Yield the payloads, consecutive lists joined into one."""
    for lists, run in groupby(events, lambda payload: type(payload) is list):
        if lists:
            yield list(chain.from_iterable(run))
        else:
            yield from run


def _refused(node: Node, problem: str, cure: str) -> NotRebuildable:
    return NotRebuildable(node=node.name, problem=problem, cure=cure)
