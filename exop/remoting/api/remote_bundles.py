"""The bundles of a platform: the operations on them, and `connect().bundles`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from exop.remoting.transport.operation import LONG, operation


class BundleManagement:
    """The operations on the bundles of a platform; `bundles` carries them out."""

    @property
    def bundles(self) -> Any:
        """The bundles: installed, started, updated, stopped and uninstalled while the platform runs."""
        raise NotImplementedError

    @operation(patience=LONG)
    def install_bundle(self, archive: bytes, name: str) -> dict[str, Any]:
        """Keep a bundle; its code is not touched yet. *name* is named in errors."""
        return dict(self.bundles.install_archive(archive, name))

    @operation(patience=LONG)
    def start_bundle(self, bundle: str) -> dict[str, Any]:
        """Import a bundle, and offer its slets and channels."""
        return dict(self.bundles.start(bundle))

    @operation(patience=LONG)
    def update_bundle(
        self,
        archive: bytes,
        name: str,
        *,
        timeout: float | None = None,
        pause: float | None = None,
        stall: bool = False,
    ) -> dict[str, Any]:
        """Let a new version take the place of those that are started, in all applications or in none."""
        return dict(self.bundles.update_archive(archive, name, timeout=timeout, pause=pause, stall=stall))

    @operation
    def stop_bundle(self, bundle: str) -> dict[str, Any]:
        """Withdraw what a bundle offers."""
        return dict(self.bundles.stop(bundle))

    @operation
    def uninstall_bundle(self, bundle: str) -> dict[str, Any]:
        """Stop a bundle and remove it."""
        return dict(self.bundles.uninstall(bundle))

    @operation(role="observe")
    def list_bundles(self) -> list[dict[str, Any]]:
        """Return the installed bundles."""
        return list(self.bundles.list())


class RemoteBundles:
    """`connect().bundles`: what is installed, started, updated, stopped and uninstalled, as by `Platform.bundles`."""

    def __init__(self, platform: BundleManagement) -> None:
        self._platform = platform

    def install(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Send the bundle of a folder, or of a zip archive, to be kept there. Returns its facts."""
        return self._platform.install_bundle(_packed(path), str(path))

    def start(self, name: str) -> dict[str, Any]:
        """Import a bundle and offer its slets and channels; bundles that it requires are started before it."""
        return self._platform.start_bundle(name)

    def update(self, path: str | os.PathLike[str], **bounds: Any) -> dict[str, Any]:
        """Send a new version of a bundle, which takes the place of those that are started there; these are stopped."""
        return self._platform.update_bundle(_packed(path), str(path), **bounds)

    def stop(self, name: str) -> dict[str, Any]:
        """Withdraw what a bundle offers, and its code; it stays installed."""
        return self._platform.stop_bundle(name)

    def uninstall(self, name: str) -> dict[str, Any]:
        """Stop a bundle, if it is started, and remove it."""
        return self._platform.uninstall_bundle(name)

    def list(self) -> list[dict[str, Any]]:
        """List the installed bundles by name and version."""
        return self._platform.list_bundles()


def _packed(path: str | os.PathLike[str]) -> bytes:
    # Imported lazily: only senders of bundles make archives.
    from exop.remoting.api.folder_archive import pack

    return pack(Path(path))
