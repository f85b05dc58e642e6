"""The query that a Spark slet runs, with its inputs and its output, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from exop.engine.pull import EventTime
from exop.errors import SettingError

from .samples import made_up

#: SQL text over the input ports, or a function from their DataFrames (by name) to one.
Query = str | Callable[..., Any]
Mode = Literal["append", "update", "complete"]
#: The least values of settings; with no rows in a batch, or no room for any, a query would wait for ever.
_LEAST: Final = {"max_rows": 1, "capacity": 1, "enough": 1, "trigger": 0, "boundary": 0, "warm_up": 0, "key_groups": 0}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the numbers among the settings of a query.

    Raises:
        SettingError: one is too small.
    """
    for name, least in _LEAST.items():
        if not settings.get(name, least) >= least:
            raise SettingError(place="", setting=name, problem=f"{settings[name]} is not at least {least}")


@dataclass(frozen=True)
class Input:
    """An input port of a Spark slet.

    Args:
        columns: The columns.
        time: The event time, which windows, watermarks and joins of streams need.
        numbered: Whether the query has the column `_row`, with the number of the row in the stream.
        sample: The function that makes the rows of round `n` of the warm-up; by default they are made up.
    """

    columns: pa.Schema
    time: EventTime | None = None
    numbered: bool = False
    sample: Callable[[int], pa.RecordBatch] | None = None

    def __post_init__(self) -> None:
        if self.time is not None:
            object.__setattr__(self, "time", self.time.of(self.columns))

    def sampled(self, turn: int, span: float) -> pa.RecordBatch:
        """Return the rows of one round of the warm-up; a round lasts *span* in event time."""
        if self.sample is not None:
            return self.sample(turn)
        return made_up(self.columns, self.time.column if self.time else None, turn * span)


@dataclass(frozen=True)
class Plan:
    """A query with its settings."""

    name: str
    query: Query
    inputs: Mapping[str, Input]
    out: pa.Schema
    mode: Mode = "append"
    watermark: str = "0 seconds"
    checkpoints: str = ""
    key_groups: int = 0
    stage: str = ""
    by_watermark: bool = False

    @property
    def text(self) -> str:
        """The query in errors: its text, or the name of the function."""
        if isinstance(self.query, str):
            return self.query
        return f"{self.query.__module__}.{self.query.__qualname__}({', '.join(self.inputs)})"

    @property
    def times(self) -> list[EventTime]:
        """The event times of the inputs that have one."""
        return [one.time for one in self.inputs.values() if one.time is not None]

    def facts(self) -> dict[str, Any]:
        """Return the facts for the errors of this query."""
        return {"slet": self.name, "query": self.text, "ports": list(self.inputs)}
