"""The statements a definition needs, their fingerprints, and the reuse of what has not changed."""

from __future__ import annotations

import ast
import importlib
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from exop.bundle import dev
from exop.bundle.dev import changed_between, needed, reusing, statements_of
from exop.bundle.modules import Namespace, load, unload
from exop.bundle.skeleton import slet_names

MODULE = '''
"""A module."""
from __future__ import annotations
import os
import json as js
try:
    import fast
except ImportError:
    fast = None

TABLE = {}
TABLE["a"] = 1
TABLE.update(b=2)
total = 0
total += 1
other: int = 3
use(TABLE)

def one(number, other=other):
    total = number
    return js.dumps(TABLE)

class Base:
    number = 1

class Two(Base):
    def method(self) -> "Quoted":
        return fast

class Quoted:
    pass

if __name__ == "__main__":
    one(1)
'''
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
SCALE = "FACTOR = 2\ndef scale(x):\n    return x * FACTOR\n"

Load = Callable[..., ModuleType]


def lines(*names: str) -> list[str]:
    """The first line of each statement that is needed."""
    return [ast.unparse(statement.node).splitlines()[0] for statement in needed(statements_of(MODULE), names)]


FUTURE = "from __future__ import annotations"


def test_a_function_needs_what_it_asks_for():
    """Its globals and what changes them, and its defaults; not its own locals, and not who only uses it."""
    changes = ["TABLE = {}", "TABLE['a'] = 1", "TABLE.update(b=2)"]
    assert lines("one") == [FUTURE, "import json as js", *changes, "other: int = 3", "def one(number, other=other):"]


def test_a_class_needs_its_bases_and_annotations():
    """Also in quotes, and what is bound in a `try`."""
    assert lines("Two") == [FUTURE, "try:", "class Base:", "class Two(Base):", "class Quoted:"]


def test_a_name_needs_what_changes_it():
    """`total += 1` binds nothing new, and belongs to it."""
    assert lines("total") == [FUTURE, "total = 0", "total += 1"]


def test_slets_are_found_without_running_anything():
    """Functions with the mark, called or not, whatever the module is called; classes below `Slet`, also further."""
    source = """
@slet
def a(): ...
@slet(atomic=True)
def b(): ...
@exop.slet
def c(): ...
@other
def d(): ...
class E(Slet): ...
class F(E): ...
class G(exop.Slet, own_driver=True): ...
class H: ...
"""
    assert slet_names(ast.parse(source)) == ["a", "b", "c", "E", "F", "G"]


MAIN = """
import math
from .helpers import scale, OTHER
from . import whole
import below.deep
from elsewhere import thing

TABLE = {}
TABLE["a"] = 1

def one(x):
    return scale(x) + TABLE["a"]

def two(x):
    return whole.found(x)

def three(x):
    from .helpers import late
    return late(x)

class Four(Base := object):
    value: "Alone" = 1

class Alone:
    pass

def five(x):
    return below.deep.x

def six(x) -> list["Alone"]:
    return [x]
"""
HELPERS = "FACTOR = 2\nOTHER = 3\ndef scale(x):\n    return x * FACTOR\ndef late(x):\n    return x\n"
FILES = {
    "main.py": MAIN,
    "helpers.py": HELPERS,
    "whole.py": "def found(x):\n    return x\n",
    "below/deep.py": "x = 1\n",
}


def namespace(files: Mapping[str, str]) -> Namespace:
    """A folder with these files."""
    modules = {name: text.encode() for name, text in files.items()}
    return Namespace("exop_bundles.a_v1", Path("/folder"), modules, "", {})


def changed(file: str, old: str, new: str, files: Mapping[str, str] = FILES, module: str = "main") -> set[str]:
    """The names in a module that an edit of a file changes."""
    assert old in files[file]
    after = {**files, file: files[file].replace(old, new)}
    found = changed_between(namespace(files), namespace(after))
    return {name for place, name in found if place == module and name.isidentifier()}


