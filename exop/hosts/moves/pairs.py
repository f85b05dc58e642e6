"""One host's part in the trials and standbys of a change that moves nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from zlib import crc32

from exop.hosts.fragment import Fragments, Work
from exop.hosts.moves.ahead import Ahead
from exop.hosts.moves.twins import Feeder, Place, RemoteStandby, RemoteTrial, Twin
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.supervision.failure_state import DeadLetters
from exop.wiring.changes.change import Change
from exop.wiring.changes.channels import Undo
from exop.wiring.changes.plan import Plan, Step
from exop.wiring.changes.successors import between_items
from exop.wiring.shadow.follower import Follower, Followers, Standby, check_standby
from exop.wiring.shadow.shadows import no_standby
from exop.wiring.shadow.trial import MakeTrial, Trial


@dataclass
class Pairs:
    """The feeders and twins of one host in one plan.

    Attributes:
        feeders: Those of the nodes that leave; each settles before the cut.
        away: Makes the trials of the nodes that leave.
        behind: The nodes that move, and whose followers have the state already.
        over: Set when the change is aborted.
    """

    number: str
    plan: Plan
    here: Fragments
    work: Work
    over: threading.Event
    away: dict[str, MakeTrial] = field(default_factory=dict)
    behind: set[str] = field(default_factory=set)
    feeders: list[Feeder] = field(default_factory=list)
    _made: dict[str, Twin] = field(default_factory=dict)
    _ready: dict[str, Follower] = field(default_factory=dict)

    @property
    def keeps(self) -> bool:
        """Whether predecessors run on here."""
        return self.work.keep is not None and bool(self.work.transfer.departing)

    def open(self) -> None:
        """Open the successors that are tried here, and find the feeders and twins of standbys that take over.

        Raises:
            PlanError: there is no standby.
        """
        name, shadow, back = self.plan.after.name, self.work.shadow, self.work.back
        changes, deployment = self.here.running.changes, self.here.running.get(name)
        moving = (*self.work.transfer.departing, *self.work.transfer.arriving)
        self.behind = {node for node in moving if node == back or (shadow is not None and not shadow.diverted(node))}
        for node, target in self.work.transfer.departing.items():
            if node == back:
                if not isinstance(standby := changes.shadows.standby(name, node), RemoteStandby):
                    raise no_standby(name, node)
                self.feeders.append(standby)
            elif shadow is not None:
                self.away[node] = partial(self._trial, self._place(node, target))
            if self.keeps:
                check_standby(deployment.components[node])
        for node, source in self.work.transfer.arriving.items():
            if node == back:
                if (twin := self.here.twins.get((name, node))) is None:
                    raise no_standby(name, node)
                twin.after = self.plan.after.node(node)
                self._ready[node] = twin
            elif shadow is not None:
                self._open(deployment, node, source)

    def _open(self, deployment: Deployment, name: str, source: str) -> None:
        """Open the successor of a node, with its effects diverted if the shadow says so."""
        diverted = self.work.shadow.diverted(name) if self.work.shadow is not None else {}
        node = self.plan.after.node(name).with_settings(diverted)
        component = self.here.running.changes.open_beside(deployment, node, self.plan.timeout)
        self._made[name] = twin = Twin(component, self._place(name, source), self.here.twins)
        if not diverted:
            self._ready[name] = twin

    def followers(self) -> Followers:
        """Return the followers of the change."""
        keep: dict[str, Callable[[Component | None, Component, list[Undo]], Standby]] = {}
        if self.work.keep is not None:
            keep = {node: partial(self._standby, source) for node, source in self.work.transfer.arriving.items()}
        return Followers(self._ready, keep, staying=self.work.transfer.departing if self.keeps else ())

    def keep(self, change: Change) -> None:
        """Let the predecessors of a committed change follow their successors at the other hosts."""
        shadows = self.here.running.changes.shadows
        for node, target in self.work.transfer.departing.items() if self.keeps else ():
            component = change.old[node]
            component.trouble.dead = DeadLetters()
            twin = Twin(component, self._place(node, target), self.here.twins, self._expire)
            twin.attach()
            # Its feeder should end it before.
            shadows.keep(change.deployment, node, twin, (self.work.keep or 0.0) + 10.0)

    def close(self) -> None:
        """End the successors on trial; those that have taken over stay."""
        for twin in self._made.values():
            twin.place.ahead.close()
            self.here.running.changes.shadows.leave(self.here.running.get(self.plan.after.name), twin)

    def _place(self, node: str, host: str) -> Place:
        name, seconds = self.plan.after.name, self.plan.patience
        ahead = Ahead(f"{crc32(f'{self.number} {node}'.encode()):08x}", self.here.links, seconds, self.over)
        return Place(name, node, host, self.number, ahead)

    def _trial(self, place: Place, step: Step, old: Component) -> Trial:
        """Copy large parts of the state ahead, between items, and make the trial."""
        between = partial(between_items, self.here.running.get(place.application), old, self.plan.patience)
        place.ahead.copy(place.host, place.node, old.state, between)
        trial = RemoteTrial(step, old, self.work.shadow, place)
        self.feeders.append(trial)
        return trial

    def _standby(self, source: str, _: Component | None, successor: Component, undo: list[Undo]) -> Standby:
        place = self._place(successor.node.name, source)
        return RemoteStandby(successor, undo, place, self.here.running.changes.shadows.expire)

    def _expire(self, standby: Standby) -> None:
        """Close a predecessor whose time is up, and the fragment if nothing else is there."""
        running, name = self.here.running, self.plan.after.name
        running.changes.shadows.expire(standby)
        deployment = running.deployed.get(name)
        kept = any(application == name for application, _ in self.here.twins)
        if deployment is not None and not deployment.mesh.nodes and not kept and name not in self.here.known:
            with running.changes.turns_of(name):
                if running.deployed.get(name) is deployment and not deployment.mesh.nodes:
                    self.here.drop(name)
