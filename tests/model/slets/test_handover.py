"""How a successor takes over the state of its predecessor."""

from dataclasses import dataclass, replace

import pytest

from exop import Memento, Slet, input_port, slet
from exop.errors import MementoError
from exop.model.meshes.mesh import Node
from exop.model.slets.handover import field_changes, hand_over, tried
from exop.model.slets.slet import spec_of
from exop.wiring.changes.plan import Step


class Count(Memento):
    """What the old slet keeps; it may be falsy."""

    seen: int = 0

    def __len__(self) -> int:
        return 0


class Better(Memento):
    """What its successor keeps."""

    seen: int = 0
    doubled: int = 0

    @classmethod
    def upgrade(cls, old: Count) -> "Better":
        """Take over a count, and use it up."""
        seen, old.seen = old.seen, 0
        return cls(seen=seen, doubled=2 * seen)


class Other(Memento):
    """Nothing of a count."""

    text: str = ""


@slet
def count(x: int, state: Count) -> int:
    """Keep a count."""
    return x


@slet
def recount(x: int, state: Count) -> int:
    """Keep the same count."""
    return -x


@slet
def better(x: int, state: Better) -> int:
    """Keep more than a count."""
    return x


@slet
def other(x: int, state: Other) -> int:
    """Keep something else."""
    return x


@slet
def plain(x: int) -> int:
    """Keep nothing."""
    return x


class Engine(Slet):
    """A slet whose engine keeps state that no memento holds."""

    keeps_own_state = True

    @input_port
    def x(self, x: int) -> int:
        """Take one item."""
        return x


def node(thing):
    """A node with that slet."""
    return Node("n", spec_of(thing))


def test_the_same_class_goes_by_reference():
    """A successor with the same memento class gets the very object."""
    state = Count(seen=3)
    assert hand_over(node(count), node(recount)).take(state) is state


@pytest.mark.parametrize(
    ("successor", "empty", "possible"),
    [
        (count, Count(), "the state (Count) by reference"),
        (better, Better(), "the state through Better.upgrade"),
        (plain, None, None),
    ],
)
def test_a_state_that_is_to_be_lost_is_lost(successor, empty, possible):
    """The successor begins empty also where it could take over the state; the text says that it could."""
    way = hand_over(node(count), replace(node(successor), lose_state=True))
    assert way.take(Count(seen=3)) == empty
    more = f", though it could be handed over: {possible}" if possible else ""
    assert way.text == f"the state (Count) is lost, as requested{more}"


class Grouping(Slet):
    """A slet of which only the open instance knows that it keeps such state."""

    @input_port
    def x(self, x: int) -> int:
        """Take one item."""
        return x

    def holds_own_state(self) -> bool:
        """It does."""
        return True


def test_a_state_that_only_the_open_slet_knows_is_not_lost():
    """Whoever cannot take it over is refused, unless it is to be lost."""
    before, after = node(Grouping), node(plain)
    way = hand_over(before, after)
    assert way.text == "no state"
    with pytest.raises(MementoError, match="its engine keeps it, and the platform cannot read it there"):
        tried(way, before, after, Grouping())
    lost = tried(way, before, replace(after, lose_state=True), Grouping())
    assert lost.text == "the state inside grouping is lost, as requested"


def test_nothing_to_lose():
    """A slet without a state loses none."""
    assert hand_over(node(plain), replace(node(count), lose_state=True)).text == "no state"


def test_upgrade_gets_a_copy():
    """`upgrade` makes the new memento out of a copy: the old one is whole if the change is undone."""
    state = Count(seen=3)
    made = hand_over(node(count), node(better)).take(state)
    assert (made, state) == (Better(seen=3, doubled=6), Count(seen=3))


@pytest.mark.parametrize("successor", [other, plain])
def test_a_state_is_never_lost_silently(successor):
    """A successor that cannot take the state is refused, unless it is told to lose it."""
    with pytest.raises(MementoError, match="lose_state=True"):
        hand_over(node(count), node(successor))
    assert "is lost, as requested" in hand_over(node(count), replace(node(successor), lose_state=True)).text


def test_what_an_engine_keeps_is_never_lost_silently():
    """State inside an engine cannot be carried: it is lost only when told so."""
    with pytest.raises(MementoError, match="its engine keeps it"):
        hand_over(node(Engine), node(plain))
    assert "is lost, as requested" in hand_over(node(Engine), replace(node(plain), lose_state=True)).text


def test_no_state_needs_no_hand_over():
    """A successor of a stateless slet starts with a fresh memento, if it has one."""
    assert hand_over(node(plain), node(plain)).take(None) is None
    assert hand_over(node(plain), node(count)).take(None) == Count()


def keeping(kind):
    """A node whose slet keeps a total of that type, in a memento that is always called the same."""
    total = type("Total", (Memento,), {"__annotations__": {"total": kind}, "total": None, "__qualname__": "Total"})

    def add(x: int, state: total) -> int:
        return x

    add.__annotations__["state"] = total
    return node(slet(add)), total


@pytest.mark.parametrize(("had", "wanted"), [(float, str), (list[int], list[str]), (int | None, int)], ids=str)
def test_a_field_of_another_type_is_refused(had, wanted):
    """Values never come into fields that say something else of them; both types and the cure are named."""
    with pytest.raises(MementoError, match=r"the field 'total' was .* and is .* now.*version=2.*upgrade"):
        hand_over(keeping(had)[0], keeping(wanted)[0])


@pytest.mark.parametrize(("had", "wanted"), [(int, float), (int, int | None), (list[int], list[int]), (Count, Count)])
def test_a_field_that_takes_the_old_values(had, wanted):
    """A wider type is no other version."""
    before, old = keeping(had)
    state = hand_over(before, keeping(wanted)[0])
    assert state.text.endswith("field by field")
    assert state.take(old(total=7)).total == 7


def test_a_plan_names_the_fields_that_change():
    """Of the memento and of ports; what is compatible and what is not."""

    @dataclass
    class Report:
        vid: int
        speed: float = 0.0

    first = Report

    @dataclass
    class Report:
        vid: int
        lane: int = 0

    @slet
    def old(x: int, state: Count) -> first:
        return first(x)

    @slet
    def new(x: float, state: Better) -> Report:
        return Report(x)

    before, after = node(old), node(new)
    told = [
        "port x: the type was int and is float now",
        "port out: the field 'speed' (float) is gone",
        "port out: the field 'lane' (int) is new",
        "memento Better: the field 'doubled' (int) is new",
    ]
    assert list(field_changes(before, after)) == told
    step = Step("replace", "n", "old becomes new", before, after)
    assert all(f"\n    {line}\n" in str(step) for line in told)
    assert list(field_changes(before, node(old))) == []
