"""`exop top`: the metrics of a platform, as a live table, or printed one after the other without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from exop.cli.options import HERE, Json, Where
from exop.cli.peers import find_application, the_platform
from exop.cli.report import DONE, Stopping, say
from exop.cli.text import print_json
from exop.cli.view import Live, Rates, Section, Sort, overview, plain
from exop.errors import BuilderError, CallTimeout, ExopError, PeerUnreachable, UnknownName

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlatform

#: The interval at which signals are checked, in seconds.
TICK: Final = 0.05
#: One of this many requests is for the whole status, with quantiles; the others are for the metrics alone.
WHOLE: Final = 10


def top(
    app: str | None = None,
    /,
    *,
    sort: Sort = "mesh",
    every: float = 1.0,
    once: bool = False,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Show the nodes of a platform live: rates, busy shares, latencies, queues, errors, and problems.

    Ctrl-C ends the command, and so does the end of the platform. With --json, or if stdout is no terminal, each update
    is printed (with --json, as one object per line).

    Example: `exop top linear_road --sort busy`

    Args:
        app: Show only this application.
        sort: The order of the nodes: largest first; by default the order of the mesh.
        every: Seconds between two updates; 1 by default.
        once: Print one table, with the rates over one interval, and exit.
    """
    if not 0 < every < 3600:
        raise BuilderError(f"--every {every:g} is no number of seconds between two updates; give one above 0")
    with _named(app, where) as (platform, name), Stopping(patience=1) as stopping:
        look = Look(platform, name, sort, stopping, every)
        live = sys.stdout.isatty() and not json and not once
        if live:
            _live(look)
        else:
            _plain(look, once=once, json=json)
    if look.farewell:
        say(look.farewell)
    return DONE


@contextmanager
def _named(app: str | None, where: Where) -> Iterator[tuple[RemotePlatform, str | None]]:
    """Yield the platform, and the name of the application if one is given."""
    if app is None:
        with the_platform(where) as platform:
            yield platform, None
        return
    with find_application(app, where) as found:
        found.check_whole(app)
        yield found.platform, found.application


@dataclass
class Look:
    """Requests the metrics of a platform until the platform or its application ends, or the user stops.

    Attributes:
        farewell: The reason for the end, unless the user has stopped.
        trouble: The reason why the sections are outdated.
    """

    platform: RemotePlatform
    application: str | None
    sort: Sort
    stopping: Stopping
    every: float
    farewell: str = ""
    name: str = "the platform"
    pid: int = 0
    trouble: str = ""
    sections: list[Section] = field(default_factory=list)
    _rates: Rates = field(default_factory=Rates)
    _known: dict[str, Any] = field(default_factory=dict)
    _left: int = 0

    def again(self) -> bool:
        """Update the sections; `False` if there is nothing left to show."""
        try:
            running = self._statuses()
        except CallTimeout as late:
            self.trouble = str(late)
            return True
        except UnknownName:
            self.farewell = f"{self.application} was removed"
            return False
        except PeerUnreachable as problem:
            self.farewell = f"{self.name} (process {self.pid}) has ended: {problem}"
            return False
        self.sections = [one for name in sorted(running) for one in self._rates.sections(running[name], self.sort)]
        self.trouble = ""
        return True

    def _statuses(self) -> dict[str, Any]:
        """Return the status of each application; request all of it periodically and after a change, else the metrics.

        Raises:
            UnknownName: the application no longer runs.
        """
        names = None if self.application is None else [self.application]
        self._left -= 1
        if self._left > 0 and self._known:
            try:
                there = names or self.platform.applications()
                for name in there:
                    refresh(self._known[name], self.platform.metrics(name))
                self._left = self._left if names or len(there) == len(self._known) else 0
            except (KeyError, ExopError):
                self._left = 0
        if self._left <= 0:
            status = self.platform.status()
            self.name, self.pid, self._left = status["platform"], status["pid"], WHOLE
            self._known = status["applications"]
        if names is not None and names[0] not in self._known:
            raise UnknownName(place=self.name, kind="application", name=names[0], known=self._known)
        return {name: self._known[name] for name in names or self._known}

    def pause(self) -> bool:
        """Wait until the next update; return `False` if the user has stopped."""
        deadline = time.monotonic() + self.every
        while not self.stopping.count and (rest := deadline - time.monotonic()) > 0:
            time.sleep(min(TICK, rest))
        return not self.stopping.count

    @property
    def head(self) -> str:
        """The line above the tables: the platform, and any trouble in reaching it."""
        return f"{self.name} (process {self.pid})" + (f"  {self.trouble}" if self.trouble else "")


def refresh(status: dict[str, Any], metrics: Mapping[str, Any]) -> None:
    """Update the metrics in a status; the quantiles remain.

    Raises:
        KeyError: the metrics belong to another revision or state, so that the status is outdated.
    """
    changed = [key for key in ("revision", "state") if status[key] != metrics[key]]
    if "hosts" in metrics and not changed:
        for host, one in metrics["hosts"].items():
            refresh(status["hosts"][host], one)
        return
    for name, node in metrics["nodes"].items():
        known = status["nodes"][name]
        if known["state"] != node["state"] or known["metrics"]["errors"] != node["errors"]:
            changed.append(name)
        known["metrics"] |= {key: value for key, value in node.items() if value != {}}
    for part in ("channels", "inserted"):
        for name, channel in metrics[part].items():
            known = status[part][name]
            changed += [name] if known.get("trouble") != channel.get("trouble") else []
            known |= channel
    if changed:
        raise KeyError(changed[0])
    status["running_s"] = metrics["running_s"]


def _live(look: Look) -> None:
    with closing(Live(screen=True)) as screen:
        while look.again():
            screen.show(overview(f"{look.head}  every {look.every:g} s, Ctrl-C ends", look.sections))
            if not look.pause():
                break
    print(plain(overview(look.head, look.sections)))


def _plain(look: Look, *, once: bool, json: bool) -> None:
    if once and look.again():  # the rates are those from here on
        look.pause()
    while look.again():
        if json:
            sections = [asdict(one) for one in look.sections]
            print_json({"platform": look.name, "pid": look.pid, "applications": sections}, indent=None)
        else:
            print(plain(overview(f"{time.strftime('%H:%M:%S')}  {look.head}", look.sections)), flush=True)
        if once or not look.pause():
            break
        if not json:
            print()
