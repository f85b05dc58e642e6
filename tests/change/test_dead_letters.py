"""Items that were set aside: bounded, with their mementos, carried over, stored, and tried again after a repair."""

from collections.abc import Iterator
from dataclasses import field
from typing import Any, ClassVar

import pytest

from exop import Application, InputPort, Memento, OutputPort, Slet, Tie, input_port, slet
from exop.errors import NoSuchItem, PlanError, SletError, UnknownName
from exop.model.slets.memento import Memento as AnyMemento
from exop.model.slets.stored_memento import load_memento
from exop.runtime.supervision.failure_policy import failed_item
from exop.testing import replay
from tests.change.tools import Sum, Tap, chain, changed, count_to, finish, plain, suspended, writing
from tests.rig import eventually


@slet(on_error="dead-letter", dead_letters=3)
def odd_only(x: int, total: Sum, *, odd: bool = True) -> int:
    """Pass odd numbers on; add up all that come."""
    total.count += 1
    if odd and x % 2 == 0:
        raise ValueError(f"{x} is even")
    total.total += x
    return x


@slet
def pulled(x: InputPort[int]) -> Iterator[int]:
    """Pass on what it pulls."""
    yield from x


class Large(Memento):
    """A state that is too large to be kept with every item."""

    content: bytes = b"\0" * 100_000


@pytest.fixture
def through(platform):
    """Deploys a source under control, a node `b` and a sink, and lets so many items through; shut at the end."""
    taps: list[Tap] = []

    def deployed(node: Any, seen: list[int], last: int, **options: Any) -> Tap:
        tap = Tap()
        taps.append(tap)
        platform.apply(chain("app", tap.source(), node, writing(seen), b=options).build())
        tap.let(last)
        source = platform.deployment("app").components["a"]
        eventually(lambda: source.state.number == last and tap.waiting.is_set())
        return tap

    yield deployed
    for tap in taps:
        tap.shut()


def test_the_newest_are_kept(platform, through, capfd):
    """Beyond the bound of the slet the oldest goes, and is counted; `status` says so, and the log at the first one."""
    seen: list[int] = []
    through(odd_only, seen, 10)
    assert seen == [1, 3, 5, 7, 9]
    letters = platform.dead_letters("app", "b")
    assert [letter.item for letter in letters] == [6, 8, 10]
    assert capfd.readouterr().err.count("dead letters are dropped") == 1
    status = platform.status("app")["nodes"]["b"]["dead_letters"]
    assert (status["count"], status["dropped"]) == (3, 2)
    first = letters[0]
    assert (first.kind, first.place, first.port, first.error) == ("dead letter", "app.b", "x", "ValueError: 6 is even")
    assert (first.slet, first.settings["odd"]) == ("tests.change.test_dead_letters:odd_only", True)


@pytest.mark.parametrize("most", [0, 1, 5])
def test_an_application_says_how_many(platform, most, through):
    """What `app.add(dead_letters=…)` says comes before what the slet says; with 0 they are counted alone."""
    through(odd_only, [], 8, dead_letters=most)
    assert [letter.item for letter in platform.dead_letters("app", "b")] == [2, 4, 6, 8][max(0, 4 - most) :]
    assert platform.status("app")["nodes"]["b"]["dead_letters"]["dropped"] == max(0, 4 - most)


@pytest.mark.parametrize(("atomic", "counts", "told"), [(False, [2, 4], "left"), (True, [1, 2], "found")])
def test_the_memento_is_that_of_the_moment(platform, atomic, counts, told, through):
    """Each letter has the state as the failed call left it; of an atomic slet, as the call found it."""

    @slet(on_error="dead-letter", atomic=atomic)
    def half(x: int, total: Sum) -> int:
        total.count += 1
        if x % 2 == 0:
            raise ValueError(x)
        return x

    through(half, [], 4)
    letters = platform.dead_letters("app", "b")
    assert [load_memento(letter.memento, Sum, "b").count for letter in letters] == counts
    assert all(told in letter.told for letter in letters)


def test_a_large_memento_is_not_kept(platform, through):
    """The letters say so; they are kept all the same."""

    @slet(on_error="dead-letter")
    def heavy(x: int, state: Large) -> int:
        raise ValueError(x)

    through(heavy, [], 3)
    letters = platform.dead_letters("app", "b")
    assert [letter.item for letter in letters] == [1, 2, 3]
    assert {(letter.memento, letter.told) for letter in letters} == {(None, "not kept: it is larger than 64 KB")}


