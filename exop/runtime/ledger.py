"""What has taken effect by itself while an application runs: noted in its mesh, and kept for those who change it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from exop.model.lines import Line, fired_channel, fired_node, without_line

if TYPE_CHECKING:
    from exop.model.mesh import ChannelSpec, Mesh
    from exop.runtime.component import Component
    from exop.runtime.deployment import Deployment
    from exop.runtime.lines import Watch

#: So many are kept: a mesh that is older than that is outdated.
KEPT = 1000


def _unheard() -> None:
    """Nobody is told."""


@dataclass(frozen=True)
class Firing:
    """A line that took effect (or could not, and was dropped): which revision that made of the mesh."""

    section: Literal["nodes", "channels"]
    name: str
    line: Line
    dropped: bool = False
    revision: int = 0

    def on(self, mesh: Mesh) -> Mesh:
        """The mesh after it."""
        if self.dropped:
            return without_line(mesh, self.section, self.name, self.line)
        fired = fired_node if self.section == "nodes" else fired_channel
        return fired(mesh, self.name, self.line)


class Ledger:
    """Notes what takes effect in a deployment; called by its drivers.

    Attributes:
        firings: What took effect, the latest last.
        news: What is to be logged, by whoever is `heard`: no driver waits for a log.
        asked: The channels, as they are to be now.
        watches: What looks at what comes into channels for which settings are pending.
        heard: Called when there is something new.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.firings: deque[Firing] = deque(maxlen=KEPT)
        self.asked = deployment.mesh.channels
        self.watches: dict[str, Watch] = {}
        self.news: deque[tuple[str, dict[str, Any]]] = deque()
        self.heard: Callable[[], None] = _unheard
        self._deployment = deployment
        self._turn = threading.Lock()

    def counts(self, component: Component) -> bool:
        """Whether a component is the one of the mesh: another may run behind it, on the same items."""
        return self._deployment.components.get(component.node.name) is component

    def note(self, firing: Firing) -> None:
        """A line took effect: the mesh says so from now on."""
        deployment = self._deployment
        with self._turn:  # drivers of several nodes may come at the same time
            there = getattr(deployment.mesh, firing.section).get(firing.name)
            if there is None or firing.line not in there.pending:  # no reason to end the driver that brings the item
                self.tell("a line took effect that the mesh does not have", place=firing.name, line=str(firing.line))
                return
            revision = deployment.mesh.revision + 1
            noted = Firing(firing.section, firing.name, firing.line, firing.dropped, revision)
            self.firings.append(noted)
            deployment.mesh = noted.on(deployment.mesh).at(revision)
        event = "a pending line could not take effect" if firing.dropped else "a pending line took effect"
        self.tell(event, place=firing.name, line=str(firing.line))

    def ask(self, channel: ChannelSpec) -> None:
        """A channel is to be like this from now on."""
        with self._turn:
            self.asked = {**self.asked, channel.name: channel}

    def tell(self, event: str, **facts: Any) -> None:
        """Something is to be told of."""
        self.news.append((event, {"application": self._deployment.name, **facts}))
        self.heard()

    def since(self, revision: int) -> tuple[Mesh, list[Firing] | None]:
        """The mesh of now, and what has taken effect since a revision; `None` if that is not all that has happened."""
        with self._turn:
            mesh = self._deployment.mesh
            found = [one for one in self.firings if one.revision > revision]
        return mesh, found if len(found) == mesh.revision - revision else None
