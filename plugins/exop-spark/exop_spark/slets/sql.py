"""`spark:sql`: a query whose columns are settings, for topology files.

Its specification is written by hand, so that the platform need not import pyarrow or pyspark to list it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from exop import OutputPort, Tie
from exop.engine.pull import EventTime
from exop.engine.slet import accepted, texts_by_input
from exop.errors import SettingError, SletError
from exop.model.slets.ports import PortSpec, PortType
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import Setting, SletSpec

from ..settings import DEFAULT_MASTER

if TYPE_CHECKING:
    from .slet import SparkSlet

#: The settings of every query, as `SparkSlet` declares them.
QUERY_SETTINGS: Final = (
    Setting("trigger", float, 0.0),
    Setting("enough", int, 50_000),
    Setting("max_rows", int, 200_000),
    Setting("capacity", int, 500_000),
    Setting("close_windows_at_end", bool, True),
    Setting("time_limit", float, 600.0),
    Setting("master", str, DEFAULT_MASTER),
    Setting("warm_up", int, 3),
    Setting("checkpoints", str, ""),
    Setting("key_groups", int, 0),
)
_PORT: Final = "rows"
#: A text for the only input, `rows`, or one for each input by its name.
_Texts = str | dict[str, str]


def make(
    *,
    out: OutputPort[Any],
    tie: Tie,
    query: str,
    columns: _Texts,
    out_columns: str,
    event_time: _Texts,
    **settings: Any,
) -> Any:
    """Run a Spark SQL query over the rows that arrive; its inputs are the tables that it reads.

    `columns` and `out_columns` name what arrives and what leaves (`"time int, speed double"`); `event_time` is the
    column that tells when a row happened, and its unit (`"time s"`), and gives the query the timestamp `event`. The
    input is the table `rows`; for several inputs, `columns` is a table of their names and columns, and `event_time`
    one text for all of them or a table, too.
    """
    kind = _kind(_by_input("columns", columns), out_columns, _by_input("event_time", event_time))
    return kind(out=out, tie=tie, query=query, **settings)


def _by_input(setting: str, texts: _Texts) -> tuple[tuple[str, str], ...]:
    """Return the text for each input; one for all of them under an empty name."""
    return tuple(texts_by_input(setting, texts, "").items())


@lru_cache(maxsize=128)
def _kind(
    columns: tuple[tuple[str, str], ...], out_columns: str, event_time: tuple[tuple[str, str], ...]
) -> type[SparkSlet]:
    """Return the class of all queries over these columns.

    Raises:
        SettingError: the columns, an event time or a name cannot be.
    """
    # The engine's libraries are loaded with the first node that needs them.
    from exop.engine.columns import schema_of

    from ..plan import Input
    from .factory import query as make_query

    times = dict(event_time)
    inputs = {
        port or _PORT: Input(schema_of(text), event_time_of(times.get(port, times.get("", ""))))
        for port, text in columns
    }
    if unknown := [port for port in times if port and port not in inputs]:
        problem = f"there is no input {unknown[0]!r}; name one of {', '.join(inputs)}"
        raise SettingError(place="", setting="event_time", problem=problem)
    try:
        return make_query("sql", "", inputs=inputs, out=schema_of(out_columns, "out_columns"))
    except SletError as error:
        problem = f"{error.facts['problem']}; {error.facts['cure']}"
        raise SettingError(place="", setting="columns", problem=problem) from None


def event_time_of(text: str) -> EventTime | None:
    """Read `"time s"`: a column and its unit; nothing for no event time.

    Raises:
        SettingError: it is something else.
    """
    if not text.strip():
        return None
    try:
        column, unit = text.split()
        return EventTime(column, unit)
    except ValueError as problem:
        problem_text = f"{text!r} is not `column unit` ({problem})"
        raise SettingError(place="", setting="event_time", problem=problem_text) from None


def _specialised(settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
    """Return an input for each table, with its columns, and the columns of the output."""
    from ..plan import check_settings
    from .slet import sends_receipts

    check_settings(settings)
    columns, event_time = (_by_input(setting, settings[setting]) for setting in ("columns", "event_time"))
    made = spec_of(_kind(columns, settings["out_columns"], event_time))
    ports = tuple(replace(port, type=accepted(port.type, inputs.get(port.name))) for port in made.inputs)
    made = sends_receipts(made, staged=bool(settings["stage"]))
    return replace(sql, inputs=ports, outputs=made.outputs, results=made.results)


def _specification() -> SletSpec:
    text = {"query": str, "columns": _Texts, "out_columns": str}
    rest = [
        *(Setting(name, kind, required=True) for name, kind in text.items()),
        Setting("event_time", _Texts, ""),
        Setting("watermark", str, "0 seconds"),
        Setting("mode", str, "append"),
        Setting("boundary", float, 0.0),
        Setting("native", bool, True),
        Setting("stage", str, ""),
        Setting("dry_run", bool, True),
        *QUERY_SETTINGS,
    ]
    arriving = PortType(form="columns", punctuation=True, end=True)
    return SletSpec(
        name="sql",
        factory=make,
        inputs=(PortSpec(_PORT, "in", arriving, method=_PORT),),
        outputs=(PortSpec("out", "out", PortType(form="columns", punctuation=True)),),
        tie="tie",
        settings={setting.name: setting for setting in rest},
        results={_PORT: "none"},
        is_class=True,
        own_driver=True,
    )


def _keeps_own_state(settings: Mapping[str, Any]) -> bool:
    """Return whether the query may have state: one with an event time may have windows."""
    return any(text.strip() for _, text in _by_input("event_time", settings["event_time"]))


def _inherits(before: Any, after: Any) -> str | None:
    """Return why the query of one node cannot continue with the state of another one."""
    if before.slet.factory is not make:
        return "its engine keeps it, and the platform cannot read it there"
    # Its input may have other columns, if it has not another number of inputs: the schema of the state is compared by
    # Spark, and the offsets are numbers of rows.
    columns, new = (_by_input("columns", one.settings["columns"]) for one in (before, after))
    if [port for port, _ in columns] != [port for port, _ in new] and not len(columns) == len(new) == 1:
        return "it has other inputs"
    other = [name for name in ("event_time", "mode", "native") if before.settings[name] != after.settings[name]]
    return f"its {other[0]} is another one" if other else None


def _deep_check(settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """Let Spark analyse the query; see `SparkSlet.deep_check`."""
    return make(out=cast("Any", None), tie=Tie(), **settings).compiled().close


def _try_inherit(predecessor: Any, after: Any) -> str:
    """Let Spark try the query on a copy of the state of a running one; see `SparkSlet.try_inherit`."""
    from .slet import tried

    return tried(predecessor, make(out=cast("Any", None), tie=Tie(), **after.private_settings()))


make.specialised = _specialised  # type: ignore[attr-defined]
make.deep_check = _deep_check  # type: ignore[attr-defined]
make.reopens = True  # type: ignore[attr-defined]
make.packs = True  # type: ignore[attr-defined]
make.keeps_own_state = _keeps_own_state  # type: ignore[attr-defined]
make.inherits = _inherits  # type: ignore[attr-defined]
make.try_inherit = _try_inherit  # type: ignore[attr-defined]
sql: Final = _specification()
