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
from functools import partial
from itertools import chain, groupby
from typing import Any, Final, NamedTuple

from exop.errors import NotRebuildable, counted, told
from exop.model.items import CONTROL
from exop.model.meshes.fragments import REMOTE
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
from exop.runtime.dataflow.entry import Entry, Method, fan_out, method_for
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import acting_as
from exop.runtime.log.memory import Position
from exop.runtime.pause import Pause
from exop.runtime.supervision.interrupts import check_interrupt
from exop.wiring.changes.plan import Plan
from exop.wiring.graph import ids
from exop.wiring.shadow.comparison import same

#: The cure if the log cannot give the state.
OTHERWISE: Final = "give the state an upgrade, or say lose_state=True (--lose-state)"


class Hop(NamedTuple):
    """A channel on the path from the log to a port: between the output port *source* and the input port *to*."""

    channel: str
    source: str
    to: str

    @property
    def queue(self) -> str:
        """The queue that may stand between the channel and the port."""
        return f"{self.channel} -> {self.to}"


def check_rebuilds(plan: Plan, deployment: Deployment) -> None:
    """Raise `NotRebuildable` if the log cannot give the state of a successor."""
    for step in plan.steps:
        if (node := step.after) is None or node.rebuild is None:
            continue
        spec = node.slet
        if step.before is None:
            raise _refused(node, "it replaces no slet", "leave rebuild out")
        if spec.state is None and spec.tie is None:
            raise _refused(node, f"{spec.name} keeps no state", "say lose_state=True (--lose-state) instead of rebuild")
        if spec.iterated or (spec.own_driver and spec.tie is None) or not spec.inputs:
            raise _refused(node, f"{spec.name} drives itself", "replace it by a slet that items are pushed to")
        if step.exclusive:
            raise _refused(node, "the old slet is closed before it opens, so it cannot catch up beside it", OTHERWISE)
        if spec.has_effects:
            problem = f"{spec.name} acts on something outside of the mesh, which would happen again for every item"
            raise _refused(node, problem, "mark it effects=False if it does not, or give its state an upgrade")
        if node.suspended:
            raise _refused(node, "the node is suspended", "resume it first")
        if node.group is not None:
            raise _refused(node, f"the log has the items of all members of the group {node.group!r}", OTHERWISE)
        _log_of(node, deployment)


def _log_of(node: Node, deployment: Deployment) -> tuple[LogChannel, list[list[Hop]], Position]:
    """Return the log of the inputs of a node, the path to each of its ports in the log's order, and where it began."""
    paths = [_path_to(node, deployment, port) for port in node.inputs()]
    if len(names := sorted({path[0].channel for path in paths})) > 1:
        problem = f"its inputs come from several logs ({', '.join(names)}), which do not keep the order between them"
        raise _refused(node, problem, f"let all pass one log that feeds its ports, from the start, or {OTHERWISE}")
    log = deployment.channels[names[0]]
    assert isinstance(log, LogChannel)
    if len(paths) > 1:
        paths.sort(key=lambda path: log.order.index(path[0].to))
        hops = [hop for path in paths for hop in path]
        queues = [hop.queue for hop in hops if hop.queue in deployment.inserted]
        queues += [hop.channel for hop in hops if deployment.channels[hop.channel].buffered]
        if queues or len({hop.to for hop in hops}) < len(hops):
            by = f"by way of the queue {queues[0]!r}" if queues else "by one slet, without an order between them"
            cure = f"from the start, connect each to the log by slets of its own, without queues, or {OTHERWISE}"
            raise _refused(node, f"several of its ports are fed {by}", cure)
    since = _since(node, deployment, log.name, paths)
    if log.start > since.offset:
        problem = f"the log {log.name!r} begins with row {log.start}, and {node.name} began at {since.offset}"
        raise _refused(node, problem, f"let the log keep more (keep='all') from the start, or {OTHERWISE}")
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
            problem = f"{name} has set aside {counted(len(dead), 'dead letter')}, which the log would give it"
            cure = f"retry them first (exop item retry {deployment.name}.{name}), or {OTHERWISE}"
            raise _refused(node, problem, cure)
    return Position(*begun[log])


