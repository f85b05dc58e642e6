"""`exop serve`: runs a platform that waits for applications, and logs the changes of their states."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterable, MutableMapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from exop.cli.loading import known_plugins
from exop.cli.options import Load, Name, State
from exop.cli.report import Stopping
from exop.cli.view import opening_facts
from exop.errors import BuilderError, ExopError
from exop.logs import logger
from exop.status import application_status, state_of

if TYPE_CHECKING:
    from exop.platform import Platform


@Parameter(name="*")
@dataclass(frozen=True)
class Reach:
    """The platforms on other hosts with which a platform is linked.

    Attributes:
        listen: The address for other platforms: tls://HOST:PORT, or tcp://127.0.0.1:PORT on this host.
        identity: The folder with the certificate: see `exop certs issue`.
        policy: The file with the rights of other platforms, which have none without it.
        peer: NAME=URI of a platform to link with, as soon as it answers; may be given several times.
        announce: Announce the address on the local network, for `exop discover`.
    """

    listen: str | None = None
    identity: Path | None = None
    policy: Path | None = None
    peer: tuple[str, ...] = ()
    announce: bool = False

    def as_data(self) -> dict[str, Any]:
        """Return the options as arguments of the platform.

        Raises:
            BuilderError: `--peer` is given without name or address.
        """
        peers = dict(one.partition("=")[::2] for one in self.peer)
        for name, uri in peers.items():
            if not name or not uri:
                raise BuilderError(f"--peer {name} is no link; write --peer NAME=URI, such as a=tls://10.0.0.1:7700")
        return {name: value for name, value in vars(self).items() if name != "peer"} | {"peers": peers}


def serve(*, state: State = None, name: Name = None, load: Load = (), reach: Reach = Reach()) -> None:
    """Start a platform that waits for applications: see `exop apply`.

    With a state directory, the platform restarts the applications that ran there: a durable application continues from
    its checkpoint, any other starts from the beginning, as the log shows. Ctrl-C (or SIGTERM) stops the platform; the
    next platform on the directory restarts the applications. As a service of systemd (`Type=notify`), the platform
    reports its status and notifies the watchdog.

    With --listen or --peer, the platform is linked with platforms on other hosts, for parts of its applications.

    Examples: `exop serve --name traffic --state /var/lib/exop --load apps/linear_road`,
    `exop serve --name b --listen tls://0.0.0.0:7700 --identity certs/b --policy policy.toml`
    """
    from exop.platform import Platform

    catalog = known_plugins(load)
    with Stopping(patience=1) as stopping:
        platform = Platform(state=state, name=name, plugins=catalog.plugins, control=True, **reach.as_data())
        with closing(platform):
            keeper = Keeper(platform, stopping)
            keeper.start(catalog.plugins.folders.values())
            keeper.until_stopped()


class Supervisor:
    """The process that has started this one, and restarts it, if it speaks the protocol of systemd (`man sd_notify`).

    Without `$NOTIFY_SOCKET`, there is no supervisor. The variables are removed from the *environment*, so that child
    processes, for example of engines, do not notify the supervisor.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        pid, limit = environment.pop("WATCHDOG_PID", ""), environment.pop("WATCHDOG_USEC", "")
        # The supervisor expects a notification within the limit; half of it leaves room for a delay.
        self._every = int(limit) / 2e6 if limit.isdecimal() and pid in ("", str(os.getpid())) else math.inf
        self._fed = -math.inf
        self._status = ""

    def look(self, status: str, *, healthy: bool) -> None:
        """Report a new status; notify the watchdog when due, but only while the platform is *healthy*."""
        now, lines = time.monotonic(), [f"STATUS={status}"] if status != self._status else []
        self._status = status
        if healthy and now - self._fed >= self._every:
            self._fed = now
            lines.append("WATCHDOG=1")
        if lines:
            self.send(*lines)

    def send(self, *lines: str) -> None:
        """Send lines of the protocol, each as one line; those that cannot be sent are logged."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(1.0)  # it may not read its socket
                sock.sendto("\n".join(" ".join(line.split()) for line in lines).encode(), self._address)
        except OSError as problem:
            logger("exop.serve").warning("the supervisor cannot be notified", error=str(problem), lines=lines)


@dataclass
class Keeper:
    """Runs a platform until the user stops it, and logs the state changes of the applications."""

    platform: Platform
    stopping: Stopping
    supervisor: Supervisor = field(default_factory=Supervisor)
    _states: dict[str, str] = field(default_factory=dict)
    _fragments: set[str] = field(default_factory=set)
    _logged: float = 0.0
    _log: Any = field(default_factory=lambda: logger("exop.serve"))

    def start(self, folders: Iterable[Path]) -> None:
        """Start the platform, and the applications in its state directory; raises `StateError` or `AddressInUse`."""
        if not self.stopping.carry_out(self.platform.start, self.look):
            return
        for folder in list(folders):
            self.platform.load(folder)
        name, state = self.platform.name, str(self.platform.state) if self.platform.state else None
        at = {"address": self.platform.address} if self.platform.address else {}
        self._log.info("the platform waits for applications", name=name, pid=os.getpid(), state=state, **at)
        for name, problem in self.platform.failed_to_restart.items():
            self._log.error("not started again", application=name, error=str(problem))
        for name, how in self.platform.restarted.items():
            self._log.info(how, application=name)
        self.supervisor.send("READY=1")
        self.look()

    def until_stopped(self) -> None:
        """Wait for Ctrl-C or SIGTERM."""
        while not self.stopping.count:
            self.look()
            time.sleep(0.2)
        self.supervisor.send("STOPPING=1")
        for name in self.platform.applications():
            with suppress(ExopError):  # all of it runs on other hosts
                deployment = self.platform.deployment(name)
                if held := [f"{name}.{node}" for node, one in deployment.components.items() if one.held]:
                    kept = deployment.mesh.durable is not None and self.platform.state is not None
                    self._log.warning("stops with suspended nodes", application=name, nodes=held, kept=kept)

    def look(self) -> None:
        """Log the changes since the last call."""
        found = dict(self.platform.components.opening)
        for name in self.platform.applications():
            with suppress(ExopError):  # removed between the two calls
                found.setdefault(name, self.platform.deployment(name))
        for name in [name for name in self._states if name not in found]:
            if self._states.pop(name) != "opening":  # otherwise, the client gets the error
                # The nodes may have moved to another host.
                gone = "no part of it runs here any more" if name in self._fragments else "removed"
                self._log.info(gone, application=name)
        self._fragments = {name for name, one in found.items() if one.is_fragment}
        due = time.monotonic() - self._logged >= 5.0
        for name, deployment in sorted(found.items()):
            # The state alone is cheap; the status of a large application takes 0.1 s.
            if (state := state_of(deployment)) != self._states.get(name) or (due and state == "opening"):
                status = application_status(deployment)
                self._states[name] = status["state"]
                self._log_state(name, status)
        states = ", ".join(f"{name} {state}" for name, state in self._states.items()) or "no application runs"
        self.supervisor.look(states, healthy=not any(one.crashed() for one in found.values()))

    def _log_state(self, name: str, status: dict[str, Any]) -> None:
        if "opening" in status:
            self._logged = time.monotonic()
            facts = opening_facts(status["opening"])
            self._log.info("opening", application=name, **facts)
            opening = f"STATUS=opening {name}: {facts['ready']} slets are ready"
            self.supervisor.send(opening, "EXTEND_TIMEOUT_USEC=60000000")  # from now on
            return
        failed = {node: one["error"] for node, one in status["nodes"].items() if "error" in one}
        if failed or status["crashed"]:
            cure = {"cure": f"exop describe {name}; exop resume {name}.NODE"} if failed else {}  # a crash tells its own
            self._log.error(status["state"], application=name, failed=failed | status["crashed"], **cure)
            return
        if status["state"] == "finished":
            # By this call, the platform records that the application need not be restarted.
            try:
                self.platform.wait(name, 0)
            except ExopError as problem:
                self._log.error(str(problem), application=name)
                return
        self._log.info(status["state"], application=name)
