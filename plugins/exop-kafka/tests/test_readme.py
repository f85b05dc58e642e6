"""The README says what is so."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from exop_kafka import ReadKafka, WriteKafka

from exop.model.meshes.mesh import Mesh
from exop.runtime.catalog import known_slets

README = (Path(__file__).parents[1] / "README.md").read_text()


def snippet(language: str) -> str:
    """The first snippet in a language."""
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_example_runs(capsys):
    """On the mock cluster, with the output that the page shows."""
    exec(compile(snippet("python"), "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == snippet("text")


def test_the_topology_names_a_kind_that_is_there():
    """`kafka` with these settings is a channel."""
    mesh = Mesh.from_toml('[application]\nname = "cars"\n\n' + snippet("toml"), known_slets().slets)
    assert mesh.channels["cars"].settings["partitions"] == 16


@pytest.mark.parametrize("kind", [ReadKafka, WriteKafka])
def test_every_setting_is_explained(kind):
    """Each setting is named."""
    for setting in fields(kind):
        assert setting.name == "offsets" or f"`{setting.name}`" in README, setting.name
