"""Engines that push from threads of their own are proven, too: their outputs come later, and cut into other batches."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from exop import Application, EndOfStream, OutputPort, Platform, Punctuation, Shadow, Slet, input_port, slet
from exop.errors import ChannelClosed, PlanError, ShadowFailed
from exop.runtime.drivers.base import Halted
from exop.runtime.pause import Pause
from exop.wiring.controller import WiringController
from tests.change.tools import Position, Tap, chain, end, grows, in_thread, whole
from tests.rig import PATIENCE, eventually

SCHEMA = pa.schema({"n": pa.int64(), "even": pa.bool_()})


@slet
def rows(position: Position) -> Iterator[pa.RecordBatch | Punctuation]:
    """The numbers 1, 2, 3, …, five at a time, and now and then a punctuation."""
    while True:
        numbers = range(position.number + 1, position.number + 6)
        position.number += 5
        yield pa.RecordBatch.from_pydict({"n": [*numbers], "even": [n % 2 == 0 for n in numbers]}, schema=SCHEMA)
        if position.number % 50 == 0:
            yield Punctuation(position.number)


class Engine(Slet, own_driver=True):
    """Takes batches, and puts out what it has now and then, from a thread of its own; it has no memento."""

    out: OutputPort[pa.RecordBatch | Punctuation]
    most: int = 3

    def __enter__(self) -> "Engine":
        self.handed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work, name="exop test engine")
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.handed.put(None)
        self.thread.join(20)

    @input_port
    def x(self, x: pa.RecordBatch | Punctuation | EndOfStream) -> None:
        """Hand over."""
        self.handed.put(x)

    def quiesce(self) -> None:
        """Put out everything."""
        done = threading.Event()
        self.handed.put(done)
        assert done.wait(60)

    def made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the output for rows."""
        return batch

    def work(self) -> None:
        """Gather some batches, and push them as one."""
        held: list[pa.RecordBatch] = []
        try:
            while (item := self.handed.get()) is not None:
                if isinstance(item, pa.RecordBatch):
                    held.append(item)
                    if len(held) < self.most:
                        continue
                if held:
                    self.out.push_batch(self.made(pa.Table.from_batches(held).combine_chunks().to_batches()[0]))
                    held.clear()
                if isinstance(item, threading.Event):
                    item.set()
                elif isinstance(item, EndOfStream):
                    self.out.end()
                elif isinstance(item, Punctuation):
                    self.out.push(item)
        except (Halted, ChannelClosed):  # how an engine is made to leave a push
            return


class Wrong(Engine):
    """Changes a value now and then."""

    def made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row in a hundred is another one."""
        numbers = [n + (n % 100 == 0) for n in batch.column("n").to_pylist()]
        return pa.RecordBatch.from_pydict({"n": numbers, "even": batch.column("even")}, schema=SCHEMA)


class Losing(Engine):
    """Loses a row now and then."""

    def made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row in a hundred is not there."""
        return batch.filter(pa.array([n % 100 != 0 for n in batch.column("n").to_pylist()]))


class Other(Engine):
    """The same, cut otherwise."""


@slet
def native(x: pa.RecordBatch) -> pa.RecordBatch:
    """The twin in the platform."""
    return x


@slet
def native_wrong(x: pa.RecordBatch) -> pa.RecordBatch:
    """A twin with a mistake."""
    return x.filter(pa.array([n % 100 != 0 for n in x.column("n").to_pylist()]))


def writing(seen, marks):
    """A sink of rows."""

    @slet
    def write(x: pa.RecordBatch | Punctuation) -> None:
        if isinstance(x, Punctuation):
            marks.append((x.time, len(seen)))
        else:
            seen.extend(x.column("n").to_pylist())

    return write


def told(marks):
    """Every punctuation came behind the rows before it, none went back, and the last ones are there."""
    times = [time for time, _ in marks]
    assert times == sorted(times)
    assert all(rows >= time for time, rows in marks)


@contextmanager
def flowing(platform: Platform, first: Any, channel: str = "direct") -> Iterator[list[int]]:
    """Run rows, a slet and a sink as `app`; behind the block nothing is lost, doubled or reordered."""
    seen: list[int] = []
    marks: list[Any] = []
    app = Application("app")
    app.add("b", first, x=app.add("a", rows, out=app.channel("first", kind=channel)))
    app.add("c", writing(seen, marks), x=app.output("b", "out"))
    platform.apply(app.build())
    yield seen
    grows(seen)
    end(platform, "app")
    whole(seen)
    told(marks)


def prove(platform: Platform, successor: Any, items: int, **settings: Any) -> None:
    """Replace the slet by a proven successor."""
    mesh = platform.mesh("app").replace("b", successor, **settings)
    platform.plan(mesh).apply(shadow=Shadow(items=items, seconds=20))


