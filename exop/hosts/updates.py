"""Conditional updates of applications that span hosts: they take effect where the node or channel runs.

A host reports how many of the updates of its nodes and channels are left, and the home makes that a part of the whole
mesh. Whatever the home does not know yet when it makes a change is found out at the host, and goes along with what
moves. Only numbers travel: each platform has the updates of its meshes, with values of its own types.
"""

from __future__ import annotations

import threading
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

from exop.errors import PlanError
from exop.hosts.protocol.messages import Pending, Progress, Section
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import Node
from exop.runtime.conditional_updates import KEPT, AppliedUpdate, UpdateLog, updates_since

#: By section and name: of each update that is gone, whether it was dropped because an error prevented it.
Gone: TypeAlias = Mapping[str, list[bool]]

_SECTIONS: Final[tuple[Section, ...]] = ("nodes", "channels")


@lru_cache
def _awaited(topology: str) -> list[tuple[Section, str, int]]:
    """Return the nodes and channels with pending updates in a topology file, each with their number."""
    document: dict[str, Any] = tomllib.loads(topology) if "pending" in topology else {}
    places = ((section, name, one) for section in _SECTIONS for name, one in document.get(section, {}).items())
    return [(section, name, len(one["pending"])) for section, name, one in places if "pending" in one]


def gone_since(log: UpdateLog, mesh: Mesh, topology: str, before: Gone) -> dict[str, list[bool]]:
    """Return the updates that are gone in a mesh and pending in a topology file, the whole mesh after the last plan.

    What is known of them *before* is not looked up in the log, which is that of this host since its last start.
    """
    found = dict[str, list[bool]]()
    for section, name, number in _awaited(topology):
        if (place := getattr(mesh, section).get(name)) is not None:
            known = before.get(f"{section}/{name}", [])[: max(0, number - len(place.pending))]
            more = number - len(place.pending) - len(known)
            found[f"{section}/{name}"] = [*known, *_last(more, _logged(log, mesh, section, name))]
    return found


def progress(log: UpdateLog, topology: str, before: Gone) -> tuple[list[Progress], dict[str, list[bool]]]:
    """Return how far the updates have come that the whole mesh after the last plan has pending, and those gone now.

    Those that a restart of the host would take back are left.
    """
    stored = log.stored  # first: it is never ahead of the mesh
    gone, found = gone_since(log, log.deployment.mesh, topology, before), list[Progress]()
    for section, name, number in _awaited(topology):
        if (there := getattr(stored, section).get(name)) is not None:
            left = len(there.pending)
            found.append((section, name, left, gone.get(f"{section}/{name}", [])[: max(0, number - left)]))
    return found, gone


def dropped(log: UpdateLog, mesh: Mesh, pending: Pending, gone: Gone) -> list[bool]:
    """Return, for each of the *pending* updates of a node or channel that is gone in a mesh, if an error prevented it.

    *gone* are those since the last plan.
    """
    section, name, positions = pending
    if (place := getattr(mesh, section).get(name)) is None:
        return []
    return _last(len(positions) - len(place.pending), gone.get(f"{section}/{name}", _logged(log, mesh, section, name)))


def _logged(log: UpdateLog, mesh: Mesh, section: Section, name: str) -> list[bool]:
    since = [one for one in [*log.applied] if (one.section, one.name) == (section, name)]
    return [one.dropped for one in since if one.revision <= mesh.revision]


def _last(number: int, flags: Sequence[bool]) -> list[bool]:
    return [*[False] * number, *flags][-number:] if number > 0 else []


def unfit(topology: str, mesh: Mesh) -> Iterator[Pending]:
    """Yield the pending updates of a part that does not fit: those of the last plan that its host has made.

    Of the home's mesh, only those that begin with them can be told.
    """
    for section, name, number in _awaited(topology):
        if (place := getattr(mesh, section).get(name)) is not None and len(place.pending) >= number:
            yield section, name, [*range(number)]


def learnt(mesh: Mesh, come: Iterable[Progress]) -> list[AppliedUpdate]:
    """Return the pending updates of a whole mesh that are gone, according to the `progress` of a host."""
    found: list[AppliedUpdate] = []
    for section, name, left, flags in come:
        if (place := getattr(mesh, section).get(name)) is not None and (number := len(place.pending) - left) > 0:
            gone = zip(place.pending, _last(number, flags), strict=False)
            found += [AppliedUpdate(section, name, update, flag) for update, flag in gone]
    return found


def planned(before: Mesh, after: Mesh) -> Iterator[Pending]:
    """Yield where the pending updates of a whole mesh are in the one that follows it.

    An update is at -1 if the edit cancels it, and at `None` if the successor of the slet has none of its settings.
    """
    for section in _SECTIONS:
        for name, place in getattr(before, section).items():
            if not place.pending or (now := getattr(after, section).get(name)) is None:
                continue
            positions, end = list[int | None](), len(now.pending)
            for update in reversed(place.pending):
                at = max((one for one in range(end) if now.pending[one] == update), default=-1)
                end = end if at < 0 else at
                lacks = isinstance(place, Node) and not update.settings.keys() & now.settings.keys()
                positions.insert(0, None if at < 0 and lacks else at)
            yield section, name, positions


def without_gone(mesh: Mesh, pending: Pending, gone: Sequence[bool]) -> Mesh:
    """Return a planned mesh after the first *pending* updates of a node or channel have taken effect, or were dropped.

    Raises:
        PlanError: the plan cancels one that has taken effect, which its home did not know, or puts another before it.
    """
    section, name, positions = pending
    first = 0
    if (place := getattr(mesh, section).get(name)) is None:  # it is on another host then
        return mesh
    for position, flag in zip(positions, gone, strict=False):
        if position is None:
            continue
        if position > first or (position < 0 and not flag):
            raise PlanError(
                f"settings of {name} that the change cancels, or others precede, have taken effect meanwhile, and its "
                f"home does not know it yet; repeat the change in a moment, in a durable application after the next "
                f"checkpoint"
            )
        if position >= 0:
            first += 1
            mesh = AppliedUpdate(section, name, place.pending[position], flag).to_mesh(mesh)
    return mesh


def remaining(pending: Pending, gone: Sequence[bool]) -> dict[str, list[bool]]:
    """Return what is gone of the updates that the home has pending after a plan."""
    section, name, positions = pending
    kept = [flag for position, flag in zip(positions, gone, strict=False) if position is not None and position >= 0]
    return {f"{section}/{name}": kept} if kept else {}


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

    def forget(self) -> None:
        """Forget the updates: a mesh from before them is outdated in any case."""
        with self._turn:
            self.updates.clear()

    def since(self, revision: int) -> tuple[Mesh, list[AppliedUpdate] | None]:
        """Return the mesh, and the updates since a revision; `None` if there were other changes."""
        with self._turn:
            return self.mesh, updates_since(revision, self.mesh, self.updates)
