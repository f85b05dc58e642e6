"""What keeps the code in order: the floors, the confinement of outside libraries, sizes, docstrings, a light import."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import exop

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "exop").rglob("*.py"))

#: Lines of a module.
LONGEST_MODULE = 500
#: Lines of a function, its docstring aside: 40 are the rule, a few more the wall.
LONGEST_FUNCTION = 45

#: Where outside libraries may be imported; a folder stands for all that is in it.
CONFINED = {
    "cryptography": ("remoting/authority.py",),
    "cyclopts": ("cli",),
    "msgpack": ("remoting", "model/values"),
    "msgspec": ("remoting", "hosts", "model/types/conversion.py", "runtime/channels/frame_body.py"),
    "numpy": (
        "model/values/columns.py",
        "model/meshes/partitions.py",
        "model/expressions/kernels.py",
        "stock/event_time.py",
        "engine/feed.py",
        "engine/groups.py",
    ),
    "packaging": ("bundle",),
    "pluggy": ("hooks",),
    "pyarrow": (
        "runtime/dataflow/batches.py",
        "model/values/columns.py",
        "model/meshes/partitions.py",
        "model/expressions/columns.py",
        "model/expressions/kernels.py",
        "stock/rows.py",
        "stock/sinks.py",
        "stock/groups.py",
        "engine/aggregation.py",
        "engine/columns.py",
        "engine/feed.py",
        "engine/pull_slet.py",
        "engine/groups.py",
    ),
    "pyspark": (),
    "rich": ("cli",),
    "rpyc": ("remoting",),
    "sqlite3": ("runtime/durable", "stock/sinks.py"),
    "structlog": ("logs.py",),
    "tomlkit": ("model/meshes/topology.py",),
    "zeroconf": ("remoting/peers/discovery.py",),
}

#: What `import exop` must not pay for, and what building and running an application must not pay for.
HEAVY = {
    "cryptography",
    "cyclopts",
    "matplotlib",
    "msgpack",
    "msgspec",
    "numpy",
    "packaging",
    "pandas",
    "pyarrow",
    "pyspark",
    "rich",
    "rpyc",
}
HEAVY |= {"sqlite3", "structlog", "tomlkit", "zeroconf"}


def name_of(path: Path) -> str:
    """A module as the tables name it."""
    return path.relative_to(ROOT / "exop").as_posix()


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """All modules, parsed."""
    return {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def test_a_floor_imports_downwards_only():
    """import-linter finds no import that goes up, and no module that stands on no floor."""
    # In a process of its own: it sets up logging, and disables the loggers that are there.
    program = (
        "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_outside_libraries_stay_where_they_belong(trees):
    """Each one is imported in one place, so that it can be exchanged there."""
    astray = []
    for name, tree in trees.items():
        for library in imported(tree):
            places = CONFINED.get(library)
            if places is not None and not name.startswith(places):
                astray.append(f"{name} imports {library}")
    assert not astray, "\n".join(astray)


def test_types_are_read_in_one_place(trees):
    """Only the descriptions of types, and the reader of signatures, look into annotations: all else derives."""
    walkers = {"get_origin", "get_args", "get_type_hints"}
    readers = ("model/types/", "model/slets/signature.py")
    astray = [
        name
        for name, tree in trees.items()
        if name.startswith("model/") and not name.startswith(readers)
        if walkers & {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(tree)}
    ]
    assert not astray


def imported(tree: ast.Module) -> Iterator[str]:
    """The top-level names of all that a module imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_no_module_is_too_long():
    """A module holds one concept: most have 150 to 400 lines, and none has more than 500."""
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name for name, lines in lengths.items() if lines > LONGEST_MODULE} == set()


def test_no_function_is_too_long(trees):
    """Phases are functions: nobody has to read a page of one."""
    long = []
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno - len((ast.get_docstring(node) or "").splitlines())
                if lines > LONGEST_FUNCTION:
                    long.append(f"{name}: {node.name} has {lines} lines")
    assert not long, "\n".join(long)


def test_every_public_name_has_a_docstring(trees):
    """Modules, classes, functions and methods say what they are, all of them."""
    silent = [f"{module}: {name}" for module, tree in trees.items() for name in undocumented(tree)]
    assert not silent, "\n".join(silent)


def undocumented(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    """Public names without a docstring; overloads, and the methods of a protocol of another class, are left out."""
    if isinstance(tree, ast.Module) and not ast.get_docstring(tree):
        yield "(the module)"
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        decorators = {ast.unparse(one).split("(")[0] for one in node.decorator_list}
        if not ast.get_docstring(node) and not decorators & {"overload", "override"}:
            yield f"{prefix}{node.name}"
        if isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases):
            yield from undocumented(node, f"{prefix}{node.name}.")


def test_the_top_level_is_small():
    """About twenty names, each of which is there and none of which is a module by accident."""
    assert len(exop.__all__) <= 26
    assert list(exop.__all__) == sorted(exop.__all__)
    assert all(getattr(exop, name) is not None for name in exop.__all__)
    assert set(exop.__all__) <= set(dir(exop))
    with pytest.raises(AttributeError, match="module 'exop' has no attribute 'Sletz'"):
        exop.Sletz


def loaded_by(program: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after a program."""
    show = "import sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COV_", "PYTHONSTARTUP"))}
    ran = subprocess.run(
        [sys.executable, "-c", f"{program}\n{show}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment,
    )
    return set(ran.stdout.splitlines()[-1].split())


def test_import_exop_is_light():
    """`import exop` loads no library at all; the names are imported when they are used."""
    assert not loaded_by("import exop") & (HEAVY | {"pluggy", "inspect", "dataclasses", "asyncio"})


def test_all_of_the_public_api_is_light():
    """Importing every public name, and building a mesh, loads pluggy and nothing heavier."""
    program = """
from exop import *
from exop import Application
from exop.stock.slets import count_up, pass_on, show
app = Application("light")
numbers = app.add("numbers", count_up, to="3", out=app.channel("numbers", kind="queue", capacity=3))
app.add("show", show, item=app.add("pass", pass_on, item=numbers))
app.build()
"""
    assert not loaded_by(program) & HEAVY


def test_running_an_application_is_light():
    """An embedded platform without engines loads none of the heavy libraries either, plugins included."""
    program = """
from exop import Application
from exop.stock.slets import count_up, pass_on
app = Application("light")
app.add("pass", pass_on, item=app.add("numbers", count_up, to=3))
app.run()
"""
    assert not loaded_by(program) & HEAVY