@pytest.mark.parametrize(("first", "second"), [(Engine, Other), (Engine, native), (native, Other)])
@pytest.mark.parametrize("channel", ["direct", "queue"])
def test_an_equal_twin_takes_over(platform, first, second, channel):
    """An engine is proven against a slet of the platform, and the other way round; nothing is lost or doubled."""
    with flowing(platform, first, channel):
        prove(platform, second, 200, **({"most": 2} if second is Other else {}))
        assert platform.deployment("app").components["b"].spec.name == second.__slet__.name


def test_a_punctuation_that_the_engine_has_not_told(platform):
    """A punctuation that only the successor has sent, and was dropped, is sent before the next item."""

    class Mute(Engine):
        @input_port
        def x(self, x: pa.RecordBatch | Punctuation | EndOfStream) -> None:
            """Hand over, all but punctuations."""
            if not isinstance(x, Punctuation):
                self.handed.put(x)

    tap = Tap()

    @slet
    def stepped(position: Position) -> Iterator[pa.RecordBatch | Punctuation]:
        while tap.next(position.number):
            position.number += 1
            yield pa.RecordBatch.from_pydict({"n": [position.number], "even": [True]}, schema=SCHEMA)
            yield Punctuation(position.number)

    seen: list[int] = []
    marks: list[Any] = []
    platform.apply(chain("app", stepped, Mute, writing(seen, marks)).build())
    with in_thread(lambda: prove(platform, native, 10)):
        eventually(lambda: platform.status("app").get("shadow", {}).get("b", {}).get("seconds"), "the trial")
        tap.let(10)
    tap.let(1)
    tap.shut()
    assert platform.wait("app", 60)
    whole(seen, 11)
    told(marks)
    # The last one may have been under way when the last row was, and is told by itself then.
    assert marks[0] in ((9, 10), (10, 10))
    assert marks[-2:] == [(10, 10), (11, 11)]


@pytest.mark.parametrize(
    ("first", "second"), [(Engine, native_wrong), (native, Wrong), (native, Losing), (Engine, Wrong)]
)
def test_a_different_one_is_refused(platform, first, second):
    """A difference is found although both put out at different times, and the old one goes on."""
    with flowing(platform, first):
        with pytest.raises(ShadowFailed) as caught:
            prove(platform, second, 1000)
        assert caught.value.report["differences"]


def test_an_engine_that_breaks_on_trial(platform):
    """An engine that breaks while it is tried breaks nothing else."""

    class Breaking(Engine):
        def made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            if batch.column("n").to_pylist()[-1] > 100:
                self.out.fail(RuntimeError("out of memory"))
            return batch

    with flowing(platform, Engine), pytest.raises(ShadowFailed, match="out of memory"):
        prove(platform, Breaking, 10_000)


def test_an_engine_that_pushes_while_it_is_handed_an_item_is_untied_at_once(platform, monkeypatch):
    """Its upstream driver waits in the push while the trial ends: the engine puts out what it has before."""
    errors: list[PlanError] = []
    rebind, parked = WiringController.rebind, Pause.parked
    inside, waited = threading.Event(), threading.Event()  # the engine is handed an item; the pause waits for drivers
    waited.set()

    def settling(*args: Any, **how: Any) -> None:
        inside.clear()
        waited.clear()
        assert inside.wait(PATIENCE)
        try:
            rebind(*args, **how, timeout=PATIENCE)
        except PlanError as error:
            errors.append(error)
            raise

    def waiting(pause: Pause) -> bool:
        waited.set()
        return parked(pause)

    class Direct(Slet, own_driver=True):
        out: OutputPort[pa.RecordBatch]

        @input_port
        def x(self, x: pa.RecordBatch | EndOfStream) -> None:
            """Push it at once, in the thread that hands it over."""
            if not waited.is_set():
                inside.set()
                waited.wait(PATIENCE)
            if isinstance(x, EndOfStream):
                self.out.end()
            else:
                self.out.push_batch(x)

    with flowing(platform, Direct) as seen:
        monkeypatch.setattr(WiringController, "rebind", settling)
        monkeypatch.setattr(Pause, "parked", waiting)
        for _ in range(2):
            with pytest.raises(ShadowFailed):
                prove(platform, native_wrong, 100)  # of any 100 rows in sequence, this twin loses one
            grows(seen)
        assert not errors


@pytest.mark.parametrize(("first", "second"), [(Engine, Other), (Engine, native), (native, Other)])
def test_an_engine_is_kept_and_comes_back(platform, first, second):
    """A predecessor with a driver of its own runs on behind, and what it puts out counts again after the rollback."""
    with flowing(platform, first) as seen:
        for _ in range(2):
            grows(seen)
            platform.plan(platform.mesh("app").replace("b", second)).apply(keep=60)
            grows(seen)
            platform.rollback("app", "b")
