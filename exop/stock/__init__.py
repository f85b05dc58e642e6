"""The base library of slets and channels, registered through the same hooks as those of any plugin."""

from typing import Any

from exop.hooks import hookimpl


@hookimpl
def register_channels() -> list[type]:
    """Return the channel kinds of the runtime."""
    from exop.runtime.channels import BUILT_IN, REMOTE

    return [*BUILT_IN, *REMOTE]


@hookimpl
def register_transports() -> dict[str, type]:
    """Return the transport to the control socket of a platform on this host: `unix:///path/of/the/socket`."""
    from exop.remoting.api.remote_platform import RemotePlatform

    return {"unix": RemotePlatform}


@hookimpl
def register_slets() -> list[Any]:
    """Return the stock slets."""
    from exop.stock.slets import STOCK

    return list(STOCK)
