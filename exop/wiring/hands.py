"""In-flight items of drivers while the mesh changes: they go to the driver of the place where they then lead.

A driver that waits for a suspended slet holds items on their way to it and to others; one that is replaced holds what
its slet has yielded last. None of that may be done by a driver that does not run the place any more: two drivers would
meet in one slet, or overtake each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from exop.errors import PlanError
from exop.model.items import CONTROL
from exop.runtime.channel import Channel
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver, acting_as
from exop.runtime.entry import NOWHERE, Entry
from exop.runtime.unwind import Work
from exop.wiring.circuit import Circuit
from exop.wiring.downstream import Downstream
from exop.wiring.drain import HELPLESS
from exop.wiring.layout import DriverKey, Layout
from exop.wiring.places import before_key, channel_at, edge_key, in_front_of, port_at


@dataclass
class Hands:
    """Gives in-flight items to their drivers; used while everything is parked, once the new connections are bound.

    Args:
        deployment: As it is after the change.
        before: The connections before it.
        after: The connections after it, and who runs what.
        givers: By driver, those from which it has got what it has to do; `id` for `id`.
    """

    deployment: Deployment
    before: Circuit
    after: Circuit
    layout: Layout
    givers: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def pass_on(self, owner: Driver, work: Iterable[Work]) -> list[Work]:
        """Hand over what *owner* has given up; returns what it is to do itself."""
        stays = []
        for one in work:
            entry = self._destination(one)
            if entry is not None:
                stays += self._give(owner, replace(one, entry=entry))
        return stays

    def pass_out(self, component: Component, successor: Component | None, unsent: Iterable[Work]) -> None:
        """Send what *component*, which leaves, has put out and not sent: by its successor's ports, if it has them."""
        if component.driver is None:
            return
        ports = {id(entry): port for port, entry in component.to.items()}
        for one in unsent:
            entry = successor.to.get(ports.get(id(one.entry), "")) if successor is not None else None
            if entry is None or one.entry is NOWHERE:
                self.pass_on(component.driver, [one])
            else:
                self._give(component.driver, replace(one, entry=entry))

    def _give(self, owner: Driver, todo: Work) -> list[Work]:
        """Hand one thing over to the driver that runs its place; returns it if that is *owner* itself."""
        runner = self._runner(todo.entry.place) if todo.entry.place else owner
        if runner is not None:
            self.givers[id(runner)].add(id(owner))
        if runner is owner:
            return [todo]
        if runner is None:
            with acting_as(owner):  # it is closed: no queue lets it wait
                todo.do({})
        else:
            runner.take_on([todo])
            self._tell_holders(owner, runner)
        return []

    def pass_first(self, owner: Driver, work: list[Work]) -> None:
        """Hand over what is older than anything else on its way to the same place."""
        entry = self._destination(work[0])
        runner = self._runner(entry.place) if entry is not None else None
        if entry is None or runner is None:
            self.pass_on(owner, work)
            return
        self.givers[id(runner)].add(id(owner))
        later = list(runner.work)
        runner.work.clear()
        runner.take_on([*(Work(entry, one.way, one.payload) for one in work), *later])

    def put_in_order(self, driver: Driver) -> None:
        """Sort what a driver has from several others: what is farther downstream is older.

        What comes from one driver alone stays as it is: that one would have gone on in just this order, and would do so
        again after a crash.
        """
        if len(self.givers[id(driver)]) < 2:
            return
        in_order = Downstream(self.after, self.layout).sorted(driver.work)
        driver.work.clear()
        driver.work.extend(in_order)

    def send_closed(self, channels: Iterable[str]) -> None:
        """Let the drivers that push into these channels send what came to its end there, though nothing comes."""
        for name in channels:
            driver = self._first(self.layout.runs.get(f"channel:{name}", set()))
            if driver is not None:
                send = partial(_send_closed, self.after.channels[name])
                driver.take_on([Work(Entry(send, send, send), "push", None)])

    def _destination(self, work: Work) -> Entry | None:
        """Return the entry where the work leads now; `None` if that node is removed."""
        place, there = work.entry.place, self.deployment.places
        if work.entry is NOWHERE:
            return None
        if not place:  # it leads to nothing that a change could move
            return work.entry
        left = next((name for name, joins in self.before.producers.items() if place in [j.name for j in joins]), None)
        if left is not None and place not in [join.name for join in self.after.producers.get(left, ())]:
            # It came from a port that pushes elsewhere now: what had left goes where it was going.
            return None if isinstance(work.payload, CONTROL) else there.get(f"channel {left}", there.get(place))
        if place in there:
            return there[place]
        if not place.startswith("queue "):
            return None
        node, _, port = place.rpartition(" -> ")[2].rpartition(".")
        component = self.deployment.components.get(node)
        if component is not None and port in component.pulled:
            return work.entry  # a port that pulls takes what its earlier queues hold
        return there.get(f"queue {self._behind_moved(node, port)}", there.get(f"{node}.{port}"))

    def _behind_moved(self, node: str, port: str) -> str:
        """The place to which the contents of the queues in front of a port have gone, if it is connected elsewhere."""
        for name, joins in self.after.consumers.items():
            for join in joins:
                if join.name == f"{node}.{port}":
                    return in_front_of(self.after, name, join)
        return ""

    def _runner(self, place: str) -> Driver | None:
        """Return the driver that runs a place; `None` for a queue, into which any driver may push."""
        if place.startswith("queue "):
            return None
        if place.startswith(("window ", "into ")):
            return self._first(self.layout.runs.get(f"channel:{channel_at(place)}", set()))
        node, _, port = place.rpartition(".")
        component = self.deployment.components.get(node)
        if component is not None and port in {spec.name for spec in component.spec.inputs}:
            return self._first(self.layout.runs.get(component.node.name, set()))
        producing = [name for name, joins in self.after.producers.items() if place in [join.name for join in joins]]
        return self._of_channel(producing[0] if producing else place.removeprefix("channel "))

    def _of_channel(self, name: str) -> Driver | None:
        channel = self.after.channels[name]
        if channel.buffered or before_key(name) in self.layout.inserted:
            return None
        if channel.serial:
            return self._first(self.layout.runs.get(f"channel:{name}", set()))
        for join in self.after.consumers[name]:
            if not join.port.pulled and edge_key(name, join) not in self.layout.inserted:
                return self._first(self.layout.runs.get(join.component.node.name, set()))
        return None

    def _first(self, keys: set[DriverKey]) -> Driver | None:
        for kind, name in sorted(keys):
            if kind == "queue":
                queue = self.deployment.inserted.get(name) or self.deployment.channels.get(name)
                return getattr(queue, "worker", None)
            component = self.deployment.components.get(name)
            return component.driver if component is not None else None
        return None

    def _tell_holders(self, before: Driver, after: Driver) -> None:
        """Make the new driver a holder where the old one was: resuming the component wakes it."""
        for component in self.deployment.components.values():
            if before in component.trouble.holders:
                component.trouble.holders.append(after)


