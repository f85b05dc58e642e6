"""Delivery of events to listeners: in order, one at a time, and never under a lock.

A thread that changes the registry queues the events of its change under the registry's lock, so that all listeners
see one order. After it has let go of the lock it takes the *turn* and delivers what waits. If another thread has the
turn already, that one delivers these events too, and the first thread goes on at once: no thread waits for another
one's listeners, so a listener may use the registry, take any lock, or wait for a thread without a deadlock. The
price: `register()` may return before its event has been delivered, when another thread is delivering. Callers that
need to know call `settle()`. A change that a listener makes is delivered after the event that it is handling.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from exop.errors import RegistryError
from exop.shown import RAISED

#: A queued call: a callback and its argument.
Call: TypeAlias = tuple[Callable[[Any], object], Any]

_log: Final = logging.getLogger(__name__)


class Delivery:
    """The queue of events on their way, and the turn to deliver them."""

    def __init__(self) -> None:
        self._waiting: deque[Call] = deque()
        self._turn = threading.Lock()
        self._deliverer: int | None = None

    def queue(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Queue one call; the caller holds the registry's lock, which makes the order."""
        self._waiting.append((callback, argument))

    def run(self) -> None:
        """Deliver what waits, unless another thread (or a listener further up in this one) is at it.

        A listener that raises is logged and the next one is called.
        """
        # Asked again after the turn was given back: what another thread queued just before then found the turn taken.
        while self._waiting and self._turn.acquire(blocking=False):
            self._deliverer = threading.get_ident()
            try:
                while self._waiting:
                    callback, argument = self._waiting.popleft()
                    try:
                        callback(argument)
                    except RAISED:  # a listener may raise anything, and who registers must not get it
                        _log.exception("a listener failed on %s; the others go on", argument)
            finally:
                self._deliverer = None
                self._turn.release()

    def settle(self, timeout: float | None) -> bool:
        """Wait until all that is queued now has been delivered; return whether it has.

        Raises:
            RegistryError: called by a listener, which would wait for itself.
        """
        if self._deliverer == threading.get_ident():
            raise RegistryError("a listener cannot wait until events are delivered: it is part of that; return first")
        delivered = threading.Event()
        self.queue(lambda _: delivered.set(), None)
        self.run()
        return delivered.wait(timeout)
