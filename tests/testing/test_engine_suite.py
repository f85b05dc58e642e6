"""The conformance suite finds the mistakes that engines make."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import SkipTest

import pytest

from exop import Batch, EndOfStream, Punctuation, input_port
from exop.engine import Engine, EngineSlet
from exop.errors import QueryError
from exop.testing import engine_suite
from exop.testing.engine_suite import EngineSuite


class Buffer(Engine):
    """Keeps rows until time advances; each fault is one mistake."""

    name = "buffer"

    def __init__(self, fault: str) -> None:
        self.fault, self.rows = fault, list[int]()
        self.stopped, self.closed = threading.Event(), threading.Event()
        if fault == "leaks a thread":
            threading.Thread(target=self.closed.wait, daemon=True).start()

    def compile(self, query: str) -> None:
        """Accept `all` and `hang`."""
        self.query = query
        if query not in ("all", "hang") and self.fault != "accepts any query":
            try:
                {}[query]
            except KeyError as unknown:
                raise QueryError(problem="unknown", position=3 if self.fault == "another position" else 0) from unknown

    def push(self, port: str, batch: list[tuple[int]]) -> list[Any]:
        """Keep the rows, all or none."""
        self.stopped.clear()
        while self.query == "hang" and not self.stopped.wait(0.001):
            pass
        if self.query == "hang":
            raise RuntimeError("interrupted")
        if self.fault == "keeps half a batch":
            self.rows.append(1)
        self.rows += [int(number) for (number,) in batch]
        return []

    def advance(self, time: float) -> list[list[tuple[int]]]:
        """Return all rows."""
        found, self.rows = [(number,) for number in self.rows], []
        return [found[::-1] if self.fault == "reverses" else found]

    def snapshot(self) -> bytes:
        """Return the rows."""
        found = [] if self.fault == "no snapshot" else self.rows
        if self.fault == "snapshot clears":
            self.rows = []
        return json.dumps(found).encode()

    def restore(self, state: bytes, version: int) -> None:
        """Take the rows."""
        self.rows = json.loads(state) * (2 if self.fault == "restores twice" else 1)

    def interrupt(self) -> None:
        """Stop."""
        if self.fault != "ignores interrupts":
            self.stopped.set()

    def close(self) -> None:
        """Nothing is open."""
        self.stopped.set()


class Buffered(EngineSlet, name="buffered"):
    """The query `all` on such an engine."""

    fault: str = ""

    def make_engine(self) -> Engine:
        """Return one."""
        return Buffer(self.fault)

    @input_port
    def rows(self, rows: Batch[tuple[int]] | Punctuation | EndOfStream) -> Iterator[Batch[tuple[int]] | Punctuation]:
        """Take all."""
        return self.take("rows", rows)


class TestBuffered(EngineSuite):
    """Without a fault, the engine passes."""

    slet = Buffered
    settings: ClassVar[dict[str, Any]] = {"query": "all"}
    wrong: ClassVar[dict[str, Any]] = {"query": "some"}
    position = 0
    endless: ClassVar[dict[str, Any]] = {"query": "hang"}
    poison = ("x",)


def suite(fault: str) -> EngineSuite:
    """The suite, for an engine with a fault."""

    class Faulty(TestBuffered):
        settings: ClassVar[dict[str, Any]] = {"query": "all", "fault": fault}

    return Faulty()


FAULTS = [
    ("no snapshot", "test_a_memento_is_restored_elsewhere"),
    ("snapshot clears", "test_a_memento_is_restored_elsewhere"),
    ("restores twice", "test_a_memento_is_restored_elsewhere"),
    ("reverses", "test_a_memento_is_restored_elsewhere"),
    ("no snapshot", "test_every_row_once_and_in_order_while_the_slet_is_replaced"),
    ("keeps half a batch", "test_a_row_that_cannot_be_processed_changes_nothing"),
    ("accepts any query", "test_an_invalid_query_is_refused_when_the_slet_opens"),
    ("another position", "test_an_invalid_query_is_refused_when_the_slet_opens"),
    ("leaks a thread", "test_closing_leaves_no_thread"),
]


@pytest.mark.parametrize(("fault", "test"), FAULTS)
def test_a_faulty_engine_fails(monkeypatch: pytest.MonkeyPatch, fault: str, test: str) -> None:
    """Each mistake is found by the test of that rule."""
    monkeypatch.setattr(engine_suite, "PATIENCE", 1.0)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(suite(fault), test)()


def test_an_engine_whose_queries_all_return_needs_no_endless_one():
    """The test of it is skipped."""

    class Prompt(EngineSuite):
        slet = Buffered

    with pytest.raises(SkipTest, match="every query of the engine returns"):
        Prompt().test_a_query_that_hangs_is_interrupted()
