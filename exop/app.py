"""`Application` builds a mesh in Python. Errors are raised at the line that contains the mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from exop.errors import BuilderError, MeshError, entry
from exop.hooks import Plugins
from exop.model.meshes.checks import check, check_group, check_join
from exop.model.meshes.mesh import ChannelSpec, Mesh
from exop.model.slets.ports import OUT
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import DEAD, Policy, SletSpec
from exop.pictures.notebook import picture_of, size
from exop.runtime.catalog import Catalog, known_slets
from exop.runtime.channels import BUILT_IN, REMOTE
from exop.runtime.component_manager import converted

if TYPE_CHECKING:
    from exop.platform import Platform

#: A placeholder for an output for which a channel is created.
_OWN: Final = object()

#: The file that a command imports to build its application, and that must not run it; empty otherwise.
IMPORTED: Final = ContextVar("imported", default="")


@dataclass(frozen=True)
class ChannelRef:
    """A reference to a channel of an application that is being built. Pass it as the argument of a port.

    `name` is empty for a sink, which has no output.
    """

    application: str
    name: str
    node: str = ""


@dataclass
class _Draft:
    """The mesh of an application that is being built, and the known slets; `Application.on` shares them."""

    mesh: Mesh
    catalog: Catalog | None = None


class Application:
    """Builds an application from slets and channels.

        app = Application("numbers")
        numbers = app.add("numbers", "stock:count_up", to=10)
        app.add("console", "stock:show", item=numbers)
        app.run()

    A mistake (an unknown port, a value of the wrong type, two incompatible ports) raises an error at its line.

    Args:
        name: The name of the application.
        plugins: The plugins in which the names of slets and channel kinds are looked up; by default all.

    Raises:
        MeshError: the name is not valid for an application.
    """

    def __init__(self, name: str, *, plugins: Plugins | None = None) -> None:
        self._draft = _Draft(Mesh(name))
        self._host: str | None = None
        self._plugins = plugins
        self._kinds = {kind.kind: kind for kind in BUILT_IN}

    def __repr__(self) -> str:
        return f"<Application {self.name}: {size(self._mesh)}>"

    def _repr_svg_(self) -> str:
        return picture_of(self._mesh)

    @property
    def _mesh(self) -> Mesh:
        return self._draft.mesh

    @property
    def name(self) -> str:
        """The name of the application."""
        return self._mesh.name

    def on(self, host: str) -> Application:
        """Return the same application, with `add` and `channel` that place nodes and channels on another host.

        `app.on("edge-2").add(...)` places a node on the platform with this name. Where items pass from one host to
        another, the platforms connect them; nothing is declared for it.
        """
        placed = copy(self)
        placed._host = host
        return placed

    def channel(
        self,
        name: str,
        kind: str = "direct",
        *,
        host: str | None = None,
        connector: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> ChannelRef:
        """Add a channel of any kind. Ports that are connected directly need no channel.

        Args:
            name: The name of the channel.
            kind: The kind: `direct`, `queue`, `window`, `latch`, `table`, `log`, or that of a plugin.
            host: The host that has the channel and its content. By default, a direct channel is where its producers
                are, if that is one host, and any other channel is at the home of the application.
            connector: How slets on other hosts reach the channel: `mode` (`async`, `sync`, `offline`), `ack`
                (`received`, `done`, `stable`), `capacity` in items, and for reads `cache`.
            settings: The settings of the kind.

        Raises:
            MeshError: the application has a channel of this name.
            UnknownName, SettingError: the kind is unknown, or one of its settings is unknown or wrong.
        """
        if name in self._mesh.channels:
            raise MeshError(f"{self.name} has a channel {name!r} already; choose another name")
        given = ChannelSpec(name, kind, settings, host=host or self._host, connector=connector or {})
        spec = converted(self._known_kinds(kind), given)
        self._draft.mesh = replace(self._mesh, channels={**self._mesh.channels, name: spec})
        return ChannelRef(self.name, name)

    def durable(self, every: float = 5.0) -> None:
        """Take a checkpoint every *every* seconds.

        After a crash, a platform with the same state directory continues the application from its last checkpoint.

        Raises:
            MeshError: *every* is not a number greater than 0.
        """
        self._draft.mesh = replace(self._mesh, durable=every)

    def add(
        self,
        name: str,
        slet: Any,
        /,
        *,
        on_error: Policy | None = None,
        timeout: float | None = None,
        dead_letters: int | ChannelRef | None = None,
        group: str | None = None,
        **given: Any,
    ) -> ChannelRef:
        """Add a slet as a node. Keyword arguments specify the channels of the ports and the values of the settings.

        Args:
            name: The name of the node.
            slet: A `@slet` function, a `Slet` class, or the identity of a slet that a plugin registers (`plugin:name`).
            on_error: The policy for an item for which the slet raises an exception; by default that of the slet.
            timeout: Seconds after which a call of the slet is reported, 0 for never; by default those of the slet. If
                the slet has a setting of this name, the argument is the value of this setting.
            dead_letters: The number of failed items that are stored if `on_error` is `dead-letter`, by default that of
                the slet; or a channel to which each failed item is sent as a `DeadLetter`. If a channel is given,
                `on_error` is `dead-letter` by default.
            group: The name of a group, whose slets share the partitions of a channel (`app.channel(name, by=field)`).
            given: `port=channel` for inputs and outputs, `setting=value` for settings. For a family of ports,
                `to={"cars": channel}`; for outputs for which channels are created, `to=["cars", "rest"]`.

        Returns:
            The channel of the output `out`. `output(name, port)` returns those of further ports.

        Raises:
            MeshError: the application has a node of this name, or an input is not connected.
            UnknownName: the slet has no port or setting of this name.
            SettingError: the value of a setting is invalid.
            WiringError: two ports are incompatible.
        """
        care = {"on_error": on_error, "timeout": timeout, "dead_letters": dead_letters, "group": group}
        return self._add(name, self._resolve(slet), care, given)

    def output(self, node: str, port: str = OUT) -> ChannelRef:
        """Return the channel of an output port of a node.

        Raises:
            UnknownName: the application has no such node, or the node no such port.
        """
        return ChannelRef(self.name, entry(node, "output port", self._mesh.node(node).outputs(), port), node)

    def build(self) -> Mesh:
        """Check the application, and return its mesh.

        Raises:
            MeshError: the mesh is incomplete or invalid.
            WiringError: there is a cycle without a queue.
        """
        kinds = (channel.kind for channel in self._mesh.channels.values())
        check(self._mesh, {kind.kind: kind for kind in REMOTE} | self._known_kinds(*kinds))
        return self._mesh

    def run(self, platform: Platform | None = None) -> dict[str, Any]:
        """Run in this process until the sources end and all items are processed. Ctrl-C ends the sources.

        Returns:
            The report of the run, as printed by `exop run --json`: totals, `nodes` and `channels`.

        Raises:
            ComponentFailed: a slet failed to open, or raised an exception for an item and was not repaired.
            BuilderError: a command of `exop` is importing the file that calls this, to build the application.
        """
        if file := IMPORTED.get():
            cure = 'put `run` below `if __name__ == "__main__":`'
            raise BuilderError(f"{file} runs its application when imported; {cure}")
        # Imported lazily: building and checking a mesh needs no platform.
        from exop.platform import Platform
        from exop.report import run_report

        mesh, outcome = self.build(), "finished"
        with Platform() if platform is None else nullcontext(platform) as used:
            try:
                used.apply(mesh)
                try:
                    used.wait(self.name)
                except KeyboardInterrupt:
                    outcome = "drained"
                    used.end(self.name)
                    used.wait(self.name)
                return run_report(used.status(self.name), outcome)
            finally:
                if self.name in used.applications():
                    used.remove(self.name)

    def _add(self, name: str, spec: SletSpec, care: dict[str, Any], given: dict[str, Any]) -> ChannelRef:
        spec = spec.asked(name, given)
        for key in ("timeout", "dead_letters", "group"):  # the names of the slet take precedence
            if care[key] is not None and (key in spec.settings or key in spec.ports):
                given[key], care[key] = care[key], None
        if isinstance(care["dead_letters"], (ChannelRef, str)):
            given[DEAD], care["dead_letters"] = care["dead_letters"], None
        given = _unfolded(name, spec, given)
        spec = spec.connected(given)
        settings = {key: value for key, value in given.items() if key not in spec.ports}
        asked = {port: given[port] for port in spec.ports if given.get(port, _OWN) is not _OWN}
        ports = {port: self._channel_of(name, port, to) for port, to in asked.items()}
        mesh = self._mesh.add_slet(name, spec, ports, settings, host=self._host, **care)
        node = mesh.nodes[name]
        for channel in set(node.ports.values()):
            check_join(mesh, channel, self._known_kinds(mesh.channels[channel].kind))
        if node.group is not None:
            check_group(mesh, node.group, self._known_kinds(*(one.kind for one in mesh.channels.values())))
        self._draft.mesh = mesh
        return ChannelRef(self.name, node.ports.get(OUT, ""), name)

    def _channel_of(self, node: str, port: str, given: Any) -> str:
        if isinstance(given, ChannelRef) and given.application == self.name and given.name:
            return given.name
        place = f"{node}.{port}"
        if isinstance(given, ChannelRef) and not given.name:
            source = self._mesh.nodes.get(given.node) if given.application == self.name else None
            if outputs := ", ".join(source.outputs()) if source is not None else "":
                cure = f"app.output({given.node!r}, PORT) gives the channel of one of its outputs ({outputs})"
                raise MeshError(f"{place}: {given.node} has no output {OUT!r}; {cure}")
            raise MeshError(f"{place}: {given.node} is a sink, it has no output to connect to")
        if isinstance(given, ChannelRef):
            raise MeshError(f"{place}: the channel {given.name!r} belongs to the application {given.application!r}")
        if isinstance(given, Sequence) and not isinstance(given, str):
            cure = "let the others push into one, c = app.channel('c'), and give each of them out=c"
            raise MeshError(f"{place}: a port connects to one channel; {cure}")
        if isinstance(given, str) and given in self._mesh.channels:
            return given
        raise MeshError(f"{place} is a port: give it a channel (what app.add or app.channel returned), not {given!r}")

    def _resolve(self, slet: Any) -> SletSpec:
        if not isinstance(slet, str):
            return spec_of(slet)
        return entry("this installation", "slet", self._installed().slets, slet)

    def _installed(self) -> Catalog:
        if self._draft.catalog is None:
            self._draft.catalog = known_slets(self._plugins)
        return self._draft.catalog

    def _known_kinds(self, *kinds: str) -> dict[str, Any]:
        """The built-in channel kinds, and those of plugins if one of *kinds* is not built in."""
        return self._kinds if self._kinds.keys() >= {*kinds} else self._kinds | self._installed().kinds


def _unfolded(node: str, spec: SletSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the arguments of families of ports by those of single ports (`to.cars`).

    Raises:
        MeshError: the argument of a family is neither names nor channels by name.
    """
    found = dict(given)
    for family in (one for one in spec.families if one.family in given):
        ends = given[family.family]
        listed = isinstance(ends, Sequence) and family.direction == "out"
        names = ends if isinstance(ends, Mapping) or listed else None
        if names is None or not all(isinstance(name, str) and family.of(f"{family.family}.{name}") for name in names):
            names = f", or names, {family.family}=[NAME], for channels of their own" * (family.direction == "out")
            raise MeshError(
                f"{node}.{family.family} is a family of ports, not {ends!r}: give channels by name, "
                f"{family.family}={{NAME: channel}}{names}; a name has letters, digits, '-' and '_'"
            )
        del found[family.family]
        found |= {f"{family.family}.{name}": ends[name] if isinstance(ends, Mapping) else _OWN for name in names}
    return found
