"""`Connector`: the base of both halves of a remote connector: attaching to a wire, and a new begin in place (§4.3)."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, TypeAlias

from exop.runtime.channels.queue import Buffered
from exop.runtime.channels.wire import Progress, Wire

Acknowledgement: TypeAlias = Literal["received", "done", "stable"]
Mode: TypeAlias = Literal["sync", "async", "offline"]
#: The states of a connector.
WAITING, CONNECTED, DISCONNECTED, LOST = "waiting", "connected", "disconnected", "state lost"


class Connector(Buffered):
    """One half of a remote connector: it exchanges events with the half of the same `key` and `epoch` at `peer`.

    Attributes:
        state: `waiting` (for the other half), `connected`, `disconnected` or `state lost`.
    """

    reconfigurable: ClassVar[bool] = True

    def _name_other_half(self, peer: str, key: str, epoch: int, ack: Acknowledgement, mode: Mode) -> None:
        self.peer, self.key, self.epoch, self.ack, self.mode = peer, key, epoch, ack, mode
        self.state, self._reason = WAITING, ""
        self._reported = Progress("", 0, 0, 0)
        self._wire: Wire | None = None
        self._detach: Callable[[], None] | None = None
        self._turn = threading.RLock()

    def open(self) -> None:
        """Find the wire to the peer; raise `UnknownName` if there is none."""
        self._wire = self.wires[self.peer]

    def attach(self) -> None:
        """Begin to exchange events, unless it does."""
        if self._wire is not None and self._detach is None:
            self._detach = self._attached_to(self._wire)

    def detach(self) -> None:
        """End the exchange: no call of the wire is in progress, or comes later."""
        detach, self._detach = self._detach, None
        if detach is not None:
            detach()

    close = detach

    def disconnected(self, reason: str) -> None:
        """Record that the peer cannot be reached, or refuses the connector."""
        with self._turn:
            if self.state != LOST:
                self.state, self._reason = DISCONNECTED, reason

    def metrics(self) -> dict[str, int | float | str]:
        """Return the peer, the state, also that of the link if there is none, and how items are acknowledged."""
        away = "" if self._wire is None or self.state == LOST else self._wire.reason
        state, reason = (DISCONNECTED, away) if away else (self.state, self._reason)
        state = f"{state} ({reason})" if reason and state != CONNECTED else state
        return {"peer": self.peer, "state": state, "mode": self.mode, "ack": self.ack, **super().metrics()}

    @abstractmethod
    def _attached_to(self, wire: Wire) -> Callable[[], None]:
        """Attach to the wire; return the function that detaches."""

    def _guarded(
        self, attach: Callable[[str, int, Any], Callable[[], None]], names: Sequence[str], others: Sequence[str] = ()
    ) -> Callable[[], None]:
        """Attach an object with these methods of this half; return the function that detaches it.

        Once it is detached, no call of the methods of *names* is in progress, or reaches this half later.
        """
        turn, attached = threading.RLock(), True

        def guarded(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def call(given: Any) -> Any:
                with turn:
                    return method(given) if attached else ()

            return call

        methods = {name: guarded(getattr(self, name)) for name in names}
        methods |= {name: getattr(self, name) for name in others}
        detach_from_wire = attach(self.key, self.epoch, SimpleNamespace(**methods, half=self))

        def detach() -> None:
            nonlocal attached
            detach_from_wire()
            with turn:
                attached = False

        return detach

    def _become(self, fresh: Connector, names: Sequence[str]) -> Callable[[], None]:
        """Take the limits of *fresh*, and its attributes of these names; return the function that undoes it."""
        names = ("ack", "mode", "capacity", *names)
        self.detach()  # until the change is made or undone: what the peer gets, or forgets, an abort cannot take back
        before, after = ({name: getattr(one, name) for name in names} for one in (self, fresh))
        vars(self).update(after)

        def undo() -> None:
            vars(self).update(before)
            self.attach()

        return undo
