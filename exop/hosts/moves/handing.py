"""One host's part in the moves of a change: what it hands over in its cut, and takes over from other hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from exop.errors import PlanError
from exop.hosts.moves.ahead import Ahead, free
from exop.hosts.moves.transfer import Rest, Transfer
from exop.hosts.protocol.messages import Pending
from exop.hosts.updates import remaining, without_gone
from exop.model.items import EndOfStream, Punctuation
from exop.model.meshes.nodes import Node
from exop.model.slets.ports import node_at
from exop.model.slets.relay import RELAY
from exop.model.values.classes import Declared
from exop.model.values.depth import AROUND, DEPTH
from exop.model.values.encoding import decode, encode
from exop.runtime.channels.base import RETRACTED, channel_settings
from exop.runtime.channels.frame_body import BodyReader, body_of, event_of
from exop.runtime.channels.inbox import Inbox, without
from exop.runtime.channels.log import LogChannel
from exop.runtime.channels.outbox import Outbox
from exop.runtime.channels.partitioned import shared_out
from exop.runtime.channels.partitioned_log import PartitionedLogChannel
from exop.runtime.channels.queue import Buffered, Waiting
from exop.runtime.channels.wire import Event, Frame
from exop.runtime.dataflow.entry import InFlight, Method, method_for, placeholder, unpacked
from exop.runtime.lifecycle import Event as Happened
from exop.runtime.lifecycle import State
from exop.runtime.log import copying
from exop.wiring.changes.arrivals import Arrival, Queued, departed, dumped, landing, left_at, queued
from exop.wiring.changes.change import Change
from exop.wiring.changes.successors import between_items
from exop.wiring.graph import ids


@dataclass
class Handing:
    """Hands over and takes over at one host.

    Nothing that is handed over is taken away before the commit, and what is taken over is only posted then.

    Attributes:
        host: The name of this platform.
        pending: The pending updates of the whole mesh before the change, as the home knows them.
        gone: Gets those of them that are gone where what comes here was.
        dropped: Returns those of the pending updates of a node or channel that are gone here.
        behind: The nodes that move, and whose followers at their new hosts have the state already.
    """

    host: str
    change: Change
    transfer: Transfer
    ahead: Ahead
    pending: Collection[Pending] = ()
    gone: dict[str, list[bool]] = field(default_factory=dict)
    dropped: Callable[[Pending], list[bool]] = lambda pending: []
    behind: Collection[str] = ()
    _queued: dict[str, Queued] = field(default_factory=dict)
    _halves: dict[str, list[Any]] = field(default_factory=dict)
    _waiting: list[tuple[str, Method, Any]] = field(default_factory=list)
    _copies: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        change, transfer = self.change, self.transfer
        change.departing, change.arriving = transfer.departing, transfer.arriving
        change.leaves, change.retracted = transfer.leaves, transfer.retracted
        change.handed_over = {*transfer.received, *(one.inbox for one in transfer.rests if one.target == self.host)}
        made = (out for name in transfer.arriving for out in change.plan.after.node(name).outputs().values())
        change.coming = {*transfer.restored, *made, *(rest.channel for rest in transfer.rests if rest.channel)}
        change.before_cut.append(self._look)
        change.parks_all = True  # nothing moves between a channel and its connectors, which have the same items then

    def copy_ahead(self) -> None:
        """Copy parts of the states that move while the stream runs."""
        deployment, transfer = self.change.deployment, self.transfer
        for node, target in transfer.departing.items():
            if node not in self.behind:
                component = deployment.components[node]
                between = partial(between_items, deployment, component, self.change.timeout)
                self.ahead.copy(target, node, component.state, between)
        for node, source in transfer.arriving.items():
            if node not in self.behind:
                self.ahead.await_parts(source, node, self.change.plan.after.node(node).slet.memento)
        for name, folder in self._logs().items():
            if name in transfer.contents:
                self.ahead.copy_log(transfer.contents[name], deployment.channels[name].logs)
                continue
            if folder is not None:
                if "path" in self.change.plan.after.channels[name].settings and any(folder.glob("**/*.log")):
                    cure = "move this folder away, unless a platform uses it"
                    raise PlanError(f"there is another log in {folder}; {cure}")
                self._copies.append(folder)
                copying.remove(folder)  # what a kill has left of an earlier move
            self.ahead.await_log(transfer.restored[name], folder)

    def _logs(self) -> dict[str, Path | None]:
        """Return the logs that move, each with the folder for its files here, in an order that is that of all hosts."""
        plan, manager = self.change.plan, self.change.wiring.manager
        found: dict[str, Path | None] = {}
        for name in sorted({*self.transfer.contents, *self.transfer.restored}):
            spec = (plan.before if name in self.transfer.contents else plan.after).channels[name]
            if issubclass(manager.kinds[spec.kind], (LogChannel, PartitionedLogChannel)):
                given = spec.settings.get("path")
                found[name] = manager.channel_home(plan.after.name, name) if given is None else Path(given)
        return found

    def drop(self) -> None:
        """Remove the copies of logs, since the change was aborted, and has closed them."""
        for folder in self._copies:
            copying.remove(folder)

    def remove_logs(self) -> None:
        """Remove the logs that have left; in the turn of this change, since the next one may bring them back."""
        for name, folder in self._logs().items():
            if name in self.transfer.contents and folder is not None:
                copying.remove(folder)

    def release(self) -> None:
        """Free what is no longer used: parts of states that were sent or taken, and slets that have left."""
        self.ahead.sent.clear()
        for copied in self.ahead.parts.values():
            copied.clear()
        for node in self.change.departing:
            if (component := self.change.old[node]).status is State.DESTROYED and component.state is not None:
                free(component.state)

    def go_on(self) -> None:
        """Let the inboxes that stay go on when the change is made or undone."""
        for channel in self.change.deployment.channels.values():  # some may have been read before a failure
            if isinstance(channel, Inbox):
                channel.go_on()

    def take_over(self, handed: Mapping[str, Any]) -> None:
        """Let nodes and channels continue with what other hosts have handed over; before the cut of this host.

        Raises:
            StoredStateError: the bytes cannot be read, or name a class that is unknown here.
            ComponentFailed: code of a slet that sets its state did not return in time.
        """
        change, transfer = self.change, self.transfer
        for source in {*transfer.arriving.values(), *transfer.restored.values()}:
            self._update({(section, name): gone for section, name, gone in handed[source]["updates"]})
        for node, source in transfer.arriving.items():
            late, memento, held = (self.ahead.receive(source, part) for part in handed[source]["nodes"][node])
            self.ahead.add(node, self.change.plan.after.node(node).slet.memento, late)
            change.arrive(node, Arrival(change.plan.after.node(node), memento, held, parts=self.ahead.parts[node]))
        for channel, source in transfer.restored.items():
            data = self.ahead.receive(source, handed[source]["contents"][channel])
            content, waiting, last, files = decode(data, levels=DEPTH + AROUND)
            made = change.successors.channels[channel]
            if files:
                made.close()
                copying.write(self._logs()[channel], last, files)
                made.open()
            made.restore(content)
            made.take_part(on=change.plan.after.durable is not None)
            self._waiting += waiting

    def _update(self, gone: Mapping[tuple[str, str], list[bool]]) -> None:
        """Give what comes here the settings that took effect where it was; *gone* as returned by `dropped`."""
        change, coming = self.change, {"nodes": self.transfer.arriving, "channels": self.transfer.restored}
        for pending in self.pending:
            section, name, _ = pending
            if not gone.get((section, name)) or name not in coming[section]:
                continue
            after = without_gone(change.plan.after, pending, gone[section, name])
            self.gone |= remaining(pending, gone[section, name])
            change.plan, place = replace(change.plan, after=after), getattr(after, section)[name]
            if isinstance(place, Node):
                change.successors.made[name].configure(place)
            else:
                channel = change.successors.channels[name]
                channel.reconfigure(channel_settings(type(channel), place), close=False)
                channel.asked = place

    def hand_over(self, handed: Mapping[str, Any]) -> dict[str, Any]:
        """Return what other hosts need, and get ready what this host delivers; after the cut of this host.

        Raises:
            NotStorable: a part of what moves cannot be encoded.
            PlanError: events of a connector are lost, so that its rest is not known.
        """
        change, transfer = self.change, self.transfer
        leaving = {"nodes": transfer.departing, "channels": transfer.contents}
        found: dict[str, Any] = {"nodes": {}, "contents": {}, "sent": {}, "received": {}}
        found["updates"] = [(one[0], one[1], self.dropped(one)) for one in self.pending if one[1] in leaving[one[0]]]
        for node, target in transfer.departing.items():
            memento, held = departed(change.deployment, change.old[node], self._queued[node], change.timeout)
            memento = None if node in self.behind else memento
            late, parts = self.ahead.rest(node, memento)
            handing = late, dumped(memento, f"{change.name}.{node}", parts), held
            found["nodes"][node] = [self.ahead.send(target, one) for one in handing]
        waiting = left_at(change.deployment.inlets, transfer.contents)
        for channel, target in transfer.contents.items():
            logs = (left := (change.deployment.channels | change.removed)[channel]).logs
            last = [part for place, log in logs.items() for part in log.parts(place)]
            files = [place + name for place, log in logs.items() for name in log.files]
            content = encode([dict(left.capture()), waiting[channel], last, files], levels=DEPTH + AROUND)
            found["contents"][channel] = self.ahead.send(target, content)
        for kind, channels in (("sent", transfer.sent), ("received", transfer.received)):
            for name, hosts in channels.items():
                data = encode(self._halves[name])
                found[kind][name] = {host: self.ahead.send(host, data) for host in hosts}
        posted = [*landing(change.deployment.entries, self._waiting)]
        taken: list[tuple[Buffered, list[Waiting]]] = []
        for rest in transfer.rests:
            for name, work in self._delivered(rest, self._rest(rest, handed)).items():
                if (queue := self._queue(name)) is not None:
                    taken.append((queue, work))
                else:
                    posted += (InFlight(placeholder(name), method, payload) for method, payload in work)
        change.land(posted, taken)
        return found

    def _look(self) -> None:
        """Read the halves of connectors whose events are delivered in another way, before they end or begin anew.

        The nodes that leave emit their buffered output before, while their old connections are bound.

        Raises:
            ComponentFailed: a slet cannot emit its buffered output.
        """
        self._check_groups()
        self._check_ends()
        self._fill_outboxes()
        for node in self.transfer.departing:
            self.change.old[node].flush(self.change.timeout)
            self._queued[node] = queued(self.change.deployment, self.change.old[node])
        own = {rest.outbox for rest in self.transfer.rests if rest.source == self.host}
        self._halves = {name: self._half(name) for name in {*self.transfer.sent, *self.change.handed_over, *own}}

    def _fill_outboxes(self) -> None:
        """Store in each outbox what waits in front of it: other connectors of the channel may have it already."""
        deployment = self.change.deployment
        for name, component in deployment.components.items():
            outbox = deployment.channels.get(component.node.ports.get("out", ""))
            if component.node.slet == RELAY and isinstance(outbox, Outbox):
                waits = [(work.method, work.payload) for work in deployment.inlets.drop(f"{name}.item".__eq__)]
                queue = deployment.inserted.get(f"{component.node.ports['item']} -> {name}.item")
                while queue is not None and queue.entries:
                    waits += map(unpacked, queue.take(max(1, queue.depth)))
                for method, payload in waits:
                    outbox.store(method, payload)
                    if isinstance(payload, EndOfStream) and component.allows(Happened.END):
                        component.ended.add("item")
                        component.on(Happened.END)

    def _check_ends(self) -> None:
        """Refuse a producer that would send items behind the end of others that a connector has."""
        deployment, mesh = self.change.deployment, self.change.plan.after
        producers = self.change.wiring.current(deployment).graph.producers
        for node in self.transfer.arriving:
            for name in mesh.node(node).outputs().values():
                others = producers.get(name, ()) if isinstance(deployment.channels.get(name), Outbox) else ()
                over = others and all(one.component.has_ended for one in others)
                if over and not self.change.successors.made[node].has_ended:
                    channel, ended = name.partition(".to.")[0], " and ".join(one.name for one in others)
                    raise PlanError(
                        f"{node} would come behind the end of {channel!r}, since {ended} on {self.host} "
                        f"have ended; move {node} to another host, or move the channel with it"
                    )

    def _check_groups(self) -> None:
        """Refuse to part the rest of a batch from the group that shares it, whose members it has not reached yet."""
        deployment, transfer = self.change.deployment, self.transfer
        graph = self.change.wiring.current(deployment).graph
        for name in graph.channels:
            edges = [edge for members in graph.groups(name).values() for edge in members]
            leave = {edge.node in transfer.departing for edge in edges} | {name in transfer.contents}
            if edges and len(leave) > 1 and deployment.inlets.at(ids.channel_endpoint(name)):
                raise PlanError(
                    f"a part of a batch waits in front of {' and '.join(edge.name for edge in edges)}, which share it, "
                    f"and it would be lost; repair or resume them first, in a change of its own"
                )

    def _half(self, name: str) -> list[Any]:
        """Return the events of one half of a connector, or what a channel keeps, as bytes, with their numbers."""
        if isinstance(channel := self.change.deployment.channels.get(name), Outbox):
            first, events = channel.stored()
            return [first, [*map(_travelling, events)]]
        if isinstance(channel, Inbox):
            taken, following, entries = channel.waiting()
            return [taken, following, [_travelling(event_of(*entry)) for entry in entries]]
        if channel is not None:
            return [0, [_travelling(event_of(method_for(one, whole=False), one)) for one in channel.kept_for("")]]
        raise PlanError(f"{self.host} has no half of a connector {name!r}; make the change again, or see `exop ps`")

    def _rest(self, rest: Rest, handed: Mapping[str, Any]) -> list[Waiting]:
        """Return the events of a connector: each that was sent and not processed, once and in order."""
        half: dict[str, Any] = {"received": [0, 0, []]}  # of what a channel keeps
        for kind, host, name in (("sent", rest.source, rest.outbox), ("received", rest.target, rest.inbox)):
            if host == self.host:
                half[kind] = self._halves[name]
            elif host:
                half[kind] = decode(self.ahead.receive(host, handed[host][kind][name][self.host]))
        (first, sent), (taken, following, waiting) = half["sent"], half["received"]
        reader = BodyReader(self._declared(rest))
        if first > (begin := following if waiting else taken):  # those that wait were acknowledged as received
            raise PlanError(
                f"the events {begin} to {first - 1} between {rest.source} and {rest.target} ({rest.outbox}) are lost; "
                f"make the change without moving what is connected there"
            )
        found = [*_read(reader, waiting), *without(_read(reader, sent), begin - first)]
        marks = [(number, one) for number, (_, one) in enumerate(found, 1) if isinstance(one, Punctuation)]
        holds = max((number for number, mark in marks if mark == RETRACTED), default=0)
        return [one for one in found[:holds] if not isinstance(one[1], Punctuation)] + found[holds:]

    def _declared(self, rest: Rest) -> Declared:
        """The classes that the items may be of: those that the ports declare where they go, or came from."""
        graph = self.change.wiring.current(self.change.deployment).graph
        components = self.change.deployment.components
        channels = {rest.channel} if rest.channel is not None else set()
        for name in rest.ports:
            node, port = node_at(name, components)
            channels.add(components[node].node.ports[port])
        meshes, names = (self.change.plan.before, self.change.plan.after), (rest.inbox, rest.outbox, *channels)
        specs = [mesh.channels[name] for mesh in meshes for name in names if name in mesh.channels]
        sent = [spec.type.items for spec in specs if spec.type is not None]  # of the ports on other hosts
        return Declared(*(edge.port.type.items for _, edge in graph.edges(channels)), *sent)

    def _delivered(self, rest: Rest, work: list[Waiting]) -> dict[str, list[Waiting]]:
        """Return the events of a connector by the endpoints at which they go on; a group shares out what it gets."""
        if rest.channel is not None:
            of_all = Punctuation if rest.partial else ()
            return {f"channel {rest.channel}": [one for one in work if not isinstance(one[1], of_all)]}
        components, channels = self.change.deployment.components, self.change.deployment.channels
        nodes = self.change.plan.after.nodes.values()
        found: dict[str, list[Waiting]] = {}
        for name in rest.ports:
            node, port = node_at(name, components)
            here, group = components[node].node.ports[port], components[node].node.group
            if (shared := channels[here].partitioning) is None or group is None:
                found[name] = work
            elif name not in found:
                mates = [one.name for one in nodes if one.group == group and one.ports.get(port) == here]
                found |= {f"{mate}.{port}": [] for mate in mates}
                members = {mate: placeholder(f"{mate}.{port}") for mate in mates}
                for method, payload in work:
                    try:
                        parts = [*shared_out(shared, members, method, payload)]
                    except Exception:  # noqa: BLE001 (any exception of a property of an item: the channel refuses it)
                        parts = [(placeholder(ids.channel_endpoint(here)), method, payload)]
                    for entry, *part in parts:
                        found.setdefault(entry.endpoint, []).append((part[0], part[1]))
        return found

    def _queue(self, name: str) -> Buffered | None:
        """Return the queue in front of the port at an endpoint, if there is one: older items may wait in it."""
        deployment = self.change.deployment
        node, port = node_at(name, components := deployment.components)
        if node not in components:
            return None
        if port in components[node].pulled:
            return components[node].pulled[port].queue
        inserted = self.change.wiring.current(deployment).inserted
        return deployment.inserted.get(next((one for one in inserted if one.endswith(f" -> {name}")), ""))


def _travelling(event: Event) -> tuple[int, int, bytes]:
    return event.events, event.form, b"".join(bytes(part) for part in body_of([event]))


def _read(reader: BodyReader, events: Iterable[tuple[int, int, bytes]]) -> Iterator[Waiting]:
    for number, form, body in events:
        yield from reader.read_each(Frame(0, number, form, [body]))
