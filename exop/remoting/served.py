"""The requests that a running platform answers: short typed functions that return plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from exop.model.filter import as_filter
from exop.model.spec import DEAD
from exop.remoting.declare import Request, operation
from exop.remoting.offered import Changing
from exop.remoting.paging import Page, PageRequest, page
from exop.runtime.trouble import failed_item, kept_item

if TYPE_CHECKING:
    from exop.registry import ServiceRegistry
    from exop.remoting.bundles import Bundled
    from exop.runtime.deployment import Deployment

#: The number of dead letters that are listed.
LISTED = 100


class Served(Changing, Protocol):
    """The methods that a platform must have to be served; `exop.platform.Platform` documents them."""

    name: str
    state: Path | None
    registry: ServiceRegistry

    def resume(self, application: str, node: str) -> None: ...
    def restart(self, application: str) -> None: ...
    def end(self, application: str) -> None: ...
    def remove(self, application: str, timeout: float = 5.0) -> bool: ...
    def load(self, folder: str) -> str: ...
    def deployment(self, application: str) -> Deployment: ...
    def retry_dead_letters(self, application: str, node: str) -> int: ...
    @property
    def bundles(self) -> Bundled: ...


class OfApplication(Request, frozen=True):
    """Names an application."""

    application: str


class OfNode(Request, frozen=True):
    """Names a node of an application."""

    application: str
    node: str


class OneFailedItem(Request, frozen=True):
    """Names a failed item: a dead letter by its number from 1, or the kept item."""

    application: str
    node: str
    dead_letter: int | None = None


class ServicesRequest(PageRequest, frozen=True, kw_only=True):
    """Services that a filter fits."""

    filter: str = ""


class Operations:
    """The operations of one platform; each is short, and answers plain data."""

    def __init__(self, platform: Served) -> None:
        self._platform = platform

    @operation
    def status(self) -> dict[str, Any]:
        """Return the status of the platform."""
        return self._platform.status()

    @operation
    def application(self, request: OfApplication) -> dict[str, Any]:
        """One application, with its components and channels."""
        return self._platform.status(request.application)

    @operation
    def services(self, request: ServicesRequest) -> Page[dict[str, Any]]:
        """The services in the registry, with their properties, by id."""
        found = self._platform.registry.find(None, as_filter(request.filter or None))
        rows = [
            {"id": one.id, "interfaces": list(one.interfaces), "properties": _plain(one.properties)} for one in found
        ]
        return page(rows, request, key=lambda row: f"{row['id']:012d}")

    @operation
    def mesh(self, request: OfApplication) -> dict[str, Any]:
        """The mesh of a running application: its topology and revision, and the identities of its slets."""
        mesh = self._platform.mesh(request.application)
        slets = dict.fromkeys(node.slet.identity for node in mesh.nodes.values())
        return {"toml": mesh.to_toml(), "revision": mesh.revision, "slets": list(slets)}

    @operation
    def described(self, request: OfApplication) -> dict[str, Any]:
        """The descriptions of the slets of a running application, for a client that lacks their code.

        Where the ports depend on settings, a description has those of all nodes.
        """
        found: dict[str, dict[str, Any]] = {}
        for slet in (node.slet for node in self._platform.mesh(request.application).nodes.values()):
            if slet.identity not in found:
                found[slet.identity] = slet.described()
            elif slet.specialises:
                ports = found[slet.identity]["ports"]
                known = {port["port"] for port in ports}
                ports += [port for port in slet.described()["ports"] if port["port"] not in known]
        return found

    @operation
    def resume(self, request: OfNode) -> None:
        """Let items into a suspended component again; without a node, start an application that is down."""
        if request.node:
            self._platform.resume(request.application, request.node)
        else:
            self._platform.restart(request.application)

    @operation
    def end(self, request: OfApplication) -> None:
        """Ask the sources of an application to end; what is under way is still processed."""
        self._platform.end(request.application)

    @operation
    def remove(self, request: OfApplication) -> bool:
        """Stop an application at its safe points and undeploy it."""
        return self._platform.remove(request.application)

    @operation
    def failed_items(self, request: OfNode) -> dict[str, Any]:
        """The kept item and the first dead letters of a node, in words."""
        component = self._platform.deployment(request.application).component(request.node)
        kept, dead = kept_item(component), component.trouble.dead
        return {
            "kept": kept.summary() if kept is not None else None,
            "dead_letters": [letter.summary() for letter in list(dead)[:LISTED]],
            "count": len(dead),
            "dropped": dead.dropped,
            "channel": component.node.ports[DEAD] if component.aside is not None else None,
        }

    @operation
    def failed_item(self, request: OneFailedItem) -> bytes:
        """One failed item as the content of a file."""
        component = self._platform.deployment(request.application).component(request.node)
        return failed_item(component, request.dead_letter).to_bytes()

    @operation
    def retry_dead_letters(self, request: OfNode) -> int:
        """Have the dead letters of a node tried again."""
        return self._platform.retry_dead_letters(request.application, request.node)


def _plain(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in properties.items()}
