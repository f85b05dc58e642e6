"""A memento taken out of a running application, at a safe point."""

from __future__ import annotations

import dataclasses

from exop.errors import NotStorable
from exop.model.fields import memento_of
from exop.model.memento import Memento
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.pause import PATIENCE, Pause


def capture(deployment: Deployment, node: str, timeout: float = PATIENCE) -> Memento:
    """A copy of a node's memento as it is between two items; also of one that is suspended on an item.

    It is what a checkpoint would bring back: an object to which two fields refer becomes two.

    Raises:
        UnknownName: there is no such node.
        MeshError: its slet keeps no memento.
        PlanError: a driver did not come to a safe point in time.
    """
    kind = memento_of(f"{deployment.name}.{node}", deployment.mesh.node(node).slet)
    # Imported lazily: only this needs the encoding.
    from exop.model.decoding import decode, filled
    from exop.model.encoding import encode, fields_of

    def encoded(memento: Memento) -> bytes | Memento:
        """A tenth of the time of a deep copy, during which the stream stands still."""
        try:
            return encode(fields_of(memento))
        except NotStorable:
            return memento.copied()

    # What the encoding would bring back as something else is copied.
    altered = any("bytearray" in str(one.type) for one in dataclasses.fields(kind))  # type: ignore[arg-type]
    taken: list[bytes | Memento] = []
    with deployment.changing:
        component = deployment.components[node]
        state = component.state
        if state is None:  # a memento of a slet that keeps one is always there
            raise AssertionError(f"{component.id} has no memento")

        def take() -> None:
            component.flush()
            taken.append(state.copied() if altered else encoded(state))

        outside = [component.driver] if isinstance(component.driver, SourceDriver) else []
        with Pause(deployment, timeout, outside=outside) as pause:
            pause.close()
            pause.run(take)
    (found,) = taken
    if isinstance(found, Memento):
        return found
    made: Memento = filled(kind, decode(found))
    return made
