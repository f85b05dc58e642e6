"""Slets that number what they emit and write down what they take, so that a loss, a doubling or a swap is seen.

Every item says which output port it left, and as the how-manieth. A station that is to raise for an item does so for
the first tries, and after some of its results are made: what leaves in spite of that would leave twice.
"""

import queue
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from exop import Batch, EndOfStream, InputPort, Memento, OutputPort, Punctuation, Slet, input_port, slet

SCHEMA = pa.schema({"from": pa.string(), "seq": pa.int64(), "ttl": pa.int64()})

#: How long a thread of an engine is waited for, in seconds.
PATIENCE = 20.0
#: The kinds of stations that have the settings `twist`, which changes at once, and `step`.
STEPPED = ("optional", "many", "batches", "lots", "columns")
#: A step takes effect at the first item whose number leaves the same rest as the step, divided by this.
STRIDE = 40


class Boom(Exception):
    """The error that a station raises."""


class Count(Memento):
    """How many items have left by each output port; of a source also its position."""

    left: dict[str, int] = field(default_factory=dict)


@dataclass
class Notes:
    """The items that all stations of one mesh have seen."""

    taken: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    given: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    marks: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    inside: dict[str, int] = field(default_factory=dict)
    owners: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)


@dataclass
class Station:
    """One node: how it behaves, and where it writes down what it sees."""

    name: str
    notes: Notes
    seed: int
    policy: str = "suspend"
    rate: int = 0  # so many of a hundred items make it raise
    fails: int = 1  # so many times
    fan: int = 2  # at most so many results where any number may leave
    limit: int = 0  # of a source: its items
    tries: dict[Any, int] = field(default_factory=lambda: defaultdict(int))

    def chance(self, *what: Any) -> int:
        """A number below 100 that depends on the station and on nothing else."""
        return zlib.crc32(repr((self.seed, self.name, *what)).encode()) % 100

    def is_bad(self, port: str, item: dict[str, Any]) -> bool:
        """Tell whether this try of the item is to fail."""
        key = (port, item["from"], item["seq"])
        bad = self.chance("bad", *key) < self.rate and self.tries[key] < self.fails
        self.tries[key] += bad
        return bad

    @property
    def sees_time(self) -> bool:
        """Whether a station that may take control items does."""
        return self.chance("sees time") < 50

    def pass_mark(self, port: str, mark: Any) -> None:
        """Write down a control item that is taken for good, or that the platform passes on instead; may raise."""
        key = (port, getattr(mark, "time", "end"))
        bad = bool(self.rate) and self.chance("bad mark", *key) < 50 and self.tries[key] < self.fails
        self.tries[key] += bad
        if not bad or self.policy in ("skip", "dead-letter"):
            self.note_mark(port, mark)
        if bad:
            raise Boom(f"{self.name} does not like {mark}")

    def note_mark(self, port: str, mark: Any) -> None:
        """Write down a control item, and how many items were taken before it."""
        place = f"{self.name}.{port}"
        self.notes.marks[place].append((mark, len(self.notes.taken[place])))

    def note(self, port: str, item: dict[str, Any]) -> None:
        """Write down that an item was taken for good."""
        self.notes.taken[f"{self.name}.{port}"].append((item["from"], item["seq"]))

    def at_step(self, step: int, items: list[dict[str, Any]]) -> None:
        """Write down the step at which items come: it only rises, and at items at which it was to do so."""
        before = self.notes.steps.get(self.name, 0)
        if step < before or (step > before and items and (items[0]["seq"] - step) % STRIDE):
            self.notes.wrong.append(f"{self.name} has {items[0]} at the step {step}, behind {before}")
        self.notes.steps[self.name] = step

    def take(self, port: str, items: list[dict[str, Any]]) -> None:
        """Take items that come together; may raise."""
        self.alone()
        try:
            bad = sum(self.is_bad(port, item) for item in items) > 0
            if not bad or self.policy in ("skip", "dead-letter"):
                for item in items:
                    self.note(port, item)
            if bad:
                raise Boom(f"{self.name} does not like {items[0]}")
        finally:
            del self.notes.inside[self.name]

    def alone(self) -> None:
        """No other thread is inside of the station now."""
        me = threading.get_ident()
        if self.notes.inside.setdefault(self.name, me) != me:
            self.notes.wrong.append(f"two threads are in {self.name}")

    def give(self, count: Count, port: str, ttl: int, how_many: int = 1) -> list[dict[str, Any]]:
        """Make numbered items that leave by a port."""
        made = self.drafts(count, port, ttl, how_many)
        self.keep(count, port, how_many)
        return made

    def drafts(self, count: Count, port: str, ttl: int, how_many: int) -> list[dict[str, Any]]:
        """Make the next items, which do not count yet."""
        start = count.left.get(port, 0)
        return [{"from": f"{self.name}.{port}", "seq": start + n, "ttl": ttl} for n in range(how_many)]

    def keep(self, count: Count, port: str, how_many: int) -> None:
        """Let made items count."""
        count.left[port] = count.left.get(port, 0) + how_many
        self.notes.given[f"{self.name}.{port}"] = count.left[port]

    def number(self, item: dict[str, Any]) -> int:
        """How many results an item has."""
        return self.chance("many", item["from"], item["seq"]) % (self.fan + 1)


