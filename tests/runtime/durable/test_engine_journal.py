"""Engines that commit by themselves, tied to the platform by what they were given and what they have put out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.durable_app.engine import Doubled, Summed
from exop import (
    Application,
    Committed,
    EndOfStream,
    Memento,
    Platform,
    Punctuation,
    Slet,
    hookimpl,
    input_port,
    slet,
)
from exop.errors import NotCommitted, StateError, StoredStateError
from exop.hooks import Plugins
from exop.runtime.drivers.source import EngineDriver
from exop.runtime.durable.engine_journal import MOST, DiskJournal, EngineFolders, EngineJournal
from exop.runtime.log.segment import File
from exop.testing import feed
from exop.testing.feeding import CollectingOutput
from tests.change.tools import endless
from tests.rig import PATIENCE, eventually


class Told(CollectingOutput):
    """A port of a driver, which counts what it sends."""

    def __init__(self, driver: EngineDriver) -> None:
        super().__init__()
        self.driver = driver

    def push(self, item: Any) -> None:
        """Count and keep."""
        self.driver.count += 1
        super().push(item)


@pytest.fixture
def places(tmp_path):
    """A state directory's folders of engines."""
    return EngineFolders(tmp_path / "engines")


@pytest.fixture
def tied(places):
    """Make a tie with one input of single items, as a platform would at its start."""
    made = []

    def make(held: dict[str, Any] | None = None) -> tuple[DiskJournal, Told]:
        driver = EngineDriver("engine", lambda: None, lambda: ())
        out = Told(driver)
        tie = DiskJournal(lambda name: places.folder("app", "node", name), {"number": "item"}, {"out": out}, driver)
        if held is not None:
            tie.restore(held)
        tie.open()
        made.append(tie)
        return tie, out

    yield make
    for tie in made:
        tie.close()


def test_who_waits_for_what_was_sent_before_a_crash_is_woken_by_the_event_that_is_arriving(tied, monkeypatch):
    """It begins to wait when the event is in the log, and does not count as arrived yet."""
    tie, _ = tied()
    log, waits = tie._logs["number"], []
    append = log.append

    def appended(events):
        append(events)
        waits.append(pool.submit(tie.caught_up, 10.0))
        eventually(lambda: tie._changed._waiters)

    monkeypatch.setattr(log, "append", appended)
    with ThreadPoolExecutor(1) as pool:
        tie.take("number", 1)
        assert waits[0].result(PATIENCE)


def crashed(tie: DiskJournal) -> None:
    """Nothing is left of it but its files."""
    tie.close()


def test_an_engine_answers_in_an_application_and_by_itself():
    """A slet with a tie is tested and used like any other; in memory, where nothing is durable."""
    assert feed(Doubled, [1, Punctuation(1), 3]) == [2, Punctuation(1), 6]
    assert feed(Summed, [1, 2, 3], most=2) == [1, 3, 6]


def test_the_results_of_a_replay_are_sent_neither_now_nor_after_a_crash(tied):
    """Many batches of it may come before anything is sent; later results leave."""
    tie, out = tied()
    tie.replaying = True
    for number in range(2 * MOST):
        tie.take("number", number)
        assert tie.put_out(number, [(out, number)], {"number": number + 1})
    tie.replaying = False
    held = tie.capture()
    tie.put_out(2 * MOST, [(out, "first")], {"number": 2 * MOST})
    tie.start()
    assert tie.settle(PATIENCE)
    crashed(tie)
    again, out_again = tied(held)
    again.start()
    assert again.settle(PATIENCE)
    assert (out.items, out_again.items) == (["first"], ["first"])
    assert again.committed.batch == 2 * MOST


def test_what_was_put_out_is_not_kept():
    """In memory a tie holds what no batch has, for whoever comes after the engine."""
    tie, out = EngineJournal({"number": "item"}), CollectingOutput()
    for number in (1, 2, 3):
        assert tie.take("number", number) == number
    assert tie.put_out(0, [(out, 10), (out, [20])], {"number": 2}, note="x")
    assert (out.items, tie.committed) == ([10, 20], Committed(0, {"number": 2}, "x"))
    assert [*tie.events("number")] == [(2, 3)]
    assert not tie.put_out(0, [(out, 10)], {"number": 2})


def test_rows_of_batches_are_counted_one_by_one():
    """A batch may be put out in two parts: what is left of it is the rest."""
    tie = EngineJournal({"rows": "batch"})
    tie.take("rows", [1, 2, 3])
    tie.take("rows", Punctuation(3))
    tie.put_out(0, [], {"rows": 2})
    assert [*tie.events("rows")] == [(2, [3]), (3, Punctuation(3))]
    tie.put_out(1, [], {"rows": 3})
    assert [*tie.events("rows")] == [(3, Punctuation(3))]


