"""The campaign of random moves: its short form, and what its slets notice."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from bench.cases import failures
from bench.moves import CHECKS, HELD, HOSTS, Moves, changed, consumers, placed, started
from bench.moves_peer import NOTED, Seen
from exop.model.meshes.mesh import Mesh
from tests.hosts.test_any_ends import invented


@pytest.mark.edges
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


def test_an_end_that_is_invented_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a connector hands over is not looked at: the end overtakes what waits for the suspended slet."""

    def moved(mesh: Mesh, chance: random.Random) -> tuple[Mesh, list[str], int]:
        group, to = chance.choice((("first",), HELD, HELD, ("tells",))), chance.choice(HOSTS[:2])
        names = [one for one in group if ((mesh.nodes.get(one) or mesh.channels[one]).host or HOSTS[0]) != to]
        for one in names:
            mesh = mesh.move(one, to=to)
        return mesh, [f"{one}>{to}" for one in names], len(names)

    monkeypatch.setattr("bench.moves.changed", moved)
    monkeypatch.setattr("bench.moves.FIRST", 60)
    with ExitStack() as running:
        moves = Moves(started(running, processes=False), 4)
        invented(monkeypatch)
        with pytest.raises(AssertionError, match="behind the end"):
            moves.case(random.Random(16))
