"""Assignment of workers to queues, and of drivers to components."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from exop.runtime.channels.queue import Buffered
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.worker import Worker
from exop.runtime.failure import stranded
from exop.wiring.circuit import Circuit
from exop.wiring.layout import DriverKey, Layout, sent_at
from exop.wiring.places import channel_at, channel_of, port_at
from exop.wiring.region import Region


def man(deployment: Deployment, region: Region) -> list[Worker]:
    """One worker for each group of queues of a region that share one; called while nothing is in flight there.

    A worker that has some of the queues already goes on with them. Returns the workers that leave.
    """
    layout = region.after.layout
    there = {**region.circuit.channels, **deployment.inserted}
    queues = {name: queue for name, queue in there.items() if isinstance(queue, Buffered)}
    before = {key: worker for key, worker in deployment.workers.items() if _inside(region, key)}
    at_work = {id(queue): worker for worker in before.values() for queue in worker.queues}
    manned: dict[str, Worker] = {}
    taken: set[int] = set()
    for group in dict.fromkeys(layout.groups[queue] for queue in region.queues(region.after)):
        served = sorted((name for name in group if name in queues), key=layout.queued.__getitem__, reverse=True)
        if not served:
            continue
        known = [at_work.get(id(queues[name])) for name in served] + [before.get(min(group))]
        worker = next((one for one in known if one is not None and id(one) not in taken), None)
        worker = manned[min(group)] = worker or Worker(f"{deployment.name} {min(group)}")
        worker.rank = layout.queued[served[-1]] - 0.5  # it pushes into the slet behind the queue: it comes before it
        taken.add(id(worker))
        worker.serve(tuple(queues[name] for name in served))
    leaving = {key: worker for key, worker in before.items() if id(worker) not in taken}
    for worker in leaving.values():
        worker.rank = -1
    stay = {key: worker for key, worker in deployment.workers.items() if key not in before}
    gone = {key if key not in manned else f"{key} (leaves {id(worker)})": worker for key, worker in leaving.items()}
    deployment.workers = {**stay, **manned, **gone}
    inform(deployment, region, queues.values())
    return [*leaving.values()]


def _inside(region: Region, key: str) -> bool:
    return channel_of(key.partition(" (leaves ")[0]) in region.channels


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


def inform(deployment: Deployment, region: Region, queues: Iterable[Buffered]) -> None:
    """Tell components who runs them, and drivers how far downstream they are and whom to tell what."""
    circuit, layout = region.after.circuit, region.after.layout
    for component in region.components():
        for driver in (component.driver, *component.pullers):
            if driver is not None:
                driver.rank = layout.order[component.node.name]
        component.pusher = _first(deployment, layout.runs.get(component.node.name, ()))
        component.runner = component.driver or component.pusher
    deployment.inlets.entries = deployment.places
    deployment.inlets.runner = _runner(deployment, circuit, layout)
    for driver in region.drivers(deployment):
        driver.inlets, driver.idle, driver.told = deployment.inlets, deployment.idle, deployment.nudge
        driver.strand = partial(stranded, deployment, driver)
    for queue in queues:
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
