"""What becomes of an item for which a slet raised: nothing of it has left, and it is not lost (design §5 rule 8)."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from exop import errors
from exop.model.items import CONTROL
from exop.model.ports import PortSpec
from exop.runtime.convert import weight
from exop.runtime.drivers.base import Driver, Halted, current_driver
from exop.runtime.entry import NOWHERE, Entry, Push
from exop.runtime.unwind import Unwind, Way, Work

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
        """The traceback, as Python prints it; an earlier try of the item is no part of it."""
        told = traceback.TracebackException.from_exception(self.error)
        part: traceback.TracebackException | None = told
        while part is not None:
            if part.__context__ is not None and part.__context__.exc_type is Unwind:
                part.__context__ = None
            part = part.__cause__ or part.__context__
        return "".join(told.format())


@dataclass
class Trouble:
    """The failed items of one component.

    Attributes:
        kept: The item on which it is suspended.
        dead: The items that were set aside.
        holders: The drivers that wait for it.
        tries: How often it was iterated in vain, since it had yielded so much (`sent`).
    """

    kept: Kept | None = None
    dead: deque[DeadLetter] = field(default_factory=deque)
    holders: list[Driver] = field(default_factory=list)
    tries: int = 0
    sent: int = -1


def aside_at(component: Component, port: PortSpec) -> Callable[[Any, BaseException], bool]:
    """The handler that notes a failure, and sets the item aside when the policy is not to try it again."""
    name = port.name

    def aside(item: Any, error: BaseException) -> bool:
        # A slet that calls sys.exit is one that raises; only what the platform itself unwinds with passes.
        if isinstance(error, (Unwind, Halted)):
            raise error
        component.forget_outputs()
        component.metrics.errors += 1
        error.add_note(f"in the slet {component.node.name!r}, port {name!r}, for the item {_text(item)}")
        policy = component.node.policy
        if policy == "skip":
            component.metrics.skipped += 1
        if policy == "dead-letter":
            component.trouble.dead.append(DeadLetter(name, item, "".join(traceback.format_exception(error))))
        return policy in ("skip", "dead-letter")

    return aside


def stuck_at(component: Component, port: PortSpec) -> Callable[[Any, BaseException, Push], None]:
    """The handler that the compiled way into *port* calls with an item for which the slet raised.

    It returns when the item is dealt with, and unwinds the driver when the slet is suspended on it.
    """
    name = port.name
    lazy = component.spec.results.get(name) == "many"
    aside = aside_at(component, port)

    def stuck(item: Any, error: BaseException, send: Push) -> None:
        tries = 0
        while not aside(item, error):
            if component.node.policy == "suspend" or tries == TRIES:
                _suspend(component, port, Kept(name, item, error))
            _back_off(component, port, item, BACK_OFF * 2**tries)
            tries += 1
            try:
                result = component.tried[name](item)
                result = [*result] if lazy else result
            except (Unwind, Halted):
                raise
            except BaseException as again:  # noqa: BLE001 (the policy decides anew)
                error = again
                continue
            send(result)
            return

    return stuck


def anchor(component: Component, port: PortSpec) -> Entry:
    """Stands for the way into a port, whatever is compiled there when it is used."""
    return Entry(NOWHERE.push, NOWHERE.push_batch, NOWHERE.control, place=f"{component.node.name}.{port.name}")


def _text(item: Any, most: int = 500) -> str:
    try:
        return f"{item!r:.{most}}"
    except Exception as problem:  # noqa: BLE001 (an item that cannot even be shown is no reason to break)
        return f"{type(item).__name__} (its repr() raised {type(problem).__name__})"


def _back_off(component: Component, port: PortSpec, item: Any, seconds: float) -> None:
    """Wait before the next try; whoever wants the driver to park is not kept waiting."""
    driver = current_driver()
    if driver is None:
        return
    driver.wait_for(lambda: driver.closed, timeout=seconds)
    if driver.closed:
        work = _again(component, port, item)
        raise Unwind(f"{component.node.name} tries again", lambda: False, work, patience=seconds)


def _again(component: Component, port: PortSpec, item: Any) -> Work:
    """The work of taking an item once more."""
    way: Way = "show" if isinstance(item, CONTROL) else "push" if port.type.form == "item" else "push_batch"
    if way == "push_batch":  # it will be counted once more
        component.metrics.rows -= weight(item)
        component.metrics.batches -= 1
    return Work(anchor(component, port), way, item)


def _suspend(component: Component, port: PortSpec, kept: Kept) -> NoReturn:
    """Keep the item and take the driver back to its safe point, until somebody resumes the component."""
    driver = current_driver()
    if driver is None:  # pushed by hand, outside of any driver: the caller is told
        raise errors.ComponentFailed(
            node=component.node.name, phase=f"taking an item at {kept.port!r}", problem=repr(kept.error)
        ) from kept.error
    trouble = component.trouble
    work = _again(component, port, kept.item)
    component.failed(kept.error, kept, driver)
    raise Unwind(f"{component.node.name} is suspended on an item", lambda: trouble.kept is not kept, work)


def source_broken(component: Component, error: BaseException) -> bool:
    """What was iterated raised: tells whether it is to be iterated anew, from its memento.

    `retry` does so after a while, `suspend` when somebody resumes the slet; with the others the stream ends.
    """
    driver, trouble, name = current_driver(), component.trouble, component.node.name
    component.metrics.errors += 1
    error.add_note(f"in the slet {name!r}, while it was iterated")
    component.forget_outputs()
    if component.node.policy in ("suspend", "retry"):
        for port in component.pulled.values():
            port.put_back()
    if driver is None or component.node.policy in ("skip", "dead-letter"):
        component.error = error
        return False
    sent = driver.count + driver.rows
    trouble.tries = trouble.tries + 1 if sent == trouble.sent else 1
    trouble.sent = sent
    if component.node.policy == "retry" and trouble.tries <= TRIES:
        seconds = BACK_OFF * 2 ** (trouble.tries - 1)
        driver.hold(f"{name} is tried again", until=lambda: driver.ending or driver.retired, timeout=seconds)
    else:
        trouble.tries = 0
        kept = Kept("", None, error)
        component.failed(error, kept, driver)
        driver.hold(f"{name} is suspended", until=lambda: trouble.kept is not kept or driver.ending)
    return not (driver.ending or driver.retired)
