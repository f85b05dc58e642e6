"""The drivers of sources and engines: a thread that iterates a source; an engine that pushes from its threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial, partialmethod
from typing import Any, Final, NoReturn

from exop.errors import ChannelClosed
from exop.logs import logger
from exop.model.items import CONTROL, EndOfStream
from exop.model.slets.ports import PortType
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Step, count_items, in_order, method_for
from exop.runtime.dataflow.metrics import Flow
from exop.runtime.drivers.base import Driver, Halted, acting_as

#: Turns a push into an in-flight item for another driver; the argument is whether the push was begun.
Pending = Callable[[bool], InFlight]
_MARKS = frozenset(CONTROL)
#: What helps when a defect has ended a driver.
RESTART: Final = "restart the platform: a durable application continues; or remove the application and apply it again"


class ThreadDriver(Driver):
    """A driver with its own thread.

    Attributes:
        crash: The defect that has ended the driver; `None` for errors of slets.
        left: The thread has ended; if items are posted for the driver, another thread starts.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.crash: BaseException | None = None
        self.left = False
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; a driver starts once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name=f"exop {self.name}", daemon=True)
            self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended; return `False` if *timeout* seconds have passed before."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self.alive

    def prompt(self) -> None:
        """Make the driver empty its inlets, in a new thread if its thread has ended."""
        super().prompt()
        with self._flags:
            if self.left and not self.halting:
                self._come_back()

    def run(self) -> None:
        """Push until there are no more items."""
        raise NotImplementedError

    def _come_back(self) -> None:
        # It begins at the safe point: during a change, its items may be out of their inlets for a moment.
        name, arguments = f"exop {self.name} (back)", (self.stand_by, self._thread)
        thread = threading.Thread(target=self._main, args=arguments, name=name, daemon=True)
        thread.start()
        self._thread, self.left = thread, False

    def _main(self, run: Callable[[], None] | None = None, before: threading.Thread | None = None) -> None:
        if before is not None:
            before.join()  # only one thread at a time runs a driver
        with acting_as(self):
            try:
                self._keep_running(run or self.run)  # `end_thread` has set `left`; a later prompt may have reset it
            except BaseException as error:  # noqa: BLE001 (a defect after which no component can be resumed)
                self._note_crash(error)
                self.left = True
            finally:
                self.rest()
                self.on_caught_up()

    def _keep_running(self, run: Callable[[], None]) -> None:
        """Run to the end; after a defect, run again when the component is repaired."""
        while True:
            try:
                run()
                while not self.end_thread():
                    self.stand_by()
            except BaseException as error:  # noqa: BLE001 (`unwinding` handles every error)
                self.busy = True
                self.unwound(error)
            else:
                return

    def crashed(self, error: BaseException) -> NoReturn:
        """Stop at once, without ending the stream."""
        self._note_crash(error)
        self.halt()
        raise Halted

    def _note_crash(self, error: BaseException) -> None:
        if not isinstance(error, Halted):
            self.crash = error
            logger("exop.runtime").error("a driver has crashed", driver=self.name, cure=RESTART, exc_info=error)

    def end_thread(self) -> bool:
        """End the thread, unless another thread has posted items meanwhile."""
        with self._flags:
            self.left = not self.filled
        return self.left


