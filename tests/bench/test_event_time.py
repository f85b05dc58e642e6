"""Windows and late items of random meshes are those that DuckDB finds; each planted mistake is found."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench.cases import failures
from bench.event_time import timed_case
from exop.model.items import Punctuation
from exop.runtime.channels.base import LOWEST, ControlMerge
from exop.runtime.channels.port_window import PortWindow
from exop.stock.event_time import Watermark
from exop.wiring.changes import channels

#: Each of the mistakes shows in one of so many cases.
CASES = 60


@pytest.mark.edges
def test_windows_and_late_items_are_those_of_the_sorted_whole():
    """For random sources, disorder, changes and crashes: nothing lost, doubled or reordered, late by the rule alone."""
    found = failures(timed_case, 10)
    assert not found, "\n".join(found)


def closed_by_an_item(patch: pytest.MonkeyPatch) -> None:
    """A later item closes a window."""
    add = PortWindow.add

    def closing(self: PortWindow, item: Any) -> Iterator[Any]:
        yield from [*add(self, item)]
        yield from self.advance(self.time(item)) if self.time is not None else ()

    patch.setattr(PortWindow, "add", closing)


def largest_counts(patch: pytest.MonkeyPatch) -> None:
    """Where streams meet, the latest punctuation counts."""
    following = ControlMerge._next

    def latest(self: ControlMerge, expected: set[str], ended: set[str]) -> list[Any]:
        found = following(self, expected, ended)
        times = [self._times.get(name, LOWEST) for name in expected - ended]
        if self.done or not times:
            return found
        return [Punctuation(max(times))] if max(times) > self._sent else []

    patch.setattr(ControlMerge, "_next", latest)


def late_by_one(patch: pytest.MonkeyPatch) -> None:
    """An item at the boundary is late."""
    take = Watermark.item

    def strict(self: Watermark, item: Any) -> Any:
        if getattr(item, "t", None) == self.followed.floor:
            self.late.push(item)
            return ()
        return take(self, item)

    patch.setattr(Watermark, "item", strict)


def memento_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A watermark begins anew after a replacement or a crash."""
    enter = Watermark.__enter__

    def forgetting(self: Watermark) -> Watermark:
        self.followed.floor = LOWEST
        return enter(self)

    patch.setattr(Watermark, "__enter__", forgetting)


def another_delay_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A watermark that is configured goes on with its first delay."""
    take = Watermark.item

    def as_before(self: Watermark[Any], item: Any) -> Any:
        self.delay = vars(self).setdefault("first", self.delay)
        return take(self, item)

    patch.setattr(Watermark, "item", as_before)


def columns_are_late_as_a_whole(patch: pytest.MonkeyPatch) -> None:
    """Of a record batch with a late row all rows are late."""
    take = Watermark._batch

    def whole(self: Watermark[Any], batch: Any) -> Any:
        if any(time < self.followed.floor for time in batch.column(self.time).to_pylist()):
            self.late.push_batch(batch)
            return ()
        return take(self, batch)

    patch.setattr(Watermark, "_batch", whole)


def late_and_not_counted(patch: pytest.MonkeyPatch) -> None:
    """The windows do not count the items of streams that come back too late."""
    patch.setattr(PortWindow, "all_late", lambda self: 0)


def items_tell_the_time_too(patch: pytest.MonkeyPatch) -> None:
    """A window follows the times of items although punctuations come."""
    patch.setattr(channels, "unpunctuated", lambda graph, name: ([edge.name for edge in graph.producers[name]], []))


@pytest.mark.edges
@pytest.mark.parametrize(
    ("plant", "known"),
    [
        (closed_by_an_item, 0),
        (largest_counts, 0),
        (late_by_one, 0),
        (memento_forgotten, 10),
        (another_delay_is_ignored, 15),
        (columns_are_late_as_a_whole, 0),
        (late_and_not_counted, 7),
        (items_tell_the_time_too, 0),
    ],
)
def test_a_planted_mistake_is_found(monkeypatch, plant: Callable[[pytest.MonkeyPatch], None], known: int):
    """The comparison is worth something; the case in which the mistake shows comes first."""
    plant(monkeypatch)
    found = next(filter(None, (failures(timed_case, 1, seed) for seed in (known, *range(CASES)))))
    assert "AssertionError: " in found[0]
