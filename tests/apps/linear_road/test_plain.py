"""All slets in a plain loop."""

import random

import pytest

from apps.linear_road import plain
from apps.linear_road.accounts import Balance
from apps.linear_road.clock import Clock
from apps.linear_road.notifications import AccidentNotification, TollNotification
from apps.linear_road.plain import Loop, Straight
from apps.linear_road.tolls import Tolls
from apps.linear_road.traffic import Position, Traffic
from apps.linear_road.trips import Trips
from apps.linear_road.validate import command


def drive(vid, rng, minutes):
    """The lines of one vehicle: it hops between few segments, stops at few places, leaves, comes back and asks."""
    second, segment, lane = rng.randrange(60), rng.randrange(4), 0
    while second < 60 * minutes:
        spot = 5280 * segment + (9 if rng.random() < 0.6 else rng.randrange(5280))
        place = f"0,{lane},{int(vid % 5 == 0)},{segment},{spot}"
        yield second, f"0,{second},{vid},{rng.randrange(50)},{place},-1,-1,-1,-1,-1,-1"
        if rng.random() < 0.1:
            yield second, f"{rng.choice((2, 3))},{second},{vid},9,{place},{1000 * vid + second},-1,-1,-1,-1,1"
        second += 30
        if rng.random() < 0.4:
            segment, lane = rng.randrange(4), rng.choice((0, 1, 1, 2, 4))


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    """Nine minutes of crowded, slow and disorderly traffic, and its history."""
    folder, rng = tmp_path_factory.mktemp("traffic"), random.Random(5)
    rows = sorted((row for vid in range(300) for row in drive(vid, rng, 9)), key=lambda row: row[0])
    (folder / "in.csv").write_text("".join(f"{text}\n" for _, text in rows))
    (folder / "history.csv").write_text("".join(f"{vid},1,0,{vid + 10}\n" for vid in range(0, 300, 2)))
    return folder


def lines(path):
    """The answers without their emit times, sorted."""
    place = {"0": 3}
    return sorted(
        [part for at, part in enumerate(line.split(",")) if at != place.get(line[0], 2)] for line in path.open()
    )


class Replacing(Loop):
    """A loop in which every slet is replaced, with a copy of its memento, every eleven seconds."""

    def _complete(self, second):
        super()._complete(second)
        if second.time % 11:
            return
        self.trips = Trips(phases=self.trips.__self__.phases.copied()).tuples
        self.standing, self.minutes = self.standing.copied(), self.minutes.copied()
        self.whereabouts = self.whereabouts.copied()
        self.tolls = Tolls(figures=self.tolls.figures.copied())
        told = self.toll_notification
        self.toll_notification = TollNotification(owed=told.owed.copied(), charges=told.charges)
        self.accident_notification = AccidentNotification(warned=self.accident_notification.warned.copied())
        self.balance = Balance(ledger=self.balance.ledger.copied())


def answered(traffic, output, overdue=0.0, kind=Loop, **settings):
    """The answers of a run on a clock that only sleeping moves; it begins with so many seconds overdue."""
    loop = kind(traffic / "history.csv", output)
    position = Position(clock=Clock(1000.0 - overdue, 0, 1.0))
    source = Traffic(input=traffic / "in.csv", position=position, clock=Straight(loop.answers.clock), **settings)
    wall = [1000.0]
    source.now = loop.answers.now = lambda: wall[0]
    source.sleep = lambda seconds: wall.__setitem__(0, wall[0] + seconds)
    loop.run(source)
    return lines(output)


def test_answers_are_those_of_the_reference(traffic, tmp_path):
    """The slets, put together, answer each question and entry as the independent implementation of the rules does."""
    answered(traffic, tmp_path / "out")
    files = [traffic / "in.csv", traffic / "history.csv", tmp_path / "out"]
    assert command([*map(str, files), "--strict-balance"]) == 0


def test_answers_do_not_depend_on_how_the_input_is_batched(traffic, tmp_path):
    """Second by second, in batches over several minutes, or all at once: the answers are the same."""
    singly = answered(traffic, tmp_path / "singly")
    assert {line[0] for line in singly} == {"0", "1", "2", "3"}
    assert any(line[0] == "0" and int(line[-1]) > 0 for line in singly)
    for rows in (50, 900, 1_000_000):
        assert answered(traffic, tmp_path / str(rows), overdue=1000.0, batch=rows) == singly


def test_a_run_tells_its_figures(traffic, tmp_path):
    """The command's figures are those of source and sink."""
    figures = plain.run(traffic / "in.csv", traffic / "history.csv", tmp_path / "out")
    assert figures["rows"] == sum(1 for _ in (traffic / "in.csv").open())
    assert figures["type0/answers"] == sum(1 for line in (tmp_path / "out").open() if line[0] == "0")


def test_all_state_is_in_the_mementos(traffic, tmp_path):
    """Replacing every slet again and again, with nothing but a copy of its memento, changes no answer."""
    usual = answered(traffic, tmp_path / "usual")
    assert answered(traffic, tmp_path / "replaced", kind=Replacing) == usual
