"""What the bundles need of the platform that they are on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exop.hooks import Plugins
from exop.model.slets.spec import SletSpec
from exop.registry import ServiceRegistry
from exop.runtime.catalog import Catalog
from exop.wiring import Applications


@dataclass(frozen=True)
class Ground:
    """The services of a platform that bundles stand on.

    Attributes:
        name: How the platform is called.
        state: Its state directory, if it has one.
        gather: Asks the plugins again for what they offer.
    """

    name: str
    state: Path | None
    registry: ServiceRegistry
    catalog: Catalog
    applications: Applications
    gather: Callable[[], None]

    @property
    def plugins(self) -> Plugins:
        """The plugins: a started bundle is one of them."""
        return self.catalog.plugins

    def offered(self, bundle: str) -> dict[str, SletSpec]:
        """The slets of a started bundle, by identity."""
        return {identity: spec for identity, spec in self.catalog.slets.items() if spec.plugin == bundle}
