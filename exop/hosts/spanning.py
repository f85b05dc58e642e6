"""An application that spans hosts, as its home knows it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from exop.hosts.protocol.messages import Report
from exop.model.meshes.mesh import Mesh, Node
from exop.runtime.deployment import Deployment
from exop.status import application_status

_SECTIONS: Final = ("nodes", "channels", "inserted")
_SOUND: Final = ("running", "finished")


@dataclass
class Spanning:
    """An application of which this platform is the home.

    Attributes:
        mesh: The whole mesh; without nodes before the first commit.
        connectors: The epochs of its connectors, by key.
        hosts: The hosts that run a fragment, each with the last plan that concerned it.
        leaving: The hosts that have not confirmed its removal.
        reports: The last report of each host on its last plan.
        changing: The hosts that have not carried out the last plan.
        pauses: The seconds for which the last plan has paused the drivers of each host; unknown after a restart.
        kept: The nodes whose predecessors run on since the last change of each, as they were before it.
        turn: Held while the application is changed.
    """

    mesh: Mesh
    connectors: dict[str, int] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    reports: dict[str, Report] = field(default_factory=dict)
    changing: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    pauses: dict[str, float] = field(default_factory=dict)
    kept: dict[str, Node] = field(default_factory=dict)
    turn: threading.RLock = field(default_factory=threading.RLock)

    def paused_ms(self) -> float | None:
        """Return the milliseconds for which the last change has stopped the stream: the longest pause of a host."""
        return round(max(self.pauses.values()) * 1e3, 3) if self.pauses else None

    def stored(self) -> dict[str, Any]:
        """Return it as it is stored."""
        topology, leaving = self.mesh.to_toml(), [*self.leaving]
        found = {"topology": topology, "revision": self.mesh.revision, "connectors": self.connectors}
        return found | {"hosts": self.hosts, "leaving": leaving}

    def all_ended(self) -> bool:
        """Whether all fragments have ended."""
        return all((one := self.reports.get(host)) is not None and one.ended for host in self.hosts)

    def problem(self) -> Mapping[str, str]:
        """Return the facts of the first error because of which the application does not end."""
        return next((one.problem for one in self.reports.values() if one.problem), {})

    def status(self, hosts: Mapping[str, dict[str, Any]], home: str) -> dict[str, Any]:
        """Return the status of the application: that of the fragment at the *home*, and those of all *hosts*."""
        found = {**no_status(self.mesh.name), **hosts.get(home, {}), "revision": self.mesh.revision}
        paused = self.paused_ms()
        found["last_change"] = None if paused is None else {"revision": self.mesh.revision, "paused_ms": paused}
        for name in ("shadow", "proof", "kept"):
            if all_of_them := {node: one for part in hosts.values() for node, one in part.get(name, {}).items()}:
                found[name] = all_of_them
        return found | {"state": self._state(hosts), "hosts": dict(hosts)}

    def metrics(self, hosts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the metrics of all nodes and channels, and those of each of the *hosts*."""
        answered = [one for one in hosts.values() if "nodes" in one]
        whole = {name: {key: value for one in answered for key, value in one[name].items()} for name in _SECTIONS}
        facts = {"revision": self.mesh.revision, "state": self._state(hosts), "hosts": dict(hosts)}
        return {**(answered or [{}])[0], **whole, **facts}

    def _state(self, hosts: Mapping[str, dict[str, Any]]) -> str:
        """Return the state of the application: that of the first host that does not run soundly, if any."""
        states = ["finished"] if self.finished else sorted((one["state"] for one in hosts.values()), key=_SOUND.count)
        return next((state for state in states if state != "finished"), states[0])


def no_status(application: str) -> dict[str, Any]:
    """Return the status of an application of which nothing runs here."""
    found = application_status(Deployment(Mesh(application)))
    found.pop("opening", None)
    return found
