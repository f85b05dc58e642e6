"""Single operators of Spark as slets; adjacent ones become one query.

This is the finest grain (paper §3.1, assimilation): each operator can be replaced by a slet on any engine. A query per
operator would cost a micro-batch per operator, so a `Pipeline` adds each longest sequence of operators as one node,
`spark:sql`, and splits the sequence where another slet takes the place of one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from exop import Application
from exop.app import ChannelRef
from exop.errors import MeshError, UnknownName


@dataclass(frozen=True)
class Filter:
    """Rows that fulfil a condition; the columns stay as they are."""

    name: str
    condition: str


@dataclass(frozen=True)
class Project:
    """Expressions over the columns of each row; `columns` are those of the output, as in `spark:sql`."""

    name: str
    expressions: str
    columns: str


@dataclass(frozen=True)
class GroupBy:
    """Expressions over groups of rows, such as `window(event, '10 seconds'), sensor`."""

    name: str
    expressions: str
    by: str
    columns: str
    mode: str = "append"


@dataclass(frozen=True)
class Other:
    """A slet on another engine in the place of an operator; it gives the columns of the operator that it replaces."""

    name: str
    slet: Any
    columns: str
    settings: Mapping[str, Any] = field(default_factory=dict)


Operator: TypeAlias = Filter | Project | GroupBy
Step: TypeAlias = Operator | Other


@dataclass(frozen=True)
class Pipeline:
    """A sequence of operators over rows with these `columns`; `add` puts it into an application.

    Args:
        steps: The operators, in the order of the stream.
        columns: The columns of the input, as text: `"time int, value double"`.
        event_time: The column that tells when a row happened, and its unit (`"time s"`), for windows.
        settings: Settings of all queries, such as `master` and `trigger`.

    >>> from exop_spark import Filter, GroupBy, Pipeline
    >>> means = GroupBy(
    ...     "means",
    ...     "unix_seconds(window.end) AS until, avg(value) AS mean",
    ...     "window(event, '10 seconds')",
    ...     "until bigint, mean double",
    ... )
    >>> Pipeline([Filter("valid", "value >= 0"), means], "time bigint, value double", "time s").nodes()
    ['means']
    """

    steps: list[Step]
    columns: str
    event_time: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def replaced(self, name: str, by: Any, /, **settings: Any) -> Pipeline:
        """Return the pipeline with another operator, or a slet on any engine with these settings, in this place.

        Raises:
            UnknownName: there is no operator of this name.
        """
        names = [step.name for step in self.steps]
        if name not in names:
            raise UnknownName(place="the pipeline", kind="operator", name=name, known=names)
        place = names.index(name)
        columns = self._columns(place + 1)
        step = replace(by, name=name) if isinstance(by, Operator) else Other(name, by, columns, settings)
        return replace(self, steps=[*self.steps[:place], step, *self.steps[place + 1 :]])

    def add(self, app: Application, rows: ChannelRef) -> ChannelRef:
        """Add the nodes to an application, with *rows* as input; return the channel of the output.

        Raises:
            MeshError: a slet in the pipeline has not exactly one input.
        """
        for part in self._parts():
            start = self.steps.index(part[0])
            if isinstance(part[0], Other):
                rows = self._add_other(app, part[0], rows)
                continue
            last, timed = self.steps.index(part[-1]) + 1, any(isinstance(one, GroupBy) for one in part)
            # A port of its own for each first operator: what waits for another one is processed before a change.
            port = f"to_{part[0].name}"
            settings: dict[str, Any] = {
                port: rows,
                "query": self._text(port, start, last),
                "columns": {port: self._columns(start)},
                "out_columns": self._columns(last),
                "event_time": self.event_time if timed else "",
                "mode": next((one.mode for one in part if isinstance(one, GroupBy)), "append"),
            }
            rows = app.add(_name(part), "spark:sql", **settings, **self.settings)
        return rows

    def nodes(self) -> list[str]:
        """Return the names of the nodes: that of the aggregate in a sequence, otherwise that of its last operator."""
        return [_name(part) for part in self._parts()]

    def _parts(self) -> Iterator[list[Step]]:
        """Yield the longest sequences of operators with at most one aggregate, and the other slets, each alone."""
        part: list[Step] = []
        for step in self.steps:
            full = isinstance(step, GroupBy) and any(isinstance(one, GroupBy) for one in part)
            if part and (full or isinstance(step, Other) or isinstance(part[0], Other)):
                yield part
                part = []
            part.append(step)
        if part:
            yield part

    def _text(self, table: str, start: int, end: int) -> str:
        """Return the query of some steps over a table; the timestamp `event` goes along up to the aggregate."""
        text, steps = table, self.steps[start:end]
        for place, step in enumerate(steps):
            later = any(isinstance(one, GroupBy) for one in steps[place + 1 :])
            event = ", event" if later and self.event_time else ""
            match step:
                case Filter(condition=condition):
                    text = f"SELECT {_names(self._columns(start + place))}{event} FROM {text} WHERE {condition}"
                case Project(expressions=expressions):
                    text = f"SELECT {expressions}{event} FROM {text}"
                case GroupBy(expressions=expressions, by=by):
                    text = f"SELECT {expressions} FROM {text} GROUP BY {by}"
            text = text if place == len(steps) - 1 else f"({text})"
        return text

    def _columns(self, place: int) -> str:
        """Return the columns of the stream in front of a step, or behind the last one."""
        found = [one.columns for one in self.steps[:place] if not isinstance(one, Filter)]
        return found[-1] if found else self.columns

    def _add_other(self, app: Application, step: Other, rows: ChannelRef) -> ChannelRef:
        spec = app._resolve(step.slet)
        inputs = [port.name for port in spec.inputs]
        if len(inputs) != 1:
            raise MeshError(f"{step.name}: {spec.name} has the inputs {inputs}; in a pipeline, it needs exactly one")
        given: dict[str, Any] = {inputs[0]: rows, **step.settings}
        return app.add(step.name, step.slet, **given)


def _name(part: list[Step]) -> str:
    return next((one.name for one in part if isinstance(one, GroupBy)), part[-1].name)


def _names(columns: str) -> str:
    return ", ".join(f"`{part.split()[0]}`" for part in columns.split(","))
