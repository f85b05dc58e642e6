"""Binding: each output port is bound to the compiled entries behind it; nothing is looked up per item."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from exop.errors import PlanError
from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.meshes.nodes import INBOX
from exop.model.meshes.partitions import partition_of, ranges
from exop.model.slets.ports import PortType
from exop.model.slets.relay import RELAY
from exop.runtime.channels.base import ControlMerge, Outlet
from exop.runtime.channels.outbox import Outbox
from exop.runtime.channels.partitioned import key_reader, route
from exop.runtime.channels.queue import Buffered, QueueChannel, Waiting
from exop.runtime.channels.window import WindowChannel, followed
from exop.runtime.compiler import compile_entry, decoded
from exop.runtime.component import Component
from exop.runtime.conditional_updates import PendingUpdates
from exop.runtime.dataflow.batches import opened
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Unwind, in_front, method_for, placeholder, unpacked
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.worker import Worker
from exop.runtime.supervision.failure_policy import Producer, Producers, guarded_entry, refused
from exop.wiring.changes.channels import tell_unpunctuated
from exop.wiring.graph import ids
from exop.wiring.graph.region import Region, queue_of
from exop.wiring.graph.wiring_graph import Edge, WiringGraph
from exop.wiring.sharing import Sharing

#: The capacity of the queues that the wiring inserts.
INSERTED_CAPACITY = 1024


class Compiler:
    """Binds a region of a deployment; used once, while nothing is in flight in it."""

    def __init__(self, deployment: Deployment, region: Region, sharing: Sharing | None = None) -> None:
        self.deployment = deployment
        self.sharing = sharing
        self.region = region
        self.graph = region.after.graph
        self.wiring = region.after
        self.queues: dict[str, Buffered] = {}
        self._entries: dict[str, Entry] = {}
        self._into: dict[str, Entry] = {}
        self._merges: dict[str, ControlMerge] = {}
        self._bound: set[str] = set()
        self._later: list[Callable[[], object]] = []

    def compile(self) -> dict[str, Buffered]:
        """Bind everything; return the inserted queues that are in use there, by id."""
        region, nodes, order = self.region, self.graph.nodes, self.wiring.order
        tell_unpunctuated(self.deployment, region)
        # Downstream first: the followers of a slet are bound when its turn comes; long chains need no deep stack.
        for node in sorted((node for node in region.nodes if node in nodes), key=order.__getitem__, reverse=True):
            self._bind(nodes[node].component)
        for name in region.channels:
            if name in self.graph.channels:
                self._channel(name)
        vertices = [nodes[node] for node in region.nodes if node in nodes]
        for name, edge in (pair for vertex in vertices for pair in vertex.inputs if pair[0] not in region.channels):
            if edge.port.pulled:
                self._pulled(name, edge)
            elif edge.queue(name) in self.wiring.inserted:
                self._feed(self._queue(edge.queue(name)), name, edge)
        while self._later:
            self._later.pop()()
        for vertex in vertices:
            if vertex.component.pulled:  # the ports of other components stay
                vertex.component.expect()
        for name, edges in region.graph.consumers.items():
            queue, known = self.graph.channels[name], region.before.graph.consumers.get(name, ())
            if isinstance(queue, Buffered) and {one.name for one in edges} != {one.name for one in known}:
                queue.left = len(edges) == 1 and edges[0].port.pulled and edges[0].component.has_ended
        # The entry of a channel with one consumer is that of the port; the channel's endpoint leads there, too.
        found = {**{f"channel {name}": entry for name, entry in self._into.items()}, **self._entries}
        for endpoint in _former_endpoints(region):
            if endpoint not in found:
                self.deployment.entries.pop(endpoint, None)
        self.deployment.entries |= found
        return self.queues

    def _queue(self, name: str, earlier: Collection[Buffered] = ()) -> Buffered:
        """The inserted queue of an id; one that is there already stays, with its contents, unless it is *earlier*."""
        if (found := self.queues.get(name) or self.deployment.inserted.get(name)) is None or found in earlier:
            found = QueueChannel(name, capacity=INSERTED_CAPACITY)
        self.queues[name] = found
        return found

    def _bind(self, component: Component) -> None:
        """Bind the outputs of a component, its followers first."""
        if (node := component.node.name) in self._bound or node not in self.region.nodes:
            return
        self._bound.add(node)
        vertex = self.graph.nodes[node]
        for name, edge in vertex.inputs:  # first: a slet that waits for an unfilled channel takes no items
            if edge.port.pulled and self.graph.channels[name].pull_mode == "read":
                self._pulled(name, edge)
        log = self.deployment.update_log
        if component.node.pending:
            component.updates = log.pending[component] = component.updates or PendingUpdates(component, log)
        elif component.updates is not None:
            component.updates = None
            log.pending.pop(component, None)
        to: Mapping[str, Entry] = {edge.port.name: self._output_entry(name, edge) for name, edge in vertex.outputs}
        for tap in component.taps:
            to = tap.outlets(to)
        component.bind(to)

    def _output_entry(self, channel: str, edge: Edge) -> Entry:
        """The entry for an output port: that of its channel; the control items of several producers are merged."""
        entry, merge = self._channel(channel), self._merge(channel)
        me, kind = edge.name, self.graph.channels[channel]
        if edge.component.is_merged != (merge is not None):
            edge.component.is_merged = merge is not None
        if merge is not None:
            entry = self._name(self._merged(me, entry, merge), me)
        if isinstance(kind, WindowChannel):
            entry = self._name(followed(kind, me, entry), me)
        passes = edge.port.type.reference is None or (kind.passes_references and kind.partitioning is None)
        return entry if passes else self._name(_reading(entry), me)

    def _merged(self, me: str, entry: Entry, merge: ControlMerge) -> Entry:
        """The entry of one of several producers into a channel, which merges their control items."""

        def control(mark: Punctuation | EndOfStream) -> None:
            try:
                merge.relay(me, mark, entry.control)
            except Unwind as unwound:
                unwound.then(entry, "control", merge.left_over())
                raise

        made = in_front(entry, getattr, control)
        made.behind = (entry,)
        return made

    def _merge(self, channel: str) -> ControlMerge | None:
        """The merge of a channel's producers; it stays once it is made, since it records which of them have ended."""
        if len(edges := self.graph.producers[channel]) < 2 and channel not in self.deployment.merges:
            return None
        if channel not in self._merges:
            merge = self._merges[channel] = self.deployment.merges.setdefault(channel, ControlMerge())
            merge.expect(edge.name for edge in edges)
        return self._merges[channel]

    def _name(self, entry: Entry, endpoint: str) -> Entry:
        """Register an entry under its endpoint, so that in-flight items find it again."""
        if entry is NOWHERE:  # shared by all
            entry = Entry(entry.push, entry.push_batch, entry.control, store=entry.store)
        if not entry.endpoint:
            entry.name_endpoint(endpoint)
        self._entries[entry.endpoint] = entry
        return entry

    def _channel(self, name: str) -> Entry:
        """The entry into a channel."""
        if name in self._into:
            return self._into[name]
        if name not in self.region.channels:
            return self.deployment.entries[f"channel {name}"]
        channel = self.graph.channels[name]
        ends = [(edge.component.node.slet, edge.port) for _, edge in self.graph.edges([name])]
        channel.typed([slet.ports[port.name].type for slet, port in ends])
        if channel.buffered:
            entry, endpoint = channel.entry(()), f"channel {name}"
            if channel.refuses_whole:
                entry = guarded_entry(channel, entry, endpoint, self._producers(name))
            self._into[name] = self._name(entry, endpoint)
            self._later.append(lambda: channel.entry(self._outlets(name)))
        elif ids.input_queue(name) in self.wiring.inserted:
            queue = self._queue(ids.input_queue(name))
            queue.unread = not self.graph.consumers[name]
            self._into[name] = self._name(queue.entry(()), f"channel {name}")
            self._later.append(lambda: queue.entry([Outlet(name, self._behind_trigger(name, self._own_entry(name)))]))
        else:
            self._into[name] = self._behind_trigger(name, self._name(self._own_entry(name), f"channel {name}"))
        return self._into[name]

    def _behind_trigger(self, name: str, entry: Entry) -> Entry:
        """The entry into a channel, behind the trigger of its pending updates if there are any."""
        log, channel = self.deployment.update_log, self.graph.channels[name]
        if not channel.asked.pending:
            log.pending.pop(channel, None)
            return entry
        carried = [edge.port.type for edge in self.graph.producers[name]]
        subject = carried[0] if len(carried) == 1 else PortType()
        updates = log.pending[channel] = PendingUpdates(channel, log)
        guarded = updates.trigger(name, subject, lambda: entry)
        return self._name(guarded, entry.endpoint) if entry.endpoint else guarded

    def _own_entry(self, name: str) -> Entry:
        """The entry into a channel itself; an item that it refuses is the failure of its sender."""
        channel, endpoint = self.graph.channels[name], ids.channel_endpoint(name)
        entry = channel.entry(self._outlets(name))
        self._entries |= {one.endpoint: one for one in channel.port_entries}
        if not channel.serial:
            return entry
        entry = self._name(entry, endpoint)  # an item that waits for the channel finds it again
        if self.graph.producers[name]:
            entry = guarded_entry(channel, entry, endpoint, self._producers(name))
        return self._name(entry, endpoint)

    def _producers(self, name: str) -> Producers:
        ports = [(edge.node, edge.port.name) for edge in self._senders(name)]
        deployment = self.deployment

        def producers() -> list[Producer]:  # looked up late: a successor of one does not bind the channel anew
            return [(deployment.components[node], port) for node, port in ports if node in deployment.components]

        return producers

    def _senders(self, name: str) -> Iterator[Edge]:
        """The edges of the slets that push into a channel, also through a relay; a relay itself, if they are remote."""
        for edge in self.graph.producers[name]:
            inputs = self.graph.nodes[edge.node].inputs if edge.component.spec == RELAY else ()
            yield from [one for before, _ in inputs for one in self._senders(before)] or [edge]

    def _outlets(self, name: str) -> list[Outlet]:
        """The outlets of a channel: to each port, and to the groups that share its partitions."""
        channel, edges = self.graph.channels[name], self.graph.consumers[name]
        channel.readers([edge.name for edge in edges if edge.port.pulled])
        found = {edge.name: outlet for edge in edges if (outlet := self._outlet(name, edge)) is not None}
        groups = self.graph.groups(name).values()
        shares = [{edge.node: found.pop(edge.name).entry for edge in members} for members in groups]
        if shares and channel.partitioning is not None:
            refuse = partial(refused, channel, ids.channel_endpoint(name), self._producers(name))
            routed = self._name(route(channel.partitioning, shares, refuse), ids.channel_endpoint(name))
            found[routed.endpoint] = Outlet(routed.endpoint, routed)
        return [*found.values()]

    def _outlet(self, channel: str, edge: Edge) -> Outlet | None:
        """The outlet of a channel to one port; none to a port that reads the contents of the channel.

        The rows of a channel that an engine reads by itself are elided; its control items pass. A slet that has ended
        gets nothing: what begins anew when its home is replaced would come behind the end. (A relay serves peers.)
        """
        outlet, tie = self._whole_outlet(channel, edge), edge.component.tie
        serves = edge.component.spec == RELAY and self.graph.channels[channel].kind == INBOX
        if outlet is not None and edge.component.has_ended and not serves:
            return Outlet(outlet.port, NOWHERE)
        read: Any = None if tie is None else tie.native.get(edge.port.name)
        if outlet is None or read is None:
            return outlet
        if read is not self.graph.channels[channel]:
            why = f"reads its channel without the platform, and cannot be connected to {channel!r} while it runs"
            raise PlanError(f"{edge.name} {why}; replace {edge.node} in the same change")
        return Outlet(outlet.port, Entry(NOWHERE.push, NOWHERE.push_batch, outlet.entry.control, behind=[outlet.entry]))

    def _whole_outlet(self, channel: str, edge: Edge) -> Outlet | None:
        """The outlet for all items."""
        name = self.graph.queue_before(channel, edge) if edge.port.pulled else edge.queue(channel)
        if edge.node not in self.region.nodes and name in self.deployment.inserted:
            there = self.deployment.entries.get(f"queue {name}")  # its worker is not parked
            if there is not None and (edge.port.pulled or name in self.wiring.inserted):
                return Outlet(edge.name, self._name(there, self._queue(name).name))
        if edge.port.pulled:
            return self._pulled(channel, edge)
        if name not in self.wiring.inserted:
            self._bind(edge.component)
            return Outlet(edge.name, self._port_entry(channel, edge))
        queue = self._queue(name)
        self._later.append(lambda: self._feed(queue, channel, edge))
        return Outlet(edge.name, self._name(queue.entry(()), f"queue {name}"))

    def _port_entry(self, channel: str, edge: Edge) -> Entry:
        stays = edge.node not in self.region.nodes and not self.graph.channels[channel].asked.pending
        if stays and self.sharing is None:
            return self.deployment.entries[edge.name]
        entry = compile_entry(edge.component, edge.port)
        if self.sharing is not None:
            shared = self.graph.groups(channel).values()
            mates = {one.name for members in shared if edge in members for one in members if one is not edge}
            readers = [one for one in self.graph.consumers[channel] if one.name not in mates]
            entry = self.sharing.guard(edge, channel, self.graph.channels[channel].kind, readers, entry)
        self._entries[entry.endpoint] = entry
        return entry

    def _feed(self, queue: Buffered, channel: str, edge: Edge) -> None:
        self._bind(edge.component)
        queue.entry([Outlet(edge.name, self._port_entry(channel, edge))])

    def _pulled(self, name: str, edge: Edge) -> Outlet | None:
        port, channel = edge.component.pulled[edge.port.name], self.graph.channels[name]
        port.decoded = partial(decoded, edge.component, edge.port)
        if channel.pull_mode == "read":
            port.connect(channel, None)
            if not channel.filled or channel.away is not None:
                channel.awaited = {name: one for name, one in channel.awaited.items() if not one.left}
                channel.awaited[edge.name] = edge.component
            return None
        if (before := self.graph.queue_before(name, edge)) == name and isinstance(channel, Buffered):
            port.connect(channel, channel)
            return None
        queue = self._queue(before, port.earlier)  # an earlier one holds older items than other queues of the port
        queue.left = queue.left or edge.component.has_ended
        port.connect(channel, queue)
        return Outlet(edge.name, self._name(queue.entry(()), f"queue {queue.name}"))


