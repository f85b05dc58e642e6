"""What becomes of an item for which a slet raised: nothing of it has left, and it is not lost (design §5 rule 8)."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import exop.errors as errors
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.entry import Push

if TYPE_CHECKING:
    from exop.runtime.component import Component

#: `retry`: so many further tries, after so many seconds (doubled each time), then the slet is suspended.
TRIES = 3
BACK_OFF = 0.1


@dataclass(frozen=True)
class DeadLetter:
    """An item that was set aside: the port that it came in by, the item, and the traceback."""

    port: str
    item: Any
    error: str


@dataclass
class Kept:
    """The item on which a slet is suspended, and why."""

    port: str
    item: Any
    error: BaseException

    @property
    def text(self) -> str:
        """The traceback, as Python prints it."""
        return "".join(traceback.format_exception(self.error))


@dataclass
class Trouble:
    """The failed items of one component."""

    kept: Kept | None = None
    dead: deque[DeadLetter] = field(default_factory=deque)
    holders: list[Driver] = field(default_factory=list)


def stuck_at(component: Component, port: str) -> Callable[[Any, Exception, Push], None]:
    """The handler that the compiled way into *port* calls with an item for which the slet raised."""

    def stuck(item: Any, error: Exception, send: Push) -> None:
        component.forget_outputs()
        tries = 0
        while True:
            component.metrics.errors += 1
            error.add_note(f"in the slet {component.node.name!r}, port {port!r}, for the item {item!r:.500}")
            policy = component.node.policy
            if policy == "skip":
                component.metrics.skipped += 1
                return
            if policy == "dead-letter":
                component.trouble.dead.append(DeadLetter(port, item, "".join(traceback.format_exception(error))))
                return
            if policy == "retry" and tries < TRIES:
                _back_off(BACK_OFF * 2**tries)
                tries += 1
            else:
                _suspend(component, Kept(port, item, error))
                tries = 0
            try:
                result = component.tried[port](item)
                result = [*result] if component.spec.results.get(port) == "many" else result
            except Exception as again:  # noqa: BLE001 (the policy decides anew)
                component.forget_outputs()
                error = again
                continue
            send(result)
            return

    return stuck


def _back_off(seconds: float) -> None:
    driver = current_driver()
    if driver is not None:
        driver.wait_for(lambda: False, timeout=seconds)


def _suspend(component: Component, kept: Kept) -> None:
    """Wait, as a safe point, until somebody resumes the component."""
    driver = current_driver()
    if driver is None:  # pushed by hand, outside of any driver: the caller is told
        raise errors.ComponentFailed(
            node=component.node.name, phase=f"taking an item at {kept.port!r}", problem=repr(kept.error)
        ) from kept.error
    component.trouble.kept = kept
    component.trouble.holders.append(driver)
    component.failed(kept.error)
    try:
        driver.hold(f"{component.node.name} is suspended", until=lambda: component.trouble.kept is None)
    finally:
        component.trouble.holders.remove(driver)
