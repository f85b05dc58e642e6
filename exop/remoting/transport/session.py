"""One accepted connection from hello to end. Imports rpyc: loaded when the first peer comes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from exop.remoting.transport import handshake
from exop.remoting.transport.budget import Budget
from exop.remoting.transport.codec import pack
from exop.remoting.transport.connections import Phase, Seat
from exop.remoting.transport.dispatch import Dispatcher
from exop.remoting.transport.frames import (
    FAULT,
    REPLY,
    REQUEST,
    BoundedChannel,
    DeadlineStream,
    FrameRefused,
    Message,
    TooLate,
)
from exop.remoting.transport.limits import Limits
from exop.remoting.transport.operation import Operation, Role
from exop.remoting.transport.sockets import peer_of
from exop.runtime.history import CALLER


class Host:
    """The parts that all connections of a server share: the operations, the budgets, the answer to a hello."""

    def __init__(self, operations: Mapping[str, Operation], name: str, limits: Limits, role: Role) -> None:
        self._limits = limits
        self._dispatcher = Dispatcher(operations, limits, role)
        self._welcome = handshake.Welcome(name=name, pid=os.getpid())
        self._incoming = Budget(limits.bytes_in, limits.small_frame)
        self._outgoing = Budget(limits.bytes_out, limits.small_frame)

    def serve(self, sock: socket.socket, seat: Seat) -> str:
        """Serve one peer until it goes or breaks a bound; returns why it ended, in one word."""
        channel, peer = self._channel(sock), peer_of(sock)
        CALLER.set(f"user {peer.uid} (process {peer.pid})")
        try:
            handshake.receive(channel, self._welcome, time.monotonic() + self._limits.greeting_time)
            return self._serve(channel, seat)
        except (FrameRefused, handshake.Silent):
            return "broken"
        except (TooLate, TimeoutError):
            return "late"
        except EOFError:
            return "closed"
        finally:
            channel.settle()
            channel.close()

    def decline(self, sock: socket.socket, problem: str) -> None:
        """Tell a peer that it is not taken, without waiting for anything it might say, and close."""
        channel = self._channel(sock)
        try:
            # A fresh socket has room for one small message, so this does not wait.
            channel.send_greeting(pack(handshake.Declined(problem)), time.monotonic())
        except EOFError:
            return
        finally:
            channel.close()

    def _serve(self, channel: BoundedChannel, seat: Seat) -> str:
        while True:
            seat.enter(Phase.IDLE)
            if not channel.stream.readable(self._limits.idle_time):
                return "idle"
            self._exchange(channel, seat)
            channel.settle()

    def _exchange(self, channel: BoundedChannel, seat: Seat) -> None:
        """Receive a request and answer it. A function of its own, so that a connection at rest holds no message."""
        request, reply = channel.receive(), 0
        seat.enter(Phase.RUNNING, request.operation)
        try:
            outcome = self._dispatcher.answer(request.operation, request.payload)
            try:
                # Not waited for: what waits would hold the reply all the same.
                reply = self._outgoing.take(len(outcome.payload), time.monotonic())
            except TimeoutError:
                outcome = self._dispatcher.busy(request.operation)
            seat.enter(Phase.REPLYING, request.operation)
            channel.transmit(Message(REPLY if outcome.ok else FAULT, request.number, outcome.payload))
        finally:
            self._outgoing.give(reply)

    def _channel(self, sock: socket.socket) -> BoundedChannel:
        return BoundedChannel(DeadlineStream(sock), self._limits, frozenset({REQUEST}), self._incoming)
