"""A successor that catches up beside its predecessor: with the same results, and without a pause for its start."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Self, cast

import pyarrow as pa
import pytest

from exop import Application, EndOfStream, Memento, OutputPort, Platform, Punctuation, hookimpl, input_port, slet
from exop.engine import Emit, EventTime, Feed, PullEngine, Punctuate, following
from exop.engine.feed import ROW
from exop.engine.pull import QueryProgress
from exop.engine.pull_slet import PullSlet
from exop.engine.trigger import BatchTrigger
from exop.errors import ComponentFailed, EngineError, LifecycleError
from exop.hooks import Plugins
from tests.rig import eventually

ROWS = pa.schema([pa.field("time", pa.int64()), pa.field("value", pa.int64())])
Rows = Annotated[pa.RecordBatch, ROWS]


class World:
    """What the test and its slets share."""

    def __init__(self) -> None:
        self.limit = 0
        self.over = False
        self.copying = threading.Event()
        self.copying.set()


WORLD = World()


@pytest.fixture(autouse=True)
def world():
    """One for each test."""
    vars(WORLD).update(vars(World()))
    return WORLD


@dataclass
class Sums:
    """The open windows of 10 seconds behind a batch, and the watermark of the next batch."""

    batch: int = -1
    offset: int = 0
    watermark: float = 0
    windows: dict[str, int] = field(default_factory=dict)


class Windows(PullEngine):
    """Sums by windows, in batches that close windows like those of Spark: at the watermark of the batch before."""

    def __init__(self, delay: int) -> None:
        self.sums, self.copied, self._delay, self._closing = Sums(), False, delay, False
        self._errors: list[Exception] = []

    def compile(self, query: Any, feeds: Mapping[str, Feed]) -> None:
        """Note whether it is to fail."""
        self._fails, (self._feed,) = query == "fails", feeds.values()

    def copy(self, predecessor: Self, directory: Path | None, batch: int) -> int | None:
        """Copy the sums as soon as the batch is committed."""
        WORLD.copying.wait()
        eventually(lambda: predecessor.sums.batch >= batch)
        self._copy(predecessor)
        self.copied = True
        return self.sums.batch if self.sums.batch >= 0 else None

    def start(
        self, emit: Emit, directory: Path | None = None, predecessor: Self | bytes | None = None, batch: int = -1
    ) -> None:
        """Compute in a thread."""
        self._emit, self._file = emit, directory / "sums.json" if directory is not None else None
        if isinstance(predecessor, Windows):
            self._copy(predecessor)
        elif self._file is not None and self._file.exists():
            self.sums = Sums(**json.loads(self._file.read_text()))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait until nothing is left to compute."""
        eventually(lambda: self._errors or self._rests)

    def wait(self) -> None:
        """Wait for the end."""
        self._thread.join()
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        if hasattr(self, "_thread"):
            self._thread.join()

    def _copy(self, predecessor: Windows) -> None:
        there = predecessor.sums
        self.sums = replace(there, windows=dict(there.windows))

    def _run(self) -> None:
        self._rests = moved = False
        try:
            while not self._closing:
                end = self._feed.latest(self.sums.offset, 1000, 10.0)
                self._rests = end == self.sums.offset and not moved
                if not self._rests:
                    before = self.sums.watermark
                    self._process(end)
                    moved = self.sums.watermark > before
                    self._feed.commit(end)
        except Exception as error:  # noqa: BLE001 - it ends the query
            self._errors.append(error)

    def _process(self, end: int) -> None:
        was = self.sums
        rows = pa.ipc.open_stream(self._feed.read(was.offset, end)).read_all().to_pylist() if end > was.offset else []
        if self._fails and rows:
            raise ValueError("no more")
        windows = dict(was.windows)
        for row in rows:
            until = row["time"] // 10 * 10 + 10
            if row[ROW] >= 0 and until > was.watermark:
                windows[str(until)] = windows.get(str(until), 0) + row["value"]
        closed = sorted(int(one) for one in windows if int(one) <= was.watermark)
        out = [{"time": one, "value": windows.pop(str(one))} for one in closed]
        self._emit(was.batch + 1, [pa.RecordBatch.from_pylist(out, ROWS)] if out else [], was.watermark)
        known = max([was.watermark, *(row["time"] - self._delay for row in rows)])
        self.sums = Sums(was.batch + 1, end, known, windows)
        if self._file is not None:
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(asdict(self.sums)))
            new.replace(self._file)


