"""Edits of a running mesh as plain data: names and texts, converted on the platform, which knows the slets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from exop.errors import MeshError, SettingError, UnknownName, entry
from exop.model.meshes.diff import MARKS
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
from exop.model.meshes.nodes import CHANNEL
from exop.model.slets.ports import node_at
from exop.model.slets.spec import SletSpec, parse
from exop.runtime.catalog import Catalog
from exop.runtime.channels.base import channel_settings
from exop.runtime.component_manager import converted

#: Settings (or ports) by name, as text; a setting is converted by its annotation.
Texts = Annotated[dict[str, str], msgspec.Meta(max_length=200)]


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="edit"):
    """One edit of one node."""

    node: str

    def on(self, mesh: Mesh, known: Catalog) -> Mesh:
        """The edited mesh."""
        edit: Callable[[str], Mesh] = getattr(mesh, str(self.__struct_config__.tag))
        return edit(self.node)


class Replace(Edit, frozen=True, tag="replace"):
    """Replace the slet of the node."""

    slet: str
    settings: Texts = {}
    lose_state: bool = False
    rebuild: Literal["log"] | None = None

    def on(self, mesh: Mesh, known: Catalog) -> Mesh:
        """The mesh with the successor."""
        spec = entry("the platform", "slet", known.slets, self.slet)
        _check_no_marks(self.settings)
        with _listing(spec):
            return mesh.replace(self.node, spec, lose_state=self.lose_state, rebuild=self.rebuild, **self.settings)


class Configure(Edit, frozen=True, tag="configure"):
    """Change settings of the node, or of a channel (`NAME`, or `channel:NAME`): now, or when a condition holds."""

    settings: Texts
    when: str | None = None
    close_windows: bool = False

    def on(self, mesh: Mesh, known: Catalog) -> Mesh:
        """The mesh with the new settings."""
        _check_no_marks(self.settings)
        if (name := _channel(mesh, self.node)) is not None:
            channel = mesh.channel(name)
            complete = channel_settings(known.kinds[channel.kind], channel.with_settings(self.settings))
            given = {name: complete[name] for name in self.settings}
            return mesh.configure_channel(channel.name, when=self.when, close_windows=self.close_windows, **given)
        with _listing(mesh.node(self.node).slet):
            return mesh.configure(self.node, when=self.when, close_windows=self.close_windows, **self.settings)


class Suspend(Edit, frozen=True, tag="suspend"):
    """Stop passing items to the node."""


class Resume(Edit, frozen=True, tag="resume"):
    """Pass items to the node again."""


class Remove(Edit, frozen=True, tag="remove"):
    """Remove the node."""


class Move(Edit, frozen=True, tag="move"):
    """Place the node, or a channel with its content, on another host; *also*: others that move in the same change.

    `APP.NODE` is a node, too, and `channel:NAME` a channel. With *lose_state*, the nodes start with empty states there.
    """

    to: str
    lose_state: bool = False
    also: Annotated[list[str], msgspec.Meta(max_length=1000)] = []

    def on(self, mesh: Mesh, known: Catalog) -> Mesh:
        """The mesh with all of them on the other host."""
        for name in (self.node, *self.also):
            place = name if name in mesh.nodes or name in mesh.channels else name.removeprefix(f"{mesh.name}.")
            channel = _channel(mesh, place)
            mesh = mesh.move(channel or place, self.to, channel=channel is not None, lose_state=self.lose_state)
        return mesh


class Rewire(Edit, frozen=True, tag="rewire"):
    """Connect ports of the node to other channels; `NODE.PORT` is a port of another node.

    A channel is an existing one by name, or a new one: `CHANNEL:KIND[,NAME=VALUE…]`.
    """

    ports: Texts

    def on(self, mesh: Mesh, known: Catalog) -> Mesh:
        """The mesh with the new connections; an empty name disconnects a port."""
        mesh.node(self.node)
        fresh = self._fresh(known)
        asked: dict[str, dict[str, str | ChannelSpec | None]] = {}
        for place, to in self.ports.items():
            node, port = node_at(place, mesh.nodes) if "." in place else (self.node, place)
            if node not in mesh.nodes and any(family.of(place) for family in mesh.node(self.node).slet.families):
                node, port = self.node, place
            channel = to.partition(":")[0]
            # A new channel is defined once; other ports, earlier ones included, refer to it by name.
            asked.setdefault(node, {})[port] = fresh.get(channel, channel) or None
        with _listing(mesh.node(self.node).slet):
            for node, ports in asked.items():
                mesh = mesh.rewire(node, **ports)
        return mesh

    def _fresh(self, known: Catalog) -> dict[str, ChannelSpec]:
        """The new channels by name, with their settings converted."""
        found: dict[str, ChannelSpec] = {}
        for name, _, rest in (to.partition(":") for to in self.ports.values() if ":" in to):
            kind, *words = rest.split(",")
            if found.setdefault(name, spec := converted(known.kinds, ChannelSpec(name, kind, parse(words)))) != spec:
                raise MeshError(f"the new channel {name!r} is described twice, differently; describe it once")
        return found


class Add(Edit, frozen=True, tag="add"):
    """Add a node.

    *given*: channels of ports, values of settings, and `group` and `host`, unless the slet has such a setting.
    """

    slet: str
    given: Texts = {}

    def on(self, mesh: Mesh, known: Catalog) -> Mesh:
        """The mesh with one more node; outputs that are not given get channels of their own."""
        spec = entry("the platform", "slet", known.slets, self.slet)
        with _listing(spec):
            spec = spec.asked(self.node, self.given).connected(self.given)
            ports = {port: self.given[port] for port in spec.ports if self.given.get(port)}
            own = {name: text for name, text in self.given.items() if name not in spec.ports}
            group, host = (None if name in spec.settings else own.pop(name, None) for name in ("group", "host"))
            return mesh.add_slet(self.node, spec, ports, own, group=group, host=host)


AnyEdit = Replace | Configure | Suspend | Resume | Remove | Move | Rewire | Add
#: Edits as values or as plain data.
Edits: TypeAlias = Sequence[AnyEdit | Mapping[str, Any]]


def edited(mesh: Mesh, edits: Edits, known: Catalog) -> Mesh:
    """Apply edits to a mesh, one after the other."""
    try:
        made = msgspec.convert(edits, list[AnyEdit])
    except msgspec.ValidationError as problem:
        raise MeshError(f"this is no list of edits: {problem}") from None
    for edit in made:
        mesh = edit.on(mesh, known)
    return mesh


def _channel(mesh: Mesh, name: str) -> str | None:
    """Return the channel that a name means: `channel:NAME`, or the name of no node."""
    bare = name.removeprefix(CHANNEL)
    return bare if bare != name or (name in mesh.channels and name not in mesh.nodes) else None


def _check_no_marks(settings: Mapping[str, str]) -> None:
    """Refuse options of the change among the settings, with which they could be confused."""
    for name in settings:
        if name in (*MARKS[Node], "when", "close_windows"):
            raise MeshError(f"{name} is an option of the change, not a setting; give it as --{name.replace('_', '-')}")


@contextmanager
def _listing(spec: SletSpec) -> Iterator[None]:
    """Add a note to an error: about a setting, all settings and their types; about a channel, how to make a new one."""
    try:
        yield
    except (SettingError, UnknownName) as error:
        if "setting" in error.facts.get("kind", "setting"):
            settings = ", ".join(map(str, spec.settings.values()))
            error.add_note(f"the settings of {spec.identity}: {settings or 'it has none'}")
        elif error.facts["kind"] == "channel":
            error.add_note("in `exop rewire`, NAME:KIND (failed:queue) is a new channel; `exop add` makes its own")
        raise
