"""One version of a bundle takes the place of another, in all applications that run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from exop.bundle.ground import Ground
from exop.errors import BundleError
from exop.hosts.together import change_together
from exop.model.meshes.mesh import Mesh
from exop.model.slets.spec import SletSpec


def replace_all(ground: Ground, old: Collection[str], new: str, bounds: Mapping[str, Any]) -> dict[str, list[str]]:
    """Replace every component of the bundles *old* by the slet of the same name of *new*; *bounds* as for `Plan.apply`.

    Returns the replaced nodes, each with the settings that changed with it, in words. There is one plan for each
    application; all of them are made, or none. Applications that have finished stay as they are.

    Raises:
        BundleError: a slet that runs is not offered any more.
        MeshError, PlanError: the new slet cannot take a place; everything is as it was.
    """
    offered = {spec.name: spec for spec in ground.offered(new).values()}
    plans = []
    replaced: dict[str, list[str]] = {}
    for application in ground.applications.names():
        deployment = ground.applications.get(application)
        if deployment.finished.is_set():
            continue
        nodes = [node for node in deployment.mesh.nodes.values() if node.slet.plugin in old]
        if nodes:
            mesh = _with(deployment.mesh, [node.name for node in nodes], offered, new)
            plan = ground.applications.plan(mesh).bounded(**bounds)
            plans.append(plan)
            replaced |= {f"{application}.{step.node}": [str(one) for one in step.settings] for step in plan.steps}
    change_together(ground.applications, plans)
    return replaced


def _with(mesh: Mesh, nodes: Collection[str], offered: Mapping[str, SletSpec], new: str) -> Mesh:
    for name in nodes:
        slet = mesh.node(name).slet.name
        if slet not in offered:
            cure = f"offer it again, or replace {mesh.name}.{name} first"
            raise BundleError(bundle=new, problem=f"offers no slet {slet!r}, which {mesh.name}.{name} runs", cure=cure)
        mesh = mesh.replace(name, offered[slet])
    return mesh
