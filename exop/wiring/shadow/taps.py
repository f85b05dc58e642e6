"""The taps on the slet whose outputs count (the leader), and on the one that runs behind it (the follower)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.ports import PortSpec
from exop.runtime.component import Component
from exop.runtime.convert import independent, weight
from exop.runtime.drivers.base import Halted
from exop.runtime.entry import NOWHERE, Control, Entry, Tap, Unwind
from exop.wiring.shadow.calls import Call, Leaving, left_by

Left = Callable[[Leaving], object]


class LeaderTap(Tap):
    """Hands every call of the leader on, as soon as it is known what became of it.

    A call for which the leader is suspended, or will be tried again, is none yet: the item is still its own.

    Args:
        leader: Whose calls they are.
        put: Takes each of them; called by the driver that runs the leader.
        left: Takes what a leader with a driver of its own puts out; `None` when nobody wants to know what leaves.
        copied: Makes of a value that may be altered one that is handed on.
    """

    def __init__(
        self,
        leader: Component,
        put: Callable[[Call], None],
        left: Left | None,
        copied: Callable[[Any], Any] = independent,
    ) -> None:
        self.open = True
        self.items = 0
        self._leader = leader
        self._put = put
        self._left = left
        self._copied = copied
        self._inside: list[Leaving] | None = None  # what has left so far because of the control item under way
        self._stuck = False
        self._error: BaseException | None = None

    def around(self, port: PortSpec, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """Copy the item before the call, which may alter it; hand it on behind the call."""
        clock, leader, copied = time.perf_counter, self._leader, self._copied
        wanted = self._left is not None and not leader.spec.own_driver
        left = left_by(leader, lazy=lazy, copied=copied) if wanted else _nothing

        def tapped(payload: Any) -> Any:
            if not self.open:
                return call(payload)
            item = copied(payload)
            begin = clock()
            try:
                found = call(payload)
                found = [*found] if lazy else found
            except (Unwind, Halted):
                raise
            except BaseException as error:
                self._stuck = leader.node.policy not in ("skip", "dead-letter")
                if not self._stuck:
                    self._called(port, item, (), clock() - begin, error)
                raise
            took = clock() - begin
            self._stuck = False
            self._called(port, item, left(found), took)
            return found

        return tapped

    def control(self, port: PortSpec, control: Control) -> Control:
        """Hand a control item on, with all that has left because of it."""

        def tapped(mark: Punctuation | EndOfStream) -> None:
            if not self.open:
                control(mark)
                return
            self._inside, self._stuck, self._error = [], False, None
            try:
                control(mark)
            finally:
                leaving, self._inside = tuple(self._inside or ()), None
                if not self._stuck:
                    self._put(Call(self.items, port, mark, control=True, leaving=leaving, error=self._error))

        return tapped

    def forwarded(self, mark: Punctuation | EndOfStream) -> None:
        """It leaves by every port, behind what the slet has put out for it."""
        if self._left is None or not self.open:
            return
        leaving = [Leaving(port.name, mark, whole=False) for port in self._leader.spec.outputs]
        if self._inside is not None:
            self._inside.extend(leaving)
        else:
            self._put(Call(self.items, None, mark, leaving=tuple(leaving)))

    def outlets(self, to: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """What a slet with a driver of its own pushes is noted where it leaves."""
        if self._left is None or not self._leader.spec.own_driver:
            return to
        return {name: listening(entry, name, self._leaves) for name, entry in to.items()}

    def _leaves(self, leaving: Leaving) -> None:
        if self.open and self._left is not None:
            self._left(leaving._replace(payload=self._copied(leaving.payload)))

    def _called(
        self, port: PortSpec, item: Any, leaving: tuple[Leaving, ...], took: float, error: BaseException | None = None
    ) -> None:
        if isinstance(item, CONTROL):
            if self._inside is not None:
                self._inside.extend(leaving)
                self._error = error
            else:  # tried once more: its way through the component goes on later
                self._put(Call(self.items, port, item, control=True, leaving=leaving))
            return
        rows = 1 if port.type.form == "item" else weight(item)
        call = Call(self.items + 1, port, item, leaving, error, took, rows)
        self.items += rows
        self._put(call)


class Taps(Tap):
    """Several taps on one component: a predecessor is kept behind it, and a successor is on trial."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self.taps = tuple(taps)

    def around(self, port: PortSpec, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """All listen to the calls."""
        return reduce(lambda inner, tap: tap.around(port, inner, lazy=lazy), self.taps, call)

    def control(self, port: PortSpec, control: Control) -> Control:
        """All listen to the control items."""
        return reduce(lambda inner, tap: tap.control(port, inner), self.taps, control)

    def forwarded(self, mark: Punctuation | EndOfStream) -> None:
        """All note it."""
        for tap in self.taps:
            tap.forwarded(mark)

    def outlets(self, to: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """All listen to the output."""
        return reduce(lambda inner, tap: tap.outlets(inner), self.taps, to)


def taps_of(there: Tap | None) -> tuple[Tap, ...]:
    """The taps on a component, one by one."""
    return there.taps if isinstance(there, Taps) else () if there is None else (there,)


def with_tap(there: Tap | None, tap: Tap) -> Tap:
    """Add a tap."""
    return tap if there is None else Taps((*taps_of(there), tap))


def without_tap(there: Tap | None, tap: Tap) -> Tap | None:
    """Take a tap away, if it is there."""
    rest = [one for one in taps_of(there) if one is not tap]
    return Taps(rest) if len(rest) > 1 else next(iter(rest), None)


class FollowerTap(Tap):
    """Notes what the follower does for the call that it was handed; nothing of it leaves.

    Args:
        follower: The component.
        left: Takes what a follower with a driver of its own puts out.

    Attributes:
        leaving: What has left because of the call under way.
        error: What it has raised.
        took: How many seconds its slet was busy.
    """

    def __init__(self, follower: Component, left: Left | None) -> None:
        self.leaving: list[Leaving] = []
        self.error: BaseException | None = None
        self.took = 0.0
        self._follower = follower
        self._left = left

    def begin(self) -> None:
        """The next call."""
        self.leaving, self.error, self.took = [], None, 0.0

    def around(self, port: PortSpec, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """Note what left and what was raised: no policy is asked, since the item is the leader's."""
        clock, follower = time.perf_counter, self._follower
        left = _nothing if follower.spec.own_driver else left_by(follower, lazy=lazy)

        def tapped(payload: Any) -> Any:
            begin = clock()
            try:
                found = call(payload)
                found = [*found] if lazy else found
            except (Unwind, Halted):
                raise
            except BaseException as error:  # noqa: BLE001 (whatever it raises is compared)
                self.error = error
                follower.forget_outputs()
                return [] if lazy else None
            finally:
                self.took += clock() - begin
            self.leaving += left(found)
            return found

        return tapped

    def forwarded(self, mark: Punctuation | EndOfStream) -> None:
        """Note that it would leave by every port."""
        self.leaving += [Leaving(port.name, mark, whole=False) for port in self._follower.spec.outputs]

    def outlets(self, to: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Nothing leaves; what a slet with a driver of its own pushes is noted."""
        spec, left = self._follower.spec, self._left or _nothing
        return {port.name: listening(NOWHERE, port.name, left) for port in spec.outputs} if spec.own_driver else {}


def _nothing(_: Any) -> tuple[Leaving, ...]:
    """What leaves is of no interest here, or noted elsewhere."""
    return ()


def listening(entry: Entry, port: str, noted: Callable[[Leaving], object]) -> Entry:
    """The way into *entry*; everything that enters is noted before."""

    def push(item: Any) -> None:
        noted(Leaving(port, item, whole=False))
        entry.push(item)

    def push_batch(batch: Any) -> None:
        noted(Leaving(port, batch, whole=True))
        entry.push_batch(batch)

    def control(mark: Any) -> None:
        noted(Leaving(port, mark, whole=False))
        entry.control(mark)

    heard = Entry(push, push_batch, control, place=entry.place)
    if entry.probe is not entry:
        heard.probe = listening(entry.probe, port, noted)
    return heard
