"""`reader`: the content of a channel on another host, read by calls (paper §4.3), and the side that answers the calls.

The methods are derived by reflection: the public methods and properties that the kind of the channel adds to those of
every channel, and `query`. Arguments and results cross as plain data and declared classes, never as references.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

from exop import errors
from exop.errors import ExopError, MeshError, UnknownName
from exop.model.meshes.conditional_updates import ITEM
from exop.model.meshes.nodes import INBOX, OUTBOX, READER
from exop.model.slets.ports import WINDOW, PortType
from exop.model.values.classes import Declared
from exop.model.values.depth import DEPTH
from exop.runtime.channels.base import Channel, DirectChannel, PullMode
from exop.runtime.channels.log import LogChannel
from exop.runtime.channels.queue import Buffered, QueueChannel
from exop.runtime.dataflow.entry import Entry
from exop.runtime.drivers.base import current_driver
from exop.runtime.supervision.budget import current_call
from exop.safe_repr import RAISED, error_text

#: The methods that every channel answers besides those of its kind.
QUERY, PUSH = "query", "push"
#: Seconds between two attempts to read from a peer that cannot be reached.
PAUSE: Final = 0.1
#: What a read meets while the peer is away, starts again and opens its fragment, or does not know whether to begin it.
_AWAY: Final = (errors.PeerUnreachable, errors.PlatformBusy, errors.PlanError, UnknownName)


@lru_cache(maxsize=64)
def interface(kind: type[Channel]) -> Mapping[str, bool]:
    """Return the methods of a kind that peers can call, each with whether it is a property.

    >>> sorted(interface(LogChannel))
    ['began', 'end', 'events', 'pieces', 'position', 'query', 'replay', 'settled', 'start', 'trim']
    """
    if kind.kind in (OUTBOX, INBOX, READER):
        return {}  # their methods are those of the wire
    own = [name for name in dir(kind) if not (name.startswith("_") or hasattr(QueueChannel, name))]
    found = {name: isinstance(inspect.getattr_static(kind, name), property) for name in own}
    methods = {name: is_property for name, is_property in found.items() if is_property or callable(getattr(kind, name))}
    return {**methods, QUERY: False, **({PUSH: False} if issubclass(kind, Buffered) else {})}


def changes_content(kind: type[Channel], method: str) -> bool:
    """Whether a method may change the content of a channel, so that a caller has to be permitted to write."""
    return method != QUERY and method not in kind.reading and not interface(kind).get(method)


def answer(
    channel: Channel, into: Callable[[], Entry], types: Iterable[PortType], method: str, arguments: bytes
) -> bytes:
    """Call a method of a channel for a peer; return the result as bytes.

    Args:
        channel: The channel.
        into: Returns the entry into the channel, or raises `PlanError` while a change removes the channel.
        types: The types of the ports at the channel, which declare the classes of arguments.
        method: The name of a method in the `interface` of the kind.
        arguments: The positional and the named arguments, encoded by `RemoteChannel`.

    Raises:
        UnknownName: the kind has no such method.
        StoredStateError: an argument is of a class that is not declared.
        NotStorable: a part of the result has no form as bytes.
        MeshError: the arguments do not fit, or the method has raised an error.
    """
    place = f"the {channel.kind} channel {channel.name!r}"
    if method not in (known := interface(type(channel))):
        raise UnknownName(place=place, kind="method", name=method, known=known)
    given, named = _read(arguments, Declared(*(one.items for one in types)))
    try:
        if known[method]:
            return _written(getattr(channel, method))
        if method == PUSH:
            (items,) = given
            if isinstance(channel, Buffered) and channel.depth and channel.depth + len(items) > channel.capacity:
                raise errors.ChannelFull(channel=channel.name, capacity=channel.capacity)
            into().push_batch(items)
            return _written(None)
        return _written(_query(channel, *given) if method == QUERY else getattr(channel, method)(*given, **named))
    except ExopError:
        raise
    except RAISED as problem:
        raise MeshError(f"{place}: {method} has failed: {error_text(problem)}") from problem


def _query(channel: Channel, predicate: str, most: int | None = None) -> list[Any]:
    """Return the items of the content for which a condition holds, as in a conditional update."""
    # Imported lazily: only queries need it.
    from exop.model.expressions.expression import read_condition
    from exop.model.expressions.reader import Names

    names = Names(f"the channel {channel.name!r}", {ITEM: PortType()})
    holds = read_condition(predicate, names).item_function()
    content = channel.replay(channel.start) if isinstance(channel, LogChannel) else channel.read("")
    return [item for item in content if holds(item)][:most]


def _written(value: Any) -> bytes:
    from exop.model.values.encoding import encode

    return encode(value, levels=DEPTH + 2)


def _read(data: bytes, declared: Declared) -> Any:
    from exop.model.values.encoding import decode

    return decode(data, levels=DEPTH + 2, declared=declared)


class RemoteChannel:
    """A channel of a platform that is used from another process, by the methods of its kind and `query`.

    `query(predicate, most)` returns the items of the content for which a condition such as `item.speed > 3` holds. A
    queue takes items by `push(items)`; the items of a log come by `pull(most)`, from its start on.

    Args:
        call: Calls a method of the channel with encoded arguments, and returns the encoded result.
        item: The type of the items, which declares the classes of results.

    Attributes:
        declared: The classes that results may have.
    """

    def __init__(self, call: Callable[[str, bytes], bytes], item: Any = Any) -> None:
        self.declared = Declared(item)
        self._call = call
        self._next: int | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *given, **named: self._read(name, given, named)

    def _read(self, method: str, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return _read(self._call(method, _written([list(given), dict(named)])), self.declared)

    def pull(self, most: int = 1024) -> list[Any]:
        """Return at most *most* following items of a log; none if there are no more at present."""
        self._next = self.start() if self._next is None else self._next
        found: list[Any] = self.replay(self._next, min(self._next + most, self.end()))
        self._next += len(found)
        return found

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of a log that are there."""
        while found := self.pull():
            yield from found


