"""`stock:clock`: when its punctuations come, what they close, and what a log keeps of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from exop import Application, EndOfStream, Platform, Punctuation, slet
from exop.errors import ExpressionError, SettingError
from exop.model.slets.stored_memento import dump_memento, load_memento
from exop.runtime.channels import base
from exop.stock.event_time import Clock, Ticked
from exop.stock.sources import read_log
from exop.testing import feed
from exop.testing import open as open_slet
from tests.change.tools import Tap, changed
from tests.rig import PATIENCE, eventually, seeing


class Time:
    """The clocks of the slet and of the points where streams meet, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0

    def pass_to(self, now: float) -> None:
        """Let the time pass, and wait until the punctuation of it has been processed."""
        self.now, before = now, self.asked
        eventually(lambda: self.asked > before + 2)

    def nanoseconds(self) -> int:
        """The clock of the slet."""
        self.asked += 1
        return round(self.now * 1e9)

    def seconds(self) -> float:
        """The clock of the merges."""
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clocks, driven by the test."""
    made = Time()
    monkeypatch.setattr("exop.stock.event_time.now", made.nanoseconds)
    monkeypatch.setattr(base, "clock", made.seconds)
    return made


@dataclass(frozen=True)
class Reading:
    """An item."""

    time: int


@slet
def reading(number: int) -> Reading:
    """Make readings of numbers."""
    return Reading(number)


def after(clock: Time, moments: list[float], ticked: Ticked, **settings: Any) -> list[float | None]:
    """The earliest time that may follow the punctuation at each moment, or `None` if there is no new one."""
    found = []
    with open_slet(Clock, ticked=ticked, **settings) as opened:
        ticks = iter(opened)
        for clock.now in moments:
            one = next(ticks)
            found.append(None if one is None else one.following)
    return found


def test_the_times_are_the_multiples_of_every(clock):
    """A punctuation follows when the clock, minus the delay, passes one; all at once if it leaps."""
    moments = [1003, 1004.5, 1009.9, 1013, 1050]
    assert after(clock, moments, Ticked(), every=10, delay=3) == [1000, None, None, 1010, 1040]
    assert after(clock, [7.75, 8.0], Ticked(), every=0.25, unit="s") == [7.75, 8.0]
    assert after(clock, [7.75, 8.0], Ticked(), every=0.25, unit="ms") == [7750, 8000]
    assert after(clock, [7.75, 8.0], Ticked(), every=0.25, unit="us") == [7_750_000, 8_000_000]
    assert after(clock, [7.75], Ticked(), every=0.25, unit="ns") == [7_750_000_000]


def test_the_times_never_decrease(clock):
    """Neither if the clock is set back, nor after a restart, with a greater delay or another unit."""
    ticked = Ticked()
    assert after(clock, [100, 70, 109, 110], ticked, every=10) == [100, None, None, 110]
    ticked = load_memento(dump_memento(ticked, "ticked"), Ticked, "ticked")
    assert after(clock, [105, 139, 140], ticked, every=10, delay=20, unit="ms") == [None, None, 120_000]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"every": 0}, "'every' does not fit: it is 0, and must be finite, and at least a nanosecond"),
        ({"every": math.nan}, "'every' does not fit: it is nan"),
        ({"delay": -1}, "'delay' does not fit: it is -1, and must be finite, and 0 or more"),
        ({"idle": 0}, "'idle' does not fit: it is 0, .* leave it out to wait without end"),
        ({"unit": "h"}, "'unit' does not fit: 'h' is none of the choices"),
    ],
)
def test_lengths_that_are_none_are_refused(wrong, text):
    """At the line that adds the clock."""
    with pytest.raises(SettingError, match=f"^clock: the setting {text}"):
        Application("clocks").add("clock", "stock:clock", **{"every": 1, **wrong})


def test_the_items_beside_a_clock_keep_their_type():
    """A field that they lack is refused, as without a clock."""
    app = Application("typed")
    channel = app.channel("met")
    app.add("clock", Clock, every=1, out=channel)
    app.add("readings", reading, number=app.add("numbers", "stock:count_up", to=1), out=channel)
    with pytest.raises(ExpressionError, match="Reading has no field 'tim'"):
        app.add("split", "stock:split", item=channel, conditions={"late": "item.tim > 1"})


@pytest.mark.parametrize("timed", [True, False])
def test_a_stream_that_falls_silent_is_not_waited_for(clock, timed):
    """After its `idle`, or if it sends no punctuations that of the clock, the punctuations of the clock pass."""
    tap, seen = Tap(), list[Any]()
    app = Application("silent")
    channel = app.channel("met")
    items = app.add("readings", reading, number=app.add("numbers", tap.source()), **({} if timed else {"out": channel}))
    if timed:
        app.add("timed", "stock:watermark", item=items, time="time", idle=5, out=channel)
    app.add("clock", "stock:clock", every=10, idle=20, out=channel)
    app.add("seen", seeing(seen), item=channel)
    with Platform() as platform:
        platform.apply(app.build())
        tap.let(3)
        eventually(lambda: Reading(3) in seen)
        for now in (11, 22, 33):
            clock.pass_to(now)
        eventually(lambda: _last(seen) == Punctuation.before(30))
        assert (Punctuation.before(10) in seen) == timed
        changed(platform, "silent", lambda mesh: mesh.replace("clock", Clock, every=20, idle=20))
        clock.now = 41
        eventually(lambda: _last(seen) == Punctuation.before(40))
        tap.shut()
        platform.end("silent")
        assert platform.wait("silent", PATIENCE)
    times = [one.time for one in seen if isinstance(one, Punctuation)]
    assert times == sorted({*times})
    assert seen[-1] == EndOfStream()


def _last(seen: list[Any]) -> Any:
    return seen[-1] if seen else None


def test_a_log_keeps_what_a_clock_has_emitted(clock, tmp_path):
    """A reader gets the punctuations where they were, whatever its clock shows."""
    tap, seen = Tap(), list[Any]()
    app = Application("kept")
    channel = app.channel("met", kind="log", path=tmp_path / "log")
    app.add("readings", reading, number=app.add("numbers", tap.source()), out=channel)
    app.add("clock", "stock:clock", every=10, idle=1, out=channel)
    app.add("seen", seeing(seen), item=channel)
    with Platform() as platform:
        platform.apply(app.build())
        for clock.now in (15, 25, 35):
            tap.let(1)
            eventually(lambda: Reading(round(clock.now) // 10) in seen)
            eventually(lambda: _last(seen) == Punctuation.before(clock.now // 10 * 10))
        tap.shut()
        platform.end("kept")
        assert platform.wait("kept", PATIENCE)
    clock.now = 1e6
    assert feed(read_log, path=tmp_path / "log") == seen[:-1]
