"""Several applications changed at once: all of them, or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

from exop.errors import PlanError
from exop.model.checks import check_durable
from exop.model.marks import unmarked
from exop.runtime.deployment import Deployment
from exop.runtime.manager import ComponentManager
from exop.wiring.change import Change
from exop.wiring.controller import WiringController
from exop.wiring.lines import renewed
from exop.wiring.plan import Plan
from exop.wiring.standby import Companions


@dataclasses.dataclass(frozen=True)
class Together:
    """Carries out plans of different applications, all or nothing; the appliers have their turns.

    Attributes:
        running: The applications that are deployed; others may be taken away at any time.
        has_state: The platform has a state directory.
        beside: By application: the slets that take or leave a place, and run beside the mesh before or after.
    """

    manager: ComponentManager
    wiring: WiringController
    running: Mapping[str, Deployment]
    has_state: bool
    beside: Mapping[str, Companions] = dataclasses.field(default_factory=dict)

    def carry_out(self, plans: Iterable[Plan]) -> list[Change]:
        """Open what is new of all of them, then change one after the other; returns what was done.

        Raises:
            StaleMesh: an application was changed after its plan was made.
            PlanError: one of them could not be made; everything is as it was, in all of them.
        """
        changes: list[Change] = []
        try:
            for plan in plans:
                change = self._change(plan)
                if change is not None:
                    change.prepare()
                    changes.append(change)
            with ExitStack() as held:
                for change in changes:
                    held.enter_context(change.deployment.changing)
                    if self.running.get(change.deployment.name) is not change.deployment:
                        raise _removed(change.deployment.name)
                try:
                    _carry_out(changes)
                finally:
                    for change in changes:
                        change.finish()
        except BaseException as error:
            for change in changes:
                if not change.made:
                    change.abort(error)
            raise
        return changes

    def _change(self, plan: Plan) -> Change | None:
        """The change that a plan is; `None` if there is nothing to do."""
        running = self.running.get(plan.after.name)
        if running is None:
            raise _removed(plan.after.name)
        beside = self.beside.get(plan.after.name) or Companions()
        plan = renewed(plan, running)
        if running.finished.is_set():
            raise finished(plan.after.name)
        if not plan:
            return None
        nodes, channels = plan.changes.nodes, plan.changes.channels
        after = unmarked(plan.after, [one.name for one in nodes], [one.name for one in channels])
        after = after.at(plan.before.revision + 1)
        check_durable(after, has_state=self.has_state, nodes=None if plan.before.durable is None else nodes)
        return Change(running, self.manager, self.wiring, dataclasses.replace(plan, after=after), beside)


def _carry_out(changes: Sequence[Change]) -> None:
    """Make all of the changes, or none; several are held with everything in its place until the last one is.

    No state ever has to be carried back from a new slet to an old one. The price is that the first application stands
    still for as long as all of them take.
    """
    if len(changes) == 1:
        changes[0].stage()
        changes[0].cut(then_commit=True)
        return
    for change in changes:
        change.hold = change.timeout
        change.stage()
    for change in changes:
        change.cut()
    for change in changes:
        change.vote()
    for change in changes:
        change.commit()


def finished(application: str) -> PlanError:
    """Return the error for a change of an application that has finished."""
    return PlanError(
        f"{application} has finished: there is nothing to change any more; "
        f"to run it once more, apply a mesh that is newly built, or mesh.at(0)"
    )


def _removed(application: str) -> PlanError:
    return PlanError(f"{application} was removed meanwhile: there is nothing to change any more")