def _former_endpoints(region: Region) -> Iterator[str]:
    """The endpoints that were in a region; a slet that is not bound anew keeps the entries of its ports."""
    graph = region.before.graph
    for name, edge in graph.edges(region.channels):
        if edge.node in region.nodes:
            yield edge.name
        yield from (f"window {name} | {edge.name}", f"queue {edge.queue(name)}")
    for name in region.channels:
        yield from (f"channel {name}", ids.channel_endpoint(name), f"queue {ids.input_queue(name)}")


def _reading(entry: Entry) -> Entry:
    """The same entry, which reads the rows of references."""
    store = entry.store
    return Entry(
        entry.push,
        lambda batch: entry.push_batch(opened(batch)),
        entry.control,
        store=store and (lambda method, payload: store(method, opened(payload))),
        behind=(entry,),
    )


@dataclass
class CatchUp:
    """Catch-up events, by the queue (an inserted one by id, a channel by name) from which drivers deliver them.

    Attributes:
        entries: For ports that are newly connected: the items that their channel keeps, and the end if it has passed.
        merges: The merges of channels for which a mark has become due, since a producer has left.
        ended: For each channel, the producers that come to it when their stream has ended already.
        moved: The filled queues of ports that are connected elsewhere, each with the queue for its contents, but these.
    """

    entries: dict[str, list[Waiting]] = field(default_factory=dict)
    merges: dict[str, ControlMerge] = field(default_factory=dict)
    ended: dict[str, list[str]] = field(default_factory=dict)
    moved: list[tuple[QueueChannel, str, type | tuple[type, ...]]] = field(default_factory=list)

    @classmethod
    def needed(
        cls, deployment: Deployment, region: Region, continued: Collection[str] = (), coming: Collection[str] = ()
    ) -> CatchUp:
        """Find what a change of connections, not the first binding, makes necessary; nothing is in flight.

        The ports in *continued* get the end of the stream alone. For channels in *coming*, see `with_ends`.
        """
        found, graph = cls(), region.graph
        for name, edge in graph.fed:
            reads = edge.port.pulled and graph.channels[name].pull_mode == "read"
            if reads or deployment.joined.get(edge.name) == name:
                continue
            entries = _kept(deployment, graph, name, edge)
            if edge.name in continued:
                entries = [one for one in entries if one[0] == "control"]
            if name not in coming and _end_is_due(deployment, graph, name):
                entries.append(("control", EndOfStream()))
            if entries:
                found.entries.setdefault(graph.queue_before(name, edge), []).extend(entries)
        for name, edges in graph.producers.items():
            known = deployment.joined if name in deployment.merges else {}
            # The end of a producer may still wait in front of the merge.
            ended = (one.name for one in edges if one.component.has_ended and not deployment.inlets.ends_at(one.name))
            found.ended[name] = over = [one for one in ended if known.get(one) != name]
            merge = deployment.merges.get(name)
            if merge is not None and edges and name not in coming and merge.due_with([one.name for one in edges], over):
                place = name if graph.channels[name].buffered else ids.input_queue(name)
                # Without one, nothing changes there: what counts as due is the end that had passed on another host.
                if graph.channels[name].buffered or place in region.after.inserted:
                    found.merges[place] = merge
        there = {graph.queue_before(one, to) if to.port.pulled else to.queue(one) for one, to in graph.fed}
        there.update(map(ids.input_queue, graph.channels))
        fed = {edge.name: (name, edge) for name, edge in graph.fed}
        for queue_id, queue in deployment.inserted.items():
            port = queue_id.rpartition(" -> ")[2]
            if queue_id in there or port not in fed or not isinstance(queue, QueueChannel) or not queue.entries:
                continue
            # A port that pulled already goes on with its queues, which no worker serves.
            if not fed[port][1].port.pulled or isinstance(queue.worker, Worker):
                dropped = EndOfStream if port in continued else CONTROL
                found.moved.append((queue, graph.queue_before(*fed[port]), dropped))
        return found

    def deliver(self, deployment: Deployment) -> None:
        """Put everything into its queue: what is moved comes first."""
        for name in self.ended.keys() & deployment.merges.keys():
            deployment.merges[name].note_ended(self.ended[name])
        for source, name, dropped in self.moved:
            entries, before = source.capture()["entries"], source.dropped
            queue_of(deployment, name).put_first([entry for entry in entries if not isinstance(entry[1], dropped)])
            source.clear()
            source.dropped = before  # they wait elsewhere now
        for name, entries in self.entries.items():
            for entry in entries:
                queue_of(deployment, name).store(*entry)
        for name, merge in self.merges.items():
            for mark in merge.take_due():
                queue_of(deployment, name).store("control", mark)