def test_what_is_in_the_log_is_not_taken_again(tied):
    """After a crash everything is sent again from the checkpoint on; what is in the log is recognized by its number."""
    tie, _ = tied()
    tie.take("number", 1)
    held = tie.capture()
    tie.take("number", 2)
    tie.take("number", Punctuation(2))
    crashed(tie)
    again, _ = tied(held)
    assert [*again.events("number", 0)] == [(0, 1), (1, 2), (2, Punctuation(2))]
    assert again.take("number", 2) is None
    assert again.take("number", Punctuation(2)) is None
    assert again.take("number", 4) == 4
    assert again.take("number", EndOfStream()) == EndOfStream()
    assert [*again.events("number", 0)][3:] == [(3, 4), (4, EndOfStream())]


def test_an_engine_that_is_ahead_of_its_logs_is_refused(tied):
    """It puts out before it commits: what it has committed and its logs do not have was taken from the disk."""
    tie, out = tied()
    for number in (1, 2, 3):
        tie.take("number", number)
    assert tie.put_out(0, [(out, 10)], {"number": 2})
    assert [*tie.events("number", 2)] == [(2, 3)]
    with pytest.raises(StoredStateError, match=r"come to event 3 of 'number'.*events 0 to 3, and output up to event 2"):
        next(tie.events("number", 3))


def test_what_is_in_the_log_leaves_from_there_and_is_not_asked_for_twice(tied):
    """The engine is ahead of the checkpoint: its batch is refused, and what it put out leaves once more."""
    tie, out = tied()
    tie.start()
    for number in (1, 2, 3):
        tie.take("number", number)
    assert tie.put_out(0, [(out, 10), (out, Punctuation(1))], {"number": 1})
    assert tie.settle(5)
    held = tie.capture()
    assert tie.put_out(1, [(out, 20)], {"number": 2}, note=7)
    assert tie.settle(5)
    crashed(tie)
    again, fresh = tied(held)
    assert again.committed == Committed(1, {"number": 2}, 7)
    again.start()
    assert not again.put_out(1, [(fresh, 20)], {"number": 2})
    assert again.put_out(2, [(fresh, 30)], {"number": 3})
    assert again.settle(5)
    assert (out.items, fresh.items) == ([10, Punctuation(1), 20], [20, 30])
    assert [*again.events("number")] == []


def log_of(tie: DiskJournal, name: str) -> Path:
    """The one segment of a log."""
    assert tie.place is not None
    (found,) = (tie.place / name).glob("*.log")
    return found


def test_after_a_power_failure_the_input_of_every_batch_is_there(tied, monkeypatch):
    """It is on the disk before the output of the batch, once; of later input, what is not there is sent again."""
    forced: dict[Path, int] = {}
    calls: list[str] = []
    really = File.sync

    def sync(self: File) -> None:
        really(self)
        path = Path(os.readlink(f"/proc/self/fd/{self.number}"))
        forced[path] = self.size()
        calls.append(path.parent.name)

    tie, out = tied()
    tie.take("number", 0)
    tie.sync()
    held = tie.capture()
    monkeypatch.setattr(File, "sync", sync)
    for number in (1, 2):
        tie.take("number", number)
    tie.put_out(0, [(out, 3)], {"number": 2})
    tie.put_out(1, [(out, 2)], {"number": 3})
    assert calls == ["in number", "out", "out"]
    tie.take("number", 3)
    path = log_of(tie, "in number")
    on_disk = forced[path]
    crashed(tie)
    os.truncate(path, on_disk)
    again, _ = tied(held)
    assert (again.committed.inputs, again.arrived("number")) == ({"number": 3}, 1)
    assert [again.take("number", number) for number in (1, 2, 3)] == [None, None, 3]
    assert [*again.events("number")] == [(3, 3)]


def test_after_a_power_failure_a_gap_behind_the_checkpoint_is_sent_again(tied):
    """A later block of a file may be on the disk, and an earlier one not."""
    tie, _ = tied()
    tie.take("number", 0)
    tie.sync()
    held = tie.capture()
    tie.trim_output(held)
    path = log_of(tie, "in number")
    begin = path.stat().st_size
    tie.take("number", 1)
    end = path.stat().st_size
    tie.take("number", 2)
    crashed(tie)
    data = path.read_bytes()
    path.write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    again, _ = tied(held)
    assert [again.take("number", number) for number in (1, 2)] == [1, 2]
    assert [*again.events("number")] == [(0, 0), (1, 1), (2, 2)]


