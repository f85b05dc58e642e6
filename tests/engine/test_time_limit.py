"""A batch of an engine that drives itself, and that does not return: the time limit, and what follows."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Annotated, Any, Self
from unittest.mock import MagicMock, Mock

import pyarrow as pa
import pytest

from exop import Application, EndOfStream, Memento, OutputPort, Platform, Punctuation, Tie, input_port, slet
from exop.engine import Emit, Feed, PullEngine
from exop.engine.pull_slet import PullSlet
from exop.engine.trigger import BatchTrigger
from exop.errors import EngineError, QueryInterrupted
from exop.runtime.supervision.watchdog import SAMPLER
from tests.rig import eventually

ROWS = pa.schema([pa.field("value", pa.int64())])
Rows = Annotated[pa.RecordBatch, ROWS]


class World:
    """What the test and its slets share: the row at which the function of the query hangs, and until when."""

    def __init__(self) -> None:
        self.hangs_at, self.goes_on = 0, threading.Event()
        self.seen: list[int] = []
        self.beside: list[int] = []


WORLD = World()


@pytest.fixture(autouse=True)
def world() -> Iterator[World]:
    """One for each test."""
    vars(WORLD).update(vars(World()))
    yield WORLD
    WORLD.goes_on.set()


class Echo(PullEngine):
    """Emits its rows; a function of the query may hang. It obeys an interrupt, or emits when the function returns."""

    def __init__(self, *, obeys: bool = True) -> None:
        self.offset, self.batch, self._over, self._obeys = 0, 0, threading.Event(), obeys
        self.emitted: list[Any] = []

    def compile(self, query: Any, feeds: Mapping[str, Feed]) -> None:
        """Note the feed."""
        (self._feed,) = feeds.values()

    def start(
        self, emit: Emit, directory: Path | None = None, predecessor: Self | bytes | None = None, batch: int = -1
    ) -> None:
        """Compute in a thread, behind the last batch of a predecessor."""
        if isinstance(predecessor, Echo):
            self.offset, self.batch = predecessor.offset, batch + 1
        self._emit = emit
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """End the query."""
        if self._obeys:
            self._over.set()

    def settle(self) -> None:
        """Nothing is left."""

    def wait(self) -> None:
        """Wait for the end."""
        self._over.wait()

    def close(self) -> None:
        """End the query."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            if (end := self._feed.latest(self.offset, 3, 0.1)) == self.offset:
                continue
            values = pa.ipc.open_stream(self._feed.read(self.offset, end)).read_all().select(["value"])
            if WORLD.hangs_at in values["value"].to_pylist():
                while not (WORLD.goes_on.wait(0.01) or (self._obeys and self._over.is_set())):
                    continue
            if self._obeys and self._over.is_set():
                return
            try:
                self.emitted.append(self._emit(self.batch, values.to_batches()))
            except EngineError as error:
                self.emitted.append(error)
                return
            self.offset, self.batch = end, self.batch + 1
            self._feed.commit(end)


class Query(PullSlet, own_driver=True, name="query"):
    """Passes its rows on."""

    out: OutputPort[Rows | Punctuation]
    query: str = ""
    obeys: bool = True
    keeps_own_state = True

    @classmethod
    def inherits(cls, before: Any, after: Any) -> str | None:
        """It can go on with the state of another one."""
        return None

    def make_engine(self) -> PullEngine:
        """Return an engine."""
        return Echo(obeys=self.obeys)

    @input_port
    def rows(self, rows: Rows | Punctuation | EndOfStream) -> None:
        """Append to the feed."""
        self.take("rows", rows)


class Position(Memento):
    """The last number."""

    number: int = 0


@slet
def numbers(position: Position, *, to: int) -> Iterator[Rows]:
    """Emit 1, 2, …"""
    while position.number < to:
        position.number += 1
        yield pa.RecordBatch.from_pydict({"value": [position.number]}, ROWS)


@slet
def note(row: dict[str, int]) -> None:
    """Note a row."""
    WORLD.seen.append(row["value"])


@slet
def note_beside(row: dict[str, int]) -> None:
    """Note a row that did not pass the engine."""
    WORLD.beside.append(row["value"])


def mill(**settings: Any) -> Application:
    """Rows that an engine passes on, and that are noted without it, too."""
    app = Application("mill")
    source = app.add("numbers", numbers, to=20)
    app.add("note", note, row=app.add("query", Query, rows=source, **settings))
    app.add("beside", note_beside, row=source)
    return app


@pytest.mark.parametrize("obeys", [True, False])
@pytest.mark.parametrize("cure", ["raise the setting", "correct the query"])
def test_a_batch_that_hangs_fails_and_is_computed_again_after_the_cure(cure, obeys):
    """The error names slet, port, batch and cure; other slets go on; no row is lost or doubled, whatever returns late.

    Also of an engine that does not react: its late results are refused.
    """
    WORLD.hangs_at = 8
    with Platform() as platform:
        mesh = platform.apply(mill(time_limit=0.1, obeys=obeys).build())
        query = platform.deployment("mill").components["query"]
        old = query.instance.engine
        eventually(lambda: query.error)
        assert isinstance(query.error, QueryInterrupted)
        told = str(query.error)
        assert f"query.rows: batch {old.batch}, in which a function may hang, was interrupted after 0.1 s" in told
        assert "correct the query, or raise the setting `time_limit`" in told
        eventually(lambda: platform.status("mill")["nodes"]["query"]["state"] == "failed")
        eventually(lambda: len(WORLD.beside) == 20)
        if cure == "correct the query":
            WORLD.hangs_at = 0
        else:
            WORLD.goes_on.set()
        platform.apply(mesh.configure("query", time_limit=60.0, query="another one"))
        WORLD.goes_on.set()
        assert platform.wait("mill", 60)
    assert WORLD.seen == [*range(1, 21)]
    if not obeys:
        eventually(lambda: isinstance(old.emitted[-1], EngineError))


def test_a_batch_that_waits_for_room_downstream_is_not_interrupted():
    """Only what the engine computes counts, not the delivery of its results, nor of what was sent before them."""
    out, began, turn = Mock(), [], MagicMock()
    with Query(out=out, tie=Tie(), time_limit=60.0) as slet:
        slet._sending = turn
        turn.__enter__.side_effect = lambda *_: began.append(slet._trigger.began)
        out.push_batch.side_effect = lambda _: began.append(slet._trigger.began)
        slet.rows(pa.RecordBatch.from_pydict({"value": [1]}, ROWS))
        eventually(lambda: len(began) == 2)
        assert began == [inf, inf]


def test_the_time_of_a_batch_begins_when_the_engine_has_its_end_and_ends_with_the_next_poll():
    """An engine that is idle has no batch."""
    now, begins = 100.0, list[float]()

    def clock() -> float:
        begins.append(trigger.began)
        return now

    trigger = BatchTrigger()
    assert trigger._clock == SAMPLER.clock
    trigger._clock = clock
    feed = Feed("rows", ROWS, trigger)
    assert trigger.began == inf
    feed.push(pa.RecordBatch.from_pydict({"value": [1]}, ROWS))
    assert feed.latest(0, None, 0.0) == 1
    assert trigger.began == now
    assert feed.latest(1, None, 0.0) == 1
    assert inf in begins[-2:], "while it polls"
