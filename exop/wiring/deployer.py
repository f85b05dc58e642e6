"""From a mesh to a running deployment, and away again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from exop.errors import PlanError
from exop.model.meshes.checks import check
from exop.model.meshes.mesh import Mesh, Node
from exop.runtime.component_manager import ComponentManager
from exop.runtime.deployment import Deployment
from exop.runtime.supervision.interrupts import check_interrupt
from exop.wiring.changes.channels import check_channels
from exop.wiring.changes.successors import discard
from exop.wiring.controller import WiringController

if TYPE_CHECKING:
    from exop.runtime.durable.snapshot import Snapshot


class Deployer:
    """Deploys and undeploys whole meshes; each step that fails undoes the ones before it."""

    def __init__(self, manager: ComponentManager, wiring: WiringController, host: str) -> None:
        self._manager = manager
        self._wiring = wiring
        self._host = host

    def deploy(
        self,
        mesh: Mesh,
        snapshot: Snapshot | None = None,
        ready: Callable[[Deployment], None] | None = None,
        timeout: float | None = None,
    ) -> Deployment:
        """Create, connect, open and start everything; the sources start when every slet is ready.

        Each slet has *timeout* seconds to be made, and as many to open. A *snapshot* is what they go on from.
        *ready* is called when everything is open, and nothing moves yet. The caller takes the deployment out of
        `manager.opening` when it is in charge of it.
        """
        check(mesh, self._manager.kinds)
        check_channels(mesh, self._manager.kinds)
        self.check_hosts(mesh.nodes.values())
        deployment = Deployment(mesh)
        with ExitStack() as undo:
            self._create(deployment, timeout, undo)
            if snapshot is not None:
                # Imported lazily: only recovery needs the encoding.
                from exop.runtime.durable.snapshot import restore_contents, restore_states

                restore_states(deployment, snapshot)
            self._wiring.bind(deployment, self._wiring.whole_region(deployment))(None)
            if snapshot is not None:
                restore_contents(deployment, snapshot)
            undo.callback(deployment.stop)
            self._manager.opening[mesh.name] = deployment
            undo.callback(self._manager.opening.pop, mesh.name, None)
            check_interrupt()
            deployment.open(timeout)
            check_interrupt()
            if ready is not None:
                ready(deployment)
            deployment.start()
            undo.pop_all()
        return deployment

    def undeploy(self, deployment: Deployment, timeout: float = 5.0) -> bool:
        """Stop everything and take it out of the registry; return whether every thread has left in time."""
        try:
            left = deployment.stop(timeout)
        finally:
            for component in deployment.components.values():
                discard(deployment, self._manager, component)
            self._destroy_channels(deployment)
            self._manager.user.abandon(deployment.name)
            deployment.finished.set()
        return left

    def _create(self, deployment: Deployment, timeout: float | None, undo: ExitStack) -> None:
        mesh, durable = deployment.mesh, deployment.mesh.durable is not None
        undo.callback(self._destroy_channels, deployment)
        for spec in mesh.channels.values():
            made = self._manager.create_channel(mesh.name, spec, durable=durable, timeout=timeout)
            deployment.channels[spec.name] = made
        components = {}
        for node in mesh.nodes.values():
            component = self._manager.create(mesh.name, node, deployment.changed, durable=durable, timeout=timeout)
            components[node.name] = component
            undo.callback(discard, deployment, self._manager, component)
            for port, channel in node.ports.items():
                self._wiring.connect(component, port, channel)
        deployment.place(components, components)

    def _destroy_channels(self, deployment: Deployment) -> None:
        for channel in (*deployment.channels.values(), *deployment.inserted.values()):
            self._manager.destroy_channel(deployment.name, channel)

    def check_hosts(self, nodes: Iterable[Node]) -> None:
        """Raise `PlanError` if a node is placed on a host that this platform does not reach."""
        for node in nodes:
            if node.host not in (None, self._host, "local"):
                raise PlanError(
                    f"{node.name} is placed on {node.host!r}, and this platform ({self._host!r}) has no connection to "
                    f"it; place it here by leaving out on({node.host!r})"
                )