def _send_closed(channel: Channel, _: object) -> None:
    channel.send_closed()


def check_hands(drivers: Iterable[Driver], before: Circuit, after: Circuit) -> None:
    """Refuse a change that removes the destination of an in-flight item.

    A node that cannot work itself takes what waits for it along, when it is removed.

    Raises:
        PlanError: an item would be lost.
    """
    stay = {component.node.name for component in after.components()}
    gone, lost = set(_gone(before, after, stay)), set()
    for component in before.components():
        if component.node.name not in stay and component.status not in HELPLESS:
            lost |= {f"{component.node.name}.{port.name}" for port in component.spec.inputs}
    for driver in drivers:
        for work in driver.work:
            place = work.entry.place
            port, channel = port_at(place), channel_at(place)
            parted = channel and port and _parted(after, channel, port, stay)
            if port in lost or parted or (channel in gone and not port):
                raise PlanError(
                    f"an item is on its way to {place}, which would be removed, and cannot go on "
                    f"({driver.held_by or driver.name}); repair or resume that first"
                )


def _parted(after: Circuit, channel: str, port: str, stay: set[str]) -> bool:
    """A port that stays has left the channel that keeps a window for it."""
    return port.rpartition(".")[0] in stay and all(join.name != port for join in after.consumers.get(channel, ()))


def _gone(before: Circuit, after: Circuit, stay: set[str]) -> Iterator[str]:
    """Yield the channels that are removed though a reader of them stays."""
    for name in before.channels:
        if name not in after.channels and any(join.component.node.name in stay for join in before.consumers[name]):
            yield name
