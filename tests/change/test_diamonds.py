"""Branches of one driver that meet again: in which order their items meet is the same with a change and without one."""

import shutil
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from bench.durable_app.engine import Doubled
from exop import Application, Platform, hookimpl, slet
from exop.hooks import Plugins
from exop.wiring.durability import Durability
from tests.change.tools import Position, Seen, finish, suspended
from tests.rig import Gate

LAST = 12
#: What comes of each number, in the order of the branches.
WHOLE = [2 * (10 * number + branch) for number in range(1, LAST + 1) for branch in (1, 2, 3)]


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

        return [numbers, numbers_too, first, waiting, second, third, third_too, written, Doubled]


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


@pytest.fixture
def opened(tmp_path):
    """Opens a platform with the slets on a state directory."""

    def opened(branches: Branches, name: str) -> Platform:
        plugins = Plugins()
        plugins.register("branches", branches)
        return Platform(state=tmp_path / name, plugins=plugins, control=False)

    return opened


@pytest.mark.parametrize("node", ["third", "numbers"])
def test_a_crash_behind_a_change_while_a_branch_was_suspended(opened, tmp_path, node):
    """What is sent again comes in the order of before: the engine recognizes it by its number."""
    branches = Branches()
    with opened(branches, "before") as platform:
        platform.apply(diamond(platform.slets()).build())
        suspended(platform, "diamond", "first")
        platform.checkpoint("diamond")
        with mock.patch.object(Durability, "changed"):  # the crash comes before the change is in a checkpoint
            successor = platform.slets()[f"branches:{node}_too"]
            platform.apply(platform.mesh("diamond").replace(node, successor))
            branches.broken = False
            platform.resume("diamond", "first")
            branches.gate.somebody_waits()
            with platform.deployment("diamond").changing:
                shutil.copytree(tmp_path / "before", tmp_path / "after")
        branches.gate.open()
    again = Branches()
    again.broken = False
    again.gate.open()
    with opened(again, "after") as platform:
        assert platform.applications() == ["diamond"], platform.failed_to_restart
        finish(platform, "diamond")
        assert platform.deployment("diamond").components["written"].state.items == WHOLE
