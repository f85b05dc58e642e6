"""Adopting an application whose home is gone for good: another host becomes its home.

Every host stores the whole mesh of the last plan that it has committed; the newest one is put into force. What ran at
the former home begins anew at the new one, without its state. Connectors between other hosts go on undisturbed. A plan
of the former home is refused from then on, since the epoch of the application is higher.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from exop.errors import PlanError
from exop.hosts.fragment import Fragments, Work
from exop.hosts.moves.transfer import Transfer
from exop.hosts.protocol.messages import Fragment
from exop.hosts.spanning import Spanning
from exop.model.meshes.fragments import Placement, epochs, fragments
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import HERE
from exop.wiring.changes.plan import PAUSE


@dataclass(frozen=True)
class Survivor:
    """The knowledge of a host about an application of which it runs a fragment.

    Attributes:
        whole: The whole mesh after the last plan as a topology file, with its revision.
        epoch: The epoch of the application.
        connectors: The epochs of the connectors of the fragment, by key.
    """

    home: str
    whole: tuple[str, int]
    epoch: int
    connectors: Mapping[str, int]


def adoption(
    here: Fragments, former: str, survivors: Mapping[str, Survivor], number: str
) -> tuple[Spanning, dict[str, Fragment]]:
    """Return an application after this platform has adopted it from the *former* home, and the parts of all hosts.

    *survivors* are the hosts that run fragments, with what they know; *number* is that of the plan.

    Raises:
        PlanError: the home still leads the application, or hosts other than it are missing.
    """
    kinds = here.catalog.kinds
    topology, revision = max((one.whole for one in survivors.values()), key=lambda whole: whole[1])
    before = Mesh.from_toml(topology, here.catalog.slets).at(revision)
    old = Placement(before, former, kinds)
    if missing := {*old.hosts} - survivors.keys() - {former}:
        raise PlanError(
            f"{before.name}: {', '.join(sorted(missing))} cannot be reached, and runs a part; link this platform "
            f"with it, or start it again, and repeat"
        )
    if former in survivors and survivors[former].home == former:
        raise PlanError(
            f"the home of the application, {former}, answers: give the command to it, by --on, or stop it "
            f"before another host adopts the application"
        )
    places = {None, HERE, former}
    after = before.edited(
        {name: replace(one, host=None) for name, one in before.nodes.items() if one.host in places},
        {name: replace(one, host=None) for name, one in before.channels.items() if one.host in places},
    )
    known = {key: epoch for one in survivors.values() for key, epoch in one.connectors.items()}
    connectors = epochs(old, Placement(after, here.name, kinds), known)
    parts = fragments(after, here.name, connectors, kinds)
    target = Spanning(after.at(revision + 1), connectors, dict.fromkeys(parts, number))
    target.changing = dict.fromkeys({**parts, **survivors}, number)
    whole = after.to_toml(), revision + 1
    empty = Mesh(before.name, durable=before.durable)
    return target, {
        host: Fragment(Work(parts.get(host, empty), (None, PAUSE, False), whole, Transfer(), former), (before.name,))
        for host in target.changing
    }
