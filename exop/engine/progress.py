"""`QueryProgress`: the progress of a query on a `PullEngine`, which the platform stores with the engine's own state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class InputPosition:
    """A position in an input: the events and the rows before it, and the time up to which the stream is complete.

    For a channel that the engine reads by itself, *parts* has the offset of each partition.
    """

    event: int = 0
    offset: int = 0
    complete: float | None = None
    parts: Mapping[str, int] | None = None


BEGINNING: Final = InputPosition()
Positions = Mapping[str, InputPosition]


@dataclass(frozen=True)
class QueryProgress:
    """The progress of a query, up to a batch whose results were sent.

    The engine may or may not have committed that batch. If it has not, it computes the batch again. Therefore both
    ends of the batch are stored.

    Attributes:
        batch: The number of the batch; -1 for none.
        begin: The position of each input before the batch.
        end: The position of each input after the batch.
        complete: The time of the last punctuation that was sent.
        over: Whether the end of the stream was sent.
        probes: The number of batches for which the inputs begin with a row without content: an engine that has taken
            over the state of another query checks this state when it computes something.
    """

    batch: int = -1
    begin: Positions = field(default_factory=dict)
    end: Positions = field(default_factory=dict)
    complete: float | None = None
    over: bool = False
    probes: int = 0

    def begins(self, port: str) -> InputPosition:
        """Return the position of *port* before the batch."""
        return self.begin.get(port, BEGINNING)

    def ends(self, port: str) -> InputPosition:
        """Return the position of *port* after the batch."""
        return self.end.get(port, BEGINNING)

    def after(self, batch: int, end: Positions, complete: float | None) -> QueryProgress:
        """Return the progress after the next batch."""
        return QueryProgress(batch, self.end, end, complete, probes=max(0, self.probes - 1))

    def handed_over(self, ports: Sequence[str]) -> QueryProgress:
        """Return the progress for a new slet with these inputs, which counts its events from 0, at the same offsets.

        The only input of a query may have another name.
        """
        names = dict(zip(self.end, ports, strict=True)) if len(ports) == len(self.end) == 1 else {}
        there = {names.get(port, port): replace(position, event=0) for port, position in self.end.items()}
        return replace(self, begin=there, end=there, over=False, probes=2)

    @property
    def inputs(self) -> dict[str, int]:
        """The number of events of each input up to the end of the batch."""
        return {port: position.event for port, position in self.end.items()}

    @property
    def positions(self) -> dict[str, Mapping[str, int]]:
        """The offsets at the end of the batch, of the channels that the engine reads by itself."""
        return {port: one.parts for port, one in self.end.items() if one.parts is not None}

    def dump(self) -> dict[str, Any]:
        """Return plain data."""
        ends = {name: {port: [*astuple(one)] for port, one in getattr(self, name).items()} for name in _ENDS}
        return {**asdict(self), **ends}

    @classmethod
    def load(cls, data: Mapping[str, Any] | None) -> QueryProgress:
        """Return the progress from plain data; without data, the beginning."""
        ends = {end: {port: InputPosition(*one) for port, one in (data or {}).get(end, {}).items()} for end in _ENDS}
        return cls(**{**(data or {}), **ends})


_ENDS: Final = ("begin", "end")
