"""The inputs and outputs of the reference: rows, reports, answers.

Nothing here is shared with the slets: a mistake in a shared piece would be in both and never be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeAlias

#: One input line: Type, Time, VID, Spd, XWay, Lane, Dir, Seg, Pos, QID, S_init, S_end, DOW, TOD, Day.
Row: TypeAlias = Sequence[int]

ENTRY_LANE = 0
EXIT_LANE = 4


class Segment(NamedTuple):
    """One mile of one direction of one road."""

    xway: int
    direction: int
    number: int


class Place(NamedTuple):
    """A place where a car can stand; another lane at the same position is another place (section 4, "Stopped")."""

    xway: int
    lane: int
    direction: int
    position: int


class Report(NamedTuple):
    """A position report: an input line of type 0."""

    time: int
    vid: int
    speed: int
    xway: int
    lane: int
    direction: int
    number: int
    position: int

    @classmethod
    def of(cls, row: Row) -> Report:
        """Take the fields of a position report out of an input line."""
        return cls(row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8])

    @property
    def segment(self) -> Segment:
        """The segment reported from."""
        return Segment(self.xway, self.direction, self.number)

    @property
    def place(self) -> Place:
        """The exact place reported from."""
        return Place(self.xway, self.lane, self.direction, self.position)


def minute_of(time: int) -> int:
    """Minutes count from 1: seconds 0..59 are minute 1 (section 1)."""
    return time // 60 + 1


@dataclass(frozen=True, slots=True)
class TollNotice:
    """Type 0: the answer to the first report from a segment. `lav` is None where there is no history yet (rule 9)."""

    time: int
    vid: int
    lav: Fraction | None
    toll: int
    cars: int
    accident: int | None

    def __str__(self) -> str:
        lav = "none" if self.lav is None else f"{float(self.lav):.6f}"
        ahead = "none" if self.accident is None else f"segment {self.accident}"
        return (
            f"vehicle {self.vid} at {self.time}: toll {self.toll} (LAV {lav}, cars {self.cars}, accident ahead {ahead})"
        )


@dataclass(frozen=True, slots=True)
class AccidentAlert:
    """Type 1: the same report, when an accident lies ahead; `number` is the accident's segment."""

    time: int
    vid: int
    xway: int
    number: int
    direction: int

    def __str__(self) -> str:
        return (
            f"vehicle {self.vid} at {self.time}: accident in segment {self.number} of road {self.xway}, "
            f"direction {self.direction}"
        )


@dataclass(frozen=True, slots=True)
class Balance:
    """Type 2: the sum of the charges; `accepted` are the balances of any moment of the last 60 seconds (rule 11)."""

    time: int
    vid: int
    qid: int
    amount: int
    accepted: tuple[int, ...]

    def __str__(self) -> str:
        older = f" (at some moment of the last minute: {', '.join(map(str, self.accepted))})"
        return f"question {self.qid} at {self.time}: {self.amount}{older if len(self.accepted) > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Expenditure:
    """Type 3: the sum of one day; without a row in the history the answer is optional, and 0 (rule 12)."""

    time: int
    vid: int
    qid: int
    amount: int
    known: bool

    def __str__(self) -> str:
        return f"question {self.qid} at {self.time}: {self.amount}"


Answer: TypeAlias = TollNotice | AccidentAlert | Balance | Expenditure
