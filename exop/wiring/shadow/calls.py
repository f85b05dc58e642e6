"""One call of a slet as it is handed on to the one behind: what came in, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from exop.model.items import CONTROL
from exop.model.ports import PortSpec
from exop.model.signature import OUT
from exop.runtime.component import Component
from exop.runtime.convert import weight
from exop.runtime.ports import BufferedOutput


class Leaving(NamedTuple):
    """What leaves by a port; `whole` when it is a batch or columns."""

    port: str
    payload: Any
    whole: bool


class Call(NamedTuple):
    """One call: item number, port, what came in, and what left, was raised, and how long it took.

    `control`: it is a control item on its way through the component, whether its slet sees it or not. Without a port it
    is none: something has left that belongs to an earlier one.
    """

    item: int
    port: PortSpec | None
    payload: Any
    control: bool = False
    leaving: tuple[Leaving, ...] = ()
    error: BaseException | None = None
    took: float = 0.0

    @property
    def rows(self) -> int:
        """How many items it is for."""
        if self.port is None or self.control or isinstance(self.payload, CONTROL):
            return 0
        return 1 if self.port.type.form == "item" else weight(self.payload)


def left_by(component: Component, found: Any, *, lazy: bool) -> Iterator[Leaving]:
    """What leaves because of one call that has returned *found*: its results, and what it has pushed meanwhile."""
    for name, output in component.outputs.items():
        if isinstance(output, BufferedOutput):
            for way, payload in output.capture():
                yield Leaving(name, payload, way == "push_batch")
    form = next((port.type.form for port in component.spec.outputs if port.name == OUT), "item")
    for payload in found if lazy else (found,):
        if payload is not None:
            yield Leaving(OUT, payload, form != "item")