def _path_to(node: Node, deployment: Deployment, port: str) -> list[Hop]:
    """Return the path from a log to a port of the node; the slets on it must depend on nothing but their one input."""
    mesh, name, to, hops = deployment.mesh, node.ports[port], f"{node.name}.{port}", list[Hop]()
    if name not in mesh.nodes[node.name].inputs().values():
        raise _refused(node, f"its input is connected to {name!r} by this change", "rebuild it in the change before")
    if node.slet.ports[port].pulled:
        raise _refused(node, f"it reads {name!r} as it was at the time", OTHERWISE)
    while not isinstance(channel := deployment.channels[name], LogChannel):
        producers, kind = mesh.producers(name), channel.kind
        if kind not in ("direct", "queue", "window") or len(producers) != 1 or channel.live:
            fed = kind if len(producers) == 1 else f"{kind}, fed by {len(producers)} slets"
            fed = "a connector to another host" if kind in REMOTE else fed
            raise _refused(node, f"its input {name!r} is no log (it is {fed})", OTHERWISE)
        before, out = producers[0]
        if isinstance(channel, WindowChannel) and channel.unpunctuated and timed_by(channel) is not None:
            problem = f"the window {name!r} is by time, and no punctuations come from {before.name}"
            raise _refused(node, problem, f"put a stock:watermark behind {before.name} from the start, or {OTHERWISE}")
        taken, spec = before.inputs(), before.slet
        pulled = any(spec.ports[port].pulled for port in taken)
        if spec.iterated or spec.own_driver or spec.has_effects or len(taken) != 1 or pulled:
            problem = f"its input {name!r} is no log (it is {kind}), and {before.name} before it cannot be replayed"
            raise _refused(node, problem, f"put a log behind {before.name} from the start, or {OTHERWISE}")
        hops.insert(0, Hop(name, f"{before.name}.{out}", to))
        ((port, name),) = taken.items()
        to = f"{before.name}.{port}"
        if any(hop.to == to for hop in hops):
            raise _refused(node, f"its input {name!r} is part of a cycle without a log", OTHERWISE)
    return [Hop(name, "", to), *hops]


class Gate(Entry):
    """An entry that holds back the last events at a place of a path: as many as wait there in the running application.

    Attributes:
        waiting: Returns the number of events that wait at the place in the running application.
        kept: The number of events to hold back.
        count: The number of events that it holds.
    """

    def __init__(self, to: Entry, waiting: Callable[[], int], *, whole: bool = False) -> None:
        super().__init__(*(partial(self._put, method) for method in ("push", "push_batch", "control")))
        self.waiting = waiting
        self.kept = self.count = 0
        self._to, self._whole = to, whole
        self._events = deque[tuple[Method, Any]]()

    def release(self) -> None:
        """Pass on all but the last `kept` events; if it takes batches as a *whole*, it does not divide any."""
        while self.count > self.kept:
            method, payload = self._events[0]
            size, most = _size(method, payload), self.count - self.kept
            if size > most and self._whole:
                break
            self._events.popleft()
            if size > most:
                self._events.appendleft((method, cut(payload, most, size)))
                payload, size = cut(payload, 0, most), most
            self.count -= size
            getattr(self._to, method)(payload)

    def _put(self, method: Method, payload: Any) -> None:
        if size := _size(method, payload):
            self._events.append((method, payload))
            self.count += size
            self.release()


