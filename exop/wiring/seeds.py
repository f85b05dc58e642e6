"""Catch-up events when connections change: for ports connected at run time, and for producers that have left.

A port that is connected to a running application gets the items that its channel keeps for newcomers, and the end of
the stream if that is over. When a producer leaves, those that stay may have sent all that a mark waited for. The
contents of an inserted queue move with its port. All this goes into queues, so the driver in charge delivers it in
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from exop.model.items import EndOfStream
from exop.model.lifecycle import State
from exop.runtime.channel import ControlMerge
from exop.runtime.channels.queue import Buffered, QueueChannel
from exop.runtime.deployment import Deployment
from exop.wiring.circuit import Circuit, Join, before_key, edge_key, in_front_of, inside

#: An entry of a queue as plain data: `item`, `batch` or `control`, and what it is.
Entries = list[tuple[str, Any]]


@dataclass
class Seeds:
    """The entries for each queue, by the place of an inserted one, or the name of a queue channel.

    Attributes:
        planted: What ports that are connected anew catch up on.
        merged: The merges in front of channels for which a mark has become due.
        ended: For each channel, the producers that come to it when their stream has ended already.
        moved: The queues whose places are gone, each with the place to which its contents go.
    """

    planted: dict[str, Entries] = field(default_factory=dict)
    merged: dict[str, ControlMerge] = field(default_factory=dict)
    ended: dict[str, list[str]] = field(default_factory=dict)
    moved: list[tuple[QueueChannel, str]] = field(default_factory=list)

    def places(self) -> set[str]:
        """The places that need a queue for it."""
        return {*self.planted, *self.merged, *(place for _, place in self.moved)}

    def plant(self, queues: dict[str, Buffered], merges: dict[str, ControlMerge]) -> None:
        """Put everything in its place: what is moved comes first."""
        for name in self.ended.keys() & merges.keys():
            merges[name].note_ended(self.ended[name])
        for source, place in self.moved:
            entries, dropped = source.capture()["entries"], source.dropped
            queues[place].put_first([(kind, payload) for kind, payload in entries if kind != "control"])
            source.clear()
            source.dropped = dropped  # they wait elsewhere now
        for place, entries in self.planted.items():
            queues[place].restore({"entries": entries})
        for place, merge in self.merged.items():
            queues[place].restore({"entries": [("control", mark) for mark in merge.take_due()]})


def find_seeds(deployment: Deployment, circuit: Circuit) -> Seeds:
    """Find what a change of connections makes necessary; nothing is in flight."""
    seeds = Seeds()
    if deployment.started is None:
        return seeds
    for name, join in _fed(circuit):
        if deployment.joined.get(join.name) != name:
            place, entries = _for_newcomer(deployment, circuit, name, join)
            if entries:
                seeds.planted.setdefault(place, []).extend(entries)
    for name, joins in circuit.producers.items():
        known = deployment.joined if name in deployment.merges else {}
        over = [one.name for one in joins if one.component.status is State.ENDED and known.get(one.name) != name]
        seeds.ended[name] = over
        merge = deployment.merges.get(name)
        if joins and merge is not None and merge.due_with([join.name for join in joins], over):
            seeds.merged[name if circuit.channels[name].buffered else before_key(name)] = merge
    seeds.moved = [*_homeless(deployment, circuit)]
    return seeds


def _fed(circuit: Circuit) -> Iterator[tuple[str, Join]]:
    return ((name, join) for name, joins in circuit.consumers.items() for join in joins)


def open_anew(deployment: Deployment, circuit: Circuit) -> None:
    """Forget how far the old streams of ports had come that are connected elsewhere now.

    Called when everything is bound, before the deployment notes the connections.
    """
    moved = [join for name, join in _fed(circuit) if deployment.joined.get(join.name, name) != name]
    deployment.inlets.drop_marks([join.name for join in moved])
    for join in moved:
        component, port = join.component, join.port.name
        if component.status is not State.ENDED:
            component.ended.discard(port)
            component.merge.open_anew(port)
            if port in component.pulled:
                component.pulled[port].ended = False


def _for_newcomer(deployment: Deployment, circuit: Circuit, name: str, join: Join) -> tuple[str, Entries]:
    channel, producers = circuit.channels[name], circuit.producers[name]
    entries: Entries = []
    if not join.port.pulled:
        entries += [("item", item) for item in channel.kept_for(join.name)]
    elif channel.pull_mode == "read":
        return "", []
    ended = producers and all(producer.component.status is State.ENDED for producer in producers)
    if ended and not _end_comes(deployment, circuit, name):
        entries.append(("control", EndOfStream()))
    if join.port.pulled:
        alone = isinstance(channel, Buffered) and len(circuit.consumers[name]) == 1
        return name if alone else edge_key(name, join), entries
    return in_front_of(circuit, name, join), entries


def _end_comes(deployment: Deployment, circuit: Circuit, name: str) -> bool:
    """Whether the end of the stream is still in front of the channel: in a queue, or in flight at a driver."""
    channel, before = circuit.channels[name], deployment.inserted.get(before_key(name))
    queues = [one for one in (channel, before) if isinstance(one, Buffered)]
    if any(("control", EndOfStream()) in queue.capture()["entries"] for queue in queues):
        return True
    places = {f"channel {name}", inside(name), *(join.name for join in circuit.producers[name])}
    return any(isinstance(work.payload, EndOfStream) for place in places for work in deployment.inlets.at(place))


def _homeless(deployment: Deployment, circuit: Circuit) -> Iterator[tuple[QueueChannel, str]]:
    """The inserted queues that hold something, and whose port is connected elsewhere now."""
    there = {edge_key(name, join) for name, join in _fed(circuit)} | {before_key(name) for name in circuit.channels}
    for place, queue in deployment.inserted.items():
        if place in there or not isinstance(queue, QueueChannel) or not queue.entries:
            continue
        port = place.rpartition(" -> ")[2]
        for name, join in _fed(circuit):
            if join.name == port and not join.port.pulled:  # a port that pulls knows its earlier queues itself
                yield queue, in_front_of(circuit, name, join)