def one(station: Station) -> Any:
    """Exactly one result."""

    @slet
    def one(item: Any, count: Count) -> Any:
        station.take("item", [item])
        return station.give(count, "out", item["ttl"])[0]

    return one


def optional(station: Station) -> Any:
    """One result, or none."""

    @slet
    def optional(item: Any, count: Count, *, step: int = 0, twist: int = 0) -> Any | None:
        station.at_step(step, [item])
        station.take("item", [item])
        return station.give(count, "out", item["ttl"])[0] if station.number(item) else None

    return optional


def many(station: Station) -> Any:
    """Any number of results; raises behind the first one. Half of these stations see punctuations, and raise there."""

    @slet
    def many(item: Any, count: Count, *, step: int = 0, twist: int = 0) -> Iterator[Any]:
        station.at_step(step, [item])
        how_many = station.number(item)
        made = station.drafts(count, "out", item["ttl"], how_many)
        yield from made[:1]
        station.take("item", [item])
        yield from made[1:]
        station.keep(count, "out", how_many)

    @slet
    def timed(item: Any | Punctuation, count: Count, *, step: int = 0, twist: int = 0) -> Iterator[Any | Punctuation]:
        if isinstance(item, Punctuation):
            station.pass_mark("item", item)
            yield item
        else:
            yield from many(item, count, step=step)

    return timed if station.sees_time else many


def batches(station: Station) -> Any:
    """Batches in, batches out."""

    @slet
    def batches(item: Batch[Any], count: Count, *, step: int = 0, twist: int = 0) -> Iterator[Batch[Any]]:
        station.at_step(step, item[:1])
        station.take("item", [*item])
        for single in item:
            yield Batch(station.give(count, "out", single["ttl"], station.number(single)))

    return batches


def lots(station: Station) -> Any:
    """Batches of what waits in a queue."""
    made = batches(station)
    made.gathers = 100
    return made


def columns(station: Station) -> Any:
    """Columns in, columns out."""

    @slet
    def columns(item: pa.RecordBatch, count: Count, *, step: int = 0, twist: int = 0) -> pa.RecordBatch:
        rows = item.to_pylist()
        station.at_step(step, rows)
        station.take("item", rows)
        made = station.give(count, "out", min((row["ttl"] for row in rows), default=0), len(rows))
        return pa.RecordBatch.from_pylist(made, schema=SCHEMA)

    return columns


def two(station: Station) -> Any:
    """Two inputs, two outputs; one of them is pushed."""

    class Two(Slet):
        count: Count
        more: OutputPort[Any]

        @input_port
        def left(self, item: Any) -> Any:
            """One input."""
            return self.both("left", item)

        @input_port
        def right(self, item: Any) -> Any:
            """The other input."""
            return self.both("right", item)

        def both(self, port: str, item: Any) -> Any:
            """Push before it is known whether the item is good."""
            for made in station.drafts(self.count, "more", item["ttl"] - 1, 1):
                self.more.push(made)
            station.take(port, [item])
            station.keep(self.count, "more", 1)
            return station.give(self.count, "out", item["ttl"] - 1)[0]

    return Two


def engine(station: Station) -> Any:
    """Pushes from a thread of its own what it was handed."""

    class Engine(Slet, own_driver=True):
        count: Count
        out: OutputPort[Any]

        def __enter__(self) -> "Engine":
            self.handed: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self.thread = threading.Thread(target=self.work, name=f"exop test engine {station.name}")
            self.thread.start()
            return self

        def __exit__(self, *exc: object) -> None:
            self.handed.put(None)
            self.thread.join(PATIENCE)

        @input_port
        def item(self, item: Any | EndOfStream) -> None:
            """Hand over."""
            if not isinstance(item, EndOfStream):
                station.take("item", [item])
            self.handed.put(item)

        def quiesce(self) -> None:
            """Put out what was handed over."""
            done = threading.Event()
            self.handed.put(done)
            done.wait(PATIENCE)

        def answer(self, item: Any) -> None:
            """Push one result."""
            self.out.push(station.give(self.count, "out", item["ttl"])[0])

        def work(self) -> None:
            """Push, until there is no more."""
            try:
                while (item := self.handed.get()) is not None:
                    if isinstance(item, threading.Event):
                        item.set()
                    elif isinstance(item, EndOfStream):
                        self.out.end()
                    else:
                        self.answer(item)
            except BaseException as stopped:  # noqa: BLE001 (whatever it is, it is noted)
                if type(stopped).__name__ not in ("Halted", "ChannelClosed"):
                    station.notes.wrong.append(f"the engine {station.name} broke: {stopped!r}")

    return Engine


