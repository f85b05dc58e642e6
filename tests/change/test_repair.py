"""A slet is suspended on an item, and repaired: the same item is tried again, once, in its order."""

import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from exop import Application, Batch, InputPort, Memento, slet
from exop.errors import ComponentFailed
from exop.report import totals_of
from tests.change.tools import (
    Position,
    Sum,
    chain,
    changed,
    count_to,
    end,
    endless,
    finish,
    grows,
    plain,
    plain_too,
    suspended,
    whole,
    writing,
)
from tests.rig import PATIENCE, eventually


@slet
def picky(x: int, *, poison: int = 50) -> int:
    """Pass on, all but one."""
    if x == poison:
        raise ValueError(f"{x} is poison")
    return x


@slet
def many(x: int) -> Iterator[int]:
    """Emit every number twice, negated the second time."""
    yield x
    yield -x


@slet
def in_batches(position: Position, *, to: int = 100, size: int = 7) -> Iterator[Batch[int]]:
    """Emit 1, 2, 3, … in batches."""
    while position.number < to:
        first = position.number + 1
        position.number = min(to, position.number + size)
        yield Batch(range(first, position.number + 1))


@slet
def reserved(x: int) -> int:
    """Call a function of the user's that raises."""
    return refusing(x)


def refusing(x: int) -> int:
    """Raise."""
    raise ValueError(f"not {x}")


REPAIRS = {
    "replace": lambda mesh: mesh.replace("b", plain),
    "configure": lambda mesh: mesh.configure("b", poison=-1),
}


@pytest.mark.parametrize("source", [count_to, in_batches], ids=["items", "batches"])
@pytest.mark.parametrize("policy", ["suspend", "retry", "dead-letter"])
def test_a_traceback_begins_in_the_slet(platform, source, policy):
    """The frames from which the platform calls a slet are no part of it: the user sees his code, the node, the item."""
    app = Application("app")
    same = app.add("b", plain, x=app.add("a", source, to=1))
    app.add("c", reserved, x=same, on_error=policy)
    platform.apply(app.build())
    if policy == "dead-letter":
        finish(platform, "app")
        (failed,) = platform.dead_letters("app", "c")
    else:
        suspended(platform, "app", "c")
        failed = platform.kept_item("app", "c")
        with pytest.raises(ComponentFailed) as told:
            platform.wait("app", PATIENCE)
        frames = traceback.extract_tb(told.value.__cause__.__traceback__)
        assert [frame.name for frame in frames] == ["reserved", "refusing"]
    last = failed.traceback.rpartition("Traceback (most recent call last):\n")[2]
    assert [line.split(", in ")[1] for line in last.splitlines() if ", in " in line] == ["reserved", "refusing"]
    assert "fused" not in failed.traceback
    assert last.splitlines()[-1] == "in the slet 'c', port 'x', for the item 1"


def test_a_replaced_slet_keeps_its_errors_in_the_report(platform):
    """What a slet has raised stands in the status after it was replaced, or removed, with its node and name."""
    seen: list[int] = []
    platform.apply(chain("app", endless, picky, picky, writing(seen), c={"poison": 60}).build())
    suspended(platform, "app", "b")
    changed(platform, "app", REPAIRS["replace"])
    suspended(platform, "app", "c")
    assert [one["node"] for one in platform.status("app")["replaced"]] == ["b"]
    changed(platform, "app", lambda mesh: mesh.rewire("d", x="b").remove("c"))
    grows(seen)
    told = platform.status("app")["replaced"]
    assert [(one["node"], one["errors"], one["last_error"]) for one in told] == [
        ("b", 1, "ValueError: 50 is poison"),
        ("c", 1, "ValueError: 60 is poison"),
    ]
    assert {one["slet"] for one in told} == {"tests.change.test_repair:picky"}
    assert totals_of(platform.status("app"))["errors"] == 2


