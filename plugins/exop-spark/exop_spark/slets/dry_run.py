"""A successor tried on a copy of a running query's checkpoint: Spark says beforehand whether it can go on with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from exop.engine.feed import Feed, Part
from exop.engine.trigger import BatchTrigger

from ..errors import QueryFailed, SparkError, StateRefused
from ..execution.run import FOLDER, Run
from ..feed.native import NativeFeed
from ..plan import Plan
from ..session.engine import lease
from ..session.scratch import Scratch
from ..storage.carried import copy_of_live
from ..storage.folders import remove_folder

if TYPE_CHECKING:
    from exop import Tie

    from .slet import SparkSlet

#: Longest wait for the micro-batch, in seconds.
_PATIENCE: Final = 120.0
_POLL: Final = 0.1


def dry_run(predecessor: SparkSlet, successor: SparkSlet) -> str:
    """Run one micro-batch without rows on a copy of the state of *predecessor*, which goes on; return what it showed.

    Spark compares the schemas of the states when something is computed. Nothing leaves, and the copy is removed.

    Raises:
        QueryRefused: Spark refuses the query of *successor*.
        StateRefused: Spark refuses to go on with this state.
        SparkError: Spark has not answered in time.
    """
    run = predecessor.engine
    if not isinstance(run, Run) or run.directory is None or not run.active:
        return "not tried on a copy: the old query does not run"
    begin = time.monotonic()
    own = predecessor.tie.directory if not run.plan.checkpoints else None  # a state on disk may be too large for memory
    scratch = Scratch(own) if own is not None else None
    place = run._engine.checkpoint(run.plan.checkpoints) if scratch is None else scratch.path
    try:
        batch = copy_of_live(run.directory, place / FOLDER)
        if batch is None:
            return "not tried on a copy: no micro-batch has been committed yet"
        _attempt(replace(successor.plan(), stage="", checkpoints=""), successor.master, place, predecessor.tie)
    except QueryFailed as error:
        raise StateRefused(batch=batch, condition=error.condition, detail=error.detail.rstrip(".")) from error
    finally:
        remove_folder(place)
        if scratch is not None:
            scratch.close()
    took = (time.monotonic() - begin) * 1000
    return f"tried on a copy as of micro-batch {batch}: Spark can go on with it; {took:.0f} ms"


def _attempt(plan: Plan, master: str, place: Any, tie: Tie) -> None:
    """Let the query of *plan* compute one micro-batch without rows, with its checkpoint in *place*.

    It reads by itself the channels that the slet of *tie* does, as far as its offsets are concerned.
    """
    trigger, trial = BatchTrigger(), Run(plan, lease(master))
    try:
        feeds = {
            port: _EmptyNativeFeed(port, one.columns, trigger, event_time=one.time, tie=tie)
            if port in tie.native
            else _EmptyFeed(port, one.columns, trigger, event_time=one.time)
            for port, one in plan.inputs.items()
        }
        trial.compile(plan.query, feeds)
        trial.start(_drop, place)
        deadline = time.monotonic() + _PATIENCE
        while not any(feed.committed.wait(_POLL) for feed in feeds.values()):
            trial.check()
            if time.monotonic() > deadline:
                problem = f"{plan.name}: Spark has not tried it on a copy of the state within {_PATIENCE:.0f} s"
                raise SparkError(f"{problem}; try again when Spark is less busy, or set dry_run=False")
    finally:
        for feed in trigger.feeds:
            feed.retire()
        trial.close()


def _drop(batch: int, results: Iterable[Any], watermark: float | None = None) -> bool:
    """Nothing of a trial leaves."""
    return True


class _EmptyFeed(Feed):
    """Offers one offset more than has been read, and no row for it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._first: Any = None
        self.committed = threading.Event()

    def latest(self, start: Any, limit: int | None, timeout: float) -> Any:
        """Return the next offset once; from then on nothing comes until the query is stopped."""
        if self._first is None:
            self._first = start
        elif start != self._first:
            self.committed.set()
            with self._lock:
                self._lock.wait_for(lambda: self.retired, timeout)
        return self._after(self._first)

    def parts(self, start: int, end: int) -> list[Part]:
        """Return one part."""
        return [Part(start, end, None)]

    def read(self, start: int, end: int) -> pa.Buffer:
        """Return no rows."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema):
            pass
        return sink.getvalue()

    def commit(self, offset: Any) -> None:
        """Nothing is kept."""

    def _after(self, offset: Any) -> Any:
        return offset + 1


class _EmptyNativeFeed(_EmptyFeed, NativeFeed):
    """The same for a channel that Spark reads by itself: an offset that differs, with the same rows before it."""

    def _after(self, offset: Any) -> Any:
        return {**offset, "trial": True}
