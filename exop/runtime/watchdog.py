"""Looks at running slets from outside: items that take too long, and output that is to be made visible.

One thread of the process looks at all applications, beside the streams, so that items cost nothing more. The position
of a driver, its slet and the line in it, is read from the stack of its thread.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from exop.logs import logger
from exop.model.lifecycle import State
from exop.model.slet import Slet
from exop.runtime.budget import UserCall
from exop.runtime.component import LIVE, Component
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.drivers.engine import EngineDriver
from exop.runtime.drivers.source import ThreadDriver
from exop.runtime.drivers.worker import Worker
from exop.runtime.fuse import CALLS
from exop.runtime.trouble import Hang
from exop.shown import described, stack_of

#: How often every driver measures one item, and all applications are looked at, in seconds.
SAMPLING: Final = 0.05
#: Seconds between two calls of `make_visible` while items come.
VISIBLE_WITHIN: Final = 1.0
#: Seconds for which one such call keeps the others.
HASTE: Final = 0.05
#: The calls in which a thread runs a driver.
_RUNS: Final = {ThreadDriver._main.__code__, Worker.turn.__code__, EngineDriver.drive.__code__}


class Sampler:
    """Calls functions every SAMPLING seconds, as long as they return true, in one thread for all applications."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with no function and no thread; called in a forked child, too."""
        self._lock = threading.Lock()
        self._looks: list[Callable[[], bool]] = []

    def add(self, look: Callable[[], bool]) -> None:
        """Call *look* from now on."""
        with self._lock:
            if not self._looks:  # it waits for the lock before it finds that it has nothing to call
                threading.Thread(target=self._run, name="exop sampler", daemon=True).start()
            self._looks.append(look)

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
SAMPLER: Final = Sampler()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SAMPLER.begin)


#: The states of a component that does nothing more.
CLOSED: Final = (State.ENDED, State.STOPPED, State.DESTROYED)


class Attended(dict[str, Component]):
    """The components to look at, by node: with a driver, a time-out per item, `make_visible`, or a failure.

    One thread at a time changes it (`Deployment` has the lock); others read it meanwhile.

    Attributes:
        open: The nodes whose streams have not ended, and whose slets are not closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: set[str] = set()

    def forget(self, node: str) -> None:
        """Forget a node that has no component any more."""
        self.pop(node, None)
        self.open.discard(node)

    def note(self, component: Component) -> None:
        """Add a component, or take it out, according to its present state."""
        name, drives = component.node.name, component.driver is not None or component.pullers
        if drives or component.node.patience is not None or component.status is State.FAILED or shows(component):
            self[name] = component
        else:
            self.pop(name, None)
        if component.status in CLOSED:
            self.open.discard(name)
        else:
            self.open.add(name)


@dataclass
class _Look:
    """How far a busy driver had come, and since when it is in this call of a slet."""

    progress: Hashable
    since: float
    frame: FrameType | None = None
    hanging: Component | None = None


class Watchdog:
    """Looks at the drivers of an application, and reports slets that exceed their time-out per item.

    A busy driver that has not come further since the last look is suspected; its stack shows the slet. A report is a
    log line, the property `hangs` of the slet's service (an event of the registry), and a part of the status.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Driver, _Look] = {}

    def look(self, components: Mapping[str, Component], drivers: Iterable[Driver]) -> None:
        """Look at these drivers once."""
        now, seen = self._clock(), {}
        for driver in drivers:
            after = self._look_at(driver, components, self._seen.pop(driver, None), now)
            if after is not None:
                seen[driver] = after
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
        component.trouble.hang, component.trouble.hung = hang, True
        component.tell()
        name = component.name
        logger("exop.runtime").warning(
            f"{name} hangs: an item takes longer than {patience:g} s",
            node=name,
            items=hang.items,
            seconds=round(hang.seconds, 1),
            stack=hang.stack,
            cure="end what it waits for; it cannot be changed before this call returns; `exop remove` gives it up",
        )

    def _over(self, look: _Look | None) -> None:
        """Withdraw the report of a slet that goes on."""
        if look is None or look.hanging is None:
            return
        component, look.hanging = look.hanging, None
        hang, component.trouble.hang = component.trouble.hang, None
        component.tell()
        name = component.name
        logger("exop.runtime").info(f"{name} goes on", node=name, seconds=round(hang.seconds, 1) if hang else None)


def _progress(driver: Driver, components: Iterable[Component]) -> tuple[Any, ...]:
    """How far a driver has come, with the items that it has pulled."""
    ports = [port for one in components if one.driver is driver for port in one.pulled.values()]
    return driver.count, driver.rows, *((port.rows, len(port.taken)) for port in ports)


def _items(component: Component, driver: Driver) -> int:
    """How many items the driver has handled, or the slet has pulled, the one under way among them."""
    if component.driver is driver and component.pulled:
        return sum(port.rows - len(port.taken) for port in component.pulled.values())
    return driver.count + driver.rows


def shows(component: Component) -> bool:
    """Whether the slet buffers its output, and makes it visible when it is called."""
    return callable(getattr(type(component.instance), "make_visible", None))