@pytest.mark.parametrize("repair", REPAIRS)
@pytest.mark.parametrize("batches", [False, True], ids=["items", "batches"])
def test_a_fan_out_around_it(platform, repair, batches):
    """Those who stand beside the suspended slet get every item once, in order, before and after it."""
    left, middle, right = list[int](), list[int](), list[int]()
    app = Application("app")
    numbers = app.add("a", in_batches if batches else count_to, to=100)
    twice = app.add("m", many, x=numbers)
    app.add("left", writing(left), x=twice)
    passed = app.add("b", picky, x=twice)
    app.add("middle", writing(middle), x=passed)
    app.add("right", writing(right), x=twice)
    platform.apply(app.build())
    suspended(platform, "app", "b")
    changed(platform, "app", REPAIRS[repair])
    finish(platform, "app")
    expected = [y for x in range(1, 101) for y in (x, -x)]
    assert (left, middle, right) == (expected, expected, expected)


@pytest.mark.parametrize("other", ["left", "m", "middle"])
def test_another_change_leaves_it_suspended(platform, other):
    """What is changed beside, before or behind a suspended slet does not try its item again, and loses nothing."""
    left, middle, again = list[int](), list[int](), list[int]()
    app = Application("app")
    numbers = app.add("a", count_to, to=100)
    twice = app.add("m", plain, x=numbers)
    passed = app.add("b", picky, x=twice)
    app.add("left", writing(left), x=twice)
    app.add("middle", writing(middle), x=passed)
    platform.apply(app.build())
    suspended(platform, "app", "b")
    sinks = {"left": left, "middle": middle}
    successor = writing(again) if other in sinks else plain_too
    changed(platform, "app", lambda mesh: mesh.replace(other, successor))
    component = platform.deployment("app").components["b"]
    assert (component.status, component.metrics.errors) == ("failed", 1)
    changed(platform, "app", lambda mesh: mesh.configure("b", poison=-1))
    finish(platform, "app")
    if other in sinks:
        sinks[other] += again
    whole(left, 100)
    whole(middle, 100)


@pytest.mark.parametrize("way", ["resume", "configure"])
def test_an_item_that_fails_again(platform, way):
    """A repair that repairs nothing leaves the slet suspended on the same item."""
    seen: list[int] = []
    platform.apply(chain("app", count_to, picky, writing(seen), a={"to": 100}).build())
    suspended(platform, "app", "b")
    component = platform.deployment("app").components["b"]
    if way == "resume":
        platform.resume("app", "b")
    else:
        # The default, set from now on: a change of the node, after which its item is tried again.
        platform.apply(platform.mesh("app").configure("b", poison=50))
    eventually(lambda: component.metrics.errors == 2)
    suspended(platform, "app", "b")
    assert component.trouble.kept.item == 50
    with pytest.raises(ComponentFailed, match="50 is poison"):
        platform.wait("app", 0.01)
    changed(platform, "app", lambda mesh: mesh.replace("b", plain))
    finish(platform, "app")
    whole(seen, 100)


def test_a_state_is_kept_with_the_item(platform):
    """The memento of the failed slet goes over as the failed call has left it; of an atomic one as it was before."""

    def adding(*, atomic: bool, broken: bool) -> Any:
        @slet(atomic=atomic)
        def add(x: int, total: Sum) -> int:
            total.count += 1
            if broken and x == 50:
                raise ValueError(x)
            total.total += x
            return x

        return add

    for atomic in (False, True):
        seen: list[int] = []
        platform.apply(chain("app", count_to, adding(atomic=atomic, broken=True), writing(seen), a={"to": 100}).build())
        suspended(platform, "app", "b")
        changed(platform, "app", lambda mesh, atomic=atomic: mesh.replace("b", adding(atomic=atomic, broken=False)))
        finish(platform, "app")
        whole(seen, 100)
        state = platform.deployment("app").components["b"].state
        assert (state.count, state.total) == (100 if atomic else 101, 5050)
        platform.remove("app")


