"""`EngineSlet`: what belongs to the platform rather than to the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from exop import Application, Batch, EndOfStream, Memento, Platform, Punctuation, input_port, slet
from exop.engine import Engine, EngineSlet, EngineState
from exop.engine import slet as engine_slet
from exop.errors import MementoError, QueryError, QueryInterrupted, StoredStateError
from exop.hooks import Plugins, hookimpl
from exop.runtime.supervision import watchdog
from exop.runtime.supervision.watchdog import Sampler
from exop.testing import open as open_slet
from tests.rig import PATIENCE, collector, eventually


class Recorder(Engine):
    """Returns what is called, and fails at a word."""

    name = "recorder"
    version = 2

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.stopped = threading.Event()
        self.closed = 0

    def compile(self, query: str) -> None:
        """Refuse `wrong`."""
        if query == "wrong":
            raise ValueError("no such query")

    def push(self, port: str, batch: list[Any]) -> list[Any]:
        """Return the port and the items."""
        if batch == ["hang"]:
            assert self.stopped.wait(60)
            raise RuntimeError("stopped")
        if batch == ["fail"]:
            raise QueryError(problem="bad item", position=2)
        return [[(port, *batch)]]

    def advance(self, time: float) -> list[Any]:
        """Return the time."""
        if time == 13:
            raise RuntimeError("13")
        return [[time]]

    def snapshot(self) -> bytes:
        """The number of snapshots."""
        self.calls.append("snapshot")
        return b"state"

    def restore(self, state: bytes, version: int) -> None:
        """Refuse a state that is not that of a recorder."""
        if state != b"state":
            raise ValueError("not mine")
        self.calls.append(("restore", version))

    def interrupt(self) -> None:
        """Stop."""
        self.stopped.set()

    def close(self) -> None:
        """Count."""
        self.closed += 1


class Two(EngineSlet):
    """A query with two inputs."""

    def make_engine(self) -> Engine:
        """Keep it, to look at it after it is closed."""
        self.made = Recorder()
        return self.made

    @input_port
    def left(self, item: Batch[Any] | Punctuation | EndOfStream) -> Iterator[Batch[Any] | Punctuation]:
        """One input."""
        return self.take("left", item)

    @input_port
    def right(self, item: Batch[Any] | Punctuation | EndOfStream) -> Iterator[Batch[Any] | Punctuation]:
        """The other one."""
        return self.take("right", item)


class One(EngineSlet):
    """A query with one input."""

    def make_engine(self) -> Engine:
        """Return an engine."""
        return Recorder()

    @input_port
    def rows(self, item: Batch[Any] | EndOfStream) -> Iterator[Batch[Any]]:
        """Take a batch."""
        return self.take("rows", item)


class World:
    """How many numbers there are, and whether there will be more."""

    limit = 0
    over = False


class Counted(Memento):
    """How far the source has come."""

    number: int = 0


def test_the_earliest_time_of_all_inputs_counts():
    """The engine advances, and a punctuation leaves behind the results, when the last input has come that far."""
    with open_slet(Two, query="q") as slet:
        assert [*slet.left(Punctuation(5))] == []
        assert [*slet.right([1, 2])] == [[("right", 1, 2)]]
        assert [*slet.right(Punctuation(3))] == [[3], Punctuation(3)]
        assert [*slet.right(Punctuation(3))] == []
        assert [*slet.right(EndOfStream())] == [[5], Punctuation(5)]
        assert [*slet.left(EndOfStream())] == [[inf]]


def test_a_time_at_which_the_engine_fails_comes_again():
    """The control item is repeated by the policy, and is as new as it was."""
    with open_slet(Two, query="q") as slet:
        assert [*slet.left(Punctuation(13))] == []
        for _ in range(2):
            with pytest.raises(QueryError, match=r"two\.right: RuntimeError: 13\n  q"):
                slet.right(Punctuation(13))
        assert slet.state.times == {"left": 13, "right": -inf}


def test_an_error_names_slet_port_query_and_position():
    """The facts that the engine gives are kept; the cause is its own exception."""
    with open_slet(Two, query="q item") as slet, pytest.raises(QueryError) as caught:
        slet.left(["fail"])
    facts = {"slet": "two", "port": "left", "query": "q item", "position": 2, "problem": "bad item"}
    assert caught.value.facts == facts
    assert isinstance(caught.value.__cause__, QueryError)


def test_a_refused_query_closes_the_engine():
    """Also in a deep check, which leaves an accepted one open until it is told."""
    slet = Two(query="wrong", state=EngineState())
    with pytest.raises(QueryError, match="two: ValueError: no such query"):
        slet.__enter__()
    assert slet.made.closed == 1
    with pytest.raises(QueryError, match="no such query"):
        Two.deep_check({"query": "wrong"}, {})
    Two.deep_check({"query": "q"}, {})()


def test_a_call_that_takes_too_long_is_interrupted():
    """The next call is not."""
    with open_slet(Two, query="q", time_limit=0.05) as slet:
        with pytest.raises(QueryInterrupted, match=r"two\.left: interrupted after 0\.05 s"):
            slet.left(["hang"])
        assert [*slet.left(["go on"])] == [[("left", "go on")]]


def test_the_time_for_which_the_process_stands_still_is_not_that_of_a_call(monkeypatch: pytest.MonkeyPatch):
    """A call is interrupted after the time limit without that time."""
    now = [1000.0]
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    sampler = Sampler()
    monkeypatch.setattr(sampler, "add", sampler._looks.append)
    monkeypatch.setattr(engine_slet, "SAMPLER", sampler)

    def push(*_: Any) -> list[Any]:
        due, now[0] = slet._due, now[0] + 1e6
        slet._check_limit()
        assert slet._due == due, "it is interrupted"
        for _ in range(60):
            sampler._read = sampler._now()
            now[0] += 1.0
        slet._check_limit()
        assert slet.made.stopped.wait(PATIENCE)
        raise RuntimeError("stopped")

    with open_slet(Two, query="q", time_limit=60.0) as slet:
        slet.made.push = push
        with pytest.raises(QueryInterrupted, match=r"two\.left: interrupted after 60 s"):
            slet.left([1])


def test_the_memento_of_a_failed_item_is_that_before_the_item():
    """The platform stores it with the item, so that the failure can be reproduced."""
    with open_slet(Two, query="q") as slet:
        slet.left([1])
        with pytest.raises(QueryError, match="bad item"):
            slet.left(["fail"])
        assert slet.state.snapshot == b"state"


def test_a_snapshot_is_taken_only_after_a_change():
    """A checkpoint of an idle query costs nothing; the memento has the format."""
    with open_slet(Two, query="q") as slet:
        slet.flush()
        assert slet.state == EngineState()
        slet.left([1])
        slet.flush()
        slet.flush()
        assert slet.made.calls == ["snapshot"]
        assert (slet.state.engine, slet.state.version, slet.state.snapshot) == ("recorder", 2, b"state")


def test_a_state_that_is_assigned_while_the_slet_is_open_is_restored():
    """So the platform hands it over: the successor was opened before."""
    with open_slet(Two, query="q") as slet:
        slet.state = EngineState(engine="recorder", version=1, snapshot=b"state")
        assert slet.made.calls == [("restore", 1)]


@pytest.mark.parametrize(("engine", "version"), [("another", 1), ("recorder", 3)])
def test_the_state_of_another_engine_or_a_newer_one_is_refused(engine, version):
    """Both formats are named; the engine is closed, and is not asked."""
    state = EngineState(engine=engine, version=version, snapshot=b"x")
    slet = Two(query="q", state=state)
    told = f"it is a snapshot of {engine}, version {version}; this engine reads those of recorder, up to version 2"
    with pytest.raises(StoredStateError, match=told):
        slet.__enter__()
    assert slet.made.closed == 1
    with pytest.raises(QueryError, match="not mine"):
        Two(query="q", state=EngineState(engine="recorder", version=1, snapshot=b"x")).__enter__()


def test_metrics_count_calls_and_rows():
    """Beside those of the engine."""
    with open_slet(Two, query="q") as slet:
        slet.left([1, 2])
        found = slet.metrics()
    assert (found["engine_calls"], found["engine_rows"]) == (1, 2)


@pytest.mark.parametrize(("rows", "warnings"), [(1, 1), (9, 1), (10, 0)])
def test_many_small_batches_are_told(rows, warnings, caplog):
    """Whoever connects an engine without a queue hears it once, with the cure."""
    with open_slet(Two, query="q") as slet:
        for _ in range(2000):
            slet.left(list(range(rows)))
    told = [one.getMessage() for one in caplog.records if one.name == "exop.engine"]
    assert len(told) == warnings
    assert all(f"1000 times for {rows * 1000} rows" in one and "app.channel(NAME, 'queue')" in one for one in told)


@slet
def numbers(counted: Counted) -> Iterator[int | None]:
    """Emit the numbers below a limit, and pause until it is over."""
    while counted.number < World.limit or not World.over:
        if counted.number < World.limit:
            counted.number += 1
            yield counted.number
        else:
            threading.Event().wait(0.001)
            yield None


def test_a_change_and_a_checkpoint_do_not_wait_for_a_larger_batch(tmp_path):
    """Rows that wait for more are kept while the slet is replaced; the end of the stream delivers them."""
    seen: list[Any] = []
    World.limit, World.over = 2, False
    app = Application("waiting")
    app.durable(every=3600)
    queue = app.channel("queue", "queue")
    app.add("numbers", numbers, out=queue)
    see = collector(seen)
    app.add("see", see, item=app.add("query", One, rows=queue, query="q", max_wait=3600.0))

    class Offered:
        @hookimpl
        def register_slets(self) -> list[Any]:
            return [numbers, One, see]

    plugins = Plugins()
    plugins.register("offered", Offered())
    with Platform(plugins=plugins, state=tmp_path, control=False) as platform:
        mesh = platform.apply(app.build())
        eventually(lambda: platform.deployment("waiting").channels["queue"].depth == 2)
        platform.checkpoint("waiting")
        mesh = platform.apply(mesh.configure("query", query="another"))
        World.limit = 3
        eventually(lambda: platform.deployment("waiting").channels["queue"].depth == 3)
        platform.apply(mesh.configure("query", max_wait=0.0))
        eventually(lambda: seen == [("rows", 1, 2, 3)])
        World.over = True
        assert platform.wait("waiting", PATIENCE)


class Other(One):
    """The same query on another engine."""

    def make_engine(self) -> Engine:
        """Return an engine with another form of snapshots."""
        made = Recorder()
        made.name = "other"
        return made


def test_a_slet_whose_engine_cannot_read_the_state_is_refused_in_the_plan():
    """Before anything stops; both formats, and what may be done, are named."""
    World.limit, World.over = 0, True
    app = Application("refused")
    app.add("query", One, rows=app.add("numbers", numbers), query="q")
    with Platform(plugins=Plugins()) as platform:
        mesh = platform.apply(app.build())
        told = "a snapshot of recorder, version 2; this engine reads those of other, up to version 2; rebuild it"
        with pytest.raises(MementoError, match=told):
            platform.plan(mesh.replace("query", Other))
        assert "is lost, as requested" in str(platform.plan(mesh.replace("query", Other, lose_state=True)))
        platform.wait("refused", PATIENCE)
