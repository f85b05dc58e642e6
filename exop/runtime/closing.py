"""What a slet does at its end, whatever it raises: it hands on what it has buffered, and is closed."""

from __future__ import annotations

import threading
from typing import Any

from exop.errors import ComponentFailed
from exop.runtime.shown import described
from exop.runtime.unwind import Unwind


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
    except (Exception, SystemExit) as error:
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
