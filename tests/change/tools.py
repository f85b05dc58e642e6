"""What the tests of changes share: streams that are numbered, sources under control, and what must hold at the end."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

import pytest

from exop import Application, Memento, Platform, slet
from exop.model.meshes.mesh import Mesh
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.dataflow.entry import count_items
from exop.runtime.deployment import Deployment
from exop.wiring.changes import change as changing
from exop.wiring.graph import ids
from tests.rig import PATIENCE, eventually, parked


class Position(Memento):
    """How far a source has come."""

    number: int = 0


class Sum(Memento):
    """What a stateful slet keeps."""

    count: int = 0
    total: int = 0


class Seen(Memento):
    """What a sink has written down."""

    items: list[int] = field(default_factory=list)


class Tap:
    """Lets a source yield so many numbers; the source waits, inside of its slet, for more.

    It ends when it was `shut` and has yielded what was let through.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._allowed = 0
        self._shut = False
        self.waiting = threading.Event()

    def let(self, number: int) -> None:
        """Let *number* more through."""
        with self._news:
            self._allowed += number
            self._news.notify_all()

    def shut(self) -> None:
        """Let nothing more through, ever."""
        with self._news:
            self._shut = True
            self._news.notify_all()

    def next(self, position: int) -> bool:
        """Wait until the number *position* is let through; `False` when there will be none."""
        with self._news:
            while position >= self._allowed and not self._shut:
                self.waiting.set()
                assert self._news.wait(PATIENCE), "nobody has let anything through"
            self.waiting.clear()
            return position < self._allowed

    def source(self) -> Any:
        """The source: the numbers 1, 2, 3, …"""

        @slet
        def tapped(position: Position) -> Iterator[int]:
            while self.next(position.number):
                position.number += 1
                yield position.number

        return tapped


@slet
def count_to(position: Position, *, to: int = 1000, step: int = 1) -> Iterator[int]:
    """Emit 1, 2, 3, … up to *to*, each times *step*."""
    while position.number < to:
        position.number += 1
        yield position.number * step


#: Never set: a pause that ends no earlier.
PACE = threading.Event()
#: So many items come at once: more than a queue holds.
BURST = 1500


@slet
def endless(position: Position) -> Iterator[int]:
    """Emit 1, 2, 3, …, until it is told to end: in bursts that fill queues, as fast as all behind it can, and pauses.

    Without pauses it would take the processor, all the time, from the changes and from the tests beside it.
    """
    while True:
        position.number += 1
        yield position.number
        if position.number % BURST == 0:
            PACE.wait(0.02)


@slet
def steady(position: Position) -> Iterator[int]:
    """As `endless`, with pauses: for tests that wait for a deadline."""
    while True:
        position.number += 1
        yield position.number
        if position.number % 50 == 0:
            PACE.wait(0.0005)


@slet
def plain(x: int) -> int:
    """Pass on."""
    return x


@slet
def plain_too(x: int) -> int:
    """Pass on, by other code."""
    return x


@slet
def summing(x: int, total: Sum) -> int:
    """Pass on, and add up."""
    total.count += 1
    total.total += x
    return x


@slet
def summing_too(x: int, total: Sum) -> int:
    """Pass on, and add up, by other code."""
    total.count += 1
    total.total += x
    return x


def writing(seen: list[Any]) -> Any:
    """A sink that writes down what arrives."""

    @slet
    def write(x: Any) -> None:
        seen.append(x)

    return write


def chain(name: str, *slets: Any, **channels: Any) -> Application:
    """An application of slets behind each other, called `a`, `b`, `c`, …; each takes its input by `x`."""
    app = Application(name)
    channel = None
    for letter, one in zip("abcdefghijklmnop", slets, strict=False):
        channel = app.add(letter, one, **({"x": channel} if channel is not None else {}), **channels.get(letter, {}))
    return app


def finish(platform: Platform, name: str) -> None:
    """Wait until an application has finished."""
    assert platform.wait(name, PATIENCE), f"{name} has not finished: {platform.status(name)}"


def end(platform: Platform, name: str) -> None:
    """End the sources, and wait until everything is drained."""
    platform.end(name)
    finish(platform, name)


def whole(seen: list[int], last: int | None = None) -> None:
    """Nothing was lost, doubled or reordered: the numbers are 1, 2, 3, … (up to *last*)."""
    expected = list(range(1, (last or len(seen)) + 1))
    if seen != expected:
        pairs = zip(seen, expected, strict=False)
        at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(seen), len(expected)))
        around = seen[max(0, at - 3) : at + 5]
        raise AssertionError(f"differs at {at}: … {around} …, of {len(seen)} (expected {len(expected)})")


def grows(seen: list[Any], by: int = 100) -> None:
    """Wait until *by* more items have arrived."""
    before = len(seen)
    eventually(lambda: len(seen) >= before + by, f"{by} more items behind {before}")


def suspended(platform: Platform, application: str, node: str) -> None:
    """Wait until a node is suspended on an item."""
    component = platform.deployment(application).components[node]
    eventually(lambda: component.status == "failed", f"the suspension of {node}")


