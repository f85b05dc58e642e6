"""Pending settings of nodes and channels: a guard in front of each tests the items, and makes the change.

A guard is compiled in while a line is pending, and out again with the next compilation. The driver that brings the item
makes the change itself: nothing of it is in the slet then, and no other driver runs that slet, so it need not wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from exop.model.condition import PUNCTUATION, Condition, Names, read_condition
from exop.model.items import EndOfStream, Punctuation
from exop.model.lines import Line, condition_of, fired, without
from exop.model.mesh import ChannelSpec, Node
from exop.model.ports import PortSpec, PortType
from exop.runtime.channel import Channel, channel_settings
from exop.runtime.convert import cut, to_items, weight
from exop.runtime.entry import Entry, Push
from exop.runtime.ledger import Firing, Ledger
from exop.runtime.unwind import Unwind
from exop.shown import RAISED, described

if TYPE_CHECKING:
    from exop.runtime.component import Component

#: Compiles the way into a port without a guard.
Compiled = Callable[["Component", PortSpec], Entry]


class Guard:
    """The way into one place behind a look at what comes.

    Attributes:
        inner: What is compiled behind it.
        test: The condition of the line that is the next to take effect, if it looks at the items of this place.
        time_test: The same, if it looks at the time.
    """

    def __init__(self, watch: Watch, inner: Entry, carried: PortType) -> None:
        self.inner = inner
        self.test: Callable[[Any], Any] | None = None
        self.time_test: Callable[[Any], Any] | None = None
        self.fields: tuple[str, ...] | None = None
        self._watch = watch
        self._carried = carried
        self._entry = Entry(
            self._push(probing=False), self._push_batch(probing=False), self._control, place=inner.place
        )

    def entry(self) -> Entry:
        """The way in."""
        entry, place = self._entry, self.inner.place
        entry.probe = Entry(self._push(probing=True), self._push_batch(probing=True), self._control, place=place)
        entry.show, entry.pass_on = self._show, self._pass_on
        return entry

    def _show(self, mark: Punctuation | EndOfStream) -> None:
        self.inner.show(mark)

    def _pass_on(self, mark: Punctuation | EndOfStream) -> None:
        self.inner.pass_on(mark)

    def _push(self, *, probing: bool) -> Push:
        def push(item: Any) -> None:
            if self.test is not None:
                self._look(item)
            (self.inner.probe if probing else self.inner).push(item)

        return push

    def _look(self, item: Any) -> None:
        while self.test is not None and self._watch.holds(self.test, item):
            self._watch.fire()

    def _push_batch(self, *, probing: bool) -> Push:
        def send(batch: Any) -> None:
            (self.inner.probe if probing else self.inner).push_batch(batch)

        def push_batch(batch: Any) -> None:
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
                if at > begin:  # what comes before the row is processed as it was
                    self._send_first(send, cut(batch, begin, at), cut(batch, at, len(rows)))
                    begin = at
                self._watch.fire()
                self._look(row)
            send(cut(batch, begin, len(rows)) if begin else batch)

        return push_batch

    def _opened(self, batch: Any) -> tuple[Any, list[Any]]:
        """A batch as it goes on, and its rows as the condition sees them."""
        if isinstance(batch, list):
            return batch, batch
        if self._carried.form != "columns":
            rows = to_items(batch, self._carried.item)
            return rows, rows
        if self.fields is not None and set(self.fields) <= set(batch.schema.names):
            return batch, batch.select(list(self.fields)).to_pylist() if self.fields else [{}] * weight(batch)
        return batch, batch.to_pylist()

    def _send_first(self, send: Push, first: Any, rest: Any) -> None:
        try:
            send(first)
        except Unwind as unwound:
            unwound.then(self._entry, "push_batch", [rest])
            raise

    def _control(self, mark: Punctuation | EndOfStream) -> None:
        if isinstance(mark, Punctuation):
            while self.time_test is not None and self._watch.holds(self.time_test, mark.time):
                self._watch.fire()
        self.inner.control(mark)


class Watch(ABC):
    """The pending lines of one node or channel, of which the first is armed: they take effect in order.

    Args:
        ledger: Where it is noted what has taken effect.

    Attributes:
        section: The section of the mesh in which they stand.
        problem: What the condition last raised, and on what; the item was processed as if it did not hold.
        errors: How often it raised.
    """

    section: Literal["nodes", "channels"]

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.problem: str | None = None
        self.errors = 0
        self.guards: dict[str, Guard] = {}

    @property
    @abstractmethod
    def there(self) -> Node | ChannelSpec:
        """The node or channel, as it is now."""

    @property
    def name(self) -> str:
        """The name of the node or channel."""
        return self.there.name

    @property
    def pending(self) -> tuple[Line, ...]:
        """The lines, as they are now."""
        return self.there.pending

    @abstractmethod
    def condition(self, line: Line) -> Condition:
        """The condition of a line."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """The settings that conditions see."""

    @abstractmethod
    def configure(self, line: Line) -> None:
        """Put the settings of a line into effect; whatever the slet or the channel raises passes."""

    @abstractmethod
    def put_back(self, before: Any) -> None:
        """Go on as before a line that could not take effect; *before* is without it."""

    def behind(self, key: str, inner: Entry, carried: PortType) -> Entry:
        """Put a guard in front of a way in; *key* is what conditions call it."""
        guard = self.guards[key] = Guard(self, inner, carried)
        self.arm()
        return guard.entry()

    def arm(self) -> None:
        """Let the guards test for the first line; without one they let everything through."""
        for guard in self.guards.values():
            guard.test = guard.time_test = None
        if not self.pending:
            return
        condition = self.condition(self.pending[0])
        test = condition.test(self.settings())
        for key, guard in self.guards.items():
            if condition.subject == PUNCTUATION:
                guard.time_test = test
            elif self.looks_at(condition.subject, key):
                guard.test, guard.fields = test, condition.fields

    def looks_at(self, subject: str, key: str) -> bool:
        """Whether the guard called *key* sees what conditions call *subject*."""
        return subject == key

    def holds(self, test: Callable[[Any], Any], item: Any) -> bool:
        """Whether the condition holds for an item; one for which it raises is processed as if it did not."""
        try:
            return bool(test(item))
        except BaseException as error:  # noqa: BLE001 (whatever a property of an item raises: the item must not be lost)
            self.errors += 1
            self.problem = described(error)
            if self.errors == 1:
                self.ledger.tell("a condition raised", place=self.name, when=self.pending[0].when, problem=self.problem)
            return False

    def fire(self) -> None:
        """Put the first line into effect, note it, and arm the next one; called by the driver that brings the item."""
        before, line, dropped = self.there, self.pending[0], False
        try:
            self.configure(line)
        except RAISED as error:  # whatever a slet or the channel kind of a plugin raises: the item is not lost by it
            dropped = True
            event = f"a {'slet' if self.section == 'nodes' else 'channel'} refused its settings"
            self.ledger.tell(event, place=self.name, line=str(line), problem=described(error))
            self.put_back(replace(before, pending=without(before.pending, line)))
        self.fired(Firing(self.section, self.name, line, dropped))
        self.problem, self.errors = None, 0
        self.arm()

    def fired(self, firing: Firing) -> None:
        """Note in the mesh that a line has taken effect, or was dropped."""
        self.ledger.note(firing)


class NodeWatch(Watch):
    """Looks at what comes into one component, and configures it between two items."""

    section = "nodes"

    def __init__(self, component: Component, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._component = component
        self._compiled: dict[str, tuple[PortSpec, Compiled]] = {}

    def guard(self, port: PortSpec, inner: Entry, compiled: Compiled) -> Entry:
        """Put a guard in front of the way into a port; *compiled* makes that way anew, with new settings."""
        self._compiled[port.name] = port, compiled
        return self.behind(port.name, inner, port.type)

    @property
    def there(self) -> Node:
        """The node."""
        return self._component.node

    def condition(self, line: Line) -> Condition:
        """Read with what the slet has."""
        return condition_of(self._component.node, line)

    def settings(self) -> Mapping[str, Any]:
        """The settings of the node."""
        return self._component.node.settings

    def configure(self, line: Line) -> None:
        """Configure the component."""
        self._component.configure(fired(self._component.node, line))

    def put_back(self, before: Node) -> None:
        """Configure the component as it was."""
        with suppress(*RAISED):
            self._component.configure(before)
        self._component.node = before

    def fired(self, firing: Firing) -> None:
        """Compile the ways anew, and note it in the mesh, unless the component only runs beside it."""
        for key, guard in self.guards.items():
            port, compiled = self._compiled[key]
            guard.inner = compiled(self._component, port)
        if self.ledger.counts(self._component):
            super().fired(firing)
        self._component.announce()


class ChannelWatch(Watch):
    """Looks at what comes into one channel, and gives it its new settings.

    Args:
        channel: The channel.
        ledger: Where it is noted what has taken effect.
        names: What its conditions may name; all but `punctuation` stand for the item.
    """

    section = "channels"

    def __init__(self, channel: Channel, ledger: Ledger, names: Names) -> None:
        super().__init__(ledger)
        self._channel = channel
        self._names = names

    @property
    def there(self) -> ChannelSpec:
        """The channel, as it is to be."""
        return self.ledger.asked[self._channel.name]

    def condition(self, line: Line) -> Condition:
        """Read with what the channel carries."""
        return read_condition(line.when, self._names)

    def settings(self) -> Mapping[str, Any]:
        """A condition on a channel names no settings."""
        return {}

    def looks_at(self, subject: str, key: str) -> bool:
        """There is one guard, whatever a condition calls what comes."""
        return True

    def configure(self, line: Line) -> None:
        """Reconfigure the channel."""
        channel, asked = self._channel, self.there
        after = replace(asked, settings={**asked.settings, **line.settings}, pending=without(asked.pending, line))
        channel.reconfigure(channel_settings(type(channel), after), close=line.close_windows)
        self.ledger.ask(after)

    def put_back(self, before: ChannelSpec) -> None:
        """Leave the channel as it is."""
        self.ledger.ask(before)
