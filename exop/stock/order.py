"""Order, repetition and delay: `bsort` sorts, `ordered` checks the order, `dedupe` drops repetitions, `delay` waits."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from exop.errors import SettingError
from exop.model.items import EndOfStream, Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OutputPort, PortType
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.runtime.channels.partitioned import key_reader, time_reader
from exop.stock.rows import row_type

T = TypeVar("T")

#: The minimum number of stored entries before a sweep drops those that no later item needs.
_FEW: Final = 100


class Unsorted(Memento):
    """The items that wait for smaller ones, with their values and numbers, in order, by group.

    `left` is the value of the last item of each group that has left, `complete` the time of the last punctuation.
    `number` is the number of items so far, `held` that of the waiting ones, and `swept` that of the groups in `left`
    after the last sweep.
    """

    groups: dict[Any, list[tuple[int | float, int, Any]]] = field(default_factory=dict)
    left: dict[Any, int | float] = field(default_factory=dict)
    complete: float = -math.inf
    number: int = 0
    held: int = 0
    swept: int = 0


class _InOrder(Slet, Generic[T]):
    """The base of slets that compare the items of a group by a field; a subclass declares its `slack`."""

    reopens: ClassVar[bool] = True
    on: str
    by: str | list[str] = ""
    late: OutputPort[T]

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Refuse a field that the input lacks, and a slack below 0."""
        return _checked(cls, settings, inputs, fields=("on", "by"), lengths=("slack",))

    @classmethod
    def restores(cls, before: Any, after: Any) -> str | None:
        """Return the reason if the state belongs to other groups, or to another field."""
        return _changed(before, after, "on", "by")

    def __enter__(self) -> Self:
        self._value, self._key = time_reader(self.on), key_reader(self.by)
        return self


class BSort(_InOrder[T], name="bsort"):
    """Sort a stream that is nearly in order: hold back a few items, and emit the smallest one.

    Each group holds back `slack` items; if one more arrives, the smallest of them leaves, of equal ones the first. That
    is the result of `slack` passes of bubble sort. An item that is smaller than one of its group that has left is late,
    and so is one that a punctuation excludes. Late items are emitted at `late`, and are counted even if `late` is not
    connected. A punctuation first lets all items up to its time leave, and the end of the stream lets all leave.

    Args:
        on: The field by which items are sorted, a finite number; the time, if there are punctuations.
        slack: The number of items that each group holds back.
        by: The field, or the fields, whose values make a group; by default, all items are one group.
    """

    slack: int
    unsorted: Unsorted

    def __enter__(self) -> Self:
        #: A value for each group with waiting items, none of which is smaller: as a heap, with numbers; and by group.
        self._heap: list[tuple[float, int, Any]] = []
        self._lowest: dict[Any, float] = {}
        self._groups: dict[Any, Any] | None = None
        self._pushed = 0
        return super().__enter__()

    @input_port
    def item(self, item: T | Punctuation | EndOfStream) -> Iterable[T | Punctuation]:
        """Process one item."""
        if isinstance(item, (Punctuation, EndOfStream)):
            return self._complete(item)
        value, key, state = self._value(item), self._key(item), self._adopted()
        last = state.left.get(key)
        if value <= state.complete or (last is not None and value < last):
            self.late.push(item)
            return ()
        if (waiting := state.groups.get(key)) is None:
            waiting = state.groups[key] = []
        insort(waiting, (value, state.number, item))
        self._note(key, value)
        state.number += 1
        left = []
        while len(waiting) > self.slack:  # more than one leaves if the slack was reduced
            state.left[key], _, one = waiting.pop(0)
            left.append(one)
        if not waiting:
            del state.groups[key]
        state.held += 1 - len(left)
        return left

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of items that are held back."""
        return {"held": self.unsorted.held}

    def _complete(self, mark: Punctuation | EndOfStream) -> list[T | Punctuation]:
        """Return the items that a control item lets leave, and the punctuation."""
        state, due = self._adopted(), list[tuple[int | float, int, Any]]()
        time = math.inf if isinstance(mark, EndOfStream) else mark.time
        for key in self._reached(time):
            if (waiting := state.groups.get(key)) is not None:
                count = bisect_right(waiting, time, key=itemgetter(0))
                due += waiting[:count]
                del waiting[:count]
                if waiting:
                    self._note(key, waiting[0][0])
                else:
                    del state.groups[key]
        state.held -= len(due)
        found: list[T | Punctuation] = [one for _, _, one in sorted(due, key=itemgetter(0, 1))]
        if isinstance(mark, EndOfStream):
            return found
        state.complete = max(state.complete, time)
        if len(state.left) > 2 * state.swept + _FEW:
            state.left = {key: value for key, value in state.left.items() if value > time}
            state.swept = len(state.left)
        return [*found, mark]

    def _adopted(self) -> Unsorted:
        """Return the memento, perhaps another one than before."""
        if self._groups is not (state := self.unsorted).groups:
            self._groups, self._lowest, self._heap = state.groups, {}, []
            for key, waiting in state.groups.items():
                self._note(key, waiting[0][0] if waiting else -math.inf)
        return state

    def _note(self, key: Any, value: float) -> None:
        """Let a punctuation through *value* look at a group, if none before it does so."""
        if (lowest := self._lowest.get(key)) is None or value < lowest:
            self._lowest[key] = value
            self._pushed += 1
            heappush(self._heap, (value, self._pushed, key))

    def _reached(self, time: float) -> Iterator[Any]:
        """Yield the groups that may have an item up to *time*."""
        while self._heap and self._heap[0][0] <= time:
            value, _, key = heappop(self._heap)
            if self._lowest.get(key) == value:
                del self._lowest[key]
                yield key


class Largest(Memento):
    """The largest values so far, in order, by group: one more than the slack."""

    groups: dict[Any, list[int | float]] = field(default_factory=dict)


class Ordered(_InOrder[T], name="ordered"):
    """Forward the items that are in order, and emit the others at `late`.

    An item is in order if at most `slack` earlier items of its group are larger. Late items are counted even if `late`
    is not connected. Nothing is held back.

    Args:
        on: The field that has to increase, a finite number.
        slack: The number of larger items that may precede an item.
        by: The field, or the fields, whose values make a group; by default, all items are one group.
    """

    slack: int = 0
    largest: Largest

    @input_port
    def item(self, item: T) -> T | None:
        """Process one item."""
        value, key, slack = self._value(item), self._key(item), self.slack
        largest = self.largest.groups.setdefault(key, [])
        if len(largest) > slack and largest[-1 - slack] > value:
            self.late.push(item)
            return None
        insort(largest, value)
        del largest[: -1 - slack]
        return item

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of groups."""
        return {"groups": len(self.largest.groups)}


