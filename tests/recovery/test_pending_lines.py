"""Killed at any moment, a durable application has its settings take effect where an undisturbed run has them."""

import random
from dataclasses import replace

import pytest

from bench.kills import life
from exop import Platform
from exop.hooks import Plugins
from exop.runtime.durable.store import StoredApplication
from tests.recovery.pending_app import EDITS, LAST, POINTS, Offered, mesh
from tests.rig import eventually


def live(folder, seconds=None, failpoint=None, edit=None):
    """One life of the application, in which it gets this *edit*; tells whether it was killed."""
    arguments = [str(folder), *([] if edit is None else [edit])]
    return life("tests.recovery.pending_app", arguments, seconds, failpoint)[0]


def wanted():
    """The lines of an undisturbed run."""
    by = 0
    found = []
    for x in range(1, LAST + 1):
        by += x in POINTS
        found.append(f"{x} {by}")
    return found


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """The windows of an undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    live(folder)
    found = (folder / "pieces").read_text()
    numbers = [int(word) for word in found.split()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > LAST - 20
    return found


@pytest.mark.edges
def test_killed_at_random(tmp_path, pieces):
    """Each line takes effect at its item, once, however often the process dies around it."""
    chance = random.Random(3)
    assert live(tmp_path, failpoint="checkpoint-captured:2")  # on a fast machine, the random ones may come too late
    for _ in range(5):
        if not live(tmp_path, chance.uniform(0.3, 0.9)):
            break
    live(tmp_path)
    assert (tmp_path / "lines").read_text().splitlines() == wanted()
    assert (tmp_path / "pieces").read_text() == pieces


@pytest.mark.parametrize("name", ["checkpoint-captured", "checkpoint-writing", "checkpoint-committed"])
def test_killed_at_a_checkpoint(tmp_path, pieces, name):
    """A checkpoint is of before a line took effect or of behind it, with the mesh of then."""
    assert live(tmp_path, failpoint=f"{name}:3")
    live(tmp_path, failpoint=f"{name}:5")
    live(tmp_path)
    assert (tmp_path / "lines").read_text().splitlines() == wanted()
    assert (tmp_path / "pieces").read_text() == pieces


def test_killed_while_its_nodes_are_edited(tmp_path, pieces):
    """Replaced, rewired, suspended: the lines that took effect before the edit do so again at their items."""
    for edit in EDITS:  # it is stored, and the checkpoint with it is not yet taken; the first one is of the start
        assert live(tmp_path, failpoint="checkpoint-begin:2", edit=edit)
    live(tmp_path)
    assert (tmp_path / "lines").read_text().splitlines() == wanted()
    assert (tmp_path / "pieces").read_text() == pieces


def test_the_stored_mesh_follows(tmp_path):
    """What is stored has the new settings soon after they took effect; what has ended is not run again for that."""
    plugins = Plugins()
    plugins.discover()
    plugins.register("tests.recovery.pending_app", Offered())
    with Platform(state=tmp_path / "state", control=False, plugins=plugins) as platform:
        platform.apply(replace(mesh(tmp_path), durable=None))
        platform.wait("pending")

        def stored() -> StoredApplication:
            store = platform._applications.store
            assert store is not None
            return store.applications()[0]

        eventually(lambda: stored().revision == 1 + 2 * len(POINTS), "the last revision in the store")
        found = stored()
        assert "pending = " not in found.topology
        assert f"by = {len(POINTS)}" in found.topology
        eventually(lambda: not stored().active, "the note that it has ended")
