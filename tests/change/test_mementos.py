"""A state is taken out of the running stream, and given to a node: no item is lost, doubled or reordered by that."""

from collections.abc import Iterator
from dataclasses import field

import pytest

from exop import Memento, Slet, input_port, slet
from exop.errors import ComponentFailed, MeshError, StaleMesh, StoredStateError, UnknownName
from tests.change.tools import (
    Position,
    Seen,
    Sum,
    Tap,
    chain,
    end,
    endless,
    grows,
    plain,
    summing,
    summing_too,
    suspended,
    whole,
    writing,
)


def test_what_is_taken_is_a_copy_between_two_items(platform):
    """The fields of a memento belong together, and the stream that goes on does not change what was taken."""
    seen: list[int] = []
    platform.apply(chain("app", endless, summing, writing(seen)).build())
    for _ in range(5):
        grows(seen, 10)
        found = platform.memento("app", "b")
        assert isinstance(found, Sum)
        assert found.total == found.count * (found.count + 1) // 2
        before = found.count
        grows(seen, 10)
        assert found.count == before
    end(platform, "app")
    whole(seen)


def test_a_source_is_taken_where_it_has_yielded(platform):
    """A source's memento says what has left it."""
    seen: list[int] = []
    tap = Tap()
    platform.apply(chain("app", tap.source(), writing(seen)).build())
    tap.let(10)
    grows(seen, 10)
    tap.shut()
    platform.wait("app")
    assert platform.memento("app", "a") == Position(number=10)


def test_a_state_is_restored_and_nothing_is_lost(platform):
    """The node counts on from what it is given; the value that was given stays the caller's."""
    seen: list[int] = []
    platform.apply(chain("app", endless, summing, writing(seen)).build())
    grows(seen, 10)
    given = Sum(count=1_000_000)
    mesh = platform.restore("app", "b", given)
    assert mesh.revision == 2
    assert mesh.node("b").memento is None
    grows(seen, 10)
    assert platform.memento("app", "b").count > 1_000_000
    assert given == Sum(count=1_000_000)
    end(platform, "app")
    whole(seen)


def test_a_source_goes_on_from_another_position(platform):
    """A position that is given back repeats exactly what came behind it."""
    seen: list[int] = []
    platform.apply(chain("app", endless, writing(seen)).build())
    grows(seen, 10)
    platform.restore("app", "a", Position(number=0))
    grows(seen, 10)
    end(platform, "app")
    again = seen.index(1, 1)
    whole(seen[:again])
    whole(seen[again:])


@pytest.mark.parametrize("node", ["a", "b"])
def test_between_suspend_and_resume_nothing_is_missed(platform, node):
    """A node that is suspended does nothing to its state: what is taken and given back is exactly what it had."""
    seen: list[int] = []
    platform.apply(chain("app", endless, summing, writing(seen)).build())
    grows(seen, 10)
    platform.apply(platform.mesh("app").suspend(node))
    found = platform.memento("app", node)
    platform.restore("app", node, found)
    assert platform.memento("app", node) == found
    platform.apply(platform.mesh("app").resume(node))
    grows(seen, 10)
    end(platform, "app")
    whole(seen)
    assert platform.memento("app", "b").count == len(seen)


def test_a_restoration_is_planned_and_can_be_stale(platform):
    """It is a change like any other: printed, combined with others, refused when somebody was first."""
    seen: list[int] = []
    platform.apply(chain("app", endless, summing, writing(seen)).build())
    mesh = platform.mesh("app")
    plan = platform.plan(mesh.replace("b", summing_too).restore("b", Sum(count=7)).suspend("c"))
    assert "replace b: tests.change.tools:summing → tests.change.tools:summing_too; the state (Sum) as it is given" in (
        str(plan)
    )
    assert "the given memento of b lacks all changes of its state since it was taken" in plan.notes
    assert "no history keeps the replaced state of b: `exop memento export` does, if it is given before" in plan.notes
    note, _ = platform.plan(mesh.restore("a", Position(number=3))).notes
    assert note == "a goes on at the given position: the items in between come again, or are left out"
    platform.restore("app", "b", Sum(count=5))
    with pytest.raises(StaleMesh):
        plan.apply()
    assert platform.memento("app", "b").count >= 5
    end(platform, "app")
    whole(seen)