def open_anew(deployment: Deployment, graph: WiringGraph, continued: Collection[str]) -> None:
    """Forget the streams of ports that are connected elsewhere; of those in *continued* only the end, to come again."""
    for name, edge in graph.fed:
        if deployment.joined.get(edge.name, name) != name:
            goes_on = edge.name in continued
            deployment.inlets.drop(edge.name.__eq__, EndOfStream if goes_on else CONTROL)
            if not edge.component.has_ended:
                edge.component.open_anew(edge.port.name, continued=goes_on)


def _kept(deployment: Deployment, graph: WiringGraph, name: str, edge: Edge) -> list[Waiting]:
    """Return what a channel keeps for a port that is newly connected."""
    channel = graph.channels[name]
    kept = () if edge.port.pulled else channel.kept_for(edge.name)
    group, mates = next(((group, edges) for group, edges in graph.groups(name).items() if edge in edges), ((), ()))
    if kept and mates and (shared := channel.partitioning) is not None:
        # A group receives each item once: its members before, of whom none may stay, have received all of these.
        known = (name, *group) in deployment.joined
        owned, key_of = ranges([one.node for one in mates], shared.partitions)[edge.node], key_reader(shared.by)
        kept = [one for one in kept if not known and partition_of(key_of(one), shared.partitions) in owned]
    return [(method_for(one, whole=False), one) for one in kept]


