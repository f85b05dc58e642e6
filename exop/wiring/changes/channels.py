"""Channels in a change: new settings while they run, windows without punctuations, and the preview of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TypeAlias

from exop.errors import PlanError, told
from exop.logs import logger
from exop.model.meshes.checks import check, check_durable, parts
from exop.model.meshes.diff import Difference, difference
from exop.model.meshes.entries import touched
from exop.model.meshes.fragments import REMOTE, awaited, comes, punctuated, time_field
from exop.model.meshes.mesh import Mesh
from exop.model.reached import reached
from exop.runtime.channels.base import Channel, channel_settings
from exop.runtime.channels.window import WindowChannel, timed_by
from exop.runtime.component import Component
from exop.runtime.component_manager import make_channel
from exop.runtime.deployment import Deployment
from exop.safe_repr import add_note
from exop.wiring.graph.execution_plan import plan_execution
from exop.wiring.graph.region import Region
from exop.wiring.graph.wiring_graph import Edge, WiringGraph

Undo: TypeAlias = Callable[[], object]


def undo_all(steps: list[Undo], error: BaseException) -> None:
    """Undo in reverse; a failure is noted on *error*, and the other steps are still undone."""
    while steps:
        try:
            steps.pop()()
        except Exception as problem:  # noqa: BLE001 (a slet that does not close, or anything else)
            add_note(error, f"and while it was undone: {told(problem)}")


def restoring(changed: object, *names: str) -> list[Undo]:
    """Return the undo that gives attributes of an object the values that they have now."""
    return [partial(setattr, changed, name, getattr(changed, name)) for name in names]


def turned(before: Mesh, after: Mesh, changes: Difference) -> set[str]:
    """Return the channels that carry another stream from now on: a connector that turns round keeps its name."""
    begun = {
        new.name for old, new in changes.channels_changed if old.settings.get("epoch") != new.settings.get("epoch")
    }
    ends = {name: [{node.name for node, _ in mesh.producers(name)} for mesh in (before, after)] for name in begun}
    return {name for name, (old, new) in ends.items() if old.isdisjoint(new)}


def check_channels(changes: Difference, kinds: Mapping[str, type[Channel]]) -> None:
    """Refuse settings that a channel cannot take while it runs, now or when a conditional update takes effect."""
    for old, channel in (*((None, one) for one in changes.channels_added), *changes.channels_changed):
        name = channel.name
        changed = old is not None and (dict(old.settings) != dict(channel.settings) or channel.close_windows)
        if not (changed or channel.pending):
            continue
        if not kinds[channel.kind].reconfigurable:
            able = ", ".join(sorted(name for name, one in kinds.items() if one.reconfigurable and name not in REMOTE))
            raise PlanError(
                f"the channel {name} ({channel.kind}) keeps its settings while it runs (the kinds that take others: "
                f"{able or 'none'}); add a new channel and rewire to it"
            )
        live, settings = make_channel(kinds, replace(old or channel, pending=())).live, dict(channel.settings)
        for more in ({}, *(update.settings for update in channel.pending)):
            settings |= more
            if make_channel(kinds, replace(channel, settings=settings)).live is not live:
                raise PlanError(
                    f"the channel {name} hands out its own window where its slets evict, and copies elsewhere: that "
                    f"cannot change while it runs; add a new channel and rewire to it"
                )


def unpunctuated(graph: WiringGraph, channel: str) -> tuple[list[str], Collection[str]]:
    """Return the producers (`node.port`) from which no punctuations can come, and the channels on which that depends.

    Windows by time send punctuations of their own.
    """

    def follows(name: str) -> bool:
        if (kind := graph.channels[name]).asked.type is not None:  # the items come from another host
            return kind.asked.type.punctuation
        return name != channel and isinstance(kind, WindowChannel) and timed_by(kind) is not None

    @cache
    def feed(name: str) -> dict[str, list[str] | None]:
        """The producers of a channel, each with the inputs for which it waits."""
        return {} if follows(name) else {edge.name: _awaited(graph, edge) for edge in graph.producers[name]}

    names = reached([channel], lambda name: (one for ends in feed(name).values() for one in ends or ()))
    feeds = {name: feed(name) for name in names}
    found = punctuated({name: [*ends.values()] for name, ends in reversed(feeds.items())}, {*filter(follows, feeds)})
    return [producer for producer, ends in feeds[channel].items() if not comes(ends, found)], feeds.keys()


def _awaited(graph: WiringGraph, edge: Edge) -> list[str] | None:
    inputs = graph.nodes[edge.node].inputs
    ends = [(name, into.port.pulled, graph.channels[name].pull_mode != "take") for name, into in inputs]
    return awaited(edge.component.spec, edge.port.name, ends)


def tell_unpunctuated(deployment: Deployment, region: Region) -> None:
    """Let windows by time follow the items of producers that send no punctuations, with a warning.

    This covers only windows that depend on a channel in the region of a change.
    """
    before, after, index = region.before.graph, region.after.graph, deployment.windows
    vertices = (one for graph in (before, after) for one in map(graph.nodes.get, region.nodes) if one is not None)
    changed = {*region.channels, *(name for vertex in vertices for name, _ in vertex.outputs)}
    for name in sorted({window for one in changed for window in (one, *index.get(one, ()))}):
        if not isinstance(channel := after.channels.get(name) or before.channels.get(name), WindowChannel):
            continue
        for one in channel.upstream:
            index[one].discard(name)
            if not index[one]:
                del index[one]
        lacking, upstream = unpunctuated(after, name) if name in after.channels else ((), ())
        channel.unpunctuated, channel.upstream = frozenset(lacking), frozenset(upstream)
        for one in channel.upstream:
            index.setdefault(one, set()).add(name)
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
    return timed_by(channel) or time_field(channel.asked)


def _lack(channel: WindowChannel, producers: Iterable[str]) -> str:
    return (
        f"the window {channel.name!r} is by time, and no punctuations come from {', '.join(sorted(producers))}: it "
        f"closes by the times of its items, as behind a watermark without delay; put app.add(NAME, 'stock:watermark', "
        f"item=…, time={_timed(channel)!r}, delay=…) after each source: a later release will refuse it without"
    )


def settle_channels(deployment: Deployment, mesh: Mesh, changes: Difference, undo: list[Undo]) -> None:
    """Give the channels that stay their new settings, before they are bound; close windows if the change says so."""
    closing = {new.name for _, new in changes.channels_changed if new.close_windows}
    for name in dict.fromkeys([*touched(deployment.mesh.channels, mesh.channels), *closing]):
        spec, channel = mesh.channels[name], deployment.channels[name]
        undo += restoring(channel, "asked")
        if dict(channel.asked.settings) != dict(spec.settings) or name in closing:
            undo.append(channel.reconfigure(channel_settings(type(channel), spec), close=name in closing))
        channel.asked = spec


def preview(mesh: Mesh, kinds: Mapping[str, type[Channel]]) -> tuple[dict[str, str], list[str]]:
    """Check a mesh and return the queues that the wiring would insert, as reasons by id, and warnings."""
    check(mesh, kinds)
    check_durable(mesh, has_state=True)
    check_channels(difference(None, mesh), kinds)
    graphs = [unopened_graph(part, kinds) for part in parts(mesh, kinds)]
    inserted = {place: reason for graph in graphs for place, reason in inserted_queues(graph).items()}
    return inserted, [warning for graph in graphs for warning in lacking(graph)]


def unopened_graph(mesh: Mesh, kinds: Mapping[str, type[Channel]]) -> WiringGraph:
    """Return the wiring graph of a mesh that was checked; its components are neither opened nor registered."""
    placed = {name: (Component(name, mesh.name, node, lambda _: None), node.ports) for name, node in mesh.nodes.items()}
    return WiringGraph().patched(placed, [make_channel(kinds, spec) for spec in mesh.channels.values()])


def inserted_queues(graph: WiringGraph) -> dict[str, str]:
    """Return the queues that the wiring would insert, as reasons by id."""
    inserted = dict(plan_execution(graph).inserted)
    for name, edge in graph.fed:
        queue, takes = graph.queue_before(name, edge), graph.channels[name].pull_mode == "take"
        if edge.port.pulled and takes and queue != name:
            inserted.setdefault(queue, "its consumer pulls")
    return inserted
