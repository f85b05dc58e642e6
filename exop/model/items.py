"""Items, batches of items, and the control items that travel in band with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nextafter
from typing import Any, TypeVar

T = TypeVar("T")


class Batch(list[T]):
    """Several items at once.

    A slet whose output is typed `Batch[T]` passes all of them on by one call; an input port typed `Batch[T]` receives
    them as one list. The port's item type is `T` either way, so both connect to slets that take single items.
    """

    __slots__ = ()


class Window(list[T]):
    """The items that one port has in its window; a slet of a semantic window evicts them itself."""

    def evict(self, number: int) -> None:
        """Let go of the oldest *number* items."""
        del self[:number]


@dataclass(frozen=True, slots=True)
class Punctuation:
    """The stream is complete up to and including `time` (a watermark): nothing older follows.

    `time` is in the stream's own unit. A port whose type names `Punctuation` receives it as an item and its slet
    decides what leaves; past every other slet it is forwarded by the platform, as the minimum over its inputs.
    Where streams meet, one that has sent no later punctuation for `idle` seconds is not waited for any longer.
    """

    time: float
    idle: float | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        try:
            if self.time >= -inf:
                return
        except TypeError:
            pass
        raise ValueError(f"the time of a Punctuation is {self.time!r}, and no number; of a datetime give timestamp()")

    @classmethod
    def before(cls, time: float, idle: float | None = None) -> Punctuation:
        """Return the punctuation of a stream of which nothing older than *time* follows."""
        below = float(time)  # a large integer may have been rounded up
        if below > time:
            below = nextafter(below, -inf)
        return cls(nextafter(below, -inf), idle)

    @property
    def following(self) -> float:
        """The earliest time that may follow."""
        return nextafter(self.time, inf)


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """Nothing follows. Forwarded by the platform once every input of a slet has ended.

    A port whose type names it receives it too, as its last item, and may still emit results.
    """


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A failed item on its way into the channel that its node names for dead letters.

    Attributes:
        application, node: The place of the failure.
        port: The input port; an output port if the channel behind it has refused the item; empty for a slet that is
            iterated.
        item: The item; of a slet that pulls, the items that it had pulled last, by port.
        error: The class and text of the exception.
        traceback: As Python prints it.
        at: When, in seconds since the epoch.
    """

    application: str
    node: str
    port: str
    item: Any
    error: str
    traceback: str
    at: float


#: The two kinds of control items, for `isinstance`.
CONTROL = (Punctuation, EndOfStream)
