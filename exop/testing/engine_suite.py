"""`EngineSuite` and `PullEngineSuite`: the tests that slets with engines have to pass, for pytest."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Final
from unittest import SkipTest, TestCase

import pytest

from exop.app import Application
from exop.errors import QueryError, QueryInterrupted
from exop.hooks import Plugins, hookimpl
from exop.model.items import EndOfStream, Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.slet import slet, spec_of
from exop.model.slets.spec import SletSpec
from exop.model.slets.stored_memento import dump_memento, load_memento
from exop.model.slets.tie import Tie
from exop.platform import Platform
from exop.remoting.identity import file_stamps
from exop.stock.sources import Position
from exop.testing.feeding import entering, feed
from exop.testing.feeding import open as open_slet

__all__ = ["EngineSuite", "PullEngineSuite", "Suite"]

#: The seconds to wait for a condition.
PATIENCE: Final = 60.0
#: The number of rows from one punctuation to the next.
_WINDOW: Final = 10


class Noted(Memento):
    """The numbers of the rows that have arrived at the sink."""

    numbers: list[int] = field(default_factory=list)


class _Run:
    """The suite that is run, and the number of the row after which its source pauses, and ends once it is over."""

    suite: Suite
    limit = 0
    over = False


@slet
def rows(emitted: Position) -> Iterator[Any | Punctuation | None]:
    """Emit numbered rows, with punctuations; pause at the limit."""
    while not (_Run.over and emitted.number >= _Run.limit):
        if emitted.number < _Run.limit:
            emitted.number += 1
            yield _Run.suite.row(emitted.number)
            if emitted.number % _WINDOW == 0:
                yield Punctuation(emitted.number)
        else:
            threading.Event().wait(0.001)
            yield None


@slet(effects=False)
def note(item: Any, noted: Noted) -> None:
    """Note the number of a row."""
    noted.numbers.append(_Run.suite.number(item))


class Suite:
    """The tests for both kinds of engines. The slet has one input, and one output.

    Attributes:
        slet: The slet.
        settings: The settings for a query that emits every row once, in order, at once or at the next punctuation.
        other: Other settings for the same query, whose change replaces the slet.
        wrong, position: The settings for an invalid query, and the position of the mistake, from 0.
    """

    slet: ClassVar[Any]
    settings: ClassVar[Mapping[str, Any]]
    other: ClassVar[Mapping[str, Any]]
    wrong: ClassVar[Mapping[str, Any]]
    position: ClassVar[int | None] = None
    #: Settings with which an engine accepts less than 400 rows that it cannot emit.
    bounds: ClassVar[Mapping[str, Any]] = {}

    def row(self, number: int) -> Any:
        """Return the row with this number; by default a tuple with one field."""
        return (number,)

    def number(self, result: Any) -> int:
        """Return the number of the row from which a result was made; by default its first field."""
        return int(result[0])

    def test_every_row_once_and_in_order_while_the_slet_is_replaced(self) -> None:
        """The state of the engine goes from each instance to the next one."""
        with self._running() as (platform, _):
            for turn in range(6):
                _emitted(platform, _Run.limit + 25)
                _until(lambda: not platform.deployment("suite").channels["arriving"].depth)  # the engine has them
                platform.apply(platform.mesh("suite").configure("query", **(self.settings if turn % 2 else self.other)))
            self._check_all(platform)

    def test_every_row_once_and_in_order_after_a_crash(self, tmp_path: Path) -> None:
        """A checkpoint, continued on another platform, leads to the same results."""
        with self._running(tmp_path / "first") as (platform, _):
            _emitted(platform, 25)
            platform.checkpoint("suite")
            _copied(tmp_path / "first", tmp_path / "copy")
            _emitted(platform, 50)
        with _platform(self, tmp_path / "copy") as platform:
            self._check_all(platform)

    def test_a_sink_that_accepts_nothing_makes_the_source_wait(self) -> None:
        """The queue before the engine fills up; then the rows arrive in order."""
        with self._running(**self.bounds) as (platform, mesh):
            suspended = platform.apply(mesh.suspend("note"))
            _Run.limit = 400
            driver = platform.deployment("suite").components["rows"].driver
            _until(lambda: driver is not None and (driver.waits_at is not None or driver.held_by is not None))
            platform.apply(suspended.resume("note"))
            self._check_all(platform)

    def test_an_invalid_query_is_refused_when_the_slet_opens(self) -> None:
        """The error names the slet, the query and the position; its cause is that of the engine."""
        given = {**self.settings, **self.wrong}
        with pytest.raises(QueryError) as caught:
            feed(self.slet, [], **given)
        error = caught.value
        assert error.slet == spec_of(self.slet).name, f"the error names the slet {error.slet!r}"
        assert error.query == given["query"], f"the error has the query {error.query!r}"
        assert error.position == self.position, f"the position is {error.position}, not {self.position}"
        assert error.__cause__ is not None, "the error has no cause"

    def test_closing_leaves_no_thread(self) -> None:
        """Neither a slet that has worked, nor one whose query was refused, leaves a thread."""
        before = set(threading.enumerate())
        feed(self.slet, [self.row(1), Punctuation(1)], **self.settings)
        with suppress(QueryError):
            feed(self.slet, [], **{**self.settings, **self.wrong})
        _until(lambda: not set(threading.enumerate()) - before)

    @contextmanager
    def _running(
        self, state: Path | None = None, *, beside: bool = False, listen: str | None = None, **settings: Any
    ) -> Iterator[Any]:
        """Run the source, a queue, the slet and the sink; also another sink *beside*."""
        _Run.limit, _Run.over = 0, False
        app = Application("suite")
        if state is not None:
            app.durable(every=3600)
        queue = app.channel("arriving", "queue", capacity=64)
        app.add("rows", rows, out=queue)
        given = {self._spec().inputs[0].name: queue, **self.settings, **settings}
        app.add("note", note, item=app.add("query", self.slet, **given))
        if beside:
            app.add("note_beside", note, item=app.add("rows_beside", rows))
        with _platform(self, state, listen=listen) as platform:
            yield platform, platform.apply(app.build())

    def _check_all(self, platform: Platform) -> None:
        """End the source, and check the results of all rows."""
        _Run.over = True
        assert platform.wait("suite", PATIENCE), "the application does not end"
        found, wanted = _memento(platform, "note").numbers, [*range(1, _Run.limit + 1)]
        # Here pytest does not rewrite an assertion, and would not show where the lists differ.
        TestCase().assertListEqual(found, wanted, "rows are lost, doubled or in another order")  # noqa: PT009

    def _spec(self) -> SletSpec:
        return spec_of(self.slet).asked("", self.settings)

    def _numbers(self, results: list[Any]) -> list[int]:
        """Return the numbers of all rows in results: items, batches and control items."""
        found: list[int] = []
        for one in results:
            if not isinstance(one, (Punctuation, EndOfStream)):
                batch = one.to_pylist() if hasattr(one, "to_pylist") else one if isinstance(one, list) else [one]
                found += map(self.number, batch)
        return found


class EngineSuite(Suite):
    """Derive a class `TestMyEngine` from this suite for an `Engine`, and set its attributes, and those of `Suite`.

    Attributes:
        endless: The settings for a query that does not return; interrupted after 0.2 seconds. `None` if there is none.
        poison: A row that the engine cannot process; `None` if there is none.
    """

    other: ClassVar[Mapping[str, Any]] = {"time_limit": 61.0}
    endless: ClassVar[Mapping[str, Any] | None] = None
    poison: ClassVar[Any] = None

    def test_every_row_once_and_in_order_while_the_slet_moves(self) -> None:
        """To another platform, and back."""
        with self._running(listen="inproc:suite") as (platform, _), _platform(self, None, name="other") as other:
            other.remoting.connect("inproc:suite")
            for host in ("other", platform.name):
                _emitted(platform, _Run.limit + 25)
                platform.apply(platform.mesh("suite").move("query", to=host))
            self._check_all(platform)

    def test_a_memento_is_restored_elsewhere(self) -> None:
        """Half of the rows before, half of them after the state was stored; the first instance is not affected."""
        spec = self._spec()
        assert spec.state is not None, f"{spec.name} keeps no memento"
        port, (name, kind) = spec.inputs[0], spec.state
        with open_slet(self.slet, **self.settings) as instance:
            method = getattr(instance, port.method or port.name)
            found = [one for number in range(1, 6) for one in method(entering(port, self.row(number)))]
            instance.flush()
            memento = load_memento(dump_memento(getattr(instance, name), spec.name), kind, spec.name)
            rest = [self.row(number) for number in range(6, 11)]
            after = feed(self.slet, [*rest, Punctuation(10)], **{name: memento}, **self.settings)
            here = list(method(Punctuation(5)))
        whole = self._numbers([*found, *after])
        assert whole == [*range(1, 11)], f"the rows 1 to 10, restored after row 5, lead to {whole}"
        assert self._numbers([*found, *here]) == [*range(1, 6)], "the instance that was stored has changed"

    def test_a_row_that_cannot_be_processed_changes_nothing(self) -> None:
        """The error names the port, and the rows before and after are processed."""
        if self.poison is None:
            raise SkipTest("the engine accepts every row")
        port = self._spec().inputs[0]
        with open_slet(self.slet, **self.settings) as instance:
            method = getattr(instance, port.method or port.name)
            found = [*method(entering(port, self.row(1)))]
            with pytest.raises(QueryError) as caught:
                method(entering(port, self.poison))
            error = caught.value
            assert error.port == port.name, f"the error names the port {error.port!r}"
            assert error.__cause__ is not None, "the error has no cause"
            found += [*method(entering(port, self.row(2))), *method(Punctuation(2))]
        assert self._numbers(found) == [1, 2], f"the results are {found}"

    def test_a_query_that_hangs_is_interrupted(self) -> None:
        """The rest of the mesh continues; with another query, the slet processes the rows that wait."""
        if self.endless is None:
            raise SkipTest("every query of the engine returns")
        with self._running(**self.endless, time_limit=0.2, beside=True) as (platform, mesh):
            _Run.limit = 2 * _WINDOW
            error = _until(lambda: platform.deployment("suite").components["query"].error)
            assert isinstance(error, QueryInterrupted), f"the error is {error!r}"
            _until(lambda: len(_memento(platform, "note_beside").numbers) == _Run.limit)
            platform.apply(mesh.configure("query", **{**self.settings, "time_limit": 60.0}))
            self._check_all(platform)


class PullEngineSuite(Suite):
    """Derive a class `TestMyEngine` from this suite for a `PullEngine`, and set the attributes of `Suite`."""

    other: ClassVar[Mapping[str, Any]] = {"max_rows": 7}
    bounds: ClassVar[Mapping[str, Any]] = {"capacity": 64}

    def test_every_row_once_and_in_order_after_a_kill_at_any_moment(self, tmp_path: Path) -> None:
        """Before a batch is emitted, between its emission and its commit, and after it."""
        for number, (name, after) in enumerate([("put_out", False), ("put_out", True), ("forget", True)]):
            state, copy = tmp_path / f"state {number}", tmp_path / f"copy {number}"
            with self._running(state, **self.other) as (platform, _):
                _emitted(platform, 25)
                platform.checkpoint("suite")
                tie = platform.deployment("suite").components["query"].tie
                copied = _copy_when(tie, name, after, partial(_copied, state, copy))
                _Run.limit = 60
                _until(copied.is_set)
            with _platform(self, copy) as platform:
                self._check_all(platform)

    def test_a_punctuation_leaves_after_its_rows(self) -> None:
        """All rows before a punctuation precede it; the time of the last one is reached before the end."""
        items = [one for number in range(1, 6) for one in (self.row(number), Punctuation(number))]
        found, before = feed(self.slet, items, **self.settings), 0
        for one in found:
            if isinstance(one, Punctuation):
                assert before >= one.time, f"the punctuation {one.time} leaves after row {before}"
            else:
                before = self._numbers([one])[-1]
        assert found[-1] == Punctuation(5), f"after the last row, {found[-1]} leaves"


def _copy_when(tie: Tie, name: str, after: bool, copy: Callable[[], None]) -> threading.Event:
    """Copy the state once, before or after a call of a method of the tie: it is then as a kill would leave it."""
    method, copied = getattr(tie, name), threading.Event()

    def called(*given: Any, **more: Any) -> Any:
        result = method(*given, **more) if after else None
        if not copied.is_set():
            copy()
            copied.set()
        return result if after else method(*given, **more)

    setattr(tie, name, called)
    return copied


def _copied(state: Path, copy: Path) -> None:
    """Copy the state of a platform that runs, until nothing has changed meanwhile: the engine may still commit."""
    before = None
    while before is None or before != file_stamps(state.rglob("*")):
        shutil.rmtree(copy, ignore_errors=True)
        before = file_stamps(state.rglob("*"))
        with suppress(shutil.Error):  # a file has vanished
            shutil.copytree(state, copy, ignore=shutil.ignore_patterns("lock"))


@contextmanager
def _platform(suite: Suite, state: Path | None, **given: Any) -> Iterator[Platform]:
    """Start a platform that finds the slets of the suite."""
    _Run.suite = suite
    plugins = Plugins()
    plugins.register("engine_suite", SimpleNamespace(register_slets=hookimpl(lambda: [rows, note, suite.slet])))
    with Platform(state=state, control=False, plugins=plugins, **given) as platform:
        assert not platform.failed_to_restart, platform.failed_to_restart
        yield platform


def _emitted(platform: Platform, limit: int) -> None:
    """Let the source emit the rows up to this one."""
    _Run.limit = limit
    _until(lambda: _memento(platform, "rows").number == limit)


def _memento(platform: Platform, node: str) -> Any:
    return platform.deployment("suite").components[node].state


def _until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition, and return its value."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not reached within {PATIENCE:g} s"
        threading.Event().wait(0.002)
    return found
