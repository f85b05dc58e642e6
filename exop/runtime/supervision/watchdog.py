"""Observes running slets from one thread of the process: detects items that take too long, and flushes buffered output.

Items have no overhead: the stack of a driver's thread shows the slet that it runs.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from exop.logs import logger
from exop.model.slets.ports import node_at
from exop.model.slets.slet import Slet
from exop.runtime.channels.reader import Reader
from exop.runtime.component import LIVE, Component
from exop.runtime.dataflow.fusion import CALLS
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.drivers.source import EngineDriver, ThreadDriver
from exop.runtime.drivers.worker import Worker
from exop.runtime.lifecycle import State
from exop.runtime.supervision.budget import UserCall
from exop.runtime.supervision.failure_state import Hang
from exop.safe_repr import error_text
from exop.stacks import frames_of_threads, stack_of

#: The interval at which every driver measures one item, and all applications are checked, in seconds.
SAMPLING: Final = 0.05
#: Seconds between two calls of `make_visible` while items arrive.
VISIBLE_WITHIN: Final = 1.0
#: The functions in which a thread runs a driver.
_RUNS: Final = {ThreadDriver._main.__code__, Worker.turn.__code__, EngineDriver.drive.__code__}


class Sampler:
    """Calls functions every SAMPLING seconds while they return true, in one thread; its clock is that of all limits."""

    def __init__(self) -> None:
        self._lock, now = threading.Lock(), time.monotonic()
        self._looks: list[Callable[[], bool]] = []
        self._read = now, now  # the last reading of the clock, and that of `time.monotonic` at this moment

    def clock(self) -> float:
        """Return the time in seconds without that for which the whole process stood still (SIGSTOP, a paused VM)."""
        return self._now()[0]

    def _now(self) -> tuple[float, float]:
        (reading, before), now = self._read, time.monotonic()
        stood = now - before > 1.0 and bool(self._looks)  # nothing was called: the whole process stood still
        return reading + (0.0 if stood else now - before), now

    def add(self, look: Callable[[], bool]) -> None:
        """Call *look* from now on."""
        with self._lock:
            if not self._looks:  # the new thread takes the lock before it checks for an empty list
                self._read = self._now()
                threading.Thread(target=self._run, name="exop sampler", daemon=True).start()
            self._looks.append(look)

    def _run(self) -> None:
        while True:
            time.sleep(SAMPLING)
            self._read = self._now()
            for look in list(self._looks):
                try:
                    again = look()
                except Exception as error:  # noqa: BLE001 (the other applications are still observed)
                    problem = "an application is no longer observed: a defect, please report it"
                    logger("exop.runtime").error(problem, exc_info=error)
                    again = False
                if not again:
                    with self._lock:
                        self._looks.remove(look)
                        if not self._looks:
                            return


#: The sampler of the process; a forked child starts without functions and without a thread.
SAMPLER: Final = Sampler()
os.register_at_fork(after_in_child=SAMPLER.__init__)  # type: ignore[misc]


class Attended(dict[str, Component]):
    """The components to observe, by node: those with a driver, a timeout per item, `make_visible`, or a failure.

    One thread at a time changes the dictionary, under the lock of `Deployment`; other threads may read it meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The nodes whose streams have not ended, and whose slets are not closed.
        self.open: set[str] = set()

    def note(self, component: Component) -> None:
        """Add or remove a component, according to its current state."""
        name, drives = component.node.name, component.driver is not None or component.pullers
        if drives or component.node.patience is not None or component.status is State.FAILED or shows(component):
            self[name] = component
        else:
            self.pop(name, None)
        ended = component.status in (State.ENDED, State.STOPPED, State.DESTROYED)
        (self.open.discard if ended else self.open.add)(name)


@dataclass
class _Look:
    """The progress of a busy driver, and the start of its current call of a slet."""

    progress: Hashable
    since: float
    frame: FrameType | None = None
    hanging: Component | None = None


