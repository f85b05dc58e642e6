"""`Driver`: pushes items in one thread at a time, parks at a safe point, and knows for which driver it waits.

A driver and the thread that parks it use Dekker's algorithm: each side first writes its own flag and then reads the
flag of the other (`busy` and `attention`). An item therefore costs two attribute writes and one read, and no lock. The
interpreter guarantees the sequential consistency that the algorithm needs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partialmethod
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from exop.model.reached import reached
from exop.runtime.dataflow.entry import InFlight, Unwind, Wait
from exop.runtime.dataflow.inlets import Inlets

if TYPE_CHECKING:
    from exop.runtime.channels.queue import Buffered

#: The number of first items that every driver measures, so that short runs have metrics too.
FIRST = 16
#: Thread-local: the driver that the thread runs, or for which it acts.
_LOCAL = threading.local()


class Bounded(Protocol):
    """A place with a capacity, such as a queue or the feed of an engine."""

    def keeps_out(self, driver: Driver) -> bool:
        """Whether *driver* has to wait for room; if so, it is woken later."""


class Halted(BaseException):
    """Unwinds the thread of a driver that has to halt. Not an `Exception`, so that slets do not catch it."""


class CutShort(BaseException):
    """Ends a call of a slet that waits inside, since its driver has to park; the call is made again when *ready*."""

    def __init__(self, where: str, ready: Callable[[], bool]) -> None:
        super().__init__(where)
        self.where, self.ready = where, ready


def current_driver() -> Driver | None:
    """Return the driver that the calling thread runs or acts for, if any."""
    return getattr(_LOCAL, "driver", None)


@contextmanager
def acting_as(driver: Driver | None) -> Iterator[None]:
    """Within the block, let the calling thread run *driver*, act for it (a thread of an engine), or for no driver."""
    before = getattr(_LOCAL, "driver", None)
    _LOCAL.driver = driver
    try:
        yield
    finally:
        _LOCAL.driver = before


class Signal:
    """Wakes one waiting thread; if the signal is set while no thread waits, the next wait returns at once.

    Not a `SimpleQueue`: up to Python 3.12, `get` may block forever if the timeout passes before the thread sleeps.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Set the signal, and wake the waiting thread; any thread may call this."""
        try:
            self._unset.release()
        except RuntimeError:  # the signal is set already
            return

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the signal is set, and clear it; return `False` if *timeout* seconds have passed before."""
        return self._unset.acquire(timeout=-1 if timeout is None else timeout)


def remaining(timeout: float | None) -> Callable[[], float | None]:
    """Return a function that returns how many of the *timeout* seconds remain."""
    if timeout is None:
        return lambda: None
    deadline = time.monotonic() + timeout
    return lambda: max(0.0, deadline - time.monotonic())


