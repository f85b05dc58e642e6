"""Items, batches of items, and the control items that travel in band with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nextafter
from typing import Any, TypeVar

T = TypeVar("T")


class Batch(list[T]):
    """Several items at once.

    A slet with an output typed `Batch[T]` sends a batch in one call; an input port typed `Batch[T]` receives one list.
    The item type of the port is `T`, so such ports can be connected to slets that process single items.
    """

    __slots__ = ()


class Window(list[T]):
    """The items in the window of a port; a slet with a semantic window evicts them itself."""

    def evict(self, number: int) -> None:
        """Remove the oldest *number* items."""
        del self[:number]


@dataclass(frozen=True, slots=True)
class Punctuation:
    """The stream is complete up to and including `time` (a watermark): no older items follow.

    `time` is in the unit of the stream. A port whose type includes `Punctuation` receives punctuations like items, and
    its slet determines which punctuations to emit. For other slets, the platform forwards the minimum over their
    inputs. A point where streams meet waits at most `idle` seconds for a later punctuation of this stream.
    """

    time: float
    idle: float | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        try:
            if self.time >= -inf:
                return
        except TypeError:
            pass
        raise ValueError(f"the time of a Punctuation is {self.time!r}, not a number; for a datetime give timestamp()")

    @classmethod
    def before(cls, time: float, idle: float | None = None) -> Punctuation:
        """Return the punctuation after which no items older than *time* follow."""
        if (below := float(time)) > time:  # a large integer may have been rounded up
            below = nextafter(below, -inf)
        return cls(nextafter(below, -inf), idle)

    @property
    def following(self) -> float:
        """The earliest time that an item after this punctuation can have."""
        return nextafter(self.time, inf)


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """The end of the stream: no items follow. The platform forwards it when all inputs of a slet have ended.

    A port whose type includes `EndOfStream` receives it as its last item, and the slet may still emit results.
    """


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A failed item, as sent to the channel that its node declares for dead letters.

    Attributes:
        application, node: The place of the failure.
        port: The input port; an output port if its channel refused the item; empty for an iterated slet.
        item: The item; of a slet that pulls, the items pulled last, by port.
        error: The class and text of the exception.
        traceback: The traceback as Python prints it.
        at: The time, in seconds since the epoch.
    """

    application: str
    node: str
    port: str
    item: Any
    error: str
    traceback: str
    at: float


@dataclass(frozen=True)
class Reference:
    """Rows that are in a file, and are passed on by reference.

    An output of type `Annotated[Batch[Reference], schema]` sends references to rows of these columns. It can be
    connected to every port that takes the columns: the platform reads the files for it. A port whose items are
    references, and a slet that `takes_references`, receive them as they are.

    Attributes:
        path: The URI of a Parquet file that is complete, and is not changed any more.
        rows: The number of its rows.
    """

    path: str
    rows: int

    def read(self) -> Any:
        """Return the rows as a `pyarrow.Table`."""
        from exop.model.values.columns import read_file  # imported lazily: few platforms read files

        return read_file(self.path)


#: The two kinds of control items, for `isinstance`.
CONTROL = (Punctuation, EndOfStream)