class Visibility:
    """Calls `make_visible()` of the slets that define it: when their stream rests, and every second while items come.

    A call that hangs holds up nothing else: the next one of that slet waits for its end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, int, float, UserCall[None] | None]] = {}
        self._failing: dict[str, str] = {}

    def look(self, components: Iterable[Component]) -> None:
        """Look at all slets once."""
        now, seen = self._clock(), {}
        for component in components:
            if not shows(component):
                continue
            runner = component.runner
            done = runner.count + runner.rows if runner is not None else 0
            before, visible, since, call = self._seen.get(component.id, (done, 0, now, None))
            if (call is None or call.over) and ((done == before != visible) or now - since >= VISIBLE_WITHIN):
                call = component.user.begin(component, "making output visible", partial(self._call, component))
                call.wait(HASTE)
                visible, since = done, now
            seen[component.id] = done, visible, since, call
        self._seen = seen

    def _call(self, component: Component) -> None:
        """Call the hook; an error is logged when it begins, and the next item or checkpoint meets it anyway."""
        try:
            component.instance.make_visible()
        except BaseException as error:  # noqa: BLE001 (whatever a slet raises: it ends this call only)
            problem = described(error)
            running = component.status in (State.ACTIVE, State.SUSPENDED, State.FAILED)
            if running and self._failing.get(component.id) != problem:
                self._failing[component.id] = problem
                logger("exop.runtime").warning("output is not visible yet", node=component.id, problem=problem)
        else:
            self._failing.pop(component.id, None)


class Inside(NamedTuple):
    """A slet in which a driver is: `frame` is that of this call of the slet, as long as it lasts."""

    component: Component
    frame: FrameType
    stack: str


def inside(components: Iterable[Component], driver: Driver) -> Inside | None:
    """Return the slet that *driver* runs at this moment; `None` if it waits for room, or for an item."""
    innermost = _innermost(driver)
    found = _find(components, driver, innermost)
    if found is None:
        return None
    frames = []
    for frame in _outwards(innermost):
        frames.append((frame, frame.f_lineno))
        if frame is found[1]:
            break
    return Inside(*found, stack_of(frames))


def current_node() -> tuple[str, str] | None:
    """Return the application and the node whose slet has called this, for log records; `None` outside of all slets."""
    driver = current_driver()
    live = [one for reference in LIVE.valuerefs() if (one := reference()) is not None]
    names = {one.application for one in live if driver is not None and driver in (one.driver, one.runner)}
    found = _find([one for one in live if not names or one.application in names], driver, sys._getframe())
    return (found[0].application, found[0].node.name) if found is not None else None


def whereabouts(components: Iterable[Component], drivers: Iterable[Driver]) -> str:
    """Describe the positions of these drivers for a message: slet and stack; empty if they are in no slet."""
    found = [inside(list(components), driver) for driver in drivers]
    lines = [f"\n{one.component.node.name} is at\n{one.stack.rstrip()}" for one in found if one is not None]
    return "".join(lines)


def _find(
    components: Iterable[Component], driver: Driver | None, innermost: FrameType | None
) -> tuple[Component, FrameType] | None:
    """The slet that a stack is in, and the frame of its call.

    The frame of a fused chain tells which of its slets it calls. Elsewhere the code tells the slet; of several that
    share it (nodes with the same slet) the one with this instance, or with this driver.
    """
    by_code: dict[CodeType, list[Component]] = {}
    for component in components:
        for code in _codes(component.spec.factory):
            by_code.setdefault(code, []).append(component)
    by_name = {component.node.name: component for component in components}
    found: FrameType | None = None
    meant: list[Component] = []
    for frame in _outwards(innermost):
        called = CALLS.get(frame.f_code.co_filename, {}).get(frame.f_lineno)
        if called is not None and (fused := by_name.get(frame.f_globals[called].place.rpartition(".")[0])) is not None:
            return fused, found or frame
        if found is None and frame.f_code in by_code:
            found, meant = frame, by_code[frame.f_code]
            own = [one for one in meant if one.instance is not None and one.instance is _self(frame)]
            if len(own) == 1 or len(meant) == 1:
                return (own or meant)[0], frame
    if found is None:
        return None
    return next((one for one in meant if one.runner is driver), meant[0]), found


def _innermost(driver: Driver) -> FrameType | None:
    """Return the innermost frame of the thread that runs the driver; an engine's own, or one of the pool."""
    for innermost in sys._current_frames().values():
        for frame in _outwards(innermost):
            if frame.f_code in _RUNS and _self(frame) is driver:
                return innermost
    return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _codes(factory: Any) -> Iterator[CodeType]:
    """The code of a slet: of the function, or of all methods of the class."""
    if isinstance(factory, type):
        for base in factory.__mro__:
            if base is not Slet and base is not object:
                yield from (code for one in vars(base).values() if (code := getattr(one, "__code__", None)) is not None)
        return
    code = getattr(inspect.unwrap(factory), "__code__", None)
    if code is not None:
        yield code


def _self(frame: FrameType) -> Any:
    names = frame.f_code.co_varnames
    return frame.f_locals.get(names[0]) if names else None
