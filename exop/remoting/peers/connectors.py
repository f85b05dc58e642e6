"""The two ends of remote connectors, and byte strings, as the sender thread of a link sees them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from exop.remoting.peers.data_frames import DATA, Attach, Body, DataLimits, Outgoing, Report, pack_message
from exop.runtime.channels.wire import Buffer, Progress, Receiver, Sender


class Parts:
    """Admits bodies that are sent in parts: `DataLimits.body` bounds all of them together. In the sender thread."""

    def __init__(self, limits: DataLimits) -> None:
        self.limits = limits
        self.total = 0

    def admit(self, body: Body) -> bool:
        """Whether the next part of *body* may be sent."""
        if body.total <= self.limits.part:
            return True
        if not body.sent:
            if self.total and self.total + body.total > self.limits.body:
                return False
            self.total += body.total
        if body.total - body.sent <= self.limits.part:
            self.total -= body.total
        return True


@dataclass(slots=True)
class ConnectorTraffic:
    """The traffic of an attached connector.

    Attributes:
        state: `attached`, `waiting` for the peer, or why the connector is refused.
        sent: The number of the next event to send; of an inbox, to receive.
        done: The number of the first event that is not acknowledged.
        credit: The number of the first event that the inbox does not accept yet.
    """

    key: str
    epoch: int
    sends: bool
    state: str = "waiting"
    frames: int = 0
    bytes: int = 0
    sent: int = 0
    done: int = 0
    credit: int = 0

    @property
    def lag(self) -> int:
        """Events that have been sent and are not acknowledged."""
        return max(0, self.sent - self.done)


class SenderEnd(Outgoing):
    """An attached outbox.

    The lock orders `frames` in the sender thread with `resumed` and `disconnected` in the receiver thread: frames from
    before a resumption never go out under the number after it.
    """

    def __init__(self, parts: Parts, key: str, epoch: int, sender: Sender) -> None:
        self.sender = sender
        self.traffic = ConnectorTraffic(key, epoch, sends=True)
        self.number = -1
        self.bodies: deque[Body] = deque()
        self._parts = parts
        self._lock = threading.Lock()
        self._to_attach = False
        self.resumed = False

    def offer(self, number: int) -> None:
        """Attach under a new number. It takes no lock: the connector is not in use."""
        self.number = number
        self._to_attach = True

    def report(self, progress: Progress) -> None:
        """Take the progress of the inbox."""
        traffic = self.traffic
        traffic.done, traffic.credit, traffic.state = progress.done, progress.credit, "attached"
        if self.resumed:
            self.sender.acknowledged(progress)
            return
        with self._lock:
            traffic.sent = progress.next
            self.sender.resumed(progress)
            self.resumed = True

    def stop(self, reason: str) -> bool:
        """Send nothing until the next report; return whether the connector was in use."""
        with self._lock:
            resumed, self.resumed, self.traffic.state = self.resumed, False, reason
            self.sender.disconnected(reason)
        return resumed

    def gather(self, buffers: list[Buffer]) -> tuple[int, bool]:
        """Append the offer, or the next frames of the outbox."""
        if self._to_attach:
            self._to_attach = False
            buffers.append(pack_message(Attach(self.number, self.traffic.epoch, self.traffic.key)))
        size, limits = 0, self._parts.limits
        if asked := not self.bodies:
            self._ask(limits.batch)
        while size < limits.batch and self.bodies:
            if not self._parts.admit(body := self.bodies[0]):
                return size, True
            size += body.append_to(buffers, limits.part)
            if body.sent == body.total:
                self.bodies.popleft()
        return size, size >= limits.batch or not asked

    def _ask(self, size: int) -> None:
        with self._lock:
            frames = self.sender.frames(size) if self.resumed else ()
            traffic, most = self.traffic, self._parts.limits.body
            for frame in frames:
                body = Body(DATA, self.number, frame.body, (frame.first, frame.events, frame.form))
                if body.total > most:
                    self.resumed, traffic.state = False, f"a frame of {body.total} bytes is over the bound of {most}"
                    self.sender.disconnected(traffic.state)
                    break
                self.bodies.append(body)
                traffic.frames += 1
                traffic.bytes += body.total
                traffic.sent = frame.first + frame.events


class ReceiverEnd(Outgoing):
    """An attached inbox."""

    def __init__(self, key: str, epoch: int, receiver: Receiver) -> None:
        self.receiver = receiver
        self.traffic = ConnectorTraffic(key, epoch, sends=False)
        self.number: int | None = None
        self.reported: Report | None = None
        self.broken = ""
        """Why the inbox accepts nothing any more."""

    def gather(self, buffers: list[Buffer]) -> tuple[int, bool]:
        """Append the progress of the inbox."""
        if (number := self.number) is None:
            return 0, False
        progress, traffic = self.receiver.progress(), self.traffic
        traffic.sent, traffic.done, traffic.credit = progress.next, progress.done, progress.credit
        report = Report(number, *progress)
        if report == self.reported:
            return 0, False
        self.reported = report
        buffers.append(frame := pack_message(report))
        return len(frame), False


class BytesTransfer(Outgoing):
    """A byte string on its way out."""

    def __init__(self, parts: Parts, body: Body) -> None:
        self._parts = parts
        self.body = body
        self.ended = threading.Event()

    def gather(self, buffers: list[Buffer]) -> tuple[int, bool]:
        """Append the next part."""
        if not self._parts.admit(self.body):
            return 0, True
        size = self.body.append_to(buffers, self._parts.limits.part)
        more = self.body.sent < self.body.total
        if not more:
            self.ended.set()
        return size, more
