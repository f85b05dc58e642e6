"""`inbox`: the receiving half of a remote connector (paper §4.3): a queue that the thread of a connection fills."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from exop.logs import logger
from exop.model.items import EndOfStream
from exop.model.meshes.partitions import PARTITIONS
from exop.model.slets.ports import PortType
from exop.model.values.classes import Declared
from exop.runtime.channels.connector import CONNECTED, Acknowledgement, Connector, Mode
from exop.runtime.channels.queue import QueueChannel, Waiting
from exop.runtime.channels.wire import ITEMS, MOST_OF_EVENT, Frame, Progress, Wire, check_bounds
from exop.runtime.dataflow.batches import cut
from exop.runtime.dataflow.entry import Method, Packet, count_items, unpacked
from exop.runtime.drivers.base import Driver

#: The bytes of waiting events beyond which an inbox gives no credit.
LARGEST: Final = 32 * 2**20
#: The attributes of an inbox that belong to its epoch.
_EVENTS: Final = (
    *("epoch", "incarnation", "state", "_reason", "_next", "_done", "_captured", "_stable", "_granted", "_bytes"),
    *("_sizes", "_reported", "_over", "_undecoded", "_undecided", "_extra", "_read_out"),
)


class Inbox(Connector, QueueChannel):
    """Receives items from the outbox of the same `key` at `peer`, each once and in order.

    The inbox gives credit for `capacity` items, which the outbox may send at once. It acknowledges an event when the
    event was received (`ack="received"`), when the slets behind the inbox have processed it (`done`: the driver of the
    inbox has come back to its safe point), or when a checkpoint contains it (`stable`).

    Attributes:
        incarnation: Identifies the content; an inbox that begins without the content of its predecessor has another.
    """

    kind: ClassVar[str] = "inbox"

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
        by: str | None = None,
        partitions: int = PARTITIONS,
        feeders: Sequence[str] = (),
    ) -> None:
        super().__init__(name, capacity=capacity, by=by, partitions=partitions)
        self._name_other_half(peer, key, epoch, ack, mode)
        self.feeders = feeders
        self.incarnation = uuid.uuid4().hex
        self._read: Callable[..., list[tuple[Method, Any]]] = lambda frame, failed: []
        self._next = self._done = self._captured = self._stable = 0
        self._granted = self._bytes = 0
        self._sizes: deque[tuple[int, int]] = deque()  # of the frames that wait: where they end, and their bytes
        self._made: Callable[[], int] = lambda: 0
        self._durable = True
        self._over = self._read_out = False
        self._undecoded = 0  # frames
        #: The event before which a change has parked the driver, and the frames since then, each with the number of
        #: its old events and of its entries.
        self._undecided: tuple[int, list[tuple[Frame, int, int]]] = -1, []

    def reconfigure(self, settings: Mapping[str, Any], *, close: bool) -> Callable[[], None]:
        """Take other limits; with another epoch, begin anew without events: these are delivered in another way."""
        if (fresh := Inbox(self.name, **settings)).epoch == self.epoch:
            return self._become(fresh, ("feeders",))
        self.detach()  # nothing more arrives
        waiting = [*self.entries]  # the worker keeps the object
        self.entries.clear()
        back = self._become(fresh, ("feeders", *_EVENTS))

        def undo() -> None:
            self.entries.extend(waiting)
            back()

        return undo

    def _attached_to(self, wire: Wire) -> Callable[[], None]:
        return self._guarded(wire.receive_into, ("admit", "received", "disconnected"), others=("progress", "settle"))

    def typed(self, types: Sequence[PortType]) -> None:
        """Permit what the ports take, and the classes that the channel declares that the connector serves."""
        # Imported lazily: only remote connectors need the encoding.
        from exop.runtime.channels.frame_body import BodyReader

        known = self.asked.type if hasattr(self, "asked") else None
        reader = BodyReader(Declared(*(one.items for one in (*types, known) if one is not None)), types)
        with self._turn:
            self._read, self._made = reader.read_each, lambda: reader.made
            frames = self._since_parked() or []
            for _ in range(sum(entries for _, _, entries in frames)):
                self._removed(self.entries.pop())
            frames[:] = [(frame, events, self._append(frame, events)) for frame, events, _ in frames]

    def bound_back(self) -> Callable[[], None]:
        """Decode what comes from now on anew when the types of the ports change, until the driver goes on."""
        with self._turn:
            self._undecided = self._next - self.depth, []
        return super().bound_back()

    def _since_parked(self) -> list[tuple[Frame, int, int]] | None:
        """Return the frames that have come since a change parked the driver; `None` if it has gone on."""
        if self._undecided[0] != self._next - self.depth:
            self._undecided = -1, []
            return None
        return self._undecided[1]

    # Receiving: called by the threads of the wire.

    def admit(self, header: tuple[int, int, int, int]) -> bool:
        """Check the header of a frame (`Frame` with the size of its body) before the body is received.

        Return whether the frame has new events, and may be taken.

        Raises:
            ValueError: the frame leaves out events, is beyond the credit, or larger than any that an outbox sends.
        """
        first, events, form, size = header
        with self._turn:
            self._trim()
            if first + events <= self._next:
                return False
            if first > self._next or first >= self._granted or (form == ITEMS and first + events > self._granted):
                expected = f"expected is {self._next}, and the credit ends at {self._granted}"
                raise ValueError(f"the frame begins with the event {first}, and has {events}; {expected}")
            check_bounds(events, form, size)
            if self._bytes > 2 * MOST_OF_EVENT + LARGEST:
                raise ValueError(f"a frame of {size} bytes, while {self._bytes} bytes wait")
            return True

    def received(self, frame: Frame) -> None:
        """Store the events of a frame that are new. The body is valid during the call only, except that of `COLUMNS`.

        Raises:
            ValueError: the frame leaves out events, or is beyond the credit. The wire refuses the connector.
        """
        end, size = frame.first + frame.events, sum(len(part) for part in frame.body)
        with self._turn:
            if not self.admit((*frame[:3], size)):
                return
            since, known = self._since_parked(), self._next - frame.first
            entries = self._append(frame, known)
            if since is not None:
                since.append((frame._replace(body=[bytes(part) for part in frame.body]), known, entries))
            # Collections take more in memory than on the wire, where four times as much is usual.
            size = max(size, self._made() // 4)
            self._bytes += size
            self._sizes.append((end, size))
            self._next = end
            if self.left:
                self.dropped += self.clear()
                self._done = end  # nobody else notes it: the consumer has ended
        self._wake_worker()
        if self.ack == "received" or self.left:
            self._report(later=self._next - self._reported.done < self.capacity // 4)

    def _append(self, frame: Frame, known: int) -> int:
        """Append the payloads of a frame behind its *known* events; return the number of entries."""
        waiting = len(self.entries)
        self.entries.extend(map(self._packed, without(self._read(frame, self._failed), known)))
        return len(self.entries) - waiting

    def _failed(self, problem: Exception) -> None:
        """Log a frame with items for the ports to refuse; of many, ever fewer."""
        self._undecoded += 1
        if self._undecoded.bit_count() == 1:
            text = str(getattr(problem, "problem", problem))  # the error of the port has the cure
            facts = {"channel": self.name, "peer": self.peer, "frames": self._undecoded, "problem": text}
            logger("exop.runtime").error("an item of a peer is not taken", **facts)

    def _trim(self) -> None:
        """Count the bytes of processed frames no longer."""
        done = self._next - self.depth
        while self._sizes and self._sizes[0][0] <= done:
            self._bytes -= self._sizes.popleft()[1]

    def progress(self) -> Progress:
        """Return the report to send to the outbox, which is connected."""
        with self._turn:
            self.state = CONNECTED
            self._trim()
            credit = self._next + (max(0, self.capacity - self.depth) if self._bytes < LARGEST else 0)
            self._granted = max(self._granted, credit)
            self._reported = Progress(self.incarnation, self._next, self._acknowledged, credit)
            return self._reported

    @property
    def _acknowledged(self) -> int:
        if self._read_out:
            return self._reported.done
        if self.ack == "received":  # the outbox keeps what would be too much here
            return self._next if self._bytes < LARGEST else max(self._done, self._reported.done)
        return self._stable if self.ack == "stable" and self._durable else self._done

    def _report(self, *, later: bool = False) -> None:
        if self._wire is not None:
            self._wire.wake(self.key, later=later and self.mode != "sync")

    # Delivering: called by the driver that drains the inbox, at its safe point.

    def drain(self, driver: Driver, most: int) -> int:
        """Deliver up to *most* entries, each after a safe point."""
        moved = super().drain(driver, most)
        self._note_done()
        return moved

    def take(self, most: int) -> list[Any]:
        """Remove entries with up to *most* items; those that were taken before are processed."""
        self._note_done()
        found = super().take(most)
        self._over = self._over or any(isinstance(unpacked(one)[1], EndOfStream) for one in found[:1])
        return found

    def _note_done(self) -> None:
        """Record what was processed, and report it if that is a quarter of the credit, or nothing waits.

        Items that waited at a port on another host may precede the events: they leave less room, or none.
        """
        following = self._next  # before `depth`, to which a frame that arrives now adds first
        done = following - self.depth
        self._done = max(0, done)
        reported = self._reported
        # What was acknowledged, when it was received or in process, gives no room before it is processed.
        known = min(reported.credit - self.capacity, reported.done)
        many = done - known >= self.capacity // 4
        if many or (not self.entries and (reported.next, known) != (following, done)):
            self._report(later=not many)

    def settle(self, until: float) -> None:
        """Wait, until then at most, while the last events are processed, so that `progress` acknowledges them."""
        while self._done < self._next and not self.entries and time.monotonic() < until:
            time.sleep(0.001)

    def _deliver_packet(self, driver: Driver, packet: Packet, *, probe: bool) -> None:
        self._over = self._over or isinstance(packet.payload, EndOfStream)
        super()._deliver_packet(driver, packet, probe=probe)

    def leave(self) -> None:
        """Drop the waiting items and all later ones, since the consumer has ended."""
        super().leave()
        self._note_done()

    def kept_for(self, port: str) -> list[Any]:
        """Return the end of the stream if it was delivered: no other producer sends it again."""
        return [EndOfStream()] if self._over else []

    def waiting(self) -> tuple[int, int, list[Waiting]]:
        """Return the numbers of the first event that was not taken and of the next one, and what waits if it was
        acknowledged, as received or by a checkpoint; the driver of the inbox is parked.

        What comes later is not acknowledged until `go_on`: the caller does not know of it.
        """
        with self._turn:
            self._read_out = True
            taken = self._next - self.depth
            entries = super().capture()["entries"] if self.ack == "received" or self._stable > taken else []
            return taken, self._next, entries

    def go_on(self) -> None:
        """Acknowledge again, since what `waiting` has returned is delivered, or is not to be."""
        self._read_out = False
        self._report()

    # Checkpoints.

    def take_part(self, *, on: bool) -> None:
        """Acknowledge what is done if no checkpoints are taken."""
        self._durable = on

    def capture(self) -> Mapping[str, Any]:
        """Return the content, the incarnation, and the number of the next event."""
        with self._turn:
            self._captured = self._next
            return {**super().capture(), "incarnation": self.incarnation, "next": self._next, "over": self._over}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Continue after the captured events."""
        with self._turn:
            super().restore(held)
            if "next" in held:
                self.incarnation, self._next, self._over = held["incarnation"], held["next"], held["over"]
                self._captured = self._stable = self._next
                self._done = self._next - self.depth

    def committed(self) -> None:
        """Acknowledge the events that the checkpoint contains."""
        self._stable = self._captured
        if self.ack == "stable":
            self._report()

    def metrics(self) -> dict[str, int | float | str]:
        """Return, also, the metrics of a queue, and the numbers of events received and acknowledged."""
        credit = max(0, self._granted - self._next)
        return {**super().metrics(), "received": self._next, "acknowledged": self._acknowledged, "credit": credit}


def without(work: Iterable[Waiting], events: int) -> Iterator[Waiting]:
    """Yield the payloads after so many events."""
    for method, payload in work:
        if not events:
            yield method, payload
        elif events >= (size := max(1, count_items(method, payload))):
            events -= size
        else:
            yield method, cut(payload, events, size)
            events = 0