def test_they_are_tried_again_after_a_repair(platform, through):
    """In their order, once, behind what is under way; the successor has them, and they are letters no more."""
    seen: list[int] = []
    tap = through(odd_only, seen, 6)
    changed(platform, "app", lambda mesh: mesh.configure("b", odd=False))
    assert platform.retry_dead_letters("app", "b") == 3
    tap.let(1)
    tap.shut()
    finish(platform, "app")
    assert sorted(seen) == [1, 2, 3, 4, 5, 6, 7]
    assert [x for x in seen if x % 2 == 0] == [2, 4, 6]
    assert platform.dead_letters("app", "b") == []
    assert platform.retry_dead_letters("app", "b") == 0


def test_those_that_fail_again_are_set_aside_again(platform, through):
    """A retry without a repair loses nothing."""
    tap = through(odd_only, [], 6)
    assert platform.retry_dead_letters("app", "b") == 3
    tap.let(1)
    tap.shut()
    finish(platform, "app")
    assert [letter.item for letter in platform.dead_letters("app", "b")] == [2, 4, 6]


def test_behind_a_queue_they_are_tried_at_once(platform):
    """The worker that runs the slet needs no further item to begin."""
    seen: list[int] = []
    tap = Tap()
    app = Application("app")
    queue = app.channel("queue", kind="queue")
    app.add("a", tap.source(), out=queue)
    app.add("c", writing(seen), x=app.add("b", odd_only, x=queue))
    platform.apply(app.build())
    tap.let(6)
    eventually(lambda: len(platform.dead_letters("app", "b")) == 3)
    changed(platform, "app", lambda mesh: mesh.configure("b", odd=False))
    platform.retry_dead_letters("app", "b")
    eventually(lambda: seen == [1, 3, 5, 2, 4, 6])
    tap.shut()
    finish(platform, "app")


def test_a_pulling_slet_finds_them_again(platform, through):
    """What it had pulled comes again with its next pull."""

    @slet(on_error="dead-letter")
    def pulls(x: InputPort[int], *, bad: int = 3) -> Iterator[int]:
        for one in x:
            if one == bad:
                raise ValueError(one)
            yield one

    seen: list[int] = []
    tap = through(pulls, seen, 5)
    eventually(lambda: seen == [1, 2, 4, 5])
    (letter,) = platform.dead_letters("app", "b")
    assert letter.item == {"x": [3]}
    with pytest.raises(ValueError, match="3"):
        replay(letter, slet=pulls)
    assert replay(letter, slet=pulled) == [3]
    changed(platform, "app", lambda mesh: mesh.replace("b", pulled))
    assert platform.retry_dead_letters("app", "b") == 1
    tap.let(1)
    tap.shut()
    finish(platform, "app")
    assert sorted(seen) == [1, 2, 3, 4, 5, 6]


def test_letters_of_a_port_that_is_gone_stay(platform, through):
    """Nothing is tried, not even those whose port is there; the message says what to do."""

    @slet(on_error="dead-letter")
    def pulls(x: InputPort[int]) -> Iterator[int]:
        for one in x:
            if one in (3, 4):
                raise ValueError(one)
            yield one

    seen: list[int] = []
    tap = through(pulls, seen, 5)
    eventually(lambda: seen == [1, 2, 5])
    changed(platform, "app", lambda mesh: mesh.replace("b", odd_only, lose_state=True))
    with pytest.raises(
        PlanError, match=r"a dead letter of app\.b is from the port 'x', which is not connected any more, or"
    ):
        platform.retry_dead_letters("app", "b")
    assert [letter.item for letter in platform.dead_letters("app", "b")] == [{"x": [3]}, {"x": [4]}]
    changed(platform, "app", lambda mesh: mesh.replace("b", pulled, lose_state=True))
    assert platform.retry_dead_letters("app", "b") == 2
    tap.shut()
    finish(platform, "app")
    assert sorted(seen) == [1, 2, 3, 4, 5]


