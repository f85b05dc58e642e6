"""Channels in a change: new settings while they run, and contents that become values of a new version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from exop.errors import PlanError
from exop.logs import logger
from exop.model.meshes.diff import Difference
from exop.model.meshes.entries import touched
from exop.model.meshes.mesh import ChannelSpec, Mesh
from exop.model.slets.handover import new_version
from exop.model.slets.ports import node_at
from exop.model.values.versions import Mover, NoVersion, package_of
from exop.runtime.channels.base import Channel, channel_settings
from exop.runtime.channels.window import WindowChannel, timed_by
from exop.runtime.component import Component
from exop.runtime.component_manager import make_channel
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.source import SourceDriver
from exop.wiring.changes.plan import Plan
from exop.wiring.graph.region import Region
from exop.wiring.graph.wiring_graph import Edge, WiringGraph, channel_of_endpoint, port_of_endpoint

Undo: TypeAlias = Callable[[], object]


def check_channels(mesh: Mesh, kinds: Mapping[str, type[Channel]], changes: Difference | None = None) -> None:
    """Refuse settings that a channel cannot take while it runs, now or when a conditional update takes effect.

    With *changes* to a mesh that runs, this checks only the channels that they touch.
    """
    new = mesh.channels.values() if changes is None else changes.channels_added
    pairs = [*((None, channel) for channel in new), *(changes.channels_changed if changes is not None else ())]
    for old, channel in pairs:
        name = channel.name
        changed = old is not None and (dict(old.settings) != dict(channel.settings) or channel.close_windows)
        if not (changed or channel.pending):
            continue
        kind = kinds[channel.kind]
        if not kind.reconfigurable:
            able = ", ".join(sorted(name for name, one in kinds.items() if one.reconfigurable))
            raise PlanError(
                f"the channel {name} ({channel.kind}) keeps its settings while it runs (the kinds that take others: "
                f"{able or 'none'}); add a new channel and rewire to it"
            )
        _check_settings(old or channel, channel, kinds)


def unpunctuated(graph: WiringGraph, channel: str) -> tuple[list[str], Collection[str]]:
    """Return the producers of a channel (`node.port`) from which no punctuations can come, and the channels upstream
    on which that depends.

    Punctuations come from outputs whose types name them, from windows by time, and pass a slet if they come to all its
    inputs.
    """
    feeds: dict[str, dict[str, list[str] | None]] = {}  # by channel and producer: the inputs it waits for
    todo = [channel]

    def follows(name: str) -> bool:
        kind = graph.channels[name]
        return name != channel and isinstance(kind, WindowChannel) and timed_by(kind) is not None

    while todo:
        if (name := todo.pop()) in feeds:
            continue
        if follows(name):
            feeds[name] = {}
        else:
            feeds[name] = {edge.name: _awaited(graph, edge) for edge in graph.producers[name]}
            todo += (one for awaited in feeds[name].values() for one in awaited or ())
    punctuated, found = set[str](), -1

    def comes(awaited: list[str] | None) -> bool:
        return awaited is None or (bool(awaited) and punctuated.issuperset(awaited))

    while len(punctuated) > found:  # a cycle waits for itself
        found = len(punctuated)
        for name in reversed(feeds):
            if follows(name) or (feeds[name] and all(map(comes, feeds[name].values()))):
                punctuated.add(name)
    return [producer for producer, awaited in feeds[channel].items() if not comes(awaited)], feeds.keys()


def _awaited(graph: WiringGraph, edge: Edge) -> list[str] | None:
    """Return the channels by which punctuations reach an output past its slet; `None` if the slet makes them."""
    spec = edge.component.spec
    if edge.port.type.punctuation:
        return None
    if spec.own_driver or any(port.type.punctuation for port in spec.inputs):
        return []
    inputs = graph.nodes[edge.node].inputs
    taken = {name for name, _ in inputs if spec.iterated and graph.channels[name].pull_mode == "take"}
    return [name for name, into in inputs if not into.port.pulled or name in taken]


def tell_unpunctuated(deployment: Deployment, region: Region) -> None:
    """Let the windows by time follow the items of producers from which no punctuations come, with a warning.

    Only the windows are looked at that depend on a channel in the region of a change.
    """
    before, after, index = region.before.graph, region.after.graph, deployment.windows
    vertices = (one for graph in (before, after) for one in map(graph.nodes.get, region.nodes) if one is not None)
    places = {*region.channels, *(name for vertex in vertices for name, _ in vertex.outputs)}
    for name in sorted({window for place in places for window in (place, *index.get(place, ()))}):
        channel = after.channels.get(name) or before.channels.get(name)
        if not isinstance(channel, WindowChannel):
            continue
        for place in channel.upstream:
            index[place].discard(name)
            if not index[place]:
                del index[place]
        lacking, upstream = unpunctuated(after, name) if name in after.channels else ((), ())
        channel.unpunctuated, channel.upstream = frozenset(lacking), frozenset(upstream)
        for place in channel.upstream:
            index.setdefault(place, set()).add(name)
        told, channel.warned = channel.warned, channel.unpunctuated if _timed(channel) else frozenset()
        if channel.warned - told:
            logger("exop.wiring").warning(_lack(channel, channel.warned), application=deployment.name)


def lacking(graph: WiringGraph) -> Iterator[str]:
    """Describe each window by time to which no punctuations come from a producer, and the cure."""
    for name, channel in graph.channels.items():
        if isinstance(channel, WindowChannel) and _timed(channel) and (producers := unpunctuated(graph, name)[0]):
            yield _lack(channel, producers)


def _timed(channel: WindowChannel) -> str | None:
    """Return the field that holds the time of an item, if windows are by time, or will be after a pending update."""
    settings, found = dict(channel.asked.settings), timed_by(channel)
    for update in channel.asked.pending:
        settings |= update.settings
        given = (settings, *(settings.get("ports") or {}).values())
        found = found or next(
            (sizes.get("time", settings.get("time")) for sizes in given if sizes.get("seconds")), None
        )
    return found


def _lack(channel: WindowChannel, producers: Iterable[str]) -> str:
    return (
        f"the window {channel.name!r} is by time, and no punctuations come from {', '.join(sorted(producers))}: it "
        f"closes by the times of its items, as behind a watermark without delay; put app.add(NAME, 'stock:watermark', "
        f"item=…, time={_timed(channel)!r}, delay=…) behind each source: the next release refuses it without"
    )


def _check_settings(old: ChannelSpec, channel: ChannelSpec, kinds: Mapping[str, type[Channel]]) -> None:
    """Make the channel with its settings, and with those after each pending update, as a trial."""
    live, settings = make_channel(kinds, replace(old, pending=())).live, dict(channel.settings)
    for more in ({}, *(update.settings for update in channel.pending)):
        settings |= more
        if make_channel(kinds, replace(channel, settings=settings)).live is not live:
            raise PlanError(
                f"the channel {channel.name} hands out its own window where its slets evict, and copies elsewhere: "
                f"that cannot change while it runs; add a new channel and rewire to it"
            )


def settle_channels(deployment: Deployment, mesh: Mesh, changes: Difference, undo: list[Undo]) -> set[str]:
    """Give the channels that stay their new settings, before they are bound; return those whose windows were closed."""
    closing = {new.name for _, new in changes.channels_changed if new.close_windows}
    for name in dict.fromkeys([*touched(deployment.mesh.channels, mesh.channels), *closing]):
        spec, channel = mesh.channels[name], deployment.channels[name]
        undo.append(partial(setattr, channel, "asked", channel.asked))
        if dict(channel.asked.settings) != dict(spec.settings) or name in closing:
            undo.append(channel.reconfigure(channel_settings(type(channel), spec), close=name in closing))
        channel.asked = spec
    return closing


def move_contents(deployment: Deployment, plan: Plan, drivers: Collection[Driver], undo: list[Undo]) -> None:
    """Move the items on their way to slets of a new version, while *drivers* are parked; each step adds its undo.

    Raises `PlanError` if an item is of a class that the new version does not have.
    """
    nodes: dict[str, set[str]] = {}
    types: dict[str, list[Any]] = {}
    for step in plan.steps:
        if step.before is not None and step.after is not None and (package := new_version(step.before, step.after)):
            nodes.setdefault(package, set()).add(step.node)
            ports = (*step.before.slet.inputs, *step.after.slet.inputs)
            types.setdefault(package, []).extend(port.type.item for port in ports)
    for package, replaced in nodes.items():
        mover = Mover(package)
        if any(map(mover.concerns, types[package])):
            try:
                _Contents(deployment, plan.after, mover, replaced, undo).move(drivers)
            except NoVersion as problem:
                name = plan.after.name
                raise PlanError(f"an item that waits in {name} cannot be handed over: {problem}") from problem


@dataclass
class _Contents:
    """The items on their way to the slets of one bundle that are replaced at *nodes*."""

    deployment: Deployment
    mesh: Mesh
    mover: Mover
    nodes: Collection[str]
    undo: list[Undo]

    def __post_init__(self) -> None:
        self._bundle = (package_of(self.mover.after) or ("", ""))[1]
        self._channels = {name for name in self.mesh.channels if self._is_theirs(name)}

    def move(self, drivers: Collection[Driver]) -> None:
        deployment = self.deployment
        for name in self._channels & deployment.channels.keys():
            self._exchange(deployment.channels[name].exchange)
        for place, queue in deployment.inserted.items():
            if self._leads_to_them(f"queue {place}"):
                self._exchange(queue.exchange)
        fed = set()
        for component in deployment.components.values():
            if component.node.name in self.nodes:
                self._move_component(component)
            if not self._channels.isdisjoint(component.node.outputs().values()):
                fed.add(component.driver)
        self._exchange(partial(deployment.inlets.exchange, self._leads_to_them, drivers))
        for driver in drivers:
            if isinstance(driver, SourceDriver) and driver.yielded is not None and driver in fed:
                self.undo.append(partial(setattr, driver, "yielded", driver.yielded))
                driver.yielded = self.mover.move(driver.yielded)

    def _exchange(self, exchange: Callable[[Callable[[Any], Any]], None]) -> None:
        """Move the items of one keeper; the undo puts the same objects back."""
        was: dict[int, tuple[Any, Any]] = {}

        def move(item: Any) -> Any:
            moved = self.mover.move(item)
            if moved is not item:
                was[id(moved)] = item, moved
            return moved

        self.undo.append(lambda: exchange(lambda item: was.get(id(item), (item,))[0]))
        exchange(move)

    def _move_component(self, component: Component) -> None:
        for port in component.pulled.values():
            self._exchange(port.exchange)
        kept = component.trouble.kept
        if kept is not None:
            self.undo.append(partial(setattr, component.trouble, "kept", kept))
            component.trouble.kept = replace(kept, item=self.mover.move(kept.item))

    def _is_theirs(self, channel: str) -> bool:
        """Whether a channel has consumers of the bundle, and all of these are replaced."""
        slets = [(node.name, package_of(node.slet.factory.__module__)) for node, _ in self.mesh.consumers(channel)]
        found = {name for name, package in slets if package is not None and package[1] == self._bundle}
        return bool(found) and found <= set(self.nodes)

    def _leads_to_them(self, place: str) -> bool:
        target = port_of_endpoint(place)
        if not target:
            return channel_of_endpoint(place) in self._channels
        name, port = node_at(target, self.mesh.nodes)
        node = self.mesh.nodes.get(name)
        if node is not None and port in node.outputs():
            return node.outputs()[port] in self._channels
        return name in self.nodes
