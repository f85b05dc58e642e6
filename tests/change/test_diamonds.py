"""Branches of one driver that meet again: in which order their items meet is the same with a change and without one."""

import shutil
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from bench.durable_app.engine import Doubled
from exop import Application, OutputPort, Platform, Slet, hookimpl, input_port, slet
from exop.hooks import Plugins
from exop.runtime.durable.durability import Durability
from tests.change.tools import Position, Seen, finish, suspended
from tests.rig import Gate, eventually

LAST = 12


def whole(branches: int) -> list[int]:
    """What comes of all numbers, for each in the order of the branches."""
    return [2 * (10 * number + branch) for number in range(1, LAST + 1) for branch in range(1, branches + 1)]


class Split(Slet):
    """Sends each number out twice, by one port after the other."""

    one: OutputPort[int]
    other: OutputPort[int]

    @input_port
    def x(self, x: int) -> None:
        """Send it."""
        self.one.push(x)
        self.other.push(x)


class Left(Slet):
    """Called first by the one branch, and last by the other."""

    @input_port
    def a(self, x: int) -> int:
        """Be called by the one branch."""
        return 10 * x + 1

    @input_port
    def b(self, x: int) -> int:
        """Be called by the other one."""
        return 10 * x + 4


class Right(Slet):
    """Called last by the one branch, and first by the other."""

    @input_port
    def a(self, x: int) -> int:
        """Be called by the one branch."""
        return 10 * x + 2

    @input_port
    def b(self, x: int) -> int:
        """Be called by the other one."""
        return 10 * x + 3


class Branches:
    """The slets of a diamond: the first branch raises at 5, the second one has two slets and waits at 5."""

    def __init__(self) -> None:
        self.broken, self.gate = True, Gate()

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them, two of them twice."""

        @slet
        def numbers(position: Position) -> Iterator[int]:
            while position.number < LAST:
                position.number += 1
                yield position.number

        @slet
        def numbers_too(position: Position) -> Iterator[int]:
            while position.number < LAST:
                position.number += 1
                yield position.number

        @slet
        def first(x: int) -> int:
            if self.broken and x == 5:
                raise ValueError("not yet")
            return 10 * x + 1

        @slet
        def waiting(x: int) -> int:
            if x == 5:
                self.gate.pass_through()
            return x

        @slet
        def second(x: int) -> int:
            return 10 * x + 2

        @slet
        def third(x: int) -> int:
            return 10 * x + 3

        @slet
        def third_too(x: int) -> int:
            return 10 * x + 3

        @slet
        def written(item: int, seen: Seen) -> None:
            seen.items.append(item)

        found = [numbers, numbers_too, first, waiting, second, third, third_too, written, Doubled]
        return [*found, Split, Left, Right]


def diamond(slets: Any) -> Application:
    """Three branches of one source meet in front of an engine that commits by itself."""
    app = Application("diamond")
    app.durable(every=3600)
    channel, meeting = app.channel("c"), app.channel("e")
    app.add("numbers", slets["branches:numbers"], out=channel)
    app.add("first", slets["branches:first"], x=channel, out=meeting)
    app.add("second", slets["branches:second"], x=app.add("waiting", slets["branches:waiting"], x=channel), out=meeting)
    app.add("third", slets["branches:third"], x=channel, out=meeting)
    app.add("written", slets["branches:written"], item=app.add("engine", slets["branches:doubled"], number=meeting))
    return app


def crossing(slets: Any) -> Application:
    """Two branches call the same two slets in opposite order: no order of the slets is that of the calls."""
    app = Application("diamond")
    app.durable(every=3600)
    one, other, far, meeting = (app.channel(name) for name in ("one", "other", "far", "e"))
    app.add("split", slets["branches:split"], x=app.add("numbers", slets["branches:numbers"]), one=one, other=other)
    app.add("first", slets["branches:first"], x=one, out=app.channel("unread"))
    app.add("waiting", slets["branches:waiting"], x=other, out=far)
    app.add("left", slets["branches:left"], a=one, b=other, out=meeting)
    app.add("right", slets["branches:right"], a=one, b=far, out=meeting)
    app.add("written", slets["branches:written"], item=app.add("engine", slets["branches:doubled"], number=meeting))
    return app


@pytest.fixture
def opened(tmp_path):
    """Opens a platform with the slets on a state directory."""

    def opened(branches: Branches, name: str) -> Platform:
        plugins = Plugins()
        plugins.register("branches", branches)
        return Platform(state=tmp_path / name, plugins=plugins, control=False)

    return opened


@pytest.mark.parametrize(
    ("app", "node", "expected"),
    [(diamond, "third", whole(3)), (diamond, "numbers", whole(3)), (crossing, "numbers", whole(4))],
)
def test_a_crash_behind_a_change_while_a_branch_was_suspended(opened, tmp_path, app, node, expected):
    """What is sent again comes in the order of before: the engine recognizes it by its number."""
    branches = Branches()
    with opened(branches, "before") as platform:
        platform.apply(app(platform.slets()).build())
        suspended(platform, "diamond", "first")
        platform.checkpoint("diamond")
        with mock.patch.object(Durability, "changed"):  # the crash comes before the change is in a checkpoint
            successor = platform.slets()[f"branches:{node}_too"]
            platform.apply(platform.mesh("diamond").replace(node, successor))
            branches.broken = False
            platform.resume("diamond", "first")
            source = platform.deployment("diamond").components["numbers"].driver
            eventually(lambda: "engine waits for a checkpoint" in str(source.held_by), "what comes of the change")
            with platform.deployment("diamond").changing:
                unfinished = shutil.ignore_patterns("*.new")  # the engine writes on, and renames these
                shutil.copytree(tmp_path / "before", tmp_path / "after", ignore=unfinished)
        branches.gate.open()
    again = Branches()
    again.broken = False
    again.gate.open()
    with opened(again, "after") as platform:
        assert platform.applications() == ["diamond"], platform.failed_to_restart
        finish(platform, "diamond")
        assert platform.deployment("diamond").components["written"].state.items == expected
