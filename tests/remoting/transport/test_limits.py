"""A budget is never overdrawn, and who waits for it gets it or learns that the time is over."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from exop.remoting.transport.limits import DEFAULT_LIMITS, Budget, Connection, Connections


def test_small_is_free() -> None:
    """Small messages take nothing, even from an empty budget."""
    budget = Budget(100, 10)
    assert budget.take(100, time.monotonic()) == 100
    assert budget.take(10, time.monotonic()) == 0


def test_runs_out() -> None:
    """What is not there is waited for until the deadline and no longer."""
    budget = Budget(100, 10)
    budget.take(60, time.monotonic())
    with pytest.raises(TimeoutError):
        budget.take(60, time.monotonic() + 0.01)
    assert budget.left == 40


def test_larger_than_all() -> None:
    """A message larger than the whole budget takes all of it, and is not waited for in vain."""
    assert Budget(100, 10).take(500, time.monotonic()) == 100


def test_waits_for_others() -> None:
    """Who waits goes on when another gives back."""
    budget = Budget(100, 10)
    held = budget.take(100, time.monotonic())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(budget.take, 50, time.monotonic() + 5)
        budget.give(held)
        assert waiting.result(5) == 50
    assert budget.left == 50


def test_never_overdrawn() -> None:
    """Under many threads the holders never have more than the total, and all is given back."""
    budget = Budget(100, 0)
    held = 0
    most = 0
    lock = threading.Lock()

    def work(size: int) -> None:
        nonlocal held, most
        for _ in range(50):
            taken = budget.take(size, time.monotonic() + 5)
            with lock:
                held += taken
                most = max(most, held)
            with lock:
                held -= taken
            budget.give(taken)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, [10, 20, 30, 40, 50, 60]))
    assert most <= 100
    assert budget.left == 100


def test_a_connection_without_a_thread_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further thread can be started, and later there is room for as many connections as before."""
    connections, (ours, theirs) = Connections(DEFAULT_LIMITS), socket.socketpair()
    closed = Mock(wraps=Connection.close)
    monkeypatch.setattr(Connection, "close", lambda connection: closed(connection))
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with ours, theirs, pytest.raises(RuntimeError):
        connections.start(ours, Mock())
    assert len(connections) == 0
    closed.assert_called_once()
