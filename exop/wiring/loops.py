"""Where a cycle ends: when everything outside of it has ended and nothing moves inside any more."""

from __future__ import annotations

import threading
from collections.abc import Callable

from exop.model.items import EndOfStream
from exop.model.lifecycle import State
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver, current_driver
from exop.wiring.circuit import Circuit
from exop.wiring.cycles import find_loops

__all__ = ["end_of_loop", "find_loops"]


def end_of_loop(deployment: Deployment, circuit: Circuit, members: list[Component]) -> Callable[[], None]:
    """What an idle worker calls: ends the cycle of *members* once it is quiet and all that feeds it has ended."""
    inside = {member.id for member in members}
    inner = [
        name
        for name, producers in circuit.producers.items()
        if any(join.component.id in inside for join in producers)
        and any(join.component.id in inside for join in circuit.consumers[name])
    ]
    feeders = {
        join.component
        for member in members
        for channel, _ in circuit.inputs(member)
        for join in circuit.producers[channel]
        if join.component.id not in inside
    }
    turn = threading.Lock()
    done = False

    def check() -> None:
        nonlocal done
        with turn:
            if done or any(feeder.status is not State.ENDED for feeder in feeders):
                return
            if _moving(deployment, current_driver()):
                return
            done = True
        for name in inner:
            _end_channel(deployment, circuit, name, inside)

    return check


def _moving(deployment: Deployment, me: Driver | None) -> bool:
    """Something waits in a queue, or another worker has an item in hand."""
    if any(queue.entries for queue in deployment.queues()):
        return True
    return any(worker.busy or worker.work for worker in deployment.workers.values() if worker is not me)


def _end_channel(deployment: Deployment, circuit: Circuit, name: str, inside: set[str]) -> None:
    """End the stream of the producers inside the cycle, as if they had said so."""
    producers = circuit.producers[name]
    join = next(one for one in producers if one.component.id in inside)
    merge = deployment.merges.get(name)
    for producer in producers:
        if producer.component.id not in inside:
            continue
        if merge is None:
            join.component.to[join.port.name].control(EndOfStream())
        else:
            producer.component.to[producer.port.name].control(EndOfStream())
