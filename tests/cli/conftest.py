"""Small applications as a user would write them, and a run directory that no other test shares."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exop import Platform, logs
from exop.cli import main
from exop.cli.loading import load_mesh
from tests.cli.line import PACKAGE
from tests.cli.shell import eventually, lines

COUNTING = '''
"""Counts, halves, writes."""
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from exop import Application, Memento, hookimpl, slet
from exop.stock.slets import WriteLines

PACE = threading.Event()


class Position(Memento):
    """How far the source has come."""

    number: int = 0


@slet
def numbers(position: Position, *, to: int | None = None, pace: float = 0.0) -> Iterator[int | None]:
    """Emit 1, 2, …: *to* numbers, or without end, one every *pace* seconds."""
    while to is None or position.number < to:
        position.number += 1
        yield position.number
        if pace:
            PACE.wait(pace)


@slet
def half(item: int, *, missing: Path | None = None) -> float:
    """Halve; fail at the third number while *missing* does not exist."""
    if item == 3 and missing is not None and not missing.exists():
        raise ValueError("no halves today")
    return item / 2


def counting(
    *,
    output: Path,
    to: int | None = None,
    pace: float = 0.0,
    missing: Path | None = None,
    mode: Literal["fast", "slow"] = "fast",
) -> Application:
    """Count."""
    app = Application("counting")
    halves = app.add("half", half, item=app.add("numbers", numbers, to=to, pace=pace), missing=missing)
    app.add("sink", WriteLines, item=halves, path=output)
    return app


@hookimpl
def register_slets():
    return [numbers, half]


@hookimpl
def register_builders():
    return [counting]
'''


@pytest.fixture(autouse=True)
def _own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run directory, import path and logging set-up of the test's own, as a fresh process would have."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    root = logging.getLogger()
    handlers, level, chosen = root.handlers.copy(), root.level, vars(logs._choice).copy()
    yield
    root.handlers, root.level = handlers, level
    vars(logs._choice).update(chosen)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """A package folder with two slets and a builder."""
    folder = tmp_path / "counting"
    folder.mkdir()
    (folder / "__init__.py").write_text(COUNTING)
    return folder


@pytest.fixture
def failing(counting: Path) -> Iterator[Platform]:
    """A platform on which the third item of `counting.half` fails, while no file `mended` exists."""
    mesh, catalog, _ = load_mesh("./counting", ["output=out", "missing=mended", "pace=0.01"], (), ())
    with Platform(name="failing", plugins=catalog.plugins, control=True) as platform:
        platform.apply(mesh)
        eventually(lambda: platform.kept_item("counting", "half"))
        yield platform


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Path]:
    """An application on a platform that is reached over its socket; the file that it writes."""
    folder = tmp_path / "line"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    output = tmp_path / "out"
    with Platform(name="served", control=True) as platform:
        platform.load(folder)
        assert main(["apply", str(folder), f"output={output}"]) == 0
        eventually(lambda: len(lines(output)) > 5)
        yield output
