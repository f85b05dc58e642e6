"""An edit and pending updates: each item meets the same settings again when it is repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import slet
from exop.errors import MeshError
from exop.expressions import read_condition
from exop.model.meshes.conditional_updates import applied, node_names, still_pending
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import Node
from exop.model.slets.slet import spec_of


@slet
def numbered() -> Iterator[int]:
    """Emit numbers."""
    yield 1


@slet
def first(x: int, *, a: int = 0, b: int = 0, c: int = 0) -> None:
    """A slet with settings."""


@slet
def second(x: int, *, a: int = 0, b: int = 0, c: int = 0) -> None:
    """One with the same."""


@slet
def third(x: int, *, a: int = 0, b: int = 0) -> None:
    """One that lacks a setting."""


def processed(node: Node, items: range) -> tuple[Node, list[dict[str, Any]]]:
    """Return a node after these items, with the settings that each of them met."""
    met = []
    for x in items:
        while node.pending:
            update = node.pending[0]
            if not read_condition(update.when, node_names("n", node.slet)).item_function(node.settings)(x):
                break
            node = applied(node, update)
        met.append(dict(node.settings))
    return node, met


def armed(mesh: Mesh, chance: random.Random, points: list[int]) -> Mesh:
    """The mesh with one more pending update, at a later point."""
    point = points.pop(0)
    when = chance.choice((f"x >= {point}", f"x == {point}", f"x >= {point} and a == {chance.randrange(3)}"))
    names = chance.sample([name for name in "abc" if name in mesh.node("n").settings], chance.choice((1, 1, 2)))
    return mesh.configure("n", when=when, **{name: chance.randrange(3) for name in names})


def edited(mesh: Mesh, chance: random.Random, points: list[int]) -> tuple[str, Mesh]:
    """Some edit of the node, and its kind."""
    kinds = ["arm", "suspend", "replace", "configure", "cancel", "replace and set"]
    if not mesh.node("n").pending:  # else it could drop one that others wait for
        kinds.append("successor without")
    kind = chance.choice(kinds)
    value = chance.randrange(3)
    edits: dict[str, Callable[[], Mesh]] = {
        "arm": lambda: armed(mesh, chance, points),
        "suspend": lambda: mesh.suspend("n"),
        "replace": lambda: mesh.replace("n", chance.choice((first, second))),
        "configure": lambda: mesh.configure("n", **{chance.choice("ab"): value}),
        "cancel": lambda: mesh.configure("n"),
        "successor without": lambda: mesh.replace("n", third),
        "replace and set": lambda: mesh.replace("n", second, b=value),
    }
    return kind, edits[kind]()


def taken_apart(seed: int, merged: Callable[[Node, Node, Node], Node] = still_pending) -> None:
    """Edit a node while its updates take effect, and repeat the items since the checkpoint with the stored node."""
    chance = random.Random(seed)
    points = sorted(chance.sample(range(1, 100), 30))
    mesh = Mesh("m").add_slet("s", spec_of(numbered), {}, {}).add_slet("n", spec_of(first), {"x": "s"}, {})
    for _ in range(chance.randrange(1, 5)):
        mesh = armed(mesh, chance, points)
    stored, met, at = mesh.node("n"), [], 1
    untouched = True
    for _ in range(chance.randrange(1, 4)):
        until = at + chance.randrange(20)
        before, some = processed(mesh.node("n"), range(at, until))
        met, at = met + some, until
        points = [point for point in points if point >= at]
        kind, mesh = edited(mesh.edited({"n": before}), chance, points)
        untouched &= kind in ("arm", "suspend", "replace", "cancel") and before.slet.name != "third"
        stored = merged(stored, before, mesh.node("n"))
    again, repeated = processed(stored, range(1, at))
    assert (again.settings, again.pending, again.given) == (
        mesh.node("n").settings,
        mesh.node("n").pending,
        mesh.node("n").given,
    )
    if untouched:  # no edit has changed a setting: each item meets the same settings again
        assert repeated == met


@given(st.integers(0, 1 << 32))
def test_an_edited_node_repeats_its_items(seed):
    """From the checkpoint on, updates take effect at the same items, and lead to what the edits have left."""
    taken_apart(seed)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda stored, before, after: after,
        lambda stored, before, after: stored if stored.pending != before.pending else after,
        lambda stored, before, after: replace(after, pending=(*stored.pending, *after.pending)),
    ],
    ids=["it holds from the start", "the edit is forgotten", "settings stay as they became"],
)
def test_a_planted_mistake_is_found(mistake):
    """The check finds what a merge of an edit and the updates could do wrong."""

    def shows(seed: int) -> bool:
        try:
            taken_apart(seed, mistake)
        except (AssertionError, MeshError):
            return True
        return False

    assert any(map(shows, range(100)))
