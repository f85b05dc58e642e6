"""The README says what is so."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from exop_spark.slets.slet import SparkSlet

from exop.engine.columns import schema_of
from exop.model.meshes.mesh import Mesh
from exop.runtime.catalog import known_slets

README = (Path(__file__).parents[1] / "README.md").read_text()


def snippet(language: str) -> str:
    """The first snippet in a language."""
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.edges
def test_the_examples_print_what_they_say(spark, capsys):
    """They run as they stand, one after the other."""
    names: dict = {"__name__": "readme"}
    printed = ""
    for language, text in re.findall(r"```(python|text)\n(.*?)```", README, re.DOTALL):
        if language == "text":
            assert printed == text
        else:
            exec(text, names)
            printed = capsys.readouterr().out
    assert names["sensors"].output("alarms").name == "alarms"
    assert names["pipeline"].nodes() == ["means"]


def test_the_topology_names_a_slet_that_is_there():
    """`spark:sql` with these settings is a node."""
    catalog = known_slets()
    mesh = Mesh.from_toml(snippet("toml"), catalog.slets)
    settings = mesh.nodes["top"].settings
    assert settings["mode"] == "update"
    assert schema_of(settings["columns"]).names == ["time", "sensor", "value"]


def test_every_setting_is_explained():
    """Each setting of a Spark slet is named."""
    for setting in fields(SparkSlet):
        assert setting.name == "tie" or f"`{setting.name}" in README, setting.name
