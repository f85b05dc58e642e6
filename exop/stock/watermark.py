"""`stock:watermark`: punctuations made of the times of items, and the rule by which an item is late."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from exop.errors import SettingError
from exop.model.items import Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OutputPort, PortSpec, PortType
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.model.values.columns import is_columns
from exop.runtime.channels.partitioned import time_reader

T = TypeVar("T")


class Followed(Memento):
    """The progress of a watermark: items older than `floor` are late."""

    floor: int | float = -math.inf


class Watermark(Slet, Generic[T], name="watermark"):
    """Emit punctuations from the times of the items: after an item at *t*, none older than *t* - `delay` follows.

    An item that is older than that is late: it leaves by `late` instead of `out`, and is counted there even if `late`
    is not connected. So the items of this stream alone decide which of them are late, however fast other streams are.
    Incoming punctuations are dropped. Record batches stay whole (this needs numpy): the same rows are late as if they
    came one by one, and a punctuation follows each batch that raises the time.

    Args:
        time: The field with the time of an item: a finite number, or a datetime (its `timestamp()`). Whole numbers are
            compared exactly, also in nanoseconds.
        delay: How much older than an earlier item an item may be, in the unit of `time`.
        idle: Where this stream meets others, the seconds for which they wait for its next punctuation; `None`: without
            limit.
    """

    time: str
    followed: Followed
    late: OutputPort[T]
    delay: float = 0.0
    idle: float | None = None

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """The ports carry columns where columns come."""
        delay, idle = settings["delay"], settings["idle"]
        if not 0 <= delay < math.inf:
            raise SettingError(place="", setting="delay", problem=f"it is {delay:g}, and must be finite, and 0 or more")
        if idle is not None and not 0 < idle < math.inf:
            problem = f"it is {idle:g}, and must be finite, and more than 0; leave it out to wait without end"
            raise SettingError(place="", setting="idle", problem=problem)
        spec, taken = spec_of(cls), inputs.get("item", PortType())
        taken.check_field("", "time", settings["time"])
        if taken.form != "columns":
            return spec

        def port(one: PortSpec) -> PortSpec:
            return replace(one, type=replace(one.type, item=taken.item, form=taken.form, schema=taken.schema))

        return replace(spec, inputs=tuple(map(port, spec.inputs)), outputs=tuple(map(port, spec.outputs)))

    def __enter__(self) -> Self:
        self._field = ""
        return self

    @input_port
    def item(self, item: T | Punctuation) -> Iterable[T | Punctuation]:
        """Take one item, or one record batch."""
        if isinstance(item, Punctuation):
            return ()
        if is_columns(item):
            return self._batch(item)
        if self.time is not self._field:  # it was configured
            self._field, self._read = self.time, time_reader(self.time)
        time, followed = self._read(item), self.followed
        if time < followed.floor:
            self.late.push(item)
            return ()
        if (floor := time - _delay(self.delay, time)) <= followed.floor:
            return (item,)
        followed.floor = floor
        return item, Punctuation.before(floor, self.idle)

    def _batch(self, batch: Any) -> Iterable[Any | Punctuation]:
        """Take one record batch. The same rows are late as if they came one by one."""
        # Imported lazily: only columns need it.
        import numpy as np

        if self.time not in batch.schema.names:
            raise LookupError(f"the batch has no column {self.time!r}; it has {', '.join(batch.schema.names)}")
        times, before = batch.column(self.time).to_numpy(zero_copy_only=False), self.followed.floor
        if times.dtype.kind not in "iuf" or not np.isfinite(times).all():
            problem = f"has a time that is missing or no finite number (its type is {batch.column(self.time).type})"
            raise ValueError(f"the column {self.time!r} {problem}; cast timestamps to int64")
        if not len(times):
            return ()
        times = times.astype(np.float64 if times.dtype.kind == "f" else np.int64)
        floors = times - _delay(self.delay, times[0].item())
        floors = np.maximum.accumulate(np.concatenate(([max(before, floors.min().item())], floors)))
        late, floor = times < floors[:-1], floors[-1].item()
        if late.any():
            self.late.push_batch(batch.filter(late))
            batch = batch.filter(~late)
        self.followed.floor = floor
        left = (batch,) if batch.num_rows else ()
        return left if floor <= before else (*left, Punctuation.before(floor, self.idle))


def _delay(delay: float, time: float) -> float:
    """Return a whole delay as an integer for times that are: the difference is exact, also in nanoseconds."""
    return int(delay) if isinstance(time, int) and not delay % 1 else delay
