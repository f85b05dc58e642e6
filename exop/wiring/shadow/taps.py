"""The taps on a leader, whose outputs count, and on its follower: they note the calls of a slet and their outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.ports import PortSpec
from exop.model.signature import OUT
from exop.runtime.component import Component
from exop.runtime.convert import weight
from exop.runtime.drivers.base import Halted
from exop.runtime.entry import NOWHERE, Control, Entry, Tap, Unwind
from exop.runtime.ports import BufferedOutput


class Leaving(NamedTuple):
    """The output of a call at a port; `whole` if it is a batch or columns."""

    port: str
    payload: Any
    whole: bool


class Call(NamedTuple):
    """One call of a slet: item number, port, item, outputs, error, seconds, number of items.

    `control`: a control item on its way through the component, whether its slet sees it or not. Without a port it is no
    call: the outputs belong to an earlier one.
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
    component: Component, *, lazy: bool, copied: Callable[[Any], Any] = lambda value: value
) -> Callable[[Any], tuple[Leaving, ...]]:
    """Return a function of a call's result that lists the outputs: the results, and what the slet has pushed.

    *copied* makes of each what can be kept.
    """
    buffers = [(name, one) for name, one in component.outputs.items() if isinstance(one, BufferedOutput)]
    whole = any(port.type.form != "item" for port in component.spec.outputs if port.name == OUT)

    def results(found: Any) -> tuple[Leaving, ...]:
        if not lazy:
            return () if found is None else (Leaving(OUT, copied(found), whole),)
        return tuple([Leaving(OUT, copied(payload), whole) for payload in found if payload is not None])

    def everything(found: Any) -> tuple[Leaving, ...]:
        pushed = [
            Leaving(name, copied(payload), way == "push_batch")
            for name, output in buffers
            for way, payload in output.capture()
        ]
        return (*pushed, *results(found))

    return everything if buffers else results


class LeaderTap(Tap):
    """Hands on every call of the leader, as soon as its outcome is known.

    It does not hand on a call for which the leader is suspended, or that is going to be tried again.

    Args:
        leader: The component.
        put: Takes each call; called by the driver that runs the leader.
        left: Takes the outputs of a leader with a driver of its own; `None` if the outputs are not needed.
        copied: Copies a value that may be altered.
    """

    def __init__(
        self,
        leader: Component,
        put: Callable[[Call], None],
        left: Callable[[Leaving], object] | None,
        copied: Callable[[Any], Any],
    ) -> None:
        self.open = True
        self.items = 0
        self.inner: Tap | None = None  # another one on the same leader
        self._leader = leader
        self._put = put
        self._left = left
        self._copied = copied
        self._inside: list[Leaving] | None = None  # the outputs so far for the control item under way
        self._stuck = False
        self._error: BaseException | None = None

    @property
    def tied(self) -> bool:
        """Whether it is on its leader; the ways have to be bound for it to take effect."""
        return self in self._all()

    def tie(self) -> None:
        """Put it on its leader, around those that are there."""
        self.inner, self._leader.tap = self._leader.tap, self

    def untie(self) -> None:
        """Take it away from its leader, if it is there."""
        if self._leader.tap is self:
            self._leader.tap = self.inner
        for tap in self._all():
            tap.inner = self.inner if tap.inner is self else tap.inner

    def _all(self) -> Iterator[LeaderTap]:
        tap = self._leader.tap
        while isinstance(tap, LeaderTap):
            yield tap
            tap = tap.inner

    def around(self, port: PortSpec, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """Copy the item before the call, which may alter it; hand it on behind the call."""
        call = call if self.inner is None else self.inner.around(port, call, lazy=lazy)
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
        """Hand a control item on, with all outputs that it causes."""
        control = control if self.inner is None else self.inner.control(port, control)

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
        """Note that it leaves by every port, behind the slet's outputs for it."""
        if self.inner is not None:
            self.inner.forwarded(mark)
        if self._left is None or not self.open:
            return
        leaving = [Leaving(port.name, mark, whole=False) for port in self._leader.spec.outputs]
        if self._inside is not None:
            self._inside.extend(leaving)
        else:
            self._put(Call(self.items, None, mark, leaving=tuple(leaving)))

    def outlets(self, to: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Note the pushes of a slet with a driver of its own."""
        to = to if self.inner is None else self.inner.outlets(to)
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


class FollowerTap(Tap):
    """Notes outputs, error and seconds of the call that the follower was handed; the outputs are dropped.

    *left* takes the outputs of a follower with a driver of its own.
    """

    def __init__(self, follower: Component, left: Callable[[Leaving], object] | None) -> None:
        self._follower = follower
        self._left = left
        self.begin()

    def begin(self) -> None:
        """Begin with the next call."""
        self.leaving: list[Leaving] = []
        self.error: BaseException | None = None
        self.took = 0.0

    def around(self, port: PortSpec, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """Note outputs and errors; no policy is asked, since the item is the leader's."""
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
        """Drop all outputs; note the pushes of a slet with a driver of its own."""
        spec, left = self._follower.spec, self._left or _nothing
        return {port.name: listening(NOWHERE, port.name, left) for port in spec.outputs} if spec.own_driver else {}


def _nothing(_: Any) -> tuple[Leaving, ...]:
    return ()


def listening(entry: Entry, port: str, noted: Callable[[Leaving], object]) -> Entry:
    """Return a way into *entry* that notes everything that enters."""

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