class Rebuild:
    """The rebuilding of one successor.

    Attributes:
        channels: The log, and the channels between it and the slet: nothing is pushed into them in the cut.
        position: The position up to which it has read the log.
    """

    def __init__(self, deployment: Deployment, successor: Component) -> None:
        self.log, self._paths, self.position = _log_of(successor.node, deployment)
        paths = self._paths
        self.channels = {hop.channel for path in paths for hop in path}
        self._deployment = deployment
        self._successor = successor
        self._copies: list[Component] = []
        self._inner: list[Gate] = []  # those of each path from the log on
        self._branches = len(paths) > 1
        entries = [self._built(path) for path in paths]
        self._fronts = [partial(self._waiting, [path[0].to], path[0].queue) for path in paths]
        self._front = Gate(fan_out(entries), lambda: max(one() for one in self._fronts), whole=self._branches)
        form = successor.spec.ports[node_at(paths[0][-1].to, deployment.mesh.nodes)[1]].type.form
        self._merges = len(self.channels) == 1 and not self._branches and form == "item"  # single items come together
        self._largest = 0
        if successor.tie is not None:
            successor.tie.replaying = True

    def catch_up(self) -> None:
        """Replay until the end is near; a stream that is as fast as the replay is stopped for short times."""
        before, left = math.inf, self._measured()
        while 0 < left <= 0.8 * before:
            self._replay()
            before, left = left, self._measured()
        while self._measured() > 0:
            with Pause(self._deployment) as pause:
                pause.stop()
                self._replay(200, until=time.perf_counter() + 0.002)
        self._settle(None)

    def completed(self, timeout: float) -> Memento | None:
        """Replay the last events that the predecessor has processed, and return the state; everything is parked.

        An engine may take *timeout* seconds to process them.
        """
        self._measured(exactly=True)
        with acting_as(None):  # a slet that raises is refused here, and suspends no driver
            self._replay()
        inner = (gate.count != gate.waiting() for gate in self._inner)
        if any(one() != self._front.count for one in self._fronts) or any(inner):
            problem = "some of its inputs have come farther than others, or less far than the replayed events"
            raise _refused(self._successor.node, problem, "make the change once more")
        for copy in self._copies:
            if not same(copy.state, self._deployment.components[copy.node.name].state):
                problem = f"{copy.node.name}, between the log and the slet, has another state than the log gives it now"
                raise _refused(self._successor.node, problem, OTHERWISE)
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
        if (successor := self._successor).tie is not None:
            successor.user.run(successor, "processing the log", successor.instance.quiesce, timeout)
            successor.instance.proceed()

    def _waiting(self, places: list[str], *queues: str) -> int:
        """Return the number of events that wait at these places and in these queues of the running application."""
        deployment, found = self._deployment, list[Waiting]()
        for name in queues:
            queue = deployment.inserted.get(name, deployment.channels.get(name))
            found += queue.capture()["entries"] if isinstance(queue, Buffered) else ()
        for place in places:
            found += ((work.method, work.payload) for work in deployment.inlets.at(place))
        node, port = node_at(places[0], deployment.mesh.nodes)
        tie = deployment.components[node].tie  # what has arrived at an engine, its successor may get
        inside = 0 if tie is None else tie.arrived(port) - tie.committed.inputs.get(port, 0)
        return inside + sum(_size(method, payload) for method, payload in found)

    def _built(self, path: list[Hop]) -> Entry:
        """Make the copies on a path to the successor, and gates between them; return the entry behind the log."""
        _, port = node_at(path[-1].to, self._deployment.mesh.nodes)
        end = compile_entry(self._successor, self._successor.spec.ports[port])  # what the slet emits is dropped
        entry, gates = Entry(end.push, end.push_batch, end.show), list[Gate]()
        for hop in reversed(path[1:]):
            channel = self._deployment.channels[hop.channel]
            entry = behind = Gate(entry, partial(self._waiting, [hop.to], hop.queue))
            if isinstance(channel, WindowChannel):
                fresh = type(channel)(channel.name, **channel_settings(type(channel), channel.asked))
                entry = fresh.entry([Outlet(hop.to, entry)])
            window = f"window {hop.channel} | {hop.to}"
            front = [hop.source, f"channel {hop.channel}", ids.channel_endpoint(hop.channel), window]
            before = Gate(entry, partial(self._waiting, front, hop.channel, ids.input_queue(hop.channel)))
            entry = self._copied(hop.source, before)
            gates = [before, behind, *gates]
        self._inner += gates
        return entry

    def _copied(self, source: str, to: Entry) -> Entry:
        """Return the entry of a fresh copy of a slet with one input, whose output port *source* leads to an entry."""
        name, out = node_at(source, self._deployment.mesh.nodes)
        component = self._deployment.components[name]
        node = component.node
        copy = Component(f"{component.id} (copy)", component.application, node, lambda _: None, None, component.user)
        self._copies.append(copy)
        copy.enter()
        copy.bind({out: to})
        (port,) = node.inputs()
        return compile_entry(copy, copy.spec.ports[port])

    def _measured(self, *, exactly: bool = False) -> int:
        """Let the gates hold back what waits now, and more unless *exactly*; return the number of events to replay."""
        self._end = self.log.position  # read before the waiting events are counted, of which more may come meanwhile
        margin = 0 if exactly else max(1000, 2 * self._largest)  # the cut shows which of these were processed
        self._front.kept = self._front.waiting() + margin
        for gate in () if self._branches else self._inner:  # the log's order is that of several branches
            gate.kept = gate.waiting() + margin
        return self._end.offset - self.position.offset + self._front.count - self._front.kept

    def _replay(self, batch: int = 5000, *, until: float = math.inf) -> None:
        """Replay *batch* rows at a time, up to the end of the log or a moment, but for the events that wait."""
        try:
            for gate in (self._front, *self._inner):
                gate.release()
            while self.position < self._end:
                check_interrupt()
                # Several ports must not get a batch in two parts.
                till = self._end if self._branches else min(self._end, Position(self.position.offset + batch))
                events = self.log.events(self.position, till)
                rows = (weight(payload) for payload in events if not isinstance(payload, CONTROL))
                self._largest = max(self._largest, *rows, 0)
                for payload in _merged(events) if self._merges else events:
                    getattr(self._front, method_for(payload, whole=True))(payload)
                self.position = till
                if time.perf_counter() > until:
                    break
        except Exception as error:
            raise _refused(self._successor.node, told(error), "repair the slet, or the log") from error


def _merged(events: Iterable[Any]) -> Iterator[Any]:
    """Yield the payloads, consecutive lists joined into one."""
    for lists, run in groupby(events, lambda payload: type(payload) is list):
        if lists:
            yield list(chain.from_iterable(run))
        else:
            yield from run


def _size(method: Method, payload: Any) -> int:
    """Return the number of events in a payload."""
    return weight(payload) if method == "push_batch" else 1


def _refused(node: Node, problem: str, cure: str) -> NotRebuildable:
    return NotRebuildable(node=node.name, problem=problem, cure=cure)