class Watchdog:
    """Reports the slets of an application that exceed their timeout per item.

    The stack of a busy driver without progress shows the slet. A report is a log line, the property
    `hangs` of the slet's service (an event of the registry), and an entry of the status.
    """

    def __init__(self, clock: Callable[[], float] = SAMPLER.clock) -> None:
        self._clock = clock
        self._seen: dict[Driver, _Look] = {}

    def look(self, components: Mapping[str, Component], drivers: Iterable[Driver]) -> None:
        """Check these drivers once."""
        now, before = self._clock(), self._seen
        found = [(driver, self._look_at(driver, components, before.pop(driver, None), now)) for driver in drivers]
        self._seen = {driver: look for driver, look in found if look is not None}
        for gone in before.values():
            self._over(gone)

    def _look_at(
        self, driver: Driver, components: Mapping[str, Component], before: _Look | None, now: float
    ) -> _Look | None:
        if not driver.busy or driver.held_by is not None:
            self._over(before)
            return None
        ports = [port for one in components.values() if one.driver is driver for port in one.pulled.values()]
        progress = driver.count, driver.rows, *((port.rows, len(port.taken)) for port in ports)
        if before is None or before.progress != progress:
            self._over(before)
            return _Look(progress, now)
        frame = probe.frame if (probe := probe_stack(list(components.values()), driver)) is not None else None
        if frame is not before.frame:
            self._over(before)
            begun = before.since if before.frame is None and before.hanging is None else now
            return _Look(progress, begun, frame)
        patience = probe.component.node.patience if probe is not None else None
        if probe is not None and patience is not None and before.hanging is None and now - before.since >= patience:
            before.hanging = probe.component
            self._report(probe, driver, before.since, patience)
        return before

    def _report(self, probe: Probe, driver: Driver, since: float, patience: float) -> None:
        component, name = probe.component, probe.component.name
        ports = component.pulled.values() if component.driver is driver else ()
        items = sum(port.rows - len(port.taken) for port in ports) if ports else driver.count + driver.rows
        hang = component.trouble.hang = Hang(driver.name, items, since, probe.stack, self._clock)
        component.notify()
        facts = {"node": name, "items": items, "seconds": round(hang.seconds, 1), "stack": hang.stack}
        cure = "release the resource for which it waits, then it can be changed; or give it up by `exop remove`"
        logger("exop.runtime").warning(f"{name} hangs: an item takes longer than {patience:g} s", **facts, cure=cure)

    def _over(self, look: _Look | None) -> None:
        """Withdraw the report on a slet that has returned."""
        if look is None or look.hanging is None:
            return
        component, look.hanging = look.hanging, None
        hang, component.trouble.hang = component.trouble.hang, None
        component.notify()
        name, seconds = component.name, round(hang.seconds, 1) if hang is not None else None
        logger("exop.runtime").info(f"{name} no longer hangs", node=name, seconds=seconds)


def shows(component: Component) -> bool:
    """Whether the slet has a hook that makes buffered output visible."""
    return not component.closed and callable(getattr(type(component.instance), "make_visible", None))


