"""What APP means on the command line, and how parameters reach its builder."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from exop.cli import main
from exop.cli.loading import call, find_target, known_plugins, load_mesh
from exop.errors import BuilderError, ExopError, PluginError, SettingError, UnknownName
from exop.model.meshes.mesh import Mesh
from tests.cli.shell import answer_of

READY = """
from exop import Application
from exop.stock.slets import count_up, show

{name} = Application("ready")
{name}.add("show", show, item={name}.add("numbers", count_up, to=3))
"""

BUILDERS = """
from exop import Application
from exop.stock.slets import count_up, show


def few(*, to: int = 3) -> Application:
    app = Application("few")
    app.add("show", show, item=app.add("numbers", count_up, to=to))
    return app


def many(*, to: int = 1000) -> Application:
    return few(to=to)


def helper() -> int:
    return 1
"""
ONE_BUILDER = BUILDERS.partition("\n\ndef many")[0]


def mesh_of(app: object, *parameters: str, files: Sequence[Path] = (), load: Sequence[Path] = ()) -> Mesh:
    """Build what APP names."""
    return load_mesh(str(app), parameters, files, load)[0]


def test_package_folder(counting):
    """A folder is a plugin: its builder builds, and its slets are known by the folder's name."""
    mesh, catalog, _ = load_mesh(str(counting), ["output=out", "to=3"], (), ())
    assert mesh.nodes["numbers"].settings["to"] == 3
    assert mesh.nodes["sink"].settings["path"] == Path("out")
    assert "counting:half" in catalog.slets


@pytest.mark.parametrize("name", ["app", "anything"])
def test_file_with_an_application(name):
    """The one Application of a .py file is what runs, whatever it is called."""
    Path("ready.py").write_text(READY.format(name=name))
    assert mesh_of("ready.py").name == "ready"


def test_file_with_builders():
    """A function annotated to return an Application is a builder; FILE:NAME names one of several, the error all."""
    Path("one.py").write_text(ONE_BUILDER)
    assert mesh_of("one.py", "to=7").nodes["numbers"].settings["to"] == 7
    Path("several.py").write_text(BUILDERS)
    assert mesh_of("several.py:many").nodes["numbers"].settings["to"] == 1000
    with pytest.raises(BuilderError, match=r"name one of them: several\.py:few, several\.py:many"):
        mesh_of("several.py")
    with pytest.raises(UnknownName, match="did you mean 'many'"):
        mesh_of("several.py:mony")


def test_files_are_called_what_they_like():
    """A file called as a module of Python neither replaces it nor is replaced by it; it finds its neighbours."""
    Path("neighbour_of_queue.py").write_text("TO = 5")
    Path("queue.py").write_text(
        "from neighbour_of_queue import TO\n" + ONE_BUILDER.replace("to: int = 3", "to: int = TO")
    )
    assert mesh_of("queue.py").nodes["numbers"].settings["to"] == 5
    import queue

    assert hasattr(queue, "SimpleQueue")


def test_builder_of_a_plugin(counting):
    """The builder of a loaded plugin needs no path, with or without the plugin's name; `./name` is never one."""
    for name in ("counting", "counting:counting"):
        assert mesh_of(name, "output=out", load=[counting]).name == "counting"
    with pytest.raises(BuilderError, match="does not exist"):
        mesh_of("./nothing", load=[counting])


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nothing/here.py", "there is no folder nothing either"),
        ("zzz.py", "name a package folder"),
        ("./countin", "did you mean counting?"),
        ("countin", "no application builder of an installed plugin"),
        ("notes.txt", "neither a folder nor a .py or .toml file"),
        ("empty", "it holds no __init__.py"),
        ("nothing.py", "-> Application"),
        ("bad_hook", "not today"),
        ("broken", "the plugin 'broken' could not be loaded: ModuleNotFoundError"),
        ("needs.py", "the file 'needs.py' could not be loaded: ModuleNotFoundError: No module named 'exop_spark.none'"),
        ("needs.py", "; run `pip install plugins/exop-spark` in the folder of ExoP"),
    ],
)
def test_no_application(app, said, counting):
    """The error about an APP that is none has the cure."""
    Path("notes.txt").write_text("")
    Path("nothing.py").write_text("x = 1")
    Path("needs.py").write_text("import exop_spark.none\n")
    Path("empty").mkdir()
    Path("bad_hook").mkdir()
    Path("broken").mkdir()
    Path("broken/__init__.py").write_text("import nothing_of_that_name\n")
    Path("bad_hook/__init__.py").write_text(
        "from exop import hookimpl\n@hookimpl\ndef register_builders():\n    raise ValueError('not today')\n"
    )
    with pytest.raises(ExopError) as raised:
        mesh_of(app)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def f(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_broken_file(text, said):
    """A file that cannot be imported is named, with the reason."""
    Path("broken.py").write_text(text)
    with pytest.raises(PluginError, match=rf"broken\.py.*{said}"):
        mesh_of("broken.py")


def test_a_file_that_runs_its_application_is_not_run_twice():
    """`exop check` runs nothing: a file that calls `run` while it is imported is refused, with the cure."""
    Path("script.py").write_text(f"{READY.format(name='app')}app.run()")
    with pytest.raises(BuilderError, match=r"script\.py runs its application when imported.*__main__"):
        mesh_of("script.py")
    Path("script.py").write_text(f"{READY.format(name='app')}if __name__ == '__main__':\n    app.run()")
    assert mesh_of("script.py").name == "ready"


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (["to"], BuilderError, "write NAME=VALUE"),
        (["=3"], BuilderError, "write NAME=VALUE"),
        (["to=1", "to=2"], BuilderError, "'to' is given twice"),
        (["to=3"], BuilderError, "needs output=…"),
        (["output=x", "mode=slov"], SettingError, "'mode'"),
        (["output=x", "pace=fast"], SettingError, "'pace'"),
    ],
)
def test_wrong_parameters(given, error, said, counting):
    """A parameter that is not NAME=VALUE, is missing, given twice, or cannot be converted is named."""
    with pytest.raises(error, match=said):
        mesh_of(counting, *given)