class Passed(Memento):
    """The time from which repetitions are counted, by key.

    `complete` is the time of the last punctuation, and `swept` the number of keys after the last sweep.
    """

    times: dict[Any, int | float] = field(default_factory=dict)
    complete: float = -math.inf
    swept: int = 0


class Dedupe(Slet, Generic[T], name="dedupe"):
    """Forward the first item of each key, and drop its repetitions for some time.

    An item is a repetition if its time is less than that of the forwarded item plus `within`. The slet forgets a key
    when a punctuation excludes further repetitions; without punctuations (`stock:watermark`), the memento grows with
    the number of keys. Items that a punctuation excludes are late: they are emitted at `late`, and are counted even if
    `late` is not connected.

    Args:
        by: The field, or the fields, that make the key; with an empty list all items are equal.
        time: The field with the time of an item, which must be a finite number.
        within: The time for which repetitions are dropped, in the unit of `time`.
        refresh: Whether the time counts from the latest repetition instead of the forwarded item.
    """

    reopens: ClassVar[bool] = True
    by: str | list[str]
    time: str
    within: float
    refresh: bool = False
    passed: Passed
    late: OutputPort[T]

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Refuse a field that the input lacks, and a time below 0."""
        return _checked(cls, settings, inputs, fields=("by", "time"), lengths=("within",))

    @classmethod
    def restores(cls, before: Any, after: Any) -> str | None:
        """Return the reason if the keys or times are those of other fields."""
        return _changed(before, after, "by", "time")

    def __enter__(self) -> Self:
        self._time, self._key = time_reader(self.time), key_reader(self.by)
        return self

    @input_port
    def item(self, item: T | Punctuation) -> T | Punctuation | None:
        """Process one item."""
        passed = self.passed
        if isinstance(item, Punctuation):
            self._complete(item.time)
            return item
        time, key = self._time(item), self._key(item)
        first = passed.times.get(key)
        if time <= passed.complete:
            self.late.push(item)
        elif first is None or time - first >= self.within:
            passed.times[key] = time
            return item
        elif self.refresh and time > first:
            passed.times[key] = time
        return None

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of stored keys."""
        return {"keys": len(self.passed.times)}

    def _complete(self, time: float) -> None:
        passed = self.passed
        passed.complete = time = max(time, passed.complete)
        if len(passed.times) > 2 * passed.swept + _FEW:
            passed.times = {key: first for key, first in passed.times.items() if time - first < self.within}
            passed.swept = len(passed.times)