def changed(platform: Platform, application: str, edit: Callable[[Mesh], Mesh]) -> Mesh:
    """Edit the running mesh, and apply it."""
    return platform.apply(edit(platform.mesh(application)))


def refused_after_bind(platform: Platform, patch: pytest.MonkeyPatch, edit: Callable[[Mesh], Mesh]) -> None:
    """Edit the running mesh, and apply it; the change fails behind the bind, and is undone."""

    def fail(name: str) -> None:
        if name == "rebind-after":
            raise RuntimeError("refused behind the bind")

    with patch.context() as within:
        within.setattr(changing, "failpoint", fail)
        with pytest.raises(RuntimeError, match="behind the bind"):
            changed(platform, "app", edit)


@contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator["Future[Any]"]:
    """Do something in another thread while the block runs; what it raises is raised at the end of the block."""
    with ThreadPoolExecutor(1, thread_name_prefix="applier") as pool:
        future = pool.submit(work)
        yield future
        future.result(PATIENCE)


@contextmanager
def stream(platform: Platform, *slets: Any, kind: str = "direct") -> Iterator[list[Any]]:
    """Run `endless`, these slets and a sink as `app`; after the block nothing is lost, doubled or reordered."""
    seen: list[Any] = []
    mesh = chain("app", endless, *slets, writing(seen)).build()
    platform.apply(mesh.edited(channels={name: replace(one, kind=kind) for name, one in mesh.channels.items()}))
    yield seen
    grows(seen)
    end(platform, "app")
    whole(seen)


@contextmanager
def tapped(
    platform: Platform, *slets: Any, edit: Callable[[Mesh], Mesh] = lambda mesh: mesh
) -> Iterator[tuple[Tap, list[Any]]]:
    """Run a tap, these slets and a sink as `app`, until the block has ended and all items have arrived."""
    tap, seen = Tap(), list[Any]()
    platform.apply(edit(chain("app", tap.source(), *slets, writing(seen)).build()))
    try:
        yield tap, seen
    finally:
        tap.shut()
    finish(platform, "app")


class Books:
    """The balance of every connection through a direct channel or a queue, from one look to the next.

    All that the producers of a channel have put out was received by each of its consumers, waits, is in flight, or was
    dropped. A connection that was there when the application began is even; one that a change has made stays as it was
    at the first look, also across further changes.
    """

    def __init__(self, known: dict[tuple[str, ...], int] | None = None) -> None:
        self._known = known

    def check(self, deployment: Deployment) -> list[str]:
        """Look at all connections; returns those that are out of balance since the look before."""
        with parked(deployment):
            now = dict(balances(deployment))
        before, self._known = self._known, now
        return [
            f"{' '.join(place)}: {off} items more were put out than there are"
            for place, off in now.items()
            if off != (0 if before is None else before.get(place, off))
        ]


def balances(deployment: Deployment) -> Iterator[tuple[tuple[str, ...], int]]:
    """By channel, producers and consumer: the items put out, less those that can be accounted for."""
    mesh, inserted = deployment.mesh, deployment.inserted
    counts = {name: one.metrics.counts() for name, one in deployment.components.items()}
    for name, spec in mesh.channels.items():
        if spec.kind not in ("direct", "queue"):
            continue
        producers = [(node.name, port) for node, port in mesh.producers(name)]
        out = sum(counts[node].get(("out", port), 0) for node, port in producers)
        places = {f"{node}.{port}" for node, port in producers}
        shares: dict[str, list[tuple[str, str]]] = {}  # the members of a group are one consumer
        for node, port in mesh.consumers(name):
            group = f"group {node.group}.{port}" if node.group and "by" in spec.settings else f"{node.name}.{port}"
            shares.setdefault(group, []).append((node.name, port))
        for ports in shares.values():
            inside = {f"{node}.{port}" for node, port in ports}
            queues = [deployment.channels[name], inserted.get(ids.input_queue(name))]
            # Also what has come from a channel to which the port was connected before.
            queues += [one for way, one in inserted.items() if way.rpartition(" -> ")[2] in inside]
            for node, port in ports:
                pulled = deployment.components[node].pulled.get(port)
                queues += pulled.earlier if pulled is not None else []
            # One that an earlier change has inserted, and that its port still empties, is there twice.
            found = {id(queue): queue for queue in queues if isinstance(queue, QueueChannel)}
            held = sum(map(waiting, found.values()))
            flying = sum(
                count_items(work.method, work.payload)
                for _, work in deployment.inlets.waiting()
                if ids.channel_of_endpoint(work.entry.endpoint) == name
                or ids.port_of_endpoint(work.entry.endpoint) in {*inside, *places}
            )
            taken = sum(counts[node].get(("in", port), 0) for node, port in ports)
            yield (name, *sorted(places), *sorted(inside)), out - taken - held - flying


def waiting(queue: QueueChannel) -> int:
    """The items that wait in a queue, and those that it has dropped."""
    return int(queue.metrics()["items"]) - queue.taken
