"""One call of a slet as it is handed on to the one behind: what came in, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from exop.model.ports import PortSpec
from exop.model.signature import OUT
from exop.runtime.component import Component
from exop.runtime.ports import BufferedOutput


class Leaving(NamedTuple):
    """What leaves by a port; `whole` when it is a batch or columns."""

    port: str
    payload: Any
    whole: bool


class Call(NamedTuple):
    """One call: item number, port, what came in, what left, what was raised, how long it took, for how many items.

    `control`: it is a control item on its way through the component, whether its slet sees it or not. Without a port it
    is none: something has left that belongs to an earlier one.
    """

    item: int
    port: PortSpec | None
    payload: Any
    leaving: tuple[Leaving, ...] = ()
    error: BaseException | None = None
    took: float = 0.0
    rows: int = 0
    control: bool = False


#: What leaves because of one call, given what that has returned.
Left = Callable[[Any], tuple[Leaving, ...]]


def left_by(component: Component, *, lazy: bool, copied: Callable[[Any], Any] | None = None) -> Left:
    """What finds out what leaves because of a call: its results, and what the slet has pushed meanwhile.

    *copied* makes of each what can be kept.
    """
    buffers = [(name, one) for name, one in component.outputs.items() if isinstance(one, BufferedOutput)]
    whole = any(port.type.form != "item" for port in component.spec.outputs if port.name == OUT)
    keep = copied or _as_it_is

    def results(found: Any) -> tuple[Leaving, ...]:
        if not lazy:
            return () if found is None else (Leaving(OUT, keep(found), whole),)
        return tuple([Leaving(OUT, keep(payload), whole) for payload in found if payload is not None])

    def everything(found: Any) -> tuple[Leaving, ...]:
        pushed = [
            Leaving(name, keep(payload), way == "push_batch")
            for name, output in buffers
            for way, payload in output.capture()
        ]
        return (*pushed, *results(found))

    return everything if buffers else results


def _as_it_is(value: Any) -> Any:
    return value
