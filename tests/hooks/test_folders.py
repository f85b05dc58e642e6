"""Importing a package from a folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from exop.errors import PluginError
from exop.hooks.manager import import_folder


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch, tmp_path):
    """Takes back what a test imports from its folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def package(folder: Path, source: str = "") -> Path:
    """A package folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(source)
    return folder


def test_below_the_working_directory_the_name_is_dotted(tmp_path, monkeypatch):
    """`apps_here/one` is `apps_here.one`, so that an application may import its neighbours."""
    monkeypatch.chdir(tmp_path)
    folder = package(tmp_path / "apps_here" / "one", "value = 1\n")
    module = import_folder(Path("apps_here/one"))
    assert (module.__name__, module.value) == ("apps_here.one", 1)
    assert import_folder(folder) is module


def test_elsewhere_it_is_imported_by_its_own_name(tmp_path, monkeypatch):
    """A folder outside of the working directory brings its parent to the import path."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = package(tmp_path / "elsewhere" / "some_app", "from . import part\n")
    (folder / "part.py").write_text("")
    assert import_folder(folder).__name__ == "some_app"


def test_the_working_directory_itself_can_be_loaded(tmp_path, monkeypatch):
    """`exop run .` works."""
    folder = package(tmp_path / "app_here", "value = 1\n")
    monkeypatch.chdir(folder)
    assert import_folder(Path(".")).value == 1


def test_a_folder_with_a_hyphen_can_be_loaded(tmp_path):
    """A hyphen is no identifier, but a module may have it in its name."""
    assert import_folder(package(tmp_path / "some-app", "value = 1\n")).value == 1


@pytest.mark.parametrize("name", ["json", "statistics"])
def test_a_name_that_python_knows_is_told(tmp_path, name):
    """A folder that is called like a module which is loaded already would silently be that module."""
    importlib.import_module(name)
    folder = package(tmp_path / name)
    with pytest.raises(PluginError, match=f"Python knows another module '{name}'.*; rename the folder"):
        import_folder(folder)


def test_a_dot_in_the_name_is_told(tmp_path):
    """No module can have a dot in its name."""
    with pytest.raises(PluginError, match="no module can have a dot in its name; rename the folder"):
        import_folder(package(tmp_path / "app.v2"))


def test_what_is_no_package_is_told(tmp_path):
    """A folder without __init__.py, a file and nothing at all are no packages."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nothing"):
        with pytest.raises(PluginError, match=r"is no package: it (holds no __init__.py|is no folder)$"):
            import_folder(path)


def test_the_folder_of_a_distribution_names_the_package_inside(tmp_path):
    """The folder with the `pyproject.toml` of a plugin is not the plugin: the error says which folder is."""
    package(tmp_path / "exop-fake" / "exop_fake")
    package(tmp_path / "exop-fake" / "tests")
    with pytest.raises(PluginError, match=r"no __init__.py; did you mean .*/exop-fake/exop_fake\?$"):
        import_folder(tmp_path / "exop-fake")
