"""Checks before anything happens: which slets may run beside the mesh."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from exop.errors import PlanError, UnknownName
from exop.model.meshes.mesh import Node
from exop.model.meshes.proof import Shadow
from exop.model.slets.spec import Role, is_number
from exop.runtime.component import Component
from exop.runtime.lifecycle import State
from exop.wiring.changes.plan import Plan, Step

#: No timer waits for longer, in seconds.
LONGEST: Final = min(1e9, threading.TIMEOUT_MAX)


def check_shadow(plan: Plan, shadow: Shadow) -> None:
    """Refuse a trial that would compare nothing, or would act on something outside of the mesh twice."""
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
        _check_following(plan, step, "its successor cannot be proven beside it; replace it without a shadow")
        if step.after is not None and step.after.rebuild is not None:
            raise PlanError(
                f"{step.node}: a state that is rebuilt from a log cannot be proven beside one that is not; "
                f"rebuild it without a shadow, and keep the predecessor instead (keep=SECONDS)"
            )
        if diverted := shadow.diverted(step.node):
            _check_diverted(step, diverted)
        else:
            _check_effects(
                step.after,
                ", and it would happen twice while both run; say where that goes meanwhile "
                "(Shadow(divert={'path': …})), or mark it effects=False if it does not, or replace it without a shadow",
            )


def check_keep(plan: Plan, seconds: float) -> None:
    """Refuse to keep a predecessor that cannot run on behind its successor; the `PlanError` says why."""
    if not (is_number(seconds) and 0 < seconds <= LONGEST):
        raise PlanError(
            f"a predecessor cannot be kept for keep={seconds!r}; give a number of seconds above 0, at most {LONGEST:g}"
        )
    steps = replacements(plan)
    if not steps:
        raise PlanError(f"the plan for {plan.after.name} replaces no slet: there is no predecessor to keep")
    if plan.moves:
        group = plan.moves[0].group
        raise PlanError(f"partitions of the group {group!r} move: keep a predecessor in a change of its own")
    for step in steps:
        _check_following(plan, step, "its predecessor cannot run on behind it; to go back later, replace it back")
        cure = ", and would go on doing so behind its successor; to go back later, replace it back"
        _check_effects(step.before, cure)


def check_catching(plan: Plan, step: Step, old: Component) -> None:
    """Refuse to let a successor catch up that cannot run beside its predecessor; the `PlanError` says why."""
    cure = "its successor cannot catch up beside it"
    if old.status is not State.ACTIVE:
        raise PlanError(f"{step.node} is {old.status}: {cure}")
    _check_following(plan, step, cure)
    for node in (step.before, step.after):
        if node is not None and node.slet.own_driver:
            raise PlanError(f"{node.name}: {node.slet.name} drives itself; {cure}")
    _check_effects(step.after, f"; {cure}")


def replacements(plan: Plan) -> list[Step]:
    """Return the steps that put another slet in a node's place."""
    return [step for step in plan.steps if step.verb == "replace"]


def told(plan: Plan) -> Iterator[str]:
    """Describe the trials of a plan, and the predecessors that it keeps."""
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
    """Refuse to divert a setting to where it goes already."""
    if step.after is None:
        return
    spec, real = step.after.slet, step.after.settings
    for name in diverted:
        if name not in spec.settings:
            raise UnknownName(place=f"divert: {spec.name}", kind="setting", name=name, known=spec.settings)
    given = spec.configured(step.node, {**real, **diverted})
    before = step.before.settings if step.before is not None else {}
    same = [name for name in diverted if name in real and given[name] == real[name]]
    if same or all(name in before and given[name] == before[name] for name in diverted):
        said = ", ".join(f"{name}={given[name]!r}" for name in same or diverted)
        raise PlanError(
            f"{step.node}: divert={{{said}}} diverts nothing: that is where it goes already; give another value, or "
            f"leave it out"
        )


def _check_following(plan: Plan, step: Step, cure: str) -> None:
    """Refuse slets that cannot share the items of another one."""
    for node in (step.before, step.after):
        if node is None:
            continue
        spec, pulled = node.slet, ", ".join(port.name for port in node.slet.inputs if port.pulled)
        if plan.after.durable is not None and spec.tie is not None:
            raise PlanError(f"{node.name}: {spec.name} is tied to the checkpoints of its application; {cure}")
        if spec.role is Role.ALPHA:
            raise PlanError(f"{node.name}: {spec.name} is a source: it gets no items that two could share; {cure}")
        if pulled:
            raise PlanError(f"{node.name}: {spec.name} takes items by itself ({pulled}), where two would meet; {cure}")


def _check_effects(node: Node | None, cure: str) -> None:
    if node is not None and node.slet.has_effects:
        why = " (it is a sink)" if node.slet.effects is None else ""
        raise PlanError(f"{node.name}: {node.slet.name} acts on something outside of the mesh{why}{cure}")
