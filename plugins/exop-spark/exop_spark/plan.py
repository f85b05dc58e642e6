"""The query that a Spark slet runs, with its inputs and its output, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from exop.engine.event_time import EventTime

from .samples import made_up

#: SQL text over the input ports, or a function from their DataFrames (by name) to one.
Query = str | Callable[..., Any]
Mode = Literal["append", "update", "complete"]


@dataclass(frozen=True)
class Input:
    """An input port of a Spark slet.

    Args:
        columns: what travels into it.
        time: its event time; windows, watermarks and stream-stream joins need one.
        numbered: give the query the column `_row`, which numbers the rows as they came.
        sample: makes the rows of round `n` of the warm-up; made-up ones by default.
    """

    columns: pa.Schema
    time: EventTime | None = None
    numbered: bool = False
    sample: Callable[[int], pa.RecordBatch] | None = None

    def sampled(self, turn: int, span: float) -> pa.RecordBatch:
        """Return the rows of one round of the warm-up, which lasts *span* of event time."""
        if self.sample is not None:
            return self.sample(turn)
        return made_up(self.columns, self.time.column if self.time else None, turn * span)


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs to know."""

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
        """The query as it is shown in errors: its text, or the function's name."""
        if isinstance(self.query, str):
            return self.query
        return f"{self.query.__module__}.{self.query.__qualname__}({', '.join(self.inputs)})"

    @property
    def times(self) -> list[EventTime]:
        """The event times of the inputs that have one."""
        return [one.time for one in self.inputs.values() if one.time is not None]

    def facts(self) -> dict[str, Any]:
        """The facts that every error of this query names."""
        return {"slet": self.name, "query": self.text, "ports": list(self.inputs)}
