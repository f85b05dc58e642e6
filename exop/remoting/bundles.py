"""The requests about the bundles of a running platform; an archive travels as bytes of bounded size."""

from __future__ import annotations

from typing import Any, Final, Protocol

from exop.remoting.declare import Request, operation
from exop.remoting.parcel import LARGEST_ARCHIVE

#: An archive, and room for its name.
_LARGEST_REQUEST: Final = LARGEST_ARCHIVE + 10_000


class Bundled(Protocol):
    """The interface to the bundles of a platform; `exop.bundle.bundles.Bundles` documents each method."""

    def install_archive(self, data: bytes, name: str) -> dict[str, Any]: ...
    def start(self, name: str) -> dict[str, Any]: ...
    def update_archive(self, data: bytes, name: str, **bounds: Any) -> dict[str, Any]: ...
    def stop(self, name: str) -> dict[str, Any]: ...
    def uninstall(self, name: str) -> dict[str, Any]: ...
    def list(self) -> list[dict[str, Any]]: ...


class HasBundles(Protocol):
    """A platform, as far as its bundles go."""

    @property
    def bundles(self) -> Bundled: ...


class OfBundle(Request, frozen=True):
    """Names a bundle: `name@version`, or its name."""

    bundle: str


class Parcel(Request, frozen=True):
    """A bundle's archive; `name` is what errors call it."""

    archive: bytes
    name: str


class NewVersion(Parcel, frozen=True):
    """The archive of a new version, with the bounds of the changes by which it takes the place of the others."""

    timeout: float | None = None
    pause: float | None = None
    stall: bool = False


class BundleOperations:
    """The operations on the bundles of one platform; each answers what is so then, as plain facts."""

    def __init__(self, platform: HasBundles) -> None:
        self._platform = platform

    @operation(max_request=_LARGEST_REQUEST)
    def install_bundle(self, request: Parcel) -> dict[str, Any]:
        """Keep a bundle; its code is not touched yet."""
        return self._platform.bundles.install_archive(request.archive, request.name)

    @operation
    def start_bundle(self, request: OfBundle) -> dict[str, Any]:
        """Import a bundle, and offer its slets and channels."""
        return self._platform.bundles.start(request.bundle)

    @operation(max_request=_LARGEST_REQUEST)
    def update_bundle(self, request: NewVersion) -> dict[str, Any]:
        """Let a new version take the place of those that are started, in all applications or in none."""
        bounds = {"timeout": request.timeout, "pause": request.pause, "stall": request.stall}
        return self._platform.bundles.update_archive(request.archive, request.name, **bounds)

    @operation
    def stop_bundle(self, request: OfBundle) -> dict[str, Any]:
        """Withdraw what a bundle offers."""
        return self._platform.bundles.stop(request.bundle)

    @operation
    def uninstall_bundle(self, request: OfBundle) -> dict[str, Any]:
        """Stop a bundle and remove it."""
        return self._platform.bundles.uninstall(request.bundle)

    @operation
    def bundles(self) -> list[dict[str, Any]]:
        """Return the installed bundles."""
        return self._platform.bundles.list()
