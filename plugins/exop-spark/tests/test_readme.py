"""The README says what is so."""

import re
from dataclasses import fields
from pathlib import Path

from exop_spark.slets.slet import SparkSlet

from exop.engine.columns import schema_of
from exop.model.meshes.mesh import Mesh
from exop.model.slets.slet import spec_of
from exop.runtime.catalog import known_slets

README = (Path(__file__).parents[1] / "README.md").read_text()


def snippet(language: str) -> str:
    """The first snippet in a language."""
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_first_examples_make_slets():
    """They run as they stand."""
    names: dict = {"__name__": "readme"}
    for text in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(text, names)
        if "query(" in text:
            assert [port.name for port in spec_of(names["means"]).inputs] == ["readings"]
    assert names["sensors"].output("alarms").name == "alarms"
    assert names["pipeline"].nodes() == ["means"]


def test_the_complete_example_prints_what_it_says(spark, capsys):
    """It runs as it stands, behind the examples before it."""
    names: dict = {"__name__": "readme"}
    for text in re.findall(r"```python\n(.*?)```", README, re.DOTALL)[:3]:
        exec(text, names)
    assert capsys.readouterr().out == re.findall(r"```text\n(.*?)```", README, re.DOTALL)[0]


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