def late_engine(station: Station) -> Any:
    """Pushes any number of results from a thread of its own, a moment after it was handed an item."""

    class LateEngine(engine(station)):  # type: ignore[misc]
        def __enter__(self) -> Any:
            self.taken, self.answered, self.moment = 0, 0, threading.Event()
            return super().__enter__()

        def resting(self) -> int:
            """Return how many items it has not answered."""
            return int(self.taken - self.answered)

        @input_port
        def item(self, item: Any | EndOfStream) -> None:
            """Hand over."""
            self.taken += 1
            super().item(item)

        def answer(self, item: Any) -> None:
            """Push the results."""
            self.moment.wait(0.001)
            for made in station.give(self.count, "out", item["ttl"], station.number(item)):
                self.out.push(made)
            self.answered += 1

    return LateEngine


def fork(station: Station) -> Any:
    """Pushes something for each item by both of its ports."""

    class Fork(Slet):
        count: Count
        more: OutputPort[Any]

        @input_port
        def item(self, item: Any) -> Any:
            """Push by the one, return by the other."""
            station.take("item", [item])
            self.more.push(station.give(self.count, "more", item["ttl"])[0])
            return station.give(self.count, "out", item["ttl"])[0]

    return Fork


def picker(station: Station) -> Any:
    """Pulls so many items from the one port, then so many from the other, and in the end what is left."""
    left_first, steps = station.chance("first") < 50, station.chance("steps") % 3

    class Picker(Slet):
        count: Count
        left: InputPort[Any]
        right: InputPort[Any]

        def __iter__(self) -> Iterator[Any]:
            ports = {"left": self.left, "right": self.right}
            while ports:
                for name in sorted(ports, reverse=not left_first):
                    for _ in range((1, 3, 1 << 30)[steps]):
                        if (item := next(iter(ports[name]), None)) is None:
                            del ports[name]
                            break
                        station.note(name, item)
                        yield station.give(self.count, "out", item["ttl"])[0]

    return Picker


def puller(station: Station) -> Any:
    """Pulls its items, one result each."""

    @slet
    def puller(item: InputPort[Any], count: Count) -> Iterator[Any]:
        for one in item:
            station.note("item", one)
            yield station.give(count, "out", one["ttl"])[0]

    return puller


def looper(station: Station) -> Any:
    """Sends an item back until it has gone round often enough."""

    @slet
    def looper(item: Any, count: Count) -> Any | None:
        station.take("item", [item])
        return station.give(count, "out", item["ttl"] - 1)[0] if item["ttl"] > 0 else None

    return looper


def evicting(station: Station) -> Any:
    """Looks at a window, of which it keeps the last two items."""

    @slet
    def evicting(item: Any, count: Count) -> Any:
        window = item
        newest = window[-1]
        station.take("item", [newest])
        window.evict(max(0, len(window) - 2))
        return station.give(count, "out", newest["ttl"])[0]

    return evicting


def newest(station: Station) -> Any:
    """Looks at the last item of a window."""

    @slet
    def newest(item: Any, count: Count) -> Any:
        station.take("item", [item[-1]])
        return station.give(count, "out", item[-1]["ttl"])[0]

    return newest


def sink(station: Station) -> Any:
    """Takes everything; half of these stations also take punctuations."""

    @slet
    def sink(item: Any) -> None:
        station.take("item", [item[-1] if isinstance(item, list) else item])

    @slet
    def timed(item: Any | Punctuation) -> None:
        if isinstance(item, Punctuation):
            station.pass_mark("item", item)
        else:
            sink(item)

    return timed if station.sees_time else sink


def seeing(station: Station) -> Any:
    """Takes everything, and control items too."""

    @slet
    def seeing(item: Any | Punctuation | EndOfStream) -> None:
        marks = station.notes.marks[f"{station.name}.item"]
        if isinstance(item, (Punctuation, EndOfStream)):
            station.pass_mark("item", item)
            return
        if marks and isinstance(marks[-1][0], EndOfStream):
            station.notes.wrong.append(f"{station.name} has got {item} after the end of the stream")
        station.take("item", [item[-1] if isinstance(item, list) else item])

    return seeing


