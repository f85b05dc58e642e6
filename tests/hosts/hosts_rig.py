"""Platforms of one process that are linked, the slets that they have, and connectors within the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from exop import Application, Memento, Platform, Slet, hookimpl, input_port, slet
from exop.errors import PeerUnreachable, StateError
from exop.hooks import Plugins
from exop.hosts.protocol import exchange
from exop.model.meshes.mesh import Mesh
from exop.stock.sinks import WriteSqlite
from exop.stock.slets import count_up
from tests.change.tools import endless
from tests.rig import PATIENCE, eventually

#: While it is not set, `hangs` does not return.
HANG = threading.Event()
#: The sources `opened` wait for these.
GATES = {"x": threading.Event(), "y": threading.Event()}
#: What the sinks have seen.
SEEN: dict[str, list[Any]] = {}


class Last(Memento):
    """The last number, and how many did not follow."""

    number: int = 0
    wrong: int = 0


@slet
def numbers(*, upto: int = 1000) -> Iterator[int]:
    """Count."""
    yield from range(1, upto + 1)


@slet
def rows() -> Iterator[dict[str, int]]:
    """Fill a table."""
    yield {"n": 1}


@slet
def keyless(item: int) -> dict[str, int]:
    """Make rows, one of them without its key."""
    return {"m" if item == 5 else "n": item}


@slet
def double(item: int) -> int:
    """Double."""
    return 2 * item


@slet
def check(item: int, last: Last) -> int:
    """Count what does not follow."""
    last.wrong += item != last.number + 1
    last.number = item
    return item


@slet
def collect(item: int, *, into: str = "all") -> None:
    """Write down."""
    SEEN.setdefault(into, []).append(item)


class Kept(Memento):
    """All items."""

    items: list[int] = field(default_factory=list)


@slet
def keeps(item: int, kept: Kept) -> None:
    """Keep all items."""
    kept.items.append(item)


@slet
def check_too(item: int, last: Last) -> int:
    """Count what does not follow, by other code."""
    last.wrong += item != last.number + 1
    last.number = item
    return item


@slet
def hangs(item: int, last: Last) -> int:
    """Count what does not follow, or hang."""
    HANG.wait(PATIENCE)
    last.wrong += item != last.number + 1
    last.number = item
    return item


@slet
def scale(item: int, *, by: int = 1) -> int:
    """Multiply."""
    return item * by


@slet
def fails(item: int) -> int:
    """Raise at one item."""
    if item == 5:
        raise ValueError("not 5")
    return item


@slet
def opened(position: Last, *, tag: str = "x") -> Iterator[int]:
    """Emit ten numbers when the gate of the tag is open."""
    while position.number < 10:
        if not GATES[tag].wait(0.01):
            yield None  # type: ignore[misc]
            continue
        position.number += 1
        yield position.number + 100 * (tag == "y")


class Refuses(Slet):
    """Does not open."""

    def __enter__(self) -> Any:
        raise OSError("no room")

    @input_port
    def item(self, item: int) -> int:
        """Take."""
        return item


refuses = Refuses


class Opens(Slet):
    """Does not open before `HANG` is set."""

    begun: ClassVar = threading.Event()

    def __enter__(self) -> Any:
        self.begun.set()
        HANG.wait(PATIENCE)
        return self

    @input_port
    def item(self, item: int) -> int:
        """Take."""
        return item


class Offered:
    """The slets and channels, as a plugin offers them."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [
            numbers,
            rows,
            keyless,
            double,
            check,
            check_too,
            hangs,
            scale,
            fails,
            Refuses,
            Opens,
            collect,
            opened,
            keeps,
            count_up,
            endless,
            WriteSqlite,
        ]


def platform(name: str, **given: Any) -> Platform:
    """A platform with these slets, to which others connect."""
    plugins = Plugins()
    plugins.register("test", Offered())
    return Platform(name=name, control=False, plugins=plugins, **{"listen": f"inproc:{name}"} | given)


