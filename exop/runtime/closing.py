"""Slets that buffer what they write: flushed for a memento, made visible now and then, closed at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from exop.errors import ComponentFailed
from exop.logs import logger
from exop.model.lifecycle import State
from exop.runtime.unwind import Unwind
from exop.shown import RAISED, described

if TYPE_CHECKING:
    from exop.runtime.component import Component

#: Seconds between two calls of `make_visible` while items come.
VISIBLE_WITHIN = 1.0


def flush_slet(node: str, instance: Any) -> None:
    """Let a slet that buffers what it writes hand that on: its memento is about to be taken.

    Raises:
        ComponentFailed: it raised.
    """
    flush = getattr(instance, "flush", None)
    if not callable(flush):
        return
    try:
        flush()
    except RAISED as error:
        cure = (
            "what it has buffered is not handed on: mend the cause and repeat, replace it with lose_state=True (which "
            "goes on without that), or remove it"
        )
        raise ComponentFailed(node=node, phase="flushing", problem=f"{described(error)}; {cure}") from error


def close_slet(node: str, instance: Any) -> None:
    """Close a slet; `SystemExit` and the like, which would end the thread that closes, become an ordinary error.

    Raises:
        ComponentFailed: it raised what is no `Exception`.
        KeyboardInterrupt: in the main thread, where it may be the user's.
    """
    try:
        instance.__exit__(None, None, None)
    except (Exception, Unwind):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        raise ComponentFailed(node=node, phase="closing", problem=described(error)) from error


def shows(component: Component) -> bool:
    """Whether the slet buffers what it writes, and makes it visible when it is called."""
    return callable(getattr(type(component.instance), "make_visible", None))


class Visibility:
    """Calls `make_visible()` of the slets that define it: when their stream rests, and every second while items come.

    One thread of the application looks at all its slets, beside the stream, so that items cost nothing more. The hook
    itself runs in a thread of its own: one that hangs holds up nothing else.

    Args:
        clock: Tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, int, float, threading.Thread | None]] = {}
        self._failing: dict[str, str] = {}

    def look(self, components: Iterable[Component]) -> None:
        """Look at all slets once; called about every 50 ms."""
        now, seen = self._clock(), {}
        for component in components:
            if not shows(component):
                continue
            runner = component.runner
            done = runner.count + runner.rows if runner is not None else 0
            before, visible, since, call = self._seen.get(component.id, (done, 0, now, None))
            free = call is None or not call.is_alive()
            if free and ((done == before != visible) or now - since >= VISIBLE_WITHIN):
                call = threading.Thread(target=self._call, args=(component,), name="exop make_visible", daemon=True)
                call.start()
                call.join(VISIBLE_WITHIN)
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
