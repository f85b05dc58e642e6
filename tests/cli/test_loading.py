"""What APP means on the command line."""

from pathlib import Path

import pytest

from exop.cli.loading import build, find_target, known_plugins
from exop.errors import BuilderError, ExopError, PluginError, UnknownName
from tests.cli.test_building import mesh_of

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

TOPOLOGY = """
[application]
name = "from-file"
[nodes.numbers]
slet = "stock:count_up"
ports = {out = "numbers"}
settings = {to = 3}
[nodes.show]
slet = "stock:show"
ports = {item = "numbers"}
"""


def test_package_folder(counting):
    """A folder is a plugin: its builder builds, and its slets are known by the folder's name."""
    catalog = known_plugins()
    mesh = build(find_target(str(counting), catalog), ["output=out", "to=3"], catalog)
    assert mesh.nodes["numbers"].settings["to"] == 3
    assert mesh.nodes["sink"].settings["path"] == Path("out")
    assert "counting:half" in catalog.slets


@pytest.mark.parametrize("name", ["app", "anything"])
def test_file_with_an_application(name, tmp_path):
    """The one Application of a .py file is what runs, whatever it is called."""
    (tmp_path / "ready.py").write_text(READY.format(name=name))
    assert mesh_of(tmp_path / "ready.py").name == "ready"


def test_file_with_a_builder(tmp_path):
    """A function that says that it returns an Application is the builder of a .py file."""
    (tmp_path / "one.py").write_text(BUILDERS.partition("\n\ndef many")[0])
    assert mesh_of(tmp_path / "one.py", "to=7").nodes["numbers"].settings["to"] == 7


def test_several_builders(tmp_path):
    """With several builders, FILE:NAME names one; without it, the error names them."""
    file = tmp_path / "several.py"
    file.write_text(BUILDERS)
    assert mesh_of(f"{file}:many").nodes["numbers"].settings["to"] == 1000
    with pytest.raises(BuilderError, match=r"name one of them: .*several\.py:few, .*several\.py:many"):
        mesh_of(file)
    with pytest.raises(UnknownName, match="did you mean 'many'"):
        mesh_of(f"{file}:mony")


def test_files_are_called_what_they_like(tmp_path):
    """A file called as a module of Python neither replaces it nor is replaced by it; it finds its neighbours."""
    (tmp_path / "neighbour_of_queue.py").write_text("TO = 5")
    text = BUILDERS.partition("\n\ndef many")[0].replace("to: int = 3", "to: int = TO")
    (tmp_path / "queue.py").write_text("from neighbour_of_queue import TO\n" + text)
    assert mesh_of(tmp_path / "queue.py").nodes["numbers"].settings["to"] == 5
    import queue

    assert hasattr(queue, "SimpleQueue")


def test_topology_file(tmp_path):
    """A .toml file is a topology; its slets are those of the plugins."""
    (tmp_path / "mesh.toml").write_text(TOPOLOGY)
    assert set(mesh_of(tmp_path / "mesh.toml").nodes) == {"numbers", "show"}


def test_builder_of_a_plugin(counting):
    """The builder of a loaded plugin needs no path, with or without the plugin's name."""
    catalog = known_plugins([counting])
    for name in ("counting", "counting:counting"):
        assert build(find_target(name, catalog), ["output=out"], catalog).name == "counting"


def test_a_path_wins_over_a_plugin(counting, tmp_path):
    """`./name` is never a plugin's builder."""
    with pytest.raises(BuilderError, match="does not exist"):
        find_target("./nothing", known_plugins([counting]))


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nothing/here.py", "there is no folder nothing either"),
        ("zzz.py", "name a package folder"),
        ("./countin", "did you mean counting?"),
        ("countin", "no application builder of an installed plugin"),
        ("notes.txt", "neither a folder nor a .py or .toml file"),
        ("empty", "it holds no __init__.py"),
    ],
)
def test_no_application(app, said, counting, tmp_path):
    """What APP cannot be is told with the cure."""
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExopError) as told:
        find_target(app, known_plugins())
    assert said in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def f(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_broken_file(text, said, tmp_path):
    """A file that cannot be imported is named, with the reason."""
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(PluginError, match=r"broken\.py") as told:
        mesh_of(tmp_path / "broken.py")
    assert said in str(told.value)


def test_file_without_application(tmp_path):
    """A file that describes no application is told what to write."""
    (tmp_path / "nothing.py").write_text("x = 1")
    with pytest.raises(BuilderError, match="-> Application"):
        mesh_of(tmp_path / "nothing.py")


def test_a_broken_hook_is_the_error(tmp_path):
    """A folder whose hook raises is named with what it raised, not as one without a builder."""
    folder = tmp_path / "bad_hook"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from exop import hookimpl\n@hookimpl\ndef register_builders():\n    raise ValueError('not today')\n"
    )
    with pytest.raises(PluginError, match=r"bad_hook.*not today"):
        find_target(str(folder), known_plugins())