@contextmanager
def hosts(*names: str, state: Path | None = None) -> Iterator[list[Platform]]:
    """Platforms of these names, all of which are linked."""
    SEEN.clear()
    HANG.set()
    with ExitStack() as stack:
        found: list[Platform] = []
        for name in names:
            given = {} if state is None else {"state": state / name}
            one = stack.enter_context(platform(name, **given))
            for other in found:
                one.remoting.connect(f"inproc:{other.name}")
                eventually(partial(linked, other, name), "the side that was dialled knows the link")
            found.append(one)
        yield found


def linked(platform: Platform, peer: str) -> bool:
    """Whether a platform is connected with a peer."""
    return (link := platform.remoting.peers.get(peer)) is not None and link.connected


def total(platform: Platform, node: str = "check") -> Any:
    """The state of a node that runs on this platform."""
    return platform.deployment("app").components[node].state


def counting(check_on: str = "b", also: Sequence[str] = (), every: float | None = None) -> Mesh:
    """Numbers without end on a, checked on one host; the others check them, too."""
    app = Application("app")
    if every is not None:
        app.durable(every=every)
    source = app.add("numbers", endless)
    app.on(check_on).add("check", check, item=source)
    for host in also:
        app.on(host).add(f"check-{host}", check, item=source)
    return app.build()


def goes_on(platform: Platform, node: str = "check") -> None:
    """Items flow, and none was lost, doubled or reordered."""
    seen = total(platform, node).number
    eventually(lambda: total(platform, node).number > seen + 100)
    assert total(platform, node).wrong == 0


def at_rest(*platforms: Platform) -> None:
    """No plan is in progress, and no driver is parked."""
    for one in platforms:
        for machines in [*one._hosts.exchange.machines.values()]:
            eventually(lambda machines=machines: machines.member.plan is None, f"{one.name} at rest")
        for driver in one.deployment("app").drivers() if "app" in one._applications.deployed else ():
            eventually(lambda driver=driver: not driver.parked, f"{driver.name} goes on")


class PlanTime:
    """The time by which all platforms measure the deadlines of plans: a deadline passes when the test says so."""

    def __init__(self, monkeypatch: Any) -> None:
        self._ahead = 0.0
        monkeypatch.setattr(exchange, "time", self)

    def monotonic(self) -> float:
        """Return the time, in seconds."""
        return time.monotonic() + self._ahead

    def pass_deadlines(self) -> None:
        """Let the deadlines of all plans in progress pass."""
        self._ahead += 1000.0


def await_no_host(home: Platform) -> None:
    """Let a change at its home return without the hosts that have not carried it out."""
    with home._hosts._news:
        home._hosts.homes["app"].changing.clear()
        home._hosts._news.notify_all()


class Network:
    """What happens to the messages between platforms."""

    def __init__(self, *platforms: Platform) -> None:
        self.cut: set[frozenset[str]] = set()
        self.away: set[str] = set()
        self.twice = False
        self.watch: Callable[[str, str, Any], None] = lambda source, to, message: None
        for one in platforms:
            self.join(one)

    def join(self, one: Platform) -> None:
        """Let the messages of a platform pass through here."""
        call, source = one._hosts.call, one.name

        def through(peer: str, application: str, message: Any) -> None:
            self.watch(source, peer, message)
            if frozenset((source, peer)) in self.cut or self.away & {source, peer}:
                raise PeerUnreachable(address=peer, problem="the network is cut")
            for _ in range(1 + self.twice):
                call(peer, application, message)

        one._hosts.call = through  # type: ignore[method-assign]


class Death:
    """Lets a platform die: at a record of its journal, and with all its connections."""

    def __init__(self, one: Platform, network: Network, at: str, *, after: bool) -> None:
        self.dead = threading.Event()
        record, hosts = one._hosts.record, one._hosts

        def recorded(application: str, entry: Any) -> None:
            if not self.dead.is_set() and (type(entry).__name__ != at or after):
                record(application, entry)
            if type(entry).__name__ == at:
                network.away.add(one.name)
                self.dead.set()
            if self.dead.is_set():
                raise StateError(f"{one.name} is dead")

        hosts.record = recorded  # type: ignore[method-assign]