@pytest.mark.parametrize(
    ("file", "old", "new", "names"),
    [
        ("main.py", "def one", "# a comment\n\n\ndef one", set()),
        ("main.py", "return scale(x) + TABLE", "return TABLE", {"one"}),
        ("main.py", 'TABLE["a"] = 1', 'TABLE["a"] = 2', {"TABLE", "one"}),
        ("helpers.py", "FACTOR = 2", "FACTOR = 3", {"scale", "OTHER", "one"}),
        ("helpers.py", "OTHER = 3", "OTHER = 4", {"scale", "OTHER", "one"}),
        ("helpers.py", "    return x\n", "    return -x\n", {"three"}),
        ("whole.py", "return x", "return -x", {"whole", "two"}),
        ("below/deep.py", "x = 1", "x = 2", {"below", "five"}),
        ("main.py", "class Alone:\n    pass", "class Alone:\n    x = 1", {"Alone", "Base", "Four", "six"}),
    ],
)
def test_an_edit_reaches_what_needs_it(file: str, old: str, new: str, names: set[str]):
    """Through functions, tables, imports (also late ones, and of whole modules) and annotations in quotes."""
    assert changed(file, old, new) == names


@pytest.mark.parametrize("text", ["from .b import *\n", "from a.b import *\n", "import a.b as c\n", "import a.b\n"])
def test_an_edit_reaches_through_an_import_of_all(text: str):
    """The names that an import of `*` binds are not known: everything in the module may use them."""
    files = {"a/__init__.py": "", "a/b.py": "y = 1\n", "a/c.py": text + "def f():\n    return c.y, y, a.b.y\n"}
    files["main.py"] = "from a.c import y\ndef g():\n    return y\n"
    assert "f" in changed("a/b.py", "y = 1", "y = 2", files, "a.c")
    assert ("g" in changed("a/b.py", "y = 1", "y = 2", files)) == ("*" in text)


def test_a_future_import_changes_all_of_its_module():
    """It holds for every statement."""
    files = {"a.py": "x = 1\n"}
    assert changed("a.py", "x = 1", "from __future__ import annotations\nx = 1", files, "a") == {"annotations", "x"}


def test_an_edit_reaches_modules_that_import_each_other():
    """And a file that is no Python says nothing of the others."""
    files = {"a.py": "from .b import y\nx = 1\n", "b.py": "from .a import x\ny = 1\n", "c.py": "x = ("}
    assert [changed("b.py", "y = 1", "y = 2", files, module) for module in "abc"] == [{"y"}, {"y"}, set()]
    assert [changed("a.py", "x = 1", "x = 2", files, module) for module in "abc"] == [{"x"}, {"x"}, set()]


@pytest.fixture
def edited(tmp_path: Path) -> Iterator[Load]:
    """Loads the next generation of a folder, and gives its module `main`."""
    made: list[Namespace] = []

    def load_next(main: str = FIRST, helpers: str = SCALE) -> ModuleType:
        files = {"main.py": main.encode(), "helpers.py": helpers.encode()}
        name = f"exop_bundles.a_v{len(made)}"
        namespace = Namespace(name, tmp_path, files, name, {"a": name})
        if made:
            namespace.execute = reusing(made[-1], namespace)
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
    second = edited(helpers=SCALE.replace("FACTOR = 2", "FACTOR = 5"))
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


def test_an_import_of_all_is_followed(edited: Load):
    """What it binds reaches who uses it; what was bound over it stays."""
    main = "from .helpers import *\nFACTOR = FACTOR + 1\ndef scaled(x):\n    return scale(x), FACTOR\n"
    first, second = edited(main), edited(main + "LATE = 1\n")
    assert same(first, second) >= {"scale", "scaled", "FACTOR"}
    assert (second.scaled(1), second.FACTOR) == ((2, 3), 3)
    assert edited(main, SCALE.replace("FACTOR = 2", "FACTOR = 5")).scaled(1) == (5, 6)


def test_a_name_of_its_own_hides_a_future_import(edited: Load):
    """What is executed alone does not bind it again."""
    main = "from __future__ import annotations\nannotations = 1\ndef f() -> Unknown:\n    return 1\n"
    edited(main)
    second = edited(main.replace("return 1", "return 2"))
    assert (second.annotations, second.f.__annotations__) == (1, {"return": "Unknown"})


def test_annotations_are_read_as_the_module_says(edited: Load):
    """`from __future__ import annotations` holds for every statement that is executed alone."""
    edited()
    second = edited(FIRST.replace("    speed: Speed\n", "    speed: Speed\n    more: int = 1\n"))
    assert second.Report.__annotations__ == {"speed": "Speed", "more": "int"}