class Driver:
    """The base of all drivers: the flags of the safe point, parking, and waiting for a condition.

    Attributes:
        busy: The driver processes an item.
        attention: There is a request for the next safe point; read once per item.
        sleeping: The driver has nothing to do, and waits for `wake`.
        halting, retired, ending, restarting: Requests to stop at once, to stop because the slet was replaced, to end
            the stream, and to begin another iteration.
        before_end: Called just before a stream ends on request.
        relieved: The driver was retired before its items in flight were assigned to others: it leaves them there.
        probing: The next item is to be measured.
        parked: The driver waits at its safe point, outside of a slet that it iterates.
        draining: The driver sends all items before it is closed, even into full queues.
        idle: Called when there is nothing to do, before the driver sleeps; returns a function for the driver to call.
        on_caught_up: Called when the in-flight items are processed, and when the driver stops.
        on_defect: Called with an error that no policy handles, and the in-flight item; returns the wait for a repair.
        waits_at: The full queue in which the driver waits for room.
        overfilled: What the driver has filled beyond its capacity, to reach its safe point: it takes no further item
            until there is room.
        queues: The queues from which the driver takes items.
        held_by: The place at which the driver waits with an item in flight, such as a suspended slet.
        inside: The same, while the driver is closed and cannot park there, inside a call of a slet.
        cutting: The nodes of which such a call is ended by what closes the driver.
        only: The queues that the driver drains at present, if not all of its queues.
        inlets: The in-flight items, which precede all others.
        rank: How far downstream the driver begins.
        count: The number of items pushed one by one from the driver's loop.
        rows: The number of all other items pushed: in batches, after those of further ports, or at a safe point.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy = self.sleeping = self.halting = self.relieved = False
        self.attention = True
        self.parked = self.draining = self.retired = self.restarting = self.ending = self.probing = False
        self.count = self.rows = 0
        self.origin = 0.0
        self.idle: Callable[[], Callable[[], None] | None] | None = None
        self.on_caught_up: Callable[[], None] = lambda: None
        self.before_end: Callable[[], object] = bool
        self.on_defect: Callable[[BaseException, InFlight | None], Unwind | None] | None = None
        self.waits_at: Buffered | None = None
        self.overfilled: list[Bounded] = []
        self.queues: tuple[Buffered, ...] = ()
        self.held_by: str | None = None
        self.inside: str | None = None
        self.cutting = frozenset[str]()
        self.only: tuple[Buffered, ...] | None = None
        self.inlets = Inlets()
        self.rank = 0.0
        self._signal = Signal()
        self._first = FIRST
        self._flags = threading.Lock()
        self._closers, self._at_work = 0, False
        self._watchers: list[Callable[[], None]] = []

    @property
    def closed(self) -> bool:
        """Whether another thread has asked the driver to park."""
        return self._closers > 0

    @property
    def ignores_capacity(self) -> bool:
        """Whether the driver pushes into full queues, since another thread waits until it has processed its item."""
        return self._closers > 0 or self.draining

    def wake(self) -> None:
        """Make a waiting driver check its condition again."""
        self.sleeping = False
        self.notify()

    def notify(self) -> None:
        """Make the driver check its flags."""
        self._signal.set()

    def _request(self, flag: str) -> None:
        with self._flags:
            setattr(self, flag, True)
            self.attention = True
        self.notify()

    def _close(self, closers: int) -> None:
        with self._flags:
            self._closers += closers
            self.attention = True  # also when it opens: the entry may have been replaced, so its methods are read again
        self._signal.set()

    #: Ask the driver to park at its next safe point.
    close = partialmethod(_close, 1)
    #: Let the driver continue, unless another thread has also closed it.
    open = partialmethod(_close, -1)

    def end(self, before: Callable[[], object] = bool) -> None:
        """Ask a source to end its stream at the next safe point, and to call *before* just before it does."""
        self.before_end = before
        self._request("ending")

    #: Ask the driver to stop at the next safe point, even with items in flight.
    halt = partialmethod(_request, "halting")
    #: Ask the driver to stop: the replacement sends the unsent output (`take_in_flight`) and the end.
    retire = partialmethod(_request, "retired")

    def let_go(self) -> None:
        """Let go of a slet that closes before it is replaced; the driver is parked, and another thread calls this."""

    def take_in_flight(self) -> list[InFlight]:
        """Take out the slet's output that the driver has not sent. The driver is parked, and will stop."""
        return []

    @property
    def filled(self) -> bool:
        """Whether in-flight items wait for the driver."""
        return self.inlets.filled(self)

    @property
    def resting(self) -> bool:
        """Whether items that the driver has taken wait to be passed on."""
        return self.filled

    def prompt(self) -> None:
        """Make the driver look into its inlets as soon as possible; any thread may call this."""
        self._request("attention")

    def measure_next(self) -> None:
        """Request that the next item be measured."""
        with self._flags:
            self.probing = self.attention = True

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call *watcher*, in the driver's thread, whenever the driver rests."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Stop calling *watcher*."""
        self._watchers.remove(watcher)

    def attend(self) -> bool:
        """Pass the safe point; called if `attention` and `busy` are set. Return whether to measure the next item."""
        self.stand_by()
        with self._flags:
            probe, self.probing = self.probing or self._first > 0, False
            self._first = max(0, self._first - 1)
            self._settle()
        return probe

    def stand_by(self) -> None:
        """Park while the driver is closed, stop if it is to halt, and send the items in flight; it is busy then."""
        self.busy = True
        self._park()
        if not self._at_work and self.filled:
            self._catch_up()

    def _park(self) -> None:
        """Park while the driver is closed, wait for room in what it has overfilled, and stop if it is to halt."""
        while self._shut or self._kept_out:
            self.parked = True
            self.rest()
            self._wait_shut()
            self.parked, self.busy = False, True
        if self.halting:
            raise Halted

    @property
    def _shut(self) -> bool:
        return self._closers > 0 and not (self.halting or self.retired)  # a closed driver can still halt or retire

    @property
    def _gone(self) -> bool:
        """Whether the driver was replaced, and no item in flight waits for it: it need not wait for a repair."""
        return self.retired and (self.relieved or not self.filled)

    @property
    def _kept_out(self) -> bool:
        if self.ignores_capacity or self.halting or self.retired or self.ending:
            self.waits_at = None
            self.inlets.kept_out.discard(self)
            return False
        while (places := self.overfilled) and not places[0].keeps_out(self):  # a change may replace the list
            del places[0]
        return bool(self.overfilled)

    def _wait_shut(self) -> None:
        self._signal.wait()

    def rest(self) -> None:
        """Record that the driver processes no item, and notify the watchers."""
        self.busy = False
        for watcher in list(self._watchers):
            watcher()

    def wait_for(self, ready: Callable[[], Any], timeout: float | None = None) -> None:
        """Wait, while processing an item, until *ready()* is true; the thread that makes it true calls `wake`."""
        left = remaining(timeout)
        while not ready():
            if self.halting:
                raise Halted
            if left() == 0 or not self._signal.wait(left()):
                return

    def wait_inside(self, place: str, ready: Callable[[], bool], nodes: Iterable[str], *, again: bool) -> None:
        """Wait at *place*, inside a call of one of these nodes; `CutShort` if the driver has to park and may end it."""
        self.held_by = place
        try:
            while not ready():
                if (closers := self._closers) and (again or not self.cutting.isdisjoint(nodes)):
                    raise CutShort(place, ready)
                self.inside = place if closers else None
                for watcher in list(self._watchers) if closers else ():
                    watcher()
                self.wait_for(lambda: ready() or self._closers != closers)
        finally:
            self.held_by = self.inside = None

    def awaits(self) -> Iterable[Driver]:
        """Return the drivers for which this driver waits: the one that makes room, or those that may bring an item."""
        if self.waits_at is not None:
            return filter(None, (self.waits_at.worker or self.waits_at.taker,))
        if self.sleeping and not any(queue.depth for queue in self.queues):
            return {driver for queue in self.queues for driver in self.inlets.pushers(queue, self.unblock)}
        return ()

    def waiting(self) -> Iterator[Driver]:
        """Yield the drivers for which this one waits, those for which these wait, and so on."""
        return reached(self.awaits(), lambda driver: driver.awaits())

    def unblock(self) -> None:
        """Now that this driver sleeps, make those that wait for room, and are to bring its next item, check again."""
        for driver in self.waiting() if self.inlets.kept_out else ():
            if (queue := driver.waits_at) is not None:
                queue.check_again(driver)

    def defer(self, queue: Buffered) -> bool:
        """Whether the driver waits for room in *queue* at its next safe point rather than inside the call."""
        return False

    def overfill(self, place: Bounded) -> None:
        """Wait for room in *place*, which this driver fills beyond its capacity, before taking the next item."""
        if place not in self.overfilled:
            self.overfilled.append(place)
            self.attention = True

    def doze(self, idle: Callable[[], bool]) -> None:
        """If *idle()* is true, sleep without an item in flight until another thread wakes the driver."""
        self.rest()
        self.sleeping = True
        self.unblock()
        if idle() and not (self._closers or self.halting or self.ending or self.retired or self.filled):
            self._signal.wait()
        self.sleeping = False

    def rest_idly(self) -> None:
        """Rest, since no item waits, and make the call that `idle` returns."""
        self.rest()
        if (todo := self.idle() if self.idle is not None else None) is not None:
            self.stand_by()
            try:
                todo()
            except BaseException as error:  # noqa: BLE001 (`unwinding` handles every error)
                self.unwound(error)

    def unwound(self, error: BaseException, item: InFlight | None = None) -> None:
        """Pass on, as soon as possible, the items that were in flight when the driver unwound; it may unwind again.

        Until then, the driver counts as parked: a change may assign the items, which wait in inlets, to other drivers.
        """
        self.inlets.keep(self, self.unwinding(error, item).in_flight)
        if not self._at_work:
            self._catch_up()

    def unwinding(self, error: BaseException, item: InFlight | None = None) -> Unwind:
        """Turn an error that has reached the driver into an `Unwind`, with the condition for which the driver waits.

        The policy of a slet handles the slet's own errors, so that any other error is a defect, or a lack of memory.
        Then *item* waits until a component that the driver runs is resumed or replaced. If the item enters a fan-out,
        some of the targets may receive it twice.
        """
        if issubclass(type(error), Unwind):
            unwound: Unwind = error  # type: ignore[assignment]
            return unwound
        if issubclass(type(error), Halted):
            raise error
        if item is not None:
            item.give_back(self.inlets.entries)
        stranded = self.on_defect(error, item) if self.on_defect is not None else None
        return stranded or self.crashed(error)

    def crashed(self, error: BaseException) -> NoReturn:
        """Stop because of a defect for which no component can be suspended."""
        raise error

    def _catch_up(self) -> None:
        """Empty the inlets, in the order of the stamps."""
        self._at_work = True
        try:
            while True:
                self._park()
                if self._gone or (inlet := self.inlets.first(self)) is None:
                    break
                if (item := inlet[0]).wait is not None and not item.wait.ready():
                    self._hold_for(item, item.wait)
                    continue
                self.held_by = None
                inlet.popleft()
                try:
                    item.do(self.inlets.entries)
                except BaseException as again:  # noqa: BLE001 (`unwinding` handles every error)
                    self.inlets.keep(self, self.unwinding(again, item).in_flight)
        finally:
            self._at_work = False
        self.on_caught_up()

    def _hold_for(self, item: InFlight, wait: Wait) -> None:
        """Wait until *item*, the first in the inlets, can be passed on, or was assigned to another driver."""

        def first() -> deque[InFlight] | None:
            return inlet if (inlet := self.inlets.first(self)) is not None and inlet[0] is item else None

        self.hold(wait.where, lambda: first() is None or wait.ready(), wait.patience)
        if not self._gone and (inlet := first()) is not None:  # passed on now, also after *patience*
            inlet[0] = replace(item, wait=None)

    def hold(self, place: str, until: Callable[[], Any], timeout: float | None = None) -> None:
        """Wait at *place* while processing an item: for at most *timeout* seconds, and while the driver is closed."""
        left = remaining(timeout)
        self.held_by = place
        try:
            while True:
                self.rest()
                self.wait_for(lambda: self._gone or (until() and not self._closers), left())
                self.wait_for(lambda: self._gone or not self._closers)
                self.busy = True
                # Read after `busy` was set: a thread that has closed the driver meanwhile waits until it rests.
                if self._gone or not self._closers:
                    return
        finally:
            self.busy = True
            self.held_by = None

    def _settle(self) -> None:
        wanted = self._closers or self.halting or self.ending or self.retired or self.restarting or self.filled
        self.attention = bool(wanted or self.overfilled or self.probing or self._first)