class Windowed(PullSlet, own_driver=True, name="windowed"):
    """Sum by windows."""

    out: OutputPort[Rows | Punctuation]
    query: str = ""
    delay: int = 0
    capacity: int = 300
    keeps_own_state = True
    times = {"rows": EventTime("time")}  # noqa: RUF012 - like in every slet
    punctuation = Punctuate("watermark", lambda watermark: watermark - 1)

    def make_engine(self) -> PullEngine:
        """Return an engine."""
        return Windows(self.delay)

    def can_follow(self, predecessor: PullSlet) -> bool:
        """Every one can be followed."""
        return True

    @input_port
    def rows(self, rows: Rows | Punctuation | EndOfStream) -> None:
        """Append to the feed."""
        self.take("rows", rows)

    @classmethod
    def inherits(cls, before: Any, after: Any) -> str | None:
        """Every state is taken over."""
        return None


class Position(Memento):
    """How far the source has come."""

    time: int = 0


class Noted(Memento):
    """What has come."""

    rows: list[list[int]] = field(default_factory=list)


@slet
def seconds(position: Position) -> Iterator[Rows | Punctuation | None]:
    """Two rows a second, and after each second that it is complete."""
    while not (WORLD.over and position.time >= WORLD.limit):
        if position.time < WORLD.limit:
            position.time += 1
            yield pa.RecordBatch.from_pylist(
                [{"time": position.time, "value": one} for one in (position.time, 1)], ROWS
            )
            yield Punctuation(position.time)
        else:
            threading.Event().wait(0.001)
            yield None


@slet
def see(row: dict[str, int], noted: Noted) -> None:
    """Note a window."""
    noted.rows.append([row["time"], row["value"]])


def app(*, durable: bool = False) -> Application:
    """A source, a query, a sink."""
    made = Application("a")
    if durable:
        made.durable(every=3600)
    made.add("see", see, row=made.add("query", Windowed, rows=made.add("seconds", seconds)))
    return made


def seen(platform: Platform) -> list[list[int]]:
    """The windows that have arrived."""
    return platform.deployment("a").components["see"].state.rows


def engine(platform: Platform) -> Windows:
    """The present engine."""
    return platform.deployment("a").components["query"].instance.engine


def flows(platform: Platform) -> None:
    """Wait for three windows more."""
    before = len(seen(platform))
    eventually(lambda: len(seen(platform)) >= before + 3)


