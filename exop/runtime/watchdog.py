"""Items that take too long: who hangs is found out from outside, so that the streams pay nothing for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from exop.logs import logger
from exop.model.diff import touched
from exop.model.lifecycle import State
from exop.runtime.closing import shows
from exop.runtime.component import Component
from exop.runtime.drivers.base import Driver
from exop.runtime.inside import inside
from exop.runtime.trouble import Hang

#: How often every driver measures one item, and all applications are looked at, in seconds.
SAMPLING = 0.05


class Sampler:
    """Calls functions every SAMPLING seconds, as long as they return true, in one thread for all applications."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with no function and no thread: also in a forked child, which has none of its parent's."""
        self._lock = threading.Lock()
        self._looks: list[Callable[[], bool]] = []

    def add(self, look: Callable[[], bool]) -> None:
        """Call *look* from now on."""
        with self._lock:
            self._looks.append(look)
            if len(self._looks) == 1:
                threading.Thread(target=self._run, name="exop sampler", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(SAMPLING)
            over = [look for look in list(self._looks) if not self._called(look)]
            with self._lock:
                for look in over:
                    self._looks.remove(look)
                if not self._looks:
                    return

    @staticmethod
    def _called(look: Callable[[], bool]) -> bool:
        try:
            return look()
        except Exception as error:  # noqa: BLE001 (the other applications are looked at all the same)
            logger("exop.runtime").error("an application cannot be looked at any more", exc_info=error)
            return False


#: The sampler of the process.
SAMPLER = Sampler()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SAMPLER.begin)


@dataclass
class _Look:
    """What was seen of a busy driver: how far it had come, and since when in this call of a slet."""

    progress: Hashable
    since: float
    frame: FrameType | None = None
    hanging: Component | None = None


class Attended:
    """The components that are looked at now and then, by node, each for its own reason: most are not.

    Attributes:
        driving: They have a driver, or several.
        patient: An item may take so long there, and no longer.
        showing: They buffer what they write, and make it visible when they are called.
        failed: They are suspended on an item, or broken.
    """

    def __init__(self) -> None:
        self.driving: dict[str, Component] = {}
        self.patient: dict[str, Component] = {}
        self.showing: dict[str, Component] = {}
        self.failed: dict[str, Component] = {}

    def renew(self, before: Mapping[str, Component], now: Mapping[str, Component]) -> None:
        """The components of the application are others now."""
        for found in vars(self).values():
            for name in found.keys() - now.keys():
                del found[name]
        for name in touched(before, now):
            self.note(now[name])

    def note(self, component: Component) -> None:
        """Look at a component, or no more, as it is now."""
        for found, wanted in (
            (self.driving, component.driver is not None or bool(component.pullers)),
            (self.patient, component.node.patience is not None),
            (self.showing, shows(component)),
            (self.failed, component.status is State.FAILED),
        ):
            if wanted:
                found[component.node.name] = component
            else:
                found.pop(component.node.name, None)


class Watchdog:
    """Looks at the drivers of an application now and then, and reports slets that exceed their time-out per item.

    A driver is suspected when it is busy and has not come further since the last look; its thread's stack tells in
    which slet it is. What is reported: a log line, the property `hangs` of the slet's service (an event of the
    registry), and the status.

    Args:
        clock: Tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, _Look] = {}

    def look(self, components: Mapping[str, Component], drivers: Iterable[Driver], *, wanted: bool = True) -> None:
        """Look at all drivers once, if that is *wanted*: a component has a time-out."""
        if not self._seen and not wanted:
            return
        now = self._clock()
        seen = {}
        for driver in drivers:
            before = self._seen.pop(id(driver), None)
            after = self._look_at(driver, components, before, now)
            if after is not None:
                seen[id(driver)] = after
        for gone in self._seen.values():
            self._over(gone)
        self._seen = seen

    def _look_at(
        self, driver: Driver, components: Mapping[str, Component], before: _Look | None, now: float
    ) -> _Look | None:
        if not driver.busy or driver.held_by is not None:
            self._over(before)
            return None
        progress = _progress(driver, components.values())
        if before is None or before.progress != progress:
            self._over(before)
            return _Look(progress, now)
        found = inside(list(components.values()), driver)
        frame = found.frame if found is not None else None
        if frame is not before.frame:
            self._over(before)
            begun = before.since if before.frame is None and before.hanging is None else now
            return _Look(progress, begun, frame)
        patience = found.component.node.patience if found is not None else None
        if found is not None and patience is not None and before.hanging is None and now - before.since >= patience:
            before.hanging = found.component
            hang = Hang(driver.name, _items(found.component, driver), before.since, found.stack, self._clock)
            self._report(found.component, hang, patience)
        return before

    def _report(self, component: Component, hang: Hang, patience: float) -> None:
        component.trouble.hang = hang
        component.tell()
        name = component.lifecycle.component
        logger("exop.runtime").warning(
            f"{name} hangs: an item takes longer than {patience:g} s",
            node=name,
            items=hang.items,
            seconds=round(hang.seconds, 1),
            stack=hang.stack,
            cure="end what it waits for; it cannot be changed before this call returns; `exop remove` gives it up",
        )

    def _over(self, look: _Look | None) -> None:
        """It goes on, if it was reported."""
        if look is None or look.hanging is None:
            return
        component, look.hanging = look.hanging, None
        hang, component.trouble.hang = component.trouble.hang, None
        component.tell()
        name = component.lifecycle.component
        logger("exop.runtime").info(f"{name} goes on", node=name, seconds=round(hang.seconds, 1) if hang else None)


def _progress(driver: Driver, components: Iterable[Component]) -> tuple[Any, ...]:
    """How far a driver has come; what it has pulled is part of that."""
    ports = [port for one in components if one.driver is driver for port in one.pulled.values()]
    return driver.count, driver.rows, *((port.rows, len(port.taken)) for port in ports)


def _items(component: Component, driver: Driver) -> int:
    """How many items the driver has handled, or the slet has pulled, the one under way among them."""
    if component.driver is driver and component.pulled:
        return sum(port.rows - len(port.taken) for port in component.pulled.values())
    return driver.count + driver.rows
