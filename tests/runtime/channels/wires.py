"""A data connection between two platforms within a test: moved by hand, or by a thread, and broken as a test wants."""

import threading
from collections.abc import Callable

from exop.runtime.channels.frame_body import BodyReader, body_of
from exop.runtime.channels.inbox import Inbox
from exop.runtime.channels.outbox import Outbox
from exop.runtime.channels.wire import Frame
from exop.runtime.dataflow.batches import cut


class End:
    """The wire of one of two platforms, as its channels see it."""

    def __init__(self, pair: "PairedWires", peer: str) -> None:
        self._pair, self.peer = pair, peer
        self.senders: dict[str, tuple[int, Outbox]] = {}
        self.receivers: dict[str, tuple[int, Inbox]] = {}
        self.resumed: set[str] = set()

    @property
    def connected(self) -> bool:
        """Whether the connection holds."""
        return self._pair.connected

    @property
    def reason(self) -> str:
        """Why there is no connection."""
        return "" if self.connected else "the connection is cut"

    def send_from(self, key: str, epoch: int, sender: Outbox) -> Callable[[], None]:
        """Attach an outbox."""
        self.senders[key] = epoch, sender
        self.resumed.discard(key)
        self._pair.moved.set()
        return lambda: self._detach(self.senders, key)

    def receive_into(self, key: str, epoch: int, receiver: Inbox) -> Callable[[], None]:
        """Attach an inbox."""
        self.receivers[key] = epoch, receiver
        self._pair.other(self).resumed.discard(key)
        self._pair.moved.set()
        return lambda: self._detach(self.receivers, key)

    def _detach(self, there: dict, key: str) -> None:
        there.pop(key, None)
        self.resumed.discard(key)
        self._pair.other(self).resumed.discard(key)

    def wake(self, key: str, *, later: bool = False) -> None:
        """Let something move."""
        self._pair.woken.append(key)
        self._pair.moved.set()

    def send_now(self, key: str) -> None:
        """Let something move; the events that are sent in the calling thread are counted."""
        self._pair.sent_now.append(key)
        self.wake(key)


class PairedWires:
    """Both ends of one connection, between the platforms `a` and `b`.

    Attributes:
        frames: The frames that were delivered.
        woken: The keys of the wakes so far.
        sent_now: The keys of the wakes by which the calling thread sends itself.
        size: The size of the frames that are asked for.
    """

    def __init__(self, size: int = 1 << 16) -> None:
        self.connected, self.size = True, size
        self.a, self.b = End(self, "b"), End(self, "a")
        self.frames: list[Frame] = []
        self.woken: list[str] = []
        self.sent_now: list[str] = []
        self.moved = threading.Event()
        self.failures: list[ValueError] = []
        self._stops = False
        self._mover = threading.Thread(target=self._move, daemon=True)

    def other(self, end: End) -> End:
        """The other end."""
        return self.b if end is self.a else self.a

    def lose(self, reason: str = "cut") -> None:
        """Lose the connection."""
        self.connected = False
        for end in (self.a, self.b):
            end.resumed.clear()
            for _, half in (*end.senders.values(), *end.receivers.values()):
                half.disconnected(reason)

    def heal(self) -> None:
        """Connect again."""
        self.connected = True
        self.moved.set()

    def pump(self, rounds: int = 1000) -> None:
        """Move everything that can move at present, in this thread."""
        for _ in range(rounds):
            if not (self.connected and (self._step(self.a, self.b) | self._step(self.b, self.a))):
                return

    def _step(self, here: End, there: End) -> bool:
        moved = False
        for key, (epoch, sender) in list(here.senders.items()):
            found = there.receivers.get(key)
            if found is None:
                continue
            if found[0] != epoch:
                sender.disconnected("another epoch")
                continue
            receiver = found[1]
            if key not in here.resumed:
                here.resumed.add(key)
                sender.resumed(receiver.progress())
            sender.acknowledged(receiver.progress())
            for frame in sender.frames(self.size):
                moved = True
                frame = frame._replace(body=[b"".join(bytes(part) for part in frame.body)])
                self.frames.append(frame)
                try:
                    receiver.received(frame)
                except ValueError as problem:
                    self.failures.append(problem)
                    self.lose(str(problem))
                    return False
            sender.acknowledged(receiver.progress())
        return moved

    def _move(self) -> None:
        while not self._stops:
            self.moved.wait()
            self.moved.clear()
            self.pump()

    def __enter__(self) -> "PairedWires":
        """Move by a thread from now on."""
        self._mover.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stops = True
        self.moved.set()
        self._mover.join()


def outbox(wires: PairedWires, **settings) -> Outbox:
    """An outbox on `a`, which sends to `b`."""
    made = Outbox("c.to.b", **{"peer": "b", "key": "app/c/a>b", **settings})
    made.wires = {"b": wires.a}
    made.open()
    made.attach()
    return made


def inbox(wires: PairedWires, **settings) -> Inbox:
    """An inbox on `b`, filled from `a`."""
    made = Inbox("c.from.a", **{"peer": "a", "key": "app/c/a>b", **settings})
    made.wires = {"a": wires.b}
    made.open()
    made.attach()
    return made


def payloads(sender: Outbox, done: int | None = None) -> list[tuple[str, object]]:
    """The payloads that an outbox stores, from a number on, each with the method of its entry."""
    first, events = sender.stored()
    found: list[tuple[str, object]] = []
    for event in events:
        skipped = 0 if done is None else min(max(0, done - first), event.events)
        first += event.events
        if skipped < event.events:
            ((method, payload),) = BodyReader(None).read(Frame(0, event.events, event.form, body_of([event])))
            found.append((method, cut(payload, skipped, event.events) if skipped else payload))
    return found
