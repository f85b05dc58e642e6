"""Engines that are replaced: what the old had put out is not repeated, what it had not is taken by its successor."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bench.durable_app.engine import Doubled, Engine, Summed, doubled_here
from exop import Application, InputPort, Memento, Platform, Punctuation, Slet, input_port, slet
from exop.errors import ComponentFailed, MementoError, PlanError, StateError
from exop.runtime.lifecycle import State
from tests.rig import eventually


class Position(Memento):
    """How far the source has come."""

    number: int = 0


class World:
    """What the test and its slets share."""

    def __init__(self) -> None:
        self.limit = 0
        self.over = False
        self.seen: list[Any] = []


WORLD = World()


@pytest.fixture(autouse=True)
def world():
    """One for each test."""
    vars(WORLD).update(vars(World()))
    return WORLD


@slet
def numbers(position: Position) -> Iterator[int | Punctuation | None]:
    """Emit numbers up to the limit there is, each tenth followed by a punctuation, until it is over."""
    while not (WORLD.over and position.number >= WORLD.limit):
        if position.number < WORLD.limit:
            position.number += 1
            yield position.number
            if position.number % 10 == 0:
                yield Punctuation(position.number)
        else:
            threading.Event().wait(0.001)
            yield None


@slet
def see(item: Any) -> None:
    """Note what comes."""
    WORLD.seen.append(item)


class Stubborn(Engine, own_driver=True):
    """Doubles until a number that it cannot do; then it breaks, and never comes to rest."""

    broken: bool = False

    def work(self, event: int, state: dict[str, int]) -> int:
        """Break at 25."""
        if event == 25 and not self.broken:
            self.broken = True
            self.out.fail(RuntimeError("25"))
            with self._news:
                self._news.wait_for(lambda: self._stopping)
        return 2 * event


class Renamed(Slet):
    """The same with another port."""

    @input_port
    def other(self, item: int) -> int:
        """Double."""
        return 2 * item


def app(kind: Any) -> Application:
    """A source, an engine, a sink."""
    made = Application("a")
    made.add("see", see, item=made.add("engine", kind, number=made.add("numbers", numbers)))
    return made


def ends(platform: Platform, wanted: list[int]) -> None:
    """End the source, and compare what came."""
    WORLD.over = True
    assert platform.wait("a", 60)
    assert WORLD.seen == wanted


def test_to_a_native_twin_and_back_under_load():
    """Every number once, in order, however often the engine is replaced."""
    WORLD.limit = 10**9
    with Platform() as platform:
        mesh = platform.apply(app(Doubled).build())
        for turn in range(10):
            before = len(WORLD.seen)
            eventually(lambda before=before: len(WORLD.seen) > before + 100)
            mesh = platform.apply(mesh.replace("engine", doubled_here if turn % 2 == 0 else Doubled))
        WORLD.limit = 0
        WORLD.over = True
        assert platform.wait("a", 60)
    assert WORLD.seen == [2 * number for number in range(1, len(WORLD.seen) + 1)]
    assert len(WORLD.seen) > 1000


def test_output_that_waits_goes_before_what_the_successor_makes():
    """The sink is suspended: results of a batch wait before it, and the engine has not begun with the next batch."""
    with Platform() as platform:
        mesh = platform.apply(app(Doubled).build())
        mesh = platform.apply(mesh.suspend("see"))
        tie = platform.deployment("a").components["engine"].tie
        WORLD.limit = 100
        eventually(lambda: tie is not None and tie.arrived("number") == 110)
        mesh = platform.apply(mesh.replace("engine", doubled_here), timeout=2)
        platform.apply(mesh.resume("see"))
        ends(platform, [2 * number for number in range(1, 101)])


def test_what_a_broken_engine_has_not_put_out_goes_to_its_successor():
    """It had 40 numbers, broke at the 25th, and had put out none of that batch."""
    WORLD.limit = 40
    with Platform() as platform:
        mesh = platform.apply(app(Stubborn).build())
        component = platform.deployment("a").components["engine"]
        eventually(lambda: component.status is State.FAILED)
        plan = platform.plan(mesh.replace("engine", doubled_here))
        assert "input that it has not processed goes to its successor" in str(plan)
        plan.apply()
        ends(platform, [2 * number for number in range(1, 41)])


def test_an_engine_that_does_not_come_to_rest_is_replaced_all_the_same(monkeypatch):
    """What it was given is known: waiting for it has an end, and nothing is lost."""

    class Silent(Doubled, own_driver=True):
        """Takes, puts out nothing, and says so."""

        def quiesce(self) -> None:
            """Give up."""
            raise RuntimeError("I cannot")

        def _run(self) -> None:
            self._next()
            with self._news:
                self._news.wait_for(lambda: self._stopping)

    monkeypatch.setattr("tests.change.test_engines.Silent", Silent, raising=False)
    WORLD.limit = 25
    with Platform() as platform:
        mesh = platform.apply(app(Silent).build())
        tie = platform.deployment("a").components["engine"].tie
        eventually(lambda: tie is not None and tie.arrived("number") == 27)
        platform.apply(mesh.replace("engine", Doubled))
        ends(platform, [2 * number for number in range(1, 26)])


def test_an_end_that_was_given_to_the_old_ends_the_new():
    """The end of the stream is among what it has not put out."""
    WORLD.limit, WORLD.over = 30, True
    with Platform() as platform:
        mesh = platform.apply(app(Stubborn).build())
        component = platform.deployment("a").components["engine"]
        eventually(lambda: component.status is State.FAILED)
        platform.apply(mesh.replace("engine", doubled_here))
        ends(platform, [2 * number for number in range(1, 31)])


def test_a_successor_without_the_port_is_refused():
    """What was given would have nowhere to go; the old is still there."""
    WORLD.limit = 40
    other = Application("a")
    other.add("see", see, item=other.add("engine", Renamed, other=other.add("numbers", numbers)))
    with Platform() as platform:
        mesh = platform.apply(app(Stubborn).build())
        component = platform.deployment("a").components["engine"]
        eventually(lambda: component.status is State.FAILED)
        with pytest.raises(PlanError, match="successor has no such port"):
            platform.apply(other.build().at(mesh.revision))
        assert platform.deployment("a").components["engine"] is component


def test_settings_that_an_engine_cannot_take_in_place_open_another_one():
    """Its state goes over inside of the engine, as the plan says."""
    WORLD.limit = 50
    with Platform() as platform:
        mesh = platform.apply(app(Summed).build())
        eventually(lambda: len(WORLD.seen) == 50)
        first = platform.deployment("a").components["engine"]
        plan = platform.plan(mesh.configure("engine", most=7))
        assert "by itself; the state inside summed is taken over by summed\n    most: 40 → 7\n" in str(plan)
        plan.apply()
        assert platform.deployment("a").components["engine"] is not first
        WORLD.limit = 100
        ends(platform, [number * (number + 1) // 2 for number in range(1, 101)])


def test_a_state_that_nobody_can_take_over_is_not_lost_silently():
    """Refused in the plan, unless it is told."""
    WORLD.limit = 5
    with Platform() as platform:
        mesh = platform.apply(app(Summed).build())
        eventually(lambda: len(WORLD.seen) == 5)
        with pytest.raises(MementoError, match="summed sums otherwise|engine keeps it"):
            platform.plan(mesh.replace("engine", doubled_here))
        platform.apply(mesh.replace("engine", doubled_here, lose_state=True))
        WORLD.limit = 7
        ends(platform, [1, 3, 6, 10, 15, 12, 14])


def test_an_engine_tries_beforehand_whether_it_can_take_over(monkeypatch):
    """On a copy, when the change is planned: what it found stands in the plan, or refuses the change."""
    WORLD.limit = 5
    with Platform() as platform:
        mesh = platform.apply(app(Summed).build())
        eventually(lambda: len(WORLD.seen) == 5)
        monkeypatch.setattr(Summed, "try_inherit", lambda old, after: f"tried with {after.settings['most']}")
        text = str(platform.plan(mesh.configure("engine", most=7)))
        assert "the state inside summed is taken over by summed (tried with 7)\n" in text

        def refuse(predecessor: Any, after: Any) -> str:
            raise StateError(f"{predecessor.most} is another schema than {after.settings['most']}")

        monkeypatch.setattr(Summed, "try_inherit", refuse)
        with pytest.raises(MementoError, match=r"summed: 40 is another schema than 7; replace engine with lose_state"):
            platform.plan(mesh.configure("engine", most=7))
        WORLD.limit = 7
        ends(platform, [1, 3, 6, 10, 15, 21, 28])


def test_an_engine_that_cannot_take_over_leaves_everything_as_it_was(monkeypatch):
    """What fails while it inherits refuses the change."""

    def refuse(self: Any, predecessor: Any) -> None:
        raise ValueError("another schema")

    WORLD.limit = 5
    with Platform() as platform:
        mesh = platform.apply(app(Summed).build())
        eventually(lambda: len(WORLD.seen) == 5)
        monkeypatch.setattr(Summed, "inherit", refuse)
        with pytest.raises(ComponentFailed, match=r"cannot go on with the state inside summed: another schema"):
            platform.apply(mesh.configure("engine", most=7))
        WORLD.limit = 7
        ends(platform, [1, 3, 6, 10, 15, 21, 28])


@pytest.mark.parametrize("at", [14, 16, 18])
def test_the_end_that_an_engine_has_not_passed_on_comes_from_its_successor(at: int):
    """Also if that is no engine: the end waits behind a slet that is suspended."""
    broken = [True]

    @slet(on_error="suspend")
    def breaks(number: int) -> int:
        if broken[0] and number == at:
            raise ValueError("it does not work")
        return number

    with Platform() as platform:
        WORLD.limit, WORLD.over = 9, True
        made = Application("app")
        made.add(
            "see",
            see,
            item=made.add("breaks", breaks, number=made.add("engine", Doubled, number=made.add("numbers", numbers))),
        )
        mesh = platform.apply(made.build())
        engine = platform.deployment("app").components["engine"]
        eventually(lambda: "number" in engine.ended and platform.deployment("app").components["breaks"].blocked)
        platform.apply(mesh.replace("engine", doubled_here), timeout=1)
        broken[0] = False
        platform.resume("app", "breaks")
        assert platform.wait("app", 10)
        assert WORLD.seen == [*range(2, 20, 2)]


def test_the_end_that_a_slet_has_pulled_comes_from_its_successor():
    """A slet that goes on to emit after the last item is replaced by one that does not pull."""

    @slet
    def goes_on(number: InputPort[int]) -> Iterator[int]:
        yield from number
        while True:
            threading.Event().wait(0.001)
            yield 0

    with Platform() as platform:
        WORLD.limit, WORLD.over = 9, True
        made = Application("app")
        made.add("see", see, item=made.add("pulls", goes_on, number=made.add("numbers", numbers)))
        mesh = platform.apply(made.build())
        eventually(lambda: 0 in WORLD.seen)
        platform.apply(mesh.replace("pulls", doubled_here))
        assert platform.wait("app", 10)
        assert [one for one in WORLD.seen if one] == [*range(1, 10)]
