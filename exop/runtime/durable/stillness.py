"""Holding a whole deployment still for a checkpoint: every driver where its in-flight items are known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from exop.errors import CheckpointError
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.inside import whereabouts
from exop.shown import described

#: A source that has not yielded after so many seconds is a slow one.
QUICK = 0.01


@contextmanager
def still(deployment: Deployment, patience: float) -> Iterator[None]:
    """Hold every driver where its in-flight items are known, while the block runs; upstream stands still first.

    Raises:
        CheckpointError: a driver has crashed, did not come to such a point within *patience* seconds, or waits inside
            of an item.
    """
    name = deployment.name
    with deployment.parking, ExitStack() as closed:
        waited_for = {id(driver) for driver in _slow_sources(deployment, patience, closed)}
        for driver in deployment.drivers():
            if id(driver) not in waited_for:
                _close(deployment, driver, patience, closed)
            if driver.held_by is not None and not driver.work and not isinstance(driver, SourceDriver):
                raise CheckpointError(application=name, problem=driver.held_by, cure="repair that first")
        for crashed, crash in deployment.crashed():
            problem = f"the driver {crashed} has crashed: {described(crash)}"
            raise CheckpointError(application=name, problem=problem, cure="restart it from the last one")
        yield


def _slow_sources(deployment: Deployment, patience: float, closed: ExitStack) -> Iterator[Driver]:
    """The sources that keep others waiting are waited for first, one by one, while everybody else goes on."""
    for driver in deployment.drivers():
        if isinstance(driver, SourceDriver):
            driver.close()
            quick = driver.wait_still(QUICK)
            driver.open()
            if not quick:
                _close(deployment, driver, patience, closed)
                yield driver


def _close(deployment: Deployment, driver: Driver, patience: float, closed: ExitStack) -> None:
    driver.close()
    closed.callback(driver.open)
    if not driver.wait_still(patience):
        problem = f"{driver.name} did not come to a safe point within {patience:g} s"
        cure = "a source that waits should yield None from time to time"
        if driver.busy:
            cure = "when it returns, the next one is taken" + whereabouts(deployment.components.values(), [driver])
        raise CheckpointError(application=deployment.name, problem=problem, cure=cure)
