"""Going back to the safe point with an item in hand: what was still to do is gathered on the way up.

A slet that raises, or is suspended, must not hold its driver inside the calls that led to it: nothing of what these
calls had still to do could be seen, moved or redirected. So `Unwind` runs up through the compiled frames, each of which
adds what it had left (zero cost until it happens); at its safe point the driver has all of it as a list, and pushes it
again when the slet is resumed, by whatever way there is then into the same places (`node.port`, a channel).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from exop.runtime.convert import weight

if TYPE_CHECKING:
    from exop.runtime.entry import Entry

#: Which of the callables of an entry takes the payload.
Way = Literal["push", "push_batch", "control", "show", "pass_on"]


@dataclass(frozen=True, slots=True)
class Wait:
    """What has to come about before something can be done: in words, as a test, and for how many seconds at most."""

    where: str
    ready: Callable[[], bool]
    patience: float | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """One call that is still to be made: hand *payload* to *entry*, or to what stands at its place by now.

    Attributes:
        wait: What has to come about before.
        stamp: Its position among the work of its driver.
    """

    entry: Entry
    way: Way
    payload: Any
    wait: Wait | None = None
    stamp: int = 0

    def do(self, current: Mapping[str, Entry]) -> None:
        """Do it; *current* is what is compiled at each place."""
        getattr(current.get(self.entry.place, self.entry), self.way)(self.payload)

    def give_back(self, current: Mapping[str, Entry]) -> None:
        """It was begun, and will be done once more, for which it is counted once more."""
        tally = current.get(self.entry.place, self.entry).tally
        if tally is not None:
            tally.give_back(items_of(self.way, self.payload))


def items_of(way: Way, payload: Any) -> int:
    """How many items a payload is; control items are none."""
    return 1 if way == "push" else weight(payload) if way == "push_batch" else 0


@dataclass(frozen=True, slots=True)
class Call(Work):
    """A call that brings no item: made by the driver that runs the place of *entry*, in its turn."""

    call: Callable[[], object] = bool

    def do(self, current: Mapping[str, Entry]) -> None:
        """Make it."""
        self.call()


class Unwind(BaseException):
    """Takes a driver back to its safe point. Not an `Exception`: it passes through compiled frames, never a slet.

    Args:
        where: What the driver waits for, in words.
        ready: Tells whether it may go on.
        first: What is to be done then; what follows is added on the way up.
        patience: After so many seconds it goes on in any case.

    Attributes:
        work: All that is to be done, in order.
    """

    def __init__(self, where: str, ready: Callable[[], bool], first: Work, *, patience: float | None = None) -> None:
        super().__init__(where)
        self.work = [replace(first, wait=Wait(where, ready, patience))]

    def then(self, entry: Entry, way: Way, payloads: Iterable[Any]) -> None:
        """Add what the frame that is being left had still to do."""
        self.work.extend(Work(entry, way, payload) for payload in payloads)
