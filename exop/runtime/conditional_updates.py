"""Pending lines: settings that take effect at a point in the stream, and the ledger of those that have.

A guard in front of the node or channel tests the items while a line is pending. The driver that brings the item changes
the settings itself, between two items: no other driver runs that slet, so it need not wait.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from exop.model.items import EndOfStream, Punctuation
from exop.model.meshes.condition import PUNCTUATION, Names, read_condition
from exop.model.meshes.conditional_updates import Place, fired, node_names, without
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
from exop.model.meshes.nodes import Line
from exop.model.slets.ports import PortSpec, PortType
from exop.runtime.channels.base import Channel, channel_settings
from exop.runtime.component import Component
from exop.runtime.dataflow.batches import cut, to_items, weight
from exop.runtime.dataflow.entry import Entry, Push, Unwind
from exop.safe_repr import RAISED, described

#: The number of firings that are kept: a mesh that is older than the first of them is outdated.
KEPT = 1000


@dataclass(frozen=True)
class Firing:
    """A line that took effect, or was dropped because it could not, and the revision of the mesh after it."""

    section: Literal["nodes", "channels"]
    name: str
    line: Line
    dropped: bool = False
    revision: int = 0

    def of(self, there: Place) -> Place:
        """Return its node or channel after it."""
        return (without if self.dropped else fired)(there, self.line)

    def on(self, mesh: Mesh) -> Mesh:
        """Return the mesh after it."""
        there = getattr(mesh, self.section)[self.name]
        edits: dict[str, Any] = {self.section: {self.name: self.of(there)}}
        return mesh.edited(**edits)


class Running(Protocol):
    """A deployment, as far as its ledger knows it."""

    name: str
    mesh: Mesh
    components: dict[str, Component]
    channels: dict[str, Channel]


class Ledger:
    """Records the lines that take effect in a deployment; its drivers call it.

    Attributes:
        firings: The lines that took effect, the latest last.
        news: Events to log; `heard` is called when there are new ones, because no driver waits for a log.
        watches: Those of the components and channels with pending lines, and perhaps of some that are gone.
    """

    def __init__(self, deployment: Running) -> None:
        self.firings: deque[Firing] = deque(maxlen=KEPT)
        self.watches: dict[Component | Channel, Watch] = {}
        self.news: deque[tuple[str, dict[str, Any]]] = deque()
        self.heard: Callable[[], object] = bool
        self.deployment = deployment
        self._turn = threading.Lock()

    def watch(self, place: Component | Channel, watch: Watch | None) -> None:
        """Set the watch of a component or channel; `None` when no line is pending there."""
        if watch is not None:
            self.watches[place] = watch
        else:
            self.watches.pop(place, None)

    def watched(self, *, pending: bool) -> tuple[list[str], list[str]]:
        """Return the nodes and the channels that have a watch: those with pending lines, or those without any left."""
        found: dict[str, list[str]] = {"nodes": [], "channels": []}
        for place, watch in list(self.watches.items()):
            if not watch.stands:
                self.watches.pop(place, None)
            elif bool(watch.there.pending) is pending:
                found[watch.section].append(watch.there.name)
        return found["nodes"], found["channels"]

    def note(self, firing: Firing) -> None:
        """Enter a line that took effect into the mesh."""
        deployment = self.deployment
        with self._turn:  # drivers of several nodes may come at the same time
            there = getattr(deployment.mesh, firing.section).get(firing.name)
            if there is None or firing.line not in there.pending:  # no reason to end the driver that brings the item
                self.tell("a line took effect that the mesh does not have", place=firing.name, line=str(firing.line))
                return
            noted = replace(firing, revision=deployment.mesh.revision + 1)
            self.firings.append(noted)
            deployment.mesh = noted.on(deployment.mesh).at(noted.revision)
        event = "a pending line could not take effect" if firing.dropped else "a pending line took effect"
        self.tell(event, place=firing.name, line=str(firing.line))

    def tell(self, event: str, **facts: Any) -> None:
        """Add an event to the news."""
        self.news.append((event, {"application": self.deployment.name, **facts}))
        self.heard()

    def since(self, revision: int) -> tuple[Mesh, list[Firing] | None]:
        """Return the mesh, and the lines that took effect since a revision; `None` if other changes came between."""
        with self._turn:
            mesh = self.deployment.mesh
            found = [one for one in self.firings if one.revision > revision]
        return mesh, found if len(found) == mesh.revision - revision else None


class Guard:
    """Tests the payloads on their way into *inner*, the compiled entry of one place."""

    def __init__(self, watch: Watch, inner: Entry, carried: PortType) -> None:
        self.inner = inner
        #: The condition of the next line, if it concerns the items of this place, or the time; and the fields it reads.
        self.test: Callable[[Any], Any] | None = None
        self.time_test: Callable[[Any], Any] | None = None
        self.fields: tuple[str, ...] | None = None
        self._watch = watch
        self._carried = carried
        probe = self._made(lambda: self.inner.probe)
        self.entry = self._made(lambda: self.inner, probe)
        self.entry.show = lambda mark: self.inner.show(mark)  # noqa: PLW0108 (of the entry of then)
        self.entry.pass_on = lambda mark: self.inner.pass_on(mark)  # noqa: PLW0108 (the same)

    def _made(self, inner: Callable[[], Entry], probe: Entry | None = None) -> Entry:
        def push(item: Any) -> None:
            if self.test is not None:
                self._look(item)
            inner().push(item)

        def push_batch(batch: Any) -> None:
            self._push_batch(batch, lambda part: inner().push_batch(part))

        return Entry(push, push_batch, self._control, endpoint=self.inner.endpoint, probe=probe)

    def _look(self, item: Any) -> None:
        while self.test is not None and self._watch.holds(self.test, item):
            self._watch.fire()

    def _push_batch(self, batch: Any, send: Push) -> None:
        if self.test is None:
            send(batch)
            return
        batch, rows = self._opened(batch)
        begin = 0
        for at, row in enumerate(rows):
            if self.test is None:
                break
            if not self._watch.holds(self.test, row):
                continue
            if at > begin:  # the rows before this one are processed with the settings of before
                try:
                    send(cut(batch, begin, at))
                except Unwind as unwound:
                    unwound.then(self.entry, "push_batch", [cut(batch, at, len(rows))])
                    raise
                begin = at
            self._watch.fire()
            self._look(row)
        send(cut(batch, begin, len(rows)) if begin else batch)

    def _opened(self, batch: Any) -> tuple[Any, list[Any]]:
        """Return the batch to send on, and its rows as the condition reads them."""
        if isinstance(batch, list):
            return batch, batch
        if self._carried.form != "columns":
            rows = to_items(batch, self._carried.item)
            return rows, rows
        if self.fields is not None and set(self.fields) <= set(batch.schema.names):
            return batch, batch.select(list(self.fields)).to_pylist() if self.fields else [{}] * weight(batch)
        return batch, batch.to_pylist()

    def _control(self, mark: Punctuation | EndOfStream) -> None:
        if isinstance(mark, Punctuation):
            while self.time_test is not None and self._watch.holds(self.time_test, mark.time):
                self._watch.fire()
        self.inner.control(mark)


class Watch(ABC):
    """The pending lines of one component or channel: they take effect in order, and the guards test for the first.

    Args:
        ledger: Records those that have taken effect.
        names: The names that their conditions may use.

    Attributes:
        section: The section of the mesh that has them.
        problem: The last exception of the condition; an item for which it raises is processed as if it did not hold.
        errors: The number of these exceptions.
    """

    section: Literal["nodes", "channels"]

    def __init__(self, place: Component | Channel, ledger: Ledger, names: Names) -> None:
        self._place, self._ledger, self._names = place, ledger, names
        self.problem: str | None = None
        self.errors = 0
        self.guards: dict[str, Guard] = {}

    @property
    def there(self) -> Any:
        """The current node or channel of the mesh, with the lines that have not taken effect yet."""
        return self._place.asked if isinstance(self._place, Channel) else self._place.node

    @property
    def stands(self) -> bool:
        """Whether its component or channel is that of the mesh; a follower runs behind it, on the same items."""
        deployment = self._ledger.deployment
        places: Mapping[str, Any] = deployment.components if self.section == "nodes" else deployment.channels
        return places.get(self.there.name) is self._place

    def behind(self, key: str, inner: Entry, carried: PortType) -> Entry:
        """Put a guard in front of an entry; conditions call it *key*."""
        guard = self.guards[key] = Guard(self, inner, carried)
        self._arm()
        return guard.entry

    def _arm(self) -> None:
        """Let the guards test for the first line; without one they test nothing."""
        for guard in self.guards.values():
            guard.test = guard.time_test = None
        if not self.there.pending:
            return
        condition = read_condition(self.there.pending[0].when, self._names)
        test = condition.test(self.there.settings)
        for key, guard in self.guards.items():
            if condition.subject == PUNCTUATION:
                guard.time_test = test
            elif condition.subject == key or self.section == "channels":  # a channel has one guard, for all names
                guard.test, guard.fields = test, condition.fields

    def holds(self, test: Callable[[Any], Any], item: Any) -> bool:
        """Whether the condition holds for an item."""
        try:
            return bool(test(item))
        except BaseException as error:  # noqa: BLE001 (whatever a property of an item raises: the item must not be lost)
            self.errors += 1
            self.problem = described(error)
            if self.errors == 1:
                facts = {"when": self.there.pending[0].when, "problem": self.problem}
                self._ledger.tell("a condition raised", place=self.there.name, **facts)
            return False

    def fire(self) -> None:
        """Put the first line into effect, record it, and arm the next one."""
        before, line, dropped = self.there, self.there.pending[0], False
        try:
            self._take(fired(before, line), line)
        except RAISED as error:  # whatever a slet or the channel kind of a plugin raises: the item is not lost by it
            dropped = True
            event = f"a {'slet' if self.section == 'nodes' else 'channel'} refused its settings"
            self._ledger.tell(event, place=before.name, line=str(line), problem=described(error))
            self._put_back(without(before, line))
        if self.stands:
            self._ledger.note(Firing(self.section, before.name, line, dropped))
        self.problem, self.errors = None, 0
        self._arm()

    @abstractmethod
    def _take(self, after: Any, line: Line) -> None:
        """Put a line into effect; *after* has its settings."""

    @abstractmethod
    def _put_back(self, before: Any) -> None:
        """Go on with the settings of *before*, which lacks the line that could not take effect."""


class NodeWatch(Watch):
    """The pending lines of one component, which is configured between two items."""

    section = "nodes"

    def __init__(self, component: Component, ledger: Ledger) -> None:
        super().__init__(component, ledger, node_names(component.node.name, component.node.slet))
        self._component = component
        self._compile: dict[str, Callable[[], Entry]] = {}

    def guard(self, port: PortSpec, compiled: Callable[[], Entry]) -> Entry:
        """Put a guard in front of the entry of a port, which *compiled* compiles: now, and again with new settings."""
        self._compile[port.name] = compiled
        return self.behind(port.name, compiled(), port.type)

    def fire(self) -> None:
        """Put the first line into effect, and compile the entries again."""
        super().fire()
        for key, guard in self.guards.items():
            guard.inner = self._compile[key]()
        self._component.announce()

    def _take(self, after: Node, line: Line) -> None:
        self._component.configure(after)

    def _put_back(self, before: Node) -> None:
        with suppress(*RAISED):
            self._component.configure(before)
        self._component.node = before


class ChannelWatch(Watch):
    """The pending lines of one channel."""

    section = "channels"

    def __init__(self, channel: Channel, ledger: Ledger, names: Names) -> None:
        super().__init__(channel, ledger, names)
        self._channel = channel

    def _take(self, after: ChannelSpec, line: Line) -> None:
        settings = channel_settings(type(self._channel), after)
        self._channel.reconfigure(settings, close=line.close_windows)
        self._channel.asked = after

    def _put_back(self, before: ChannelSpec) -> None:
        self._channel.asked = before