class Visibility:
    """Calls `make_visible()` of slets that define it: when their streams are idle, and otherwise every second.

    A call that hangs delays only the next one of the same slet.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, int, float, UserCall[None] | None]] = {}
        self._failing: dict[str, str] = {}

    def look(self, components: Iterable[Component]) -> None:
        """Check all slets once."""
        now, seen = self._clock(), {}
        for component in components:
            if not shows(component):
                continue
            done = runner.count + runner.rows if (runner := component.runner) is not None else 0
            before, visible, since, call = self._seen.get(component.id, (done, 0, now, None))
            if (call is None or call.over) and ((done == before != visible) or now - since >= VISIBLE_WITHIN):
                with suppress(RuntimeError):  # the system has no more threads: the next look tries it again
                    call = component.user.begin(component, "making output visible", partial(self._call, component))
                    call.wait(0.05)  # for so long, one call may delay the others
                    visible, since = done, now
            seen[component.id] = done, visible, since, call
        self._seen = seen

    def _call(self, component: Component) -> None:
        """Call the hook; log only a new error, since the next item or checkpoint also raises it."""
        try:
            component.instance.make_visible()
        except BaseException as error:  # noqa: BLE001 (any exception of a slet ends this call only)
            problem = error_text(error)
            running = component.status in (State.ACTIVE, State.SUSPENDED, State.FAILED)
            if running and self._failing.get(component.id) != problem:
                self._failing[component.id] = problem
                event = "buffered output could not be made visible"
                logger("exop.runtime").warning(event, node=component.id, problem=problem)
        else:
            self._failing.pop(component.id, None)


class Probe(NamedTuple):
    """The slet that a driver runs; `frame` identifies the call."""

    component: Component
    frame: FrameType
    stack: str


def probe_stack(components: Iterable[Component], driver: Driver) -> Probe | None:
    """Return the slet that *driver* runs now; `None` if the driver waits for room, or for an item."""
    with frames_of_threads() as threads:
        innermost = _innermost(driver, threads.values())
        found = _find(components, driver, innermost) if innermost is not None else None
        if found is None:
            return None
        frames = list(walk_stack(innermost))
        depth = next((depth for depth, (frame, _) in enumerate(frames) if frame is found[1]), len(frames))
        inside = frames[: depth + 1]
        reader = next((_self(frame) for frame, _ in inside if frame.f_code is Reader._ask.__code__), None)
    waits = f"  it waits for the {reader.reads} {reader.channel!r} on {reader.peer}\n" if reader is not None else ""
    return Probe(*found, stack_of(inside) + waits)


def current_node() -> tuple[str, str] | None:
    """Return the application and node of the slet that is calling, for log records; `None` outside of all slets."""
    driver = current_driver()
    live = [one for reference in LIVE.valuerefs() if (one := reference()) is not None]
    names = {one.application for one in live if driver is not None and driver in (one.driver, one.runner)}
    found = _find([one for one in live if not names or one.application in names], driver, sys._getframe())
    return (found[0].application, found[0].node.name) if found is not None else None


def whereabouts(components: Iterable[Component], drivers: Iterable[Driver]) -> str:
    """Describe the positions of these drivers in slets, with their stacks, for a message."""
    probes = [probe_stack(list(components), driver) for driver in drivers]
    return "".join(f"\n{one.component.node.name} is at\n{one.stack.rstrip()}" for one in probes if one is not None)


def awaited(components: Mapping[str, Component], drivers: Iterable[Driver]) -> list[str]:
    """Return the nodes for which the end of a stream waits: those that these drivers run, and engines with items."""
    probes = [probe_stack(components.values(), driver) for driver in drivers if driver.busy]
    run = {one.component.node.name for one in probes if one is not None}
    return [name for name, one in components.items() if name in run or (one.spec.own_driver and one.resting)]


def _find(
    components: Iterable[Component], driver: Driver | None, innermost: FrameType
) -> tuple[Component, FrameType] | None:
    """Return the slet to which a stack belongs, and the frame of its call.

    A frame of a fused chain names the slet that it calls. Other frames are identified by the slet's code; if several
    nodes have the same code, by the instance, or by the driver.
    """
    by_code: dict[CodeType, list[Component]] = {}
    for component in components:
        for code in _codes(component.spec.factory):
            by_code.setdefault(code, []).append(component)
    by_name = {component.node.name: component for component in components}
    found: FrameType | None = None
    meant: list[Component] = []
    for frame, _ in walk_stack(innermost):
        if (called := CALLS.get(frame.f_code.co_filename, {}).get(frame.f_lineno)) is not None:
            node, _ = node_at(frame.f_globals[called].endpoint, by_name)
            if node in by_name:
                return by_name[node], found or frame
        if found is None and frame.f_code in by_code:
            found, meant = frame, by_code[frame.f_code]
            own = [one for one in meant if one.instance is not None and one.instance is _self(frame)]
            if len(own) == 1 or len(meant) == 1:
                return (own or meant)[0], frame
    return None if found is None else (next((one for one in meant if one.runner is driver), meant[0]), found)


def _innermost(driver: Driver, threads: Iterable[FrameType]) -> FrameType | None:
    """Return the innermost frame of the thread that runs the driver: the driver's own thread, or one of the pool."""
    for innermost in threads:
        for frame, _ in walk_stack(innermost):
            if frame.f_code in _RUNS and _self(frame) is driver:
                return innermost
    return None


def _codes(factory: Any) -> Iterator[CodeType]:
    """Return the code of a slet: of the function, or of all methods of the class."""
    bases = factory.__mro__ if isinstance(factory, type) else ()
    calls = [one for base in bases if base not in (Slet, object) for one in vars(base).values()]
    return (one.__code__ for one in (calls if bases else [inspect.unwrap(factory)]) if hasattr(one, "__code__"))


def _self(frame: FrameType) -> Any:
    return frame.f_locals.get(names[0]) if (names := frame.f_code.co_varnames) else None
