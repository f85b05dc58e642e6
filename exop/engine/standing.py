"""How far a query has come, as plain data: what the platform keeps of it beside Spark's own checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from exop.engine.place import BEGINNING, Place

Places = Mapping[str, Place]


@dataclass(frozen=True)
class Standing:
    """Where a query stands behind a micro-batch that was put out.

    Spark may have committed that batch, or not; then it does it once more. So both its ends are known.

    Attributes:
        batch: Its number.
        begin: Where it begins in each input.
        end: Where it ends.
        said: The last punctuation that left.
        over: The end of the stream has left.
        probes: For so many micro-batches more, the inputs begin with a row that is only there to have one: the state
            of a predecessor was taken over, and Spark looks at its schema when something is computed.
    """

    batch: int = -1
    begin: Places = field(default_factory=dict)
    end: Places = field(default_factory=dict)
    said: float | None = None
    over: bool = False
    probes: int = 0

    def begins(self, port: str) -> Place:
        """Where the batch begins in *port*."""
        return self.begin.get(port, BEGINNING)

    def ends(self, port: str) -> Place:
        """Where it ends there."""
        return self.end.get(port, BEGINNING)

    def after(self, batch: int, end: Places, said: float | None) -> Standing:
        """Behind the next batch."""
        return Standing(batch, self.end, end, said, probes=max(0, self.probes - 1))

    def meanwhile(self, end: Places, said: float | None, *, over: bool = False) -> Standing:
        """Behind something that was said between two batches."""
        return replace(self, end=end, said=said, over=over)

    def from_zero(self) -> Standing:
        """The same for a successor, whose events are counted anew, behind Spark's offsets."""
        there = {port: replace(place, event=0) for port, place in self.end.items()}
        return replace(self, begin=there, end=there, over=False, probes=2)

    @property
    def inputs(self) -> dict[str, int]:
        """How many events of each input are before its end."""
        return {port: place.event for port, place in self.end.items()}

    def noted(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "batch": self.batch,
            "begin": _plain(self.begin),
            "end": _plain(self.end),
            "said": self.said,
            "over": self.over,
            "probes": self.probes,
        }

    @classmethod
    def of(cls, noted: Mapping[str, Any] | None) -> Standing:
        """From plain data; the beginning if there is none."""
        if noted is None:
            return cls()
        ends = {name: {port: Place(*one) for port, one in noted[name].items()} for name in ("begin", "end")}
        return cls(noted["batch"], ends["begin"], ends["end"], noted["said"], noted["over"], noted["probes"])


def _plain(places: Places) -> dict[str, list[Any]]:
    return {port: [one.event, one.offset, one.complete] for port, one in places.items()}
