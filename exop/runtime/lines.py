"""The guard in front of a port or channel with pending settings: it looks at each item, and makes the change.

A guard is compiled in while a line is pending, and out again with the next compilation. The driver that brings the item
makes the change itself: nothing of it is in the slet then, and no other driver runs that slet, so it need not wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from exop.model.condition import PUNCTUATION, Condition
from exop.model.items import EndOfStream, Punctuation
from exop.model.lines import Line
from exop.model.ports import PortType
from exop.runtime.convert import cut, to_items, weight
from exop.runtime.entry import Entry, Push
from exop.runtime.unwind import Unwind
from exop.shown import described

if TYPE_CHECKING:
    from exop.runtime.ledger import Ledger


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
            self.inner.push(item)

        def push_probe(item: Any) -> None:
            if self.test is not None:
                self._look(item)
            self.inner.probe.push(item)

        return push_probe if probing else push

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
        problem: What the condition last raised, and on what; the item was processed as if it did not hold.
        errors: How often it raised.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.problem: str | None = None
        self.errors = 0
        self.guards: dict[str, Guard] = {}

    @property
    @abstractmethod
    def name(self) -> str:
        """The node or channel."""

    @property
    @abstractmethod
    def pending(self) -> tuple[Line, ...]:
        """The lines, as they are now."""

    @abstractmethod
    def condition(self, line: Line) -> Condition:
        """The condition of a line."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """The settings that conditions see."""

    @abstractmethod
    def take_effect(self, line: Line) -> None:
        """Make the change, and note it; called by the driver that brings the item."""

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
        """The first line takes effect: the next one is armed."""
        self.take_effect(self.pending[0])
        self.problem, self.errors = None, 0
        self.arm()
