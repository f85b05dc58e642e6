"""`outbox`: the sending half of a remote connector (paper §4.3), which stores events until they are acknowledged."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from exop.errors import ConnectorLost, NotNow, NotStorable, PlanError, StateError, counted
from exop.logs import logger
from exop.model.items import EndOfStream
from exop.runtime.channels.base import RETRACTED, Outlet, wait_for_disk
from exop.runtime.channels.connector import CONNECTED, DISCONNECTED, LOST, Acknowledgement, Connector, Mode
from exop.runtime.channels.queue import Waiting
from exop.runtime.channels.wire import CONTROL, ITEMS, MOST_BYTES, MOST_ITEMS, MOST_OF_EVENT, Event, Frame
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Method, Unwind, count_items

if TYPE_CHECKING:
    from exop.runtime.channels.spill import Spill
    from exop.runtime.channels.wire import Progress, Wire

#: The least number of seconds between two items that their pushers send; the sender thread sends others, in batches.
SEPARATE: Final = 0.0001
#: The bytes from which on an event counts with them, and not only as an item.
_LARGE: Final = 4096
#: The attributes of an outbox that belong to its epoch.
_EVENTS: Final = (
    *("epoch", "state", "_reason", "_unnumbered", "_kept", "_again", "_first", "_next", "_done", "_credit", "_skip"),
    *("_extra", "_bytes", "_idle", "_inbox", "_restored", "_captured", "_covered", "_marks"),
)


class Outbox(Connector):
    """Sends items to the inbox of the same `key` at `peer`, and stores them until they are acknowledged.

    Items are encoded when they are pushed, and numbered when they are first sent; after a lost connection, those that
    the inbox lacks are sent again. Beyond `capacity` items that are not acknowledged, pushers wait; in the mode `sync`,
    also after each push until it is acknowledged; in the mode `offline`, these items are stored on disk instead.
    With `after_checkpoint`, an item is sent when a checkpoint of this platform contains it: several streams meet before
    the outbox, and after a restart they may come in another order than before; or a change is in no checkpoint yet.

    Attributes:
        expects_loss: Whether an operator accepts that a half has lost its content, if the next connection tells that.
        refuses_whole: An item that has no form as bytes is the failure of its producer.
    """

    kind: ClassVar[str] = "outbox"
    refuses_whole: ClassVar[bool] = True
    #: Nothing waits for a driver of this platform.
    entries = ()

    def __init__(
        self,
        name: str,
        *,
        peer: str,
        key: str,
        epoch: int = 0,
        ack: Acknowledgement = "done",
        mode: Mode = "async",
        capacity: int = 1024,
        after_checkpoint: bool = False,
    ) -> None:
        super().__init__(name, capacity=capacity)
        self._name_other_half(peer, key, epoch, ack, mode)
        self.after_checkpoint = after_checkpoint
        self._body_of: Callable[[Sequence[Event]], Sequence[Any]] = lambda group: ()
        self._entry, self._retraction = NOWHERE, b""
        self._unnumbered: deque[Event] = deque()
        self._kept: deque[Event] = deque()  # numbered from `_first` on
        self._again = 0  # the number of events at the begin of `_unnumbered` that were sent before
        self._first = self._next = self._done = self._credit = self._skip = 0
        self._captured = self._covered = 0  # the events before it are in a checkpoint
        self._marks: list[Event] = []  # control items that were acknowledged: a retraction, if any, and the last one
        self._extra = self._bytes = 0  # items of lists beyond the first of each; of large events in memory
        self._idle = self._restored = self._waits = self._frees = self.expects_loss = False
        self._sent_at = 0.0  # the time of the last item that its pusher sent
        self._inbox: str | None = None  # the incarnation of the inbox
        self._disk: Spill | None = None
        self._durable, self._spilling = True, threading.Lock()

    def open(self) -> None:
        """Find the wire to the peer; raise `UnknownName` if there is none."""
        if self.mode == "offline":
            from exop.runtime.channels.spill import Spill

            self._disk = Spill(self.home)
        super().open()

    def reconfigure(self, settings: Mapping[str, Any], *, close: bool) -> Callable[[], None]:
        """Take other limits; with another epoch, begin anew without events: these are delivered in another way."""
        if (anew := settings["epoch"] != self.epoch) and self._disk is not None and self._disk.events:
            raise NotNow(
                f"{self.name!r} has {counted(self._disk.events, 'event')} on disk for {self.peer}, which the change "
                f"would deliver in another way; make it when {self.peer} has received them"
            )
        return self._become(Outbox(self.name, **settings), ("after_checkpoint", *(_EVENTS if anew else ())))

    def close(self) -> None:
        """End the exchange, and release the disk."""
        super().close()
        if self._disk is not None:
            self._disk.close()

    def _attached_to(self, wire: Wire) -> Callable[[], None]:
        return self._guarded(wire.send_from, ("frames", "resumed", "acknowledged", "disconnected"))

    # Pushing: called by the drivers of the producers.

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Return the entry that encodes and stores; an outbox has no consumers on its platform."""
        # Imported lazily, here and below: only remote connectors need the encoding.
        from exop.runtime.channels.frame_body import body_of, checked, control_event, item_event, pieces

        self._body_of, self._retraction = body_of, control_event(RETRACTED).data
        add, clock = self._add, time.monotonic

        def push(item: Any) -> None:
            event = item_event(item, clock())
            add(checked(event) if len(event.data) > MOST_BYTES else event, "push", item)

        def push_batch(batch: Any) -> None:
            events = [*pieces(batch, clock())]  # encoded first: the batch is refused as a whole
            for place, (event, part) in enumerate(events):
                try:
                    add(event, "push_batch", part)
                except Unwind as unwound:
                    unwound.then(entry, "push_batch", [rest for _, rest in events[place + 1 :]])
                    raise

        def control(mark: Any) -> None:
            add(control_event(mark, clock()), "control", mark)

        entry = self._entry = Entry(push, push_batch, control, store=self.store)
        return entry

    def _add(self, event: Event, method: Method, payload: Any) -> None:
        if self._disk is not None:
            try:
                self._add_or_spill(self._disk, event)
            except StateError as problem:
                wait_for_disk(self, problem, InFlight(self._entry, method, payload))
            return
        full = (depth := self._in_memory) and (depth + event.events > self.capacity or self._is_heavy)
        if full and not isinstance(payload, EndOfStream):
            self._wait_for_room(event.events)
        self._append(event, here=event.form == ITEMS and event.at - self._sent_at > SEPARATE)
        if self.mode == "sync":
            self._wait_for_room()

    def _append(self, event: Event, *, here: bool = False) -> None:
        if event.events != 1 or event.size >= _LARGE:
            self._grow([event])
        self._unnumbered.append(event)
        if self._idle:
            self._sent_at = event.at if here else self._sent_at
            self._wake(here=here)

    def _add_or_spill(self, spill: Spill, event: Event, *, waits: bool = True) -> None:
        with self._spilling:
            if not spill.events and self._in_memory < self.capacity and not self._is_heavy:
                self._append(event)
                return
            spill.append(event, waits=waits)
        if self.state != LOST:
            self.trouble = None
        if self._idle:
            self._wake()

    def store(self, method: Method, payload: Any) -> None:
        """Store an in-flight item without waiting for room."""
        try:
            for event in _events(method, payload):
                if self._disk is not None:
                    self._add_or_spill(self._disk, event, waits=False)
                else:
                    self._append(event)
        except NotStorable as problem:
            self.dropped += count_items(method, payload)
            log = logger("exop.runtime")
            log.error("an item cannot be sent; it is dropped", channel=self.name, problem=str(problem))

    def _grow(self, events: Iterable[Event], sign: int = 1) -> None:
        """Count what events are more than one item each, or with -1 no longer are."""
        items = size = 0
        for event in events:
            items += event.events - 1
            size += one if (one := event.size) >= _LARGE else 0
        if items or size:
            with self._lock:
                self._extra += sign * items
                self._bytes += sign * size

    @property
    def _is_heavy(self) -> bool:
        return self._bytes >= MOST_OF_EVENT

    def _wake(self, *, here: bool = False) -> None:
        self._idle = False
        if self._wire is not None:
            (self._wire.send_now if here else self._wire.wake)(self.key)

    @property
    def depth(self) -> int:
        """The number of items and control items that are not acknowledged."""
        return self._in_memory + (0 if self._disk is None else self._disk.events)

    unacknowledged = depth

    @property
    def _in_memory(self) -> int:
        return max(0, len(self._unnumbered) + len(self._kept) + self._extra)

    def _has_room(self, size: int) -> bool:
        if self._disk is None and not self.left and (depth := self.depth):  # with a disk, there is room there
            return self.mode != "sync" and depth + size <= self.capacity and not self._is_heavy
        return True

    def passed_on(self, tell: Callable[[], None]) -> bool:
        """Whether the inbox has delivered nearly all that was sent; call *tell* when it has reported more."""
        self._line_up(tell)  # first: what is reported from now on is told
        waiting = self._next + self.capacity - self._credit
        return max(waiting, 0 if self.ack == "stable" else self.depth) <= self.capacity // 4

    # Sending: called by the threads of the wire.

    def frames(self, size: int) -> Sequence[Frame]:
        """Return the next frames, of about *size* bytes, as far as there is credit; fewer if no more are due."""
        found: list[Frame] = []
        with self._turn:
            self._idle = False
            while size > 0 and self.state == CONNECTED and (frame := self._frame(size)) is not None:
                found.append(frame)
                size -= sum(len(part) for part in frame.body)
            known = bool(self._kept) and self._first < self._done
            if known:  # made again after a restart, and acknowledged before it: the inbox reports them no more
                self._drop(self._done)
        if known:
            self._let_in()
        return found

    def _frame(self, size: int) -> Frame | None:
        while (event := self._peek()) is not None and self._next + event.events <= self._skip:
            self._number()
        first, limit = self._next, self._limit
        if event is None or first >= limit:
            return None
        group = [self._number()]
        if event.form == ITEMS:
            size -= len(event.data)
            while size > 0 and self._next < limit and len(group) < MOST_ITEMS:
                one = self._peek()
                if one is None or one.form != ITEMS or one.head != event.head or len(one.data) > MOST_BYTES:
                    break
                size -= len(one.data)
                group.append(self._number())
        return Frame(first, self._next - first, event.form, self._body_of(group))

    @property
    def _limit(self) -> int:
        """The number of the first event that is not to be sent yet."""
        return min(self._credit, self._covered) if self.after_checkpoint or self._waits else self._credit

    def _peek(self) -> Event | None:
        """Return the next event to send; without one, the next push wakes the wire."""
        if not self._unnumbered and self._disk is not None:
            self._refill(self._disk)
        if not self._unnumbered:
            self._idle = True
            # Read again after `_idle` was set: from then on, a push wakes the wire.
            if not self._unnumbered:
                return None
            self._idle = False
        return self._unnumbered[0]

    def _refill(self, spill: Spill) -> None:
        """Take events from the disk, as far as there is room for them."""
        with self._spilling:
            try:
                while spill.events and self._in_memory < self.capacity and not self._is_heavy:
                    found = spill.take(time.monotonic())
                    self._grow(found)
                    self._unnumbered.extend(found)
            except StateError as problem:
                self.trouble = str(problem)

    def _number(self) -> Event:
        """Take the next event to send, which keeps its number from now on."""
        event = self._unnumbered[0]
        self._kept.append(event)  # before it is removed there, so that `depth` is never too small
        self._unnumbered.popleft()
        self._again = max(0, self._again - 1)
        self._next += event.events
        return event

    def resumed(self, progress: Progress) -> None:
        """Send again from `progress.next` after a connection, unless one half of the connector has lost its content."""
        with self._turn:
            ours = self._inbox is None and not self._restored and progress.next > 0
            self._reported, expected, self.expects_loss = progress, self.expects_loss, False
            if ours or progress.next < self._first:
                self._note_loss(progress, ours=ours, expected=expected)
                return
            self.trouble = None if self.state == LOST else self.trouble
            self.state, self._reason, self._inbox = CONNECTED, "", progress.incarnation
            self._skip = progress.next
            self._credit = progress.credit
            self._drop(progress.done)
            self._next = self._first + sum(event.events for event in self._kept)
            while self._kept and self._next > progress.next:
                self._unnumbered.appendleft(self._kept[-1])
                self._again += 1
                self._next -= self._kept.pop().events
        self._go_on()

    def acknowledged(self, progress: Progress) -> None:
        """Drop the events before `progress.done`, and wake the wire if the credit permits further ones."""
        with self._turn:
            self._reported = progress
            if self.state == LOST:
                return
            self._credit = progress.credit
            self._drop(progress.done)
        self._go_on()

    def doubt(self) -> None:
        """Let an operator decide if the inbox has more than this half since a restart, and that is not made again."""
        if self._skip > self._next:
            self._note_loss(self._reported, ours=True, expected=False)

    def accept_loss(self) -> None:
        """Go on after the content of a half was lost, with the oldest event that is stored; what is lost stays lost.

        The last punctuation, or the end, that was acknowledged comes first: the producers do not send it again.

        Raises `PlanError`: nothing is lost, or, with the fact `unknown`, that is known when the inbox is connected.
        """
        with self._turn:
            if self.state not in (CONNECTED, LOST):
                self.expects_loss = True
                why = f"whether the connector {self.key} has lost its state is known when it is connected"
                raise NotNow(f"{why}; repeat this then, see `exop peers`", unknown=True)
            if self.state != LOST:
                raise PlanError(f"the connector {self.key} has not lost its state: there is nothing to accept")
            # The stored events get new numbers: those that the inbox expects.
            self._first = self._done = self._reported.next
            self._captured = self._covered = min(self._covered, self._first)
            self._kept.extendleft(reversed(self._marks))
            self._inbox, self.state, self.trouble = self._reported.incarnation, DISCONNECTED, None
        logger("exop.runtime").info("the loss of a connector is accepted; it goes on", channel=self.name)
        self.resumed(self._reported)
        self._wake()  # the wire has not asked since the loss, so a push would not wake it

    def _go_on(self) -> None:
        self._let_in()
        if not self.depth:
            self.alarm()
        waiting = self._unnumbered or (self._disk is not None and self._disk.events)
        if waiting and self._next < self._limit and self._wire is not None:
            self._wire.wake(self.key)

    def _drop(self, done: int) -> None:
        """Forget the events before a number, as far as they were sent."""
        self._done = max(self._done, done)
        while self._kept and self._first + self._kept[0].events <= self._done:
            gone = self._kept.popleft()
            self._first += gone.events
            if gone.form != ITEMS or gone.size >= _LARGE:
                self._grow([gone], -1)
                if gone.form == CONTROL:
                    self._marks = [*(one for one in self._marks if one.data == self._retraction != gone.data), gone]

    def _note_loss(self, progress: Progress, *, ours: bool, expected: bool) -> None:
        self.state, self._reason = LOST, ""
        who = "this platform" if ours else self.peer
        lost = f"the events before {progress.next}" if ours else f"the events {progress.next} to {self._first - 1}"
        again = f"start {who} again with its state directory; if that is gone, " if self._durable else ""
        cure = f"{again}go on without them by `exop accept {self.application}.{self.name}` where the outbox is"
        self.trouble = str(ConnectorLost(connector=self.key, host=who, lost=lost, cure=cure))
        log, facts = logger("exop.runtime"), {"lost": lost} if expected else {"problem": self.trouble}
        (log.info if expected else log.error)("a connector has lost its state", channel=self.name, **facts)
        self.alarm()

    # What the wiring, changes and checkpoints ask.

    @property
    def cursor(self) -> int:
        """The number of items and control items that were sent."""
        return self._next

    def put_first(self, entries: list[Waiting]) -> None:
        """Insert entries before those that were never sent."""
        events = [event for method, payload in entries for event in _events(method, payload)]
        self._grow(events)
        with self._turn:
            self._unnumbered.rotate(-self._again)
            self._unnumbered.extendleft(reversed(events))
            self._unnumbered.rotate(self._again)
        self._covered = min(self._covered, self._next)
        self._wake()

    def clear(self) -> int:
        """Drop all events; return the number of their items and control items."""
        with self._turn:
            found = self.depth
            self._unnumbered.clear()
            self._kept.clear()
            self._again = self._extra = self._bytes = 0
            self._first, self._covered = self._next, min(self._covered, self._next)
        return found

    def stored(self) -> tuple[int, list[Event]]:
        """Return the number of the oldest stored event, and all stored events, also those on disk."""
        with self._turn:
            return self._first, [*self._kept, *self._unnumbered, *(self._disk.read(0.0) if self._disk else ())]

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every item that is stored."""
        from exop.runtime.channels.frame_body import BodyReader, body_of, event_of

        read = BodyReader(None).read
        with self._turn:
            for events in (self._kept, self._unnumbered):
                for place, event in enumerate(list(events)):
                    ((method, payload),) = read(Frame(0, event.events, event.form, body_of([event])))
                    if method != "control":
                        events[place] = event_of(method, replace(payload), event.at)
                        self._grow([event], -1)
                        self._grow([events[place]])

    def capture(self) -> Mapping[str, Any]:
        """Return the stored events, as they were encoded, and their numbers."""
        with self._turn:
            events = [event[:4] for event in (*self._kept, *self._unnumbered)]
            spilled = {} if self._disk is None else {"spilled": self._disk.capture()}
            self._captured, self._frees = self._first + self.depth, True
            marks, numbers = [mark[:4] for mark in self._marks], {"first": self._first, "done": self._done}
            return {"events": events, "marks": marks, "inbox": self._inbox, **numbers, **spilled}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Restore the events and numbers; those that the inbox has already are not sent again."""
        now = time.monotonic()
        with self._turn:
            self._kept = deque(Event._make((*event, now)) for event in held["events"])
            self._first = self._next = held["first"]
            self._next += sum(event.events for event in self._kept)
            self._extra = self._bytes = 0
            self._grow(self._kept)
            self._done, self._inbox, self._restored = held["done"], held["inbox"], True
            self._marks = [Event._make((*mark, now)) for mark in held.get("marks", ())]
            if self._disk is not None and "spilled" in held:
                self._disk.restore(held["spilled"])
            self._captured = self._covered = self._first + self.depth

    def await_checkpoint(self) -> None:
        """Send only what is in a checkpoint, until one is written that is captured from now on."""
        self._waits, self._frees = True, False

    def take_part(self, *, on: bool) -> None:
        """Record whether checkpoints count the events, also those on disk."""
        self._durable, self._waits = on, on and self._waits
        self._go_on()
        if self._disk is not None:
            self._disk.take_part(on=on)

    def sync(self) -> None:
        """Force the events that the checkpoint counts to disk."""
        if self._disk is not None:
            self._disk.sync()

    def committed(self) -> None:
        """Send the events that are in the checkpoint; drop those on disk that no recovery needs."""
        self._covered, self._waits = self._captured, self._waits and not self._frees
        self._go_on()
        if self._disk is not None:  # last: the disk may be full
            self._disk.committed()

    def metrics(self) -> dict[str, int | float | str]:
        """Return, also, the numbers sent and acknowledged, the credit, and the lag in items and seconds."""
        with self._turn:
            oldest = next((event.at for events in (self._kept, self._unnumbered) for event in list(events)[:1]), None)
            numbers = {"sent": self._next, "acknowledged": self._first, "credit": max(0, self._credit - self._next)}
        found = {**super().metrics(), "depth": self.depth, "capacity": self.capacity, **numbers}
        spilled = 0 if self._disk is None else self._disk.events
        lag = 0.0 if oldest is None else round(time.monotonic() - oldest, 3)
        return {**found, "spilled": spilled, "lag": self.depth, "lag_s": lag}


def _events(method: Method, payload: Any) -> list[Event]:
    """Encode a payload in the events that an inbox accepts; raises as `pieces`."""
    from exop.runtime.channels.frame_body import checked, event_of, pieces

    now = time.monotonic()
    whole = method == "push_batch"
    return [event for event, _ in pieces(payload, now)] if whole else [checked(event_of(method, payload, now))]
