"""A slet on an engine that drives itself, after a crash: what it is given again, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from exop import EndOfStream, OutputPort, Punctuation, Tie, input_port
from exop.engine import PullEngine
from exop.engine.pull import InputPosition, QueryProgress
from exop.engine.pull_slet import PullSlet
from exop.errors import EngineError, StateError
from exop.model.slets.tie import Committed
from exop.runtime.drivers.base import Halted
from exop.runtime.durable.engine_journal import EngineJournal
from exop.runtime.log import segment
from tests.rig import eventually

ROWS = pa.schema([pa.field("time", pa.int64())])
Rows = Annotated[pa.RecordBatch, ROWS]
#: What had arrived before the crash.
ARRIVED = [Punctuation(10), Punctuation(20), Punctuation(30), EndOfStream()]


class Restarted(Tie):
    """The journal has everything that had arrived, the checkpoint the first *known* of it."""

    def __init__(self, directory: Path, known: int, passed: int, *, native: bool) -> None:
        super().__init__()
        self.directory, self._known = directory, known
        (directory / "ended").write_text('["rows"]')
        progress = QueryProgress(end={"rows": InputPosition(event=passed)})
        self.committed = Committed(inputs={"rows": passed}, note=progress.dump())
        if native:
            self.native["rows"] = object()  # type: ignore[assignment]

    def take(self, port: str, payload: Any) -> Any | None:
        """It is known."""
        self._known += 1
        return None if self._known <= len(ARRIVED) else payload

    def events(self, port: str, start: int | None = None) -> Iterator[tuple[int, Any]]:
        """Read the journal."""
        yield from [*enumerate(ARRIVED)][start or 0 :]

    def arrived(self, port: str) -> int:
        """Return the number of events."""
        return self._known


class Idle(PullEngine):
    """Computes nothing."""

    def __init__(self) -> None:
        self._closing = threading.Event()

    def compile(self, query: Any, feeds: Any) -> None:
        """Accept it."""

    def start(self, *_: Any) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Nothing is left."""

    def wait(self) -> None:
        """Wait for the end."""
        self._closing.wait()

    def close(self) -> None:
        """End."""
        self._closing.set()


class Reads(PullSlet, own_driver=True, name="reads"):
    """Notes what its feed is given."""

    out: OutputPort[Rows | Punctuation]
    query: str = ""
    keeps_own_state = True

    def make_engine(self) -> PullEngine:
        """Return an engine."""
        self.given = list[Any]()
        return Idle()

    @input_port
    def rows(self, rows: Rows | Punctuation | EndOfStream) -> None:
        """Append to the feed."""
        self.take("rows", rows)

    def _give(self, port: str, payload: Any) -> None:
        self.given.append(payload)
        super()._give(port, payload)


@pytest.mark.parametrize(("known", "passed", "at_once"), [(0, 0, 0), (1, 0, 1), (1, 2, 2), (4, 0, 4)])
def test_control_items_of_a_native_channel_wait_for_the_rows_that_are_written_again(tmp_path, known, passed, at_once):
    """After a crash, the channel ends at the checkpoint: a punctuation from behind it comes again, after its rows."""
    tie = Restarted(tmp_path, known, passed, native=True)
    with Reads(out=Mock(), tie=tie) as slet:
        assert slet.given == ARRIVED[:at_once]
        assert slet.feeds["rows"].ended == (at_once == 4)
        for payload in ARRIVED[known:]:
            slet.rows(payload)
        assert slet.given == ARRIVED
        assert slet.feeds["rows"].ended
        slet.feeds["rows"].retire()


def test_what_is_in_the_journal_is_given_at_once(tmp_path):
    """With the rows before it; what arrives again is dropped."""
    tie = Restarted(tmp_path, 1, 0, native=False)
    with Reads(out=Mock(), tie=tie) as slet:
        assert slet.given == ARRIVED
        for payload in ARRIVED[1:]:
            slet.rows(payload)
        assert slet.given == ARRIVED


def test_results_amid_which_the_platform_halts_are_not_taken_back():
    """Some have left, and may name files: the engine neither commits the batch nor removes its files."""
    out, tie = Mock(), EngineJournal({"rows": "columns"})
    out.push.side_effect = Halted
    with Reads(out=out, tie=tie) as slet:
        with pytest.raises(EngineError, match="has halted this driver"):
            slet._emit(0, [["receipt"], Punctuation(1)])
        assert out.push_batch.call_count == 1
        tie.retire()
        assert slet._emit(1, [["refused"]]) is False


def test_a_query_that_something_else_stops_has_failed():
    """Its last rows have no results: the end of the stream does not leave."""
    out = Mock()
    with Reads(out=out) as slet:
        slet.rows(pa.record_batch([[1]], ROWS))
        slet.rows(EndOfStream())
        slet.engine.close()
        eventually(lambda: slet.feeds["rows"].retired, "the end of the query")
        eventually(lambda: not any("reads drain" in one.name for one in threading.enumerate()), "the end of the drain")
        assert "was stopped, and not by the platform; change a setting of the slet" in str(out.fail.call_args[0][0])
        out.end.assert_not_called()


def test_a_slet_that_does_not_open_retires_its_feeds(monkeypatch):
    """Some have threads of their own. Whether the engine cannot be made, or refuses the query."""
    feeds: list[Any] = []
    made = PullSlet._feed
    monkeypatch.setattr(Reads, "_feed", lambda self, *port: feeds.append(made(self, *port)) or feeds[-1])
    for method in ("make_engine", "compile"):
        with monkeypatch.context() as broken:
            broken.setattr(Reads if method == "make_engine" else Idle, method, Mock(side_effect=EngineError("no")))
            with pytest.raises(EngineError, match="no"), Reads(out=Mock(), tie=Tie()):
                pass
    assert [bool(feed.retired) for feed in feeds] == [True, True]


def test_the_order_of_the_ends_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """A process that is killed meanwhile opens again."""
    tie = Tie()
    tie.directory = tmp_path
    with Reads(out=Mock(), tie=tie) as slet:
        monkeypatch.setattr(segment.Files, "rename", Mock(side_effect=OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            slet.rows(EndOfStream())
        assert not (tmp_path / "ended").exists()


class Full(Tie):
    """The disk is full."""

    error = StateError("No space left on device")

    def put_out(self, *_: Any) -> bool:
        """Write nothing."""
        raise self.error


@pytest.mark.parametrize("payload", [Punctuation(1), EndOfStream()])
def test_what_a_thread_of_the_slet_cannot_send_is_its_failure(payload):
    """Neither the end nor a punctuation is missing without a word."""
    out, tie = Mock(), Full()
    with Reads(out=out, tie=tie) as slet:
        slet.rows(payload)
        eventually(lambda: out.fail.called)
        assert tie.failure is Full.error


def test_the_end_of_a_query_that_was_given_up_does_not_concern_its_successor():
    """A thread that comes late to notice it retires the old feeds alone."""
    with Reads(out=Mock(), tie=Tie()) as slet:
        old, known = slet.feeds["rows"], slet.engine
        slow, known.wait = threading.Event(), lambda: slow.wait()
        slet._watch(known)
        slet._begin(QueryProgress())
        slow.set()
        eventually(lambda: old.retired)
        assert not slet.feeds["rows"].retired
