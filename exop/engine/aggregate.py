"""`AggregateSlet`: the base of the slets that compute a keyed aggregate, one for each engine, with the same state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from exop.engine.slet import EngineSlet, accepted
from exop.model.items import EndOfStream, Punctuation
from exop.model.slets.ports import PortSpec, PortType
from exop.model.slets.slet import input_port, spec_of
from exop.model.slets.spec import SletSpec

if TYPE_CHECKING:
    from exop.engine.aggregation import Aggregation

_PORT = "rows"


def aggregation_of(settings: Mapping[str, Any]) -> Aggregation:
    """Return the declaration that the settings of an aggregate make."""
    # Imported lazily: pyarrow is loaded with the first node that needs it.
    from exop.engine.aggregation import Aggregation

    return Aggregation.of(settings)


def aggregate_ports(spec: SletSpec, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
    """Return the specification of an aggregate with the columns of its ports."""
    made = aggregation_of(settings)
    wanted = accepted(PortType(Any, "columns", made.columns, True, True), inputs.get(_PORT))
    out = PortSpec("out", "out", PortType(Any, "columns", made.out, True))
    return replace(spec, inputs=(replace(spec.inputs[0], type=wanted),), outputs=(out,))


def aggregate_restores(before: Any, after: Any) -> str | None:
    """Return why an aggregate cannot continue with the state of a node; called when a change is planned."""
    if not {"columns", "values", "keys", "window"} <= before.settings.keys():
        return f"{before.slet.name} is no aggregate"
    return aggregation_of(after.settings).lacks(aggregation_of(before.settings).layout())


class AggregateSlet(EngineSlet):
    """The base of the aggregates: their settings, ports and hand-over.

    A subclass makes the engine for `aggregation_of(vars(self))`, whose snapshots have the form of `Aggregation.write`.
    For the settings see `stock:aggregate`.
    """

    query: str = field(default="aggregate", init=False)
    columns: str
    values: dict[str, str]
    keys: list[str] = field(default_factory=list)
    time: str = ""
    window: float = 0.0
    slide: float = 0.0
    restores = staticmethod(aggregate_restores)

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return the ports with their columns."""
        return aggregate_ports(spec_of(cls), settings, inputs)

    @input_port
    def rows(self, rows: Any | Punctuation | EndOfStream) -> Iterator[Any | Punctuation]:
        """Take a batch or a control item."""
        return self.take(_PORT, rows)
