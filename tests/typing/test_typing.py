"""Type checkers understand a user's slets: mypy --strict accepts what is right and refuses what is wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import pages, python_of

pytestmark = pytest.mark.edges

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def mypy(folder: Path, *names: str) -> list[str]:
    """What mypy --strict says of a user's files, in a folder without any configuration of ours."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "--hide-error-context"]
    command += [
        "--explicit-package-bases",  # a bundle is a package without an `__init__.py`
        "--disable-error-code",
        "import-untyped",
        "--no-color-output",
        "--cache-dir",
        str(ROOT / ".mypy_cache" / "users"),
        *names,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert ran.returncode in (0, 1), ran.stderr or ran.stdout
    return [line for line in ran.stdout.splitlines() if ": error:" in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's project: the modules beside this test, and the Python of every page of the documentation."""
    made = tmp_path_factory.mktemp("project")
    for name in ("accepted.py", "refused.py"):
        shutil.copy(HERE / name, made / name)
    for page in pages():
        for name, source in python_of(page).items():
            target = made / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def said(folder):
    """All that mypy says, in one run."""
    return mypy(folder, *sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py")))


def test_mypy_accepts_a_users_slets(said):
    """Functions, classes with injected fields, mementos, engines and their tests pass --strict as they are written."""
    assert [line for line in said if line.startswith("accepted.py")] == []


def test_mypy_refuses_a_users_mistakes(said):
    """Wrong types, positional settings, misspelled fields and policies are found where they are written."""
    found = {int(line.split(":")[1]) for line in said if line.startswith("refused.py")}
    assert found == marked(HERE / "refused.py")


def test_mypy_accepts_the_documentation(said):
    """Whoever copies a snippet has nothing to mend."""
    assert [line for line in said if not line.startswith(("accepted.py", "refused.py"))] == []


def marked(path: Path) -> set[int]:
    """The lines that a checker must refuse."""
    return {number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# refused")}


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed (it brings Node)")
def test_pyright_agrees(folder):
    """Pyright accepts and refuses the same lines."""
    command = ["pyright", "--pythonpath", sys.executable, "accepted.py", "refused.py"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    found = re.findall(r"(\w+)\.py:(\d+):\d+ - error", ran.stdout)
    assert {int(line) for name, line in found if name == "refused"} == marked(HERE / "refused.py"), ran.stdout
    assert [line for name, line in found if name == "accepted"] == [], ran.stdout
