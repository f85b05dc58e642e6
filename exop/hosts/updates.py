"""Conditional updates of applications that span hosts: they take effect where the node or channel runs.

A host reports how far its nodes and channels have come, and the home makes that a part of the whole mesh. Whatever the
home does not know yet when it makes a change is found out at the host, and goes along with what moves.
"""

from __future__ import annotations

import tomllib
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import ChannelSpec, ConditionalUpdate, Node
from exop.runtime.conditional_updates import KEPT, AppliedUpdate, updates_since

Section: TypeAlias = Literal["nodes", "channels"]
#: How far a node or channel has come: section, name, the number of updates left, and the settings that were set.
Progress: TypeAlias = tuple[Section, str, int, dict[str, Any]]

_SECTIONS: Final[tuple[Section, ...]] = ("nodes", "channels")


def pending_in(mesh: Mesh) -> list[AppliedUpdate]:
    """Return the pending updates of a mesh, those of a node or channel in their order."""
    places = ((section, one) for section in _SECTIONS for one in getattr(mesh, section).values())
    return [AppliedUpdate(section, place.name, update) for section, place in places for update in place.pending]


@lru_cache
def _awaited(topology: str) -> list[tuple[Section, str]]:
    """Return the nodes and channels with pending updates in a topology file."""
    document: dict[str, Any] = tomllib.loads(topology) if "pending" in topology else {}
    places = ((section, name, one) for section in _SECTIONS for name, one in document.get(section, {}).items())
    return [(section, name) for section, name, one in places if "pending" in one]


def progress(section: Section, place: Node | ChannelSpec) -> Progress:
    """Return how far a node or channel has come."""
    settings = place.set_settings() if isinstance(place, Node) else dict(place.settings)
    return section, place.name, len(place.pending), settings


def reported(mesh: Mesh, topology: str) -> bytes:
    """Encode how far those in a mesh have come that have pending updates in a topology file; empty if there are none.

    Args:
        mesh: That of a fragment.
        topology: The whole mesh after the last plan.
    """
    come = _progress_in(mesh, _awaited(topology))
    return _packed([[*one] for one in come]) if come else b""


def learnt(mesh: Mesh, data: bytes) -> list[AppliedUpdate]:
    """Return the updates of a whole mesh that have taken effect according to `reported` bytes.

    Raises:
        StoredStateError: the bytes are none of `reported`.
    """
    return taken(pending_in(mesh), _unpacked(data)) if data else []


def taken(pending: Iterable[AppliedUpdate], come: Iterable[Progress]) -> list[AppliedUpdate]:
    """Return those of the *pending* updates, as the home knows them, that have taken effect or were dropped since."""
    found: list[AppliedUpdate] = []
    for section, name, left, settings in come:
        updates = [one for one in pending if (one.section, one.name) == (section, name)]
        gone, later = list[AppliedUpdate](), set[str]()
        for one in reversed(updates[: max(0, len(updates) - left)]):
            new = {key: value for key, value in one.update.settings.items() if key not in later}
            dropped = any(key not in settings or settings[key] != value for key, value in new.items())
            gone.append(AppliedUpdate(section, name, one.update, dropped))
            later |= set() if dropped else new.keys()
        found += reversed(gone)
    return found


def taken_in(mesh: Mesh, pending: Collection[AppliedUpdate]) -> list[AppliedUpdate]:
    """Return those of the *pending* updates that have taken effect, or were dropped, in the mesh of a fragment."""
    return taken(pending, _progress_in(mesh, dict.fromkeys((one.section, one.name) for one in pending)))


def _progress_in(mesh: Mesh, names: Iterable[tuple[Section, str]]) -> list[Progress]:
    found = ((section, getattr(mesh, section).get(name)) for section, name in names)
    return [progress(section, place) for section, place in found if place is not None]


def with_updates(mesh: Mesh, updates: Iterable[AppliedUpdate]) -> Mesh:
    """Return a mesh in which these updates, if it has them pending, have taken effect."""
    for one in updates:
        if (place := one.place(mesh)) is not None and one.update in place.pending:
            mesh = one.to_mesh(mesh)
    return mesh


@dataclass
class UpdatedMesh:
    """The whole mesh of an application, with the conditional updates that have become a part of it, the latest last."""

    mesh: Mesh
    updates: deque[AppliedUpdate] = field(default_factory=lambda: deque(maxlen=KEPT), kw_only=True)

    def learn(self, data: bytes) -> list[AppliedUpdate]:
        """Make the updates that have taken effect at a host a part of the mesh; return those that are new."""
        found = learnt(self.mesh, data)
        for one in found:
            self.updates.append(replace(one, revision=self.mesh.revision + 1))
            self.mesh = one.to_mesh(self.mesh).at(self.mesh.revision + 1)
        return found

    def since(self, revision: int) -> tuple[Mesh, list[AppliedUpdate] | None]:
        """Return the mesh, and the updates since a revision; `None` if there were other changes."""
        return self.mesh, updates_since(revision, self.mesh, self.updates)


def encoded(updates: Iterable[AppliedUpdate]) -> bytes:
    """Encode updates."""
    return _packed(
        [
            [one.section, one.name, one.dropped, one.update.when, dict(one.update.settings), one.update.close_windows]
            for one in updates
        ]
    )


def decoded(data: bytes) -> list[AppliedUpdate]:
    """Decode updates; raises `StoredStateError` if the bytes are none."""
    return [
        AppliedUpdate(section, name, ConditionalUpdate(*update), dropped)
        for section, name, dropped, *update in _unpacked(data)
    ]


def _packed(rows: list[list[Any]]) -> bytes:
    # Imported lazily: only applications that span hosts need the encoding.
    from exop.model.values.encoding import encode

    return encode(rows)


def _unpacked(data: bytes) -> Any:
    from exop.model.values.classes import Declared
    from exop.model.values.encoding import decode

    return decode(data, declared=Declared())