def pulling_sink(station: Station) -> Any:
    """Pulls everything, in its own time; half of these stations also pull punctuations, as a sink that is pushed to."""

    @slet
    def pulling_sink(item: InputPort[Any]) -> None:
        for one in item:
            station.note("item", one)

    @slet
    def timed(item: InputPort[Any | Punctuation]) -> None:
        for one in item:
            if isinstance(one, Punctuation):
                station.note_mark("item", one)
            else:
                station.note("item", one)

    return timed if station.sees_time else pulling_sink


def source(station: Station) -> Any:
    """Single items."""

    @slet
    def source(count: Count) -> Iterator[Any]:
        while count.left.get("out", 0) < station.limit:
            _stumble(station, count)
            (made,) = station.give(count, "out", 3)
            yield made
            if station.chance("pause", made["seq"]) < 10:
                yield None

    return source


def mixed_source(station: Station) -> Any:
    """Single items, and now and then a punctuation: how many there were."""

    @slet
    def mixed_source(count: Count) -> Iterator[Any | Punctuation]:
        while count.left.get("out", 0) < station.limit:
            _stumble(station, count)
            (made,) = station.give(count, "out", 3)
            yield made
            if station.chance("mark", made["seq"]) < 30:
                yield Punctuation(made["seq"])

    return mixed_source


def batch_source(station: Station) -> Any:
    """Batches."""

    @slet
    def batch_source(count: Count) -> Iterator[Batch[Any]]:
        while (at := count.left.get("out", 0)) < station.limit:
            _stumble(station, count)
            yield Batch(station.give(count, "out", 3, min(1 + station.chance("size", at) % 5, station.limit - at)))

    return batch_source


def column_source(station: Station) -> Any:
    """Record batches, and a punctuation behind each."""

    @slet
    def column_source(count: Count) -> Iterator[pa.RecordBatch | Punctuation]:
        while (at := count.left.get("out", 0)) < station.limit:
            _stumble(station, count)
            size = min(1 + station.chance("size", at) % 5, station.limit - at)
            yield pa.RecordBatch.from_pylist(station.give(count, "out", 3, size), schema=SCHEMA)
            yield Punctuation(at + size - 1)

    return column_source


def engine_source(station: Station) -> Any:
    """Pushes items and batches from a thread of its own."""

    class EngineSource(Slet, own_driver=True):
        count: Count
        out: OutputPort[Any]

        def __enter__(self) -> "EngineSource":
            self.pausing, self.leaving = threading.Event(), threading.Event()
            self.turn = threading.Lock()  # held while something is put out
            self.thread = threading.Thread(target=self.work, name=f"exop test engine {station.name}")
            self.thread.start()
            return self

        def __exit__(self, *exc: object) -> None:
            self.leaving.set()
            self.thread.join(PATIENCE)

        def quiesce(self) -> None:
            """Put out nothing more; what is being put out goes first."""
            self.pausing.set()
            if self.turn.acquire(timeout=PATIENCE):
                self.turn.release()

        def proceed(self) -> None:
            """Go on putting out."""
            self.pausing.clear()

        def work(self) -> None:
            """Push everything, then end."""
            try:
                while not self.leaving.is_set():
                    with self.turn:
                        if not self.pausing.is_set() and not self.put_out():
                            return
                    if self.pausing.is_set():
                        self.leaving.wait(0.001)
            except BaseException as stopped:  # noqa: BLE001 (whatever it is, it is noted)
                if type(stopped).__name__ not in ("Halted", "ChannelClosed"):
                    station.notes.wrong.append(f"the engine {station.name} broke: {stopped!r}")

        def put_out(self) -> bool:
            """Push the next items, or end; return whether there is more."""
            at = self.count.left.get("out", 0)
            if at >= station.limit:
                self.out.end()
                return False
            size = min(1 + station.chance("size", at) % 3, station.limit - at)
            made = station.give(self.count, "out", 3, size)
            if size == 1:
                self.out.push(made[0])
            else:
                self.out.push_batch(made)
            self.out.push(Punctuation(at + size - 1))
            return True

    return EngineSource


def _stumble(station: Station, count: Count) -> None:
    """Raise now and then, before anything is made."""
    at = count.left.get("out", 0)
    if station.is_bad("", {"from": "itself", "seq": at}):
        raise Boom(f"{station.name} stumbles before {at}")
