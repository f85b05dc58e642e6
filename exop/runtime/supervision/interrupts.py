"""Interrupts (Ctrl-C) during a change: they cancel the change where it can be undone as a whole.

An exception of a signal handler is raised between any two instructions of the main thread, for instance while a change
is undone. Therefore another thread makes the change while the main thread waits, and an interrupt becomes a request,
which the change checks wherever it can be undone. A decided change is completed. The interrupt is raised at the end.
"""

from __future__ import annotations

import _thread
import contextvars
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

from exop.runtime.drivers.base import acting_as, current_driver

P = ParamSpec("P")
T = TypeVar("T")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: The number of interrupts that are deferred; the next one is raised at once, while the change finishes in its thread.
PATIENCE: Final = 2
#: Seconds between two checks for an interrupt in a wait that an interrupt does not wake.
GLANCE: Final = 0.1


class Request:
    """The interrupts of one change: the main thread records them, the thread that makes the change handles them."""

    def __init__(self) -> None:
        self.kept: list[BaseException] = []
        self.met = self.over = False
        self.watchers: list[Callable[[], None]] = []

    def keep(self, interrupt: BaseException) -> None:
        """Defer an interrupt, and wake the change if it waits."""
        if self.over:
            raise interrupt
        self.kept.append(interrupt)
        if len(self.kept) > PATIENCE:
            raise interrupt
        # In a thread: user code may hold the lock of the waiting change. Without `threading`: this handler may have
        # interrupted code of that module.
        _thread.start_new_thread(lambda: [watcher() for watcher in list(self.watchers)], ())


class _Local(threading.local):
    """The request for the change that the calling thread makes."""

    request: Request | None = None


_LOCAL: Final = _Local()


def interrupted() -> bool:
    """Whether an interrupt requests to cancel the change that the calling thread makes."""
    return (request := _LOCAL.request) is not None and bool(request.kept) and not request.met


def check_interrupt() -> None:
    """Raise `KeyboardInterrupt` once after an interrupt. Called where the change can still be undone."""
    if interrupted() and _LOCAL.request is not None:
        _LOCAL.request.met = True
        raise KeyboardInterrupt


@contextmanager
def woken(wake: Callable[[], None]) -> Iterator[None]:
    """Call *wake* at an interrupt of the change that the calling thread makes."""
    watchers = _LOCAL.request.watchers if _LOCAL.request is not None else []
    watchers.append(wake)
    try:
        yield
    finally:
        watchers.remove(wake)


def acquire(lock: threading.RLock | threading.Lock) -> None:
    """Acquire a lock that other changes may hold for long; an interrupt ends the wait."""
    while not lock.acquire(timeout=-1 if _LOCAL.request is None else GLANCE):
        check_interrupt()


@contextmanager
def held(lock: threading.RLock) -> Iterator[None]:
    """Hold a lock that other changes may hold for long; an interrupt ends the wait."""
    acquire(lock)
    try:
        yield
    finally:
        lock.release()


def uninterrupted(work: Callable[P, T]) -> Callable[P, T]:
    """Return *work* as a function that is done whole or not at all, also when the main thread is interrupted."""

    @functools.wraps(work)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        if threading.current_thread() is not threading.main_thread():
            return work(*args, **kwargs)
        # An interrupt that is raised at once may hit the wait for the end. A plain lock survives that; an `Event`, or
        # the start of a `Thread`, would be left with a lock that its other side can neither take nor release.
        request, running = Request(), _thread.allocate_lock()
        results: list[T] = []
        errors: list[BaseException] = []
        done = delegated(functools.partial(work, *args, **kwargs), request)

        def carry_out() -> None:
            try:
                results.append(done())
            except BaseException as error:  # noqa: BLE001 (it is raised in the main thread)
                errors.append(error)
            finally:
                running.release()

        running.acquire()
        with _deferred(request):
            _thread.start_new_thread(carry_out, ())
            while not running.acquire(timeout=GLANCE):  # `_thread.interrupt_main` wakes no thread that waits
                continue
        if request.kept:
            raise request.kept[0] from next((one for one in errors if not isinstance(one, KeyboardInterrupt)), None)
        for error in errors:
            raise error
        return results[0]

    return whole


def delegated(work: Callable[[], T], request: Request | None = None) -> Callable[[], T]:
    """Return *work* for another thread, with the interrupts, driver and context of this one."""
    request = request or _LOCAL.request
    context, driver = contextvars.copy_context(), current_driver()

    def done() -> T:
        _LOCAL.request = request
        with acting_as(driver):
            return context.run(work)

    return done


@contextmanager
def _deferred(request: Request) -> Iterator[None]:
    """Defer the exceptions of signal handlers until the block ends."""

    def handle(handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as interrupt:  # noqa: BLE001 (any exception of a handler)
            request.keep(interrupt)

    before = {number: handler for number in _SIGNALS if callable(handler := signal.getsignal(number))}
    try:
        for number, handler in before.items():
            signal.signal(number, functools.partial(handle, handler))
        yield
    finally:
        request.over = True
        for number, handler in before.items():
            signal.signal(number, handler)
