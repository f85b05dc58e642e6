"""Nodes that move to another host: what leaves with a component, how its successor continues with it, and the cost.

The source hands over as plain data what a checkpoint would contain of the node, and the items that wait at its ports.
The successor adopts the state before its ports are bound; the items follow at the commit, in front of all later ones.
The cost is estimated from samples: the bytes that travel, and how long the stream stops.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, TypedDict

from exop.model.items import EndOfStream
from exop.model.meshes.mesh import Node
from exop.model.slets.memento import Memento
from exop.model.slets.stored_memento import declared_by, dump_memento, load_memento
from exop.model.values.depth import AROUND, DEPTH
from exop.model.values.encoding import Part, decode, encode, fields_of
from exop.model.values.pieces import LARGE, dicts_of, is_immutable, large_parts
from exop.runtime.channels.queue import Waiting
from exop.runtime.component import Component
from exop.runtime.dataflow.entry import Call, InFlight, Method, method_for, placeholder
from exop.runtime.dataflow.inlets import Inlets
from exop.runtime.deployment import Deployment
from exop.runtime.durable.snapshot import capture_node, restore_node
from exop.runtime.pause import PATIENCE
from exop.wiring.changes.successors import between_items
from exop.wiring.graph import ids

#: What waits in queues in front of the ports of a component, as `Buffered.capture` returns it.
Queued: TypeAlias = Mapping[str, list[Waiting]]

#: Seconds of the cut of a move without state, and for each key of a dict that is compared there and put together.
_CUT, _PER_KEY = 0.02, 0.4e-6
#: Elements of a collection that are encoded as a sample.
_SAMPLE: Final = 1000


def queued(deployment: Deployment, component: Component) -> Queued:
    """Return what waits in the queues that were inserted in front of the ports of a component; before the cut.

    A port that pulls knows its earlier queues itself.
    """
    ends = {f"{component.node.name}.{port.name}": port.name for port in component.spec.inputs}
    earlier = {id(queue) for port in component.pulled.values() for queue in port.earlier}
    found: dict[str, list[Waiting]] = {}
    for name, queue in deployment.inserted.items():  # a queue stays, empty, if its port is connected elsewhere
        if (port := ends.get(name.partition(" -> ")[2])) is not None and id(queue) not in earlier:
            found.setdefault(port, []).extend(queue.capture()["entries"])
    return found


def departed(
    deployment: Deployment, component: Component, waits: Queued, timeout: float = PATIENCE
) -> tuple[Memento | None, bytes]:
    """Return the memento of a component that leaves, and all else that goes with it, encoded.

    The drivers are parked, and the slet has emitted its buffered output. Nothing is taken away, so that the component
    can go on if the change is aborted. *waits* is the result of `queued`.

    Raises:
        NotStorable: an item that goes with it cannot be encoded.
        ComponentFailed: an engine cannot pack its state.
    """
    held: dict[str, Any] = {
        **capture_node(component, {}),
        "waiting": [
            (port, work.method, work.payload)
            for port in component.spec.ports
            for work in deployment.inlets.at(f"{component.node.name}.{port}")
        ],
    }
    if (tie := component.tie) is not None:  # an engine has come to rest; some input is not in it, such as an end
        held["unprocessed"] = [
            (port.name, method_for(payload, whole=port.type.form != "item"), payload)
            for port in component.spec.inputs
            for _, payload in tie.events(port.name)
        ]
        held["inside"] = component.user.run(component, "packing its state", component.instance.pack, timeout)
    for port, entries in waits.items():
        if port in component.pulled:
            held["pulled"][port]["earlier"] += entries
        else:
            held["waiting"] += [(port, method, payload) for method, payload in entries]
    return component.state, encode(held, levels=DEPTH + AROUND)


def left_at(inlets: Inlets, channels: Collection[str]) -> dict[str, list[tuple[str, Method, Any]]]:
    """Return what waits at the endpoints of each of these channels, in order, with the endpoint and the method.

    The drivers are parked. Calls are left out: they send closed windows, which the next item sends.
    """
    found: dict[str, list[tuple[str, Method, Any]]] = {name: [] for name in channels}
    for _, work in inlets.waiting():
        endpoint = work.entry.endpoint
        if (name := ids.channel_of_endpoint(endpoint)) in found and not isinstance(work, Call):
            found[name].append((endpoint, work.method, work.payload))
    return found


def landing(entries: Collection[str], waiting: Iterable[tuple[str, Method, Any]]) -> Iterator[InFlight]:
    """Yield what has waited at the endpoints of a channel that has come here, for those that it has here.

    *entries* are the endpoints here, and *waiting* is the result of `left_at` for this channel.
    """
    for endpoint, method, payload in waiting:
        if endpoint in entries:
            yield InFlight(placeholder(endpoint), method, payload)
        elif not endpoint.startswith("window "):  # the port of a window may have been removed
            yield InFlight(placeholder(f"channel {ids.channel_of_endpoint(endpoint)}"), method, payload)


def dumped(memento: Memento | None, place: str, parts: Mapping[int, Part] | None = None) -> bytes:
    """Encode a memento that goes to another host; `b""` without one. For *parts* see `encode`."""
    return b"" if memento is None else dump_memento(memento, place, parts)


def adopt_foreign(component: Component, node: Node, memento: bytes, place: str, parts: Mapping[int, Any]) -> None:
    """Let a component continue with a memento from another host, unless its *node* begins with another state.

    It may name only the classes that the slet declares. For *place* and *parts* see `load_memento`, also for errors.
    """
    if (kind := node.slet.memento) is not None and memento and not node.lose_state and node.memento is None:
        component.adopt(load_memento(memento, kind, place, declared=declared_by(kind), parts=parts))


@dataclass
class Arrival:
    """A node that has come from another host: its stored memento, and the encoded rest.

    `parts` has the parts of the state that have come before, by number.
    """

    node: Node
    memento: bytes
    rest: bytes
    parts: Mapping[int, Any] = field(default_factory=dict, repr=False)
    _held: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def adopt(self, component: Component, place: str, timeout: float = PATIENCE) -> None:
        """Let the successor continue with the state and the progress; its ports are not bound yet.

        Raises:
            StoredStateError: the state cannot be read as the memento of this slet.
            ComponentFailed: code of the slet that sets it did not return in time.
        """
        adopt_foreign(component, self.node, self.memento, place, self.parts)
        self._held = decode(self.rest, levels=DEPTH + AROUND)
        restore_node(component, self._held)
        for port, _, payload in self._held.get("unprocessed", ()):
            if isinstance(payload, EndOfStream):
                component.ended.discard(port)
                component.merge.take_back_end(port)
        if component.tie is not None and component.tie.inherits is not None:
            inherit = partial(component.instance.inherit, self._held["inside"])
            component.user.run(component, "taking over the state", inherit, timeout)

    def connect(self, component: Component) -> None:
        """Give the pulled ports the items that had been taken there, in front of all others; nothing can fail."""
        for port, taken in self._held["pulled"].items():
            if port in component.pulled:
                component.pulled[port].restore(taken)

    def work(self, component: Component, side: Literal["inputs", "outputs"]) -> list[InFlight]:
        """Return the items that have waited at the ports of one side."""
        name, to = component.node.name, component.to
        held: list[tuple[str, Method, Any]] = [*self._held.get("unprocessed", ()), *self._held["waiting"]]
        ports = {port.name for port in getattr(component.spec, side)}
        return [InFlight(to.get(port) or placeholder(f"{name}.{port}"), *work) for port, *work in held if port in ports]


class MoveCost(TypedDict):
    """The estimated cost of a move.

    `ahead` and `cut` are the bytes that travel while the stream runs, and in the cut; `seconds` is the stop of the
    stream, and `whole` the largest field of the memento that travels in the cut, if it is large.
    """

    ahead: int
    cut: int
    seconds: float
    whole: str


def move_cost(deployment: Deployment, node: str, timeout: float = PATIENCE) -> MoveCost:
    """Estimate what a move of a node costs; raises as `capture`."""
    with deployment.changing:
        deployment.mesh.node(node).slet.memento_class(f"{deployment.name}.{node}")
        component = deployment.components[node]
        if (state := component.state) is None:  # a slet with a memento always has one
            raise AssertionError(f"{component.id} has no memento")
        columns = [*large_parts(state)]
        return between_items(deployment, component, timeout, lambda: estimated(state, columns))


def estimated(state: Memento, columns: list[Any]) -> MoveCost:
    """Estimate what a move costs of a state, the *columns* of which are copied ahead."""
    parts, dicts = {id(one): Part((0,)) for one in columns}, dicts_of(state)
    ahead = sum(one.nbytes for one in {id(one): one for one in columns}.values())
    in_pieces, seconds, whole = 0.0, _CUT, dict[str, float]()
    for name, value in fields_of(state).items():
        some, times = _sample(value)
        begun = time.perf_counter()
        size = len(encode(some, parts=parts)) * times
        took = (time.perf_counter() - begun) * times
        if name in dicts:
            in_pieces += size
            seconds += _PER_KEY * len(value) + (0 if is_immutable([*some.values()]) else took)
        else:
            whole[name] = size
            seconds += 2 * took  # it is encoded here, and decoded there
    if ahead + in_pieces < LARGE:
        whole["dicts"] = in_pieces
    else:
        ahead += int(in_pieces)
    cut = int(sum(whole.values()))  # a network of 100 MB a second is assumed
    largest = max((name for name, size in whole.items() if size >= LARGE), key=whole.__getitem__, default="")
    return MoveCost(ahead=ahead, cut=cut, seconds=seconds + cut / 100e6, whole=largest)


def _sample(value: Any) -> tuple[Any, float]:
    """Return the first elements of a large collection, and how many times as many there are; or all of a value."""
    if (type(value) not in (list, tuple, set, deque) and not isinstance(value, dict)) or len(value) <= _SAMPLE:
        return value, 1
    some = dict(islice(value.items(), _SAMPLE)) if isinstance(value, dict) else [*islice(value, _SAMPLE)]
    return some, len(value) / _SAMPLE
