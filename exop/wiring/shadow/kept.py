"""A predecessor that runs on behind its successor for a while, and can take over again."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

from exop.errors import PlanError
from exop.model.lifecycle import State
from exop.model.memento import Memento
from exop.model.mesh import Mesh
from exop.runtime.component import Component
from exop.runtime.trouble import DeadLetters
from exop.shown import class_of, message
from exop.wiring.shadow.behind import Behind, as_far
from exop.wiring.shadow.calls import Call
from exop.wiring.shadow.taps import FollowerTap, without_tap


class Kept(Behind):
    """A predecessor behind its successor: it gets the same items, and what it puts out ends there.

    Args:
        predecessor: The one that was replaced.
        successor: The one in its place.
        over: Called, in a thread of its own, when its time is up, or it cannot follow any more.
    """

    def __init__(self, predecessor: Component, successor: Component, over: Callable[[Kept], None]) -> None:
        super().__init__(successor, predecessor, compared=False)
        self.node = predecessor.node
        self.until = 0.0
        self._over = over
        self._timer: threading.Timer | None = None
        self._ending = threading.Lock()

    def start(self, seconds: float) -> None:
        """Everything goes on: so does it, for so many seconds."""
        self.until = time.time() + seconds
        self.component.proceed()  # it has put out everything, to be replaced
        self.follower.news = self._look
        self.follower.start()
        self._call_over(seconds)
        self._look()

    def done(self, call: Call, tap: FollowerTap) -> None:
        """One that raises where its successor did not has lost an item: it cannot go on in its place."""
        if tap.error is not None and call.error is None and self.node.policy not in ("skip", "dead-letter"):
            error = tap.error
            self.follower.give_up(f"it raised {class_of(error)} for an item that its successor took: {message(error)}")

    def take_over(self) -> Memento | None:
        """Come back to where the successor is connected now, and as it is suspended."""
        state = super().take_over()
        now = self.leader.node
        here = self.component.node  # settings that took effect in the successor did so here, too
        self.component.node = dataclasses.replace(here, ports=now.ports, suspended=now.suspended)
        return state

    def check(self) -> None:
        """Look whether it has followed to the last item.

        Raises:
            PlanError: it has not.
        """
        if self.follower.problem is not None or self.component.status is not State.ACTIVE:
            why = self.follower.problem or f"it is {self.component.status}"
            raise PlanError(f"the predecessor of {self.node.name} cannot take over again: {why}; replace it back")

    def back(self, mesh: Mesh) -> Mesh:
        """The mesh with the predecessor in its place again; where it is connected is as it is now."""
        now = mesh.node(self.node.name)
        # Its settings may have changed meanwhile, at a point in the stream.
        node = dataclasses.replace(self.component.node, ports=now.ports, suspended=now.suspended, lose_state=True)
        return dataclasses.replace(mesh, nodes={**mesh.nodes, node.name: node})

    def end(self) -> None:
        """Run no more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.stop()

    def plain(self) -> dict[str, Any]:
        """Return its status as plain data."""
        return {
            "slet": self.node.slet.identity,
            "until": time.strftime("%H:%M:%S", time.localtime(self.until)),
            "left_s": round(max(0.0, self.until - time.time()), 1),
            "behind": self.follower.behind,
            "items": self.follower.items,
            "problem": self.follower.problem,
        }

    def _look(self) -> None:
        """Close the follower soon if it cannot follow any more: in another thread, which may wait."""
        if self.follower.problem is not None and self._timer is not None:
            self._call_over(0.0)

    def _call_over(self, seconds: float) -> None:
        with self._ending:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(seconds, self._over, (self,))
            self._timer.name = f"exop {self.follower.name} until"
            self._timer.daemon = True
            self._timer.start()


class Keeping:
    """Ties one predecessor to its successor, in the middle of a change that is being made.

    Attributes:
        kept: The two together.
        shares: The successor gets the predecessor's state, by reference perhaps.
    """

    def __init__(self, over: Callable[[Kept], None], *, shares: bool) -> None:
        self.kept: Kept | None = None
        self.shares = shares
        self._over = over
        self._undo: Callable[[], None] = lambda: None

    def keep(self, predecessor: Component, successor: Component) -> None:
        """Give the predecessor a state of its own, and put it behind the successor; everything is parked."""
        if predecessor.status is not State.ACTIVE:
            problem = f"{predecessor.node.name} is {predecessor.status}: it cannot run on behind its successor"
            raise PlanError(f"{problem}; make the change without keeping it")
        merge, ended, dead = predecessor.merge, predecessor.ended, predecessor.trouble.dead

        def undo() -> None:
            predecessor.merge, predecessor.ended, predecessor.trouble.dead = merge, ended, dead
            predecessor.tap = None
            if self.kept is not None:
                successor.tap = without_tap(successor.tap, self.kept.tap)

        self._undo = undo
        as_far(predecessor, predecessor)
        predecessor.trouble.dead = DeadLetters()
        if self.shares and predecessor.state is not None:
            predecessor.adopt(predecessor.state.copied())
        self.kept = Kept(predecessor, successor, self._over)
        self.kept.tie()

    def drop(self) -> None:
        """The change is not made after all."""
        self._undo()
