"""Plugins: found by their entry point or in a folder, asked one by one; one that fails keeps no other from working."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from exop.errors import PluginError
from exop.hooks import Plugins, hookimpl


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs distributions: name of the entry point -> source of its module."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def install(**modules: str) -> None:
        for name, source in modules.items():
            (tmp_path / f"fake_{name}.py").write_text(source)
            info = tmp_path / f"fake_{name}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fake-{name}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(f"[exop]\n{name} = fake_{name}\n")

    yield install
    for name in [name for name in sys.modules if name.startswith("fake_")]:
        del sys.modules[name]


class Works:
    """A plugin that works."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """Offer something."""
        return ["a slet"]


class Raises:
    """A plugin that raises in a hook."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """Raise."""
        raise RuntimeError("no network")


def asked(plugins: Plugins, hook: str, **arguments: Any) -> dict[str, Any]:
    """The answers by plugin."""
    return dict(plugins.ask(hook, **arguments))


def test_installed_plugins_are_found_by_their_entry_point(installed):
    """A distribution with an entry point in the group `exop` is loaded; the built-ins come by the same door."""
    installed(one="from exop import hookimpl\n@hookimpl\ndef register_slets():\n    return [1]\n")
    plugins = Plugins()
    plugins.discover()
    assert {"one", "stock"} <= set(plugins.names())
    assert asked(plugins, "register_slets")["one"] == [1]
    plugins.discover()
    assert plugins.names().count("one") == 1


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def oops(:", "SyntaxError"),
        (
            "from exop import hookimpl\n@hookimpl\ndef register_slet():\n    return []\n",
            "there is no hook 'register_slet'; did you mean 'register_slets'?",
        ),
    ],
)
def test_a_broken_plugin_is_reported_by_name_and_the_others_go_on(installed, source, problem, capsys):
    """Whatever happens while a plugin is loaded, it is left out, named with its reason, and nothing else suffers."""
    installed(aaa=source, zzz="")
    plugins = Plugins()
    plugins.discover()
    assert "aaa" not in plugins.names()
    assert {"zzz", "stock"} <= set(plugins.names())
    assert problem in str(plugins.broken["aaa"])
    assert plugins.broken["aaa"].plugin == "aaa"
    assert "aaa" in capsys.readouterr().err


def test_two_distributions_with_one_name_are_reported(installed, tmp_path):
    """The first one is used; the other is told, not silently dropped."""
    installed(one="", two="")
    (tmp_path / "fake_two-1.0.dist-info" / "entry_points.txt").write_text("[exop]\none = fake_two\n")
    plugins = Plugins()
    plugins.discover()
    (error,) = plugins.broken.values()
    assert "the name is used by" in str(error)
    assert "one" in plugins.names()


def test_a_hook_that_raises_is_noted_and_the_others_are_asked():
    """One plugin's exception is its own; it carries the cause."""
    plugins = Plugins()
    plugins.register("bad", Raises())
    plugins.register("good", Works())
    assert asked(plugins, "register_slets") == {"good": ["a slet"]}
    error = plugins.broken["bad"]
    assert str(error) == "the plugin 'bad' could not be loaded: RuntimeError: no network"
    assert isinstance(error.__cause__, RuntimeError)


def test_a_hook_is_given_what_it_asks_for():
    """An implementation takes the parameters it needs and leaves the rest; keywords with defaults are its own."""
    seen: list[Any] = []

    class Listens:
        @hookimpl
        def platform_started(self, platform: Any, mine: int = 5) -> None:
            seen.append((platform, mine))

        @hookimpl
        def platform_stopping(self) -> None:
            seen.append("stopping")

    plugins = Plugins()
    plugins.register("listens", Listens())
    asked(plugins, "platform_started", platform="P")
    asked(plugins, "platform_stopping", platform="P")
    assert seen == [("P", 5), "stopping"]


def test_an_implementation_may_have_another_name():
    """`@hookimpl(specname=…)` says which hook it implements."""

    class Named:
        @hookimpl(specname="register_slets")
        def mine(self) -> list[Any]:
            return [1]

    plugins = Plugins()
    plugins.register("named", Named())
    assert asked(plugins, "register_slets") == {"named": [1]}


def wrong_parameter() -> object:
    """A parameter that the hook does not offer."""

    class Wrong:
        @hookimpl
        def platform_started(self, plattform: Any) -> None:
            """Never called."""

    return Wrong()


