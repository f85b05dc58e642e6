"""`log`: keeps what passes under increasing offsets; readers go through it at their own pace, from any offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from exop.errors import MeshError
from exop.runtime.channel import Channel, Outlet
from exop.runtime.channels.latch import storing
from exop.runtime.convert import to_items
from exop.runtime.entry import Entry, fan_out
from exop.runtime.log.memory import OffsetLog


class LogChannel(Channel):
    """Passes items on and keeps the last `keep` of them under offsets, in memory.

    Extended interface: `replay(start, end)`, `start`, `end`, `trim(offset)`.
    """

    kind: ClassVar[str] = "log"

    def __init__(self, name: str, *, keep: int = 100_000) -> None:
        super().__init__(name)
        if keep < 1:
            raise MeshError(f"the log {name!r} keeps {keep} items: it must be at least 1")
        self._keep = keep
        self._log = OffsetLog()

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Keep, then hand on."""
        return storing(self._keep_items, fan_out([outlet.entry for outlet in outlets]), self._keep_batch)

    @property
    def start(self) -> int:
        """The oldest offset that is kept."""
        return self._log.start

    @property
    def end(self) -> int:
        """The offset of the next item."""
        return self._log.end

    def replay(self, start: int, end: int | None = None) -> list[Any]:
        """The items from offset *start* on, up to *end*.

        Raises:
            MeshError: they are not kept any more.
        """
        pieces = self._log.read(start, self._log.end if end is None else end)
        return [item for piece in pieces for item in to_items(piece)]

    def trim(self, offset: int) -> None:
        """Forget what stands before *offset*."""
        self._log.trim(offset)

    def metrics(self) -> dict[str, int | float | str]:
        """The range of offsets kept."""
        return {"start": self.start, "end": self.end}

    def capture(self) -> Mapping[str, Any]:
        """What is kept, and at which offset it begins."""
        return {"start": self.start, "items": self.replay(self.start)}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Keep it again under the same offsets."""
        self._log = OffsetLog()
        self._log.begin_at(held["start"])
        self._keep_batch(held["items"])

    def _keep_items(self, items: Iterable[Any]) -> None:
        self._keep_batch(list(items))

    def _keep_batch(self, batch: Any) -> None:
        self._log.append(batch)
        if self._log.end - self._log.start > self._keep:
            self._log.trim(self._log.end - self._keep)
