"""`connect()`: finds a running platform, and returns its handle.

Imports neither rpyc nor msgspec before the call, because every program that uses `exop` imports this name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from exop.errors import PeerUnreachable, entry

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlatform
    from exop.remoting.identity import Identity


def connect(
    target: str | Path | None = None, *, identity: str | os.PathLike[str] | Identity | None = None
) -> RemotePlatform:
    """Connect to a running platform of this user, or to one on another host.

    Args:
        target: The state directory, socket, process id or name of the platform, or its address: `unix:PATH`,
            `tcp://NAME@127.0.0.1:PORT` or `tls://[NAME@]HOST:PORT`; by default the only running platform of this user.
        identity: The identity of the caller for an address with TLS, or its folder.

    Raises:
        PeerUnreachable: no platform answers, or several platforms are running and *target* is not given.
        IdentityError: the identity is unusable.
    """
    from exop.remoting.api.remote_platform import RemotePlatform
    from exop.remoting.identity import Identity
    from exop.remoting.transport.rundir import find_platforms, socket_path
    from exop.runtime.catalog import known_slets

    text = str(target)
    scheme, _, rest = text.partition(":")
    built_in = scheme in ("inproc", "tcp", "tls")
    if rest.startswith("//") and not built_in:
        known = {"tcp": RemotePlatform, "tls": RemotePlatform, **known_slets().transports()}
        made: RemotePlatform = entry(f"the address {target}", "transport", known, scheme)(rest.removeprefix("//"))
        return made
    if built_in and rest:
        if isinstance(identity, (str, os.PathLike)):
            identity = Identity(identity)
        return RemotePlatform(text, identity=identity)
    if target is not None and (path := socket_path(target)).is_socket():
        return RemotePlatform(path)
    found = find_platforms()
    wanted = [one for one in found if target is None or text in (str(one.pid), one.name)]
    if len(running := [one for one in wanted if not one.problem]) == 1:
        return RemotePlatform(running[0].address)
    names = ", ".join(f"{one.pid} ({one.name})" for one in running or found if not one.problem)
    if running:
        raise PeerUnreachable(f"several platforms run: {names}; name one of them, or its number (by --on)")
    if wanted:  # it does not answer
        raise PeerUnreachable(wanted[0].problem)
    if target is not None and (os.sep in text or Path(target).is_dir()):  # a place at which no platform runs
        return RemotePlatform(target)
    text = "" if target else "no platform is running; start one with `exop run APP` or `exop serve`"
    if target is not None and found and not Path(target).exists():
        silent = [one.problem for one in found if one.problem]
        there = [f"there are {names}"] if names else []
        answering = " that answers" if silent else ""
        text = "; ".join([f"no platform{answering} has the name or number {target}", *there, *silent])
    if rest.isdecimal():
        text = f"no platform has the name {target}; for an address write tls://{target}"
    raise PeerUnreachable(text, address=str(target or "any socket"), problem="no platform is running")
