"""Changes of several applications: all of them, or none."""

from __future__ import annotations

from typing import Any

import pytest

from exop import Application, Memento, Platform, slet
from exop.errors import MementoError, PlanError, StaleMesh
from exop.stock.slets import count_up
from tests.rig import eventually


class Last(Memento):
    """The last number."""

    number: int = 0
    wrong: int = 0


class Other(Memento):
    """Refuses the state of one application."""

    number: int = 0
    wrong: int = 0

    @classmethod
    def upgrade(cls, old: Last) -> Other:
        """Take over."""
        if old.number < 0:
            raise ValueError("no")
        return cls(number=old.number, wrong=old.wrong)


@slet
def check(item: int, last: Last) -> None:
    """Count what does not follow."""
    last.wrong += item != last.number + 1 and last.number >= 0
    last.number = item if last.number >= 0 else -1


@slet
def other(item: int, last: Other) -> None:
    """Count what does not follow."""
    last.wrong += item != last.number + 1
    last.number = item


def run(platform: Platform, *names: str) -> list[Any]:
    """Start applications that count for ever."""
    for name in names:
        app = Application(name)
        app.add("check", check, item=app.add("numbers", count_up, start=1))
        platform.apply(app.build())
    return [platform.deployment(name) for name in names]


def plans(platform: Platform, *names: str) -> list[Any]:
    """Replace the check in each of them."""
    return [platform.plan(platform.mesh(name).replace("check", other)) for name in names]


def test_all_of_them():
    """Each has its new slet, with its state, and a revision more."""
    with Platform() as platform:
        deployments = run(platform, "a", "b", "c")
        for mesh in platform._applications.changes.together(plans(platform, "a", "b", "c")):
            assert mesh.revision == 2
        for one in deployments:
            eventually(lambda one=one: one.components["check"].state.number > 1000)
            assert one.components["check"].spec.name == "other"
            assert one.components["check"].state.wrong == 0


def test_or_none():
    """The last one refuses its state when all others have everything in its place: all go back."""
    with Platform() as platform:
        deployments = run(platform, "a", "b", "c")
        deployments[2].components["check"].state.number = -1
        with pytest.raises(MementoError, match="ValueError: no"):
            platform._applications.changes.together(plans(platform, "a", "b", "c"))
        for one in deployments[:2]:
            seen = one.components["check"].state.number
            eventually(lambda one=one, seen=seen: one.components["check"].state.number > seen + 1000)
            assert one.components["check"].state.wrong == 0
        for one in deployments:
            assert one.mesh.revision == 1
            assert one.components["check"].spec.name == "check"
        assert len(platform.registry.find("Slet", "(node=check)")) == 3


def test_a_stale_plan_or_a_removed_application_stops_all():
    """What was opened for the others is closed again."""
    with Platform() as platform:
        run(platform, "a", "b")
        made = plans(platform, "a", "b")
        platform.apply(platform.mesh("b").suspend("check"))
        with pytest.raises(StaleMesh):
            platform._applications.changes.together(made)
        made = plans(platform, "a", "b")
        platform.remove("b")
        with pytest.raises(PlanError, match="b was removed meanwhile"):
            platform._applications.changes.together(made)
        assert platform.mesh("a").revision == 1
        assert len(platform.registry.find("Slet", "(node=check)")) == 1
