"""One successor on trial: it runs behind the one that it is to replace, and is compared with it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from exop.errors import ShadowFailed
from exop.model.items import Punctuation
from exop.model.lifecycle import State
from exop.model.shadow import Shadow
from exop.model.spec import Role
from exop.runtime.channel import LOWEST
from exop.runtime.component import Component
from exop.wiring.plan import Step
from exop.wiring.shadow.behind import Candidate, as_far
from exop.wiring.shadow.calls import Call, Leaving
from exop.wiring.shadow.comparison import Comparison
from exop.wiring.shadow.equality import same
from exop.wiring.shadow.streams import Difference
from exop.wiring.shadow.taps import FollowerTap

#: Why a successor does not take over that puts out nothing, as its predecessor does.
NO_OUTPUT = (
    "no output was compared, because neither has put out anything; give it more time or more items, or allow it for a "
    "slet that may put out nothing: Shadow(allow_no_output=True) (--allow-no-output)"
)


class Trial(Candidate):
    """The proof of one node's successor.

    Args:
        step: What would be done to the node.
        old: What runs there.
        new: What is to run there; it is open.
        shadow: What is asked of it.
    """

    def __init__(self, step: Step, old: Component, new: Component, shadow: Shadow) -> None:
        self.in_step = in_step = not (old.spec.own_driver or new.spec.own_driver)
        ports = [port.name for port in new.spec.outputs if port.name in new.node.ports]
        self.comparison = Comparison(ports, shadow.compare, in_step=in_step)
        self.step = step
        self.shadow = shadow
        self.begun: float | None = None
        super().__init__(old, new, compared=True, copies=shadow.copy)

    @property
    def diverted(self) -> bool:
        """Its effects go elsewhere, so it is not the one that takes over."""
        return bool(self.shadow.diverted(self.step.node))

    def begin(self) -> None:
        """Start with a copy of the old one's state; everything is parked.

        Raises:
            MementoError: it cannot take the state.
        """
        old, new = self.leader, self.component
        old.flush()
        state = self.step.state.take(old.state.copied() if old.state is not None else None) if self.step.state else None
        if state is not None:
            new.adopt(state)
        as_far(new, old)
        self.tie()
        self.begun = time.monotonic()

    def start(self) -> None:
        """Everything goes on: so does it."""
        self.component.begin()
        self.follower.start()

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
        """One that is too slow is not waited for; what an engine takes for an item is not known."""
        return self.comparison.slow(self.shadow.slower) if self.in_step else None

    def problem(self) -> str | None:
        """Why it cannot take over, as far as is known."""
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
        """Look at all that was found, at the last.

        Raises:
            ShadowFailed: it may not take over.
        """
        self.comparison.match(last=True)
        old, new = self.leader, self.component
        if new.spec.role is Role.OMEGA and type(old.state) is type(new.state) and not same(old.state, new.state):
            self.comparison.note(
                Difference("memento", self.follower.items, "memento", f"{old.state!r:.200}", f"{new.state!r:.200}")
            )
        problem = self.problem() or self.full() or (NO_OUTPUT if self.unproven else None)
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
    """The step with the node as it is tried: with its effects diverted."""
    diverted = shadow.diverted(step.node)
    if step.after is None or not diverted:
        return step
    settings = step.after.slet.configured(step.node, {**step.after.settings, **diverted})
    return replace(step, after=replace(step.after, settings=settings))
