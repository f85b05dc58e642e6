"""The campaign of random moves: its short form, and what its slets notice."""

from __future__ import annotations

import random
from contextlib import ExitStack

from bench.cases import failures
from bench.moves import CHECKS, HOSTS, Moves, changed, consumers, placed, started
from bench.moves_peer import NOTED, Seen


def test_two_changes_of_an_application() -> None:
    """All consumers have all numbers at the end."""
    with ExitStack() as running:
        moves = Moves(started(running, processes=False), 2)
        assert failures(moves.case, 1) == []
        assert moves.made + moves.refused.total() == 2


def test_what_does_not_follow_is_noted() -> None:
    """A gap and a number that comes late; not more than a few."""
    seen = Seen()
    for number in (1, 2, 4, 3, *range(10, 100, 2)):
        seen.take(number)
    assert seen.faults[:3] == ["4 after 2", "3 after 4", "10 after 3"]
    assert len(seen.faults) == NOTED


def test_anything_moves_anywhere() -> None:
    """After enough changes, every node has been on every host; a window stays with its slet."""
    chance, found = random.Random(1), dict[str, set[str]]()
    mesh = consumers(chance)
    for _ in range(400):
        mesh, what, moves = changed(mesh, chance)
        assert moves == sum(">" in one for one in what)
        for name, node in mesh.nodes.items():
            found.setdefault(name, set()).add(node.host or HOSTS[0])
        assert mesh.node("spread").host == mesh.channels["windows"].host
    assert all(hosts == {*HOSTS} for hosts in found.values())
    assert found.keys() >= CHECKS.keys()
    assert placed(mesh).count(":") == len(HOSTS)
