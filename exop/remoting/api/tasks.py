"""Work that takes long: one call begins it, others ask for its outcome, and no thread of a connection waits for it."""

from __future__ import annotations

import contextvars
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooEarly
from typing import Any, Final, Generic, TypeVar

from exop.errors import PlanError, PlatformBusy

T = TypeVar("T")
#: So many run at a time, and so many that have ended wait to be asked for; the oldest of these makes room.
RUNNING: Final = 8
ENDED: Final = 32
#: So long a call waits for the end, in seconds, before it is asked again.
PATIENCE: Final = 2.0


class Tasks(Generic[T]):
    """Runs work in threads of its own, and keeps what came of it under a number."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: dict[str, Future[T]] = {}
        self._lock = threading.Lock()

    def begin(self, work: Callable[[], T]) -> str:
        """Begin *work*; returns its number.

        Raises:
            PlatformBusy: too much is under way.
        """
        number, future = secrets.token_hex(8), Future[T]()
        with self._lock:
            under_way = [one for one in self._held.values() if not one.done()]
            if len(under_way) >= RUNNING:
                raise PlatformBusy(operation=self._name, problem=f"{len(under_way)} others are under way")
            ended = [key for key, one in self._held.items() if one.done()]
            for key in ended[: max(0, len(ended) - ENDED + 1)]:
                del self._held[key]
            self._held[number] = future
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(_run, work, future), name=f"exop {self._name}", daemon=True).start()
        return number

    def result(self, number: str, patience: float | None = None) -> T | None:
        """Return its result, once; `None` while it is under way.

        Raises:
            PlanError: there is nothing of this number (any more).
            Exception: what the work has raised.
        """
        with self._lock:
            future = self._held.get(number)
        if future is None:
            raise PlanError(f"the platform carries out nothing of the number {number!r} (any more)")
        try:
            future.exception(PATIENCE if patience is None else patience)
        except TooEarly:
            return None
        with self._lock:
            self._held.pop(number, None)
        return future.result()


def _run(work: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 (it is raised where it is asked for)
        future.set_exception(error)
