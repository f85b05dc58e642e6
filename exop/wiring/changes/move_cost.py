"""The cost of a move to another host, estimated from samples: the bytes that travel, and how long the stream stops."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import Any, Final, TypedDict

from exop.model.slets.memento import Memento
from exop.model.values.encoding import Part, encode, fields_of
from exop.model.values.pieces import LARGE, dicts_of, is_immutable, large_parts
from exop.runtime.deployment import Deployment
from exop.runtime.pause import PATIENCE
from exop.wiring.changes.successors import between_items

#: Seconds of the cut of a move without state, and for each key of a dict that is compared there and put together.
_CUT, _PER_KEY = 0.02, 0.4e-6
#: Bytes per second that are assumed for the network.
_NETWORK: Final = 100e6
#: Elements of a collection that are encoded as a sample.
_SAMPLE: Final = 1000


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
    cut = int(sum(whole.values()))
    large = [name for name, size in whole.items() if size >= LARGE]
    largest = max(large, key=whole.__getitem__, default="")
    return MoveCost(ahead=ahead, cut=cut, seconds=seconds + cut / _NETWORK, whole=largest)


def _sample(value: Any) -> tuple[Any, float]:
    """Return the first elements of a large collection, and how many times as many there are; or all of a value."""
    if (type(value) not in (list, tuple, set, deque) and not isinstance(value, dict)) or len(value) <= _SAMPLE:
        return value, 1
    if isinstance(value, dict):
        return dict(islice(value.items(), _SAMPLE)), len(value) / _SAMPLE
    return [*islice(value, _SAMPLE)], len(value) / _SAMPLE
