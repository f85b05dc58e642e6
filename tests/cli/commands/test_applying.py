"""`exop apply` and `exop plan` of a topology file whose application runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exop import Platform
from exop.cli import main
from tests.cli.line import PACKAGE
from tests.cli.shell import answer_of, eventually, facts


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """The topology of an application on a platform that is reached over its socket."""
    folder = tmp_path / "line"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    with Platform(name="served", control=True) as platform:
        platform.load(folder)
        assert main(["apply", str(folder), f"output={tmp_path / 'out'}", "label=x"]) == 0
        path = tmp_path / "line.toml"
        path.write_text(answer_of("mesh", "line", "--format", "toml"))
        yield path


def test_an_edited_file_changes_what_runs(file, tmp_path):
    """Several edits are one plan, shown and made as a whole; the same file again is nothing to do."""
    file.write_text(file.read_text().replace("line:tag", "line:shout").replace('label = "x"', 'label = "Z"'))
    dry = answer_of("apply", file, "--dry-run")
    assert "replace tag: line:tag → line:shout" in dry
    assert facts("describe", "line")["revision"] == 1
    assert answer_of("plan", "line", file) == dry == answer_of("plan", file)
    assert "revision 2 runs" in answer_of("apply", file)
    eventually(lambda: "Z! " in (tmp_path / "out").read_text())
    assert answer_of("apply", file) == "line: revision 2: nothing to do\n"


def test_a_setting_that_is_not_in_the_file_has_the_default_of_its_slet(file):
    """The plan shows every setting that changes, with the reason; what runs is exported with what was set alone."""
    assert "limit" not in file.read_text()
    file.write_text(file.read_text().replace("line:tag", "line:shout").replace('label = "x"', ""))
    assert answer_of("plan", file).splitlines()[2:4] == [
        "    label: 'x' → 'A' (the default of shout)",
        "    limit: 0, dropped: shout has no such setting",
    ]
    assert facts("plan", file)["steps"][0]["settings"] == [
        {"name": "label", "before": "'x'", "after": "'A'", "why": "default"},
        {"name": "limit", "before": "0", "after": None, "why": "dropped"},
    ]
    answer_of("apply", file)
    assert "label" not in answer_of("mesh", "line", "--format", "toml")


def test_a_builder_changes_what_runs(file, tmp_path, monkeypatch):
    """What a builder makes with other parameters, wherever they are given, is compared with what runs, too."""
    Path("where.toml").write_text(f'output = "{tmp_path / "out"}"\nlabel = "F"\n')
    monkeypatch.setenv("EXOP_PARAM_LABEL", "E")
    assert "label: 'x' → 'F'" in answer_of("apply", "./line", "--params", "where.toml", "--dry-run")
    planned = facts("plan", "./line", "--params", "where.toml", "label=Q")
    assert [(one["verb"], one["text"]) for one in planned["steps"]] == [("configure", "label: 'x' → 'Q'")]


def test_what_does_not_run_would_be_deployed(file, tmp_path):
    """The plan of an application that does not run says so; one that has finished is deployed anew."""
    answer_of("remove", "line")
    assert "line does not run on served" in answer_of("plan", file)
    assert facts("plan", file) == {"application": "line", "platform": "served", "deployed": False}
    file.write_text(
        file.read_text().replace("[nodes.numbers.ports]", "[nodes.numbers.settings]\nto = 3\n[nodes.numbers.ports]")
    )
    assert answer_of("apply", file) == "line runs on served\n"
    eventually(lambda: facts("ps")[0]["applications"]["line"]["state"] == "finished")
    assert facts("apply", file) == {"application": "line", "platform": "served", "deployed": True}


def test_bad_files(file):
    """What is wrong with the file is told before anything changes, exit code 2."""
    good = file.read_text()
    for text, by, said in [
        ("line:tag", "line:tga", "did you mean 'line:tag'?"),
        ('name = "line"', 'name = "lines"', f"describes 'lines', not 'line'; `exop plan {file}` plans that\n"),
        ("[application]", "[application", "the topology is no TOML"),
        ('name = "line"', "", "the topology has no name"),
    ]:
        file.write_text(good.replace(text, by))
        assert said in answer_of("plan", "line", file, code=2), said
    assert facts("describe", "line")["revision"] == 1


def test_a_change_of_what_a_channel_is(file):
    """A channel keeps its kind while it runs: the plan says what to do instead."""
    file.write_text(
        file.read_text().replace('[channels.numbers]\nkind = "direct"', '[channels.numbers]\nkind = "queue"')
    )
    assert "add a new channel and rewire to it" in answer_of("apply", file, code=2)
