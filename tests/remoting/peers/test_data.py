"""The queue of the sender thread, and frames that another thread sends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from exop.remoting.peers.data import DataConnection, Ready
from exop.remoting.peers.data_frames import Outgoing
from exop.remoting.peers.link import PeerLink
from exop.runtime.channels.wire import Buffer
from tests.remoting.peers.ends import PATIENCE, Clock


def test_what_is_deferred_comes_once_and_after_the_delay() -> None:
    """A deferred source is returned in its time, before what is ready at once, and once however often it was added."""
    clock, deferred, urgent = Clock(), Outgoing(), Outgoing()
    ready = Ready(clock)
    for _ in range(2):
        ready.add_later(deferred)
        ready.add(urgent)
    assert len(ready) == 1
    assert ready.next() is urgent
    urgent.queued = False
    ready.add(urgent)
    clock.now += Ready.DELAY
    assert ready.next() is deferred
    assert ready.next() is urgent
    assert not ready


def test_a_sleeping_thread_is_woken_by_either_addition() -> None:
    """`next` waits until something is added; what is deferred also ends the wait by itself."""
    ready, found = Ready(time.monotonic), list[object]()
    one, other = Outgoing(), Outgoing()
    for source, add in ((one, ready.add), (other, ready.add_later)):
        thread = threading.Thread(target=lambda: found.append(ready.next()))
        thread.start()
        add(source)
        thread.join(PATIENCE)
        assert found.pop() is source


def test_what_was_left_can_be_added_again_after_clearing() -> None:
    """A connection that begins anew removes what its predecessor has left; nothing stays marked as queued."""
    ready, one, other = Ready(Clock()), Outgoing(), Outgoing()
    ready.add(one)
    ready.add_later(other)
    ready.clear()
    assert not ready
    ready.add(one)
    ready.add(other)
    assert [ready.next(), ready.next()] == [one, other]


class Source(Outgoing):
    """Frames for one connection, with the threads that asked for them."""

    def __init__(self, *frames: bytes) -> None:
        self.frames = list(frames)
        self.askers: list[threading.Thread] = []

    def gather(self, buffers: list[Buffer]) -> tuple[int, bool]:
        """Append everything."""
        self.askers.append(threading.current_thread())
        found, self.frames = self.frames, []
        buffers += found
        return sum(map(len, found)), False


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    with ours, theirs:
        yield ours, theirs


def test_a_pushing_thread_sends_and_the_sender_thread_sends_what_the_socket_does_not_take(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """No byte is lost or doubled where the socket is full, and the next frames follow the rest."""
    ours, theirs = ends
    connection = DataConnection(ours, PeerLink("b"), Ready(time.monotonic))
    first, second = Source(bytes(3_000_000)), Source(b"after")
    assert connection.send_now(first)
    assert first.askers == [threading.current_thread()]
    assert not connection.send_now(second), "the rest of the first goes before"
    connection._ready.add(second)
    running = threading.Thread(target=connection.run)
    running.start()
    found = bytearray()
    while len(found) < 3_000_005:
        found += theirs.recv(1 << 16)
    assert found == bytes(3_000_000) + b"after"
    assert threading.current_thread() not in second.askers
    connection.close("the test is over")
    running.join(PATIENCE)


def test_a_connection_that_has_ended_takes_no_frames(ends: tuple[socket.socket, socket.socket]) -> None:
    """A thread that is late asks for nothing: the frames belong to the next connection."""
    connection = DataConnection(ends[0], PeerLink("b"), Ready(time.monotonic))
    connection.close("cut")
    assert connection.run() == "cut"
    late = Source(b"frame")
    assert not connection.send_now(late)
    assert late.frames == [b"frame"]
    assert not late.askers


def test_a_push_that_is_interrupted_while_it_sends_ends_the_connection(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Frames that have a number and were not sent are sent again on the next connection, not left out on this one."""
    connection, source = DataConnection(ends[0], PeerLink("b"), Ready(time.monotonic)), Mock(spec=Outgoing)
    source.gather.side_effect = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        connection.send_now(source)
    assert ends[1].recv(1) == b""
    assert "interrupted" in connection.run()