def test_a_restoration_that_fails_leaves_the_old_state(platform):
    """Where another node of the same plan cannot be opened, the old state goes on."""

    class Unopened(Slet):
        """It cannot be opened."""

        def __enter__(self):
            raise RuntimeError("no")

        @input_port
        def x(self, x: int) -> int:
            return x

    seen: list[int] = []
    platform.apply(chain("app", endless, summing, plain, writing(seen)).build())
    grows(seen, 10)
    mesh = platform.mesh("app").restore("b", Sum(count=-1_000_000)).replace("c", Unopened)
    with pytest.raises(ComponentFailed, match="no"):
        platform.apply(mesh)
    assert platform.memento("app", "b").count >= 10
    end(platform, "app")
    whole(seen)


def test_a_state_that_makes_a_slet_fail_is_repaired(platform):
    """A suspended slet is given a state with which it works: the item that it was suspended on is tried again."""

    class Odd(Memento):
        """What is refused."""

        refuse: int = 5

    @slet
    def picky(x: int, odd: Odd) -> int:
        if x == odd.refuse:
            raise ValueError("not this one")
        return x

    seen: list[int] = []
    platform.apply(chain("app", endless, picky, writing(seen)).build())
    suspended(platform, "app", "b")
    found = platform.memento("app", "b")
    found.refuse = -1
    platform.restore("app", "b", found)
    grows(seen, 10)
    end(platform, "app")
    whole(seen)


def test_what_is_no_state_of_the_slet_is_refused(platform):
    """Unknown nodes, slets without memento, other classes and wrong values are told at the edit."""

    @slet
    def noting(x: int, seen: Seen) -> int:
        seen.items.append(x)
        return x

    platform.apply(chain("app", endless, plain, noting, writing([])).build())
    with pytest.raises(UnknownName, match="has no node 'z'"):
        platform.memento("app", "z")
    with pytest.raises(MeshError, match=r"app\.b: plain keeps no memento"):
        platform.memento("app", "b")
    with pytest.raises(MeshError, match=r"app\.b: plain keeps no memento"):
        platform.restore("app", "b", Sum())
    with pytest.raises(MeshError, match=r"app\.c: noting keeps a Seen, not a Sum"):
        platform.restore("app", "c", Sum())
    with pytest.raises(StoredStateError, match=r"app\.c cannot be taken over: items\[1\] is 'x' \(str\), not int"):
        platform.restore("app", "c", Seen(items=[1, "x"]))
    assert platform.mesh("app").revision == 1
    platform.end("app")


def test_what_cannot_be_stored_can_be_taken(platform):
    """Where the encoding has no form for a value, the memento is copied."""

    class Odd(Memento):
        """It keeps what no checkpoint holds."""

        place: object = None

    class Place:
        """Of a class that is not known to the encoding."""

    @slet
    def keeping(odd: Odd) -> Iterator[int]:
        odd.place = odd.place or Place()
        while True:
            yield 1

    seen: list[int] = []
    platform.apply(chain("app", keeping, writing(seen)).build())
    grows(seen, 10)
    found = platform.memento("app", "a")
    assert isinstance(found.place, Place)
    assert found.place is not platform.memento("app", "a").place
    end(platform, "app")


def test_what_the_encoding_would_alter_is_copied(platform):
    """A `bytearray` stays one, so that what was taken can be given back."""

    class Buffer(Memento):
        """What is not sent yet."""

        data: bytearray = field(default_factory=bytearray)

    @slet
    def buffering(x: int, buffer: Buffer) -> int:
        buffer.data.append(x % 7)
        return x

    seen: list[int] = []
    platform.apply(chain("app", endless, buffering, writing(seen)).build())
    grows(seen, 10)
    found = platform.memento("app", "b")
    assert type(found.data) is bytearray
    platform.restore("app", "b", found)
    grows(seen, 10)
    end(platform, "app")
    whole(seen)
