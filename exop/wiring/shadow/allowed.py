"""What may run beside the mesh: said before anything happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from exop.errors import PlanError, UnknownName
from exop.model.lifecycle import State
from exop.model.mesh import Node
from exop.model.shadow import Shadow, is_number
from exop.model.spec import Role
from exop.runtime.component import Component
from exop.wiring.plan import Plan, Step

#: No timer waits for longer, in seconds.
LONGEST = min(1e9, threading.TIMEOUT_MAX)


def check_shadow(plan: Plan, shadow: Shadow) -> None:
    """Refuse a proof that could not be one, or that would do something outside of the mesh twice.

    Raises:
        PlanError: the reason, and what can be done instead.
        UnknownName: a setting that is diverted is none.
    """
    steps = replacements(plan)
    if not steps:
        raise PlanError(
            f"the plan for {plan.after.name} replaces no slet: nothing is to be proven; leave the shadow out"
        )
    known = [step.node for step in steps]
    for name in shadow.divert:
        place, dot, _ = name.partition(".")
        if dot and place not in known:
            raise UnknownName(place="divert: what is replaced", kind="node", name=place, known=known)
    for step in steps:
        for node in _both(step):
            cure = "its successor cannot be proven beside it; replace it without a shadow"
            _check_following(node, cure, durable=plan.after.durable is not None)
        if step.after is not None and step.after.rebuild is not None:
            raise PlanError(
                f"{step.node}: a state that is rebuilt from a log cannot be proven beside one that is not; "
                f"rebuild it without a shadow, and keep the predecessor instead (keep=SECONDS)"
            )
        diverted = shadow.diverted(step.node)
        _check_diverted(step, diverted)
        if step.after is not None and step.after.slet.has_effects and not diverted:
            raise PlanError(
                f"{step.node}: {step.after.slet.name} acts on something outside of the mesh{_why(step.after)}, and it "
                f"would happen twice while both run; say where that goes meanwhile (Shadow(divert={{'path': …}})), or "
                f"mark it effects=False if it does not, or replace it without a shadow"
            )


def check_keep(plan: Plan, seconds: float) -> None:
    """Refuse to keep what cannot run on behind its successor.

    Raises:
        PlanError: the reason, and what can be done instead.
    """
    if not (is_number(seconds) and 0 < seconds <= LONGEST):
        raise PlanError(
            f"a predecessor cannot be kept for keep={seconds!r}; give a number of seconds above 0, at most {LONGEST:g}"
        )
    steps = replacements(plan)
    if not steps:
        raise PlanError(f"the plan for {plan.after.name} replaces no slet: there is no predecessor to keep")
    for step in steps:
        for node in _both(step):
            cure = "its predecessor cannot run on behind it; to go back later, replace it back"
            _check_following(node, cure, durable=plan.after.durable is not None)
        if step.before is not None and step.before.slet.has_effects:
            raise PlanError(
                f"{step.node}: {step.before.slet.name} acts on something outside of the mesh{_why(step.before)}, and "
                f"would go on doing so behind its successor; to go back later, replace it back"
            )


def check_catching(step: Step, old: Component, *, durable: bool) -> None:
    """Refuse to let a successor catch up that cannot run beside its predecessor.

    Raises:
        PlanError: the reason.
    """
    cure = "its successor cannot catch up beside it"
    if old.status is not State.ACTIVE:
        raise PlanError(f"{step.node} is {old.status}: {cure}")
    for node in _both(step):
        _check_following(node, cure, durable=durable)
        if node.slet.own_driver:
            raise PlanError(f"{node.name}: {node.slet.name} drives itself; {cure}")
    if step.after is not None and step.after.slet.has_effects:
        raise PlanError(f"{step.node}: {step.after.slet.name} acts on something outside of the mesh; {cure}")


def replacements(plan: Plan) -> list[Step]:
    """The steps that put another slet in a node's place."""
    return [step for step in plan.steps if step.verb == "replace"]


def told(plan: Plan) -> Iterator[str]:
    """What a proof, and the keeping of predecessors, add to a plan, in words."""
    for step in replacements(plan):
        if plan.shadow is not None:
            yield f"shadow {step.node}: beside the old one, on the same items, for {plan.shadow}"
            yield "    copy the state → compare outputs, errors, times → equal: take over; else: close, the old stays"
            for name, value in plan.shadow.diverted(step.node).items():
                yield f"    with {name}={value!r} meanwhile; then a new one takes over, with the state as said above"
        if plan.keep is not None:
            there = f"{plan.after.name}.{step.node}"
            yield f"keep the predecessor of {step.node} behind it for {plan.keep:g} s (exop rollback {there})"


def _check_diverted(step: Step, diverted: Mapping[str, Any]) -> None:
    """What is diverted has to go somewhere else than it goes already."""
    if step.after is None or not diverted:
        return
    spec, real = step.after.slet, step.after.settings
    for name in diverted:
        if name not in spec.settings:
            raise UnknownName(place=f"divert: {spec.name}", kind="setting", name=name, known=spec.settings)
    given = spec.configured(step.node, {**real, **diverted})
    before = step.before.settings if step.before is not None else {}
    same = [name for name in diverted if name in real and given[name] == real[name]]
    if not same and all(name in before and given[name] == before[name] for name in diverted):
        same = list(diverted)
    if same:
        said = ", ".join(f"{name}={given[name]!r}" for name in same)
        raise PlanError(
            f"{step.node}: divert={{{said}}} diverts nothing: that is where it goes already; give another value, or "
            f"leave it out"
        )


def _both(step: Step) -> list[Node]:
    return [node for node in (step.before, step.after) if node is not None]


def _check_following(node: Node, cure: str, *, durable: bool) -> None:
    spec = node.slet
    if durable and spec.tie is not None:
        raise PlanError(f"{node.name}: {spec.name} is tied to the checkpoints of its application; {cure}")
    if spec.role is Role.ALPHA:
        raise PlanError(f"{node.name}: {spec.name} is a source: it gets no items that two could share; {cure}")
    pulled = [port.name for port in spec.inputs if port.pulled]
    if pulled:
        raise PlanError(
            f"{node.name}: {spec.name} takes items by itself ({', '.join(pulled)}), where two would meet; {cure}"
        )


def _why(node: Node) -> str:
    return " (it is a sink)" if node.slet.effects is None else ""
