"""The taps on a leader, whose outputs count, and on its follower: they note the calls of a slet and their outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.ports import PortSpec
from exop.model.signature import OUT
from exop.runtime.component import Component
from exop.runtime.convert import weight
from exop.runtime.drivers.base import Halted
from exop.runtime.entry import NOWHERE, Control, Entry, Tap, Unwind
from exop.runtime.ports import BufferedOutput
from exop.wiring.sharing import independent


class Leaving(NamedTuple):
    """What leaves by a port; `whole` when it is a batch or columns."""

    port: str
    payload: Any
    whole: bool


class Call(NamedTuple):
    """One call: item number, port, what came in, what left, what was raised, how long it took, for how many items.

    `control`: it is a control item on its way through the component, whether its slet sees it or not. Without a port it
    is none: something has left that belongs to an earlier one.
    """

    item: int
    port: PortSpec | None
    payload: Any
    leaving: tuple[Leaving, ...] = ()
    error: BaseException | None = None
    took: float = 0.0
    rows: int = 0
    control: bool = False


def left_by(
    component: Component, *, lazy: bool, copied: Callable[[Any], Any] | None = None
) -> Callable[[Any], tuple[Leaving, ...]]:
    """Return a function of a call's result that finds out what leaves: the results, and what the slet has pushed.

    *copied* makes a copy of each that can be kept.
    """
    buffers = [(name, one) for name, one in component.outputs.items() if isinstance(one, BufferedOutput)]
    whole = any(port.type.form != "item" for port in component.spec.outputs if port.name == OUT)
    keep = copied or _as_it_is

    def results(found: Any) -> tuple[Leaving, ...]:
        if not lazy:
            return () if found is None else (Leaving(OUT, keep(found), whole),)
        return tuple([Leaving(OUT, keep(payload), whole) for payload in found if payload is not None])

    def everything(found: Any) -> tuple[Leaving, ...]:
        pushed = [
            Leaving(name, keep(payload), way == "push_batch")
            for name, output in buffers
            for way, payload in output.capture()
        ]
        return (*pushed, *results(found))

    return everything if buffers else results


def _as_it_is(value: Any) -> Any:
    return value


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
        left: Callable[[Leaving], object] | None,
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

    def __init__(self, follower: Component, left: Callable[[Leaving], object] | None) -> None:
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