class SourceDriver(ThreadDriver):
    """Iterates a slet and pushes the items that it yields; the safe point is between two items.

    While a source is inside its own `next()`, none of its items is in flight, so that an idle source never delays a
    change downstream. A slet that *pulls* has items in flight there: its safe points are its pulls and its yields.

    Args:
        iterate: Makes the iterator; called again when a failed source is resumed (the memento has the position).
        finish: Sends the end of the stream.
        yields: The type of what the slet yields: single items, also mixed with control items, or batches.
        unsent: Returns the items that the slet pushed to further ports between two items; `None` without such ports.
        pulls: The slet takes its items from queues.

    Attributes:
        broken: The failure policy, called with the error of the iterator; returns whether to iterate again.
        yielded: While the driver is parked, the item that was yielded and not pushed; the memento already includes it.
        over: The slet had ended before the checkpoint from which it was restored.
    """

    def __init__(
        self,
        name: str,
        iterate: Callable[[], Iterator[Any]],
        finish: Callable[[], None],
        *,
        yields: PortType,
        unsent: Callable[[], Iterable[Step]] | None = None,
        pulls: bool = False,
    ) -> None:
        super().__init__(name)
        self.entry: Entry = NOWHERE
        self.yielded: tuple[Any] | None = None
        self.over = False
        self._iterate = iterate
        self.broken: Callable[[BaseException], bool]
        self._finish = finish
        self._unsent = unsent
        single, marks = yields.form == "item", yields.punctuation or yields.end
        self._batches = not single
        self._plain = single and unsent is None and not marks
        self._mixed = single and unsent is None and marks
        self._pulls = pulls
        self._iterator: Iterator[Any] | None = None
        self.flow = Flow(partial(getattr, self, "count"))

    def run(self) -> None:
        """Iterate until the source ends or is asked to end; then send the end of the stream."""
        self.stand_by()
        if self.over:
            return
        if self.yielded is not None:
            self._drain(iter(self.yielded))
        self.busy = False
        while not (self.retired or self.ending) and self._iterate_again():
            continue
        self.busy = True
        if self.attention and not self.retired:
            self.attend()
        if self.retired:  # the replacement sends the end
            return
        if self.ending:
            self.before_end()
        try:
            self._finish()
        except BaseException as error:  # noqa: BLE001 (`unwinding` handles every error)
            self.unwound(error, InFlight(self.entry, "control", EndOfStream()))

    #: Iterate the slet again, from its memento, after its last item. The driver is parked outside of the slet.
    restart_iteration = partialmethod(Driver._request, "restarting")

    def take_in_flight(self) -> list[InFlight]:
        """Take out the item that was yielded and not pushed."""
        found, self.yielded = self.in_flight(), None
        self.rows += sum(count_items(one.method, one.payload) for one in found)
        return found

    def in_flight(self) -> list[InFlight]:
        """Return the item that was yielded and not pushed; it stays there."""
        (item,) = self.yielded or (None,)
        return [] if item is None else [InFlight(self.entry, method_for(item, whole=self._batches), item)]

    def restore(self, yielded: tuple[Any] | None) -> None:
        """Restore the item that was yielded and not pushed, also if the slet yields batches only since then."""
        if self._batches and yielded is not None:
            (item,) = yielded
            if not isinstance(item, (list, *CONTROL, type(None))) and not hasattr(item, "num_rows"):
                yielded = ([item],)
        self.yielded = yielded

    @property
    def resting(self) -> bool:
        """Whether an item that was yielded, or items in flight, wait."""
        return self.yielded is not None or super().resting

    @property
    def outside(self) -> bool:
        """Whether the driver waits outside of the slet that it iterates, has ended, or has not begun."""
        return self.parked or self.held_by is not None or self.left or not self.alive

    def _iterate_again(self) -> bool:
        """Iterate the slet; return whether to iterate again."""
        with self._flags:
            self.restarting = False
            self._settle()
        try:
            self._iterator = iterator = iter(self._iterate())
            try:
                self._drain(iterator)
            finally:
                self.let_go()
        except Halted:  # raised where a slet pulls
            if self.halting or self.retired:
                raise
        except BaseException as error:  # noqa: BLE001 (a source that calls sys.exit counts as one that raises)
            self.rest()
            again = self.broken(error)
            self.rest()
            return again
        return self.restarting and not self.ending

    def let_go(self) -> None:
        """Close the iterator."""
        if not getattr(self._iterator, "gi_running", False):  # it is where it pulls
            iterator, self._iterator = self._iterator, None
            if (close := getattr(iterator, "close", None)) is not None:
                close()

    def _drain(self, iterator: Iterator[Any]) -> None:
        """Push single items directly; use `_send` for batches, control items, and items of slets with further ports."""
        push, count, plain, mixed, between = self.entry.uncounted, self.count, self._plain, self._mixed, self._pulls
        for item in iterator:
            self.busy = True
            try:
                if self.attention:
                    self.yielded = (item,)
                    probe = self.attend()
                    if self.retired:  # the slet was replaced
                        return
                    self.yielded = None
                    self._send(item, probe=probe)
                    push = self.entry.uncounted
                elif not (plain or (mixed and type(item) not in _MARKS)):
                    self._send(item)
                elif item is not None:
                    self.count = count = count + 1
                    push(item)
            except BaseException as error:  # noqa: BLE001 (`unwinding` handles every error)
                pushed = None if item is None else InFlight(self.entry, method_for(item, whole=self._batches), item)
                unwound = self.unwinding(error, pushed)  # the item that the slet has yielded is still in flight
                self.yielded = None
                self.unwound(unwound)
                del pushed, unwound  # their frames hold slets that may be replaced
                push = self.entry.uncounted
            self.busy = between
            if self.attention:
                if self.overfilled:  # wait now: the slet must not make another item
                    self.stand_by()
                    self.busy = between
                if not between:
                    self.rest()
                if self.ending or self.retired or self.restarting:
                    return

    def _send(self, item: Any, *, probe: bool = False) -> None:
        """Send an item after those that the slet has pushed to further ports."""
        entry = self.entry.probe if probe else self.entry
        self.origin = time.perf_counter() if probe else self.origin
        steps: list[Step] = []
        if item is not None:
            method = method_for(item, whole=self._batches)
            self.rows += count_items(method, item)
            steps.append((entry, method, item))
        in_order([*self._unsent(), *steps] if self._unsent is not None else steps)


