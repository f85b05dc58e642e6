"""Each version of a bundle has its modules in a package of its own, as they were when it was loaded."""

from __future__ import annotations

import importlib
import importlib.resources
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from exop.bundle.modules import Namespace, load, unload
from exop.errors import NotStorable
from exop.model.values.classes import name_of
from exop.model.values.encoding import decode, encode
from tests.bundle.folders import write

#: Classes of values at the top of a module, within another class, and where no other process finds them.
CLASSES = """
from dataclasses import dataclass
from enum import Enum

@dataclass
class Number:
    value: int

    class Kind(Enum):
        ODD = 1

def hidden():
    @dataclass
    class Hidden:
        value: int
    return Hidden

Hidden = hidden()
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[list[Namespace]]:
    """What a test has loaded; it is taken out of Python at the end, whatever happens."""
    made: list[Namespace] = []
    yield made
    for one in made:
        unload(one)
    assert not any(name.startswith("exop_bundles") for name in sys.modules)


def namespace(folder: Path, files: Mapping[str, str], name: str = "a_v1") -> Namespace:
    """A namespace over a folder with these files."""
    write(folder, files)
    modules = {path: text.encode() for path, text in files.items() if path.endswith(".py")}
    return Namespace(f"exop_bundles.{name}", folder, modules, repr(files), {})


def test_a_dotted_name_of_its_own(loaded: list[Namespace], tmp_path: Path):
    """`import apps.road.helpers` gives a package `apps` whose `road` is ours; the rest of a real `os` stays."""
    text = "import apps.road.helpers\nimport os.path\nfrom apps.road import helpers\n"
    text += "found = apps.road.helpers, helpers\n"
    made = namespace(tmp_path, {"main.py": text, "helpers.py": "x = 1\n"})
    made.aliases = {"apps.road": made.name}
    loaded.append(load(made, "a"))
    main = importlib.import_module(f"{made.name}.main")
    assert main.found[0] is main.found[1]
    assert main.found[0].__name__ == f"{made.name}.helpers"
    assert main.os is sys.modules["os"]


def test_what_is_written_later_is_not_seen(loaded: list[Namespace], tmp_path: Path):
    """A module that is imported late is as it was when the bundle was loaded; one that is new is not there."""
    made = namespace(tmp_path, {"early.py": "x = 1\n", "late.py": "x = 1\n"})
    loaded.append(load(made, "a"))
    write(tmp_path, {"late.py": "x = 2\n", "new.py": "x = 2\n"})
    assert importlib.import_module(f"{made.name}.late").x == 1
    with pytest.raises(ModuleNotFoundError, match=r"no bundle that is loaded has the module 'exop_bundles.a_v1.new'"):
        importlib.import_module(f"{made.name}.new")
    assert not (tmp_path / "__pycache__").exists()


def test_files_beside_the_modules_are_found(loaded: list[Namespace], tmp_path: Path):
    """By `__file__`, and as resources of the package."""
    made = namespace(tmp_path, {"__init__.py": "", "below/__init__.py": "", "tariff.csv": "1,2\n"})
    loaded.append(load(made, "a"))
    package = importlib.import_module(made.name)
    assert (Path(str(package.__file__)).parent / "tariff.csv").read_text() == "1,2\n"
    assert importlib.resources.files(made.name).joinpath("tariff.csv").read_text() == "1,2\n"


def test_values_of_an_unloaded_module_keep_their_names(loaded: list[Namespace], tmp_path: Path):
    """They are stored while it is not loaded, and read as those of its next load; others are refused as before."""
    made = [namespace(tmp_path, {"values.py": CLASSES}) for _ in range(2)]
    load(made[0], "a")
    before = importlib.import_module(f"{made[0].name}.values")
    unload(made[0])
    data = encode([before.Number(1), before.Number.Kind.ODD])
    loaded.append(load(made[1], "a"))
    after = importlib.import_module(f"{made[1].name}.values")
    assert after.Number is not before.Number
    for stored in (data, encode([before.Number(1), before.Number.Kind.ODD])):
        assert decode(stored) == [after.Number(1), after.Number.Kind.ODD]
    with pytest.raises(NotStorable, match="under its own name"):
        name_of(before.Hidden)