def ends(platform: Platform) -> None:
    """End the source; every window has come once, with all its rows."""
    WORLD.limit = platform.deployment("a").components["seconds"].state.time
    WORLD.over = True
    assert platform.wait("a", 60)
    wanted: dict[int, int] = {}
    for time in range(1, platform.deployment("a").components["seconds"].state.time + 1):
        wanted[time // 10 * 10 + 10] = wanted.get(time // 10 * 10 + 10, 0) + time + 1
    assert seen(platform) == [[*pair] for pair in sorted(wanted.items())]


def test_windows_close_once_however_often_the_query_is_replaced():
    """Under load: each successor has begun with a copy, and no predecessor had to come to rest."""
    WORLD.limit = 10**9
    with Platform() as platform:
        mesh = platform.apply(app().build())
        for turn in range(5):
            flows(platform)
            mesh = platform.apply(mesh.configure("query", max_rows=1000 + turn))
            assert engine(platform).copied
        flows(platform)
        ends(platform)


def test_a_query_that_is_idle_is_followed_too():
    """The successor computes for the first time when it has taken over."""
    WORLD.limit = 25
    with Platform() as platform:
        mesh = platform.apply(app().build())
        old = platform.deployment("a").components["query"].instance
        eventually(lambda: old._progress.complete == WORLD.limit)  # it has sent its last batch
        platform.apply(mesh.configure("query", max_rows=1000))
        assert engine(platform).copied
        WORLD.limit = 10**9
        flows(platform)
        ends(platform)


def test_a_successor_that_fails_beside_its_predecessor_changes_nothing():
    """The change is refused with the reason, and the predecessor has not been stopped."""
    WORLD.limit = 10**9
    with Platform() as platform:
        mesh = platform.apply(app().build())
        flows(platform)
        old = platform.deployment("a").components["query"].instance
        with pytest.raises(ComponentFailed, match="it cannot go on with the state inside windowed: .*no more"):
            platform.apply(mesh.configure("query", query="fails"))
        assert platform.deployment("a").components["query"].instance is old
        assert old.follower is None
        flows(platform)
        ends(platform)


def test_a_query_that_has_failed_is_not_resumed_but_begins_again():
    """Resumed, it would compute nothing; another setting begins where it was."""
    WORLD.limit = 10**9
    with Platform() as platform:
        mesh = platform.apply(app().build())
        flows(platform)
        query = platform.deployment("a").components["query"]
        engine(platform)._fails = True
        eventually(lambda: query.error is not None)
        with pytest.raises(LifecycleError, match="cannot resume; possible now: a replacement or a changed setting"):
            platform.resume("a", "query")
        assert "no more" in str(query.error)
        platform.apply(mesh.configure("query", max_rows=1000))
        flows(platform)
        ends(platform)


def test_a_successor_that_does_not_get_to_the_same_state_changes_nothing(monkeypatch):
    """What is found in the cut undoes the change; the predecessor goes on with the rows that have come meanwhile."""
    monkeypatch.setattr(following.Following, "_is_equal", property(lambda self: not self._meets))
    WORLD.limit = 10**9
    with Platform() as platform:
        mesh = platform.apply(app().build())
        flows(platform)
        old = platform.deployment("a").components["query"].instance
        with pytest.raises(ComponentFailed, match="it has not come to the state of its predecessor; try again"):
            platform.apply(mesh.configure("query", max_rows=1000))
        assert platform.deployment("a").components["query"].instance is old
        flows(platform)
        ends(platform)


def test_a_successor_with_other_watermarks_begins_behind_its_predecessor(monkeypatch):
    """It would close windows in other batches: it begins when the predecessor rests."""
    monkeypatch.setattr(following, "_PATIENCE", 2.0)
    WORLD.limit = 10**9
    with Platform() as platform:
        mesh = platform.apply(app().build())
        flows(platform)
        platform.apply(mesh.configure("query", delay=3))
        assert not engine(platform).copied
        flows(platform)
        ends(platform)


def test_a_stream_that_ends_meanwhile_is_not_followed():
    """The end arrives, and is passed on, while the state is copied."""
    WORLD.limit = 10**9
    WORLD.copying.clear()
    with Platform() as platform:
        mesh = platform.apply(app().build())
        flows(platform)
        old = platform.deployment("a").components["query"].instance
        change = threading.Thread(target=lambda: platform.apply(mesh.configure("query", max_rows=1000)))
        change.start()
        eventually(lambda: old.follower is not None)
        WORLD.limit, WORLD.over = platform.deployment("a").components["seconds"].state.time, True
        eventually(lambda: old._progress.over)
        WORLD.copying.set()
        change.join()
        ends(platform)


def test_a_durable_query_that_was_replaced_goes_on_after_a_crash(tmp_path):
    """The checkpoint names the copy that the successor has made of it, and its position."""

    class Offered:
        """The slets, which the second platform has to find."""

        @hookimpl
        def register_slets(self) -> list[Any]:
            return [seconds, see, Windowed]

    plugins = Plugins()
    plugins.register("following", Offered())
    WORLD.limit = 10**9
    with Platform(state=tmp_path / "state", control=False, plugins=plugins) as platform:
        mesh = platform.apply(app(durable=True).build())
        flows(platform)
        platform.apply(mesh.configure("query", max_rows=1000))
        assert engine(platform).copied
        flows(platform)
        WORLD.limit = platform.deployment("a").components["seconds"].state.time + 5
        query = platform.deployment("a").components["query"].instance
        eventually(lambda: query._progress.ends("rows").complete == WORLD.limit)
        platform.checkpoint("a")
        shutil.copytree(tmp_path / "state", tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
        WORLD.over = True
    vars(WORLD).update(vars(World()))
    WORLD.limit = 10**9
    with Platform(state=tmp_path / "copy", control=False, plugins=plugins) as platform:
        flows(platform)
        ends(platform)


def beside(*ports: str) -> tuple[Any, dict[str, Feed], following.Following]:
    """A predecessor that has sent batch 3, its feeds, and what its successor follows."""
    before, after = (BatchTrigger() for _ in range(2))
    feeds = {port: Feed(port, ROWS, before) for port in ports}
    engine = SimpleNamespace(merges=True)
    old = SimpleNamespace(
        _trigger=before,
        feeds=feeds,
        _sending=threading.Lock(),
        _progress=QueryProgress(3),
        follower=None,
        engine=engine,
    )
    old.late, old.metrics = 0, lambda: {"late_rows": old.late}
    new = SimpleNamespace(_trigger=after, feeds={port: Feed(port, ROWS, after) for port in ports})
    before.release()
    found = following.Following(cast("PullSlet", new), cast("PullEngine", engine), cast("PullSlet", old))
    assert found.lead() == 3
    found.begin(3)
    return old, feeds, found


def rows(count: int) -> pa.RecordBatch:
    """So many rows."""
    return pa.RecordBatch.from_pylist([{"time": 1, "value": 1}] * count, ROWS)


def test_a_batch_of_several_inputs_is_known_when_all_of_them_are_planned():
    """The successor reads each input up to the same offset, also if it follows since the middle of a poll."""
    _, feeds, found = beside("a", "b")
    feeds["a"].push(rows(5))
    found.plan(feeds["b"], 0)  # of a poll that had begun before
    assert [feeds[port].latest(0, None, 0) for port in "ab"] == [5, 0]
    feeds["b"].push(rows(2))
    assert [found.next(port, 0, 0) for port in "ab"] == [5, 0]
    found.put_out(4, 7.0)
    assert [found.next(port, start, 0) for port, start in (("a", 5), ("b", 0))] == [5, 0]


def test_a_batch_without_rows_is_known_when_it_is_sent():
    """The engine of the successor is told that nothing is new, and closes windows as that of the predecessor did."""
    old, feeds, found = beside("a")
    feeds["a"].push(rows(5))
    for batch, watermark in ((4, 1.0), (5, 7.0)):
        feeds["a"].latest(5 * (batch - 4), None, 0)
        feeds["a"].put_out()
        old._progress = QueryProgress(batch)
        found.note(batch, watermark)
    found._is_near = True
    assert found.next("a", 0, 0) == 5
    found.put_out(4, 1.0)
    assert not found._rests
    assert found.next("a", 5, 0) == 5
    found.put_out(5, 7.0)
    assert found._is_equal


def behind(*, merges: bool, late: int = 0) -> tuple[Any, following.Following]:
    """A predecessor that has sent three more batches."""
    old, _, found = beside("a")
    old.engine.merges = merges
    old.late += late  # of batch 3, which is in the copy
    for batch in range(4, 7):
        send(old, found, batch)
    return old, found


def send(old: Any, found: following.Following, batch: int) -> None:
    """Let the predecessor send another batch of five rows."""
    feed = old.feeds["a"]
    feed.push(rows(5))
    feed.latest(5 * (batch - 4), None, 0)
    feed.put_out()
    old._progress = QueryProgress(batch)
    found.note(batch, None)


def compute(found: following.Following) -> None:
    """Let the successor compute the next batch, and poll."""
    at = found._last.ends["a"]
    assert found.next("a", at, 0) > at
    found.put_out(found._now.batch, None)
    with found._lock:
        found._polls = True


@pytest.fixture
def brief(monkeypatch):
    """A predecessor is soon taken for idle."""
    monkeypatch.setattr(following, "_IDLE", 0.01)
    monkeypatch.setattr(following, "_QUIET", 0.01)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("late", [0, 1])
def test_late_rows_that_both_drop_are_no_obstacle(late: int):
    """Neither those of the copy, reported late, nor those of a batch that the successor has computed as it is."""
    old, found = behind(merges=True, late=late)
    compute(found)
    assert found.computed == 1
    for batch in (7, 8):
        send(old, found, batch)
        old.late += 1
        if batch == 7:
            compute(found)
            assert found.come_near()
    compute(found)
    assert found.meet()
    assert found._is_timely


@pytest.mark.usefixtures("brief")
def test_late_rows_of_batches_computed_as_one_are_found_when_the_next_batch_begins():
    """The engine of the predecessor reports them at the end of the batch."""
    old, found = behind(merges=True)
    compute(found)
    assert found.come_near()
    old.late += 1
    send(old, found, 7)
    compute(found)
    assert not found.meet()
    assert "dropped as late" in found._problem


@pytest.mark.parametrize(("merges", "end", "batch"), [(True, 15, 6), (False, 5, 4)])
def test_a_successor_that_is_behind_computes_several_batches_as_one(merges: bool, end: int, batch: int):
    """Unless its state depends on the watermark of each. One that has come near computes each batch as it is."""
    _, found = behind(merges=merges)
    assert found.next("a", 0, 0) == end
    assert found._now is not None
    assert found._now.batch == batch


@pytest.mark.usefixtures("brief")
def test_a_successor_as_slow_as_its_predecessor_does_not_stay_behind():
    """It has come near, and the predecessor sends two batches while it computes one: it catches up all the same."""
    old, found = behind(merges=True)
    found._is_near = True
    compute(found)
    send(old, found, 7)
    send(old, found, 8)
    assert found.next("a", 15, 0) == 25
    assert not found._is_equal, "while it computes several as one"
    found.put_out(8, None)
    send(old, found, 9)
    compute(found)
    assert found.come_near()
    assert found.computed == 3
    send(old, found, 10)
    send(old, found, 11)
    assert found.next("a", 30, 0) == 35, "each batch as it is, from now on"


@pytest.mark.parametrize("why", ["the predecessor rests", "it drops rows"])
def test_one_that_is_near_computes_a_batch_as_it_is_where_several_would_not_do(why: str):
    """It catches up without, or its state would have rows that its predecessor has dropped."""
    old, found = behind(merges=True)
    found._is_near = True
    if why == "it drops rows":
        old.late += 1
    else:
        old._trigger.polls = True
    assert found.next("a", 0, 0) == 5


@pytest.mark.parametrize("merges", [True, False])
def test_a_successor_that_may_have_kept_late_rows_does_not_take_over(monkeypatch: pytest.MonkeyPatch, merges: bool):
    """At the older watermark of a batch in place of several ones, fewer rows are late than in the predecessor."""
    monkeypatch.setattr(following, "_IDLE", 0.01)
    monkeypatch.setattr(following, "_QUIET", 0.01)
    old, found = behind(merges=merges)
    old.late += 1
    found._in_step = not merges
    while (at := found._last.ends["a"]) < 15:
        assert found.next("a", at, 0) > at
        found.put_out(found._now.batch, None)
    with found._lock:
        found._polls = True
    assert found.come_near() is not merges


@pytest.mark.parametrize("looks", [1, 3])
def test_a_predecessor_is_waited_for_until_it_has_nothing_left_to_compute(monkeypatch, looks):
    """The first batch of the successor was the last one of the predecessor, which may have computed for long."""

    class Trigger:
        looked = 0

        @property
        def polls(self) -> bool:
            self.looked += 1
            return self.looked == looks

    monkeypatch.setattr(following, "_PATIENCE", 3600)
    monkeypatch.setattr(following, "_QUIET", 0.01)
    old, feeds, found = beside("a")
    feeds["a"].push(rows(5))
    feeds["a"].latest(0, None, 0)
    feeds["a"].put_out()
    old._progress, old._trigger, found._is_near = QueryProgress(4), Trigger(), True
    found.note(4, 1.0)
    assert found.next("a", 0, 0) == 5
    found.put_out(4, 1.0)

    def second() -> int:
        with found._lock:
            found._await(lambda: found.computed > 1)
            return found.computed

    with ThreadPoolExecutor() as threads:
        poll = threads.submit(found.next, "a", 5, 3600)
        try:
            eventually(lambda: found._rests)
            wait = threads.submit(second)
            eventually(wait.done)
        finally:
            found.end()
        assert (poll.result(), wait.result(), old._trigger.looked) == (None, 1, looks)


def test_rows_are_kept_until_the_successor_has_committed_them():
    """The predecessor has committed them long before."""
    _, feeds, found = beside("a")
    feed = feeds["a"]
    feed.push(rows(5))
    feed.push(rows(5))
    assert feed.latest(0, None, 0) == 10
    feed.put_out()
    feed.commit(10)
    follower = found._successor.feeds["a"]
    assert pa.ipc.open_stream(follower.read(0, 10)).read_all().num_rows == 10
    follower.commit(5)
    with pytest.raises(EngineError, match="holds rows 5 to 10"):
        follower.read(0, 5)
    found.end()
    with pytest.raises(EngineError, match="holds rows 10 to 10"):
        follower.read(5, 10)
