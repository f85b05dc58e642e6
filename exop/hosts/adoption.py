"""Adopting an application whose home is gone for good: another host becomes its home.

Every host stores the whole mesh of the last plan that it has committed; the newest one is put into force. What ran at
the former home begins anew at the new one, without its state. Connectors between other hosts go on undisturbed. A plan
of the former home is refused from then on, since the epoch of the application is higher.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from exop.errors import PlanError
from exop.hosts.fragment import Limits, Work
from exop.hosts.moves.transfer import Transfer
from exop.hosts.protocol.messages import Fragment
from exop.hosts.spanning import Spanning
from exop.model.meshes.fragments import Placement, fragments
from exop.model.meshes.mesh import Mesh
from exop.model.slets.spec import SletSpec
from exop.runtime.channels.base import Channel


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


@dataclass(frozen=True)
class Adoption:
    """The adoption of an application by the platform *name* from the *former* home.

    Attributes:
        survivors: The hosts that run fragments, with what they know.
    """

    name: str
    former: str
    survivors: Mapping[str, Survivor]
    slets: Mapping[str, SletSpec]
    kinds: Mapping[str, type[Channel]]

    @property
    def epoch(self) -> int:
        """An epoch that is higher than that of every host, and than that of the former home."""
        return max(one.epoch for one in self.survivors.values()) + 2

    def plan(self, number: str, limits: Limits) -> tuple[Spanning, dict[str, Fragment]]:
        """Return the application after the adoption, and the parts of all hosts in the plan *number*.

        Raises:
            PlanError: the home still leads the application, or hosts other than it are missing.
        """
        topology, revision = max((one.whole for one in self.survivors.values()), key=lambda whole: whole[1])
        before = Mesh.from_toml(topology, self.slets).at(revision)
        old = Placement(before, self.former, self.kinds)
        if missing := {*old.hosts} - self.survivors.keys() - {self.former}:
            raise PlanError(
                f"{before.name}: {', '.join(sorted(missing))} cannot be reached, and runs a part; link this platform "
                f"with it, or start it again, and repeat"
            )
        if self.former in self.survivors and self.survivors[self.former].home == self.former:
            raise PlanError(
                f"the home of the application, {self.former}, answers: give the command to it, by --on, or stop it "
                f"before another host adopts the application"
            )
        places = {None, "local", self.former}
        after = before.edited(
            {name: replace(one, host=None) for name, one in before.nodes.items() if one.host in places},
            {name: replace(one, host=None) for name, one in before.channels.items() if one.host in places},
        )
        known = {key: epoch for one in self.survivors.values() for key, epoch in one.connectors.items()}
        epochs = {
            key: known[key] if key in known and old.connectors.get(key) == one else revision + 1
            for key, one in Placement(after, self.name, self.kinds).connectors.items()
        }
        parts = fragments(after, self.name, epochs, self.kinds)
        target = Spanning(after.at(revision + 1), epochs, dict.fromkeys(parts, number))
        target.changing = dict.fromkeys({**parts, **self.survivors}, number)
        whole = after.to_toml(), revision + 1
        empty = Mesh(before.name, durable=before.durable)
        return target, {
            host: Fragment(Work(parts.get(host, empty), limits, whole, Transfer(), self.former), (before.name,))
            for host in target.changing
        }
