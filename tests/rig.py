"""What many tests need: a small platform without plugins, slets that write down what they see, and patience."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from exop import Application, Batch, EndOfStream, Punctuation, Slet, input_port, slet
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.registry import ServiceRegistry
from exop.runtime.catalog import Catalog
from exop.runtime.channels import BUILT_IN, REMOTE
from exop.runtime.component import Component
from exop.runtime.component_manager import ComponentManager
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.lifecycle import Event
from exop.runtime.pause import Pause
from exop.wiring import Applications, WiringController
from exop.wiring.graph.wiring_graph import WiringGraph

#: No test waits longer than this for something that has to happen.
PATIENCE = 60.0


def eventually(holds: Callable[[], Any], what: str = "it", seconds: float = PATIENCE) -> None:
    """Wait until something holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < deadline, f"{what} has not come about within {seconds:g} s"
        pause.wait(0.001)


def stress_seeds() -> Iterator[int]:
    """Yield seeds, from the one that `EXOP_STRESS=SECONDS[:SEED]` names, until the seconds are over."""
    seconds, _, first = os.environ["EXOP_STRESS"].partition(":")
    until = time.monotonic() + float(seconds)
    for seed in count(int(first or 0)):
        if time.monotonic() > until:
            return
        yield seed


def rests(driver: Driver, timeout: float) -> bool:
    """Wait until a driver processes no item; `False` when *timeout* seconds were not enough."""
    news, end = threading.Event(), time.monotonic() + timeout
    driver.watch(news.set)
    try:
        while driver.busy and news.wait(max(0.0, end - time.monotonic())):
            news.clear()
        return not driver.busy
    finally:
        driver.unwatch(news.set)


def collector(seen: list[Any]) -> Any:
    """A sink that writes down what arrives."""

    @slet
    def collect(item: Any) -> None:
        seen.append(item)

    return collect


def source_of(items: Any) -> Any:
    """A source of given items."""

    @slet
    def given() -> Iterator[Any]:
        yield from items

    return given


@slet
def same(item: Any) -> Any:
    """Pass every item on."""
    return item


class Two(Slet):
    """Two ports, one output."""

    @input_port
    def left(self, item: Any) -> Any:
        """Pass on."""
        return item

    @input_port
    def right(self, item: Any) -> Any:
        """Pass on."""
        return item


class Takes(Slet):
    """A sink that does nothing with what it takes."""

    @input_port
    def item(self, item: Any) -> None:
        """Take."""


def line(name: str = "app", /, **slets: Any) -> Application:
    """An application of slets in a row, by node; a pair of a slet and a dictionary brings settings, too."""
    app, before = Application(name), dict[str, Any]()
    for node, one in slets.items():
        made, settings = one if isinstance(one, tuple) else (one, {})
        before = {"item": app.add(node, made, **settings, **before)}
    return app


def marked(*items: Any) -> Any:
    """A source of given items and punctuations."""

    @slet
    def given() -> Iterator[Any | Punctuation]:
        yield from items

    return given


def seeing(seen: list[Any]) -> Any:
    """A sink that writes down what arrives, also control items."""

    @slet
    def see(item: Any | Punctuation | EndOfStream) -> None:
        seen.append(item)

    return see


def batches_of(*batches: list[Any]) -> Any:
    """A source of given batches."""

    @slet
    def given() -> Iterator[Batch[Any]]:
        yield from map(Batch, batches)

    return given


class Gate:
    """A door in a slet: closed, it keeps whoever comes inside until it is opened."""

    def __init__(self, *, closed: bool = True) -> None:
        self._open = threading.Event()
        self.waiting = threading.Semaphore(0)
        if not closed:
            self._open.set()

    def open(self) -> None:
        """Let everybody through."""
        self._open.set()

    def pass_through(self) -> None:
        """Wait until the gate is open."""
        self.waiting.release()
        assert self._open.wait(PATIENCE), "nobody has opened the gate"

    def somebody_waits(self) -> None:
        """Wait until one has come to the gate."""
        assert self.waiting.acquire(timeout=PATIENCE), "nobody has come to the gate"


@contextmanager
def parked(deployment: Deployment, timeout: float = PATIENCE) -> Iterator[None]:
    """Hold every driver at a safe point while the block runs."""
    with Pause(deployment, timeout) as pause:
        pause.stop()
        yield


class Rig:
    """The services of a platform, without plugins, state and sockets."""

    def __init__(self) -> None:
        self.registry = ServiceRegistry()
        self.manager = ComponentManager(self.registry, "here")
        self.manager.kinds = {kind.kind: kind for kind in (*BUILT_IN, *REMOTE)}
        self.wiring = WiringController(self.registry, self.manager)
        self.deployer = Applications("here", Catalog(Plugins()), self.wiring)
        self.deployments: list[Deployment] = []

    def deploy(self, app: Application | Mesh) -> Deployment:
        """Deploy an application."""
        deployment = self.deployer.deploy(app.build() if isinstance(app, Application) else app)
        self.deployments.append(deployment)
        return deployment

    def run(self, app: Application) -> Deployment:
        """Deploy an application and wait until it has finished."""
        deployment = self.deploy(app)
        assert deployment.wait(PATIENCE), f"{app.name} has not finished"
        return deployment

    def graph(self, app: Application) -> WiringGraph:
        """The connections of an application of which nothing is opened."""
        mesh = app.build()
        for spec in mesh.channels.values():
            self.manager.create_channel(mesh.name, spec, durable=False, timeout=None)
        for node in mesh.nodes.values():
            component = self.manager.create(mesh.name, node, lambda _: None)
            self.manager.connect(component, node.ports)
        return self.wiring.graph(mesh.name)

    def suspend(self, deployment: Deployment, node: str) -> None:
        """Suspend a node while the application runs."""
        one = deployment.components[node]
        with parked(deployment):
            one.node = replace(one.node, suspended=True)
            one.on(Event.SUSPEND)
            self.wiring.bind(deployment, self.wiring.whole_region(deployment))(None)
        deployment.settle_workers(PATIENCE)

    def resume(self, deployment: Deployment, node: str) -> None:
        """Resume a node that was suspended."""
        one = deployment.components[node]
        with parked(deployment):
            one.node = replace(one.node, suspended=False)
            one.resume()
            self.wiring.bind(deployment, self.wiring.whole_region(deployment))(None)
        deployment.settle_workers(PATIENCE)

    def undeploy(self, deployment: Deployment) -> None:
        """Take a deployment away; all its threads leave."""
        self.deployments.remove(deployment)
        assert self.deployer.undeploy(deployment, timeout=PATIENCE), "a thread has not left"

    def close(self) -> None:
        """Take everything away."""
        for deployment in list(self.deployments):
            self.undeploy(deployment)


def component(rig: Rig, graph: WiringGraph, name: str) -> Component:
    """The component of a node."""
    return graph.nodes[name].component


@contextmanager
def threads_leave() -> Iterator[None]:
    """No thread of the platform that begins inside of the block is left behind it."""
    before = set(threading.enumerate())
    yield
    eventually(
        lambda: not [t for t in threading.enumerate() if t not in before and t.name.startswith("exop")],
        "the end of all threads",
    )
