"""How parameters reach a builder, and what it may return."""

from pathlib import Path

import pytest

from exop.cli import main
from exop.cli.loading import build, call, find_target, known_plugins, parse
from exop.errors import BuilderError, ExopError, SettingError
from exop.model.meshes.mesh import Mesh
from tests.cli.shell import answer_of


def mesh_of(app: object, *parameters: str) -> Mesh:
    """Build what APP names."""
    catalog = known_plugins()
    return build(find_target(str(app), catalog), parameters, catalog)


def test_parameters_are_taken_apart():
    """NAME=VALUE; a value may hold further = signs, or nothing."""
    assert parse(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("given", [["to"], ["=3"], ["a=1", "a=2"]])
def test_parameters_that_are_none(given):
    """What is not NAME=VALUE, or stands twice, is told."""
    with pytest.raises(BuilderError):
        parse(given)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (["to=3"], BuilderError, "needs output=…"),
        (["output=x", "mode=slov"], SettingError, "'mode'"),
        (["output=x", "pace=fast"], SettingError, "'pace'"),
    ],
)
def test_wrong_parameters(given, error, said, counting):
    """A parameter that the builder has not, needs, or cannot convert is named."""
    with pytest.raises(error) as told:
        mesh_of(counting, *given)
    assert said in str(told.value)


def test_files_take_no_parameters(tmp_path):
    """Parameters for something without a builder are refused, not ignored."""
    (tmp_path / "mesh.toml").write_text("")
    with pytest.raises(BuilderError, match="takes no parameters"):
        mesh_of(tmp_path / "mesh.toml", "to=3")


def failing(*, to: int = 1) -> Mesh:
    """Raise."""
    raise KeyError("x")


def wrong(*, to: int = 1) -> Mesh:
    """Return something else."""
    return "a mesh"  # type: ignore[return-value]


def positional(to: int) -> Mesh:
    """Take a parameter that the command line cannot give."""
    return Mesh(str(to))


@pytest.mark.parametrize(
    ("builder", "said"),
    [(failing, "failing failed: KeyError: 'x'"), (wrong, "returned str"), (positional, "keyword-only")],
)
def test_wrong_builders(builder, said):
    """A builder that raises, returns something else or has other parameters is named."""
    with pytest.raises(ExopError, match=said):
        call(builder, {})  # type: ignore[arg-type]


@pytest.fixture
def two_files(tmp_path: Path) -> list[Path]:
    """Two parameter files; the second one repeats a name."""
    (tmp_path / "one.toml").write_text('output = "one"\nto = 1\npace = 0.5\n')
    (tmp_path / "two.toml").write_text("to = 2\n")
    return [tmp_path / "one.toml", tmp_path / "two.toml"]


def test_where_parameters_come_from(counting, two_files, tmp_path, monkeypatch):
    """The command line wins over files, the last file over the first, and files over the environment; all convert."""
    monkeypatch.setenv("EXOP_PARAM_PACE", "0.1")
    monkeypatch.setenv("EXOP_PARAM_missing", "here")
    catalog = known_plugins()
    target = find_target(str(counting), catalog)
    nodes = build(target, ["output=line"], catalog, two_files).nodes
    assert nodes["sink"].settings["path"] == Path("line")
    assert nodes["numbers"].settings == {"to": 2, "pace": 0.5}
    assert nodes["half"].settings["missing"] == Path("here")
    assert build(target, ["output=line"], catalog).nodes["numbers"].settings["pace"] == 0.1
    assert build(target, ["pace=3"], catalog, two_files).nodes["numbers"].settings["pace"] == 3.0


@pytest.mark.parametrize(
    ("text", "variable", "said", "place"),
    [
        ('outptu = "x"\n', {}, "did you mean 'output'", "more.toml, key 'outptu'"),
        ("to = true\n", {}, "'to'", "more.toml, key 'to'"),
        ("", {"EXOP_PARAM_OUTPTU": "x"}, "did you mean 'output'", "the environment variable EXOP_PARAM_OUTPTU"),
        ("", {"EXOP_PARAM_TO": "many"}, "'to'", "the environment variable EXOP_PARAM_TO"),
    ],
)
def test_wrong_parameters_are_told_with_their_place(text, variable, said, place, counting, monkeypatch):
    """An unknown or unfit parameter is told with the known ones, and the file and key, or the variable."""
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    Path("more.toml").write_text(text)
    catalog = known_plugins()
    with pytest.raises(ExopError) as told:
        build(find_target(str(counting), catalog), ["output=x"], catalog, [Path("more.toml")])
    assert said in str(told.value)
    assert told.value.__notes__ == [f"it is given by {place}"]


@pytest.mark.parametrize("text", [None, "to = \n", "a = " + "[" * 100_000])
def test_a_parameter_file_that_cannot_be_read(text, counting):
    """A file that is not there, or is no TOML, is named."""
    if text is not None:
        Path("more.toml").write_text(text)
    catalog = known_plugins()
    with pytest.raises(BuilderError, match=r"more\.toml"):
        build(find_target(str(counting), catalog), ["output=x"], catalog, [Path("more.toml")])


def test_a_parameter_file_without_end(counting):
    """A device or a huge file is refused after a bounded number of bytes."""
    with pytest.raises(BuilderError, match=r"/dev/zero cannot be read: it is larger than"):
        build(find_target(str(counting), known_plugins()), [], known_plugins(), [Path("/dev/zero")])


def test_files_take_no_parameters_from_elsewhere(monkeypatch):
    """A parameter in the environment, for something without a builder, is refused with its variable."""
    Path("mesh.toml").write_text("")
    monkeypatch.setenv("EXOP_PARAM_TO", "3")
    with pytest.raises(BuilderError, match="to by the environment variable EXOP_PARAM_TO"):
        mesh_of("mesh.toml")


@pytest.mark.parametrize("command", [["run", "-q"], ["check"], ["mesh"]])
def test_commands_take_a_parameter_file(command, counting, capsys):
    """`--params FILE` stands wherever NAME=VALUE does; a mistake in it is one line, its place the next."""
    Path("good.toml").write_text('output = "out"\nto = 2\n')
    Path("bad.toml").write_text('output = "out"\nto = "many"\n')
    assert main([*command, "./counting", "--params", "good.toml"]) == 0
    capsys.readouterr()
    assert (
        answer_of(*command, "./counting", "--params", "good.toml", "--params", "bad.toml", code=2).splitlines()[-1]
        == "  it is given by bad.toml, key 'to'"
    )


def test_an_edit_takes_no_parameter_file():
    """`exop plan VERB` has no builder: a parameter file is refused, not ignored."""
    assert "--params is for the builder of an application" in answer_of(
        "plan", "configure", "a.b", "to=3", "--params", "x.toml", code=2
    )
