"""`stock:watermark`: punctuations made of the times of items, and the rule by which an item is late."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Self

from exop.model.items import Punctuation
from exop.model.memento import Memento
from exop.model.ports import OutputPort, PortSpec
from exop.model.slet import Slet, input_port, spec_of
from exop.model.spec import SletSpec
from exop.runtime.channels.table import key_reader


class Followed(Memento):
    """The progress of a watermark: items older than `floor` are late."""

    floor: float = -math.inf


class Watermark(Slet, name="watermark"):
    """Follow the times of the items with punctuations: of an item at *t*, nothing older than *t* - `delay` follows.

    An item that is older than that leaves by `late` instead of `out`, and is counted there, connected or not. So the
    items of this stream alone decide which of them are late, however fast other streams are. Punctuations that reach
    the slet end here.

    Args:
        time: The field that holds the time of an item, a number.
        delay: By so much an item may be older than one before it.
        idle: Where this stream meets others, they wait for its next punctuation for so many seconds; `None`: until it
            comes.
    """

    time: str
    followed: Followed
    late: OutputPort[Any]
    delay: float = 0.0
    idle: float | None = None

    def __enter__(self) -> Self:
        if self.delay < 0 or (self.idle is not None and self.idle <= 0):
            raise ValueError(
                f"delay={self.delay:g} must not be negative, and idle={self.idle} is positive, or left out"
            )
        self._read = key_reader(self.time)
        return self

    @input_port
    def item(self, item: Any | Punctuation) -> Iterable[Any | Punctuation]:
        """Take one item."""
        if isinstance(item, Punctuation):
            return ()
        time, followed = self._read(item), self.followed
        if not math.isfinite(time):
            raise ValueError(f"the time of an item, its field {self.time!r}, is {time}")
        if time < followed.floor:
            self.late.push(item)
            return ()
        if (floor := time - self.delay) <= followed.floor:
            return (item,)
        followed.floor = floor
        return item, Punctuation.before(floor, self.idle)


class WatermarkColumns(Watermark, name="watermark_columns"):
    """Do the same for record batches, without taking their rows apart: a punctuation follows each batch that raises it.

    The same rows are late as if they came one by one. It needs numpy.
    """

    @input_port
    def item(self, item: Any | Punctuation) -> Iterable[Any | Punctuation]:
        """Take one record batch."""
        if isinstance(item, Punctuation):
            return ()
        # Imported lazily: only columns need it.
        import numpy as np

        times, before = item.column(self.time).to_numpy(zero_copy_only=False), self.followed.floor
        if not np.isfinite(times).all():
            raise ValueError(f"a time of the batch, in its column {self.time!r}, is missing or not finite")
        floors = np.maximum.accumulate(np.concatenate(([before], times - self.delay)))
        late, floor = times < floors[:-1], float(floors[-1])
        if late.any():
            self.late.push_batch(item.filter(late))
            item = item.filter(~late)
        self.followed.floor = floor
        left = (item,) if item.num_rows else ()
        return left if floor <= before else (*left, Punctuation.before(floor, self.idle))


def _in_columns(spec: SletSpec) -> SletSpec:
    """Return the same slet with ports that carry columns: no annotation can say so where pyarrow is not installed."""

    def port(one: PortSpec) -> PortSpec:
        return replace(one, type=replace(one.type, form="columns"))

    return replace(spec, inputs=tuple(map(port, spec.inputs)), outputs=tuple(map(port, spec.outputs)))


#: The slet for items, and that for record batches.
WATERMARKS: Final = (Watermark, _in_columns(spec_of(WatermarkColumns)))
