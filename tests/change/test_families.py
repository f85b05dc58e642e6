"""Members of families of ports come and go while the stream runs."""

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from exop import Application, InputPorts, Memento, OutputPorts, Platform, Slet, input_port
from exop.errors import MeshError, PlanError
from exop.model.meshes.mesh import ChannelSpec, Mesh
from exop.testing import replay
from tests.change.tools import Tap, count_to
from tests.rig import PATIENCE, collector, eventually


class Turn(Memento):
    """The number of items that were dealt."""

    number: int = 0


class Deal(Slet):
    """Deals items to the members in turn; without any, it keeps them."""

    to: OutputPorts[int]
    turn: Turn

    @input_port
    def item(self, item: int) -> None:
        """Deal one."""
        self.turn.number += 1
        assert item == self.turn.number
        names = sorted(self.to)
        self.to[names[item % len(names)]].push(item)


class Gather(Slet):
    """Takes from any number of ports."""

    @input_port
    def side(self, side: str, item: int) -> tuple[str, int]:
        """Pass on an item, with the name of its port."""
        return side, item


class Take(Slet):
    """Takes from any number of queues, one after the other."""

    side: InputPorts[int]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for name, port in self.side.items():
            for item in port:
                yield name, item


def dealing(tap: Tap, seen: list[Any], *members: str) -> Mesh:
    """A mesh of numbers that are dealt and gathered."""
    app = Application("dealing")
    app.add("deal", Deal, item=app.add("source", tap.source()), to=list(members))
    gathered = app.add("gather", Gather, side={name: app.output("deal", f"to.{name}") for name in members})
    app.add("sink", collector(seen), item=gathered)
    return app.build()


def joined(mesh: Mesh, member: str, kind: str) -> Mesh:
    """The mesh with another member on both sides."""
    channel = ChannelSpec(f"by-{member}", kind)
    mesh = mesh.rewire("deal", **{f"to.{member}": channel})
    return mesh.rewire("gather", **{f"side.{member}": channel.name})


def parted(mesh: Mesh, member: str) -> Mesh:
    """The mesh without a member."""
    return mesh.rewire("deal", **{f"to.{member}": None}).rewire("gather", **{f"side.{member}": None})


def test_members_come_and_go():
    """A member is added and removed by an ordinary change: the plan names it, and its channel comes and goes."""
    tap, seen = Tap(), list[tuple[str, int]]()
    with Platform() as platform:
        platform.apply(dealing(tap, seen, "a"))
        tap.let(3)
        eventually(lambda: len(seen) == 3)
        plan = platform.plan(joined(platform.mesh("dealing"), "b", "queue"))
        assert "replace deal: by itself, with the port to.b; the state (Turn) by reference" in str(plan)
        assert "replace gather: by itself, with the port side.b" in str(plan)
        plan.apply()
        tap.let(3)
        eventually(lambda: len(seen) == 6)
        plan = platform.plan(parted(platform.mesh("dealing"), "a"))
        assert "replace deal: by itself, without to.a" in str(plan)
        plan.apply()
        assert set(platform.mesh("dealing").channels) == {"source", "by-b", "gather"}
        tap.let(3)
        tap.shut()
        assert platform.wait("dealing", PATIENCE)
    assert sorted(seen, key=lambda one: one[1]) == [
        *(("a", number) for number in (1, 2, 3)),
        *(("ab"[number % 2], number) for number in (4, 5, 6)),
        *(("b", number) for number in (7, 8, 9)),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_any_members(seed):
    """Whatever members come and go, at whatever moment: nothing is lost or doubled, and each port keeps its order.

    A member at which an item waits, because its slet is suspended, or has just been, does not go.
    """
    chance, tap, seen = random.Random(seed), Tap(), list[tuple[str, int]]()
    members, last = ["a"], 0
    with Platform() as platform:
        platform.apply(dealing(tap, seen, "a"))
        for number in range(16):
            last += (let := chance.randrange(40))
            tap.let(let)
            mesh, were = platform.mesh("dealing"), list(members)
            if len(members) > 1 and chance.random() < 0.5:
                gone = members.pop(chance.randrange(len(members)))
                mesh = parted(mesh, gone)
            else:
                members.append(f"m{number}")
                mesh = joined(mesh, members[-1], chance.choice(("direct", "queue")))
            stopped = mesh.node("gather").suspended
            try:
                platform.apply(mesh.suspend("gather") if not stopped and chance.random() < 0.3 else mesh)
            except PlanError as error:
                members = were
                if not re.search("is on its way to gather|on the way to gather", str(error)):
                    raise
            if stopped:
                platform.apply(platform.mesh("dealing").resume("gather"))
        platform.apply(platform.mesh("dealing").resume("gather"))
        tap.shut()
        assert platform.wait("dealing", PATIENCE)
    assert sorted(number for _, number in seen) == list(range(1, last + 1))
    for member in {name for name, _ in seen}:
        numbers = [number for name, number in seen if name == member]
        assert numbers == sorted(numbers)


def test_a_member_that_is_read_does_not_go():
    """The error names what reads its channel."""
    tap, seen = Tap(), list[tuple[str, int]]()
    with Platform() as platform:
        platform.apply(dealing(tap, seen, "a", "b"))
        mesh = platform.mesh("dealing")
        with pytest.raises(MeshError, match=r"gather\.side\.b reads the channel 'deal\.to\.b', into which nothing"):
            platform.apply(mesh.rewire("deal", **{"to.b": None}))
        tap.shut()
        assert platform.wait("dealing", PATIENCE)


def test_a_family_that_is_pulled():
    """A slet that is iterated takes from each member."""
    seen = list[tuple[str, int]]()
    app = Application("taking")
    app.add("deal", Deal, item=app.add("source", count_to, to=7), to={n: app.channel(n, "queue") for n in "ab"})
    app.add("sink", collector(seen), item=app.add("take", Take, side={"x": app.output("deal", "to.b"), "y": "a"}))
    app.run()
    assert seen == [("x", 1), ("x", 3), ("x", 5), ("x", 7), ("y", 2), ("y", 4), ("y", 6)]


class Picky(Slet, on_error="dead-letter"):
    """Takes no odd numbers."""

    to: OutputPorts[str]

    @input_port
    def side(self, side: str, item: int) -> None:
        """Take one."""
        if item % 2:
            raise ValueError(side)
        self.to[side].push(f"{side}{item}")


def test_an_item_that_fails_at_a_port_of_a_family():
    """It names the port, it is replayed there, and an unknown member is an error that names those there are."""
    app = Application("picky")
    app.add("picky", Picky, side={"left": app.add("source", count_to, to=2)}, to=["right"])
    with Platform() as platform:
        platform.apply(app.build())
        assert platform.wait("picky", PATIENCE)
        one, two = platform.dead_letters("picky", "picky")
    assert (one.port, one.error) == ("side.left", "ValueError: left")
    assert "the family of ports has no member 'left'; known: right" in two.error
    with pytest.raises(ValueError, match="left"):
        replay(one)
    assert replay(two) == {"to.left": ["left2"]}
