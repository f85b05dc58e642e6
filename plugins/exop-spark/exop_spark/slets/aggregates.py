"""`spark:aggregate`: a keyed aggregate over windows, on Spark.

Its specification is written by hand, so that the platform need not import pyarrow or pyspark to list it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from exop import OutputPort, Tie
from exop.engine import EngineState
from exop.engine.slet import aggregate_ports, aggregate_restores, aggregation_of
from exop.model.slets.ports import PortSpec, PortType
from exop.model.slets.spec import Setting, SletSpec

from .sql import QUERY_SETTINGS

_DECLARED: Final = {"columns": str, "values": dict[str, str]}
_PORT: Final = "rows"


def make(
    *,
    out: OutputPort[Any],
    tie: Tie,
    state: EngineState,
    columns: str,
    values: dict[str, str],
    keys: list[str],
    time: str,
    window: float,
    slide: float,
    **settings: Any,
) -> Any:
    """Group rows by keys and windows, and emit counts, sums, means, minima and maxima: `stock:aggregate` on Spark.

    For the settings that declare the aggregate see `stock:aggregate`, for the others `spark:sql`.
    """
    # The engine's libraries are loaded with the first node that needs them.
    from .groups import grouping

    declared = {"columns": columns, "values": values, "keys": keys, "time": time, "window": window, "slide": slide}
    return grouping(aggregation_of(declared))(out=out, tie=tie, state=state, **settings)


def _specification() -> SletSpec:
    settings = [
        *(Setting(name, kind, required=True) for name, kind in _DECLARED.items()),
        Setting("keys", list[str], []),
        Setting("time", str, ""),
        Setting("window", float, 0.0),
        Setting("slide", float, 0.0),
        *QUERY_SETTINGS,
    ]
    arriving = PortType(form="columns", punctuation=True, end=True)
    return SletSpec(
        name="aggregate",
        factory=make,
        inputs=(PortSpec(_PORT, "in", arriving, method=_PORT),),
        outputs=(PortSpec("out", "out", PortType(form="columns", punctuation=True)),),
        state=("state", EngineState),
        tie="tie",
        settings={setting.name: setting for setting in settings},
        results={_PORT: "none"},
        is_class=True,
        own_driver=True,
    )


def _specialised(settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
    """Return the ports with their columns."""
    from ..plan import check_settings  # loads pyarrow

    check_settings(settings)
    return aggregate_ports(aggregate, settings, inputs)


make.specialised = _specialised  # type: ignore[attr-defined]
make.restores = aggregate_restores  # type: ignore[attr-defined]
make.reopens = True  # type: ignore[attr-defined]
make.packs = True  # type: ignore[attr-defined]
aggregate: Final = _specification()
