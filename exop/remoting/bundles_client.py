"""The bundles of a platform in another process: the interface of `Platform.bundles` over its control socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from exop.remoting.client import ControlClient
from exop.remoting.parcel import pack

#: How long code may take to be imported, and a change to be made, in seconds.
_PATIENCE: Final = 120.0


class RemoteBundles:
    """`connect().bundles`: what is installed, started, updated, stopped and uninstalled on a running platform."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def install(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Send the bundle of a folder, or of a zip archive, to be kept there. Returns its facts.

        Raises:
            ArchiveRefused: it is none, or a dangerous one, or too large to be sent.
            BundleError: its manifest is wrong, or another one of this name and version is installed there.
        """
        request = {"archive": pack(Path(path)), "name": str(path)}
        return dict(self._client.call("install_bundle", request, timeout=_PATIENCE))

    def start(self, name: str) -> dict[str, Any]:
        """Import a bundle and offer its slets and channels; bundles that it requires are started before it.

        Raises:
            UnknownName: none is installed under this name.
            RequirementMissing: what it requires is not there; all that is missing is named.
            BundleBroken: its code could not be loaded: file and line. The platform goes on as before.
        """
        return dict(self._client.call("start_bundle", {"bundle": name}, timeout=_PATIENCE))

    def update(self, path: str | os.PathLike[str], **bounds: Any) -> dict[str, Any]:
        """Send a new version of a bundle, which takes the place of those that are started there; these are stopped.

        Every component of a started version is replaced, in all applications or in none. Returns the facts of the new
        version, with what was `replaced`, the `settings` that changed by node, and which versions were `stopped`. The
        *bounds* are `timeout`, `pause` and `stall`, as for `Plan.apply`.

        Raises:
            ArchiveRefused, BundleError: as `install`; or no other version is started there.
            RequirementMissing, BundleBroken: as `start`.
            MeshError, PlanError: the new version cannot take a place; everything is as before there.
        """
        request = {"archive": pack(Path(path)), "name": str(path), **bounds}
        return dict(self._client.call("update_bundle", request, timeout=_PATIENCE))

    def stop(self, name: str) -> dict[str, Any]:
        """Withdraw what a bundle offers, and its code; it stays installed.

        Raises:
            UnknownName: none is installed under this name; or it does not say which of several that are started.
            BundleInUse: components, channels or other bundles use it; they are named.
        """
        return dict(self._client.call("stop_bundle", {"bundle": name}))

    def uninstall(self, name: str) -> dict[str, Any]:
        """Stop a bundle, if it is started, and remove it.

        Raises:
            UnknownName: none is installed under this name; or it does not say which of several versions.
            BundleInUse: components, channels, other bundles or stored applications use it; they are named.
        """
        return dict(self._client.call("uninstall_bundle", {"bundle": name}))

    def list(self) -> list[dict[str, Any]]:
        """List the installed bundles by name and version: `bundle`, `state`, contents, what is `missing`, and users."""
        return [dict(row) for row in self._client.call("bundles")]
