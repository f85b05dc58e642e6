"""Compiling a circuit: every output port is bound straight to what follows it; nothing is looked up per item."""

from __future__ import annotations

from collections.abc import Callable

from exop.model.items import EndOfStream, Punctuation
from exop.runtime.channel import Channel, ControlMerge, Outlet
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.worker import Worker
from exop.runtime.entry import Entry
from exop.runtime.ways import way_into
from exop.wiring.circuit import Circuit, Join
from exop.wiring.layout import Layout, before_key, edge_key

#: The capacity of the queues that the wiring inserts.
INSERTED_CAPACITY = 1024


class Compiler:
    """Binds the components of one deployment; used once, while nothing is in flight in it."""

    def __init__(self, deployment: Deployment, circuit: Circuit, layout: Layout) -> None:
        self.deployment = deployment
        self.circuit = circuit
        self.layout = layout
        self._places: dict[str, Entry] = {}
        self._channels: dict[str, Entry] = {}
        self._bound: set[str] = set()
        self._later: list[Callable[[], None]] = []

    def compile(self) -> None:
        """Bind everything, and give the queues their workers."""
        for place in self.layout.inserted:
            if place not in self.deployment.inserted:
                self.deployment.inserted[place] = QueueChannel(place, capacity=INSERTED_CAPACITY)
        for component in self.circuit.components():
            self._bind(component)
        for name in self.circuit.channels:
            self._channel(name)
        while self._later:
            self._later.pop()()
        self._man_queues()

    def _bind(self, component: Component) -> None:
        """Bind the outputs of a component (those who follow it first)."""
        if component.id in self._bound:
            return
        self._bound.add(component.id)
        to = {port.name: self._leaving(component, port.name, name) for port, name in self.circuit.outputs(component)}
        component.bind(to)

    def _leaving(self, component: Component, port: str, channel: str) -> Entry:
        """Where an output port is bound: the channel's way in; control items of several producers are merged."""
        entry = self._channel(channel)
        producers = [join.name for join in self.circuit.producers[channel]]
        if len(producers) < 2:
            return entry
        merge = self.deployment.merges.setdefault(channel, ControlMerge())
        merge.expect(producers)
        me = f"{component.node.name}.{port}"

        def control(mark: Punctuation | EndOfStream) -> None:
            for one in merge.on(me, mark):
                entry.control(one)

        probe = Entry(entry.probe.push, entry.probe.push_batch, control, place=me)
        return self._at(Entry(entry.push, entry.push_batch, control, probe=probe), me)

    def _at(self, entry: Entry, place: str) -> Entry:
        """Name what stands at a place, so that work which was left behind finds it again."""
        entry.place = entry.place or place
        entry.probe.place = entry.place
        self._places[entry.place] = entry
        return entry

    def _channel(self, name: str) -> Entry:
        """The way into a channel."""
        if name in self._channels:
            return self._channels[name]
        channel = self.circuit.channels[name]
        if channel.buffered:
            entry = self._channels[name] = self._at(channel.entry(()), f"channel {name}")
            self._later.append(lambda: self._connect(channel, name))
            return entry
        before = self.deployment.inserted.get(before_key(name))
        if before is not None:
            entry = self._channels[name] = self._at(before.entry(()), f"channel {name}")
            self._later.append(lambda: self._connect_before(before, channel, name))
            return entry
        entry = self._channels[name] = self._at(channel.entry(self._outlets(name)), f"channel {name}")
        return entry

    def _connect(self, channel: Channel, name: str) -> None:
        channel.entry(self._outlets(name))

    def _connect_before(self, queue: QueueChannel, channel: Channel, name: str) -> None:
        queue.entry([Outlet(name, channel.entry(self._outlets(name)))])

    def _outlets(self, name: str) -> list[Outlet]:
        outlets = [self._outlet(name, join) for join in self.circuit.consumers[name]]
        return [outlet for outlet in outlets if outlet is not None]

    def _outlet(self, channel: str, join: Join) -> Outlet | None:
        """How a channel reaches one port; a port that reads what the channel keeps is not reached at all."""
        if join.port.pulled:
            return self._pulled(channel, join)
        self._bind(join.component)
        queue = self.deployment.inserted.get(edge_key(channel, join))
        if queue is None:
            return Outlet(join.name, self._way(join))
        self._later.append(lambda: self._feed(queue, join))
        return Outlet(join.name, self._at(queue.entry(()), f"queue {queue.name}"))

    def _way(self, join: Join) -> Entry:
        entry = way_into(join.component, join.port)
        self._places[entry.place] = entry
        return entry

    def _feed(self, queue: QueueChannel, join: Join) -> None:
        queue.entry([Outlet(join.name, self._way(join))])

    def _pulled(self, name: str, join: Join) -> Outlet | None:
        port = join.component.pulled[join.port.name]
        channel = port.channel = self.circuit.channels[name]
        if channel.pull_mode == "read":
            return None
        if isinstance(channel, QueueChannel) and len(self.circuit.consumers[name]) == 1:
            port.queue = channel
            channel.worker = join.component.driver
            return None
        place = edge_key(name, join)
        queue = self.deployment.inserted.setdefault(place, QueueChannel(place, capacity=INSERTED_CAPACITY))
        queue.worker = join.component.driver
        port.queue = queue
        return Outlet(join.name, self._at(queue.entry(()), f"queue {place}"))

    def _man_queues(self) -> None:
        """One worker for each group of queues; a worker that is there already keeps its queues."""
        queues = {name: channel for name, channel in self.circuit.channels.items() if isinstance(channel, QueueChannel)}
        queues |= self.deployment.inserted
        manned: dict[str, Worker] = {}
        for group in self.layout.groups:
            served = sorted((name for name in group if name in queues), key=self.layout.order.__getitem__, reverse=True)
            if not served:
                continue
            key = min(group)
            worker = manned[key] = self.deployment.workers.get(key) or Worker(f"{self.deployment.name} {key}")
            worker.serve(tuple(queues[name] for name in served))
            worker.idle = self.deployment.idle
        for worker in self.deployment.workers.values():
            if worker not in manned.values():
                worker.serve(())
        self.deployment.workers = {**self.deployment.workers, **manned}
        self.deployment.places = self._places
        for driver in self.deployment.drivers():
            driver.entries = self._places
        for component in self.circuit.components():
            component.runner = component.driver or self._driver_of(component, manned)

    def _driver_of(self, component: Component, manned: dict[str, Worker]) -> Driver | None:
        """Who runs a component that has no driver of its own: its figures are scaled by that driver's count."""
        for kind, name in sorted(self.layout.runs.get(component.id, ())):
            if kind == "queue":
                return next((worker for key, worker in manned.items() if name in self._group(key)), None)
            by_id = {one.id: one for one in self.circuit.components()}
            return by_id[name].driver
        return None

    def _group(self, key: str) -> set[str]:
        return next(group for group in self.layout.groups if min(group) == key)
