"""An engine that is replaced: what it was given and has not put out goes to its successor, before anything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from exop.errors import PlanError
from exop.model.items import CONTROL, EndOfStream
from exop.runtime.component import Component
from exop.runtime.drivers.engine import EngineDriver
from exop.runtime.entry import Way, Work, items_of
from exop.runtime.failure import anchor
from exop.runtime.inlets import Inlets
from exop.runtime.ports import DrivenOutput, way_of


def check_left(old: Iterable[Component], successors: Mapping[str, Component]) -> None:
    """Refuse to give what an engine has not put out to a successor that has no such port; all drivers are parked.

    Raises:
        PlanError: it would be lost.
    """
    for component in old:
        successor = successors.get(component.node.name)
        if component.tie is None or successor is None:
            continue
        ports = {port.name for port in successor.spec.inputs if not port.pulled}
        for port in component.spec.inputs:
            if port.name not in ports and next(component.tie.events(port.name), None) is not None:
                raise PlanError(
                    f"{component.node.name} was given items at {port.name!r} that it has not put out, and its "
                    f"successor has no such port; let it put them out first, or replace it by a slet with this port"
                )


def check_level(old: Iterable[Component], timeout: float) -> None:
    """Wait until an engine that is ahead of what is before it, since a recovery, is so no more; nothing is parked yet.

    Raises:
        PlanError: it stays ahead: what is before it stands still.
    """
    for component in old:
        if component.tie is not None and not component.tie.caught_up(timeout):
            raise PlanError(
                f"{component.node.name} is ahead of what is before it since the platform has recovered, and was not "
                f"caught up with within {timeout:g} s; repair what stands still before it, and try again"
            )


def put_out(component: Component) -> list[Work]:
    """What an engine has put out, and what has not left yet: it puts out nothing more from now on."""
    if component.tie is None:
        return []
    component.tie.retire()
    outputs = {id(output): output for output in component.outputs.values() if isinstance(output, DrivenOutput)}
    found = [(outputs.get(id(port)), payload) for port, payload in component.tie.surrender()]
    return [output.pending(_leaving(payload), payload) for output, payload in found if output is not None]


def take_over(component: Component, successor: Component, inlets: Inlets) -> None:
    """Give to *successor* what the engine *component* was given and has not put out: older than all that is to come."""
    if component.tie is None or not isinstance(component.driver, EngineDriver):
        return
    for port in component.spec.inputs:
        found = [payload for _, payload in component.tie.events(port.name)]
        if any(isinstance(payload, EndOfStream) for payload in found):  # it has not come there yet
            successor.ended.discard(port.name)
            successor.merge.take_back_end(port.name)
        place = next((one for one in successor.spec.inputs if one.name == port.name), None)
        if found and place is not None:
            entry = anchor(successor, place)
            work = [Work(entry, way_of(port, payload), payload) for payload in found]
            # Its predecessor has counted them.
            successor.metrics.tallies[place.name].returned += sum(items_of(one.way, one.payload) for one in work)
            inlets.post(work, first=True)


def _leaving(payload: object) -> Way:
    if isinstance(payload, CONTROL):
        return "control"
    return "push_batch" if isinstance(payload, list) or hasattr(payload, "num_rows") else "push"
