"""An edited folder is loaded statement by statement: what is as it was is taken over, what is not is executed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from exop.bundle.generation import Reuse
from exop.bundle.modules import Namespace, Sources, load, unload

FIRST = """
from __future__ import annotations
from dataclasses import dataclass
from .helpers import scale

MADE = []
MADE.append(1)
LIMIT = 3

@dataclass
class Report:
    speed: Speed

class Speed:
    pass

def kept(x):
    return MADE, Report

def scaled(x):
    return scale(x), LIMIT
"""
HELPERS = "FACTOR = 2\ndef scale(x):\n    return x * FACTOR\n"

Load = Callable[..., ModuleType]


@pytest.fixture
def edited(tmp_path: Path) -> Iterator[Load]:
    """Loads the next generation of a folder, and gives its module `main`."""
    made: list[Namespace] = []

    def load_next(main: str = FIRST, helpers: str = HELPERS) -> ModuleType:
        files = {"main.py": main.encode(), "helpers.py": helpers.encode()}
        name = f"exop_bundles.a_v{len(made)}"
        namespace = Namespace(name, Sources(tmp_path, files, name), {"a": name})
        if made:
            namespace.execute = Reuse(namespace, made[-1]).execute
        made.append(load(namespace, "a"))
        return importlib.import_module(f"{name}.main")

    yield load_next
    for namespace in made:
        unload(namespace)


def same(one: ModuleType, other: ModuleType) -> set[str]:
    """The names that mean the same object in both."""
    return {name for name in vars(one) if not name.startswith("__") and vars(one)[name] is vars(other).get(name)}


def test_nothing_is_executed_again(edited: Load):
    """The same text, and one with comments, gives the same objects; nothing is appended twice."""
    first = edited()
    second = edited(FIRST.replace("def kept", "# a comment\n\n\ndef kept"))
    names = {"annotations", "dataclass", "scale", "MADE", "LIMIT", "Report", "Speed", "kept", "scaled"}
    assert same(first, second) >= names - {"LIMIT"}
    assert second.MADE == [1]


def test_what_needs_the_edit_is_executed(edited: Load):
    """And nothing beside it."""
    first = edited()
    second = edited(FIRST.replace("LIMIT = 3", "LIMIT = 4"))
    assert second.scaled(1) == (2, 4)
    assert {"kept", "MADE", "Report"} <= same(first, second)
    assert "scaled" not in same(first, second)
    assert first.scaled(1) == (2, 3)


def test_an_edit_in_another_module_reaches_who_imports_it(edited: Load):
    """Through the name that is imported."""
    first = edited()
    second = edited(helpers=HELPERS.replace("FACTOR = 2", "FACTOR = 5"))
    assert (first.scaled(1), second.scaled(1)) == ((2, 3), (5, 3))
    assert second.kept is first.kept


def test_what_changes_a_value_belongs_to_it(edited: Load):
    """The list is made anew when what is appended to it has changed, and with it who uses it."""
    first = edited()
    second = edited(FIRST.replace("MADE.append(1)", "MADE.append(2)"))
    assert (first.MADE, second.MADE) == ([1], [2])
    assert second.kept is not first.kept
    assert second.Report is first.Report


def test_three_generations(edited: Load):
    """What has not changed since the first is still the first's; what changed back is made anew."""
    first = edited()
    edited(FIRST.replace("LIMIT = 3", "LIMIT = 4"))
    third = edited()
    assert third.kept is first.kept
    assert third.scaled is not first.scaled
    assert third.scaled(1) == first.scaled(1)


def test_what_breaks_says_where(edited: Load):
    """An error while the changed statement is executed points at its line."""
    edited()
    with pytest.raises(ZeroDivisionError) as caught:
        edited(FIRST.replace("LIMIT = 3", "LIMIT = 1 / 0"))
    frames = [frame for frame in caught.traceback if str(frame.path).endswith("main.py")]
    assert [frame.lineno + 1 for frame in frames] == [8]
    assert not any(name.startswith("exop_bundles.a_v1.main") for name in sys.modules)


def test_annotations_are_read_as_the_module_says(edited: Load):
    """`from __future__ import annotations` holds for every statement that is executed alone."""
    edited()
    second = edited(FIRST.replace("    speed: Speed\n", "    speed: Speed\n    more: int = 1\n"))
    assert second.Report.__annotations__ == {"speed": "Speed", "more": "int"}
