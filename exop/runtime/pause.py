"""`Pause`: parks drivers of an application at their safe points while an action (a cut, a checkpoint) runs.

The driver that parks last may run the action in its own thread (`run`), and continues at once. Switching to the thread
that changes the mesh, and back, would cost two waits for the interpreter's lock, long ones if others are busy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Self

from exop.errors import ExopError, NotNow, SettingError
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.supervision.interrupts import acquire, check_interrupt, interrupted, woken
from exop.runtime.supervision.watchdog import whereabouts

#: The default number of seconds in which drivers have to reach their safe points.
PATIENCE = 10.0
#: The further seconds in which one of several hosts or applications, of which a driver has not, says which.
ANSWERING = 2.0


def check_seconds(place: str, timeout: object, least: float = 0.0, setting: str = "timeout") -> None:
    """Raise a `SettingError` unless *timeout* is a number of seconds that a thread can wait for, or `None`."""
    number = timeout if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) else None
    if timeout is None or (number is not None and least <= number <= threading.TIMEOUT_MAX):
        return
    problem = f"{timeout!r} ({type(timeout).__name__}) is no number of seconds from 0 to {threading.TIMEOUT_MAX:.0f}"
    raise SettingError(place=place, setting=setting, problem=problem)


def _refused(problem: str, cure: str) -> ExopError:
    return NotNow(f"{problem}; everything runs on as it was{cure and '; '}{cure}")


class Pause:
    """Closes drivers, waits until they rest, and opens them at the end. Each instance is used once.

    An application has one pause at a time. A pause is a context manager; `begin` and `end` do the same, and any thread
    may end it. If a driver does not reach its safe point in time, all waits except `wait` raise `PlanError`, or the
    error that *refused* makes; then no action was run.

    Args:
        deployment: The application to which the drivers belong.
        timeout: The number of seconds that each wait may take.
        drivers: The drivers to close, upstream first; by default all of the application.
        outside: The drivers that must also have returned from the slet that they iterate.
        cutting: The nodes that are suspended or removed: a call that waits inside of one of these is ended.
        refused: Makes the error from a problem and a cure when a driver is late.

    Attributes:
        seconds: The number of seconds for which drivers stood still: from when the first of them were parked, which
            may have been to let what is behind them finish, until all were opened again.
    """

    def __init__(
        self,
        deployment: Deployment,
        timeout: float = PATIENCE,
        *,
        drivers: Iterable[Driver] | None = None,
        outside: Iterable[SourceDriver] = (),
        refused: Callable[[str, str], ExopError] = _refused,
    ) -> None:
        self.seconds = 0.0
        self.deployment = deployment
        self.timeout = timeout
        self.drivers = list(drivers or ())
        self._of_all = drivers is None
        self.outside = set(outside)
        self.cutting = frozenset[str]()
        self._refused = refused
        self._closed: dict[Driver, None] = {}
        self._unparked: list[Driver] = []
        self._watched: list[Driver] = []
        self._news = threading.Condition()
        self._actions: tuple[Callable[[], None], ...] = ()
        self._begun = False
        self._still_since: float | None = None
        self._error: BaseException | None = None

    def begin(self) -> Self:
        """Wait until the application has no other pause; `PlanError` if one of its slets, which would wait, calls."""
        if (driver := current_driver()) is not None and driver in self.deployment.drivers():
            problem = f"a slet of {self.deployment.name!r} cannot change its own application"
            raise self._refused(problem, "do it from another thread")
        acquire(self.deployment.parking)
        self._begun = True
        if self._of_all:
            self.drivers = self.deployment.drivers()
        return self

    __enter__ = begin

    def end(self, *_error: object) -> None:
        """Open all drivers; may be called several times."""
        with self._news:
            self._release()
            if self._begun:
                self._begun = False
                self.deployment.parking.release()

    __exit__ = end

    def close(self, drivers: Iterable[Driver] | None = None) -> None:
        """Close these drivers, or all drivers of the pause; those that are closed already remain closed."""
        for driver in self.drivers if drivers is None else drivers:
            if driver not in self._closed:
                self._closed[driver] = None
                self._unparked.append(driver)
                driver.cutting = self.cutting
                driver.watch(self._look)
                driver.close()

    def open(self, driver: Driver) -> None:
        """Open one driver before the others."""
        del self._closed[driver]
        driver.unwatch(self._look)
        driver.open()

    def watch(self, driver: Driver) -> None:
        """Check the awaited condition also whenever this driver rests."""
        self._watched.append(driver)
        driver.watch(self._look)

    def stop(self) -> None:
        """Park one driver after the other, upstream first: each one first processes what those before it have sent."""
        for driver in self.drivers:
            self.close([driver])
            if not self.wait(lambda driver=driver: not self._late(driver)):  # type: ignore[misc]
                raise self._too_late()

    def wait_parked(self) -> None:
        """Wait until all closed drivers are parked."""
        if not self.wait(self.parked):
            raise self._too_late()
        self._stand_still()

    def parked(self) -> bool:
        """Whether all closed drivers are parked; called for each driver that rests, and therefore checks only few."""
        while self._unparked:
            if self._late(self._unparked[-1]):
                return False
            self._unparked.pop()
        self._unparked = [driver for driver in self._closed if self._late(driver)]
        return not self._unparked

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until *ready()* is true, which is checked whenever a driver rests; return whether it is.

        Raise `KeyboardInterrupt` if an interrupt requests that the change be abandoned.
        """
        if not (found := ready()):
            with woken(self.wake), self._news:
                self._news.wait_for(lambda: ready() or self._stops(), self.timeout if timeout is None else timeout)
                found = ready()
        check_interrupt()
        return found

    def run(self, *actions: Callable[[], None]) -> None:
        """Run *actions* in the thread of the last driver that parks; then open all drivers."""
        self._actions = actions
        self._look()
        with woken(self.wake), self._news:
            try:
                self._news.wait_for(lambda: not self._actions or self._stops(), self.timeout)
            finally:
                cancelled, self._actions = bool(self._actions), ()
            if cancelled:
                check_interrupt()
                raise self._too_late()
        if self._error is not None:
            raise self._error

    def wake(self) -> None:
        """Check the awaited condition again."""
        with self._news:
            self._news.notify_all()

    def _look(self) -> None:
        """Wake the threads that wait for a driver to rest, and run the actions after the last one."""
        with self._news:
            self._news.notify_all()
            if not self._actions or not self.parked():
                return
            actions, self._actions = self._actions, ()
            self._stand_still()
            try:
                for action in actions:
                    action()
            except BaseException as error:  # noqa: BLE001 (it is raised in the thread that has asked for the action)
                self._error = error
            self._release()

    def _stand_still(self) -> None:
        if self._still_since is None and self._closed:
            self._still_since = time.perf_counter()

    def _release(self) -> None:
        if self._still_since is not None:
            self.seconds, self._still_since = time.perf_counter() - self._still_since, None
        while self._watched:
            self._watched.pop().unwatch(self._look)
        for driver in reversed([*self._closed]):
            self.open(driver)

    def _stops(self) -> bool:
        """Whether to wait no longer: there is an interrupt, or a driver waits inside of a slet, and cannot park."""
        return interrupted() or any(driver.inside for driver in self._unparked)

    def _late(self, driver: Driver) -> bool:
        """Whether a closed driver has not reached its safe point yet."""
        if driver.busy or driver.parked:
            return driver.busy
        return isinstance(driver, SourceDriver) and driver in self.outside and not driver.outside

    def _too_late(self) -> ExopError:
        late = [driver for driver in self._closed if self._late(driver)]
        if inside := next(filter(None, (driver.inside for driver in late)), None):
            cure = "wait until it can be read again, or first suspend the slet (`exop suspend`), which ends its call"
            return self._refused(f"{inside}; it is inside an item", cure)
        names = ", ".join(sorted(driver.name for driver in late)) or "a driver"
        problem, cure = f"{names} did not come to a safe point within {self.timeout:g} s", ""
        where = whereabouts(self.deployment.components.values(), late)
        if any(not driver.busy for driver in late):
            problem += "; its position is known only when it yields"
            cure = "a source that waits should yield None from time to time"
        elif where:
            cure = "when that returns, try again"
        return self._refused(problem, cure + where)
