"""The moves between hosts in a change: of nodes with their state, contents of channels, and events in connectors.

`Moves` finds this out from the whole meshes before and after the change. In the cut, each host takes over what the
hosts of earlier waves have handed over, and hands over its own part: a node moves as its memento and the items at its
ports; the events of a connector that ends go, in order, to the place where the new way of its items begins. Nothing is
taken away before the commit, so that an aborted change leaves everything where it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from exop.errors import PlanError
from exop.model.meshes.fragments import Connector, Placement
from exop.model.meshes.nodes import DIRECT
from exop.model.slets.handover import check_movable
from exop.model.slets.ports import WINDOW, node_at
from exop.wiring.changes.plan import Plan
from exop.wiring.graph import ids


@dataclass(frozen=True)
class Rest:
    """The events of a connector that ends, or is used otherwise: they are delivered in another way.

    Attributes:
        source, target: The hosts of the `outbox` and of the `inbox`. Without a target, `outbox` is a channel, and what
            it keeps is delivered to ports that are added behind a connector which others have used.
        ports: The ports that get the events, if no `channel` does.
        partial: Whether items come to the channel by another way, too, so that the punctuations are not those of all.
    """

    source: str
    target: str
    outbox: str
    inbox: str
    ports: tuple[str, ...] = ()
    channel: str | None = None
    partial: bool = False


@dataclass
class Transfer:
    """The part of one host in the moves of a change.

    Attributes:
        departing: The nodes that move to another host, each with that host.
        arriving: The nodes that come from another host, each with that host.
        contents: The channels whose contents are handed over, each with the host that gets them.
        restored: The channels that get contents, each with the host that hands these over.
        sent: The outboxes, and channels with newcomers, whose events are handed over, with the hosts that get them.
        received: The inboxes whose progress is handed over, each with the hosts that get it.
        rests: The events that this host delivers.
        continued: The ports, also of relays, that were connected to their channel before, by another way.
        retracted: The channels here to which the output of a node now comes by a connector that others use already:
            the punctuations of its relay here, or, for its outbox, all, did not hold for the items of that node.
        wave: A host is cut after those from which it takes over.
    """

    departing: dict[str, str] = field(default_factory=dict)
    arriving: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    restored: dict[str, str] = field(default_factory=dict)
    sent: dict[str, list[str]] = field(default_factory=dict)
    received: dict[str, list[str]] = field(default_factory=dict)
    rests: list[Rest] = field(default_factory=list)
    continued: list[str] = field(default_factory=list, compare=False)
    retracted: dict[str, list[str]] = field(default_factory=dict, compare=False)
    wave: int = 0

    def leaves(self, endpoint: str) -> bool:
        """Whether what waits at an endpoint goes along, with a node or channel."""
        node, _ = node_at(endpoint, self.departing)
        return node in self.departing or ids.channel_of_endpoint(endpoint) in self.contents


@dataclass
class Moves:
    """The moves between hosts when one mesh replaces another.

    Attributes:
        hosts: The part of each host; hosts that have none are left out.
        renewed: The keys of the connectors that begin anew, with another epoch, since a port moves to or from another
            way of the same items, or has them from what the channel keeps: the events on their way are not for it.

    Raises:
        PlanError: a node cannot move, or two hosts would have to wait for each other.
        MementoError: the slet at the new host cannot take over the state.
    """

    before: Placement
    after: Placement
    hosts: defaultdict[str, Transfer] = field(init=False, default_factory=lambda: defaultdict(Transfer))
    renewed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._givers: defaultdict[str, set[str]] = defaultdict(set)  # the hosts from which each host takes over
        self._nodes()
        self._channels()
        self._windows()
        self._newcomers()
        for key, connector in self.before.connectors.items():
            if connector.channel in self.after.channels:
                self._connector(key, connector)
        self._waves()
        self._continued()

    def _nodes(self) -> None:
        """Find the nodes that move."""
        for name, node in self.before.mesh.nodes.items():
            now = self.after.mesh.nodes.get(name)
            if now is not None and (source := self.before.of(node)) != (target := self.after.of(now)):
                check_movable(node, now)
                self.hosts[source].departing[name] = target
                self.hosts[target].arriving[name] = source
                self._givers[target].add(source)

    def _channels(self) -> None:
        """Find the channels that move with their contents."""
        for name, source in self.before.channels.items():
            target = self.after.channels.get(name, source)
            if target != source and self.before.mesh.channels[name].kind != DIRECT:
                self.hosts[source].contents[name] = target
                self.hosts[target].restored[name] = source
                self._givers[target].add(source)

    def _windows(self) -> None:
        """Refuse to part a port from the windows that its channel has for it."""
        for name, channel in self.before.mesh.channels.items():
            if channel.kind != WINDOW or name not in self.after.mesh.channels:
                continue
            sides = (self.before, self.after)
            old, new = ({f"{node.name}.{port}": at.of(node) for node, port in at.mesh.consumers(name)} for at in sides)
            there, now = self.before.channels[name], self.after.channels[name]
            for end in old.keys() & new.keys():
                if (old[end] if old[end] != there else None) != (new[end] if new[end] != now else None):
                    to, app = new[end] if new[end] != old[end] else now, self.after.mesh.name
                    node, what = node_at(end, self.after.mesh.nodes)[0], f"windows in the channel {name!r}"
                    if new[end] == now:
                        raise PlanError(
                            f"{end} gets its {what} from another host, and cannot take over the open ones on {now}; "
                            f"remove {node}, and first what it alone feeds, by `exop remove {app}.NODE`; move the "
                            f"channel, and add them again"
                        )
                    raise PlanError(
                        f"{end} and its {what} would be on {new[end]} and {now}: the items in the open windows belong "
                        f"to this port; move both in one change, `exop move {app}.{name} {to} {node}`"
                    )

    def _newcomers(self) -> None:
        """Find the ports that are added behind a channel that replays, at a connector that goes on for other ports."""
        for key, connector in self.after.connectors.items():
            spec = self.before.mesh.channels.get(name := connector.channel)
            kind = None if spec is None or connector.inward else self.before.kinds.get(spec.kind)
            if spec is None or kind is None or not spec.settings.get("replay", kind.replaying):
                continue
            known, now = self.before.mesh.consumers(name), self.after.ports(connector)
            had, goes_on = {f"{node.name}.{port}" for node, port in known}, self.before.connectors.get(key) == connector
            # A group that shares the partitions receives each item once, and has received these.
            groups = {node.group for node, _ in known if node.group and kind.partitions_of(spec)}
            fresh = ((end, *now[end]) for end in sorted(now.keys() - had))
            added = [end for end, node, port in fresh if not (node.group in groups or node.slet.ports[port].pulled)]
            if added and (goes_on or had & now.keys()):  # the relay of a new connector gets what the channel keeps
                self.renewed |= {key} if goes_on else set()
                self._deliver(connector.target, Rest(self.before.channels[name], "", name, "", tuple(added)))

    def _connector(self, key: str, connector: Connector) -> None:
        """Find out which events of a connector are delivered in another way."""
        there = self.before.ports(connector)
        if self.after.connectors.get(key) == connector:
            now, meshes = self.after.ports(connector), (self.before.mesh, self.after.mesh)
            ends = [(mesh.producers if connector.inward else mesh.consumers)(connector.channel) for mesh in meshes]
            # Those that are connected to the channel before and after, on any host.
            stay = set.intersection(*({f"{node.name}.{port}" for node, port in one} for one in ends))
            left, joined = stay & (there.keys() - now.keys()), stay & (now.keys() - there.keys())
            if connector.inward and joined:
                self.hosts[connector.source].retracted[connector.outbox] = []
                relays = self.hosts[connector.target].retracted.setdefault(connector.channel, [])
                relays.append(f"{connector.relay[0]}.out")
            if key not in self.renewed and not (left if connector.inward else joined):
                self._redirect(connector, left)
                return
            self.renewed.add(key)
        if connector.inward:
            ways = {self.before.of(node) for node, _ in self.before.mesh.producers(connector.channel)}
            to = Rest(*connector.halves, channel=connector.channel, partial=len(ways) > 1)
            self._deliver(self.after.channels[connector.channel], to)
        else:
            self._redirect(connector, there)

    def _continued(self) -> None:
        """Find the ports that were connected to a channel before, where the streams are connected anew."""
        others = [(one, one.source if one.inward else one.target) for one in self.after.connectors.values()]
        relays = {(one.inward, one.channel, host): one.relay[0] for one, host in others}
        for name in self.before.mesh.channels.keys() & self.after.mesh.channels.keys():
            was, there = self.before.channels[name], self.after.channels[name]
            ends = {(node.name, port): (self.before.of(node), was) for node, port in self.before.mesh.consumers(name)}
            for node, port in self.after.mesh.consumers(name):
                host = self.after.of(node)
                if ends.get((node.name, port), (host, there)) != (host, there):
                    self.hosts[host].continued.append(f"{node.name}.{port}")
                    if (False, name, host) in relays:
                        self.hosts[there].continued.append(f"{relays[False, name, host]}.item")
            made = {(node.name, port): (self.before.of(node), was) for node, port in self.before.mesh.producers(name)}
            makers = self.after.mesh.producers(name)
            for host in {self.after.of(node) for node, _ in makers}:  # a relay stands for all of its host
                ways = [(node.name, port) for node, port in makers if self.after.of(node) == host]
                if made.keys() >= {*ways} and any(made[way] != (host, there) for way in ways):
                    ways = [(relays[True, name, host], "out")] if (True, name, host) in relays else ways
                    self.hosts[there].continued += [f"{node}.{port}" for node, port in ways]

    def _redirect(self, connector: Connector, ends: Iterable[str]) -> None:
        """Deliver the events of an outward connector directly to these of its ports, where they are afterwards."""
        hosts: defaultdict[str, list[str]] = defaultdict(list)
        for end in ends:
            node, port = self.before.ports(connector)[end]
            if (now := self.after.mesh.nodes.get(node.name)) is not None and port in now.ports:
                hosts[self.after.of(now)].append(end)
        for host, ports in hosts.items():
            self._deliver(host, Rest(*connector.halves, tuple(ports)))

    def _deliver(self, host: str, rest: Rest) -> None:
        self.hosts[host].rests.append(rest)
        for kind, there, name in (("sent", rest.source, rest.outbox), ("received", rest.target, rest.inbox)):
            if there not in ("", host):
                getattr(self.hosts[there], kind).setdefault(name, []).append(host)
                self._givers[host].add(there)

    def _waves(self) -> None:
        """Number the wave of each host: later than those from which it takes over."""
        try:
            for host in TopologicalSorter(self._givers).static_order():
                self.hosts[host].wave = max((self.hosts[one].wave + 1 for one in self._givers.get(host, ())), default=0)
        except CycleError as problem:
            raise PlanError(
                f"{' and '.join(sorted(set(problem.args[1])))} would both hand over to the other, and each would wait "
                f"for the other; make two changes, one for each direction"
            ) from None


def check_trying(plan: Plan, moves: Moves, home: str) -> None:
    """Raise `PlanError` for trials and standbys that are not possible over hosts: see the texts."""
    if plan.shadow is None and plan.keep is None:
        return
    for one in moves.hosts.values():
        for name, target in one.departing.items():
            node, after = plan.before.node(name), plan.after.node(name)
            if node.slet.own_driver or after.slet.own_driver:
                raise PlanError(f"{name}: {node.slet.name} drives itself: move it to {target} without trial or standby")
            if node.pending or after.pending:
                raise PlanError(
                    f"{name} has settings that are to change at a point in the stream: move it to {target} without a "
                    f"trial or standby, or cancel them first (exop configure {plan.after.name}.{name} --cancel)"
                )
    if plan.shadow is not None and plan.shadow.compare is not None:
        for step in plan.succeeded:
            if step.before is not None and (host := moves.before.of(step.before)) != home:
                raise PlanError(
                    f"{step.node} runs on {host}, and a comparison is code, which does not travel: leave out compare=…"
                )
