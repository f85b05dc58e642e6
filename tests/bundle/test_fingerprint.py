"""Two definitions have one fingerprint when their code, and all that it needs, is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from exop.bundle.closure import Fingerprints
from exop.bundle.modules import Sources

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
"""
HELPERS = "FACTOR = 2\nOTHER = 3\ndef scale(x):\n    return x * FACTOR\ndef late(x):\n    return x\n"
FILES = {
    "main.py": MAIN,
    "helpers.py": HELPERS,
    "whole.py": "def found(x):\n    return x\n",
    "below/deep.py": "x = 1\n",
}


def prints(changes: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The fingerprints of what `main` binds, with texts of files replaced."""
    files = dict(FILES)
    for file, (old, new) in changes.items():
        assert old in files[file]
        files[file] = files[file].replace(old, new)
    sources = Sources(Path("/folder"), {name: text.encode() for name, text in files.items()}, "")

    def resolve(name: str) -> str | None:
        return name if sources.find(name.partition(".")[0]) is not None else None

    found = Fingerprints(sources, resolve)
    return {name: found.of("main", part) for part in found.parts("main") for name in part.binds}


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("main.py", "def one", "# a comment\n\n\ndef one", set()),
        ("main.py", "return scale(x) + TABLE", "return TABLE", {"one"}),
        ("main.py", 'TABLE["a"] = 1', 'TABLE["a"] = 2', {"TABLE", "one"}),
        ("helpers.py", "FACTOR = 2", "FACTOR = 3", {"scale", "OTHER", "one"}),
        ("helpers.py", "OTHER = 3", "OTHER = 4", {"scale", "OTHER", "one"}),
        ("helpers.py", "    return x\n", "    return -x\n", {"three"}),
        ("whole.py", "return x", "return -x", {"whole", "two"}),
        ("below/deep.py", "x = 1", "x = 2", {"below", "five"}),
        ("main.py", "class Alone:\n    pass", "class Alone:\n    x = 1", {"Alone", "Four"}),
    ],
)
def test_an_edit_reaches_what_needs_it(file: str, old: str, new: str, changed: set[str]):
    """Through functions, tables, imports (also late ones, and of whole modules) and annotations in quotes."""
    before, after = prints({}), prints({file: (old, new)})
    assert {name for name in before if before[name] != after[name]} == changed


def test_modules_that_import_each_other_have_fingerprints():
    """And what is no Python has none, which says nothing of the others."""
    files = {"a.py": b"from .b import y\nx = 1\n", "b.py": b"from .a import x\ny = 1\n", "c.py": b"x = ("}
    sources = Sources(Path("/folder"), files, "")
    found = Fingerprints(sources, lambda name: None)
    assert [len({found.of("a", part) for part in found.parts("a")}), found.parts("c")] == [2, []]