def with_ends(
    deployment: Deployment, graph: WiringGraph, coming: Collection[str], work: Iterable[InFlight]
) -> list[InFlight]:
    """Return *work*, which comes from other hosts, with the ends of streams behind it that are connected anew here.

    An end among the events of one connector is that of its producers alone, and may be older than other events. So it
    is left out where a channel in *coming* has producers here: those that have ended send their end again, behind all
    that comes; also into an outbox that has had no event yet.
    """
    again = {f"channel {name}" for name in coming if graph.producers.get(name)}
    found = [one for one in work if not (isinstance(one.payload, EndOfStream) and one.entry.endpoint in again)]
    for name, channel in graph.channels.items():
        anew = name in coming or (isinstance(channel, Outbox) and not channel.cursor and not channel.depth)
        if anew and _end_is_due(deployment, graph, name, found):
            found.append(InFlight(placeholder(f"channel {name}"), "control", EndOfStream()))
    return found


def _end_is_due(deployment: Deployment, graph: WiringGraph, name: str, work: Iterable[InFlight] = ()) -> bool:
    """Whether the producers of a channel have ended, and no end is on its way to it, also not in *work*."""
    channel, producers, merge = graph.channels[name], graph.producers[name], deployment.merges.get(name)
    over = all(producer.component.has_ended for producer in producers)
    if not producers or not (over or (merge is not None and merge.done)):
        return False
    # The end of the stream may still be in front of the channel: in a queue, or in flight at a driver.
    queues = [one for one in (channel, deployment.inserted.get(ids.input_queue(name))) if isinstance(one, Buffered)]
    waiting = [unpacked(entry)[1] for queue in queues for entry in queue.entries]
    endpoints = {f"channel {name}", ids.channel_endpoint(name), *(edge.name for edge in producers)}
    waiting += [one.payload for endpoint in endpoints for one in deployment.inlets.at(endpoint)]
    waiting += [one.payload for one in work if one.entry.endpoint in endpoints]
    return not any(isinstance(one, EndOfStream) for one in waiting)
