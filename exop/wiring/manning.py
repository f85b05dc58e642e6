"""Assignment of workers to queues, and of drivers to components."""

from __future__ import annotations

from functools import partial

from exop.runtime.channels.buffered import Buffered
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.worker import Worker
from exop.runtime.failure import stranded
from exop.wiring.circuit import Circuit
from exop.wiring.layout import Layout


def man(deployment: Deployment, circuit: Circuit, layout: Layout) -> list[Worker]:
    """One worker for each group of queues that share one; called while nothing is in flight.

    A worker that has some of the queues already goes on with them; one with work in flight comes first. Returns the
    workers that leave.
    """
    queues = {name: channel for name, channel in circuit.channels.items() if isinstance(channel, Buffered)}
    queues |= deployment.inserted
    before = dict(deployment.workers)
    at_work = {id(queue): worker for worker in before.values() for queue in worker.queues}
    manned: dict[str, Worker] = {}
    taken: set[int] = set()
    for group in dict.fromkeys(layout.groups.values()):
        served = sorted((name for name in group if name in queues), key=layout.order.__getitem__, reverse=True)
        if not served:
            continue
        known = [at_work.get(id(queues[name])) for name in served] + [before.get(min(group))]
        free = [one for one in known if one is not None and id(one) not in taken]
        worker = next((one for one in free if one.work), free[0] if free else None)
        manned[min(group)] = worker or Worker(f"{deployment.name} {min(group)}")
        taken.add(id(manned[min(group)]))
    leaving = {key: worker for key, worker in before.items() if id(worker) not in taken}
    by_queue = _serve(layout, queues, manned)
    for key, worker in leaving.items():
        manned[key if key not in manned else f"{key} (leaves {id(worker)})"] = worker
    deployment.workers = manned
    _inform(deployment, circuit, layout, by_queue)
    return [*leaving.values()]


def relieve(deployment: Deployment, worker: Worker) -> None:
    """Hand what a leaving worker has left to do over to the worker that has its queues now."""
    heir = next((queue.worker for queue in worker.queues if queue.worker not in (None, worker)), None)
    if heir is None or not worker.work:
        return
    heir.take_on(worker.unload())
    for component in deployment.components.values():
        if worker in component.trouble.holders:  # resuming it wakes the heir
            component.trouble.holders.append(heir)


def _serve(layout: Layout, queues: dict[str, Buffered], manned: dict[str, Worker]) -> dict[str, Worker]:
    by_queue: dict[str, Worker] = {}
    for group in dict.fromkeys(layout.groups.values()):
        served = sorted((name for name in group if name in queues), key=layout.order.__getitem__, reverse=True)
        if served:
            worker = manned[min(group)]
            worker.serve(tuple(queues[name] for name in served))
            by_queue |= dict.fromkeys(served, worker)
    return by_queue


def _inform(deployment: Deployment, circuit: Circuit, layout: Layout, by_queue: dict[str, Worker]) -> None:
    """Tell components who runs them, and drivers how far downstream they are and whom to tell what."""
    components = {name: vertex.component for name, vertex in circuit.nodes.items()}
    rank: dict[int, int] = {}
    for component in components.values():
        runners: list[Driver | None] = [
            by_queue.get(name) if kind == "queue" else components[name].driver
            for kind, name in sorted(layout.runs.get(component.node.name, ()))
        ]
        component.runner = component.driver or next((one for one in runners if one is not None), None)
        for driver in (component.driver, *component.pullers):
            rank[id(driver)] = layout.order[component.node.name]
    for name, worker in by_queue.items():
        rank[id(worker)] = min(layout.order[name], rank.get(id(worker), layout.order[name]))
    deployment.rank = rank
    for driver in deployment.drivers():
        driver.entries, driver.idle, driver.told = deployment.places, deployment.idle, deployment.nudge
        driver.strand = partial(stranded, deployment, driver)
    for queue in deployment.queues():
        queue.alarm = deployment.tell
