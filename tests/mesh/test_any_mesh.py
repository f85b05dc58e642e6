"""For any mesh and any disturbance: nothing lost, doubled or reordered, every stream ends, every thread leaves."""

import os
import random
import threading
import time
import traceback

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exop import Platform
from exop.errors import ComponentFailed, ExopError, LifecycleError
from exop.runtime.channels.queue import Buffered
from exop.runtime.lifecycle import State
from exop.runtime.supervision import failure_policy as failure
from tests.mesh.random_mesh import RandomMesh, verdict, wrong_figures
from tests.rig import parked, rests, threads_leave

#: How long one mesh may take; it needs some hundredths of a second.
PATIENCE = 60.0
ACTIONS = ("park", "park one", "suspend", "resume", "replace", "settle", "look", "nothing")


@pytest.fixture(scope="module")
def platform():
    """One platform for all meshes."""
    with threads_leave(), Platform() as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Tries again at once."""
    monkeypatch.setattr(failure, "BACK_OFF", 0.0005)


def run(platform, name, chance, **kinds):
    """Run one mesh to its end while it is disturbed; returns what went wrong."""
    made = RandomMesh(name, chance, **kinds)
    plan = [(chance.choice(ACTIONS), chance.random()) for _ in range(chance.randint(0, 12))]
    platform.apply(made.mesh)
    try:
        for action, which in plan:
            disturb(platform, made, name, action, which)
        heal(platform, name)
        return [*verdict(made), *wrong_figures(made, platform.deployment(name))]
    except AssertionError as stuck:
        return [str(stuck), *state_of(platform, name)]
    finally:
        if not platform.remove(name, timeout=PATIENCE):
            stacks = [f"{t.name}" for t in threading.enumerate() if t.name.startswith("exop")]
            raise AssertionError(f"threads have not left: {stacks}")


def disturb(platform, made, name, action, which):
    """Do something to the running application from another thread than its own."""
    deployment = platform.deployment(name)
    drivers = deployment.drivers()
    node = sorted(made.stations)[int(which * len(made.stations))]
    try:
        if action == "park":
            with parked(deployment):
                assert not any(driver.busy for driver in deployment.drivers()), "a driver is busy though it is parked"
        elif action == "park one":
            driver = drivers[int(which * len(drivers))]
            driver.close()
            assert rests(driver, PATIENCE), f"{driver.name} does not park"
            driver.open()
        elif action == "suspend":
            platform.plan(platform.mesh(name).suspend(node)).apply()
        elif action == "resume":
            platform.resume(name, node)
        elif action == "replace" and made.kinds[node] not in ("engine", "late_engine", "engine_source"):
            platform.plan(platform.mesh(name).replace(node, made.twin(node))).apply()
        elif action == "settle":
            platform.wiring.rebind(deployment, timeout=PATIENCE)
        elif action == "look":
            for look in (platform.status, platform.metrics) * 10:
                look(name)
    except LifecycleError:
        return  # it was in no state for this
    except ExopError as refused:
        if "has finished" not in str(refused) and "did not yield" not in str(refused):
            raise AssertionError(f"{action} {node}: {refused!r}") from refused


def heal(platform, name):
    """Resume suspended slets until everything has ended."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if platform.wait(name, timeout=0.05):
                return
        except ComponentFailed as failed:
            if failed.phase != "running":
                raise AssertionError(repr(failed)) from failed
        assert time.monotonic() < deadline, "it does not come to its end"
        for node, component in platform.deployment(name).components.items():
            if component.status in (State.FAILED, State.SUSPENDED):
                try:
                    platform.resume(name, node)
                except (LifecycleError, ExopError):
                    continue


def state_of(platform, name):
    """The state of all drivers, queues and inlets, for a failure message."""
    import sys

    deployment = platform.deployment(name)
    yield from (f"{node}: {one.status} {one.merge.capture()}" for node, one in deployment.components.items())
    channels = (*deployment.channels.values(), *deployment.inserted.values())
    for queue in (one for one in channels if isinstance(one, Buffered)):
        yield f"{queue.name}: {queue.depth} {list(queue.entries)[:4]} {queue.worker and queue.worker.name}"
    for runner, work in deployment.inlets.waiting():
        yield f"{work.entry.endpoint}: {work.method} {work.payload!r:.200} waits for {runner.name}"
    for driver in deployment.drivers():
        facts = {key: getattr(driver, key) for key in ("busy", "attention", "sleeping", "closed", "held_by")}
        yield f"{driver.name}: {facts}"
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.name.startswith("exop") and thread.ident in frames:
            yield f"--- {thread.name}\n" + "".join(traceback.format_stack(frames[thread.ident])[-5:])


@settings(
    max_examples=45,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(chance=st.randoms(use_true_random=False))
def test_any_mesh_under_any_disturbance(platform, chance):
    """Per output port and input port everything comes once and in order, whatever is done to the application."""
    wrong = run(platform, "any", chance)
    assert not wrong, "\n".join(wrong)


#: Meshes in which drivers wait for each other: pulled ports in diamonds, and cycles with engines.
WAITS = {"waits": True, "limits": (0, 7, 30, 30)}


@pytest.mark.parametrize("seed", range(20))
def test_any_mesh_in_which_drivers_wait_for_each_other(platform, seed):
    """No pulled port makes its producer wait for ever, and no cycle ends before what rests inside an engine."""
    wrong = run(platform, "any", random.Random(seed), **WAITS)
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_a_long_campaign(platform):
    """The same for as many meshes as there is time; a failure names its seed."""
    seconds, _, first = os.environ["EXOP_STRESS"].partition(":")
    seed = int(first or time.time())
    end = time.monotonic() + float(seconds)
    number = 0
    while time.monotonic() < end:
        wrong = run(platform, "any", random.Random(seed + number), **(WAITS if (seed + number) % 2 else {}))
        assert not wrong, f"EXOP_STRESS=1:{seed + number}\n" + "\n".join(wrong)
        number += 1
    assert number
