"""Conditional updates of applications that span hosts: they take effect where the node or channel runs.

A host reports how many of the updates of its nodes and channels are left, and the home makes that a part of the whole
mesh. Whatever the home does not know yet when it makes a change is found out at the host, and goes along with what
moves. Only numbers travel: each platform has the updates of its meshes, with values of its own types.
"""

from __future__ import annotations

import threading
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from exop.errors import PlanError
from exop.hosts.protocol.messages import Pending, Progress, Section
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import Node
from exop.runtime.conditional_updates import KEPT, AppliedUpdate, UpdateLog, updates_since

_SECTIONS: Final[tuple[Section, ...]] = ("nodes", "channels")


@lru_cache
def _awaited(topology: str) -> list[tuple[Section, str, int]]:
    """Return the nodes and channels with pending updates in a topology file, each with their number."""
    document: dict[str, Any] = tomllib.loads(topology) if "pending" in topology else {}
    places = ((section, name, one) for section in _SECTIONS for name, one in document.get(section, {}).items())
    return [(section, name, len(one["pending"])) for section, name, one in places if "pending" in one]


def progress(log: UpdateLog, topology: str) -> Iterator[Progress]:
    """Yield how far the updates have come that a topology file, the whole mesh after the last plan, has pending.

    Those that a restart of the host would take back are left.
    """
    now, stored = log.deployment.mesh, log.stored
    for section, name, number in _awaited(topology):
        if (there := getattr(stored, section).get(name)) is not None:
            gone, left = dropped(log, now, (section, name, [None] * number)), len(there.pending)
            yield section, name, left, gone[: max(0, number - left)]


def dropped(log: UpdateLog, mesh: Mesh, pending: Pending) -> list[bool]:
    """Return, for each of the *pending* updates of a node or channel that is gone in a mesh, if an error prevented it.

    That is not known, and taken for `False`, of those before the last start of the platform.
    """
    section, name, positions = pending
    if (place := getattr(mesh, section).get(name)) is None or (number := len(positions) - len(place.pending)) <= 0:
        return []
    since = [one for one in [*log.applied] if (one.section, one.name) == (section, name)]
    return _last(number, [one.dropped for one in since if one.revision <= mesh.revision])


def _last(number: int, flags: Sequence[bool]) -> list[bool]:
    return [*[False] * number, *flags][-number:]


def learnt(mesh: Mesh, come: Iterable[Progress]) -> list[AppliedUpdate]:
    """Return the pending updates of a whole mesh that are gone, according to the `progress` of a host."""
    found: list[AppliedUpdate] = []
    for section, name, left, flags in come:
        place = getattr(mesh, section).get(name)
        if place is not None and (number := len(place.pending) - left) > 0:
            gone = zip(place.pending, _last(number, flags), strict=False)
            found += [AppliedUpdate(section, name, update, flag) for update, flag in gone]
    return found


def planned(before: Mesh, after: Mesh) -> Iterator[Pending]:
    """Yield where the pending updates of a whole mesh are in the one that follows it.

    An update is at -1 if the edit cancels it, and at `None` if it does not fit the successor of the slet.
    """
    for section in _SECTIONS:
        for name, place in getattr(before, section).items():
            if not place.pending or (now := getattr(after, section).get(name)) is None:
                continue
            cancelled = None if isinstance(place, Node) and place.slet != now.slet else -1
            positions, end = list[int | None](), len(now.pending)
            for update in reversed(place.pending):
                at = max((one for one in range(end) if now.pending[one] == update), default=cancelled)
                positions.insert(0, at)
                end = end if at == cancelled else at or 0
            yield section, name, positions


def without_gone(mesh: Mesh, pending: Pending, gone: Sequence[bool]) -> Mesh:
    """Return a planned mesh after the first *pending* updates of a node or channel have taken effect, or were dropped.

    Raises:
        PlanError: the plan cancels one that has taken effect, which its home did not know.
    """
    section, name, positions = pending
    if (place := getattr(mesh, section).get(name)) is None:  # it is on another host then
        return mesh
    for position, flag in zip(positions, gone, strict=False):
        if position == -1 and not flag:
            raise PlanError(
                f"settings of {name} that the change cancels have taken effect meanwhile, and its home does not know "
                f"it yet; repeat the change in a moment, in a durable application after the next checkpoint"
            )
        if position is not None and position >= 0:
            mesh = AppliedUpdate(section, name, place.pending[position], flag).to_mesh(mesh)
    return mesh


@dataclass
class UpdatedMesh:
    """The whole mesh of an application, with the conditional updates that have become a part of it, the latest last."""

    mesh: Mesh
    updates: deque[AppliedUpdate] = field(default_factory=lambda: deque(maxlen=KEPT), kw_only=True)
    _turn: threading.Lock = field(default_factory=threading.Lock, kw_only=True, repr=False)

    def learn(self, come: Iterable[Progress]) -> list[AppliedUpdate]:
        """Make the updates that have taken effect at a host a part of the mesh; return those that are new."""
        with self._turn:
            found = learnt(self.mesh, come)
            for one in found:
                self.updates.append(replace(one, revision=self.mesh.revision + 1))
                self.mesh = one.to_mesh(self.mesh).at(self.mesh.revision + 1)
        return found

    def since(self, revision: int) -> tuple[Mesh, list[AppliedUpdate] | None]:
        """Return the mesh, and the updates since a revision; `None` if there were other changes."""
        with self._turn:
            return self.mesh, updates_since(revision, self.mesh, self.updates)