def test_after_the_end_nothing_can_be_tried(platform):
    """What follows has been told the end: the letters stay, and the message says what to do with them."""
    platform.apply(chain("app", count_to, odd_only, writing([]), a={"to": 4}).build())
    finish(platform, "app")
    with pytest.raises(PlanError, match=r"the stream of app\.b has ended.*export its 2 dead letters by `exop item"):
        platform.retry_dead_letters("app", "b")
    assert len(platform.dead_letters("app", "b")) == 2


def test_the_kept_item(platform):
    """It is there as long as the slet is suspended on it, with the state as the failed call has left it."""

    @slet
    def picky(x: int, total: Sum) -> int:
        total.count += 1
        if x == 5:
            raise ValueError(x)
        return x

    platform.apply(chain("app", count_to, picky, writing([]), a={"to": 8}).build())
    suspended(platform, "app", "b")
    kept = platform.kept_item("app", "b")
    assert (kept.kind, kept.item, kept.port, kept.error) == ("kept", 5, "x", "ValueError: 5")
    state: AnyMemento = load_memento(kept.memento, Sum, "b")
    assert state.count == 5
    assert platform.kept_item("app", "c") is None
    with pytest.raises(ValueError, match="5"):
        replay(kept, slet=picky)
    changed(platform, "app", lambda mesh: mesh.replace("b", plain, lose_state=True))
    finish(platform, "app")
    assert platform.kept_item("app", "b") is None


def test_items_that_are_not_there(platform):
    """The messages say what there is."""
    platform.apply(chain("app", count_to, odd_only, writing([]), a={"to": 4}).build())
    finish(platform, "app")
    running = platform.deployment("app")
    with pytest.raises(NoSuchItem, match=r"app\.b has no kept item: it has 2 dead letters; `exop item list app\.b`"):
        failed_item(running.component("b"))
    with pytest.raises(NoSuchItem, match="no dead letter 3: give a number from 1 to 2"):
        failed_item(running.component("b"), 3)
    assert failed_item(running.component("b"), 2).item == 4
    with pytest.raises(UnknownName, match="no node 'z'"):
        platform.dead_letters("app", "z")


@pytest.mark.parametrize("options", [{"timeout": -1}, {"timeout": "5"}, {"dead_letters": -1}, {"dead_letters": 1.5}])
def test_bounds_that_are_none(options):
    """A time-out or a number that cannot be is told at the decorator."""
    with pytest.raises(SletError, match=next(iter(options))):
        slet(**options)(plain)


class Reader(Slet, own_driver=True):
    """An engine that reads a channel by itself."""

    out: OutputPort[int]
    tie: Tie = field(default_factory=Tie)
    reopens: ClassVar[bool] = True

    @input_port
    def x(self, x: int) -> None:
        """Send the item."""
        self.tie.put_out(None, [(self.out, x)], {"x": self.tie.arrived("x")})


def test_the_policy_is_applied_to_what_an_engine_reads_by_itself(platform, through):
    """Another policy opens another engine, which may have ended for want of it."""
    seen: list[int] = []
    through(Reader, seen, 2)
    failed = [([{"offset": 7}], ValueError("no row"))]
    found = {}
    for policy in ("suspend", "skip", "dead-letter"):
        plan = platform.plan(platform.mesh("app").configure("b", on_error=policy))
        assert [step.verb for step in plan.steps] == ["adjust" if policy == "suspend" else "replace"]
        plan.apply()
        component = platform.deployment("app").components["b"]
        omits = component.tie.omit("x", [])
        assert component.tie.omit("x", failed if omits else []) == omits
        found[policy] = omits, component.metrics.skipped, component.metrics.errors, len(component.trouble.dead)
    assert found == {"suspend": (False, 0, 0, 0), "skip": (True, 1, 1, 0), "dead-letter": (True, 0, 1, 1)}
    assert [letter.item for letter in platform.dead_letters("app", "b")] == [[{"offset": 7}]]


def test_another_policy_lets_a_suspended_slet_pass_its_item(platform, through):
    """The change alone resumes it, and the new policy treats the item on which it was suspended."""
    seen: list[int] = []

    @slet
    def odd(x: int) -> int:
        if x % 2 == 0:
            raise ValueError(x)
        return x

    tap = through(odd, seen, 1)
    tap.let(2)
    suspended(platform, "app", "b")
    platform.apply(platform.mesh("app").configure("b", on_error="skip"))
    eventually(lambda: seen == [1, 3])
    assert platform.deployment("app").components["b"].metrics.skipped == 1
