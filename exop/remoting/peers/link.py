"""`PeerLink`: the data connection to one peer as a `Wire`, which reconnects by itself."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from exop.errors import CallTimeout, ConnectionLost, ExopError, PeerUnreachable, RemotingError
from exop.remoting.api.remote_platform import RemotePlatform
from exop.remoting.peers import data_frames as frames
from exop.remoting.peers.data import DataConnection, Ready
from exop.remoting.peers.data_frames import BYTES, DATA
from exop.remoting.policy import Access
from exop.remoting.transport.client import ControlClient
from exop.remoting.transport.frames import FrameRefused
from exop.remoting.transport.limits import check_length
from exop.remoting.transport.operation import REPEAT
from exop.remoting.transport.sockets import in_words
from exop.runtime.channels.inbox import Inbox
from exop.runtime.channels.outbox import Outbox
from exop.runtime.channels.wire import Buffer, Frame, Progress
from exop.safe_repr import RAISED

_NOT_PERMITTED: Final = "the policy of the platform does not permit it"
_DETACHED: Final = "the connector has been detached"
#: Characters of a reason that is told to the peer.
_LONGEST_REASON: Final = 2000
_log = logging.getLogger("exop.remoting")


@dataclass(eq=False, repr=False, kw_only=True)
class PeerLink:
    """The link to a peer; its threads start with `start`.

    Attributes:
        may: Whether the policy permits the peer a connector (its key), or, with `operate`, byte strings.
        changed: Called in the receiver thread with the link, when it has connected or lost the connection.
        uri: The address of the peer; empty if only the peer connects, and `accept` takes its sockets.
        client: Calls the operations of the peer.
        reason: Why there is no connection.
        refused: Whether that is so because one side refuses the other; the reason then has the cure.
    """

    peer: str = field(kw_only=False)
    may: Callable[[Access, str], bool] = lambda direction, key: True
    changed: Callable[[PeerLink], None] = lambda link: None
    limits: frames.DataLimits = field(default_factory=frames.DataLimits)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.uri, self.reason, self.refused = "", "not connected yet", False
        self.client: ControlClient | None = None
        self._dial: Callable[[], socket.socket] | None = None
        self._news = threading.Condition()
        self._accepted: socket.socket | None = None
        self._closed = self._leads = self._dialled = False
        self._connection: DataConnection | None = None
        self._ready = Ready(self.clock)
        self._next_offer = 0
        self._senders: dict[str, frames.SenderEnd] = {}
        self._offered: dict[int, frames.SenderEnd] = {}
        self._receivers: dict[str, frames.ReceiverEnd] = {}
        self._offers: dict[str, frames.Attach] = {}
        self._used: set[int] = set()
        self._bound: dict[int, frames.ReceiverEnd | None] = {}
        self._transfers: set[frames.BytesTransfer] = set()
        self._stored: dict[int, Buffer] = {}
        self._expected: set[range] = set()
        self._over: deque[range] = deque(maxlen=100)  # byte strings of these may still come
        self._parts = frames.Parts(self.limits)
        self._thread = threading.Thread(target=self._run, name=f"exop-data-from-{self.peer}", daemon=True)

    @property
    def connected(self) -> bool:
        """Whether the peer can be reached at the moment."""
        return self._connection is not None

    @property
    def round_trip(self) -> float | None:
        """Seconds of the last heartbeat and its answer."""
        return None if (connection := self._connection) is None else connection.round_trip

    def caller(self) -> ControlClient:
        """Return the client that calls the operations of the peer; raises `PeerUnreachable` if it is not connected."""
        with self._news:
            # The connection by which a peer that dials can be called may come shortly after that of the data.
            self._news.wait_for(lambda: self.client is not None or not self.connected, 2.0)
        if (client := self.client) is None or not self.connected:
            problem, dial = self.reason or "not connected yet", "" if self.uri else ", or link it by `exop connect URI`"
            cure = "" if self.refused else f"start it, or repair the network{dial}; "
            raise PeerUnreachable(address=self.uri or self.peer, problem=problem, cure=f"{cure}see `exop peers`")
        return client

    def call(self, operation: str, /, patience: float | None = None, **arguments: Any) -> Any:
        """Call an operation of the peer, and return its reply as plain values, within *patience* seconds, if given."""
        return self.caller().call(operation, arguments, timeout=patience)

    def platform(self) -> RemotePlatform:
        """Return the management interface of the peer, which may connect by itself; raises as `caller`."""
        return RemotePlatform(self.peer, self.client or self.caller())

    def start(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        self._thread.start()

    def call_by(self, client: ControlClient) -> None:
        """Call the peer, which has dialled, by *client* from now on, unless this platform dials as well."""
        with self._news:
            self.client = self.client if self.uri else client
            self._news.notify_all()

    def dial_at(self, uri: str, client: ControlClient, dial: Callable[[], socket.socket], *, leads: bool) -> None:
        """Call the peer by *client*, at *uri*, and connect by *dial*, which may raise `OSError` or an `ExopError`.

        If both platforms dial, the connection of the one that *leads* is used: exactly one of them does.
        """
        with self._news:
            self.uri, self.client, self._dial, self._leads = uri, client, dial, leads
            self._news.notify_all()

    def drop(self, reason: str, refusal: str = "") -> None:
        """End the present connection; the *refusal* of the peer, if any, is the reason, and has the cure."""
        if (connection := self._connection) is not None:
            self.refused = bool(refusal)
            connection.close(refusal or reason)

    def answers(self, seconds: float) -> bool:
        """Whether the peer answers within *seconds* on the present connection."""
        return (connection := self._connection) is not None and connection.answers(seconds)

    def accept(self, sock: socket.socket) -> None:
        """Use a socket that the peer has connected, instead of the present connection."""
        with self._news:
            if self._closed or (self._leads and self._dialled):
                sock.close()
                return
            if self._accepted is not None:
                self._accepted.close()
            self._accepted = sock
            self.drop("the peer has connected anew")
            self._news.notify_all()

    def wait_until(self, connected: bool, timeout: float) -> bool:
        """Wait until the peer is connected, or is not; return whether it came about within *timeout* seconds."""
        with self._news:
            return self._news.wait_for(lambda: self.connected == connected, timeout)

    def failed(self, problem: Exception) -> None:
        """Store why there is no connection, if there is none; `call` adds the address and the remedy."""
        bare = problem.facts.get("problem", "") if isinstance(problem, PeerUnreachable) else None
        if not self.connected:
            before, self.reason = self.reason, str(bare or in_words(problem))
            refusal = bare is None and isinstance(problem, RemotingError)
            self.refused = refusal or (self.refused and self.reason == before)

    def close(self, reason: str = "the platform has closed the link") -> None:
        """End the connection for good; no method of an outbox or inbox is called any more."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        if (connection := self._connection) is not None:
            connection.finish([*self._receivers.values()], reason)
        if self.client is not None:
            self.client.hang_up()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def send_from(self, key: str, epoch: int, sender: Outbox) -> Callable[[], None]:
        """Attach an outbox; it is resumed as soon as the inbox of the same key and epoch is attached at the peer."""
        end = frames.SenderEnd(self._parts, key, epoch, sender)
        with self._news:
            self._senders[key] = end
            self._offer(end)

        def detach() -> None:
            with self._news:
                if self._senders.get(key) is end:
                    del self._senders[key]
                if self._offered.pop(end.number, None) is not None and self._connection is not None:
                    self._ready.add(frames.Single(frames.Withdraw(end.number, key)))

        return detach

    def receive_into(self, key: str, epoch: int, receiver: Inbox) -> Callable[[], None]:
        """Attach an inbox."""
        end = frames.ReceiverEnd(key, epoch, receiver)
        with self._news:
            self._receivers[key] = end
            self._bind(key)

        def detach() -> None:
            with self._news:
                if self._receivers.get(key) is end:
                    del self._receivers[key]
                self._refuse(end, _DETACHED)

        return detach

    def wake(self, key: str, *, later: bool = False) -> None:
        """Let the sender thread ask the outbox for frames, or the inbox for its progress."""
        if (end := self._senders.get(key) or self._receivers.get(key)) is not None and self._connection is not None:
            (self._ready.add_later if later else self._ready.add)(end)

    def send_now(self, key: str) -> None:
        """Send the next frames of the outbox in the calling thread, or let the sender thread do so."""
        connection, end = self._connection, self._senders.get(key)
        if connection is not None and end is not None and not (end.resumed and connection.send_now(end)):
            self._ready.add(end)

    def send_bytes(self, number: int, data: Buffer) -> None:
        """Send a byte string that the peer takes by its number, in parts beside the events of connectors.

        Raises:
            ConnectionLost: there is no connection, or it was lost.
            MessageTooLarge: the string is longer than `DataLimits.body`.
        """
        transfer = frames.BytesTransfer(self._parts, body := frames.Body(BYTES, number, (data,), (0, 0, 0)))
        check_length("the byte string", body.total, self.limits.body, "send it in several")
        with self._news:
            if self._connection is None:
                raise ConnectionLost(address=self.peer, operation="send_bytes", problem=self.reason, cure=REPEAT)
            self._transfers.add(transfer)
            self._ready.add(transfer)
        transfer.ended.wait()
        with self._news:
            self._transfers.discard(transfer)
        if body.sent < body.total:
            raise ConnectionLost(address=self.peer, operation="send_bytes", problem=self.reason, cure=REPEAT)

    def take_bytes(self, number: int, timeout: float) -> Buffer:
        """Return the byte string of that number, as soon as it has been received.

        Raises:
            CallTimeout: it was not received within *timeout* seconds.
            ConnectionLost: it had not been received when the connection was lost.
        """
        with self._news:
            on = self._connection
            self._news.wait_for(lambda: number in self._stored or not (on and self._connection is on), timeout)
            if number in self._stored:
                return self._stored.pop(number)
            if self._connection is not on or on is None:
                raise ConnectionLost(address=self.peer, operation="take_bytes", problem=self.reason, cure=REPEAT)
        raise CallTimeout(address=self.peer, operation="take_bytes", seconds=timeout)

    def receiving(self, number: int) -> int:
        """Return how many bytes of an incomplete byte string have been received."""
        return 0 if (connection := self._connection) is None else connection.receiving(number)

    def expect_bytes(self, numbers: range) -> None:
        """Accept the byte strings with these numbers, also of a peer without a role, until `drop_bytes`."""
        with self._news:
            self._expected.add(numbers)

    def drop_bytes(self, numbers: range) -> None:
        """Drop the byte strings with these numbers that have not been taken; if they were expected, also later ones."""
        with self._news:
            if numbers in self._expected:
                self._expected.remove(numbers)
                self._over.append(numbers)
            self._stored = {number: body for number, body in self._stored.items() if number not in numbers}

    def attached(self) -> list[tuple[Any, int]]:
        """The halves of connectors that are attached, each with the bytes of its events since then."""
        with self._news:
            senders = [(end.sender, end.bytes) for end in self._senders.values()]
            return [*senders, *((end.receiver, end.bytes) for end in self._receivers.values())]

    def message(self, message: frames.Message) -> None:
        """Take a message of the peer; called by the data connection."""
        if isinstance(message, frames.Report):
            self._reported(message)
        elif isinstance(message, frames.Refused):
            end = self._offered_as(message.number)
            # An inbox that is detached forgets the offer, also before its first report has arrived here.
            if end is not None and (end.stop(message.reason) or message.reason == _DETACHED):
                with self._news:
                    self._offer(end)
        elif isinstance(message, frames.Attach):
            self._attached(message)
        elif isinstance(message, frames.Withdraw):
            self._withdrawn(message)

    def begins(self, kind: int, number: int, about: tuple[int, int, int], total: int) -> bool:
        """Check that a body may be received; called by the data connection.

        Returns:
            Whether it is to be kept. The bytes for a connector that is refused are received and dropped.
        """
        if kind == BYTES and not self.may("operate", ""):
            with self._news:
                if not any(number in numbers for numbers in (*self._expected, *self._over)):
                    raise FrameRefused(f"bytes: {_NOT_PERMITTED}")
        if kind == DATA and number not in self._bound:
            raise FrameRefused(f"events of the connector {number}, which is not attached")
        return kind == BYTES or self._given(number, lambda inbox: inbox.admit((*about, total))) is not None

    def data(self, number: int, first: int, events: int, form: int, body: Buffer) -> None:
        """Give events to their inbox; called by the data connection."""
        if (end := self._given(number, lambda inbox: inbox.received(Frame(first, events, form, (body,))))) is not None:
            end.bytes += len(body)

    def _given(self, number: int, give: Callable[[Inbox], object]) -> frames.ReceiverEnd | None:
        """Give something to the inbox of a number; return the inbox if there is one, and it has taken it."""
        if (end := self._bound[number]) is None:
            return None
        try:
            give(end.receiver)
            return end
        except ValueError as problem:
            end.broken = str(problem)
            _log.warning("the connector %s refuses a frame of %r: %s", end.key, self.peer, problem)
            with self._news:
                self._refuse(end, end.broken)
            end.receiver.disconnected(end.broken)
            return None

    def stored(self, number: int, body: Buffer) -> None:
        """Store a byte string until it is taken; called by the data connection."""
        with self._news:
            if any(number in numbers for numbers in self._over):
                return
            if sum(map(len, self._stored.values())) + len(body) > self.limits.stored:
                raise FrameRefused("too many byte strings that have not been taken")
            self._stored[number] = body
            self._news.notify_all()

    def _offer(self, end: frames.SenderEnd) -> None:
        """Attach an outbox under a new number. Under the lock."""
        self._offered.pop(end.number, None)
        if self._connection is not None and self._senders.get(end.key) is end:
            end.number = self._next_offer  # without its lock: the connector is not in use
            self._offered[end.number] = end
            self._next_offer += 1
            self._ready.add(frames.Single(frames.Attach(end.number, end.epoch, end.key)))

    def _offered_as(self, number: int) -> frames.SenderEnd | None:
        """The outbox with this number; none if it has been detached, or has another number by now."""
        if number >= self._next_offer:
            raise FrameRefused(f"a message about the connector {number}, which is not attached")
        return self._offered.get(number)

    def _reported(self, report: frames.Report) -> None:
        if (end := self._offered_as(report.number)) is None:
            return
        if (first := not end.resumed) and not self.may("read", end.key):
            with self._news:
                self._offered.pop(report.number, None)
                self._ready.add(frames.Single(frames.Withdraw(report.number, end.key)))
            end.stop(_NOT_PERMITTED)
            return
        end.report(Progress(report.incarnation, report.next, report.done, report.credit))
        if first:  # after later reports, the outbox itself wakes the sender thread
            self._ready.add(end)

    def _attached(self, offer: frames.Attach) -> None:
        limits = self.limits
        with self._news:
            if offer.number in self._used:
                raise FrameRefused(f"the number {offer.number} has been used for a connector before")
            if len(self._offers) >= limits.connectors or len(self._used) >= limits.numbers:
                raise FrameRefused(f"more than {limits.connectors} connectors, or {limits.numbers} in succession")
            self._used.add(offer.number)
            if (previous := self._offers.get(offer.key)) is not None:
                if previous.number > offer.number:
                    return  # offers of several outboxes may arrive in another order
                self._unbind(previous)
            self._offers[offer.key] = offer
            self._bind(offer.key)

    def _bind(self, key: str) -> None:
        """Connect the inbox of that key with the outbox that the peer has attached, or refuse it. Under the lock."""
        if (offer := self._offers.get(key)) is None:
            return
        if (end := self._receivers.get(key)) is None:
            problem = "no such connector is attached"
        elif end.epoch != offer.epoch:
            problem = f"the connector has the epoch {end.epoch}, not {offer.epoch}"
        elif end.broken or not self.may("write", key):
            problem = end.broken or _NOT_PERMITTED
        else:
            # A peer that was restarted uses the same numbers again, and knows nothing of the last report.
            end.number, end.reported = offer.number, None
            self._bound[offer.number] = end
            self._ready.add(end)
            return
        self._ready.add(frames.Single(frames.Refused(offer.number, problem[:_LONGEST_REASON])))

    def _unbind(self, offer: frames.Attach) -> frames.ReceiverEnd | None:
        """End the use of a number; return the inbox that used it. Under the lock."""
        if (end := self._bound.get(offer.number)) is not None:
            self._bound[offer.number] = end.number = None
        return end

    def _refuse(self, end: frames.ReceiverEnd, reason: str) -> None:
        """Tell the peer that an inbox that it uses accepts nothing any more. Under the lock."""
        if (offer := self._offers.get(end.key)) is not None and self._unbind(offer):
            # Frames under its number are lost from now on: a later inbox waits for the next offer.
            del self._offers[offer.key]
            self._ready.add(frames.Single(frames.Refused(offer.number, reason[:_LONGEST_REASON])))

    def _withdrawn(self, message: frames.Withdraw) -> None:
        with self._news:
            if (offer := self._offers.get(message.key)) is None or offer.number != message.number:
                return
            del self._offers[message.key]
            end = self._unbind(offer)
        if end is not None:
            end.receiver.disconnected("the peer has detached the connector")

    def _run(self) -> None:
        pause = self.limits.first_pause
        while True:
            try:
                if (sock := self._next_socket()) is None:
                    return
                connection = DataConnection(sock, self, self._ready)
            except (OSError, ExopError) as problem:  # it may have been closed already
                self.failed(problem)
            else:
                started = self.clock()
                self._use(connection)
                if self.clock() - started > self.limits.longest_pause:
                    pause = self.limits.first_pause
            with self._news:
                self._news.wait_for(lambda: self._closed or self._accepted is not None, pause)
            pause = min(2 * pause, self.limits.longest_pause)

    def _next_socket(self) -> socket.socket | None:
        """Return a connected socket; `None` when the link is closed."""
        with self._news:
            self._news.wait_for(lambda: self._closed or self._accepted is not None or self._dial is not None)
            accepted, self._accepted = self._accepted, None
            if self._closed:
                if accepted is not None:
                    accepted.close()
                return None
        if accepted is not None or self._dial is None:
            return accepted
        own = self._dial()
        with self._news:
            # Both platforms have dialled at the same time: one connection is used.
            accepted, self._accepted = self._accepted, None
            self._dialled = accepted is None or self._leads
        used, other = (own, accepted) if self._dialled else (accepted, own)
        if other is not None:
            other.close()
        return used

    def _use(self, connection: DataConnection) -> None:
        """Serve a connection until it ends."""
        client = self.client
        with self._news:
            # What is left belongs to the previous connection.
            self._ready.clear()
            self._offers.clear()
            self._bound.clear()
            self._used.clear()
            self._connection, self.reason, self.refused, self._parts.total = connection, "", False, 0
            for receiving in self._receivers.values():
                receiving.broken = ""
            for end in self._senders.values():
                end.bodies.clear()
                self._offer(end)
            if self._closed:
                connection.close("the link is closed")
            self._news.notify_all()
        self._tell()
        try:
            reason = connection.run()
        except RAISED as problem:
            _log.exception("the data connection to %r has failed", self.peer)
            reason = f"{type(problem).__name__}: {problem}"
        with self._news:
            self._connection, self.reason, self._dialled = None, reason, False
            if client is not None:
                client.hang_up()  # no call waits for a peer that is lost
            for offer in self._offers.values():
                self._unbind(offer)
            for transfer in self._transfers:
                transfer.ended.set()
            ends, receivers = list(self._senders.values()), list(self._receivers.values())
            self._news.notify_all()
        for end in ends:
            end.stop(reason)
        for receiving in receivers:
            receiving.receiver.disconnected(reason)
        self._tell()

    def _tell(self) -> None:
        _log.info("peer %r: %s", self.peer, self.reason or "connected")
        self.changed(self)
