"""Event time: `stock:watermark` derives punctuations from items, `stock:clock` emits those of the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, Literal, Self, TypeVar

from exop.errors import SettingError
from exop.model.items import Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OutputPort, PortSpec, PortType
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.model.values.columns import is_columns
from exop.runtime.channels.partitioned import time_reader

T = TypeVar("T")

#: The clock, in nanoseconds since the epoch; tests replace it.
now = time.time_ns
#: The maximum number of seconds between two safe points of a clock.
LOOK: Final = 0.1
#: The nanoseconds of each unit.
_UNITS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class Followed(Memento):
    """The progress of a watermark: items before `floor` are late."""

    floor: int | float = -math.inf


class Watermark(Slet, Generic[T], name="watermark"):
    """Emit punctuations from the times of the items: after an item at *t*, none older than *t* - `delay` follows.

    An item that is older is late. Late items are emitted at `late` instead of `out`, and are counted even if `late` is
    not connected. Which items are late depends only on the items of this stream, not on the rates of other streams.
    Incoming punctuations are dropped. Record batches are not split into rows (this requires numpy): the same rows are
    late as if the rows arrived one by one, and a punctuation follows each batch that increases the time.

    Args:
        time: The field with the time of an item, which must be a finite number; for a datetime, use a field with its
            `timestamp()`. Whole numbers are compared exactly, also in nanoseconds.
        delay: The maximum difference between the time of an item and the latest time so far, in the unit of `time`.
        idle: The seconds for which a point where streams meet waits for the next punctuation of this stream; `None` for
            no limit.
        step: Emit a punctuation only when the time passes a multiple of this, in the unit of `time`; 0: whenever it
            increases. With the length of the windows downstream, an engine is called once for each window. `idle` has
            to be longer than such a step takes.
    """

    time: str
    followed: Followed
    late: OutputPort[T]
    delay: float = 0.0
    idle: float | None = None
    step: float = 0.0

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification whose ports carry columns if the input carries columns."""
        idle = settings["idle"]
        for name in ("delay", "step"):
            if not 0 <= (value := settings[name]) < math.inf:
                problem = f"it is {value:g}, and must be finite, and 0 or more"
                raise SettingError(place="", setting=name, problem=problem)
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
        """Process one item, or one record batch."""
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
        before, floor = followed.floor, time - _whole(self.delay, time)
        if floor <= before:
            return (item,)
        followed.floor = floor
        return (item, Punctuation.before(floor, self.idle)) if self._due(before, floor) else (item,)

    def _batch(self, batch: Any) -> Iterable[Any | Punctuation]:
        """Process one record batch; the same rows are late as if the rows arrived one by one."""
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
        floors = times - _whole(self.delay, times[0].item())
        floors = np.maximum.accumulate(np.concatenate(([max(before, floors.min().item())], floors)))
        late, floor = times < floors[:-1], floors[-1].item()
        if late.any():
            self.late.push_batch(batch.filter(late))
            batch = batch.filter(~late)
        self.followed.floor = floor
        left = (batch,) if batch.num_rows else ()
        return (*left, Punctuation.before(floor, self.idle)) if floor > before and self._due(before, floor) else left

    def _due(self, before: float, floor: float) -> bool:
        """Whether a punctuation is due when the time increases from *before* to *floor*."""
        if not self.step or before == -math.inf:
            return True
        step = _whole(self.step, floor)
        return floor // step > before // step


def _whole(length: float, time: float) -> float:
    """Return a whole length as an integer if the times are integers, so that results are exact."""
    return int(length) if isinstance(time, int) and not length % 1 else length


class Ticked(Memento):
    """The time of the last punctuation of a clock, in nanoseconds since the epoch."""

    time: int | float = -math.inf


class Clock(Slet, name="clock"):
    """Emit punctuations of the clock, and no items, for streams that fall silent.

    Connected to the channel of another source, it closes windows and time-outs that wait for later items. The times are
    the multiples of `every` since the epoch: a punctuation follows when the clock, minus `delay`, passes one. They
    never decrease, neither if the clock is set back nor after a restart.

    Where streams meet, the earliest punctuation counts. So the stream needs an `idle` at its `stock:watermark`, after
    which others no longer wait for it; for a stream without punctuations they wait for the `idle` of the clock. An
    item is late where a punctuation of the clock has arrived before it that excludes its time.

    Args:
        every: The seconds between two punctuations.
        delay: The seconds by which the punctuations are behind the clock: the maximum age of an item when it arrives.
        idle: The seconds for which a point where streams meet waits for streams that have not sent a punctuation;
            `None` for no limit. The clock itself is not waited for any longer, either.
        unit: The unit of the times of the stream.
    """

    every: float
    delay: float = 0.0
    idle: float | None = None
    unit: Literal["s", "ms", "us", "ns"] = "s"
    ticked: Ticked

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Refuse settings that are no lengths of time."""
        every, delay, idle = settings["every"], settings["delay"], settings["idle"]
        for name, fits, bound in (
            ("every", 1e-9 <= every < math.inf, "at least a nanosecond"),
            ("delay", 0 <= delay < math.inf, "0 or more"),
            ("idle", idle is None or 0 < idle < math.inf, "more than 0; leave it out to wait without end"),
        ):
            if not fits:
                problem = f"it is {settings[name]:g}, and must be finite, and {bound}"
                raise SettingError(place="", setting=name, problem=problem)
        return spec_of(cls)

    @classmethod
    def repeats(cls, settings: Mapping[str, Any]) -> bool:
        """Return that the same punctuations do not come again."""
        return False

    def __iter__(self) -> Iterator[Punctuation | None]:
        while True:
            step, unit = round(self.every * 1e9), _UNITS[self.unit]
            moment = now() - round(self.delay * 1e9)
            last = moment - moment % step
            if last > self.ticked.time:
                self.ticked.time = last
                yield Punctuation.before(last / unit if last % unit else last // unit, self.idle)
            else:
                yield None  # a safe point
                time.sleep(min(LOOK, (last + step - moment) / 1e9))
