"""The bundles that are installed on a platform: each version as a value with its state, and which one a name means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exop.bundle.archive import Archive
from exop.bundle.code import Code
from exop.bundle.manifest import Manifest
from exop.bundle.modules import Sources
from exop.errors import UnknownName
from exop.registry import Registration


@dataclass
class Bundle:
    """One version of a bundle that is installed here; `code` is there while it is started.

    Attributes:
        wires: The keys of the bundles that its code imports from, by the name under which it does.
        problem: Why it could not be started the last time.
    """

    archive: Archive
    folder: Path
    code: Code | None = None
    wires: Mapping[str, str] = field(default_factory=dict)
    services: list[Registration] = field(default_factory=list)
    problem: str = ""

    @property
    def manifest(self) -> Manifest:
        """What it says of itself."""
        return self.archive.manifest

    @property
    def key(self) -> str:
        """`name@version`."""
        return self.manifest.key

    @property
    def sources(self) -> Sources:
        """Its modules."""
        modules = {path: content for path, content in self.archive.files.items() if path.endswith(".py")}
        return Sources(self.folder, modules, self.archive.digest)


class Installed(dict[str, Bundle]):
    """The bundles of one platform, by `name@version`."""

    def in_order(self) -> list[Bundle]:
        """All of them, by name and version."""
        return sorted(self.values(), key=lambda one: (one.manifest.name, one.manifest.version))

    def manifests(self) -> list[Manifest]:
        """What all of them say of themselves."""
        return [one.manifest for one in self.values()]

    def started(self, name: str | None = None) -> list[Bundle]:
        """The started ones, or the started versions of one of them, the lowest first."""
        return [one for one in self.in_order() if one.code is not None and name in (None, one.manifest.name)]

    def importing(self, bundle: Bundle) -> list[Bundle]:
        """Those that are started and import from a bundle."""
        return [one for one in self.started() if bundle.key in one.wires.values()]

    def in_order_of_use(self) -> list[Bundle]:
        """The started ones, each after those that import from it."""
        found: list[Bundle] = []

        def add(one: Bundle) -> None:
            for user in self.importing(one):
                add(user)
            if one not in found:
                found.append(one)

        for one in self.started():
            add(one)
        return found

    def find(self, name: str, host: str, *, started: bool = False, sole: bool = False) -> Bundle:
        """The bundle that *name* means: a version of it, or the highest one (of the started ones, if there are any).

        Raises:
            UnknownName: there is none, or there are several and one must be named (*started*, *sole*).
        """
        if name in self:
            return self[name]
        versions = [one for one in self.in_order() if one.manifest.name == name]
        fitting = (self.started(name) or versions) if started else versions
        if not fitting or (len(fitting) > 1 and (started or sole)):
            known = [one.key for one in fitting] or self
            raise UnknownName(place=f"the platform {host!r}", kind="bundle", name=name, known=known)
        return fitting[-1]
