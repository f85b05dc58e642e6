"""The registry under threads."""

from __future__ import annotations

import sys
import threading
from collections import Counter

import pytest

from exop.registry import Change, ServiceRegistry, delivery
from tests.rig import eventually

WAIT = 30


@pytest.fixture(autouse=True)
def _eager_switching():
    """Threads change places as often as the interpreter can make them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def run_together(*bodies):
    """Run each body in a thread of its own, all starting at once; raise what they raise."""
    barrier, failures = threading.Barrier(len(bodies)), []

    def guarded(body):
        barrier.wait(WAIT)
        try:
            body()
        except BaseException as error:  # noqa: BLE001 (raised again below)
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def test_all_listeners_hear_one_order():
    """Changes by many threads reach every listener in the same order, each exactly once and never two at a time."""
    registry = ServiceRegistry()
    first, second, busy = [], [], threading.Lock()

    def hear(event):
        assert busy.acquire(blocking=False), "two threads deliver at once"
        first.append((event.change, event.service.id))
        busy.release()

    registry.listen(None, hear)
    registry.listen(None, lambda event: second.append((event.change, event.service.id)))

    def change(worker):
        for turn in range(60):
            registration = registry.register("X", None, {"worker": worker, "turn": turn})
            registration.update({"turn": -1})
            registration.unregister()

    run_together(*(lambda worker=worker: change(worker) for worker in range(4)))
    assert registry.settle(WAIT)
    assert first == second
    assert Counter(first) == {(kind, number): 1 for kind in Change for number in range(1, 4 * 60 + 1)}
    for number in range(1, 4 * 60 + 1):
        assert [kind for kind, which in first if which == number] == [Change.ADDED, Change.MODIFIED, Change.REMOVED]


def test_trackers_opened_meanwhile_miss_nothing():
    """A tracker opened while others register sees every service exactly once: present before, or added after."""
    registry = ServiceRegistry()
    seen = [Counter() for _ in range(20)]
    trackers = []

    def register():
        for _ in range(100):
            registry.register("X", None)

    def follow():
        trackers.extend(
            registry.track("X", added=lambda reference, counter=counter: counter.update([reference.id]))
            for counter in seen
        )

    run_together(register, register, follow)
    assert registry.settle(WAIT)
    everything = dict.fromkeys(range(1, 201), 1)
    assert all(counter == everything for counter in seen)
    assert all([reference.id for reference in tracker] == list(everything) for tracker in trackers)


def test_look_ups_meanwhile_see_whole_services():
    """A look-up beside changes finds only services that fit its filter, in order, and never half a change."""
    registry = ServiceRegistry()
    stop = threading.Event()

    def change():
        try:
            for turn in range(150):
                registration = registry.register("X", None, {"kind": "slet", "host": "h1", "turn": turn})
                registration.update({"kind": "channel", "host": "h2"})
                registration.unregister()
        finally:
            stop.set()

    def look():
        while not stop.is_set():
            found = registry.find("X", "(kind=slet)")
            assert all(reference.properties["host"] == "h1" for reference in found)
            assert not registry.find("X", "(&(kind=slet)(host=h2))")

    run_together(change, look, look)
    assert len(registry) == 0


def test_nobody_waits_for_a_listener_of_somebody_else():
    """While a listener is at work, other threads register and look up; what they did is told after it, in order."""
    registry = ServiceRegistry()
    working, go_on, told = threading.Event(), threading.Event(), []

    def slow(event):
        told.append(event.service.properties["name"])
        if told == ["first"]:
            working.set()
            assert go_on.wait(WAIT)

    registry.listen(None, slow)
    thread = threading.Thread(target=lambda: registry.register("X", None, {"name": "first"}), daemon=True)
    thread.start()
    assert working.wait(WAIT)
    tracker = registry.track("X")
    registry.register("X", None, {"name": "second"})  # returns, although the listener is still at work
    assert len(registry.find("X")) == len(tracker) == 2
    assert told == ["first"]
    assert not registry.settle(timeout=0)
    go_on.set()
    thread.join(WAIT)
    assert registry.settle(WAIT)
    assert told == ["first", "second"]


def test_a_listener_may_wait_for_a_thread_that_uses_the_registry():
    """A listener that waits for another thread's registration does not deadlock."""
    registry = ServiceRegistry()
    done = []

    def wait_for_other(event):
        if event.service.properties["name"] == "first":
            other = threading.Thread(target=lambda: registry.register("X", None, {"name": "second"}), daemon=True)
            other.start()
            other.join(WAIT)
            assert not other.is_alive()
        done.append(event.service.properties["name"])

    registry.listen(None, wait_for_other)
    registry.register("X", None, {"name": "first"})
    assert registry.settle(WAIT)
    assert done == ["first", "second"]