LINKS = (
    "from .{m} import {n}",
    "from a.{m} import {n}",
    "from .{m} import *",
    "from . import {m}; {n} = {m}.{n}",
    "import a.{m}; {n} = a.{m}.{n}",
)
USES = (
    "def {me}(x=0):\n    return {n} if isinstance({n}, int) else {n}()",
    "def {me}(x=0):\n    from .{m} import {n} as late\n    return late if isinstance(late, int) else late()",
    "{me} = [0]\n{me}.append({n} if isinstance({n}, int) else {n}())\n{me} = sum({me})",
    "class Of{me}:\n    x = staticmethod({n} if callable({n}) else lambda: {n})\ndef {me}():\n    return Of{me}.x()",
    "try:\n    {me} = {n}\nexcept NameError:\n    {me} = 0",
)


def folder(chance: random.Random) -> dict[str, str]:
    """Three modules; each definition uses one before it, in its module or in one before that."""
    known: list[tuple[str, str]] = []
    files = {}
    for module in ("low", "mid", "top"):
        lines = []
        for number in range(4):
            me = f"{module}{number}"
            where, name = chance.choice(known) if number and chance.random() < 0.9 else ("", "")
            if where not in ("", module):
                lines.append(chance.choice(LINKS).format(m=where, n=name))
                known.append((module, name))
            uses = chance.choice(USES) if where else "{me} = " + str(chance.randrange(9))
            lines.append(uses.format(me=me, n=name, m=where))
            known.append((module, me))
        files[f"{module}.py"] = "\n".join(lines) + "\n"
    return files


def found_in(module: ModuleType, names: set[str]) -> dict[str, int]:
    """What the definitions of a folder give, by name."""
    return {name: value() if callable(value := vars(module)[name]) else value for name in names}


def edit_any(tmp_path: Path, seed: int) -> None:
    """Edit a folder some times; what is reused is what the whole folder, executed afresh, would give."""
    chance = random.Random(seed)
    made: list[Namespace] = []

    def loaded(files: Mapping[str, str], before: Namespace | None) -> tuple[Namespace, dict[str, int]]:
        name = f"exop_bundles.a_v{len(made)}"
        modules = {file: text.encode() for file, text in files.items()}
        space = Namespace(name, tmp_path, modules, name, {"a": name})
        if before is not None:
            space.execute = reusing(before, space)
        made.append(load(space, "a"))
        values: dict[str, int] = {}
        for module in ("low", "mid", "top"):
            values |= found_in(
                importlib.import_module(f"{name}.{module}"), {f"{module}{number}" for number in range(4)}
            )
        return space, values

    files = folder(chance)
    last = None
    try:
        for _ in range(4):
            last, reused = loaded(files, last)
            assert reused == loaded(files, None)[1], files
            edited = chance.choice(list(files))
            numbers = re.findall(r"= \d\n", files[edited])
            files[edited] = files[edited].replace(chance.choice(numbers), f"= {chance.randrange(9)}\n", 1)
            files[edited] = chance.choice(("# a comment\n", "")) + files[edited]
    finally:
        for space in made:
            unload(space)


@pytest.mark.parametrize("seed", range(20))
def test_after_any_edits_a_folder_gives_what_it_gives_when_it_is_loaded_anew(tmp_path: Path, seed: int):
    """However its definitions use each other."""
    edit_any(tmp_path, seed)


@pytest.mark.parametrize("forgotten", ["_imported", "_used", "_bound"])
def test_what_is_planted_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str):
    """Imports whose modules are not followed, names that are not used, and values that are not changed."""
    right = getattr(dev, forgotten)
    wrong = {
        "_imported": lambda *given: (one for one in right(*given) if one[1]),
        "_used": lambda node, table: (one.get_name() for one in table.get_symbols() if one.is_referenced()),
        "_bound": lambda node, table: (one for one in right(node, table) if not isinstance(node, ast.Expr)),
    }
    monkeypatch.setattr(dev, forgotten, wrong[forgotten])
    dev.statements_of.cache_clear()
    with pytest.raises((AssertionError, AttributeError)):
        all(edit_any(tmp_path, seed) is None for seed in range(200))
    dev.statements_of.cache_clear()
