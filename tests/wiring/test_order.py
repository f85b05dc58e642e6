"""An engine in a durable application is given what comes in the same order again after a crash, or it is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from bench.durable_app.engine import Doubled
from exop import Application, Batch, InputPort, Platform, Slet, hookimpl, input_port, slet
from exop.errors import WiringError
from exop.hooks import Plugins


@slet
def numbers() -> Iterator[int]:
    """A source."""
    yield from range(3)


class Merges(Slet, name="merges"):
    """A source that reads several partitions, in any order."""

    @classmethod
    def repeats(cls, settings: Mapping[str, Any]) -> bool:
        """Never."""
        return False

    def __iter__(self) -> Iterator[int]:
        yield from range(3)


@slet
def same(number: int) -> int:
    """Pass on."""
    return number


@slet
def drop(number: int) -> None:
    """Drop."""


class Lots(Slet, name="lots"):
    """Adds what waits."""

    gathers: ClassVar[int] = 100

    @input_port
    def number(self, number: Batch[int]) -> int:
        """Emit the sum."""
        return sum(number)


class Marking(Slet, name="marking"):
    """Its punctuations are waited for by the clock."""

    idle: float | None = None

    @input_port
    def number(self, number: int) -> int:
        """Pass on."""
        return number


@slet
def pulls(number: InputPort[int]) -> Iterator[int]:
    """Add what can be pulled."""
    while lot := number.pull():
        yield sum(lot)


@slet
def pairs() -> Iterator[Batch[int]]:
    """A source of batches."""
    yield Batch([1, 2])


class Offers:
    """The slets, as a plugin."""

    @staticmethod
    @hookimpl
    def register_slets() -> list[Any]:
        """All of them."""
        return [numbers, Merges, same, drop, Doubled, Lots, Marking, pulls, pairs]


def applied(app: Application, state: Any, *, durable: bool = True) -> None:
    """Run it to its end."""
    plugins = Plugins()
    plugins.register("test", Offers())
    app.durable(every=60)
    with Platform(state=state, control=False, plugins=plugins) as platform:
        platform.apply(app.build() if durable else app.build().edited(durable=None))
        assert platform.wait(app.name, 20)


def refused(app: Application, state: Any, why: str) -> None:
    """It is not run durably; the cure that always helps is to leave that out."""
    with pytest.raises(WiringError, match=rf"{why}.*; put the engine before that, .*, or leave out app.durable\(\)"):
        applied(app, state)
    applied(app, state, durable=False)


def merged(app: Application, *names: str) -> Any:
    """A channel into which several sources push."""
    both = app.channel("both")
    for name in names:
        app.add(name, numbers, out=both)
    return both


@pytest.mark.parametrize("between", [0, 1])
def test_two_sources_that_meet_before_an_engine_are_refused(tmp_path, between):
    """At its port, or farther upstream; the place is named, with what to do."""
    app = Application("a")
    stream = merged(app, "one", "two")
    for number in range(between):
        stream = app.add(f"same{number}", same, number=stream)
    app.add("drop", drop, number=app.add("engine", Doubled, number=stream))
    refused(app, tmp_path, "engine commits by itself.*streams meet at ")


@pytest.mark.parametrize("between", [0, 1])
def test_a_source_that_merges_partitions_before_an_engine_is_refused(tmp_path, between):
    """After a crash it would emit other items under the same numbers."""
    app = Application("a")
    stream = app.add("merges", Merges)
    for number in range(between):
        stream = app.add(f"same{number}", same, number=stream)
    app.add("drop", drop, number=app.add("engine", Doubled, number=stream))
    refused(app, tmp_path, "engine commits by itself.*other items may come at merges before it")


def test_one_stream_is_taken_also_by_several_ways(tmp_path):
    """Branches of one driver meet in an order that is always the same; so does what other engines put out."""
    app = Application("a")
    stream = app.add("one", numbers)
    joined = app.channel("joined")
    for number in range(2):
        app.add(f"same{number}", same, number=stream, out=joined)
    first = app.add("engine", Doubled, number=joined)
    app.add("drop", drop, number=app.add("next", Doubled, number=app.add("then", same, number=first)))
    applied(app, tmp_path)


def test_a_queue_with_one_pusher_keeps_the_order(tmp_path):
    """It changes threads, and nothing else."""
    app = Application("a")
    queue = app.channel("queue", kind="queue", capacity=2)
    app.add("one", numbers, out=queue)
    app.add("drop", drop, number=app.add("engine", Doubled, number=queue))
    applied(app, tmp_path)


def test_behind_engines_streams_may_meet(tmp_path):
    """One engine for each stream; and what is not durable is not refused at all."""
    app = Application("a")
    both = app.channel("both")
    for name in ("one", "two"):
        app.add(f"engine-{name}", Doubled, number=app.add(name, numbers), out=both)
    app.add("drop", drop, number=both)
    applied(app, tmp_path)


def behind(app: Application, *slets: Any, source: Any = numbers) -> None:
    """Put a queue behind a source, these slets behind the queue, and a sink behind them."""
    end: Any = app.channel("queue", kind="queue")
    app.add("one", source, out=end)
    for made in slets:
        end = app.add(made.__slet__.name, made, number=end)
    app.add("drop", drop, number=end)


@pytest.mark.parametrize(
    ("made", "why"), [(Lots, "lots takes what waits as one batch"), (pulls, "pulls pulls what waits")]
)
def test_an_engine_behind_a_slet_that_gathers_is_put_before_it(tmp_path, made, why):
    """After a crash other numbers of items would wait; the cure that is named is one."""
    app = Application("a")
    behind(app, made, same, Doubled)
    refused(app, tmp_path, f"{why} before it")
    app = Application("a")
    behind(app, Doubled, made)
    applied(app, tmp_path)


def test_batches_that_are_pushed_stay_whole(tmp_path):
    """An engine may stand behind a slet that would gather single items."""
    app = Application("a")
    behind(app, Lots, Doubled, source=pairs)
    applied(app, tmp_path)


@pytest.mark.parametrize("idle", [None, 1.0])
def test_ways_that_wait_for_each_other_by_the_clock(tmp_path, idle):
    """One stream that takes several ways keeps its order, unless one of them is waited for by the clock."""
    app = Application("a")
    stream, joined = app.add("one", numbers), app.channel("joined")
    app.add("same", same, number=stream, out=joined)
    app.add("marking", Marking, number=stream, out=joined, idle=idle)
    app.add("drop", drop, number=app.add("engine", Doubled, number=joined))
    if idle is None:
        applied(app, tmp_path)
    else:
        refused(app, tmp_path, "ways that meet wait for marking by the clock")
