"""`partitioned_log`: a log in several partitions by a key, each of which an engine can read by itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar, Literal

from exop.errors import MeshError, counted
from exop.model.items import CONTROL
from exop.runtime.channels.base import KeepingChannel
from exop.runtime.channels.log import LogChannel
from exop.runtime.channels.partitioned import Owners, Partitioning, key_reader, split
from exop.runtime.log.memory import Fsync, Position, flat

#: The prefix of the folders of partitions.
_PART = "partition-"


def _of_each(name: str) -> Any:
    """Return the method that calls the method *name* of each partition, a `LogChannel`."""

    def method(self: PartitionedLogChannel, *given: Any, **named: Any) -> None:
        for part in self._parts:
            getattr(part, name)(*given, **named)

    return method


class PartitionedLogChannel(KeepingChannel):
    """Passes items on and stores each in the log of its partition: on disk at `path`, or in the state directory.

    The field `by` is the key; `partitions` cannot be changed afterwards. The other settings are those of `log`, for
    each partition. Control items are stored in every partition. An engine that can read a log by itself reads the
    partitions side by side, each by its offsets, and the rows do not pass through the platform.

    Extended interface: `written()`, `readable()`, `rows(since)`.
    """

    kind: ClassVar[str] = "partitioned_log"
    _stores_control: ClassVar[bool] = True
    entered: ClassVar[bool] = True
    reading: ClassVar[frozenset[str]] = frozenset({"oldest", "readable", "rows", "written"})
    close, exchange, take_part = map(_of_each, ("close", "exchange", "take_part"))
    begin_anew, sync, committed = map(_of_each, ("begin_anew", "sync", "committed"))

    def __init__(
        self,
        name: str,
        *,
        by: str,
        partitions: int = 4,
        keep: int | Literal["all"] | None = None,
        seconds: float | None = None,
        size: int | None = None,
        segment: int = 16 * 2**20,
        fsync: Fsync = "checkpoint",
        path: Path | None = None,
        replay: bool = False,
    ) -> None:
        super().__init__(name)
        self.partitioning = Partitioning(name, by, partitions)
        self._path, self._replays, self._by, self._key = path, replay, by, key_reader(by)
        bounds = {"keep": keep, "seconds": seconds, "size": size, "segment": segment, "fsync": fsync}
        self._parts = [LogChannel(f"{name}.{number}", **bounds) for number in range(partitions)]  # type: ignore[arg-type]
        self._owners = Owners(self._parts)
        self._begun: tuple[Any, int] = (None, 0)

    def open(self) -> None:
        """Open the logs of all partitions, and compare their number with that of the folders."""
        if (folder := self._path or self.home) is None:
            return
        homes = [folder / f"{_PART}{number:05d}" for number in range(len(self._parts))]
        there = sorted(folder.glob(f"{_PART}*")) if folder.is_dir() else []
        # Not if its first opening was cut short, which has begun the first ones.
        if len(there) not in (0, len(homes)) and (there != homes[: len(there)] or any(map(_is_filled, there))):
            raise MeshError(
                f"the channel {self.name!r} has {counted(len(self._parts), 'partition')}, and the log in {folder} has "
                f"{len(there)}; give partitions={len(there)}, or another path"
            )
        with ExitStack() as undo:
            for part, home in zip(self._parts, homes, strict=True):
                part.home = home
                part.open()
                undo.callback(part.close)
            undo.pop_all()
        self.logs = {f"{log.folder.name}/": log for part in self._parts for log in part.logs.values()}

    def native(self, engine: str) -> Mapping[str, Any] | None:
        """Return the folder of each partition, which Spark's tasks read; `None` for a log in memory."""
        if engine != "spark" or not self.logs:
            return None
        folders = {str(number): str(log.folder.absolute()) for number, log in enumerate(self.logs.values())}
        return {"format": "log", "partitions": folders}

    def oldest(self) -> dict[str, int]:
        """Return where a new reader begins: with `replay` at the oldest stored row, else behind the last one."""
        return {str(n): part.start if self._replays else part.end for n, part in enumerate(self._parts)}

    def written(self) -> dict[str, int]:
        """Return the offset of the next row of each partition."""
        return {str(number): part.end for number, part in enumerate(self._parts)}

    def readable(self) -> dict[str, int]:
        """Return the offset up to which another process may read: later rows may be replaced after a crash."""
        return {str(number): part.settled for number, part in enumerate(self._parts)}

    def rows(self, since: Mapping[str, int]) -> list[Any]:
        """Return the rows from these offsets on, partition by partition, in lists and record batches."""
        return [one for n, part in enumerate(self._parts) for one in part.pieces(since[str(n)], part.end)]

    def kept_for(self, port: str) -> list[Any]:
        """Return the rows, partition by partition, if `replay` is set."""
        return flat(self.rows(self.oldest())) if self._replays else []

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of partitions and of stored rows; for a log on disk, also its bytes."""
        found = [part.metrics() for part in self._parts]
        rows = sum(int(one["end"]) - int(one["start"]) for one in found)
        size = {"bytes": sum(int(one["bytes"]) for one in found)} if "bytes" in found[0] else {}
        return {"partitions": len(found), "rows": rows, "written": sum(int(one["end"]) for one in found), **size}

    def capture(self) -> Mapping[str, Any]:
        """Return the offsets, and the content of a log in memory."""
        return {"parts": [part.capture() for part in self._parts]}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Continue at the captured offsets."""
        for part, one in zip(self._parts, held["parts"], strict=True):
            part.restore(one)

    def _keep(self, payload: Any) -> None:
        """Store a payload; when the disk was full, the next call with it goes on at the partition that failed."""
        before, done = self._begun
        done = done if before is payload else 0
        mark = isinstance(payload, CONTROL)
        given = ((part, payload) for part in self._parts) if mark else split(payload, self._by, self._owners, self._key)
        # All are encoded first, since no partition stores its part of a batch of which another one is refused.
        parts = [(part, one, None if part._disk is None else part._disk.encoded(one)) for part, one in given]
        for number, found in enumerate(parts[done:], done):
            self._begun = payload, number
            LogChannel._keep(*found)
        self._begun, self.trouble = (None, 0), None


def _is_filled(folder: Path) -> bool:
    """Whether something was ever written into a partition on disk."""
    with closing(LogChannel(folder.name, path=folder)) as part:
        part.open()
        return part.position != Position(0, 0)
