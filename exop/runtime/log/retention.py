"""The retention of a log on disk, its division into segments, and its synchronisation with the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from exop.errors import MeshError

#: When what was appended is forced to the disk: with every append; with every checkpoint (`sync()`); or when the
#: operating system likes. The death of the process alone loses nothing in any of them.
Fsync: TypeAlias = Literal["append", "checkpoint", "never"]


@dataclass(frozen=True)
class Retention:
    """The retention of a log; without bounds it keeps everything. Only whole segments are dropped, never the newest.

    Attributes:
        items: At least so many rows are kept.
        seconds: Rows are kept at least so long.
        size: At most about so many bytes are kept, whatever the two above say.
        segment: A new segment is begun after so many bytes (and after `seconds`).
        fsync: When appended rows are forced to the disk.

    Raises:
        MeshError: a bound that keeps nothing.
    """

    items: int | None = None
    seconds: float | None = None
    size: int | None = None
    segment: int = 16 * 2**20
    fsync: Fsync = "checkpoint"

    def __post_init__(self) -> None:
        for name in ("items", "seconds", "size", "segment"):
            bound = getattr(self, name)
            if bound is not None and bound <= 0:
                raise MeshError(f"a log that keeps {name}={bound} keeps nothing; give more than 0, or leave it out")

    @property
    def endless(self) -> bool:
        """Whether nothing is ever dropped."""
        return self.items is None and self.seconds is None and self.size is None
