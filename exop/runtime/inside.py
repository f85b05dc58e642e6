"""The current position of a driver: its slet and the line in it; read from outside, from the stack of its thread."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final

from exop.model.slet import Slet
from exop.runtime.component import LIVE, Component
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.drivers.engine import EngineDriver
from exop.runtime.drivers.thread import ThreadDriver
from exop.runtime.drivers.worker import Worker
from exop.runtime.fuse import SOURCES
from exop.shown import stack_of

#: The calls in which a thread runs a driver.
_RUNS: Final = {ThreadDriver._main.__code__, Worker.turn.__code__, EngineDriver.drive.__code__}
_CALL: Final = re.compile(r"\bcall(\d+)\(")


@dataclass(frozen=True)
class Inside:
    """A slet in which a driver is: `frame` is that of this call of the slet, as long as it lasts."""

    component: Component
    frame: FrameType
    stack: str


def inside(components: Iterable[Component], driver: Driver) -> Inside | None:
    """The slet that *driver* runs at this moment; `None` if it is in none: waiting for room, or for an item."""
    innermost = _innermost(driver)
    found = _find(components, driver, innermost)
    return None if found is None or innermost is None else Inside(*found, _shown(innermost, found[1]))


def current_node() -> tuple[str, str] | None:
    """The application and the node whose slet has called this; `None` outside of all slets.

    It looks at the stack, and at every slet of the application: for log records, and the like.
    """
    driver = current_driver()
    live = [one for reference in LIVE.valuerefs() if (one := reference()) is not None]
    names = {one.application for one in live if driver is not None and driver in (one.driver, one.runner)}
    found = _find([one for one in live if not names or one.application in names], driver, sys._getframe())
    return (found[0].application, found[0].node.name) if found is not None else None


def _find(
    components: Iterable[Component], driver: Driver | None, innermost: FrameType | None
) -> tuple[Component, FrameType] | None:
    """The slet that a stack is in, and the frame of its call."""
    by_code = _by_code(components)
    by_name = {component.node.name: component for component in components}
    found: FrameType | None = None
    meant: list[Component] = []
    for frame in _outwards(innermost):
        component = _fused(frame, by_name)
        if component is not None:
            return component, found or frame
        if found is None and frame.f_code in by_code:
            found, meant = frame, by_code[frame.f_code]
            own = [one for one in meant if one.instance is not None and one.instance is _self(frame)]
            if len(own) == 1 or len(meant) == 1:
                return (own or meant)[0], frame
    if found is None:
        return None
    running = [one for one in meant if one.runner is driver] or meant
    return running[0], found


def whereabouts(components: Iterable[Component], drivers: Iterable[Driver]) -> str:
    """Describe the positions of these drivers for a message: slet and stack; empty if they are in no slet."""
    found = [inside(list(components), driver) for driver in drivers]
    lines = [f"\n{one.component.node.name} is at\n{one.stack.rstrip()}" for one in found if one is not None]
    return "".join(lines)


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


def _fused(frame: FrameType, by_name: dict[str, Component]) -> Component | None:
    """The slet that a fused chain calls just now."""
    lines = SOURCES.get(frame.f_code.co_filename)
    called = _CALL.search(lines[frame.f_lineno - 1]) if lines is not None and frame.f_lineno else None
    if called is None:
        return None
    place: str = frame.f_globals[f"here{called.group(1)}"].place
    return by_name.get(place.rpartition(".")[0])


def _by_code(components: Iterable[Component]) -> dict[CodeType, list[Component]]:
    """List the components that run a piece of code; several may be of one slet."""
    found: dict[CodeType, list[Component]] = {}
    for component in components:
        for code in _codes(component.spec.factory):
            found.setdefault(code, []).append(component)
    return found


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


def _shown(innermost: FrameType, outermost: FrameType) -> str:
    """The stack from the slet's frame inwards, as Python prints it."""
    frames = []
    for frame in _outwards(innermost):
        frames.append((frame, frame.f_lineno))
        if frame is outermost:
            break
    return stack_of(frames)
