"""The data connection to a peer, as the two halves of a remote connector see it (paper §4.3).

An *outbox* on the sending platform stores numbered events until they are acknowledged; an *inbox* on the receiving
platform delivers them. Between them is a `Wire`, which may lose its connection at any time: after a reconnect, the
inbox reports the number of the next event that it needs, and the outbox sends again from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol, TypeAlias

if TYPE_CHECKING:
    from exop.runtime.channels.inbox import Inbox
    from exop.runtime.channels.outbox import Outbox

Buffer: TypeAlias = bytes | bytearray | memoryview
#: The forms of the body of a frame.
ITEMS, LIST, COLUMNS, CONTROL = range(4)
#: Items and bytes of a list, or of several single items in a frame, and rows of a record batch. An outbox sends more in
#: several frames, and an inbox refuses a frame with more by its header.
MOST_ITEMS, MOST_BYTES, MOST_ROWS = 2**16, 4 * 2**20, 2**24
#: Bytes of one event. With as many in memory, the pushers of an outbox wait; with twice as many, an inbox refuses more.
MOST_OF_EVENT: Final = 256 * 2**20


class Frame(NamedTuple):
    """Consecutive events of one connector.

    Attributes:
        first: The number of the first event; items and control items are numbered together, from 0.
        events: How many they are.
        form: `ITEMS` (single items), `LIST` (one list pushed as a whole), `COLUMNS` (one record batch) or `CONTROL`.
        body: The encoded events: several buffers when it is sent, one when it is received.
    """

    first: int
    events: int
    form: int
    body: Sequence[Buffer]


@dataclass(frozen=True)
class Undecoded:
    """Events that an inbox cannot decode, as they came: a batch, which each port decodes for itself, or refuses.

    Attributes:
        form: The form of the body: `LIST` (also of a single item), `COLUMNS` or `CONTROL`.
        num_rows: The number of events.
    """

    form: int
    num_rows: int
    body: bytes

    def slice(self, _: int, length: int) -> Undecoded:
        """Return the last events, with the same body."""
        return replace(self, num_rows=length)

    def to_pylist(self) -> NoReturn:
        """Refuse to become single items: called where a channel, and no port, would take them."""
        raise ValueError("these events of a peer could not be decoded where they came in")


def check_bounds(events: int, form: int, size: int) -> None:
    """Raise `ValueError` for a frame that is larger than any that an outbox sends."""
    most = MOST_ROWS if form == COLUMNS else 1 if form == CONTROL else MOST_ITEMS
    largest = 64 if form == CONTROL else MOST_OF_EVENT if form == COLUMNS or events == 1 else 2 * MOST_BYTES
    if events > most or size > largest:
        raise ValueError(f"a frame of {events} events and {size} bytes; the bounds are {most} and {largest}")


class Event(NamedTuple):
    """One push into an outbox, encoded for frames.

    Attributes:
        events: The number of items; 1 for a control item.
        form: The form of the frame.
        head: The beginning of the body; single items with the same head are put into one frame.
        data: The encoded items; a record batch itself.
        at: The time of the push.
    """

    events: int
    form: int
    head: bytes
    data: Any
    at: float

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.data) if isinstance(self.data, bytes) else int(self.data.nbytes)


class Progress(NamedTuple):
    """The report of an inbox to its outbox.

    Attributes:
        incarnation: Identifies the content of the inbox; another one means that the inbox has lost its content.
        next: The number of the next event that it has not received.
        done: All events before this number are acknowledged, at the level of the connector.
        credit: The number of the first event that it does not accept yet.
    """

    incarnation: str
    next: int
    done: int
    credit: int


class Wire(Protocol):
    """The data connection to one peer. It remains when the connection is lost, and reconnects by itself.

    Each attached outbox and inbox has a key, and an epoch: a frame or report of another epoch is refused. The methods
    can be called from any thread. Both attaching methods return the function that detaches.

    The wire calls `Outbox.frames` and `Inbox.progress` in its sender thread (`frames` also in the thread that calls
    `send_now`), `Inbox.settle` in the one that closes it, and their other methods in the receiver thread of the peer.

    Attributes:
        reason: Why there is no connection; empty while there is one.
    """

    reason: str

    def send_from(self, key: str, epoch: int, sender: Outbox) -> Callable[[], None]:
        """Attach an outbox; it is resumed as soon as the inbox of the same key and epoch is attached at the peer."""

    def receive_into(self, key: str, epoch: int, receiver: Inbox) -> Callable[[], None]:
        """Attach an inbox."""

    def wake(self, key: str, *, later: bool = False) -> None:
        """Let the sender thread ask the outbox for frames, or the inbox for its progress; with *later*, in 5 ms."""

    def send_now(self, key: str) -> None:
        """Send frames of the outbox in the calling thread, which holds no lock of the outbox; if that would make the
        thread wait, the sender thread sends them.
        """


#: The wires of a platform, by the name of the peer; those of one that listens contain every name: it may dial later.
Wires: TypeAlias = Mapping[str, Wire]
