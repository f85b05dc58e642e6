"""Assignment of workers to queues, and of drivers to components."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from exop.runtime.channels.buffered import Buffered
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.worker import Worker
from exop.runtime.failure import stranded
from exop.wiring.circuit import Circuit
from exop.wiring.layout import DriverKey, Layout, sent_at
from exop.wiring.places import channel_at, port_at


def man(deployment: Deployment, circuit: Circuit, layout: Layout) -> list[Worker]:
    """One worker for each group of queues that share one; called while nothing is in flight.

    A worker that has some of the queues already goes on with them. Returns the workers that leave.
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
        worker = next((one for one in known if one is not None and id(one) not in taken), None)
        manned[min(group)] = worker or Worker(f"{deployment.name} {min(group)}")
        taken.add(id(manned[min(group)]))
    leaving = {key: worker for key, worker in before.items() if id(worker) not in taken}
    by_queue = _serve(layout, queues, manned)
    for key, worker in leaving.items():
        manned[key if key not in manned else f"{key} (leaves {id(worker)})"] = worker
    deployment.workers = manned
    _inform(deployment, circuit, layout, by_queue)
    return [*leaving.values()]


def _runner(deployment: Deployment, circuit: Circuit, layout: Layout) -> Callable[[str], Driver | None]:
    """Return the function that tells who runs a place; `None` for one that leads nowhere."""

    def runner(place: str) -> Driver | None:
        name, port = channel_at(place), port_at(place)
        if place.startswith(("into ", "window ")):
            return _first(deployment, layout.runs.get(f"channel:{name}", ()))
        if name:  # a channel that keeps nothing: where its producers push
            return next((join.component.runner for join in circuit.producers.get(name, ())), None)
        component = deployment.components.get(port.rpartition(".")[0])
        if component is None:
            return None
        entered = component.spec.ports.get(port.rpartition(".")[2])
        return component.pusher if entered is not None and entered.direction == "in" else component.runner

    return runner


def _first(deployment: Deployment, keys: Iterable[DriverKey]) -> Driver | None:
    """The driver of the first key; several keys of one place are queues of one worker."""
    for kind, name in sorted(keys):
        if kind == "queue":
            queue = deployment.inserted.get(name) or deployment.channels.get(name)
            return queue.worker if isinstance(queue, Buffered) else None
        return deployment.components[name].driver if name in deployment.components else None
    return None


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
        component.pusher = _first(deployment, layout.runs.get(component.node.name, ()))
        component.runner = component.driver or component.pusher
        for driver in (component.driver, *component.pullers):
            rank[id(driver)] = layout.order[component.node.name]
    for name, worker in by_queue.items():
        rank[id(worker)] = min(layout.order[name], rank.get(id(worker), layout.order[name]))
    deployment.rank = rank
    deployment.inlets.entries = deployment.places
    deployment.inlets.runner = _runner(deployment, circuit, layout)
    for driver in deployment.drivers():
        driver.inlets, driver.idle, driver.told = deployment.inlets, deployment.idle, deployment.nudge
        driver.strand = partial(stranded, deployment, driver)
    for queue in deployment.queues():
        queue.alarm = deployment.tell


def depth(circuit: Circuit, layout: Layout, place: str) -> float:
    """How far a place is from the queue, source or engine where the direct calls begin that lead to it.

    Along direct channels, work at a place is older than work at any place from which items get there.
    """
    if not place:
        return math.inf
    channel = channel_at(place)
    if channel in circuit.channels:  # its guard, the way into it, one of its windows
        way = ("channel", "into", "window").index(place.partition(" ")[0])
        return sent_at(circuit, layout, channel) + 0.4 + 0.2 * way
    node, _, port = port_at(place).rpartition(".")
    vertex = circuit.nodes.get(node)
    if vertex is None:
        return 0
    leaving = next((name for output, name in circuit.outputs(vertex.component) if output.name == port), None)
    return layout.depths[node] if leaving is None else sent_at(circuit, layout, leaving) + 0.2