class Reader(DirectChannel):
    """Reads the content of `channel` at `peer`, of the kind `reads`, by its public methods; nothing is pushed into it.

    A read waits for a peer that cannot be reached, as long as that takes: the slet gets no further items, and goes on
    when the peer answers. With `cache`, a read returns the last result of the same call, also while the peer is away,
    and the result is refreshed in the background.
    """

    kind: ClassVar[str] = "reader"
    pull_mode: ClassVar[PullMode] = "read"

    def __init__(self, name: str, *, peer: str, channel: str, reads: str, cache: bool = False) -> None:
        super().__init__(name)
        if reads == WINDOW:
            cure = f"place the slet on the host {peer!r}, or read a table or a latch"
            raise MeshError(f"{name}: a window belongs to its port and cannot be read from another host; {cure}")
        self.peer, self.channel, self.reads = peer, channel, reads
        self._last: OrderedDict[tuple[str, bytes], bytes] | None = OrderedDict() if cache else None
        self._due: dict[tuple[str, bytes], None] = {}
        self._wanted, self._closed = threading.Event(), threading.Event()
        self._refresher: threading.Thread | None = None
        self._lock = threading.Lock()
        self._problem = self.away = ""
        self._read_at = 0.0
        self._reads = 0
        self._remote = RemoteChannel(self._ask)

    def typed(self, types: Sequence[PortType]) -> None:
        """Permit the classes that the ports, and the channel that is read, declare."""
        self._remote.declared = Declared(*(one.items for one in (*types, self.asked.type) if one is not None))

    def read(self, port: str) -> list[Any]:
        """Return the content."""
        return [*self._remote._read("items", (), {})]

    def __getattr__(self, name: str) -> Any:
        """Return a method of the kind, or the value of a property."""
        if name.startswith("_") or "reads" not in vars(self):
            raise AttributeError(name)
        kind = self.kinds.get(self.reads)
        if name not in (known := {} if kind is None else interface(kind)):
            raise AttributeError(name)
        method = getattr(self._remote, name)
        return method() if known[name] else method

    def _ask(self, method: str, arguments: bytes) -> bytes:
        call = method, arguments
        if self._last is not None and (found := self._last.get(call)) is not None:
            self._call_later(call)
            return found
        while True:
            try:
                return self._fetched(call)
            except _AWAY as problem:
                self._await_peer(call, problem)

    def _await_peer(self, call: tuple[str, bytes], problem: Exception) -> None:
        """Wait until a call that has met *problem* is answered: in a slet, at the safe point of its driver if needed.

        Raises:
            CutShort: the driver has to park.
            ExopError: *problem*, since nothing waits any more: the channel is closed, or the call of the slet given up.
        """
        # What changes the content is called once, by the slet: until then, a query that finds nothing.
        changes = (kind := self.kinds.get(self.reads)) is None or changes_content(kind, call[0])
        if isinstance(problem, (errors.CallTimeout, errors.ConnectionLost)) and not changes:
            problem = type(problem)(**problem.facts | {"cure": "the call is repeated until it is answered"})
        self.filled, self._problem = False, str(problem)
        self.away = f"{self.channel!r} on {self.peer}: {problem}"
        self._call_later((QUERY, _written([["item is None", 0], {}])) if changes else call)
        # Imported lazily: the watchdog imports the channels.
        from exop.runtime.supervision.watchdog import current_node

        reading: list[Any] = []

        def over() -> bool:
            return not self.away or self._closed.is_set() or any(one.left for one in reading)

        if (driver := current_driver()) is not None:
            # Of those that the driver runs: it may run further slets, and those that are gone are still among them.
            run = [one for one in self.awaited.values() if driver in (one.driver, one.pusher) and not one.left]
            reading += [one for one in run if (one.application, one.node.name) == current_node()] or run
            nodes, again = [one.node.name for one in reading], all(one.can_call_again for one in reading)
            driver.wait_inside(f"{' and '.join(nodes)} waits for {self.away}", over, nodes, again=again and bool(nodes))
        while not over():
            if (around := current_call()) is not None and around.abandoned:
                raise problem
            self._closed.wait(PAUSE)
        if self._closed.is_set() or any(one.left for one in reading):
            raise problem

    def _fetched(self, call: tuple[str, bytes]) -> bytes:
        """Call the peer."""
        place = {"application": self.application, "channel": self.channel}
        found: bytes = self.call_peer(self.peer, "call_channel", **place, method=call[0], arguments=call[1])
        self._problem, self._read_at, self._reads = "", time.monotonic(), self._reads + 1
        if self._last is not None:
            with self._lock:
                self._last[call] = found
                self._last.move_to_end(call)
                while len(self._last) > 1000:  # the oldest go
                    self._last.popitem(last=False)
        self._go_on()
        return found

    def _go_on(self) -> None:
        """Let the slets that wait go on."""
        if self.away or self._closed.is_set():
            self.away, self.filled = "", True
            for component in list(self.awaited.values()):
                component.wake()

    def _call_later(self, call: tuple[str, bytes]) -> None:
        """Make a call in the background."""
        with self._lock:
            self._due[call] = None
            if self._refresher is None:
                self._refresher = threading.Thread(target=self._refresh, name=f"exop reader {self.name}", daemon=True)
                self._refresher.start()
        self._wanted.set()

    def _refresh(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait()
            self._wanted.clear()
            with self._lock:
                due, self._due = self._due, {}
            for call in due:
                try:
                    self._fetched(call)
                except RAISED as problem:
                    self._problem = str(problem)
                    if not isinstance(problem, _AWAY):  # the slet that waits for it meets it, too
                        self._go_on()
                    elif self.away and not self._closed.wait(PAUSE):
                        self._call_later(call)

    def close(self) -> None:
        """End the refreshing, and the waits."""
        self._closed.set()
        self._wanted.set()
        self._go_on()

    def metrics(self) -> dict[str, int | float | str]:
        """Return the peer, its state, the number of calls, the cached results, and the seconds since the last call."""
        age = round(time.monotonic() - self._read_at, 3) if self._read_at else 0.0
        state = f"disconnected ({self._problem})" if self._problem else "connected" if self._reads else "waiting"
        cached = 0 if self._last is None else len(self._last)
        return {"peer": self.peer, "state": state, "calls": self._reads, "cached": cached, "age_s": age}