def test_a_value_may_hold_any_text(counting):
    """A value may hold further = signs."""
    assert mesh_of(counting, "output=x=y").nodes["sink"].settings["path"] == Path("x=y")


def test_only_builders_take_parameters(monkeypatch):
    """Parameters for an application without a builder are refused, not ignored; a variable is named."""
    Path("mesh.toml").write_text("")
    with pytest.raises(BuilderError, match="takes no parameters"):
        mesh_of("mesh.toml", "to=3")
    monkeypatch.setenv("EXOP_PARAM_TO", "3")
    with pytest.raises(BuilderError, match="to by the environment variable EXOP_PARAM_TO"):
        mesh_of("mesh.toml")


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
        call(builder, {})


def test_where_parameters_come_from(counting, monkeypatch):
    """The command line wins over files, the last file over the first, and files over the environment; all convert."""
    Path("one.toml").write_text('output = "one"\nto = 1\npace = 0.5\n')
    Path("two.toml").write_text("to = 2\n")
    files = [Path("one.toml"), Path("two.toml")]
    monkeypatch.setenv("EXOP_PARAM_PACE", "0.1")
    monkeypatch.setenv("EXOP_PARAM_missing", "here")
    nodes = mesh_of(counting, "output=line", files=files).nodes
    assert nodes["sink"].settings["path"] == Path("line")
    assert nodes["numbers"].settings == {"to": 2, "pace": 0.5}
    assert nodes["half"].settings["missing"] == Path("here")
    assert mesh_of(counting, "output=line").nodes["numbers"].settings["pace"] == 0.1
    assert mesh_of(counting, "pace=3", files=files).nodes["numbers"].settings["pace"] == 3.0


@pytest.mark.parametrize(
    ("text", "variable", "said", "place"),
    [
        ('outptu = "x"\n', {}, "did you mean 'output'", "more.toml, key 'outptu'"),
        ("to = true\n", {}, "'to'", "more.toml, key 'to'"),
        ("", {"EXOP_PARAM_OUTPTU": "x"}, "did you mean 'output'", "the environment variable EXOP_PARAM_OUTPTU"),
        ("", {"EXOP_PARAM_TO": "many"}, "'to'", "the environment variable EXOP_PARAM_TO"),
    ],
)
def test_wrong_parameters_are_reported_with_their_place(text, variable, said, place, counting, monkeypatch):
    """An unknown or unfit parameter is reported with the known ones, and the file and key, or the variable."""
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    Path("more.toml").write_text(text)
    with pytest.raises(ExopError) as raised:
        mesh_of(counting, "output=x", files=[Path("more.toml")])
    assert said in str(raised.value)
    assert raised.value.__notes__ == [f"it is given by {place}"]


@pytest.mark.parametrize("text", [None, "to = \n", "a = " + "[" * 100_000, "without end"])
def test_a_parameter_file_that_cannot_be_read(text, counting):
    """A file that does not exist, is no TOML, or has no end, is named."""
    name = "/dev/zero" if text == "without end" else "more.toml"
    if name == "more.toml" and text is not None:
        Path(name).write_text(text)
    with pytest.raises(BuilderError, match=name):
        mesh_of(counting, "output=x", files=[Path(name)])


@pytest.mark.parametrize("command", [["run", "-q"], ["check"], ["mesh"]])
def test_commands_take_a_parameter_file(command, counting):
    """`--params FILE` is accepted wherever NAME=VALUE is; a mistake in it is one line, its place the next."""
    Path("good.toml").write_text('output = "out"\nto = 2\n')
    Path("bad.toml").write_text('output = "out"\nto = "many"\n')
    assert main([*command, "./counting", "--params", "good.toml"]) == 0
    err = answer_of(*command, "./counting", "--params", "good.toml", "--params", "bad.toml", code=2)
    assert err.splitlines()[-1] == "  it is given by bad.toml, key 'to'"


def test_an_edit_takes_no_parameter_file():
    """`exop plan VERB` has no builder: a parameter file is refused, not ignored."""
    err = answer_of("plan", "configure", "a.b", "to=3", "--params", "x.toml", code=2)
    assert "Unknown option: --params; see `exop configure --help`" in err


def test_a_target_that_runs_is_mentioned(counting):
    """Where APP may name a running application, too, the error has the names of those that run."""
    with pytest.raises(BuilderError, match="no such application runs; known: "):
        find_target("a.b", known_plugins(), ["other"])


@pytest.mark.parametrize("app", ["speeds:road", "speeds@1.0.0:road", "speeds@1.0.0"])
def test_a_bundle_that_is_not_started_is_told_with_the_cure(app):
    """It is installed: a started version would be loaded. A broken one has no name."""
    rows = [
        {"bundle": "speeds@1.0.0", "name": "speeds", "state": "resolved"},
        {"bundle": "speeds@2.0.0", "state": "broken", "problem": "it is damaged"},
    ]
    with pytest.raises(BuilderError, match="the bundle speeds@1.0.0 is not started; `exop bundle start speeds@1.0.0`"):
        find_target(app, known_plugins(), bundles=lambda: rows)
