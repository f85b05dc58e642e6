"""Slets that a plugin registers get the name under which any platform resolves them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from exop.errors import MeshError
from exop.model.meshes.checks import resolved
from tests.model.sample_meshes import CATALOG, SLETS, line


def unregistered() -> object:
    """The mesh as an application builds it: its slets know of no plugin."""
    mesh = line()
    nodes = {
        name: dataclasses.replace(one, slet=dataclasses.replace(one.slet, plugin=None))
        for name, one in mesh.nodes.items()
    }
    return dataclasses.replace(mesh, nodes=nodes)


def test_the_registered_form_takes_the_place():
    """Code that a plugin offers is found by the function or class itself."""
    assert resolved(unregistered(), CATALOG, durable=True) == line()


def test_paths_are_absolute_where_the_mesh_is_kept(tmp_path, monkeypatch):
    """A platform with a state directory may start it again from another working directory."""
    monkeypatch.chdir(tmp_path)
    mesh = line().configure("source", path="in.csv")
    assert resolved(mesh, CATALOG).nodes["source"].settings["path"] == Path("in.csv")
    assert resolved(mesh, CATALOG, durable=True).nodes["source"].settings["path"] == tmp_path / "in.csv"
    assert resolved(line(), CATALOG, durable=True).nodes["source"].settings["path"] is None


def test_what_nobody_registers_runs_embedded_only():
    """Without a state directory slets of a script run; with one they are refused, with the cure."""
    known = {"demo:double": SLETS["double"]}
    mesh = resolved(unregistered(), known, durable=False)
    assert {name: one.slet.plugin for name, one in mesh.nodes.items()} == {
        "source": None,
        "middle": "demo",
        "sink": None,
    }
    with pytest.raises(MeshError) as caught:
        resolved(unregistered(), known, durable=True)
    assert "source: the slet 'numbers' of tests.model.sample_meshes is in no plugin" in str(caught.value)
    assert "@hookimpl register_slets()" in str(caught.value)
    assert "or run without a state directory" in str(caught.value)


def test_what_nobody_registers_does_not_travel():
    """Sent to another process the reason is another one, and so is the cure."""
    with pytest.raises(MeshError) as caught:
        resolved(unregistered(), {}, travels=True)
    assert "is in no plugin, and code does not travel by itself" in str(caught.value)
    assert "exop serve --load FOLDER" in str(caught.value)
    assert "state directory" not in str(caught.value)


def test_a_slet_that_has_its_name_keeps_it():
    """A mesh that was resolved once is not resolved again to another plugin of the same code."""
    others = {spec.of("other").identity: spec.of("other") for spec in SLETS.values()}
    assert resolved(line(), others, durable=True) == line()
