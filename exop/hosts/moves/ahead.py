"""Bytes that go directly from one host to another during a change: states, and parts of them ahead of the cut.

A record batch or table never changes, so that those of a state are copied while the stream runs. The dicts in the
fields of a memento are copied piece by piece, between items, and again as long as that makes the rest much smaller. In
the cut, the state contains only the numbers of what was copied, and what has come since.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from exop.errors import CallTimeout, ExopError, PlanError
from exop.logs import logger
from exop.model.slets.memento import Memento
from exop.model.slets.stored_memento import declared_by
from exop.model.values.classes import Declared
from exop.model.values.encoding import Part, decode, encode, fields_of
from exop.model.values.pieces import LARGE, Pieces, dicts_of, large_parts
from exop.runtime.log import copying
from exop.runtime.supervision.interpreter import yield_gil
from exop.stacks import uncollected

if TYPE_CHECKING:
    from pathlib import Path

    from exop.remoting.peers.link import PeerLink
    from exop.runtime.log.disk import DiskLog

#: The number of byte strings of one plan.
_PER_PLAN: Final = 1 << 20
#: Seconds for which the copy stops a slet at a time, and the number of times that it goes through a state.
_STEP, _ROUNDS = 0.002, 4
#: Seconds after which a copy is given up, and for which it rests at most after it has worked.
_LONGEST, _REST = 30.0, 0.01
#: The byte string that ends the copy of a state: no parts follow.
_END: Final = encode([])

#: Returns the links to peers, by name.
Links: TypeAlias = "Callable[[], Mapping[str, PeerLink]]"
#: Runs an action between two items of a slet.
Between: TypeAlias = Callable[[Callable[[], None]], None]


class Sent:
    """The parts of the state of a slet that another host has already.

    Attributes:
        size: The bytes of all parts so far.
        waiting: Those that are still to be sent: the number of each, and the part as bytes.
    """

    def __init__(self) -> None:
        self.size = 0
        self.waiting: list[Any] = []
        self._numbers = count()
        self._columns: dict[int, Part] = {}
        self._kept: list[Any] = []  # so that no other object gets the `id` of a part
        self._pieces: dict[str, Pieces] = {}

    def columns(self, state: Memento) -> Iterator[None]:
        """Add its large record batches and tables; yields after each."""
        for one in large_parts(state):
            if id(one) not in self._columns:
                self._kept.append(one)
                self._columns[id(one)] = Part((self._add(encode(one)),))
                yield

    def scan(self, state: Memento) -> Iterator[None]:
        """Add what has changed in its dicts; yields after each piece. Between two items, each time."""
        for name, content in dicts_of(state).items():
            if name not in self._pieces:
                self._pieces[name] = Pieces(partial(encode, parts=self._columns), self._add)
            yield from self._pieces[name].scan(content)

    def parts(self, state: Memento) -> dict[int, Part]:
        """Return the parts that represent the state after a scan, for `encode`."""
        return self._columns | {id(one): self._pieces[name].part(one) for name, one in dicts_of(state).items()}

    def _add(self, data: bytes) -> int:
        number = next(self._numbers)
        self.size += len(data)
        self.waiting += number, data
        return number


class Ahead:
    """The byte strings of one plan between this host and others.

    Attributes:
        seconds: The time for which this host waits for a byte string of the cut.
        inside: The bytes in the present message that did not go beside it; a plan hands over in one.
        over: Set when the plan is aborted: this host waits for nothing more that is sent ahead.
        sent: What other hosts have of the states that move to them, by node.
        parts: The parts of states that came here, by node and number.
    """

    def __init__(self, plan: str, links: Links, seconds: float, over: threading.Event | None = None) -> None:
        first = int(plan[:8], 16) * _PER_PLAN
        self._numbers = range(first, first + _PER_PLAN)
        self._sent, self._taken = (defaultdict[str, Iterator[int]](lambda: count(first)) for _ in range(2))
        self.inside = 0
        self.links = links
        self.seconds = seconds
        self.over = over or threading.Event()
        self._lost: set[str] = set()
        self.sent: dict[str, Sent] = {}
        self.parts: defaultdict[str, dict[int, Any]] = defaultdict(dict)

    def copy(self, host: str, node: str, state: Memento | None, between: Between) -> None:
        """Send the large parts of a state to a host, which calls `await_parts` for the same nodes in the same order."""
        if (link := self.links().get(host)) is None:
            return
        try:
            try:
                if state is not None and self._copied(host, sent := Sent(), state, between):
                    self.sent[node] = sent
            finally:
                link.send_bytes(next(self._sent[host]), _END)
        except ExopError as problem:
            self.sent.pop(node, None)
            logger("exop.hosts").warning("a state is not copied ahead", host=host, node=node, problem=str(problem))

    def _copied(self, host: str, sent: Sent, state: Memento, between: Between) -> bool:
        """Go through a state until little has changed, or the changes do not become fewer; returns whether it was sent.

        Raises:
            PlanError: it takes too long.
        """
        begun, last = time.monotonic(), math.inf
        for _ in range(_ROUNDS):
            before, worked = sent.size, time.monotonic()
            for _ in _steps(sent, state, between):
                if (now := time.monotonic()) > begun + _LONGEST:
                    raise PlanError(f"the copy takes longer than {_LONGEST:g} s")
                if sum(map(len, sent.waiting[1::2])) >= LARGE:
                    self._flush(host, sent)
                    # Threads that pass the interpreter's lock to each other so often would keep it from the streams,
                    # here and at the other host, for hundreds of milliseconds.
                    time.sleep(min(now - worked, _REST))
                    worked = time.monotonic()
            if sent.size < LARGE:
                return False
            self._flush(host, sent)
            if (size := sent.size - before) < LARGE or 2 * size > last:
                break
            last = size
        return True

    def _flush(self, host: str, sent: Sent) -> None:
        if sent.waiting:
            self.links()[host].send_bytes(next(self._sent[host]), encode(sent.waiting))
            sent.waiting.clear()

    def rest(self, node: str, state: Memento | None) -> tuple[bytes, dict[int, Part]]:
        """Return what has changed of a state since the copy, for `add`, and the parts that represent it; in the cut."""
        if (sent := self.sent.get(node)) is None or state is None:
            return b"", {}
        deque(sent.scan(state), 0)
        return encode(sent.waiting), sent.parts(state)

    def await_parts(self, host: str, node: str, kind: type[Memento] | None) -> None:
        """Take the parts of the state of a node, a memento of class *kind*, that a host has sent ahead."""
        if (link := self.links().get(host)) is None or host in self._lost:
            return
        try:
            while (data := self._take(link, next(self._taken[host]))) != _END:
                self.add(node, kind, data)
        except ExopError as problem:
            self._lost.add(host)  # what comes yet might be taken for the parts of another node
            if not self.over.is_set():
                logger("exop.hosts").warning("a state has not come ahead", host=host, node=node, problem=str(problem))

    def _take(self, link: PeerLink, number: int, least: float = 0.0) -> bytes:
        """Wait for a byte string of the plan in progress, as long as more of it comes: it may be large, or be lost."""
        patience, come = max(self.seconds, _LONGEST, least), 0
        until = time.monotonic() + patience
        while True:
            try:
                return bytes(link.take_bytes(number, 0.1))  # then it looks whether the plan is still in progress
            except CallTimeout:
                there = link.receiving(number)
                if self.over.is_set() or (there == come and time.monotonic() >= until):
                    raise
                if there != come:
                    come, until = there, time.monotonic() + patience

    def copy_log(self, host: str, logs: Mapping[str, DiskLog]) -> None:
        """Send the files of logs to a host, which calls `await_log`; each part goes when the one before is written."""
        link = self.links()[host]
        for log in logs.values():
            log.copied.clear()
        for place, log in [*logs.items()] * _ROUNDS:  # what comes meanwhile is less and less
            for part in log.parts(place):
                link.send_bytes(next(self._sent[host]), encode(part))
                self._take(link, next(self._taken[host]), math.inf)
        link.send_bytes(next(self._sent[host]), _END)

    def await_log(self, host: str, folder: Path | None) -> None:
        """Write the files of logs that a host sends ahead."""
        link = self.links()[host]
        while (data := self._take(link, next(self._taken[host]), math.inf)) != _END:
            copying.write(folder, [decode(data, declared=Declared())])
            link.send_bytes(next(self._sent[host]), _END)

    def add(self, node: str, kind: type[Memento] | None, data: bytes) -> None:
        """Keep parts of the state of a node."""
        if not data or kind is None:
            return
        declared, found = declared_by(kind), self.parts[node]
        with uncollected():  # all of it is kept
            entries = iter(decode(data, declared=Declared()))
            for number, part in zip(entries, entries, strict=True):
                found[number] = decode(part, declared=declared, parts=found)

    def send(self, host: str, data: bytes) -> Any:
        """Send bytes for the cut of another host; return what represents them in a message, whose length is bounded."""
        link = self.links().get(host) if self.inside + len(data) >= LARGE else None
        if link is None or not data:
            self.inside += len(data)
            return data
        number = next(self._sent[host])
        link.send_bytes(number, data)
        return number

    def receive(self, host: str, found: Any) -> bytes:
        """Return the bytes that `send` of a host represents by *found*."""
        return bytes(self.links()[host].take_bytes(found, self.seconds)) if isinstance(found, int) else found

    def expect(self) -> None:
        """Accept what hosts send for the plan, until `close`: they need no role here, as for their votes."""
        for link in [*self.links().values()]:
            link.expect_bytes(self._numbers)

    def close(self) -> None:
        """Drop what has come and was not taken, since the plan is over."""
        for link in [*self.links().values()]:
            link.drop_bytes(self._numbers)


def _steps(sent: Sent, state: Memento, between: Between) -> Iterator[None]:
    """Go through a state once, dicts in steps between items: brief ones, unless the slet takes long for an item."""
    yield from sent.columns(state)
    scan, over = sent.scan(state), not dicts_of(state)

    def step() -> None:
        nonlocal over
        now = time.perf_counter()
        end = now + max(_STEP, (now - asked) / 4)
        over = all(time.perf_counter() < end for _ in scan)

    while not over:
        asked = time.perf_counter()
        between(step)
        yield


def free(state: Memento) -> None:
    """Empty a memento that is no longer used, bit by bit.

    The last plan refers to it until the next one, and objects of the platform do so in cycles, which a collection of
    garbage would free in one go: that stops all streams of the process if the state is large.
    """
    contents = fields_of(state).values()
    parts = [one for content in contents if isinstance(content, dict) for one in content.values()]
    parts += [one for content in contents if isinstance(content, (list, deque)) for one in content]
    del contents
    vars(state).clear()
    while parts:
        del parts[-500:]
        yield_gil()
