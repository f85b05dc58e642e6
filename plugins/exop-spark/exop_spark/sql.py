"""`spark:sql`: a query that is written in a topology file, columns and all.

Its specification is written out by hand: the platform learns of it without importing pyarrow or pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from exop import OutputPort, Tie
from exop.model.ports import PortSpec, PortType
from exop.model.spec import Setting, SletSpec

_PORT: Final = "rows"


def make(
    *, out: OutputPort[Any], tie: Tie, query: str, columns: str, out_columns: str, event_time: str, **settings: Any
) -> Any:
    """Run a Spark SQL query over the rows that arrive; it reads them from the table `rows`.

    `columns` and `out_columns` name what arrives and what leaves (`"time int, speed double"`); `event_time` is the
    column that tells when a row happened, and its unit (`"time s"`), and gives the query the timestamp `event`.
    """
    # The engine's libraries are loaded with the first slet that needs them.
    from .columns import schema_of, time_of
    from .factory import query as make_query
    from .plan import Input

    source = Input(schema_of(columns), time_of(event_time))
    kind = make_query("sql", query, inputs={_PORT: source}, out=schema_of(out_columns))
    return kind(out=out, tie=tie, query=query, **settings)  # type: ignore[call-arg]


def _specification() -> SletSpec:
    text = {name: Setting(name, str, required=True) for name in ("query", "columns", "out_columns")}
    rest = [
        Setting("event_time", str, ""),
        Setting("watermark", str, "0 seconds"),
        Setting("trigger", float, 0.0),
        Setting("boundary", float, 0.0),
        Setting("max_rows", int, 200_000),
        Setting("mode", str, "append"),
        Setting("master", str, "local[*]"),
        Setting("warm_up", int, 3),
        Setting("close_windows", bool, True),
    ]
    arriving = PortType(form="columns", punctuation=True, end=True)
    return SletSpec(
        name="sql",
        factory=make,
        inputs=(PortSpec(_PORT, "in", arriving, method=_PORT),),
        outputs=(PortSpec("out", "out", PortType(form="columns", punctuation=True)),),
        tie="tie",
        settings=text | {setting.name: setting for setting in rest},
        results={_PORT: "none"},
        is_class=True,
        own_driver=True,
    )


def _keeps_own_state(settings: Mapping[str, Any]) -> bool:
    """A query with an event time may keep windows."""
    return bool(str(settings["event_time"]).strip())


def _inherits(before: Any, after: Any) -> str | None:
    """Why the query of one node cannot go on with the state of another's."""
    if before.slet.factory is not make:
        return "its engine keeps it, and the platform cannot read it there"
    other = [name for name in ("columns", "event_time", "mode") if before.settings[name] != after.settings[name]]
    return f"its {other[0]} is another one" if other else None


def _deep_check(settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """Let Spark analyse the query; see `SparkSlet.deep_check`."""
    from .slets import Nowhere

    return make(out=Nowhere(), tie=Tie(), **settings).analysed()


make.deep_check = _deep_check  # type: ignore[attr-defined]
make.reopens = True  # type: ignore[attr-defined]
make.keeps_own_state = _keeps_own_state  # type: ignore[attr-defined]
make.inherits = _inherits  # type: ignore[attr-defined]
sql: Final = _specification()