def test_a_batch_without_results_counts_too(tied):
    """How far the engine has come is in the log, whether anything left or not."""
    tie, _ = tied()
    held = tie.capture()
    tie.take("number", 1)
    tie.put_out(0, [], {"number": 1})
    crashed(tie)
    again, out = tied(held)
    again.start()
    assert again.settle(5)
    assert (again.committed, out.items) == (Committed(0, {"number": 1}), [])
    assert again.capture()["passed"] == 1


def test_a_checkpoint_lets_go_of_what_it_counts(tied):
    """Only what a recovery could ask for is kept; whole segments go."""
    tie, out = tied()
    tie.start()
    tie.take("number", 1)
    tie.put_out(0, [(out, 1)], {"number": 1})
    assert tie.settle(5)
    tie.forget("number", 1)
    tie.trim_output(tie.capture())
    crashed(tie)
    again, _ = tied(tie.capture())
    assert [*again.events("number")] == []


def test_a_log_that_is_behind_its_checkpoint_is_refused(tied, places):
    """Half of a state directory from an older copy would lose items silently."""
    tie, _ = tied()
    tie.take("number", 1)
    held = tie.capture()
    crashed(tie)
    places.discard("app")
    (places.folder("app", "node", "1")).mkdir(parents=True)
    with pytest.raises(StoredStateError, match="ends at 0, and the checkpoint was taken at 1"):
        tied(held)


def test_folders_that_no_checkpoint_names_are_removed(places):
    """A successor that was being opened when the platform died leaves nothing behind."""
    first, second = places.folder("a.b/c", "node"), places.folder("a.b/c", "node")
    other = places.folder("other", "node")
    places.keep("a.b/c", [second])
    assert (first.exists(), second.exists(), other.exists()) == (False, True, True)
    assert places.folder("a.b/c", "node", second.name) == second
    assert places.folder("a.b/c", "node").name == "3"


class Seen(Memento):
    """What a sink has seen."""

    items: list[Any] = field(default_factory=list)


@slet
def numbers() -> Iterator[int]:
    """A source."""
    yield from range(3)


@slet
def collect(item: Any, seen: Seen) -> None:
    """Keep what comes."""
    seen.items.append(item)


class Committing(Slet):
    """A sink that emits with checkpoints."""

    numbers: ClassVar[list[int]] = []

    @input_port
    def item(self, item: Any) -> None:
        """Take one."""

    def commit_checkpoint(self, number: int) -> None:
        """Record the number."""
        self.numbers.append(number)


class Offers:
    """The slets, as a plugin."""

    @staticmethod
    @hookimpl
    def register_slets() -> list[Any]:
        """All of them."""
        return [numbers, endless, collect, Committing, Summed]


@pytest.fixture
def plugins():
    """The plugin, loaded."""
    found = Plugins()
    found.register("tied", Offers())
    return found


def test_the_folders_of_an_application_go_with_it(tmp_path, plugins):
    """What an engine has committed belongs to its application: removed, or begun anew, it is gone."""
    app = Application("a")
    app.durable(every=60)
    app.add("seen", collect, item=app.add("sum", Summed, number=app.add("numbers", numbers)))
    with Platform(state=tmp_path, control=False, plugins=plugins) as platform:
        platform.apply(app.build())
        assert platform.wait("a", 60)
        assert (tmp_path / "engines" / "a" / "sum" / "1" / "engine" / "committed").exists()
        platform.remove("a")
        assert not (tmp_path / "engines" / "a").exists()


def test_a_journal_that_cannot_be_written_withholds_no_checkpoint_from_a_sink(tmp_path, plugins, monkeypatch):
    """The checkpoint is written; the sink emits what belongs to it, and the error is told."""

    def full(_: DiskJournal, held: Any) -> None:
        raise StateError("the disk is full")

    app = Application("a")
    app.durable(every=1000)
    app.add("sink", Committing, item=app.add("sum", Summed, number=app.add("numbers", endless)))
    with Platform(state=tmp_path, control=False, plugins=plugins) as platform:
        platform.apply(app.build())
        monkeypatch.setattr(DiskJournal, "trim_output", full)
        monkeypatch.setattr(Committing, "numbers", [])
        with pytest.raises(NotCommitted, match="sum could not put out what belongs to it: the disk is full"):
            platform.checkpoint("a")
        assert len(Committing.numbers) == 1
        monkeypatch.undo()