def wrapper() -> object:
    """A wrapper."""

    class Wrong:
        @hookimpl(wrapper=True)
        def register_slets(self) -> Any:
            return (yield)

    return Wrong()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (wrong_parameter, "platform_started has no parameter 'plattform'; did you mean 'platform'?"),
        (wrapper, "register_slets is a hook wrapper, which ExoP does not call; return a result instead"),
    ],
)
def test_what_fits_no_hook_is_refused_before_anything_of_it_counts(make, problem):
    """A plugin is added as a whole or not at all."""
    plugins = Plugins()
    with pytest.raises(PluginError) as caught:
        plugins.register("wrong", make())
    assert problem in str(caught.value)
    assert plugins.names() == []


def test_a_name_is_given_once():
    """A second plugin of the same name is refused, and the first one stays as it is."""
    plugins = Plugins()
    first = Works()
    plugins.register("one", first)
    for again in (first, Works()):
        with pytest.raises(PluginError, match="the plugin 'one' could not be loaded: another plugin has this name"):
            plugins.register("one", again)
    assert asked(plugins, "register_slets") == {"one": ["a slet"]}


def test_plugins_of_two_platforms_have_nothing_in_common():
    """There is no global manager."""
    one, other = Plugins(), Plugins()
    one.register("works", Works())
    assert (one.names(), other.names()) == (["works"], [])


def package(folder: Path, source: str = "") -> Path:
    """A package folder."""
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(source)
    return folder


@pytest.fixture
def clean_imports(monkeypatch, tmp_path):
    """Takes back what a test imports from its folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("clean_imports")
def test_a_folder_is_a_plugin(tmp_path):
    """A package folder is loaded under its own name, once."""
    source = "from exop import hookimpl\n@hookimpl\ndef register_slets():\n    return [1]\n"
    folder = package(tmp_path / "one_off_plugin", source)
    plugins = Plugins()
    assert plugins.load_folder(folder) == "one_off_plugin"
    assert plugins.load_folder(folder) == "one_off_plugin"
    assert asked(plugins, "register_slets") == {"one_off_plugin": [1]}
    assert plugins.folders == {"one_off_plugin": folder}


@pytest.mark.usefixtures("clean_imports")
def test_the_folder_of_an_installed_plugin_is_that_plugin(installed, tmp_path, monkeypatch):
    """It keeps the name of its entry point, and its code is imported once, wherever the folder lies."""
    monkeypatch.chdir(tmp_path.parent)
    source = "from exop import hookimpl\n@hookimpl\ndef register_slets():\n    return [1]\n"
    folder = package(tmp_path / "fake_one", source)
    installed(one="")
    (tmp_path / "fake_one.py").unlink()
    plugins = Plugins()
    plugins.discover()
    assert plugins.load_folder(folder) == "one"
    assert (plugins.folders, asked(plugins, "register_slets")["one"]) == ({"one": folder}, [1])
    assert [name for name in plugins.names() if "one" in name] == ["one"]


@pytest.mark.usefixtures("clean_imports")
def test_another_folder_of_the_same_name_is_refused(tmp_path):
    """Two folders that are called alike are two plugins, and the second is told that the name is taken."""
    plugins = Plugins()
    plugins.load_folder(package(tmp_path / "a" / "one_off_plugin"))
    with pytest.raises(PluginError, match="Python knows another module 'one_off_plugin'"):
        plugins.load_folder(package(tmp_path / "b" / "one_off_plugin"))


@pytest.mark.usefixtures("clean_imports")
def test_a_folder_that_cannot_be_imported_says_why(tmp_path):
    """The import error comes out as a PluginError with its cause; a corrected folder can be loaded then."""
    folder = package(tmp_path / "one_off_plugin", "import nowhere_to_be_found")
    plugins = Plugins()
    with pytest.raises(PluginError, match="No module named 'nowhere_to_be_found'") as caught:
        plugins.load_folder(folder)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    (folder / "__init__.py").write_text("value = 1\n")
    assert plugins.load_folder(folder) == "one_off_plugin"


def test_every_call_can_be_watched(monkeypatch, capsys):
    """EXOP_TRACE=hooks shows hook, plugin, answer or exception, and time, on stderr."""
    monkeypatch.setenv("EXOP_TRACE", "hooks")
    plugins = Plugins()
    plugins.register("good", Works())
    plugins.register("bad", Raises())
    asked(plugins, "register_slets")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("exop hook")]
    assert lines[0].startswith("exop hook register_slets [good] -> 1 given (")
    assert lines[1].startswith("exop hook register_slets [bad] -> RuntimeError('no network') (")


def test_nothing_is_shown_unless_it_is_asked_for(monkeypatch, capsys):
    """Without EXOP_TRACE a call of a hook is silent."""
    monkeypatch.delenv("EXOP_TRACE", raising=False)
    plugins = Plugins()
    plugins.register("good", types.SimpleNamespace(register_slets=hookimpl(lambda: [1])))
    asked(plugins, "register_slets")
    assert capsys.readouterr().err == ""