class EngineDriver(Driver):
    """The driver of a slet that pushes from its own threads, one push at a time; every push is a safe point.

    At first, the driver is closed: a push during the opening waits until all slets are open.

    Args:
        finish: Ends the stream of every output port that the slet has not ended.
        feeders: Returns the drivers for whose items the slet waits.

    Attributes:
        pullers: The drivers of the ports from which the slet pulls.
        heir: Takes the items that the slet pushes after it was replaced; if `None`, they are dropped.
        turn: Held during a push.
    """

    def __init__(self, name: str, finish: Callable[[], None], feeders: Callable[[], Iterable[Driver]]) -> None:
        super().__init__(name)
        self.pullers: list[Puller] = []
        self._feeders = feeders
        self.heir: Callable[[InFlight], None] | None = None
        self.turn = threading.RLock()
        self._left: list[InFlight] = []
        self._pending: Pending | None = None
        self._finish = finish
        self._started = self._over = self._prompted = False
        self.close()

    def start(self) -> None:
        """Open the driver. Called when all slets are open."""
        if not self._started:
            self._started = True
            self.open()

    def drive(self, send: Callable[[bool], None], pending: Pending | None = None) -> None:
        """Carry out one push of the slet after a safe point, at which *pending* may pass the push to a replacement.

        The argument of *send* is whether to use the instrumented path.
        Raise `ChannelClosed` if the platform has ended the stream.
        """
        with self.turn, acting_as(self):
            if self._over:
                raise ChannelClosed(channel=f"behind {self.name}")
            self.busy = True
            try:
                probe = self._attended(pending) if self.attention else False
                if self.retired:
                    return
                self.count += 1
                if probe:
                    self.origin = time.perf_counter()
                send(probe)
            except BaseException as error:  # noqa: BLE001 (`unwinding` handles every error)
                self.unwound(error, pending(True) if pending is not None else None)
            finally:
                self.rest()

    def _attended(self, pending: Pending | None) -> bool:
        self._pending = pending
        try:
            probe = self.attend()
            if self.retired and self._pending is not None and self.heir is not None:
                self.heir(self._pending(False))
        finally:
            self._pending = None
        return probe

    @property
    def resting(self) -> bool:
        """Whether a push is in progress or waits, or items in flight wait."""
        return self.busy or self._pending is not None or super().resting

    def awaits(self) -> Iterable[Driver]:
        """Return the driver that makes room for a push; between two pushes, those for whose items the slet waits."""
        return super().awaits() if self.busy or self.parked else self._feeders()

    def let_go(self) -> None:
        """Let pushes return that wait, or come while the slet closes: `take_in_flight`, or an inlet, has the items."""
        self._left = self.take_in_flight()
        self.heir = self._left.append
        for one in (self, *self.pullers):
            one.relieved = True
            one.retire()

    def take_in_flight(self) -> list[InFlight]:
        """Take out the push that waits at the safe point, as an in-flight item, after those that have returned."""
        push, self._pending = self._pending, None
        return [*self._left, *([push(False)] if push is not None else [])]

    def prompt(self) -> None:
        """Empty the inlets in another thread, since the slet may not push for a long time."""
        super().prompt()
        with self._flags:
            if not self._prompted:
                threading.Thread(target=self._catch_up_apart, name=f"exop {self.name} (given)", daemon=True).start()
                self._prompted = True

    def end(self, before: Callable[[], object] = bool) -> None:
        """End the stream after the current push; refuse later pushes."""
        super().end(before)
        self.prompt()  # in another thread, because a waiting push may hold the lock

    def _catch_up_apart(self) -> None:
        with suppress(Halted), self.turn, acting_as(self):
            with self._flags:
                self._prompted = False  # reset first: items that are posted later get another thread
            try:
                self.stand_by()
            finally:
                self.rest()
            if self.ending and not (self._over or self.retired):
                self.before_end()
                self._finish()
                self._over = True


class Puller(Driver):
    """The driver of one port from which an engine pulls.

    Attributes:
        engine: The driver that pushes the results.
        thread: The thread of the slet that pulled last.
    """

    def __init__(self, name: str, engine: EngineDriver) -> None:
        super().__init__(name)
        self.engine = engine
        self.thread: int | None = None

    def awaits(self) -> Iterable[Driver]:
        """Return also the engine, and the ports at which the thread that pulls here waits for an item."""
        others = [one for one in self.engine.pullers if one.sleeping and self.thread in (None, one.thread)]
        return [*super().awaits(), self.engine, *others]
