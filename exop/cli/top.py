"""`exop top`: what runs on a platform, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from exop.cli.options import HERE, Json, Where
from exop.cli.peers import find_application, the_platform
from exop.cli.rates import Rates, Section, Sort
from exop.cli.report import DONE, say
from exop.cli.stopping import Stopping
from exop.cli.text import print_json
from exop.cli.topview import Screen, as_text
from exop.errors import BuilderError, CallTimeout, PeerUnreachable

if TYPE_CHECKING:
    from exop.remoting.platform import RemotePlatform

#: How often it is looked whether it should end, in seconds.
TICK: Final = 0.05


def top(
    app: str | None = None,
    /,
    *,
    sort: Annotated[
        Sort, Parameter(help="The order of the nodes; largest first, by default that of the mesh.")
    ] = "mesh",
    every: Annotated[float, Parameter(help="Seconds between two looks; 1 by default.")] = 1.0,
    once: Annotated[bool, Parameter(help="Look twice, print one table with the rates between, and end.")] = False,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Show what runs on a platform, live: rates, busy shares, latencies, queues, errors, what waits for a repair.

    Ctrl-C ends it. Where stdout is no terminal, and with --json, one look follows the other (--json: an object per
    line). It ends with the platform, and says so.

    Args:
        app: Only this application.
    """
    if not 0 < every < 3600:
        raise BuilderError(f"--every {every:g} is no number of seconds between two looks; give one above 0")
    with _meant(app, where) as (platform, name), Stopping(patience=1) as stopping:
        live = sys.stdout.isatty() and not json and not once
        look = Look(platform, name, sort, stopping, every)
        return _live(look) if live else _plain(look, once=once, json=json)


@contextmanager
def _meant(app: str | None, where: Where) -> Iterator[tuple[RemotePlatform, str | None]]:
    """The platform to look at, and the application if only one is meant."""
    if app is None:
        with the_platform(where) as platform:
            yield platform, None
        return
    with find_application(app, where) as found:
        if found.node:
            raise BuilderError(f"{app!r} names a node; this command takes an application, {found.application!r}")
        yield found.platform, found.application


@dataclass
class Look:
    """Looks at a platform again and again, until it, its application or the user leaves.

    Attributes:
        farewell: Why it has ended, if not by the user.
        trouble: Why what is shown is old.
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

    def again(self) -> bool:
        """Look; `False` if there is nothing more to be seen."""
        try:
            status = self.platform.status()
        except CallTimeout as late:
            self.trouble = str(late)
            return True
        except PeerUnreachable as problem:
            self.farewell = f"{self.name} (process {self.pid}) has ended: {problem}"
            return False
        running = status["applications"]
        if self.application is not None and self.application not in running:
            self.farewell = f"{self.application} was removed"
            return False
        chosen = [self.application] if self.application is not None else sorted(running)
        self.sections = [self._rates.section(running[name], self.sort) for name in chosen]
        self.name, self.pid, self.trouble = status["platform"], status["pid"], ""
        return True

    def pause(self) -> bool:
        """Wait for the next look; `False` when the user has had enough."""
        deadline = time.monotonic() + self.every
        while not self.stopping.count and (rest := deadline - time.monotonic()) > 0:
            time.sleep(min(TICK, rest))
        return not self.stopping.count

    def as_data(self) -> dict[str, Any]:
        """The look as JSON has it."""
        return {"platform": self.name, "pid": self.pid, "applications": [one.as_data() for one in self.sections]}

    @property
    def head(self) -> str:
        """Which platform it is."""
        return f"{self.name} (process {self.pid})" + (f"  {self.trouble}" if self.trouble else "")


def _live(look: Look) -> int:
    screen = Screen()
    try:
        while look.again():
            screen.show(f"{look.head}  every {look.every:g} s, Ctrl-C ends", look.sections)
            if not look.pause():
                break
    finally:
        screen.close()
    print(as_text(look.head, look.sections))
    return _ended(look)


def _plain(look: Look, *, once: bool, json: bool) -> int:
    if once and look.again():  # what is printed are the rates from here on
        look.pause()
    while look.again():
        if json:
            print_json(look.as_data(), indent=None)
        else:
            print(as_text(f"{time.strftime('%H:%M:%S')}  {look.head}", look.sections), flush=True)
        if once or not look.pause():
            break
        if not json:
            print()
    return _ended(look)


def _ended(look: Look) -> int:
    if look.farewell:
        say(look.farewell)
    return DONE
