"""Full queues behind connectors: whatever parks their drivers, again and again, they do not grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Batch, slet
from exop.runtime.channels.queue import Buffered
from tests.change.tools import Position
from tests.hosts.moving import APP, Hosts, hosts
from tests.rig import eventually
from tests.wiring.graph.test_waits import leaking

#: The capacity of the queue and of its connector, and the number of items in a batch, which is more than that.
ROOM, LOT = 8, 20


@slet
def numbers(position: Position) -> Iterator[int]:
    """Emit 1, 2, 3, …"""
    while True:
        position.number += 1
        yield position.number


@slet
def lots(position: Position) -> Iterator[Batch[int]]:
    """Emit the same in batches."""
    while True:
        first, position.number = position.number + 1, position.number + LOT
        yield Batch(range(first, position.number + 1))


def depths(there: Hosts) -> dict[str, int]:
    """The number of items in each queue, and in each half of a connector, on all hosts."""
    found = {}
    for name, one in there.platforms.items():
        deployment = one.deployment(APP)
        channels = {**deployment.channels, **deployment.inserted}.items()
        found |= {f"{key} on {name}": queue.depth for key, queue in channels if isinstance(queue, Buffered)}
    return found


def crowded(source: Any, size: int, folder: Path, rounds: int) -> list[str]:
    """Suspend the sink of a stream, take checkpoints and replace the source; return the queues that have grown."""
    with hosts("h1", "h2", slets=(numbers, lots), state=folder) as there:
        app = Application(APP)
        app.durable(every=3600.0)
        queue = app.channel("queue", "queue", capacity=ROOM, connector={"capacity": ROOM})
        app.add("source", source, out=queue)
        app.on("h2").add("sink", there.sink, x=queue)
        there.home.apply(app.build())
        there.apply(lambda mesh: mesh.suspend("sink"))
        eventually(lambda: min(depths(there).values()) >= ROOM, "full queues")
        # Each driver has one item too many, at the most.
        limit, found = max(ROOM, size) + size, list[str]()
        for number in range(rounds):
            if number % 2:
                there.home.checkpoint(APP)
            else:
                there.apply(lambda mesh: mesh.replace("source", source))
            if found := [f"{name}: {depth} of {limit}" for name, depth in depths(there).items() if depth > limit]:
                break
        there.home.remove(APP)
    return found


@pytest.mark.parametrize(("source", "size"), [(numbers, 1), (lots, LOT)])
def test_a_full_queue_does_not_grow_beside_checkpoints_and_changes(tmp_path: Path, source: Any, size: int):
    """Neither the queue nor either half of its connector, for items and for batches."""
    assert not crowded(source, size, tmp_path, rounds=8)


def test_a_planted_leak_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The outbox gets one item more in each change."""
    leaking(monkeypatch)
    assert "queue.to.h2 on h1" in str(crowded(numbers, 1, tmp_path, rounds=100))
