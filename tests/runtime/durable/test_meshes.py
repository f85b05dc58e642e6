"""Meshes are stored as the edits that lead to them: what is stored is the mesh, after any edits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from exop import Mesh
from exop.model.meshes.mesh import ChannelSpec
from exop.runtime.durable import store as module
from exop.runtime.durable.store import Store
from tests.model.sample_meshes import CATALOG, SLETS, line, meshes, node


@contextmanager
def directory() -> Iterator[Path]:
    """A place for a state directory."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "state"


def stored(place: Path) -> tuple[Mesh, int]:
    """The mesh in a state directory, and its revision; nothing in it may count as damaged."""
    with closing(Store(place)) as store:
        assert not store.database.damaged
        (found,) = store.applications()
        return Mesh.from_toml(found.topology, CATALOG), found.revision


def edited(mesh, data):
    """A mesh after a random edit."""
    name = data.draw(st.sampled_from(sorted(mesh.nodes))) if mesh.nodes else None
    ports = {"item": "fresh", "out": "more"}
    fresh = [ChannelSpec(channel, data.draw(st.sampled_from(["direct", "queue"]))) for channel in ports.values()]
    edits = [lambda: mesh.edited(durable=data.draw(st.none() | st.integers(1, 9)))]
    if "added" not in mesh.nodes and not {"fresh", "more"} & mesh.channels.keys():
        edits.append(lambda: mesh.add(node("added", "double", **ports), *fresh))
    if name is not None:
        edits += [
            lambda: mesh.remove(name),
            lambda: mesh.remove(name).edited({name: mesh.node(name)}, mesh.channels),  # at another place in the order
            lambda: mesh.suspend(name),
            lambda: mesh.replace(name, SLETS["Split"]) if set(mesh.node(name).ports) <= {"item", "out"} else mesh,
            lambda: mesh.rewire(name, **{port: ChannelSpec("other") for port in mesh.node(name).ports}),
        ]
    return data.draw(st.sampled_from(edits))()


@settings(max_examples=15, deadline=None)
@given(meshes(), st.data())
def test_after_any_edits_the_stored_mesh_is_the_one_that_runs(mesh, data):
    """Also in the order of its nodes and channels, and after a restart between two edits."""
    with directory() as place:
        mesh = mesh.at(1)
        with closing(Store(place)) as store:
            store.save(mesh, active=True)
        for _ in range(data.draw(st.integers(1, 3))):
            with closing(Store(place)) as store:
                for _ in range(data.draw(st.integers(0, 4))):
                    assert store.note(mesh) is None
                    mesh = edited(mesh, data).at(mesh.revision + 1)
                assert store.note(mesh) is None
            found, revision = stored(place)
            assert (found, revision) == (mesh.at(0), mesh.revision)
            assert (list(found.nodes), list(found.channels)) == (list(mesh.nodes), list(mesh.channels))


def test_an_edit_writes_what_it_changes(monkeypatch, tmp_path):
    """Of a mesh that was stored, the tables of the nodes and channels that an edit touches are written, and no more."""
    written, write = [], module.section_text
    monkeypatch.setattr(module, "section_text", lambda mesh, *key: written.append(key) or write(mesh, *key))
    mesh = line()
    with closing(Store(tmp_path / "state")) as store:
        store.save(mesh, active=True)
        assert len(written) == 6
        written.clear()
        store.note(mesh := mesh.replace("middle", SLETS["triple"]))
        assert written == [("nodes", "middle")]
        written.clear()
        store.note(mesh := mesh.rewire("sink", item="a"))
        assert written == [("nodes", "sink")]
        store.note(mesh.remove("sink"))
        assert written == [("nodes", "sink")]
