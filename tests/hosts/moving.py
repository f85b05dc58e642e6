"""Platforms of one process that are linked and have the slets of moves; the first one is the home."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

from exop import Application, Platform, hookimpl, slet
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from tests.change.tools import count_to, endless, plain, summing, writing
from tests.rig import eventually

APP = "app"


def named(name: str, one: Any) -> Any:
    """Give a slet another name."""
    one.__name__ = one.__qualname__ = name
    return slet(one)


class Hosts:
    """The platforms of these names, by name, with further slets, and what the sink has seen."""

    def __init__(self, *names: str, slets: tuple[Any, ...] = (), state: Path | None = None) -> None:
        self._state = state
        self.seen: list[Any] = []
        self.sink = writing(self.seen)
        self.seen_too: list[Any] = []
        self.sink_too = named("write_too", writing(self.seen_too))
        self._offered = [endless, count_to, summing, plain, self.sink, self.sink_too, *slets]
        self.platforms = {name: self.platform(name) for name in names}
        self.home = self.platforms[names[0]]

    def platform(self, name: str) -> Platform:
        """A platform with the slets."""
        plugins = Plugins()
        plugins.register("test", self)
        state = None if self._state is None else self._state / name
        return Platform(name=name, control=False, plugins=plugins, listen=f"inproc:{name}", state=state)

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return self._offered

    def connect(self) -> None:
        """Link all platforms, which are started."""
        for one, other in combinations(self.platforms, 2):
            self.platforms[one].remoting.connect(f"inproc:{other}")

    def back(self, name: str, stack: ExitStack) -> Platform:
        """Start a platform again that is closed, and link it with the others."""
        one = self.platforms[name] = stack.enter_context(self.platform(name))
        self.home = self.platforms[self.home.name]
        for other in (other for other in self.platforms.values() if other is not one):
            if name in other.remoting.peers:
                other.remoting.connect(f"inproc:{name}")
            elif other.name not in one.remoting.peers:
                one.remoting.connect(f"inproc:{other.name}")
            eventually(lambda other=other: all(map(_linked, (one, other), (other, one))), f"{name} is linked")
        return one

    def line(self, *slets: Any, durable: float | None = None, **kinds: str) -> Mesh:
        """Make a -> b -> … -> sink; each channel has the name of its producer and an s, and these kinds or none."""
        app, before = Application(APP), dict[str, Any]()
        for name, one in zip("abcdef", slets, strict=False):
            out = app.channel(f"{name}s", kinds.get(name, "direct"))
            app.add(name, one, out=out, **before)
            before = {"x": out}
        app.add("sink", self.sink, **before)
        if durable is not None:
            app.durable(every=durable)
        return app.build()

    def apply(self, edit: Callable[[Mesh], Mesh], **how: Any) -> Mesh:
        """Change the whole mesh."""
        return self.home.apply(edit(self.home.mesh(APP)), **how)

    def move(self, host: str, *names: str) -> Mesh:
        """Move nodes and channels to a host."""

        def moved(mesh: Mesh) -> Mesh:
            for name in names:
                mesh = mesh.move(name, to=host)
            return mesh

        return self.apply(moved)

    def unfinished(self) -> str:
        """What keeps the application from finishing: what the home has heard, and what each host says."""
        lines = []
        if (found := self.home._hosts.homes.get(APP)) is not None:
            lines = [f"the home has {found.hosts}, changes {found.changing}", *map(str, found.reports.values())]
        for name, one in self.platforms.items():
            if (deployment := one._hosts.here.running.deployed.get(APP)) is not None:
                states = {name: component.status.name for name, component in deployment.components.items()}
                halves = [str({"name": name, **one.metrics()}) for name, one in deployment.channels.items()]
                known = one._hosts.here.known.get(APP)
                lines += [f"{name}: {states}, {known and known.plan}, {deployment.changing}", *halves]
        return "\n".join(lines)

    def component(self, host: str, node: str) -> Any:
        """The component of a node."""
        return self.platforms[host].deployment(APP).components[node]


def _linked(one: Platform, other: Platform) -> bool:
    return (link := one.remoting.peers.get(other.name)) is not None and link.connected


@contextmanager
def hosts(*names: str, slets: tuple[Any, ...] = (), state: Path | None = None) -> Iterator[Hosts]:
    """Hosts whose platforms are closed after the block; *state* has their state directories."""
    made = Hosts(*names, slets=slets, state=state)
    with ExitStack() as stack:
        for one in made.platforms.values():
            stack.enter_context(one)
        made.connect()
        yield made
