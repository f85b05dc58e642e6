"""The bundles that are installed on a platform: each version with its state, services and users; and their platform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

from exop.bundle.manifest import Manifest
from exop.bundle.modules import Code
from exop.bundle.store import Archive
from exop.hosts.federation import Federation
from exop.model.filter import where
from exop.model.properties import APPLICATION, CHANNEL_KIND, HOST, KIND, NAME, NODE, ORIGIN, ROLE, SLET, VERSION
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from exop.registry import Registration, ServiceRegistry
from exop.runtime import component_manager
from exop.runtime.catalog import Catalog
from exop.wiring import Applications


@dataclass(frozen=True)
class BundleContext:
    """The services of the platform that its bundles use; `gather` collects again what the plugins offer.

    *hosts* changes the applications, of which `applications` has the parts on this platform.
    """

    name: str
    state: Path | None
    registry: ServiceRegistry
    catalog: Catalog
    applications: Applications
    hosts: Federation
    gather: Callable[[], None]

    def slets_of(self, bundle: str) -> dict[str, SletSpec]:
        """The slets of a started bundle, by identity."""
        return {identity: spec for identity, spec in self.catalog.slets.items() if spec.plugin == bundle}

    def register(self, manifest: Manifest, code: Code) -> list[Registration]:
        """Register a bundle, its slets and its channel kinds, with the properties that its manifest gives."""
        common = {**manifest.properties, HOST: self.name, ORIGIN: manifest.key, VERSION: str(manifest.version)}
        made = [self.registry.register("Bundle", manifest, {**common, KIND: "bundle", NAME: manifest.name})]
        for slet in code.slets:
            spec = spec_of(slet).of(manifest.key)
            properties = {KIND: "offer", NAME: spec.name, SLET: spec.identity, ROLE: str(spec.role)}
            made.append(self.registry.register("SletOffer", spec, common | properties))
        for channel in code.channels:
            properties = {KIND: "offer", NAME: channel.kind, CHANNEL_KIND: f"{manifest.key}:{channel.kind}"}
            made.append(self.registry.register("ChannelOffer", channel, common | properties))
        return made

    def users_of(self, bundle: str, code: Code | None) -> list[str]:
        """The components and channels that run code of a bundle, on any host, and the stored ones that would."""
        slets = self.registry.find(component_manager.SLET, where({ORIGIN: bundle}))
        found = {f"{one.properties[APPLICATION]}.{one.properties[NODE]}" for one in slets}
        for mesh, home in self.hosts.running():  # whose home restores all of it
            if home == self.name:
                found |= {f"{mesh.name}.{node.name}" for node in mesh.nodes.values() if node.slet.plugin == bundle}
        if code is not None:
            channels = self.registry.find(component_manager.CHANNEL)
            used = [one.properties for one in channels if type(one.service) in code.channels]
            found |= {f"the channel {one[NAME]} of {one[APPLICATION]}" for one in used}
        if self.applications.store is not None:
            running = self.applications.names()
            down = [one for one in self.applications.store.applications() if one.active and one.name not in running]
            using = [one.name for one in down if f'"{bundle}:' in one.topology]
            found |= {f"the application {name}, which is to be started again" for name in using}
        return sorted(found)


@dataclass
class Bundle:
    """One version of a bundle that is installed; it has `code` while it is started.

    Attributes:
        wires: The keys of the bundles that its code imports from.
        problem: Why it could not be started the last time.
        offers: The identities of its slets, and of its channel kinds, as of its last start; empty before.
    """

    archive: Archive
    folder: Path
    code: Code | None = None
    wires: Sequence[str] = ()
    services: list[Registration] = field(default_factory=list)
    problem: str = ""
    offers: Sequence[str] = ()

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""
        return self.archive.manifest

    @property
    def key(self) -> str:
        """`name@version`."""
        return self.manifest.key


class Installed(dict[str, Bundle]):
    """The bundles of one platform, by `name@version`."""

    def in_order(self) -> list[Bundle]:
        """All of them, by name and version."""
        return sorted(self.values(), key=lambda one: (one.manifest.name, one.manifest.version))

    def started(self, name: str | None = None) -> list[Bundle]:
        """The started ones, or the started versions of one of them, the lowest first."""
        return [one for one in self.in_order() if one.code is not None and name in (None, one.manifest.name)]

    def importing(self, bundle: Bundle) -> list[Bundle]:
        """Those that are started and import from a bundle."""
        return [one for one in self.started() if bundle.key in one.wires]

    def in_order_of_use(self) -> list[Bundle]:
        """The started ones, each after those that import from it."""
        users = {one.key: [user.key for user in self.importing(one)] for one in self.started()}
        return [self[key] for key in TopologicalSorter(users).static_order()]
