"""Taps on a leader and on its follower: they record the calls of a slet, with the outputs of each call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.slets.ports import OUT, PortSpec
from exop.runtime.component import Component
from exop.runtime.dataflow.batches import weight
from exop.runtime.dataflow.entry import NOWHERE, Control, Entry, Method, Push, Tap, Unwind, in_front
from exop.runtime.drivers.base import CutShort, Halted
from exop.runtime.ports import BufferedOutput
from exop.safe_repr import class_of, error_text, message

#: Port and payload of an output, and whether that is a batch or columns.
Output: TypeAlias = tuple[str, Any, bool]
#: Called with the number of the item that caused an output, and the output.
OnOutput: TypeAlias = Callable[[int, str, Any, bool], object]


class SletCall(NamedTuple):
    """One call of a slet; or a `control` item that passes its component, whether the slet sees it or not."""

    item: int
    port: PortSpec
    payload: Any
    error: BaseException | None = None
    took: float = 0.0
    rows: int = 0
    control: bool = False


class Fault(NamedTuple):
    """An error of a slet: the name of its class, its message, and both as a text."""

    kind: str
    message: str
    text: str

    @classmethod
    def of(cls, error: BaseException | None) -> Fault | None:
        """Describe an error, if there is one."""
        return None if error is None else cls(class_of(error), message(error), error_text(error))


class LeaderTap(Tap):
    """Passes each call of the leader to *put*, as soon as its outcome is known, and before that its outputs to *left*.

    A call for which the leader is suspended, or that is going to be retried, is not passed. *copied* copies a value.
    """

    def __init__(
        self, leader: Component, put: Callable[[SletCall], None], left: OnOutput | None, copied: Callable[[Any], Any]
    ) -> None:
        self.open = True
        self.items = 0
        self._leader, self._put, self._left, self._copied = leader, put, left, copied
        self._inside = self._stuck = False  # a control item passes; the slet has raised, and retries
        self._error: BaseException | None = None

    def attach(self) -> None:
        """Put it on its leader, around the taps that are there; it takes effect when the entries are bound again."""
        self._leader.taps = (*self._leader.taps, self)

    def detach(self) -> None:
        """Remove it from its leader, if it is there."""
        self._leader.taps = tuple(tap for tap in self._leader.taps if tap is not self)

    def around(self, port: PortSpec, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """Copy the item before the call, which may alter it; pass the copy on after the call."""
        clock, leader, copied = time.perf_counter, self._leader, self._copied
        whole = any(one.type.form != "item" for one in leader.spec.outputs if one.name == OUT)
        found = [(name, one) for name, one in leader.outputs.items() if one is not leader.aside]
        buffers = [(name, one) for name, one in found if isinstance(one, BufferedOutput)]

        def tapped(payload: Any) -> Any:
            if not self.open:
                return call(payload)
            item, begin = copied(payload), clock()
            try:
                found = call(payload)
                found = [*found] if lazy else found
            except (CutShort, Halted, Unwind):
                raise
            except BaseException as error:
                self._stuck = not leader.omits(payload)
                if not self._stuck:
                    self._called(port, item, clock() - begin, error)
                raise
            took = clock() - begin
            self._stuck = False
            captured = ((name, *one) for name, output in buffers for one in output.pushed)
            outputs: list[Output] = [(name, one, method == "push_batch") for name, method, one in captured]
            if not leader.spec.own_driver:
                outputs += [(OUT, one, whole) for one in (found if lazy else (found,))]
            self._called(port, item, took, None, *(outputs if self._left is not None else ()))
            return found

        return tapped

    def _called(self, port: PortSpec, item: Any, took: float, error: BaseException | None, *outputs: Output) -> None:
        rows = 0 if (control := isinstance(item, CONTROL)) else 1 if port.type.form == "item" else weight(item)
        number = self.items if control else self.items + 1
        for output in outputs:
            self._leaves(number, *output)
        self.items += rows
        if control and self._inside:
            self._error = error
        else:  # a control item that is retried passes the component later
            self._put(SletCall(number, port, item, error, took, rows, control))

    def control(self, port: PortSpec, control: Control) -> Control:
        """Pass a control item on after all outputs that it causes."""

        def tapped(mark: Punctuation | EndOfStream) -> None:
            if not self.open:
                control(mark)
                return
            self._inside, self._stuck, self._error = True, False, None
            try:
                control(mark)
            finally:
                self._inside = False
                if not self._stuck:
                    self._put(SletCall(self.items, port, mark, self._error, control=True))

        return tapped

    def forwarded(self, mark: Punctuation | EndOfStream) -> None:
        """Note that it leaves by every port, after the slet's outputs for it."""
        for port in self._leader.spec.outputs:
            self._leaves(self.items, port.name, mark)

    def outlets(self, to: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Note the pushes of a slet with a driver of its own."""
        if self._left is None or not self._leader.spec.own_driver:
            return to
        return {name: listening(entry, partial(self._leaves, 0, name)) for name, entry in to.items()}

    def _leaves(self, item: int, port: str, payload: Any, whole: bool = False) -> None:
        if self.open and self._left is not None and payload is not None:
            self._left(item, port, self._copied(payload), whole)


class FollowerTap(Tap):
    """Records the error and the seconds of a call of the follower; *left*, if given, gets its outputs."""

    def __init__(self, follower: Component, left: OnOutput | None) -> None:
        self._follower = follower
        self._left = left
        self.begin(0)

    def begin(self, item: int) -> None:
        """Begin to record the call for item number *item*."""
        self.item = item
        self.error: BaseException | None = None
        self.took = 0.0

    def around(self, port: PortSpec, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """Note errors; the failure policy is not asked, since the item is the leader's."""
        clock, follower = time.perf_counter, self._follower

        def tapped(payload: Any) -> Any:
            begin = clock()
            try:
                found = call(payload)
                return [*found] if lazy else found
            except (CutShort, Halted, Unwind):
                raise
            except BaseException as error:  # noqa: BLE001 (whatever it raises is compared)
                self.error = error
                follower.forget_outputs()
                return [] if lazy else None
            finally:
                self.took += clock() - begin

        return tapped

    def outlets(self, to: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Drop all outputs."""
        spec = self._follower.spec
        ports = () if self._left is None else spec.outputs[:-1] if spec.sets_aside else spec.outputs
        return {port.name: listening(NOWHERE, partial(self._leaves, port.name)) for port in ports}

    def _leaves(self, port: str, payload: Any, *, whole: bool = False) -> None:
        if self._left is not None and payload is not None:  # `None` where a call has raised
            self._left(self.item, port, payload, whole)


def listening(entry: Entry, noted: Callable[..., object]) -> Entry:
    """Return an entry in front of *entry* that notes everything that enters; with `whole=True` batches and columns."""

    def around(inner: Entry, method: Method) -> Push:
        push, whole = getattr(inner, method), method == "push_batch"

        def heard(payload: Any) -> None:
            noted(payload, whole=whole)
            push(payload)

        return heard

    found = in_front(entry, around, around(entry, "control"))
    found.endpoint = entry.endpoint
    return found
