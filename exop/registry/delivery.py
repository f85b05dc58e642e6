"""Delivery of events to listeners: one dispatcher thread calls them in order, one at a time, and never under a lock.

A thread that changes the registry queues the events of this change under the registry's lock, so that all listeners
see the same order, and continues without waiting. The dispatcher calls the listeners. If a call takes longer than
PATIENCE, the listener is reported and bypassed: another dispatcher serves the other listeners, and up to KEPT events
for the bypassed listener are stored until its call returns. `settle()` waits until all events so far are delivered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from exop.errors import RegistryError
from exop.stacks import frames_within, stack_of

#: Seconds that a listener may take for one event before it is bypassed.
PATIENCE: Final = 1.0
#: The number of events that are stored for a bypassed listener; beyond it, the oldest are dropped.
KEPT: Final = 10_000
#: Seconds after which an idle dispatcher ends.
LINGER: Final = 0.2

#: The method of a listener that is called with an event.
Listener: TypeAlias = Callable[[Any], object]

_log: Final = logging.getLogger(__name__)


@dataclass(eq=False)
class _Call:
    """The call of a listener: its thread, and the events that wait for the listener meanwhile (`behind`)."""

    listener: Listener
    thread: int
    since: float = field(default_factory=time.monotonic)
    behind: deque[Any] = field(default_factory=lambda: deque(maxlen=KEPT))


class Delivery:
    """The queue of undelivered events, and the dispatcher that delivers them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Listener, Any]] = deque()
        self._news = threading.Condition()
        self._dispatcher: threading.Thread | None = None
        self._watcher: threading.Thread | None = None
        self._call: _Call | None = None
        self._left: dict[Listener, _Call] = {}

    def queue(self, listener: Listener, event: Any) -> None:
        """Queue one event; the caller holds the registry's lock, which determines the order."""
        with self._news:
            if (left := self._left.get(listener)) is not None:
                left.behind.append(event)
                return
            self._waiting.append((listener, event))
            self._dispatch()

    def hanging(self) -> list[dict[str, Any]]:
        """Return the bypassed listeners as plain data."""
        found = []
        with self._news:
            left = list(self._left.values())
        for call in left:
            stack = frames_within(call.thread, Delivery._dispatch_all.__code__)
            seconds = round(time.monotonic() - call.since, 1)
            owner = getattr(call.listener, "__self__", None)
            behind, what = len(call.behind), str(getattr(owner, "filter", ""))
            found.append({"filter": what, "seconds": seconds, "behind": behind, "stack": stack_of(stack[:-1])})
        return found

    def settle(self, timeout: float | None) -> bool:
        """Wait until all events that are queued now are delivered; return whether every listener has received them.

        Raises:
            RegistryError: a listener calls this method, and would wait for itself.
        """
        with self._news:
            calls = [self._call, *self._left.values()]
            if any(call is not None and call.thread == threading.get_ident() for call in calls):
                why = "its own call must end first; return"
                raise RegistryError(f"a listener cannot wait until events are delivered: {why}")
            if self._call is None and not self._waiting:
                return not self._left
        delivered = threading.Event()  # set when all events queued before are delivered
        self.queue(lambda _: delivered.set(), None)
        return delivered.wait(timeout) and not self._left

    def _dispatch(self) -> None:
        """Start a dispatcher and its watcher unless they run, or wake the dispatcher. The caller holds the lock."""
        if self._dispatcher is None:
            self._dispatcher = _started(self._dispatch_all, "exop listeners")
        elif len(self._waiting) == 1:
            self._news.notify_all()
        if self._watcher is None:
            self._watcher = _started(self._watch, "exop listeners watched")

    def _dispatch_all(self) -> None:
        """Deliver the queued events until there are none, or until a listener has taken too long."""
        while True:
            with self._news:
                if not self._news.wait_for(lambda: self._waiting, LINGER):
                    self._dispatcher = None
                    self._news.notify_all()
                    return
                listener, event = self._waiting.popleft()
                call = self._call = _Call(listener, threading.get_ident())
            try:
                listener(event)
            except BaseException:  # noqa: BLE001 (any error of a listener ends only this call)
                _log.exception("a listener failed on %s; the other listeners are still called", event)
            with self._news:
                if self._dispatcher is threading.current_thread():
                    self._call = None
                    continue
                del self._left[listener]
                self._waiting.extendleft((listener, missed) for missed in reversed(call.behind))
                if self._waiting:
                    self._dispatch()
                    self._news.notify_all()
            _log.info("a listener continues after %.1f s", time.monotonic() - call.since)
            return

    def _watch(self) -> None:
        """Bypass listeners that take too long, while there is a dispatcher."""
        refused: _Call | None = None
        while True:
            with self._news:
                call = self._call
                due = time.monotonic() if call is None or call is refused else call.since
                self._news.wait_for(lambda: self._dispatcher is None, max(0.0, due + PATIENCE - time.monotonic()))
                if self._dispatcher is None:
                    self._watcher = None
                    return
                if call is None or self._call is not call or time.monotonic() < call.since + PATIENCE:
                    continue
                try:
                    self._dispatcher = _started(self._dispatch_all, "exop listeners")  # first, because this may fail
                except RuntimeError:  # the system has no more threads: tried again after PATIENCE
                    refused = call
                    continue
                self._left[call.listener], self._call = call, None
                call.behind.extend(event for listener, event in self._waiting if listener == call.listener)
                self._waiting = deque(one for one in self._waiting if one[0] != call.listener)
            (told, *_) = self.hanging() or [{}]
            _log.warning("a listener hangs, and is bypassed until it returns; the others are still called: %s", told)


def _started(run: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread and return it, or raise, so that a thread that did not start never becomes the dispatcher."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