def test_a_listener_that_hangs_is_left_behind(monkeypatch, caplog):
    """The others hear all in time; it is reported, and hears what it has missed, in order, when it goes on."""
    monkeypatch.setattr(delivery, "PATIENCE", 0.05)
    registry = ServiceRegistry()
    go_on, heard, told = threading.Event(), [], []

    def hang(event):
        told.append(event.service.properties["name"])
        assert go_on.wait(WAIT)

    def hear(event):
        heard.append(event.service.properties["name"])
        if heard == ["a", "b", "c"]:
            done.set()

    done = threading.Event()
    registry.listen("(name=*)", hang)
    registry.listen(None, hear)
    for name in "abc":
        registry.register("X", None, {"name": name})
    assert done.wait(WAIT)
    assert told == ["a"]
    (shown,) = registry.hanging()
    assert (shown["filter"], shown["behind"]) == ("(name=*)", 2)
    assert "in hang" in shown["stack"]
    assert not registry.settle(WAIT)
    go_on.set()
    eventually(lambda: told == ["a", "b", "c"] and not registry.hanging())


def test_a_listener_that_returns_hears_at_once_what_it_has_missed(monkeypatch):
    """The dispatcher that waits for events is woken for those that were kept, however many they are."""
    monkeypatch.setattr(delivery, "PATIENCE", 0.05)
    monkeypatch.setattr(delivery, "LINGER", 10 * WAIT)
    registry, hang, heard, others = ServiceRegistry(), threading.Event(), [], []

    def hear(event):
        heard.append(event)
        hang.wait(WAIT)

    registry.listen(None, hear)
    registry.listen(None, others.append)
    for number in range(3):
        registry.register("X", None, {"number": number})
    eventually(lambda: len(others) == 3, "the events of the other listener")
    hang.set()
    eventually(lambda: len(heard) == 3, "what the listener has missed")
    monkeypatch.setattr(delivery, "LINGER", 0.0)
    registry.register("X", None)  # the dispatcher leaves behind this event


def test_events_are_delivered_after_the_system_had_no_more_threads(monkeypatch):
    """A dispatcher that could not be started is not waited for: the next change starts one, and no event is lost."""
    registry, heard = ServiceRegistry(), []
    registry.listen(None, heard.append)
    registry.settle(WAIT)
    eventually(lambda: not [one for one in threading.enumerate() if one.name == "exop listeners"])

    def refuse(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            registry.register("X", None)
    registry.register("X", None)
    eventually(lambda: len(heard) == 2, "both events")


def test_a_listener_that_hangs_while_there_are_no_threads_is_left_behind_later(monkeypatch):
    """The watcher goes on, and starts another dispatcher as soon as that is possible."""
    monkeypatch.setattr(delivery, "PATIENCE", 0.01)
    registry, go_on, heard, started = ServiceRegistry(), threading.Event(), [], []
    registry.listen(None, lambda _: go_on.wait(WAIT))
    registry.listen(None, heard.append)
    start = threading.Thread.start

    def start_all_but_three(thread):
        started.append(thread.name)
        if 2 < len(started) <= 5:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_all_but_three)
    registry.register("X", None)
    eventually(lambda: heard, "the event, behind a listener that hangs")
    assert len(started) >= 6
    go_on.set()
    eventually(lambda: registry.settle(WAIT), "the return of the listener")
