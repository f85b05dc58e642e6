"""Making what a component consists of, from the specification of its slet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from exop.model.ports import PortSpec
from exop.model.signature import OUT
from exop.model.spec import SletSpec
from exop.runtime.drivers.source import Broken, SourceDriver


@dataclass(frozen=True)
class Iteration:
    """How a slet is iterated: what makes its iterator, and what is called when it raises, ends, and between two items.

    `flush` is `None` if the slet pushes nothing beside what it yields.
    """

    iterate: Callable[[], Iterator[Any]]
    broken: Broken
    finish: Callable[[], None]
    flush: Callable[[], None] | None


def source_driver(spec: SletSpec, name: str, how: Iteration) -> SourceDriver:
    """The driver of a slet that is iterated."""
    yields = next((port.type for port in spec.outputs if port.name == OUT), None)
    mixed = yields is not None and (yields.punctuation or yields.end)
    batches = yields is not None and yields.form != "item"
    return SourceDriver(
        name,
        how.iterate,
        how.broken,
        how.finish,
        flush=how.flush,
        form="batches" if batches else "mixed" if mixed else "items",
        pulls=any(port.pulled for port in spec.inputs),
    )


def buffers(spec: SletSpec, port: PortSpec) -> bool:
    """An output by which the slet pushes, beside (or instead of) what it returns."""
    return port.name != OUT or OUT in getattr(spec.factory, "__dataclass_fields__", ())
