"""Holding the drivers of an application while something is done, which the last of them to park does itself.

Handing the interpreter from the driver to the thread that changes the mesh, and back, would cost the stream two
waits for the interpreter's lock, which other busy threads make long. So the driver that parks last does the work in its
own thread, and goes on at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from exop.errors import PlanError
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.inside import whereabouts
from exop.runtime.interpreter import uncollected
from exop.runtime.interrupts import acquire, asked_to_give_up, check_interrupt, woken


class Pause:
    """Closes drivers, waits until they rest, and lets them go when the block ends. Used once.

    Args:
        deployment: Whose drivers are held.
        outside: Those of them that must have come out of the slet that they iterate, too.
        timeout: How many seconds each wait may take.
    """

    def __init__(self, deployment: Deployment, outside: Iterable[Driver], timeout: float) -> None:
        self._deployment = deployment
        self._outside = {id(driver) for driver in outside}
        self._timeout = timeout
        self._closed: dict[Driver, None] = {}
        self._watched: list[Driver] = []
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._action: Callable[[], None] | None = None
        self._running = self._begun = False
        self._still_since: float | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def begin(self) -> Self:
        """Wait until no other pause of the application is under way; the first one is ended by `end`.

        Raises:
            PlanError: a slet of the application itself asks for it, and would wait for its own end.
        """
        if current_driver() in self._deployment.drivers():
            raise PlanError(
                f"a slet of {self._deployment.name!r} cannot change its own application; do it from another thread"
            )
        acquire(self._deployment.parking)
        self._begun = True
        return self

    def end(self) -> None:
        """Let all drivers go on; any thread may call this, also several times."""
        with self._lock:
            self._release()
            if self._begun:
                self._begun = False
                self._deployment.parking.release()

    def close(self, drivers: Iterable[Driver]) -> None:
        """Ask these to park; those that are closed already stay so."""
        for driver in drivers:
            if driver not in self._closed:
                self.watch(driver)
                self._closed[driver] = None
                driver.close()

    def watch(self, driver: Driver) -> None:
        """Look again at what is waited for whenever this driver rests."""
        self._watched.append(driver)
        driver.watch(self._look)

    def wait_parked(self) -> None:
        """Wait until all that were closed are parked.

        Raises:
            PlanError: one did not come to its safe point in time.
        """
        self.wait(lambda: not self._late())
        if self._late():
            raise self._too_late()

    def wait(self, ready: Callable[[], bool]) -> bool:
        """Wait until *ready()* holds; it is asked again whenever a driver rests. Returns whether it does.

        Raises:
            KeyboardInterrupt: an interrupt asks the change to give up.
        """
        with woken(self.wake), self._news:
            self._news.wait_for(lambda: ready() or asked_to_give_up(), self._timeout)
            check_interrupt()
            return ready()

    def run(self, *actions: Callable[[], None]) -> None:
        """Do *actions* as soon as all that were closed are parked, in the thread of the last one; then let them go.

        Raises:
            PlanError: one did not come to its safe point in time; nothing was done.
        """

        def action() -> None:
            for one in actions:
                one()

        self._action = action
        self._look()
        with woken(self.wake), self._news:
            try:
                self._news.wait_for(self._over, self._timeout)
            finally:
                cancelled, self._action = self._action is not None, None
            if cancelled:
                check_interrupt()
                raise self._too_late()
        if self._error is not None:
            raise self._error

    def hold(self, action: Callable[[], None]) -> None:
        """Do *action* in the calling thread when all that were closed are parked; they stay so until `end`.

        Raises:
            PlanError: one did not come to its safe point in time; nothing was done.
        """
        self.wait_parked()
        self._still_since = time.perf_counter()
        action()

    def _over(self) -> bool:
        return (self._action is None and not self._running) or asked_to_give_up()

    def wake(self) -> None:
        """Check the awaited condition again."""
        with self._news:
            self._news.notify_all()

    def _look(self) -> None:
        """Wake those that wait for a driver to rest, and act if it was the last one."""
        with self._news:
            self._news.notify_all()
            if self._action is None or self._late():
                return
            action, self._action = self._action, None
            self._running = True
            begin = time.perf_counter()
            try:
                with uncollected():
                    action()
            except BaseException as error:  # noqa: BLE001 (it is raised in the thread that has asked for the action)
                self._error = error
            self.seconds = time.perf_counter() - begin
            self._release()
            self._running = False

    def _release(self) -> None:
        if self._still_since is not None:
            self.seconds, self._still_since = time.perf_counter() - self._still_since, None
        while self._watched:
            self._watched.pop().unwatch(self._look)
        while self._closed:
            self._closed.popitem()[0].open()

    def _late(self) -> list[Driver]:
        """Those who have not come to their safe points yet."""
        return [one for one in self._closed if one.busy or (id(one) in self._outside and not one.outside)]

    def _too_late(self) -> PlanError:
        late = self._late()
        names = ", ".join(sorted(driver.name for driver in late)) or "a driver"
        inside = [driver for driver in late if not driver.busy]
        why = "; its position is known only when it yields: a source that waits should yield None from time to time"
        where = whereabouts(self._deployment.components.values(), late)
        return PlanError(
            f"{names} did not come to a safe point within {self._timeout:g} s{why if inside else ''}; "
            f"everything runs on as it was{where and f'; when that returns, repeat the change{where}'}"
        )