class Delayed(Memento):
    """The items that wait, as a heap of times, numbers and items.

    `sent` is the time of the last emitted punctuation, and `number` the number of items so far.
    """

    items: list[tuple[int | float, int, Any]] = field(default_factory=list)
    sent: float = -math.inf
    number: int = 0


class Delay(Slet, Generic[T], name="delay"):
    """Hold each item back until the time of the stream is later than that of the item by some seconds.

    An item leaves at the first punctuation after which all times are at least its own plus `seconds`; items leave in
    the order of their times, equal ones in that of their arrival. Punctuations leave with their time less `seconds`. At
    the end of the stream all items leave. Items that an emitted punctuation excludes are late: they are emitted at
    `late`, and are counted even if `late` is not connected. Without punctuations (`stock:watermark`), nothing leaves
    before the end.

    Args:
        time: The field with the time of an item, which must be a finite number.
        seconds: The delay, in the unit of `time`.
    """

    reopens: ClassVar[bool] = True
    time: str
    seconds: float
    delayed: Delayed
    late: OutputPort[T]

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Refuse a field that the input lacks, and a delay below 0."""
        return _checked(cls, settings, inputs, fields=("time",), lengths=("seconds",))

    @classmethod
    def restores(cls, before: Any, after: Any) -> str | None:
        """Return the reason if the times are those of another field."""
        return _changed(before, after, "time")

    def __enter__(self) -> Self:
        self._time = time_reader(self.time)
        return self

    @input_port
    def item(self, item: T | Punctuation | EndOfStream) -> Iterable[T | Punctuation]:
        """Process one item."""
        delayed = self.delayed
        if isinstance(item, Punctuation):
            return self._complete(item)
        if isinstance(item, EndOfStream):
            return [heappop(delayed.items)[2] for _ in range(len(delayed.items))]
        if (time := self._time(item)) <= delayed.sent:
            self.late.push(item)
        else:
            heappush(delayed.items, (time, delayed.number, item))
            delayed.number += 1
        return ()

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of items that are held back."""
        return {"held": len(self.delayed.items)}

    def _complete(self, mark: Punctuation) -> list[T | Punctuation]:
        """Return the items that are due, and the punctuation that holds for those that stay."""
        delayed, left = self.delayed, list[T | Punctuation]()
        while delayed.items and self._is_due(delayed.items[0][0], mark):
            left.append(heappop(delayed.items)[2])
        sent = Punctuation(mark.time - self.seconds, mark.idle)
        if delayed.items and delayed.items[0][0] <= sent.time:
            sent = Punctuation.before(delayed.items[0][0], mark.idle)
        if sent.time <= delayed.sent:
            return left
        delayed.sent = sent.time
        return [*left, sent]

    def _is_due(self, time: float, mark: Punctuation) -> bool:
        """Whether all later times are at least this one plus the delay; whole numbers are followed by whole ones."""
        if isinstance(time, int):
            due = time + (int(self.seconds) if self.seconds % 1 == 0 else self.seconds)
            return mark.time >= math.ceil(due) - 1
        return mark.following >= time + self.seconds


def _checked(
    cls: type[Slet],
    settings: Mapping[str, Any],
    inputs: Mapping[str, PortType],
    *,
    fields: tuple[str, ...],
    lengths: tuple[str, ...],
) -> SletSpec:
    """Return the specification; refuse fields that the input lacks, and numbers below 0."""
    taken, spec = inputs.get("item", PortType()), spec_of(cls)
    for setting in fields:
        given = settings[setting]
        for name in filter(None, [given] if isinstance(given, str) else given):
            taken.check_field("", setting, name)
    for setting in lengths:
        if not 0 <= (value := settings[setting]) < math.inf:
            problem = f"it is {value:g}, and must be finite, and 0 or more"
            raise SettingError(place="", setting=setting, problem=problem)
    if taken.form != "columns":  # the outputs have the type variable of the input
        return spec
    row = row_type(taken, {}).item
    return replace(spec, outputs=tuple(replace(port, type=replace(port.type, item=row)) for port in spec.outputs))


def _changed(before: Any, after: Any, *settings: str) -> str | None:
    for name in settings:
        if before.settings.get(name) != after.settings.get(name):
            return f"its state belongs to {name}={before.settings.get(name)!r}"
    return None