def test_a_broken_source(platform):
    """A source that raised is replaced by one that goes on at its position; nothing comes twice."""

    @slet
    def breaks(position: Position) -> Iterator[int]:
        while True:
            if position.number == 20:
                raise OSError("the disk is gone")
            position.number += 1
            yield position.number

    seen: list[int] = []
    platform.apply(chain("app", breaks, writing(seen)).build())
    suspended(platform, "app", "a")
    changed(platform, "app", lambda mesh: mesh.replace("a", count_to, to=100))
    finish(platform, "app")
    whole(seen, 100)


def test_a_broken_slet_that_pulls(platform):
    """The item on which a pulling slet raised is the first one that its successor gets."""

    @slet
    def breaks(pulled: InputPort[int]) -> Iterator[int]:
        for x in pulled:
            if x == 50:
                raise ValueError(x)
            yield x

    @slet
    def passes(pulled: InputPort[int]) -> Iterator[int]:
        yield from pulled

    seen: list[int] = []
    app = Application("app")
    numbers = app.add("a", count_to, to=100)
    passed = app.add("b", breaks, pulled=numbers)
    app.add("c", writing(seen), x=passed)
    platform.apply(app.build())
    suspended(platform, "app", "b")
    changed(platform, "app", lambda mesh: mesh.replace("b", passes))
    finish(platform, "app")
    whole(seen, 100)


def test_the_suspended_slet_is_removed(platform):
    """Its item goes with it; those beside it get everything."""
    left, right = list[int](), list[int]()
    app = Application("app")
    numbers = app.add("a", count_to, to=100)
    passed = app.add("b", picky, x=numbers)
    app.add("left", writing(left), x=passed)
    app.add("right", writing(right), x=numbers)
    platform.apply(app.build())
    suspended(platform, "app", "b")
    plan = platform.plan(platform.mesh("app").remove("b").remove("left"))
    assert "50" in str(plan)
    plan.apply()
    finish(platform, "app")
    whole(right, 100)
    assert left == list(range(1, 50))


def test_dead_letters_go_over(platform):
    """What was set aside stays with the node when its slet is replaced."""
    seen: list[int] = []
    app = Application("app")
    numbers = app.add("a", endless)
    passed = app.add("b", picky, x=numbers, on_error="dead-letter")
    app.add("c", writing(seen), x=passed)
    platform.apply(app.build())
    grows(seen)
    changed(platform, "app", lambda mesh: mesh.replace("b", plain))
    end(platform, "app")
    assert [one.item for one in platform.deployment("app").components["b"].trouble.dead] == [50]
    whole(sorted([*seen, 50]))


def test_a_suspended_component_in_the_pause_of_a_failing_change(platform):
    """A change that is taken back leaves the suspended slet as it was: on its item, waiting."""

    class Refuses(Memento):
        @classmethod
        def upgrade(cls, old: Sum) -> "Refuses":
            raise ValueError("not this one")

    @slet
    def refusing(x: int, state: Refuses) -> int:
        return x

    @slet
    def adding(x: int, total: Sum) -> int:
        total.count += 1
        return x

    seen: list[int] = []
    platform.apply(chain("app", count_to, picky, adding, writing(seen), a={"to": 100}).build())
    suspended(platform, "app", "b")
    with pytest.raises(Exception, match="not this one"):
        changed(platform, "app", lambda mesh: mesh.configure("b", poison=0).replace("c", refusing))
    component = platform.deployment("app").components["b"]
    assert (component.status, component.trouble.kept.item, component.node.settings["poison"]) == ("failed", 50, 50)
    platform.resume("app", "b")
    eventually(lambda: component.metrics.errors == 2)
    suspended(platform, "app", "b")
    changed(platform, "app", lambda mesh: mesh.configure("b", poison=0))
    finish(platform, "app")
    whole(seen, 100)
