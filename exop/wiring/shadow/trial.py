"""Successors that run beside their predecessors before they take over: they catch up, or are on trial."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from exop.errors import ExopError, PlanError, ShadowFailed
from exop.model.items import Punctuation
from exop.model.lifecycle import State
from exop.model.memento import Memento
from exop.model.shadow import Shadow
from exop.model.spec import Role
from exop.runtime.channel import LOWEST
from exop.runtime.component import Component
from exop.runtime.pause import PATIENCE
from exop.shown import class_of, message
from exop.wiring.plan import Step
from exop.wiring.shadow.behind import Behind, as_far
from exop.wiring.shadow.comparison import Comparison, Difference, same
from exop.wiring.shadow.follower import CAPACITY, MOST, NEAR
from exop.wiring.shadow.taps import Call, FollowerTap, Leaving, with_tap
from exop.wiring.successors import copied, taken

#: Why a successor does not take over that puts out nothing, as its predecessor does.
NO_OUTPUT = (
    "no output was compared, because neither has put out anything; give it more time or more items, or allow it for a "
    "slet that may put out nothing: Shadow(allow_no_output=True) (--allow-no-output)"
)


class CatchingUp(Behind):
    """A successor that makes its state from a copy while the stream runs, and follows until it takes over.

    Args:
        step: The replacement.
        old: The component in the mesh.
        new: Its successor; it is open.
        shadow: The conditions of its trial, if it is on trial.
    """

    #: Its effects go elsewhere meanwhile, so another one takes over.
    diverted = False

    def __init__(self, step: Step, old: Component, new: Component, shadow: Shadow | None = None) -> None:
        super().__init__(old, new, compared=shadow is not None, copies=shadow is None or shadow.copy)
        self.step = step
        self.follower.capacity = MOST
        self._copy: Callable[[], Memento | None] = lambda: None

    @property
    def upgrades(self) -> bool:
        """Whether user code makes its state, which may take long."""
        return self.step.state is not None and self.step.state.calls is not None

    def begin(self) -> None:
        """Copy the state, and keep the items that come from now on; everything is parked."""
        old = self.leader
        if self.upgrades and old.state is not None:
            self._copy = copied(old, PATIENCE)
        else:
            old.flush()
            copy = old.state.copied() if old.state is not None else None
            self._copy = lambda: copy
        as_far(self.component, old)
        old.tap = with_tap(old.tap, self.tap)

    def make(self, seconds: float) -> None:
        """Make the state out of the copy within so many seconds, and begin with the items that have come since.

        Raises:
            MementoError: the successor cannot take the state.
            ComponentFailed: the user code that makes it has not returned in time.
        """
        state = taken(self.step.state, self.component, self._copy(), seconds) if self.step.state else None
        self._copy = lambda: None
        if state is not None:
            self.component.adopt(state)
        self.follower.attach()
        self.component.begin()
        self.follower.slowing = self._makes_room()
        if not self.follower.slowing:
            self.follower.limit(CAPACITY)
        self.follower.start()

    def _makes_room(self) -> bool:
        """Whether the old slet works more slowly until this one has caught up."""
        return True

    def done(self, call: Call, tap: FollowerTap) -> None:
        """Give up a successor that raises where its predecessor did not: it has lost an item."""
        if tap.error is not None and call.error is None and self.component.node.policy not in ("skip", "dead-letter"):
            self.follower.give_up(f"it raised {class_of(tap.error)} for item {call.item}: {message(tap.error)}")

    def full(self) -> str | None:
        """Do not let the stream wait while the state is made."""
        return f"it is {self.follower.behind} items behind" if self.follower.capacity == MOST else None

    def hasten(self) -> None:
        """Let the follower be at most NEAR items behind: the stream stands still for those in the cut."""
        self.follower.limit(NEAR)

    def enough(self) -> bool:
        """Whether it need not run beside its predecessor any longer."""
        return True

    def lacks(self) -> str | None:
        """Return what is missing when its time is up."""
        return None

    def problem(self) -> str | None:
        """Return why it cannot take over, as far as is known."""
        if self.follower.problem is None and self.leader.status is not State.ACTIVE:
            return f"the old one is {self.leader.status}"
        return self.follower.problem

    def check(self) -> None:
        """Look whether it may take over; it has done all that its predecessor has.

        Raises:
            ExopError: it may not.
        """
        if (problem := self.problem()) is not None:
            raise self.failed(problem)

    def failed(self, problem: str) -> ExopError:
        """Return the error with the reason why it does not take over."""
        return PlanError(
            f"the successor of {self.step.node} cannot catch up beside it: {problem}; nothing has happened; allow the "
            f"hand-over a longer pause (apply(pause=…), --pause)"
        )

    def plain(self) -> dict[str, Any]:
        """Return the progress as plain data."""
        return {}


class Trial(CatchingUp):
    """A successor on trial: it is compared with its predecessor while both run.

    Args:
        shadow: What is asked of it.
    """

    def __init__(self, step: Step, old: Component, new: Component, shadow: Shadow) -> None:
        self.in_step = in_step = not (old.spec.own_driver or new.spec.own_driver)
        ports = [port.name for port in new.spec.outputs if port.name in new.node.ports]
        self.comparison = Comparison(ports, shadow.compare, in_step=in_step)
        self.shadow = shadow
        self.begun: float | None = None
        super().__init__(step, old, new, shadow)
        self.diverted = bool(shadow.diverted(step.node))

    def make(self, seconds: float) -> None:
        """Make the state, and begin."""
        super().make(seconds)
        self.begun = time.monotonic()

    def _makes_room(self) -> bool:
        return self.upgrades and self.follower.behind > CAPACITY // 2

    @property
    def unproven(self) -> bool:
        """No output was compared, the slet is no sink, and the shadow does not allow that."""
        spec, allowed = self.component.spec, self.shadow.allow_no_output
        return not (self.comparison.compared or allowed or spec.role is Role.OMEGA)

    def done(self, call: Call, tap: FollowerTap) -> None:
        """Compare what both have done with an item."""
        found = self.comparison
        if call.port is not None and self.in_step and not call.control:
            found.called("old", call.took)
            found.called("new", tap.took)
        if call.port is not None and (call.error is not None or tap.error is not None):
            found.raised(call.item, call.port.name, call.error, tap.error)
        if self.in_step and found.at_once(call.leaving, tap.leaving):
            return
        for one in call.leaving:
            found.put_out("old", call.item, one)
        for one in tap.leaving:
            found.put_out("new", call.item, one)
        found.match()
        if found.found:
            self.follower.news()

    def leader_left(self, leaving: Leaving) -> None:
        """Note what an engine in the mesh has put out."""
        self.comparison.put_out("old", 0, leaving)

    def left(self, leaving: Leaving) -> None:
        """Note what an engine on trial has put out."""
        self.comparison.put_out("new", 0, leaving)

    def full(self) -> str | None:
        """Do not wait for one that is too slow; what an engine takes for an item is not known."""
        return super().full() or self._slow()

    def _slow(self) -> str | None:
        return self.comparison.slow(self.shadow.slower) if self.in_step else None

    def enough(self) -> bool:
        """Whether as many items were compared as are asked for."""
        asked = self.shadow.items
        # An engine may put out everything when it is quiesced, at the end of its trial.
        return asked is not None and self.follower.items >= asked and not (self.in_step and self.unproven)

    def lacks(self) -> str | None:
        """Return what is missing when its time is up: that may be the end that was asked for."""
        came, asked = self.follower.items, self.shadow.items
        if came < (asked or 1):
            wanted = f"{came} of {asked} items" if asked else "not one item"
            return f"within {self.shadow.limit:g} s came {wanted}; give it more time, or ask for fewer items"
        return NO_OUTPUT if self.in_step and self.unproven else None

    def problem(self) -> str | None:
        """Return why it cannot take over, as far as is known."""
        old, new, found = self.leader, self.component, self.comparison
        found.match()
        broken = found.broken()
        if broken is not None:
            return broken
        if found.found:
            return f"{found.found} differences" if found.found > 1 else "a difference"
        if old.status is State.ENDED or old.ended >= {port.name for port in old.spec.inputs}:
            return "the stream has ended"
        if old.status is not State.ACTIVE:
            return f"the old one is {old.status}: nothing can be compared; repair or resume it, or replace it as it is"
        if new.status is State.FAILED:
            return f"the new one broke: {type(new.error).__name__}: {new.error}"
        return self.follower.problem or found.too_far()

    def check(self) -> None:
        """Compare what is left, and the mementos of sinks.

        Raises:
            ShadowFailed: it may not take over.
        """
        self.comparison.match(last=True)
        old, new = self.leader, self.component
        if new.spec.role is Role.OMEGA and type(old.state) is type(new.state) and not same(old.state, new.state):
            self.comparison.note(
                Difference("memento", self.follower.items, "memento", f"{old.state!r:.200}", f"{new.state!r:.200}")
            )
        problem = self.problem() or self._slow() or (NO_OUTPUT if self.unproven else None)
        if problem is not None:
            raise self.failed(problem)

    def owed(self) -> list[tuple[str, Punctuation]]:
        """Return the successor's punctuations that its predecessor, an engine, has not sent yet."""
        found = []
        for port, streams in self.comparison.ports.items() if not self.in_step else ():
            old, new = streams.last.get("old"), streams.last.get("new")
            told = old.time if isinstance(old, Punctuation) else LOWEST
            if isinstance(new, Punctuation) and new.time > told:
                found.append((port, new))
        return found

    def failed(self, problem: str) -> ShadowFailed:
        """Return the error with the reason why it does not take over."""
        report = self.plain()
        found = f" (behind {report['items']} items in {report['seconds']:g} s)"
        found += "".join(f"\n  {one}" for one in self.comparison.differences)
        return ShadowFailed(node=self.step.node, problem=problem, found=found, report=report)

    def plain(self) -> dict[str, Any]:
        """Return the progress as plain data."""
        seconds = 0.0 if self.begun is None else time.monotonic() - self.begun
        return {
            "slet": self.component.spec.identity,
            "items": self.follower.items,
            "asked": self.shadow.items,
            "seconds": round(seconds, 3),
            "limit": self.shadow.limit,
            "held_s": round(self.follower.held, 3),
            **self.comparison.plain(),
        }


def on_trial(step: Step, shadow: Shadow) -> Step:
    """Return the step with the node as it is tried: with its effects diverted."""
    diverted = shadow.diverted(step.node)
    if step.after is None or not diverted:
        return step
    settings = step.after.slet.configured(step.node, {**step.after.settings, **diverted})
    return replace(step, after=replace(step.after, settings=settings))
