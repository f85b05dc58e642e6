"""Both halves of a connector begin anew, in place, when the events so far are delivered in another way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from exop.runtime.channels.wire import Frame, Progress


class Attachment:
    """Passes the calls of a wire to one half of a connector; once it is closed, none is in progress or comes later."""

    def __init__(self, half: Any) -> None:
        self._half = half
        self._open = True
        self._turn = threading.RLock()

    def close(self, detach: Callable[[], None]) -> None:
        """Detach from the wire, and pass on no further calls."""
        detach()
        with self._turn:
            self._open = False

    def frames(self, size: int) -> Sequence[Frame]:
        """Return the next frames of an outbox."""
        with self._turn:
            found: Sequence[Frame] = self._half.frames(size) if self._open else ()
            return found

    def resumed(self, progress: Progress) -> None:
        """Resume an outbox."""
        self._pass_on("resumed", progress)

    def acknowledged(self, progress: Progress) -> None:
        """Pass an acknowledgement to an outbox."""
        self._pass_on("acknowledged", progress)

    def received(self, frame: Frame) -> None:
        """Pass a frame to an inbox."""
        self._pass_on("received", frame)

    def disconnected(self, reason: str) -> None:
        """Tell that the peer cannot be reached."""
        self._pass_on("disconnected", reason)

    def progress(self) -> Progress:
        """Return the report of an inbox."""
        found: Progress = self._half.progress()
        return found

    def _pass_on(self, name: str, given: Any) -> None:
        with self._turn:
            if self._open:
                getattr(self._half, name)(given)


def attach(half: Any, by: Callable[[str, int, Any], Callable[[], None]]) -> Callable[[], None]:
    """Attach one half of a connector by a method of a wire; return the function that detaches it."""
    attachment = Attachment(half)
    return partial(attachment.close, by(half.key, half.epoch, attachment))


def renew(half: Any, fresh: Any, names: Sequence[str]) -> Callable[[], None]:
    """Give one half of a connector the limits of *fresh*, and its attributes of these names; return the undo."""
    names = ("ack", "mode", "capacity", *names)
    before, after = ({name: getattr(one, name) for name in names} for one in (half, fresh))

    def become(values: Mapping[str, Any]) -> None:
        half.detach()
        vars(half).update(values)
        half.attach()

    become(after)
    return lambda: become(before)
