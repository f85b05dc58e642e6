"""The order of a driver's work that comes from several drivers: work farther downstream entered first."""

from __future__ import annotations

from collections.abc import Iterable

from exop.runtime.unwind import Work
from exop.wiring.circuit import Circuit
from exop.wiring.layout import Layout
from exop.wiring.places import before_key, channel_at, edge_key, inside, port_at


class Downstream:
    """How far it is from a place to the end of what is called directly from there; queues are such ends.

    Work at a place comes before work at any place from which items get there: along direct channels those are younger.
    Work that its driver gathered on its way back to the safe point is in this order already.
    """

    def __init__(self, circuit: Circuit, layout: Layout) -> None:
        self._circuit, self._inserted = circuit, layout.inserted
        self._nodes = {component.node.name: component for component in circuit.components()}
        self._known: dict[str, int] = {}

    def sorted(self, work: Iterable[Work]) -> list[Work]:
        """The same work, what is farthest downstream first; what has no place stays behind what it followed."""
        keyed: list[tuple[int, Work]] = []
        for one in work:
            place = one.entry.place
            keyed.append((self._depth(place) if place else (keyed[-1][0] if keyed else 0), one))
        return [one for _, one in sorted(keyed, key=lambda pair: pair[0])]

    def _depth(self, place: str) -> int:
        if place not in self._known:
            self._known[place] = 0  # places that are unknown, and queues, lead no further
            self._known[place] = max((1 + self._depth(one) for one in self._behind(place)), default=0)
        return self._known[place]

    def _behind(self, place: str) -> list[str]:
        """The places that are called directly from a place."""
        if place.startswith("queue "):
            return []
        if channel := channel_at(place):
            return self._behind_channel(place, channel)
        node, _, port = place.rpartition(".")
        component = self._nodes.get(node)
        if component is None:
            return []
        leaving = next((name for output, name in self._circuit.outputs(component) if output.name == port), None)
        if leaving is not None:
            return [f"channel {leaving}"]
        if component.spec.own_driver or component.spec.iterated:
            return []
        return [f"channel {channel}" for _, channel in self._circuit.outputs(component)]

    def _behind_channel(self, place: str, name: str) -> list[str]:
        channel = self._circuit.channels.get(name)
        if channel is None or channel.buffered:
            return []
        if place.startswith("channel "):
            if before_key(name) in self._inserted:
                return []
            if channel.serial:
                return [inside(name)]
        joins = [one for one in self._circuit.consumers[name] if not one.port.pulled]
        ports = [one.name for one in joins if edge_key(name, one) not in self._inserted]
        if place.startswith("into "):  # a window is one step nearer to its port than the way into all of them
            return [f"window {name} | {port}" for port in ports]
        return [port for port in ports if port_at(place) in ("", port)]
