"""The application builder."""

import sys
from pathlib import Path

import pytest

from apps import linear_road as package
from apps.linear_road import builder
from apps.linear_road.builder import linear_road, native_slets
from exop.errors import BuilderError, MeshError
from exop.model.slets.slet import spec_of


@pytest.fixture
def files(tmp_path):
    """A minute of traffic with one question of each kind, and its history."""
    rows = [
        (second, f"0,{second},{second % 30},50,0,1,0,{10 + second // 30},52800,-1,-1,-1,-1,-1,-1")
        for second in range(60)
    ]
    rows += [(9, "2,9,3,-1,-1,-1,-1,-1,-1,1,-1,-1,-1,-1,-1"), (9, "3,9,3,-1,0,-1,-1,-1,-1,2,-1,-1,-1,-1,4")]
    (tmp_path / "in.csv").write_text("".join(f"{text}\n" for _, text in sorted(rows)))
    (tmp_path / "history.csv").write_text("3,4,0,42\n")
    return {"input": tmp_path / "in.csv", "history": tmp_path / "history.csv", "output": tmp_path / "out.csv"}


def test_the_mesh_runs_on_the_platform(files):
    """Traffic in, answers out: every entry is told its toll, every question is answered."""
    report = linear_road(**files, pipeline="native", speed=1e6).run()
    kinds = [line[0] for line in files["output"].read_text().splitlines()]
    assert [kinds.count(kind) for kind in "0123"] == [60, 0, 1, 1]
    assert "3,9,9" in files["output"].read_text()
    assert report["nodes"]["traffic"]["metrics"]["own"]["rows"] == 62


def test_malformed_lines_are_kept_beside_the_output(files):
    """OUTPUT.rejects holds what was refused, and the run goes on."""
    files["input"].write_text("not a tuple\n" + files["input"].read_text())
    linear_road(**files, pipeline="native", speed=1e6).run()
    assert Path(f"{files['output']}.rejects").read_text() == "1\t15 fields expected, 1 found\tnot a tuple\n"


def test_until_ends_the_run(files):
    """Only what happened through that second is answered."""
    linear_road(**files, pipeline="native", speed=1e6, until=4).run()
    assert len(files["output"].read_text().splitlines()) == 5


def test_the_mesh_is_that_of_the_papers_figure(files, monkeypatch):
    """Every query is a slet of its own; the native pipeline does not load Spark."""
    monkeypatch.setitem(sys.modules, "apps.linear_road.spark", None)
    mesh = linear_road(**files, pipeline="native").build()
    assert set(mesh.nodes) == {
        *("traffic", "trips", "positions", "statistics", "accidents", "tolls", "entries", "toll_notification"),
        *("accident_notification", "balance", "daily_expenditure", "answers"),
    }  # fmt: skip


def test_the_master_is_that_of_the_data_pipeline(files):
    """All else stays in this process."""
    pytest.importorskip("exop_spark", reason="the plugin exop-spark is not installed")
    nodes = linear_road(**files, master="spark://127.0.0.1:7077").build().nodes
    named = {name for name, node in nodes.items() if node.settings.get("master") == "spark://127.0.0.1:7077"}
    assert named == {"positions", "statistics", "accidents"}


@pytest.mark.parametrize("name", ["input", "history"])
def test_a_missing_file_is_named_with_the_cure(files, name):
    """The error names the path, and the command that makes traffic."""
    missing = files[name].with_name("nowhere.csv")
    with pytest.raises(BuilderError, match=rf"{name}=.*nowhere\.csv does not exist.*linear_road\.generate"):
        linear_road(**files | {name: missing}, pipeline="native")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"speed": 0.0}, "speed=0.0"),
        ({"speed": float("nan")}, "speed=nan"),
        ({"speed": float("inf")}, "speed=inf"),
        ({"history": Path("/dev/null")}, "is no file"),
        ({"until": -1}, "until=-1"),
        ({"pipeline": "flink"}, "no pipeline 'flink'"),
        ({"master": "spark://127.0.0.1:7077"}, "is for pipeline=spark"),
    ],
)
def test_values_that_cannot_be_are_refused(files, wrong, message):
    """Each names the setting and what to give instead."""
    with pytest.raises(BuilderError, match=message):
        linear_road(**files | {"pipeline": "native"} | wrong)


def test_the_output_is_a_new_file_in_a_folder_that_exists(files, tmp_path):
    """Neither a folder, nor in a folder that is missing, nor the input itself."""
    for output, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "out.csv", "does not exist"),
        (files["input"], "is read as well"),
    ):
        with pytest.raises(BuilderError, match=message):
            linear_road(**files | {"output": output}, pipeline="native")


def test_the_hooks_offer_builder_and_slets():
    """The package is a plugin: one builder, and slets whose names differ."""
    assert package.register_builders() == [linear_road]
    names = [spec_of(slet).name for slet in package.register_slets()]
    assert len(set(names)) == len(names) >= len(native_slets())


def test_without_the_plugin_spark_is_told_to_be_missing(files, monkeypatch):
    """The Spark pipeline never turns into the native one silently; the other slets are offered all the same."""
    monkeypatch.setattr(builder, "find_spec", lambda name: None)
    with pytest.raises(BuilderError, match="needs the plugin exop-spark"):
        linear_road(**files)
    assert len(package.register_slets()) == len(native_slets())


def test_a_wrong_wiring_is_refused(files):
    """Columns are compared when ports are joined: tuples are no reports."""
    from apps.linear_road.entries import entries
    from apps.linear_road.traffic import Traffic
    from exop import Application

    app = Application("wrong")
    tuples = app.add("traffic", Traffic, input=files["input"])
    with pytest.raises(MeshError, match="columns differ"):
        app.add("entries", entries, reports=tuples)
