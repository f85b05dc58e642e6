"""Holding drivers still: all of them or some, in which thread, for how long, and what happens to a late one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from exop import Application, slet
from exop.errors import PlanError
from exop.runtime.drivers.base import current_driver
from exop.runtime.pause import Pause
from exop.stock.slets import count_up
from tests.rig import PATIENCE, Gate, collector, eventually, line, parked


def test_a_slet_cannot_park_its_own_application(rig):
    """It would wait for its own end: it is refused at once."""
    refused, made = [], []

    @slet
    def eager(item: int) -> None:
        try:
            with parked(made[0]):
                pass
        except PlanError as error:
            refused.append(str(error))

    app = Application("eager")
    ready = Gate()

    @slet
    def source() -> Iterator[int]:
        ready.pass_through()
        yield 1

    app.add("eager", eager, item=app.add("source", source))
    made.append(rig.deploy(app))
    ready.open()
    assert made[0].wait(PATIENCE)
    assert "do it from another thread" in refused[0]


@pytest.mark.parametrize("way", ["stop", "run", "wait_parked"])
def test_a_late_driver_is_named_with_its_place(rig, way):
    """The others are opened again, and the application goes on."""
    gate, seen = Gate(), []

    @slet
    def slow(item: int) -> None:
        if item == 1:
            gate.pass_through()
        seen.append(item)

    deployment = rig.deploy(line("stuck", numbers=(count_up, {"to": 5}), slow=slow))
    gate.somebody_waits()
    late = r"(?s)stuck\.numbers did not come to a safe point within 0\.01 s; everything.*slow is at.*in pass_through"
    with Pause(deployment, 0.01) as pause:
        pause.close()
        park = {"stop": pause.stop, "run": partial(pause.run, seen.clear), "wait_parked": pause.wait_parked}
        with pytest.raises(PlanError, match=late):
            park[way]()
    gate.open()
    assert deployment.wait(PATIENCE)
    assert seen == [0, 1, 2, 3, 4]


def two_streams(rig: Any) -> tuple[Any, dict[str, list[int]]]:
    """Two streams side by side in one application."""
    app, seen = Application("two"), {"a": [], "b": []}
    for name, items in seen.items():
        app.add(f"sink-{name}", collector(items), item=app.add(name, count_up))
    return rig.deploy(app), seen


def test_only_the_given_drivers_are_closed(rig):
    """The other streams go on."""
    deployment, seen = two_streams(rig)
    source = deployment.components["a"].driver
    with Pause(deployment, drivers=[source]) as pause:
        pause.stop()
        before = len(seen["a"]), len(seen["b"])
        eventually(lambda: len(seen["b"]) > before[1] + 100)
        assert len(seen["a"]) == before[0]
    eventually(lambda: len(seen["a"]) > before[0])


def test_the_driver_that_parks_last_acts_and_goes_on(rig):
    """The stream is not kept waiting for the thread that asks for the action."""
    deployment, seen = two_streams(rig)
    acted: list[Any] = []
    with Pause(deployment) as pause:
        pause.close()
        pause.run(lambda: acted.append((current_driver(), *map(len, seen.values()))))
        before = acted[0]
        assert before[0] in [None, *deployment.drivers()]
        eventually(lambda: len(seen["a"]) > before[1] and len(seen["b"]) > before[2])
    assert pause.seconds > 0


def test_the_time_for_which_a_driver_stands_still_before_the_action_counts(rig):
    """It waits for what is behind it to finish, and so do the items in front of it."""
    deployment, seen = two_streams(rig)
    with Pause(deployment) as pause:
        pause.close([deployment.components["a"].driver])
        pause.wait_parked()
        begin, there = time.perf_counter(), len(seen["b"])
        eventually(lambda: len(seen["b"]) > there + 100)
        waited = time.perf_counter() - begin
        pause.close()
        pause.run(lambda: None)
    assert pause.seconds >= waited


def test_an_action_that_raises_lets_everything_go_on(rig):
    """Its error is raised in the thread that asks for it."""
    deployment, seen = two_streams(rig)

    def fail() -> None:
        raise ValueError("no")

    with Pause(deployment) as pause:
        pause.close()
        with pytest.raises(ValueError, match="no"):
            pause.run(fail)
        before = len(seen["a"])
        eventually(lambda: len(seen["a"]) > before)


def test_a_held_pause_ends_in_any_thread(rig):
    """The drivers stay closed until the end, and the next pause waits."""
    deployment, seen = two_streams(rig)
    first = Pause(deployment).begin()
    first.close()
    first.wait_parked()
    before = len(seen["a"])
    second = threading.Thread(target=lambda: Pause(deployment).begin().end())
    second.start()
    assert len(seen["a"]) == before
    assert second.is_alive()
    ending = threading.Thread(target=first.end)
    ending.start()
    ending.join()
    second.join(PATIENCE)
    assert not second.is_alive()
    first.end()
    eventually(lambda: len(seen["a"]) > before)
